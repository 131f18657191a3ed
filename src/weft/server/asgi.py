"""The server as an ASGI app: reads requests, finds their routes, and sends responses."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from weft.errors import WeftError
from weft.server import tracing
from weft.server.compression import compress, decompress
from weft.server.discovery import Catalog
from weft.server.errors import to_http_error
from weft.server.http import Headers, HttpError, Request, Response, Route, Router
from weft.server.memory import MemoryBudget, default_limit
from weft.server.metrics import metrics_response
from weft.server.openai.errors import render_error as render_openai_error
from weft.server.openai.routes import openai_routes
from weft.server.openapi import describe_api
from weft.server.pages import page_routes
from weft.server.repository import Repository
from weft.server.settings import ServerSettings
from weft.server.snapshots import ModelSnapshot, add_snapshots, from_record, take_snapshot, to_record
from weft.server.v2.rest import InferenceEndpoints
from weft.server.v2.rest import render_error as render_v2_error

if TYPE_CHECKING:
    from weft.server.workers import Peers

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Result = TypeVar("Result")

LOG = logging.getLogger("weft.server")
OPEN_PATHS = frozenset(
    ("/", "/v2/health/live", "/v2/health/ready")
)  # without a key: the page has no data, probes no key
WATCH_AFTER = 0.02  # seconds after which a request ends early if its client leaves
LARGE_BODY = 1 << 16  # bytes from which a body counts as memory
CLIENT_LEFT = 499
RENDER_ERROR = {"openai": render_openai_error, "v2": render_v2_error}


class Application:
    """An ASGI app that serves models: `uvicorn.run(weft.server.app({"name": "model.onnx"}))`.

    Models are loaded when the server starts (ASGI's lifespan), or with the first request.
    """

    def __init__(self, catalog: Catalog, settings: ServerSettings) -> None:
        self.settings = settings
        limit = default_limit() if settings.memory_limit is None else settings.memory_limit
        self.budget = MemoryBudget(limit)
        self.repository = Repository(catalog, settings, self.budget)
        self.is_draining = False
        self.active = 0  # requests that are being answered
        self.last_active = 0.0  # when the last of them ended
        self.peers: Peers | None = None
        self._start: asyncio.Task[None] | None = None
        self._background: list[asyncio.Task[Any]] = []
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._prefix, self._numbers = secrets.token_hex(4), count(1)
        endpoints = InferenceEndpoints(self)
        routes = [*endpoints.routes(), *openai_routes(self.repository, settings.max_queue, settings.timeout)]
        routes += page_routes(self)
        routes.append(Route("GET", "/metrics", self._metrics, "v2", "Metrics for Prometheus"))
        routes.append(Route("GET", "/openapi.json", self._openapi, "v2", "This description"))
        self.router = Router(routes)

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load all models; later calls wait for the first."""
        if self._start is None:
            self._start = asyncio.get_running_loop().create_task(self._load())
        await asyncio.shield(self._start)

    async def _load(self) -> None:
        await self.repository.load_all()
        if self.settings.poll:
            self._background.append(asyncio.get_running_loop().create_task(self.repository.watch()))

    async def stop(self, grace: float | None = None) -> None:
        """Answer the requests that have arrived, at most for `grace` seconds, and free the models."""
        self.is_draining = True
        for task in self._background:
            task.cancel()
        await self.repository.close(grace)

    def own_statistics(self) -> list[dict[str, Any]]:
        """Return the counters of the models of this process, as records."""
        return [to_record(take_snapshot(served)) for served in self.repository.served()]

    async def snapshots(self) -> list[ModelSnapshot]:
        """Return the counters of all models, added up over the workers."""
        own = [take_snapshot(served) for served in self.repository.served()]
        if self.peers is None:
            return own
        return add_snapshots([*own, *map(from_record, await self.peers.collect_statistics())])

    async def load(self, model: str) -> None:
        """Load a model, or load it again, in all workers."""
        await self.repository.load(model)
        if self.peers is not None:
            await self.peers.repeat("load", model)

    async def unload(self, model: str) -> None:
        """Unload a model in all workers."""
        await self.repository.unload(model)
        if self.peers is not None:
            await self.peers.repeat("unload", model)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection's request, as ASGI defines it."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except WeftError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin = time.perf_counter()
        headers = dict(scope["headers"])
        identifier = _request_id(headers.get(b"x-request-id")) or f"{self._prefix}-{next(self._numbers):x}"
        path, root = scope["path"], scope.get("root_path", "")
        if root and path.startswith(root):  # of the app in which this one is mounted
            path = path[len(root) :] or "/"
        request = Request(scope["method"], path, scope["query_string"], headers, b"", identifier)
        if self._start is None or not self._start.done():
            try:
                await self.start()
            except WeftError as error:
                LOG.error("%s", error)
        self.active += 1
        status = CLIENT_LEFT
        try:
            response = await self._respond(request, receive)
            status = response.status
            await self._send(request, response, receive, send)
        except ClientLeftError:
            status = CLIENT_LEFT
        finally:
            self.active -= 1
            self.last_active = time.perf_counter()
            if self.settings.access_log:
                seconds = time.perf_counter() - begin
                extra = {"request_id": identifier, "method": request.method, "path": request.path, "status": status}
                message = "%s %s %d in %.1f ms"
                LOG.info(message, request.method, request.path, status, seconds * 1e3, extra=extra)

    async def _respond(self, request: Request, receive: Receive) -> Response:
        """Return the response to a request, whatever happens in its handler."""
        protocol = "v2"
        taken_bytes = 0
        try:
            if request.method == "OPTIONS":
                return self._answer_preflight(request)
            route, groups = self.router.find(request.method, request.path)
            protocol = route.protocol
            self._check_access(request)
            taken_bytes = self._take_memory(request)
            request.body = await self._read_body(request, receive)
            with tracing.span(request, route):
                response = await _run_watched(route.handler(request, **groups), receive)
            return self._allow_origin(request, response)
        except ClientLeftError:
            raise
        except Exception as error:
            failure = to_http_error(error)
            if failure.status >= 500 and not isinstance(error, (HttpError, WeftError)):
                LOG.exception("request %s: %s %s failed", request.id, request.method, request.path)
            protocol = protocol if request.path in OPEN_PATHS else self.router.protocol(request.path)
            return self._allow_origin(request, RENDER_ERROR.get(protocol, render_v2_error)(failure))
        finally:
            if taken_bytes:
                self.budget.release(taken_bytes)

    def _check_access(self, request: Request) -> None:
        """Raise HttpError if the request lacks the key, or comes from a page of another origin."""
        origin = request.headers.get(b"origin")
        if origin is not None and not self._is_allowed(request, origin.decode("latin-1")):
            problem = f"pages of {origin.decode('latin-1')[:100]} may not use this server"
            raise HttpError(403, f"{problem}; start it with --allow-origin to let them")
        if self._key is None or request.path in OPEN_PATHS:
            return
        scheme, _, token = request.headers.get(b"authorization", b"").partition(b" ")
        key = token.strip() if scheme.lower() == b"bearer" else request.headers.get(b"x-api-key", b"")
        if not hmac.compare_digest(key, self._key):
            problem = "the request has no valid key; send it as Authorization: Bearer KEY"
            raise HttpError(401, problem, headers=((b"www-authenticate", b"Bearer"),), code="invalid_api_key")

    def _is_allowed(self, request: Request, origin: str) -> bool:
        allowed = self.settings.allow_origins
        return "*" in allowed or origin in allowed or origin.partition("://")[2] == request.header(b"host")

    def _allow_origin(self, request: Request, response: Response) -> Response:
        origin = request.headers.get(b"origin")
        if origin is not None and self.settings.allow_origins and self._is_allowed(request, origin.decode("latin-1")):
            exposed = (b"access-control-expose-headers", b"Inference-Header-Content-Length, X-Request-Id")
            vary = (b"vary", b"origin")
            response.headers = (*response.headers, (b"access-control-allow-origin", origin), exposed, vary)
        return response

    def _answer_preflight(self, request: Request) -> Response:
        """Answer what a browser asks before it sends a request to another origin."""
        origin = request.header(b"origin")
        if not origin or not self._is_allowed(request, origin):
            raise HttpError(403, "pages of other origins may not use this server; start it with --allow-origin")
        request_headers = request.headers.get(b"access-control-request-headers", b"*")
        headers: Headers = (
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", request_headers),
            (b"access-control-max-age", b"600"),
        )
        return self._allow_origin(request, Response(status=204, headers=headers))

    def _take_memory(self, request: Request) -> int:
        """Count a large body as memory; HttpError if it is too large, or larger than what is free."""
        length = request.headers.get(b"content-length")
        size = int(length) if length is not None and length.isdigit() else 0
        self._check_body_size(size)
        if size < LARGE_BODY:
            return 0
        if not self.budget.try_acquire(size):
            raise HttpError(503, "the server is out of memory for this request", headers=((b"retry-after", b"1"),))
        return size

    def _check_body_size(self, size: int) -> None:
        if size > self.settings.max_body:
            raise HttpError(413, f"the body has more than {self.settings.max_body:,} bytes, which is the limit")

    async def _read_body(self, request: Request, receive: Receive) -> bytes | bytearray:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        is_late = False

        def expire() -> None:
            nonlocal is_late
            is_late = True
            task.cancel()

        chunks: list[bytes] = []
        size = 0
        message: Message = {"more_body": True}
        while message.get("more_body"):
            timer = loop.call_later(self.settings.body_timeout, expire)  # cheaper than wait_for
            try:
                message = await receive()
            except asyncio.CancelledError:
                if not is_late:
                    raise
                problem = f"no more of the body came for {self.settings.body_timeout:g} s"
                raise HttpError(408, problem, headers=((b"connection", b"close"),)) from None
            finally:
                timer.cancel()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            self._check_body_size(size)
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        encoding = request.header(b"content-encoding")
        return decompress(body, encoding, self.settings.max_body) if encoding else body

    async def _send(self, request: Request, response: Response, receive: Receive, send: Send) -> None:
        headers = [*response.headers, (b"x-request-id", request.id.encode())]
        if self.is_draining:
            headers.append((b"connection", b"close"))
        body = response.body
        if isinstance(body, (bytes, Sequence)):
            content = body if isinstance(body, bytes) else b"".join(body)
            content = compress(content, request, headers)
            headers.append((b"content-length", str(len(content)).encode()))
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else content})
            return
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        await _run_watched(_send_stream(start, body, send), receive)

    async def _metrics(self, request: Request) -> Response:
        return await metrics_response(self, request.header(b"accept"))

    async def _openapi(self, request: Request) -> Response:  # noqa: ARG002
        return describe_api(self.router.routes, has_key=self._key is not None)


class ClientLeftError(Exception):
    """The client closed the connection before its response."""


def _request_id(header: bytes | None) -> str:
    """Return the id that a client gave its request, if it can be logged and sent back."""
    if header is None or len(header) > 128:
        return ""
    text = header.decode("latin-1")
    return text if text.isascii() and text.isprintable() else ""


async def _send_stream(start: Message, body: AsyncIterator[bytes], send: Send) -> None:
    """Send chunks as they come, and end the work behind them, also if the client leaves."""
    try:
        await send(start)
        async for chunk in body:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        await body.aclose()  # type: ignore[attr-defined]


async def _run_watched(handler: Awaitable[Result], receive: Receive) -> Result:
    """Await a handler; cancel it if its client leaves."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    watcher: asyncio.Task[None] | None = None
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    def start() -> None:
        nonlocal watcher
        watcher = loop.create_task(watch())

    timer = loop.call_later(WATCH_AFTER, start)
    try:
        return await handler
    except asyncio.CancelledError:
        if has_left:
            raise ClientLeftError from None
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
