"""Errors of requests: by what went wrong, the HTTP status and a message for the client."""

from __future__ import annotations

import math

from weft.errors import (
    DeviceError,
    ExecutionError,
    InputError,
    MissingPackageError,
    ModelError,
    OutOfMemoryError,
    RunCancelledError,
    RunTimeoutError,
    WeftError,
)
from weft.server.http import HttpError

STATUSES: tuple[tuple[type[WeftError], int], ...] = (
    (InputError, 400),
    (ExecutionError, 400),
    (RunTimeoutError, 504),
    (RunCancelledError, 499),
    (OutOfMemoryError, 503),
    (MissingPackageError, 501),
    (ModelError, 400),
    (DeviceError, 500),
)


def overload_error(message: str, retry_after: float = 1.0, status: int = 429) -> HttpError:
    """Make the error for a request that may succeed later."""
    seconds = str(max(1, math.ceil(retry_after))).encode()
    return HttpError(status, message, headers=((b"retry-after", seconds),), code="rate_limit_exceeded")


def to_http_error(error: Exception) -> HttpError:
    """Return the HTTP error for what a run raised."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, WeftError):
        status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
        if isinstance(error, OutOfMemoryError):
            return overload_error(str(error), status=503)
        return HttpError(status, str(error))
    if isinstance(error, MemoryError):
        return overload_error("the server is out of memory", status=503)
    return HttpError(500, "the server failed on this request; its log has the details")
