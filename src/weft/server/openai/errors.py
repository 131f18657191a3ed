"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from typing import Any

from weft.errors import InputError, OutOfMemoryError, RunCancelledError, WeftError
from weft.generation.options import GenerationOptions
from weft.server.errors import to_http_error
from weft.server.http import HttpError, Response, json_response

CONTEXT_EXCEEDED = "context_length_exceeded"
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
PARAMETERS = {"max_new_tokens": "max_tokens"}  # fields of requests, by the option of generation that they become
CONSTRAINTS = ("json_schema", "grammar", "regex")
OPTIONS = frozenset(GenerationOptions.__slots__)


def render_error(error: HttpError) -> Response:
    """Make the response for an error."""
    return json_response(error_object(error), error.status, error.headers)


def error_object(error: HttpError) -> dict[str, Any]:
    """Return the object that describes an error, in a response or as an event of a stream."""
    kind = TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.parameter, "code": error.code}}


def convert_error(error: Exception, parameter: str | None = None, constraint: str = "") -> HttpError:
    """Return the HTTP error for what generation raised.

    parameter: the field of the request that it came from, unless the message begins with the name of an option.
    constraint: the field that constrains answers.
    """
    if isinstance(error, OutOfMemoryError):  # of a request that can never fit
        return HttpError(400, str(error), code=CONTEXT_EXCEEDED, parameter=parameter)
    if isinstance(error, RunCancelledError):
        return HttpError(503, "the server is shutting down", code="server_shutting_down")
    converted = to_http_error(error)
    if isinstance(error, WeftError) and converted.status == 400:
        option = error.problem.split(" ", 1)[0]
        if isinstance(error, InputError) and option in OPTIONS:
            parameter = constraint if option in CONSTRAINTS and constraint else PARAMETERS.get(option, option)
        converted.parameter = converted.parameter or parameter
    return converted
