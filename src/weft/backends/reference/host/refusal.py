"""Bodies of control flow that cannot run: what raises the error of their trace, once a run enters one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.errors import InvalidModelError


def refuse(**error: Any) -> tuple[Any, ...]:
    """Raise the error that the trace of a body ended with."""
    raise InvalidModelError(error.pop("problem"), **error)


REFUSAL: dict[str, Callable[..., tuple[Any, ...]]] = {"refuse": refuse}
