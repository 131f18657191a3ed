"""Start the server of gRPC on the event loop of an application."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from weft.batch_inference.optional_packages import import_package
from weft.errors import InputError
from weft.server.grpc.calls import CallHandlers
from weft.server.grpc.health import HealthService
from weft.server.grpc.messages import INSTALL, PURPOSE
from weft.server.grpc.service import InferenceService
from weft.server.grpc.stream import InferenceStreams

if TYPE_CHECKING:
    from weft.server.asgi import Application

OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 60_000),  # finds clients that are gone
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 100),  # of clients, whose own options say how often they ping
)
LARGEST_LIMIT = (1 << 31) - 1
LAME_DUCK = 0.2  # seconds in which calls are refused as unavailable: gRPC would end those in its queue as cancelled


class GrpcServer:
    """A server of gRPC that listens on `port`."""

    def __init__(
        self, server: Any, port: int, handlers: CallHandlers, streams: InferenceStreams, health: HealthService
    ) -> None:
        self._server = server
        self.port = port
        self._handlers = handlers
        self._streams = streams
        self._health = health

    async def stop(self, grace: float | None = None) -> None:
        """Take no new calls, and answer the requests that have arrived, at most for `grace` seconds."""
        self._handlers.is_ending = True
        self._streams.end()
        self._health.end_watches()
        if grace:
            await asyncio.sleep(min(LAME_DUCK, grace))
        await self._server.stop(grace)

    def __repr__(self) -> str:
        return f"<gRPC server on port {self.port}>"


async def start_grpc(
    app: Application, host: str, port: int, *, tls: tuple[bytes, bytes] | None = None, reuse_port: bool = False
) -> GrpcServer:
    """Start to answer calls; InputError if the port is taken.

    port: 0 is any that is free. tls: a certificate and its key, in PEM format. reuse_port: whether other processes
        listen on the same port.
    """
    grpc = import_package("grpc", PURPOSE, INSTALL)
    aio = import_package("grpc.aio", PURPOSE, INSTALL)
    if not 0 <= port < 1 << 16:
        raise InputError(f"the port of gRPC must be from 0 to 65535, not {port}")
    handlers = CallHandlers(app, grpc)
    service, streams, health = InferenceService(app), InferenceStreams(app, aio.EOF), HealthService(app)
    service.add_calls(handlers)
    streams.add_calls(handlers)
    health.add_calls(handlers)
    largest = ("grpc.max_receive_message_length", min(app.settings.max_body, LARGEST_LIMIT))
    shared = ("grpc.so_reuseport", int(reuse_port))  # on by default, so that a port that is taken would be shared
    server = aio.server(options=[*OPTIONS, largest, shared])
    server.add_generic_rpc_handlers((handlers,))
    try:
        actual_port = _listen(grpc, server, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", tls)
    except RuntimeError as error:  # gRPC writes the reason to stderr only
        await server.stop(None)
        hint = "choose another port, or 0 for any that is free; with TLS, check the certificate and its key"
        raise InputError(f"gRPC cannot listen on port {port} of {host or 'all addresses'}", hint=hint) from error
    await server.start()
    return GrpcServer(server, actual_port, handlers, streams, health)


def _listen(grpc: Any, server: Any, address: str, tls: tuple[bytes, bytes] | None) -> int:
    if tls is None:
        port = server.add_insecure_port(address)
    else:
        certificate, key = tls
        port = server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)]))
    if not port:
        raise RuntimeError("the port was not bound")
    return int(port)
