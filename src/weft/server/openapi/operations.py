"""What each endpoint takes and returns: bodies, and the statuses of its responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft.server.openapi.schemas import STRING, refer
from weft.server.v2.rest import MODEL, VERSION

JSON, OCTETS, EVENTS = "application/json", "application/octet-stream", "text/event-stream"
ERRORS = {
    400: "The request is wrong: the message says where",
    401: "The request has no valid key",
    403: "The server does not allow this",
    404: "There is no such model or version",
    408: "The rest of the body did not come",
    413: "The body is too large",
    415: "The encoding of the body is not known",
    429: "Too many requests wait",
    499: "The request was cancelled",
    500: "The server failed",
    501: "The server lacks a package",
    503: "The model is not ready, or memory is short now",
    504: "The request was not answered in time",
}
ALWAYS = (400, 401, 403, 408, 413, 415, 500, 503)  # of reading a request
RUNNING = (404, 429, 499, 501, 504)  # of running a model


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint.

    responses: those that are not errors, by status. errors: the statuses of errors.
    parameters: components, besides those of the path. is_open: whether it needs no key.
    """

    id: str
    tag: str
    responses: Mapping[int, Any]
    errors: tuple[int, ...] = ALWAYS
    body: Mapping[str, Any] | None = None
    parameters: tuple[str, ...] = ()
    is_open: bool = False


def _content(description: str, **schemas: str) -> dict[str, Any]:
    """Describe a body by the names of its schemas, for JSON and for events."""
    types = {"json": JSON, "events": EVENTS}
    return {
        "description": description,
        "content": {types[kind]: {"schema": refer("schemas", name)} for kind, name in schemas.items()},
    }


def _body(schema: str, example: Any = None, is_required: bool = True) -> dict[str, Any]:
    media: dict[str, Any] = {"schema": refer("schemas", schema)}
    if example is not None:
        media["example"] = example
    return {"required": is_required, "content": {JSON: media}}


def _answer(schema: str, description: str = "The answer") -> dict[int, Any]:
    return {200: _content(description, json=schema)}


EXAMPLE_INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1.5]}
INFERENCE_BODY = _body("InferenceRequest", {"inputs": [EXAMPLE_INPUT]})
INFERENCE_BODY["content"][OCTETS] = {
    "schema": {"description": "JSON, then the bytes of the inputs that have a binary_data_size"}
}
INFERENCE_RESPONSE = _content("The outputs", json="InferenceResponse")
INFERENCE_RESPONSE["content"][OCTETS] = {"schema": {"description": "JSON, then the bytes of the outputs"}}
INFERENCE_RESPONSE["headers"] = {"Inference-Header-Content-Length": refer("headers", "length")}
GENERATION_BODY = _body("GenerateRequest", {"text_input": "Once upon a time", "parameters": {"max_tokens": 16}})
GENERATION_EVENTS = _content(
    "The pieces of the text as server-sent events, each with a GenerateResponse", events="Events"
)


def _list_model_operations() -> Iterator[tuple[tuple[str, str], Operation]]:
    for base, suffix in ((MODEL, ""), (VERSION, "OfVersion")):
        for path, name, schema in (
            ("", "describeModel", "ModelMetadata"),
            ("/config", "describeModelConfig", "ModelConfig"),
            ("/stats", "countModelRequests", "Statistics"),
        ):
            yield ("GET", base + path), Operation(name + suffix, "models", _answer(schema), (*ALWAYS, 404))
        ready = {200: _content("The model is ready", json="ModelReady"), 503: _content("It is not", json="NotReady")}
        yield ("GET", f"{base}/ready"), Operation(f"isModelReady{suffix}", "models", ready, (*ALWAYS, 404))
        for path, name, body, response in (
            ("/infer", "runModel", INFERENCE_BODY, INFERENCE_RESPONSE),
            ("/generate", "generateText", GENERATION_BODY, _content("The text", json="GenerateResponse")),
            ("/generate_stream", "streamText", GENERATION_BODY, GENERATION_EVENTS),
        ):
            parameters = ("length",) if path == "/infer" else ()
            errors = (*ALWAYS, *RUNNING)
            yield (
                ("POST", base + path),
                Operation(name + suffix, "inference", {200: response}, errors, body, parameters),
            )


