"""A notebook kernel for tests, which runs cells in order and keeps their outputs."""

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
SECONDS = 120  # timeout of a cell


class RecordingClient(NotebookClient):  # type: ignore[misc]
    """Records the texts of all displays, also of those that are replaced later."""

    shown: list[str] | None = None

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if self.shown is not None and msg["msg_type"] in ("display_data", "update_display_data"):
            self.shown.append(msg["content"]["data"].get("text/plain", ""))
        return super().process_message(msg, cell, cell_index)


class Session:
    """Cells with their outputs."""

    def __init__(self, client: RecordingClient) -> None:
        self._client = client
        self.cells: list[Any] = client.nb.cells

    def run(self, source: str) -> Any:
        """Run a new cell; nbclient raises an exception if it fails."""
        cell = nbformat.v4.new_code_cell(source)
        self.cells.append(cell)
        self._client.shown = []
        return self._client.execute_cell(cell, len(self.cells) - 1)

    @property
    def shown(self) -> list[str]:
        """The texts that the last cell displayed, in order."""
        return self._client.shown or []

    def complete(self, text: str) -> list[str]:
        """Return the completions of a text."""
        client = self._client.kc
        request = client.complete(text, len(text))

        async def answer() -> list[str]:
            while True:
                reply = await client.get_shell_msg(timeout=SECONDS)
                if reply["parent_header"].get("msg_id") == request:
                    return list(reply["content"]["matches"])

        matches: list[str] = run_sync(answer)()
        return matches


@contextmanager
def notebook(folder: Path) -> Iterator[Session]:
    """Run a kernel in a folder until the end of the block."""
    manager = AsyncKernelManager(kernel_name="python3")
    manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    variables = {"PYTHONPATH": str(SOURCE), "IPYTHONDIR": str(folder / "ipython"), "JPY_PARENT_PID": str(os.getpid())}
    client = RecordingClient(
        nbformat.v4.new_notebook(), km=manager, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}
    )
    with client.setup_kernel(env={**os.environ, **variables}, cwd=str(folder)):
        yield Session(client)


def page(cells: list[Any]) -> str:
    """Return a page with the cells, similar to a notebook."""
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
