"""Server-sent events: the body of a streaming response."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from weft.server.http import Response
from weft.server.openai.errors import convert_error, error_object

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies pass events on at once
)
DONE = b"data: [DONE]\n\n"


class EventStream:
    """The events of a response, ended by `[DONE]`, or by an event that describes an error.

    close: cancels the work behind the events. It is called at the end, also if the events are never read.
    """

    def __init__(self, events: AsyncGenerator[Any, None], close: Callable[[], None]) -> None:
        self._events = events
        self._close = close
        self._is_ended = False

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        if self._is_ended:
            raise StopAsyncIteration
        try:
            return format_event(await self._events.__anext__())
        except StopAsyncIteration:
            await self.aclose()
            return DONE
        except Exception as error:
            await self.aclose()
            return format_event(error_object(convert_error(error)))
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """End the stream and cancel the work behind it."""
        self._is_ended = True
        self._close()
        await self._events.aclose()

    @property
    def response(self) -> Response:
        """The response with these events as its body."""
        return Response(self, headers=HEADERS)


def format_event(content: Any) -> bytes:
    """Write an event with JSON data."""
    try:
        return b"data: " + json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
    except UnicodeEncodeError:  # a lone surrogate, from JSON that a model wrote
        return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
