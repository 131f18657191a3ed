"""What all calls have in common: the key, loading, errors, spans and the log."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.server import tracing
from weft.server.grpc.status import LOG, describe_error
from weft.server.http import HttpError
from weft.server.memory import MemoryBudget

if TYPE_CHECKING:
    from weft.server.asgi import Application

LARGE_MESSAGE = 1 << 16  # bytes from which a message counts as memory
ENDING = "the server ends; call again, which another server may answer"
COPIES = 2  # of its bytes: as they came, and as tensors


class CallHandlers:
    """The calls that a server answers, by path. A call without the key is refused before its message is read."""

    def __init__(self, app: Application, grpc: Any) -> None:
        self._app = app
        self._grpc = grpc
        self._handlers: dict[str, Any] = {}
        self._open: set[str] = set()
        key = app.settings.api_key
        self._key = None if key is None else key.encode()
        self._without_key = grpc.stream_stream_rpc_method_handler(self._refuse_without_key)
        self._while_ending = grpc.stream_stream_rpc_method_handler(self._refuse_while_ending)
        self.is_ending = False  # new calls are refused, but for those that are open to probes

    def service(self, details: Any) -> Any:
        """Return the handler of a call, as gRPC asks for it; None if there is none."""
        handler = self._handlers.get(details.method)
        if handler is None or details.method in self._open:
            return handler
        if self._key is not None and not _has_key(details.invocation_metadata, self._key):
            return self._without_key
        return self._while_ending if self.is_ending else handler

    def add_call(self, path: str, answer: Callable[[bytes, Any], Awaitable[bytes]], *, is_open: bool = False) -> None:
        """Add a call with one message and one response. `is_open`: also without the key, for probes."""

        async def call(content: bytes, context: Any) -> Any:
            return await self._follow(path, context, answer(content, context))

        self._add(path, self._grpc.unary_unary_rpc_method_handler(call), is_open)

    def add_watch(self, path: str, serve: Callable[[bytes, Any], Awaitable[None]]) -> None:
        """Add a call with one message, whose responses `serve` writes itself; it needs no key."""

        async def call(content: bytes, context: Any) -> None:
            await self._follow(path, context, serve(content, context))

        self._add(path, self._grpc.unary_stream_rpc_method_handler(call), is_open=True)

    def add_stream(self, path: str, serve: Callable[[Any], Awaitable[None]]) -> None:
        """Add a call whose messages `serve` reads and whose responses it writes."""

        async def call(_: Any, context: Any) -> None:
            await self._follow(path, context, serve(context))

        self._add(path, self._grpc.stream_stream_rpc_method_handler(call), is_open=False)

    def _add(self, path: str, handler: Any, is_open: bool) -> None:
        self._handlers[path] = handler
        if is_open:
            self._open.add(path)

    async def _follow(self, path: str, context: Any, answer: Awaitable[Any]) -> Any:
        """Await the answer to a call; end the call with a status if it fails."""
        begin = time.perf_counter()
        code, message, response = "CANCELLED", "", None
        is_open = path in self._open
        self._app.active += 0 if is_open else 1
        try:
            if not is_open and not self._app.repository.is_loaded:
                with suppress(WeftError):  # the log has it, and the model is not ready
                    await self._app.start()
            with tracing.call_span(path, _metadata(context)):
                response = await answer
            code = "OK"
        except Exception as error:
            code, message = describe_error(error, path)
        finally:
            self._app.active -= 0 if is_open else 1
            if self._app.settings.access_log:
                extra = {"request_id": "", "method": "POST", "path": path, "status": code}
                LOG.info("gRPC %s %s in %.1f ms", path, code, (time.perf_counter() - begin) * 1e3, extra=extra)
        if code != "OK":
            await context.abort(self._grpc.StatusCode[code], message)
        return response

    async def _refuse_without_key(self, _: Any, context: Any) -> None:
        problem = "the call has no valid key; send it as the metadata authorization: Bearer KEY"
        await context.abort(self._grpc.StatusCode.UNAUTHENTICATED, problem)

    async def _refuse_while_ending(self, _: Any, context: Any) -> None:
        await context.abort(self._grpc.StatusCode.UNAVAILABLE, ENDING)


def _has_key(metadata: Sequence[tuple[str, str | bytes]], key: bytes) -> bool:
    headers = dict(metadata)
    scheme, _, token = _to_bytes(headers.get("authorization", b"")).partition(b" ")
    sent = token.strip() if scheme.lower() == b"bearer" else _to_bytes(headers.get("x-api-key", b""))
    return hmac.compare_digest(sent, key)


def _to_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _metadata(context: Any) -> dict[bytes, bytes]:
    return {name.encode(): _to_bytes(text) for name, text in context.invocation_metadata() or ()}


@contextmanager
def hold_memory(budget: MemoryBudget, size: int) -> Iterator[None]:
    """Count a large message as memory while it is answered; HttpError 503 if that is not free."""
    if size < LARGE_MESSAGE:
        yield
        return
    if not budget.try_acquire(COPIES * size):
        raise HttpError(503, "the server is out of memory for this request")
    try:
        yield
    finally:
        budget.release(COPIES * size)
