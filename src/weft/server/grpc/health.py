"""gRPC's health checks, which Kubernetes and load balancers ask: whether all models are ready."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from weft.server.grpc.calls import ENDING, CallHandlers
from weft.server.grpc.messages import HEALTH, INFERENCE, load_health_messages
from weft.server.grpc.service import SERVICE, parse_message
from weft.server.http import HttpError

if TYPE_CHECKING:
    from weft.server.asgi import Application

SERVICES = ("", f"{INFERENCE}.{SERVICE}")
INTERVAL = 0.5  # seconds between looks of those who watch


class HealthService:
    """Answers health checks of the server as a whole, and of its service."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._messages = load_health_messages()
        self._watchers: set[asyncio.Task[Any]] = set()

    def add_calls(self, handlers: CallHandlers) -> None:
        """Add the calls of the service."""
        handlers.add_call(f"/{HEALTH}.Health/Check", self._check, is_open=True)
        handlers.add_watch(f"/{HEALTH}.Health/Watch", self._watch)

    def end_watches(self) -> None:
        """End the calls that watch."""
        for task in self._watchers:
            task.cancel()

    def _read_service(self, content: bytes) -> str:
        return str(parse_message(self._messages["HealthCheckRequest"], content).service)

    def _render(self, status: str) -> bytes:
        response: bytes = self._messages["HealthCheckResponse"](status=status).SerializeToString()
        return response

    def _status(self, service: str) -> str:
        if service not in SERVICES:
            return "SERVICE_UNKNOWN"
        is_ready = self._app.repository.is_ready_for_requests and not self._app.is_draining
        return "SERVING" if is_ready else "NOT_SERVING"

    async def _check(self, content: bytes, _: Any) -> bytes:
        service = self._read_service(content)
        if service not in SERVICES:
            raise HttpError(404, f"there is no service {service!r}; the services are {', '.join(map(repr, SERVICES))}")
        return self._render(self._status(service))

    async def _watch(self, content: bytes, context: Any) -> None:
        """Send the status, then every change of it."""
        service = self._read_service(content)
        task = asyncio.get_running_loop().create_task(self._send_changes(service, context))
        self._watchers.add(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            self._watchers.discard(task)
        if task.cancelled():
            raise HttpError(503, ENDING)
        task.result()

    async def _send_changes(self, service: str, context: Any) -> None:
        sent = ""
        while True:
            status = self._status(service)
            if status != sent:
                await context.write(self._render(status))
                sent = status
            await asyncio.sleep(INTERVAL)
