"""Errors of onnxruntime_genai: a RuntimeError for everything. The weft error is its `__cause__`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.errors import UnsupportedModelError, WeftError


@contextmanager
def convert_errors() -> Iterator[None]:
    """Raise errors of weft as RuntimeError."""
    try:
        yield
    except WeftError as error:
        raise RuntimeError(str(error)) from error


def unsupported_error(call: str, reason: str) -> RuntimeError:
    """Return the error for a call that weft does not support."""
    cause = UnsupportedModelError(f"onnxruntime_genai.{call} is not supported by weft: {reason}")
    error = RuntimeError(str(cause))
    error.__cause__ = cause
    return error
