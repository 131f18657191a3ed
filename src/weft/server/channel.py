"""Requests between the processes of a server: JSON lines over a pair of sockets, in both directions."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any

Answer = Callable[[str, Any], Awaitable[Any]]
LONGEST_LINE = 1 << 24


class ChannelError(Exception):
    """The other process could not answer."""


class Channel:
    """One end of a connection: `ask` sends a request, and `answer` handles those of the other end."""

    def __init__(self, answer: Answer, on_end: Callable[[], None] | None = None) -> None:
        """`on_end`: called when the other process has ended."""
        self._answer = answer
        self._on_end = on_end
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, connection: socket.socket) -> None:
        """Begin to read requests and answers."""
        reader, self._writer = await asyncio.open_connection(sock=connection, limit=LONGEST_LINE)
        self._spawn(self._read(reader))

    async def ask(self, what: str, content: Any = None) -> Any:
        """Send a request and return its answer; ChannelError if the other end fails or is gone."""
        if self._writer is None or self._writer.is_closing():
            raise ChannelError("the other process has ended")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({"ask": number, "what": what, "content": content})
            return await future
        finally:
            self._waiting.pop(number, None)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, ValueError):
            while line := await reader.readline():
                message = json.loads(line)
                if "ask" in message:
                    self._spawn(self._handle(message))
                    continue
                future = self._waiting.get(message["answer"])
                if future is not None and not future.done():
                    if "error" in message:
                        future.set_exception(ChannelError(message["error"]))
                    else:
                        future.set_result(message["content"])
        self.close()
        if self._on_end is not None:
            self._on_end()

    async def _handle(self, message: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"answer": message["ask"]}
        try:
            reply["content"] = await self._answer(message["what"], message["content"])
        except Exception as error:
            reply["error"] = str(error)
        with suppress(OSError, RuntimeError):
            self._send(reply)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End the connection; requests that wait fail."""
        if self._writer is not None:
            self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ChannelError("the other process has ended"))
