"""Generate a page for each program in examples/, with its docstring and its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = "examples"


def pages() -> Iterator[tuple[str, str, str]]:
    """Yield the path, title and text of each page."""
    programs = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))}
    runnable = {name: source for name, source in programs.items() if "__main__" in source}
    docstrings = {name: ast.get_docstring(ast.parse(source)) or "" for name, source in runnable.items()}
    rows = [f"| [`{name}.py`]({name}.md) | {_first(text)} |" for name, text in docstrings.items()]
    introduction = (
        "Whole programs to start from, in the folder `examples/` of the repository. All of them run in the tests."
    )
    table = "\n".join(["| program | |", "| --- | --- |", *rows])
    yield f"{FOLDER}/index.md", "Overview", f"# Examples\n\n{introduction}\n\n{table}\n"
    for name, source in runnable.items():
        title = name.replace("_", " ")
        yield f"{FOLDER}/{name}.md", title, f"# {title}\n\n`examples/{name}.py`:\n\n```python\n{source.strip()}\n```\n"


def _first(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")
