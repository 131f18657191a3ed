"""Requests, responses and routes: the little that handlers need of HTTP, on top of ASGI."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union
from urllib.parse import parse_qsl

Headers = Sequence[tuple[bytes, bytes]]
Body = Union[bytes, Sequence[bytes], AsyncIterator[bytes]]  # a sequence is sent as one body

JSON_TYPE = (b"content-type", b"application/json")


class HttpError(Exception):
    """A request that cannot be answered: the status, and a message for its sender.

    code: a short name for programs, such as "model_not_found"; parameter: the field of the request that is wrong.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        headers: Headers = (),
        code: str | None = None,
        parameter: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers
        self.code = code
        self.parameter = parameter


@dataclass(slots=True)
class Request:
    """A request with its whole body; `headers` have lower-case names."""

    method: str
    path: str
    query_string: bytes
    headers: Mapping[bytes, bytes]
    body: bytes | bytearray
    id: str = ""

    def header(self, name: bytes, default: str = "") -> str:
        """Return a header as text."""
        content = self.headers.get(name)
        return default if content is None else content.decode("latin-1")

    def query(self) -> dict[str, str]:
        """Parse the query string."""
        return dict(parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True))

    def json(self) -> Any:
        """Parse the body as JSON."""
        return parse_json(self.body)

    def json_object(self) -> dict[str, Any]:
        """Parse the body as a JSON object; an empty body is an empty object."""
        content = parse_json(self.body) if self.body else {}
        if not isinstance(content, dict):
            raise HttpError(400, f"the body must be a JSON object, not {json_kind(content)}")
        return content


@dataclass(slots=True)
class Response:
    """A response: a whole body, or chunks that are sent as they come."""

    body: Body = b""
    status: int = 200
    headers: Headers = (JSON_TYPE,)


Handler = Callable[..., Awaitable[Response]]  # takes the request, and the groups of the path by name


def json_response(content: Any, status: int = 200, headers: Headers = ()) -> Response:
    """Make a response of JSON; numbers that JSON does not have become null."""
    try:
        body = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()
    except ValueError:  # NaN or infinity, or a lone surrogate
        body = json.dumps(_replace_nonfinite(content), separators=(",", ":")).encode()
    return Response(body, status, (JSON_TYPE, *headers))


def parse_json(text: bytes | bytearray | memoryview) -> Any:
    """Parse JSON; raise HttpError with the position where it is malformed."""
    try:
        return json.loads(bytes(text) if isinstance(text, memoryview) else text)
    except UnicodeDecodeError as error:
        raise HttpError(400, f"the body is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise HttpError(400, f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise HttpError(400, "the body is not JSON that can be read: it is nested too deeply") from None
    except ValueError:  # an integer with more digits than Python converts
        raise HttpError(400, "the body is not JSON that can be read: it has a number with too many digits") from None


def json_kind(content: Any) -> str:
    """Name the type of a JSON value, for messages."""
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(content), "a number")


def _replace_nonfinite(content: Any) -> Any:
    if isinstance(content, float):
        return content if content - content == 0 else None
    if isinstance(content, Mapping):
        return {key: _replace_nonfinite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_replace_nonfinite(value) for value in content]
    return content


# -- routes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """A handler for a method and a pattern such as "/v2/models/{model}/infer".

    A group does not contain "/", except for "{model}", since names of models may. Errors have the form of `protocol`.
    """

    method: str
    pattern: str
    handler: Handler
    protocol: str
    summary: str = ""


@dataclass(slots=True)
class Router:
    """Finds the route of a path: literal paths by a table, others by one regular expression for each pattern."""

    routes: Sequence[Route]
    _literal: dict[str, dict[str, Route]] = field(default_factory=dict)
    _patterns: list[tuple[re.Pattern[str], dict[str, Route]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        by_pattern: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            by_pattern.setdefault(route.pattern, {})[route.method] = route
        for pattern, methods in by_pattern.items():
            if "{" in pattern:
                self._patterns.append((re.compile(_to_regex(pattern)), methods))
            else:
                self._literal[pattern] = methods

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route of a path and the groups in it; raise HttpError if there is none."""
        methods, groups = self._methods(path)
        if methods is None:
            raise HttpError(404, f"there is nothing at {path}")
        route = methods.get(method) or (methods.get("GET") if method == "HEAD" else None)
        if route is None:
            allowed = ", ".join(sorted(methods))
            raise HttpError(405, f"{path} takes {allowed}, not {method}", headers=((b"allow", allowed.encode()),))
        return route, groups

    def protocol(self, path: str) -> str:
        """Return the protocol of a path, for errors."""
        methods, _ = self._methods(path)
        return next(iter(methods.values())).protocol if methods else "openai" if path.startswith("/v1/") else "v2"

    def _methods(self, path: str) -> tuple[dict[str, Route] | None, dict[str, str]]:
        literal = self._literal.get(path)
        if literal is not None:
            return literal, {}
        for pattern, methods in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return methods, match.groupdict()
        return None, {}


def _to_regex(pattern: str) -> str:
    def group(match: re.Match[str]) -> str:
        name = match[1]
        return f"(?P<{name}>.+?)" if name == "model" else f"(?P<{name}>[^/]+)"

    return re.sub(r"\{(\w+)\}", group, pattern)
