"""Run a server: sockets, TLS, signals, and an end that answers all requests that have arrived."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.batch_inference.optional_packages import import_package
from weft.errors import ExecutionError, InputError, short_repr
from weft.garbage import freeze_objects
from weft.runtime.arguments import whole_number
from weft.server.asgi import Application, Receive, Scope, Send
from weft.server.connection import make_protocol
from weft.server.discovery import Models, read_catalog
from weft.server.settings import make_settings

if TYPE_CHECKING:
    from weft.server.grpc import GrpcServer

LOG = logging.getLogger("weft.server")
INSTALL = "weft-onnx[serve]"
BACKLOG = 4096
KEEP_ALIVE = 75.0  # seconds that a connection may be idle
LAME_DUCK = 1.0  # seconds without a request after which a server that ends closes its connections
MOST_FILES = 1 << 16


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where a server listens. A port of 0 is any free one, and None is no server.

    drain: seconds for the requests that are being answered when the server ends. drain_delay: seconds before
    that, in which it still takes new ones but is not ready.
    """

    host: str = "127.0.0.1"
    http: int = 8000
    grpc: int | None = 8001
    metrics: int | None = 8002
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    drain: float = 30.0
    drain_delay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("http", "grpc", "metrics"):
            port = getattr(self, name)
            is_port = isinstance(port, int) and not isinstance(port, bool) and 0 <= port < 1 << 16
            if not is_port and (port is not None or name == "http"):
                raise InputError(f"{name} must be a port from 0 to 65535, not {short_repr(port)}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InputError("TLS needs both a certificate and its key", hint="pass tls_cert and tls_key, as PEM files")
        for name in ("tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise InputError(f"{name}: there is no file {os.fspath(path)}")
        if self.tls_cert is not None and self.tls_key is not None:
            _check_certificate(self.tls_cert, self.tls_key)

    def addresses(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Return where clients find a server that listens on these ports."""
        scheme = "http" if self.tls_cert is None else "https"
        host = _url_host(self.host)
        addresses = {"http": f"{scheme}://{host}:{ports['http']}"}
        if "grpc" in ports:
            addresses["grpc"] = f"{host}:{ports['grpc']}"
        if "metrics" in ports:
            addresses["metrics"] = f"{scheme}://{host}:{ports['metrics']}/metrics"
        return addresses


def _check_certificate(cert: str | os.PathLike[str], key: str | os.PathLike[str]) -> None:
    """Raise InputError if a certificate and its key do not fit together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=lambda: "")  # else a key with a password would ask for it
    except (ssl.SSLError, OSError, ValueError) as error:
        problem = f"TLS cannot use the certificate {os.fspath(cert)} with the key {os.fspath(key)}: {error}"
        raise InputError(problem, hint="pass PEM files that belong together, with a key that has no password") from None


class Server:
    """A server that runs on an event loop: HTTP, gRPC and metrics over the same models."""

    def __init__(
        self, app: Application, listeners: Listeners, *, owns_process: bool = False, shares_ports: bool = False
    ) -> None:
        """Run an app on these addresses.

        owns_process: whether this process does nothing else. shares_ports: whether others listen on the same ports.
        """
        self.app = app
        self.listeners = listeners
        self.ports: dict[str, int] = {}
        self._owns_process = owns_process
        self._shares_ports = shares_ports
        self._uvicorn = import_package("uvicorn", "a server", INSTALL)
        self._http: list[Any] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._grpc: GrpcServer | None = None
        self._end = asyncio.Event()

    @property
    def url(self) -> str:
        """The address of the HTTP server."""
        return self.listeners.addresses(self.ports)["http"]

    @property
    def connections(self) -> int:
        """The open connections over HTTP."""
        return sum(len(server.server_state.connections) for server in self._http)

    async def start(self, sockets: dict[str, socket.socket]) -> None:
        """Load the models, then listen on sockets that are bound."""
        if self._owns_process:
            self.app.repository.on_change = freeze_objects
        await self.app.start()
        loop = asyncio.get_running_loop()
        apps = {"http": self.app, "metrics": MetricsApp(self.app)}
        for name, bound in sockets.items():
            server = self._uvicorn.Server(self._config(apps[name]))
            server.capture_signals = _no_signals
            self.ports[name] = bound.getsockname()[1]
            self._http.append(server)
            self._tasks.append(loop.create_task(server.serve([bound])))
            while not server.started:
                if self._tasks[-1].done():
                    self._tasks[-1].result()
                    raise ExecutionError(f"the {name} server ended while it was starting")
                await asyncio.sleep(0.001)
        if self.listeners.grpc is not None and self._has_grpc():
            from weft.server.grpc import start_grpc

            tls = None
            if self.listeners.tls_cert is not None and self.listeners.tls_key is not None:
                tls = Path(self.listeners.tls_cert).read_bytes(), Path(self.listeners.tls_key).read_bytes()
            self._grpc = await start_grpc(
                self.app, self.listeners.host, self.listeners.grpc, tls=tls, reuse_port=self._shares_ports
            )
            self.ports["grpc"] = self._grpc.port

    def _has_grpc(self) -> bool:
        if find_spec("grpc") is not None:
            return True
        LOG.warning("gRPC is off: the package grpcio is not installed (pip install %s)", INSTALL)
        return False

    def _config(self, app: Any) -> Any:
        secure = {}
        if self.listeners.tls_cert is not None:
            secure = {"ssl_certfile": self.listeners.tls_cert, "ssl_keyfile": self.listeners.tls_key}
        return self._uvicorn.Config(
            app,
            http=make_protocol(self.app.settings.body_timeout),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=max(round(self.listeners.drain), 1),
            **secure,
        )

    def end(self) -> None:
        """Ask the server to end; `serve` returns when all requests are answered."""
        self._end.set()

    async def serve(self) -> None:
        """Answer requests until `end` is called, then those that have arrived."""
        await self._end.wait()
        await self.stop()

    async def stop(self) -> None:
        """End: take no new connections, tell clients to close theirs, and answer what has arrived."""
        self.app.is_draining = True
        if self.listeners.drain_delay:
            await asyncio.sleep(self.listeners.drain_delay)
        grpc = None
        if self._grpc is not None:
            grpc = asyncio.get_running_loop().create_task(self._grpc.stop(self.listeners.drain))
        await self._stop_accepting()
        await self._wait_for_clients()
        for server in self._http:
            server.should_exit = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if grpc is not None:
            await grpc
        await self.app.stop(self.listeners.drain)

    async def _stop_accepting(self) -> None:
        """Close the listening sockets, and serve the connections that the system has accepted before."""
        loop = asyncio.get_running_loop()
        for server in self._http:
            copies = [_copy_listening(each) for listener in server.servers for each in listener.sockets]
            for listener in server.servers:
                listener.close()
            for copy in copies:
                for connection in _accept_all(copy):
                    with suppress(OSError):
                        await loop.connect_accepted_socket(
                            partial(_make_connection, server), connection, ssl=server.config.ssl
                        )
                copy.close()

    async def _wait_for_clients(self) -> None:
        """Let clients learn from the header of their next response that the connection will close.

        Connections on which no request comes are closed then. A request that is sent at that moment would be lost, so
        this waits until none has come for a while.
        """
        begin = time.perf_counter()
        while self.connections and time.perf_counter() < begin + self.listeners.drain:
            if not self.app.active and time.perf_counter() > max(begin, self.app.last_active) + LAME_DUCK:
                return
            await asyncio.sleep(0.01)


class MetricsApp:
    """The ASGI app of the port for metrics: nothing but `/metrics`."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for metrics."""
        if scope["type"] == "http" and scope["path"] == "/metrics":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})


