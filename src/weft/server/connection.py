"""Connections that end when a client sends no request, or does not read its response."""

from __future__ import annotations

import asyncio
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Base = asyncio.Protocol
else:
    _Base = object


LARGE_BODY = 8 << 20  # bytes after which a connection is not read until the app takes them
WAKE_SECONDS = 1.0


class GuardedConnection(_Base):
    """A mixin for the protocols of uvicorn: aborts connections of clients that stall.

    uvicorn closes a connection that is idle after a response. It waits without a limit for the headers of a request,
    and for room in the buffer of a client that does not read.
    """

    seconds = 30.0
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _woken = 0.0  # when the app last heard of a body
    flow: Any

    def connection_made(self, transport: Any) -> None:
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request whose headers are not complete."""
        super().data_received(data)
        cycle: Any = getattr(self, "cycle", None)
        if cycle is None or cycle.response_complete:
            self._expect_request()
        else:
            self._stop_header_timer()

    def on_body(self, body: bytes) -> None:
        """Collect a body; wake the app when it is complete, large, or slow, not for each piece of it."""
        cycle: Any = getattr(self, "cycle", None)
        if cycle.response_complete:
            return
        cycle.body += body
        now = time.monotonic()
        if len(cycle.body) == len(body):  # the first piece, or the first since the app took some
            self._woken = now
        if len(cycle.body) > LARGE_BODY:
            self.flow.pause_reading()
        elif now < self._woken + WAKE_SECONDS:
            return
        self._woken = now
        cycle.message_event.set()

    def pause_writing(self) -> None:
        """Start to wait for the client to read."""
        super().pause_writing()
        self._write_timer = asyncio.get_running_loop().call_later(self.seconds, self._abort)

    def resume_writing(self) -> None:
        """Stop waiting: the client reads."""
        super().resume_writing()
        self._stop_write_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop_header_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        if self._header_timer is None:
            self._header_timer = asyncio.get_running_loop().call_later(self.seconds, self._abort)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _abort(self) -> None:
        transport: Any = getattr(self, "transport", None)
        if transport is not None:
            transport.abort()


@lru_cache(maxsize=8)
def make_protocol(seconds: float) -> type:
    """Return the protocol class of uvicorn, guarded: that of httptools if it is installed."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Base
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Base  # type: ignore[assignment]
    return type("GuardedProtocol", (GuardedConnection, Base), {"seconds": seconds})
