"""Write a page with the screens of all commands: `python -m terminal.screens FOLDER [COLUMNS]`.

Set PYTHONPATH=src:tests.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import pyte
from terminal.sample import write_model
from terminal.session import play
from terminal.test_terminal import MODEL, SESSION

COLOURS = {"red": "#ff7b72", "green": "#7ee787", "yellow": "#d29922", "brown": "#d29922", "cyan": "#76e3ea"}
PAGE = """<!doctype html><meta charset="utf-8"><title>weft in {columns} columns</title><style>
body {{ background: #0d1117; color: #e6edf3; font: 13px/1.35 "DejaVu Sans Mono", monospace }}
pre {{ width: {columns}ch; border: 1px solid #30363d; padding: 8px; margin: 4px 0 20px }}
h2 {{ font: 600 14px sans-serif }}</style>{screens}"""


def write_page(folder: Path, columns: int) -> Path:
    """Write the whole session to one page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / MODEL)
    (folder / "page.onnx").write_text("<!DOCTYPE html>", encoding="utf-8")
    cases = [{"arguments": arguments, "columns": columns, "folder": str(folder)} for arguments, _ in SESSION.values()]
    screens = [
        f"<h2>$ weft {escape(' '.join(result['arguments']))}, exit {result['code']}</h2>"
        f"<pre>{_screen(result, columns)}</pre>"
        for result in play(cases)
    ]
    page = folder / f"terminal-{columns}.html"
    page.write_text(PAGE.format(columns=columns, screens="".join(screens)), encoding="utf-8")
    return page


def _screen(result: dict[str, str], columns: int) -> str:
    screen = pyte.Screen(columns, 400)
    pyte.Stream(screen).feed(result["written"])
    rows = [
        "".join(_cell(screen.buffer[line][column]) for column in range(columns)) for line in range(screen.cursor.y + 1)
    ]
    return "\n".join(rows)


def _cell(cell: pyte.screens.Char) -> str:
    style = (
        f"color:{COLOURS.get(cell.fg, f'#{cell.fg}' if len(cell.fg) == 6 else 'inherit')};"
        if cell.fg != "default"
        else ""
    )
    style += f"background:#{cell.bg};" if len(cell.bg) == 6 else ""
    style += "font-weight:600" if cell.bold else ""
    return f'<span style="{style}">{escape(cell.data)}</span>' if style else escape(cell.data)


if __name__ == "__main__":
    print(write_page(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 80))
