"""A notebook's kernel for tests: cells are run one after the other, and all that it says on the way is kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.util import run_sync

SOURCE = Path(__file__).parents[2] / "src"
SECONDS = 120  # that a cell may take on a busy machine


class RecordingClient(NotebookClient):  # type: ignore[misc]
    """Keeps the texts of displays as they come, those that are replaced later too."""

    shown: list[str] | None = None

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if self.shown is not None and msg["msg_type"] in ("display_data", "update_display_data"):
            self.shown.append(msg["content"]["data"].get("text/plain", ""))
        return super().process_message(msg, cell, cell_index)


class Session:
    """Cells and what they gave."""

    def __init__(self, client: RecordingClient) -> None:
        self._client = client
        self.cells: list[Any] = client.nb.cells

    def run(self, source: str) -> Any:
        """A new cell, run; an exception of nbclient's where it raises one."""
        cell = nbformat.v4.new_code_cell(source)
        self.cells.append(cell)
        self._client.shown = []
        return self._client.execute_cell(cell, len(self.cells) - 1)

    @property
    def shown(self) -> list[str]:
        """The texts that the last cell displayed, in order."""
        return self._client.shown or []

    def complete(self, text: str) -> list[str]:
        """What the Tab key offers at the end of a text."""
        client = self._client.kc
        asked = client.complete(text, len(text))

        async def answer() -> list[str]:
            while True:
                reply = await client.get_shell_msg(timeout=SECONDS)
                if reply["parent_header"].get("msg_id") == asked:
                    return list(reply["content"]["matches"])

        found: list[str] = run_sync(answer)()
        return found


@contextmanager
def notebook(folder: Path) -> Iterator[Session]:
    """A kernel that works in a folder; it ends with the block."""
    manager = AsyncKernelManager(kernel_name="python3")
    manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    around = {"PYTHONPATH": str(SOURCE), "IPYTHONDIR": str(folder / "ipython"), "JPY_PARENT_PID": str(os.getpid())}
    client = RecordingClient(
        nbformat.v4.new_notebook(), km=manager, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}
    )
    with client.setup_kernel(env={**os.environ, **around}, cwd=str(folder)):
        yield Session(client)


def page(cells: list[Any]) -> str:
    """The cells as a page that lays them out about as notebooks do."""
    parts = []
    for cell in cells:
        parts.append(f"<pre class=in>{escape(cell.source)}</pre>")
        for output in cell.outputs:
            content = output.get("data", {"text/plain": output.get("text", "")})
            parts.append(f"<div class=out>{content.get('text/html') or plain(content.get('text/plain', ''))}</div>")
    style = (
        ":root{color-scheme:light dark}body{font:14px system-ui;margin:8px;background:Canvas;color:CanvasText}"
        "pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0}"
        ".in{background:#8882;padding:6px}.out{padding:6px 12px}"
    )
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>cells</title><style>{style}"
    return f"<!doctype html><html lang=en>{head}</style>{''.join(parts)}</html>"


def plain(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"