@contextmanager
def _no_signals() -> Iterator[None]:
    yield


def _copy_listening(listening: Any) -> socket.socket:
    """Return a listening socket again, for which the system queues no more connections; those in its queue stay."""
    copy = socket.socket(fileno=os.dup(listening.fileno()))
    copy.setblocking(False)
    with suppress(OSError):
        copy.listen(0)
    return copy


def _accept_all(listening: socket.socket) -> Iterator[socket.socket]:
    """Yield the connections in the system's queue."""
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        connection.setblocking(False)
        yield connection


def _make_connection(server: Any) -> Any:
    """Make what handles a connection, as uvicorn does."""
    return server.config.http_protocol_class(
        config=server.config, server_state=server.server_state, app_state=server.lifespan.state
    )


def bind_sockets(listeners: Listeners) -> dict[str, socket.socket]:
    """Bind the ports of HTTP and metrics; InputError if one is taken."""
    sockets: dict[str, socket.socket] = {}
    try:
        for name in ("http", "metrics"):
            port = getattr(listeners, name)
            if port is not None:
                sockets[name] = _bind(listeners.host, port, name)
    except BaseException:
        for bound in sockets.values():
            bound.close()
        raise
    return sockets


def reserve_port(host: str, port: int) -> socket.socket:
    """Bind a port on which the workers listen; InputError if it is taken."""
    return _bind(host, port, "grpc", is_shared=True)


def _bind(host: str, port: int, name: str, *, is_shared: bool = False) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(
            f"{host!r} is no address to listen on: {error}", hint="127.0.0.1, or 0.0.0.0 for all"
        ) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
        if not is_shared:
            bound.listen(BACKLOG)
            bound.set_inheritable(True)
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)
        hint = f"choose another port: --{name} PORT, or 0 for any that is free"
        raise InputError(f"port {port} of {host} cannot be used for {name}: {reason}", hint=hint) from None
    return bound


def _url_host(host: str) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"[{shown}]" if ":" in shown else shown


def raise_file_limit() -> None:
    """Allow as many open connections as the system lets this process have."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ImportError, ValueError, OSError):
        pass


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop, of uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def end_on_signals(end: Callable[[], None]) -> None:
    """Call a function on SIGTERM and Ctrl-C, if this is the main thread."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, end)


# -- running ---------------------------------------------------------------------------------------------------------


