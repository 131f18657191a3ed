"""The calls of the protocol with one request and one response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from weft.batch_inference.optional_packages import import_package
from weft.server.grpc.calls import CallHandlers, hold_memory
from weft.server.grpc.messages import INFERENCE, INSTALL, PURPOSE, load_inference_messages
from weft.server.grpc.requests import limit_time, read_request, render_response
from weft.server.http import HttpError
from weft.server.v2.inference import answer, check_loading
from weft.server.v2.metadata import collect_statistics, model_config, model_metadata, server_metadata

if TYPE_CHECKING:
    from weft.server.asgi import Application

SERVICE = "GRPCInferenceService"
NO_REGIONS = "shared memory is not offered; requests and responses carry the data"
NO_SETTINGS = "settings of traces and logs are those of the server's process, and no call changes them"


class InferenceService:
    """Answers calls on the models of an application."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._repository = app.repository
        self._messages = load_inference_messages()
        self._parse_dict = import_package("google.protobuf.json_format", PURPOSE, INSTALL).ParseDict

    def add_calls(self, handlers: CallHandlers) -> None:
        """Add the calls of the service."""
        self._add(handlers, "ServerLive", self._server_live, is_open=True)
        self._add(handlers, "ServerReady", self._server_ready, is_open=True)
        self._add(handlers, "ServerMetadata", self._server_metadata)
        self._add(handlers, "ModelReady", self._model_ready)
        self._add(handlers, "ModelMetadata", self._model_metadata)
        self._add(handlers, "ModelConfig", self._model_config)
        self._add(handlers, "ModelStatistics", self._collect_statistics)
        self._add(handlers, "ModelInfer", self._model_infer)
        self._add(handlers, "RepositoryIndex", self._repository_index)
        self._add(handlers, "RepositoryModelLoad", self._load_model)
        self._add(handlers, "RepositoryModelUnload", self._unload_model)
        for kind in ("SystemSharedMemory", "CudaSharedMemory"):
            for call in ("Status", "Unregister"):
                self._add_fixed(handlers, f"{kind}{call}", self._messages[f"{kind}{call}Response"]())
            self._add_fixed(handlers, f"{kind}Register", HttpError(501, NO_REGIONS))
        for call in ("TraceSetting", "LogSettings"):
            self._add_fixed(handlers, call, HttpError(501, NO_SETTINGS))

    def _add(
        self,
        handlers: CallHandlers,
        name: str,
        method: Callable[[Any, Any], Awaitable[Any]],
        *,
        is_open: bool = False,
    ) -> None:
        """Add a call whose method takes the message and the context, and returns a message or its fields."""
        request_class = self._messages[f"{name}Request"]
        budget = self._app.budget

        async def call(content: bytes, context: Any) -> bytes:
            with hold_memory(budget, len(content)):
                response = await method(parse_message(request_class, content), context)
            if isinstance(response, Mapping):
                response = self._parse_dict(response, self._messages[f"{name}Response"]())
            text: bytes = response.SerializeToString()
            return text

        handlers.add_call(f"/{INFERENCE}.{SERVICE}/{name}", call, is_open=is_open)

    def _add_fixed(self, handlers: CallHandlers, name: str, response: Any) -> None:
        """Add a call whose response, or error, is always the same."""

        async def call(*_: Any) -> bytes:
            if isinstance(response, HttpError):
                raise response
            text: bytes = response.SerializeToString()
            return text

        handlers.add_call(f"/{INFERENCE}.{SERVICE}/{name}", call)

    # -- the server --------------------------------------------------------------------------------------------------

    async def _server_live(self, *_: Any) -> Any:
        return {"live": True}

    async def _server_ready(self, *_: Any) -> Any:
        return {"ready": self._repository.is_ready_for_requests and not self._app.is_draining}

    async def _server_metadata(self, *_: Any) -> Any:
        return server_metadata()

    # -- models ------------------------------------------------------------------------------------------------------

    async def _model_ready(self, message: Any, _: Any) -> Any:
        try:
            return {"ready": self._repository.is_ready(message.name, message.version)}
        except HttpError:  # there is no such model, which is not ready either
            return {"ready": False}

    async def _model_metadata(self, message: Any, _: Any) -> Any:
        served = self._repository.get(message.name, message.version)
        return model_metadata(served, self._repository.versions(message.name))

    async def _model_config(self, message: Any, _: Any) -> Any:
        return {"config": model_config(self._repository.get(message.name, message.version))}

    async def _collect_statistics(self, message: Any, _: Any) -> Any:
        if message.name or message.version:
            self._repository.get(message.name, message.version)
        return {"model_stats": await collect_statistics(self._app, message.name, message.version)}

    async def _model_infer(self, message: Any, context: Any) -> Any:
        served = self._repository.get(message.model_name, message.model_version)
        request = read_request(message, served.interface)
        del message  # its tensors are copies
        limit_time(request, context, self._app.settings)
        results = await answer(served, request, self._app.settings)
        return render_response(served, request, results)

    # -- the repository ----------------------------------------------------------------------------------------------

    async def _repository_index(self, message: Any, _: Any) -> Any:
        rows = self._repository.index()
        return {"models": [row for row in rows if not message.ready or row["state"] == "READY"]}

    async def _load_model(self, message: Any, _: Any) -> Any:
        name = _model_name(message)
        check_loading(self._app.settings, name, message.parameters)
        await self._app.load(name)
        return {"model_name": name, "isLoaded": True}

    async def _unload_model(self, message: Any, _: Any) -> Any:
        name = _model_name(message)
        check_loading(self._app.settings, name, message.parameters)
        await self._app.unload(name)
        return {"model_name": name, "isUnloaded": True}


def _model_name(message: Any) -> str:
    """Return the model to load or unload: Triton's clients send it as field 2, KServe's as field 1."""
    return str(message.model_name or message.repository_name)


def parse_message(request_class: Any, content: bytes) -> Any:
    """Parse a message; raise HttpError if its bytes are malformed."""
    errors = import_package("google.protobuf.message", PURPOSE, INSTALL)
    try:
        return request_class.FromString(content)
    except errors.DecodeError:
        name = request_class.DESCRIPTOR.full_name
        raise HttpError(400, f"the {len(content)} bytes of the request are not a message of the type {name}") from None
