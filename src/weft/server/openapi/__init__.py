"""Describe the HTTP endpoints of a server as an OpenAPI document, from the routes that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.server.http import Response, Route, json_response
from weft.server.openapi.operations import ERRORS, OPERATIONS, Operation
from weft.server.openapi.schemas import SCHEMAS, refer
from weft.server.openapi.text_schemas import TEXT_SCHEMAS
from weft.version import __version__

DESCRIPTION = (
    "Models served by weft: the Open Inference Protocol version 2 with Triton's extensions for all models, and "
    "OpenAI's protocol for models of text."
)
TAGS = {
    "inference": "Run models, by the Open Inference Protocol",
    "models": "Describe, load and unload models",
    "text": "Generate text and compute embeddings, by OpenAI's protocol",
    "server": "The server itself",
}
PARAMETERS = {
    "model": {
        "name": "model",
        "in": "path",
        "required": True,
        "description": "The name of a model. A slash in it may be written as it is.",
        "schema": {"type": "string", "minLength": 1},
    },
    "version": {
        "name": "version",
        "in": "path",
        "required": True,
        "description": "The version of a model",
        "schema": {"type": "string", "pattern": "^[1-9][0-9]*$"},
    },
    "length": {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "description": "The bytes of the JSON at the start of the body; 0 if the body is the bytes of the only input",
        "schema": {"type": "integer", "minimum": 0},
    },
}
HEADERS = {
    "request-id": {
        "description": "The X-Request-Id of the request, or one that the server chose; its log has the same",
        "schema": {"type": "string"},
    },
    "length": {
        "description": "The bytes of the JSON at the start of the body",
        "schema": {"type": "integer", "minimum": 0},
    },
    "retry-after": {"description": "Seconds after which to try again", "schema": {"type": "integer", "minimum": 1}},
    "authenticate": {"description": "How to send the key", "schema": {"type": "string"}},
}
RETRY = ("Retry-After", "retry-after")
ERROR_HEADERS = {401: ("WWW-Authenticate", "authenticate"), 429: RETRY, 503: RETRY}
KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def describe_api(routes: Sequence[Route], has_key: bool) -> Response:
    """Return the document of some routes.

    has_key: whether requests must carry a key.
    """
    return json_response(make_document(routes, has_key))


def make_document(routes: Sequence[Route], has_key: bool) -> dict[str, Any]:
    """Make the document of some routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = OPERATIONS[route.method, route.pattern]
        paths.setdefault(route.pattern, {})[route.method.lower()] = _describe_operation(route, operation, has_key)
    components: dict[str, Any] = {
        "schemas": {**SCHEMAS, **TEXT_SCHEMAS},
        "parameters": PARAMETERS,
        "headers": HEADERS,
        "responses": {
            _error_name(protocol, status): _describe_error(protocol, status)
            for protocol in ("v2", "openai")
            for status in ERRORS
        },
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "weft serve", "version": __version__, "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": components,
    }
    if has_key:
        components["securitySchemes"] = KEY_SCHEMES
        document["security"] = [{name: []} for name in KEY_SCHEMES]
    return document


def _describe_operation(route: Route, operation: Operation, has_key: bool) -> dict[str, Any]:
    names = [name for name in ("model", "version") if f"{{{name}}}" in route.pattern]
    names += operation.parameters
    content: dict[str, Any] = {
        "operationId": operation.id,
        "summary": route.summary,
        "tags": [operation.tag],
        "responses": {
            **{str(status): _add_request_id(response) for status, response in operation.responses.items()},
            **{
                str(status): {"$ref": f"#/components/responses/{_error_name(route.protocol, status)}"}
                for status in operation.errors
                if status not in operation.responses and (has_key or status != 401)
            },
        },
    }
    if names:
        content["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    if operation.body is not None:
        content["requestBody"] = operation.body
    if operation.is_open:
        content["security"] = []
    return content


def _add_request_id(response: Mapping[str, Any]) -> dict[str, Any]:
    headers = {"X-Request-Id": refer("headers", "request-id"), **response.get("headers", {})}
    return {**response, "headers": headers}


def _error_name(protocol: str, status: int) -> str:
    return f"{'TextError' if protocol == 'openai' else 'Error'}{status}"


def _describe_error(protocol: str, status: int) -> dict[str, Any]:
    schema = refer("schemas", "TextError" if protocol == "openai" else "Error")
    response: dict[str, Any] = {
        "description": ERRORS[status],
        "content": {"application/json": {"schema": schema}},
    }
    if status in ERROR_HEADERS:
        name, header = ERROR_HEADERS[status]
        response["headers"] = {name: refer("headers", header)}
    return _add_request_id(response)
