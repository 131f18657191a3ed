"""Control flow bodies that failed to trace: raise the error when a run enters one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.errors import InvalidModelError


def refuse(**error: Any) -> tuple[Any, ...]:
    """Raise the error from tracing a body."""
    raise InvalidModelError(error.pop("problem"), **error)


REFUSAL: dict[str, Callable[..., tuple[Any, ...]]] = {"refuse": refuse}