def _list_text_operations() -> Iterator[tuple[tuple[str, str], Operation]]:
    yield ("GET", "/v1/models"), Operation("listTextModels", "text", _answer("TextModels"))
    yield ("GET", "/v1/models/{model}"), Operation("describeTextModel", "text", _answer("TextModel"), (*ALWAYS, 404))
    chat = {"model": "NAME", "messages": [{"role": "user", "content": "Hello!"}]}
    for path, name, example in (
        ("chat/completions", "Chat", chat),
        ("completions", "Completion", {"model": "NAME", "prompt": "Once upon a time"}),
        ("embeddings", "Embeddings", {"model": "NAME", "input": ["a text"]}),
    ):
        response = _content(
            "The answer, or its events if the request has stream", json=f"{name}Response", events="Events"
        )
        if name == "Embeddings":
            response = _content("The embeddings", json="EmbeddingsResponse")
        body, errors = _body(f"{name}Request", example), (*ALWAYS, *RUNNING)
        yield ("POST", f"/v1/{path}"), Operation(f"create{name}", "text", {200: response}, errors, body)


def _list_server_operations() -> Iterator[tuple[tuple[str, str], Operation]]:
    ready = {200: _content("All models are ready", json="Ready"), 503: _content("Some are not", json="NotReady")}
    metrics = {"text/plain": {"schema": STRING}, "application/openmetrics-text": {"schema": STRING}}
    page = {"description": "HTML", "content": {"text/html": {"schema": STRING}}}
    document = {"description": "An OpenAPI document", "content": {JSON: {"schema": {"type": "object"}}}}
    yield ("GET", "/"), Operation("showStatusPage", "server", {200: page}, is_open=True)
    yield ("GET", "/status.json"), Operation("describeStatus", "server", _answer("Status"))
    yield ("GET", "/openapi.json"), Operation("describeApi", "server", {200: document})
    yield (
        ("GET", "/metrics"),
        Operation("listMetrics", "server", {200: {"description": "Metrics", "content": metrics}}, (*ALWAYS, 501)),
    )
    yield ("GET", "/v2"), Operation("describeServer", "server", _answer("ServerMetadata"))
    yield ("GET", "/v2/health/live"), Operation("isServerLive", "server", _answer("Live"), is_open=True)
    yield ("GET", "/v2/health/ready"), Operation("isServerReady", "server", ready, is_open=True)
    yield ("GET", "/v2/models"), Operation("listModels", "models", _answer("ModelNames"))
    yield ("GET", "/v2/models/stats"), Operation("countRequests", "models", _answer("Statistics"))
    for kind, title in (("systemsharedmemory", "System"), ("cudasharedmemory", "Cuda")):
        yield ("GET", f"/v2/{kind}/status"), Operation(f"list{title}Regions", "server", _answer("Regions"))
        yield ("POST", f"/v2/{kind}/unregister"), Operation(f"unregister{title}Regions", "server", _answer("Regions"))


def _list_repository_operations() -> Iterator[tuple[tuple[str, str], Operation]]:
    index = _body("IndexRequest", is_required=False)
    yield ("POST", "/v2/repository/index"), Operation("listModelStates", "models", _answer("Index"), ALWAYS, index)
    for name in ("load", "unload"):
        body, errors = _body("LoadRequest", is_required=False), (*ALWAYS, 404)
        pattern = f"/v2/repository/models/{{model}}/{name}"
        yield ("POST", pattern), Operation(f"{name}Model", "models", _answer("Empty"), errors, body)


OPERATIONS: dict[tuple[str, str], Operation] = {
    **dict(_list_server_operations()),
    **dict(_list_model_operations()),
    **dict(_list_repository_operations()),
    **dict(_list_text_operations()),
}
"""All endpoints, by method and pattern."""
