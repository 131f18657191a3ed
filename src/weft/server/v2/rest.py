"""The endpoints of the Open Inference Protocol, version 2, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from weft.server.errors import to_http_error
from weft.server.http import HttpError, Request, Response, Route, json_kind, json_response
from weft.server.served_model import ServedModel
from weft.server.v2.inference import answer, check_loading, read_flag, read_timeout
from weft.server.v2.metadata import collect_statistics, model_config, model_metadata, server_metadata
from weft.server.v2.requests import LENGTH_HEADER, read_request, render_response
from weft.server.v2.text import TextRequest, generate, text_array

if TYPE_CHECKING:
    from weft.server.asgi import Application

PROTOCOL = "v2"
MODEL = "/v2/models/{model}"
VERSION = "/v2/models/{model}/versions/{version}"


def render_error(error: HttpError) -> Response:
    """Make the response for an error."""
    return json_response({"error": error.message}, error.status, error.headers)


class InferenceEndpoints:
    """Handlers of requests on the models of a repository."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._repository = app.repository
        self._settings = app.settings

    def routes(self) -> list[Route]:
        """Return the routes of the protocol; those with a version come first, since names of models may have "/"."""
        both = (VERSION, MODEL)
        return [
            self._route("GET", "/v2", self.server, "Describe the server"),
            self._route("GET", "/v2/health/live", self.live, "Whether the server answers"),
            self._route("GET", "/v2/health/ready", self.ready, "Whether all models are ready"),
            self._route("GET", "/v2/models", self.models, "List the models"),
            self._route("GET", "/v2/models/stats", self.all_statistics, "Count requests and times of all models"),
            self._route("POST", "/v2/repository/index", self.index, "List the models with their states"),
            self._route("POST", "/v2/repository/models/{model}/load", self.load, "Load a model, or load it again"),
            self._route("POST", "/v2/repository/models/{model}/unload", self.unload, "Unload a model"),
            *(self._route("GET", f"{base}/ready", self.model_ready, "Whether a model is ready") for base in both),
            *(self._route("GET", f"{base}/config", self.config, "Describe how a model is served") for base in both),
            *(self._route("GET", f"{base}/stats", self.statistics, "Count requests and times") for base in both),
            *(self._route("POST", f"{base}/infer", self.infer, "Run a model") for base in both),
            *(self._route("POST", f"{base}/generate", self.generate, "Generate a text") for base in both),
            *(
                self._route("POST", f"{base}/generate_stream", self.generate_stream, "Generate a text piece by piece")
                for base in both
            ),
            *(self._route("GET", base, self.metadata, "Describe a model") for base in both),
            *(
                route
                for kind in ("systemsharedmemory", "cudasharedmemory")
                for route in (
                    self._route("GET", f"/v2/{kind}/status", self.no_regions, "List regions: there are none"),
                    self._route("POST", f"/v2/{kind}/unregister", self.no_regions, "Forget regions: there are none"),
                )
            ),
        ]

    @staticmethod
    def _route(method: str, pattern: str, handler: Any, summary: str) -> Route:
        return Route(method, pattern, handler, PROTOCOL, summary)

    # -- the server --------------------------------------------------------------------------------------------------

    async def server(self, request: Request) -> Response:  # noqa: ARG002
        return json_response(server_metadata())

    async def live(self, request: Request) -> Response:  # noqa: ARG002
        return json_response({"live": True})

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        is_ready = self._repository.is_ready_for_requests and not self._app.is_draining
        return json_response({"ready": is_ready}, 200 if is_ready else 503)

    async def models(self, request: Request) -> Response:  # noqa: ARG002
        names = dict.fromkeys(row["name"] for row in self._repository.index())
        return json_response({"models": list(names)})

    async def no_regions(self, request: Request) -> Response:  # noqa: ARG002
        return json_response([])

    # -- the repository ----------------------------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        only_ready = request.json_object().get("ready", False)
        if not isinstance(only_ready, bool):
            raise HttpError(400, f"ready must be true or false, not {json_kind(only_ready)}")
        rows = self._repository.index()
        return json_response([row for row in rows if not only_ready or row["state"] == "READY"])

    async def load(self, request: Request, model: str) -> Response:
        check_loading(self._settings, model, request.json_object().get("parameters"))
        await self._app.load(model)
        return json_response({})

    async def unload(self, request: Request, model: str) -> Response:
        check_loading(self._settings, model, request.json_object().get("parameters"))
        await self._app.unload(model)
        return json_response({})

    # -- models ------------------------------------------------------------------------------------------------------

    async def model_ready(self, request: Request, model: str, version: str = "") -> Response:  # noqa: ARG002
        is_ready = self._repository.is_ready(model, version)
        return json_response({"name": model, "ready": is_ready}, 200 if is_ready else 503)

    async def metadata(self, request: Request, model: str, version: str = "") -> Response:  # noqa: ARG002
        served = self._repository.get(model, version)
        return json_response(model_metadata(served, self._repository.versions(model)))

    async def config(self, request: Request, model: str, version: str = "") -> Response:  # noqa: ARG002
        return json_response(model_config(self._repository.get(model, version)))

    async def statistics(self, request: Request, model: str, version: str = "") -> Response:  # noqa: ARG002
        self._repository.get(model, version)
        return json_response({"model_stats": await collect_statistics(self._app, model, version)})

    async def all_statistics(self, request: Request) -> Response:  # noqa: ARG002
        return json_response({"model_stats": await collect_statistics(self._app)})

    async def infer(self, request: Request, model: str, version: str = "") -> Response:
        served = self._repository.get(model, version)
        parsed = read_request(request.body, request.header(LENGTH_HEADER), served.interface)
        results = await answer(served, parsed, self._settings)
        return render_response(served.name, served.version, parsed, results, served.interface)

    # -- text --------------------------------------------------------------------------------------------------------

    async def generate(self, request: Request, model: str, version: str = "") -> Response:
        served, text, timeout = self._read_text(request, model, version)
        pieces = [piece async for piece in generate(served, text, self._settings.max_queue, timeout)]
        return json_response(_text_result(served, "".join(pieces)))

    async def generate_stream(self, request: Request, model: str, version: str = "") -> Response:
        served, text, timeout = self._read_text(request, model, version)
        pieces = generate(served, text, self._settings.max_queue, timeout)
        try:
            first = await pieces.__anext__()  # an error before the first piece has a status
        except StopAsyncIteration:
            first = ""

        async def events() -> AsyncIterator[bytes]:
            yield _event(_text_result(served, first))
            try:
                async for piece in pieces:
                    yield _event(_text_result(served, piece))
            except Exception as error:
                yield _event({"error": to_http_error(error).message})
            finally:
                await pieces.aclose()

        headers = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
        return Response(events(), headers=headers)

    def _read_text(self, request: Request, model: str, version: str) -> tuple[ServedModel, TextRequest, float | None]:
        served = self._repository.get(model, version)
        if served.generator is None:
            raise HttpError(400, f"model {model!r} does not generate text; use infer")
        content = request.json_object()
        prompt = content.get("text_input")
        if not isinstance(prompt, str):
            raise HttpError(400, f"text_input must be a string, not {json_kind(prompt)}")
        parameters = content.get("parameters", {})
        if not isinstance(parameters, dict):
            raise HttpError(400, f"parameters must be an object, not {json_kind(parameters)}")
        text = TextRequest({"text_input": text_array(prompt)}, {**content, **parameters})
        text.excludes_prompt = read_flag(content, "exclude_input_in_output", "the request", default=True)
        timeout = read_timeout(parameters)
        return served, text, self._settings.timeout if timeout is None else timeout


def _text_result(served: ServedModel, text: str) -> dict[str, Any]:
    return {"model_name": served.name, "model_version": served.version, "text_output": text}


def _event(content: Any) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
