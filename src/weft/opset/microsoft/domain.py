"""The domain that onnxruntime's own ops live in, and how they are defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.opset import registry

DOMAIN = "com.microsoft"
BLOCKED_DOMAIN = f"{DOMAIN}.nchwc"  # weights packed for the vectors of one CPU, in a way that the file does not tell


def op(name: str, outputs: tuple[int, int] | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the meaning of `name` in the domain, which has known one version only."""
    return registry.op(name, domain=DOMAIN, outputs=outputs)
