"""Spans of OpenTelemetry for requests, if the program has installed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from weft.server.http import Request, Route


@lru_cache(maxsize=1)
def _tracer() -> Any:
    if find_spec("opentelemetry") is None:
        return None
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("weft.server")


def span(request: Request, route: Route) -> AbstractContextManager[Any]:
    """Return the context of a span, below the one that the client names; it does nothing without OpenTelemetry."""
    attributes = {
        "http.request.method": request.method,
        "http.route": route.pattern,
        "url.path": request.path,
        "weft.request_id": request.id,
    }
    return _span(f"{request.method} {route.pattern}", request.headers, attributes)


def call_span(path: str, metadata: Mapping[bytes, bytes]) -> AbstractContextManager[Any]:
    """Return the context of a span for a call of gRPC; `path` is "/service/method"."""
    service, _, method = path[1:].partition("/")
    return _span(path[1:], metadata, {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method})


def _span(name: str, headers: Mapping[bytes, bytes], attributes: Mapping[str, str]) -> AbstractContextManager[Any]:
    tracer = _tracer()
    return nullcontext() if tracer is None else _open_span(tracer, name, headers, attributes)


@contextmanager
def _open_span(tracer: Any, name: str, headers: Mapping[bytes, bytes], attributes: Mapping[str, str]) -> Iterator[None]:
    from opentelemetry import propagate, trace

    carrier = {key.decode("latin-1"): text.decode("latin-1") for key, text in headers.items()}
    context = propagate.extract(carrier)
    with tracer.start_as_current_span(name, context=context, kind=trace.SpanKind.SERVER, attributes=attributes):
        yield
