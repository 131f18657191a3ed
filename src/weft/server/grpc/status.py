"""Errors of calls: the status codes of gRPC, with the messages that HTTP has too."""

from __future__ import annotations

import logging

from weft.errors import WeftError
from weft.server.errors import to_http_error
from weft.server.http import HttpError

LOG = logging.getLogger("weft.server")
CODES = {  # of gRPC, by the status of HTTP
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    429: "UNAVAILABLE",  # as Triton does if a queue is full; clients that retry do so for this code
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
LONGEST = 2000  # bytes of a message: it is sent in trailers of at most 8 KiB, where a byte takes up to three


def describe_error(error: Exception, path: str) -> tuple[str, str]:
    """Return the name of the status code and the message for an error; log it if the server is at fault."""
    failure = to_http_error(error)
    if failure.status >= 500 and not isinstance(error, (HttpError, WeftError)):
        LOG.error("%s failed", path, exc_info=error)
    content = failure.message.encode("utf-8", "replace")
    message = content[:LONGEST].decode("utf-8", "ignore") + ("…" if len(content) > LONGEST else "")
    return CODES.get(failure.status, "INTERNAL"), message