def serve(
    models: Models,
    *,
    host: str = "127.0.0.1",
    http: int = 8000,
    grpc: int | None = 8001,
    metrics: int | None = 8002,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    drain: float = 30.0,
    drain_delay: float = 0.0,
    workers: int = 1,
    on_ready: Callable[[Any], None] | None = None,
    log_format: str = "text",
    **settings: Any,
) -> None:
    """Serve models over HTTP and gRPC until SIGTERM or Ctrl-C.

        weft.serve("model.onnx")

    models: a path or a loaded model, a list of them, or a dict by name. A path is a model, the folder of a language
        model, or a folder of models.
    host, http, grpc, metrics: where to listen; a port of 0 is any free one, None is none.
    tls_cert, tls_key: files in PEM format.
    drain: seconds for the requests that are being answered when the server ends.
    drain_delay: seconds before that, in which the server takes new requests but is not ready.
    workers: processes that share the ports, for models whose runs are short. Models must be paths then. Generators have
        a cache in each process.
    on_ready: called when the server listens, with an object whose `ports` are those of "http", "grpc" and "metrics".
    log_format: of the workers' logs, "text" or "json".
    settings: max_batch, max_wait, batching, max_queue, timeout, memory_limit, max_body, api_key, poll and others; see
        `weft.server.ServerSettings`. Further ones are options of `weft.load`, such as device and threads.
    """
    listeners = Listeners(host, http, grpc, metrics, tls_cert, tls_key, drain, drain_delay)
    if whole_number(workers, "workers") > 1:
        from weft.server.workers import serve_with_workers

        serve_with_workers(models, listeners, make_settings(settings), workers, on_ready, log_format)
        return
    app = Application(read_catalog(models), make_settings(settings))
    raise_file_limit()
    sockets = bind_sockets(listeners)
    loop = new_event_loop()
    try:
        loop.run_until_complete(_serve_until_signal(app, listeners, sockets, on_ready))
    finally:
        for bound in sockets.values():
            bound.close()
        loop.close()


async def _serve_until_signal(
    app: Application, listeners: Listeners, sockets: dict[str, socket.socket], on_ready: Any
) -> None:
    server = Server(app, listeners, owns_process=threading.current_thread() is threading.main_thread())
    loop = asyncio.get_running_loop()
    end_on_signals(server.end)
    start = loop.create_task(server.start(sockets))
    end = loop.create_task(server._end.wait())
    await asyncio.wait({start, end}, return_when=asyncio.FIRST_COMPLETED)
    if not start.done():  # ended while models were being loaded
        start.cancel()
        return
    start.result()
    if on_ready is not None:
        on_ready(server)
    await server.serve()


class BackgroundServer:
    """A server in a thread of this process: `with weft.server.start(models) as server: print(server.url)`."""

    def __init__(self, app: Application, listeners: Listeners) -> None:
        self._app = app
        self._listeners = listeners
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weft-server", daemon=True)
        self._thread.start()
        self._is_ready.wait()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        loop = self._loop = new_event_loop()
        sockets: dict[str, socket.socket] = {}
        try:
            sockets = bind_sockets(self._listeners)
            loop.run_until_complete(self._serve(sockets))
        except BaseException as error:
            self._error = error
        finally:
            for bound in sockets.values():
                bound.close()
            loop.close()
            self._is_ready.set()

    async def _serve(self, sockets: dict[str, socket.socket]) -> None:
        self._server = Server(self._app, self._listeners)
        await self._server.start(sockets)
        self._is_ready.set()
        await self._server.serve()

    @property
    def app(self) -> Application:
        """The ASGI app."""
        return self._app

    @property
    def url(self) -> str:
        """The address of the HTTP server, such as "http://127.0.0.1:8000"."""
        assert self._server is not None
        return self._server.url

    @property
    def ports(self) -> dict[str, int]:
        """The ports by what listens on them: "http", "grpc" and "metrics"."""
        assert self._server is not None
        return dict(self._server.ports)

    @property
    def connections(self) -> int:
        """The open connections over HTTP."""
        assert self._server is not None
        return self._server.connections

    @property
    def grpc_address(self) -> str:
        """The address of the gRPC server, such as "127.0.0.1:8001"."""
        return self._listeners.addresses(self.ports)["grpc"]

    def stop(self) -> None:
        """Answer the requests that have arrived, and end."""
        if self._thread.is_alive() and self._loop is not None and self._server is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._server.end)
            self._thread.join()

    def __enter__(self) -> BackgroundServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = self.url if self._thread.is_alive() else "ended"
        return f"<weft server: {state}>"


def start(
    models: Models,
    *,
    host: str = "127.0.0.1",
    http: int = 0,
    grpc: int | None = 0,
    metrics: int | None = None,
    **settings: Any,
) -> BackgroundServer:
    """Start a server in a thread of this process, on free ports: `server.url` and `server.grpc_address`.

    models, settings: as for `weft.serve`.
    """
    listeners = Listeners(host, http, grpc, metrics, drain=settings.pop("drain", 30.0))
    return BackgroundServer(Application(read_catalog(models), make_settings(settings)), listeners)
