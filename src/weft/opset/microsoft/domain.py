"""The domain of onnxruntime's own ops, and their decorator."""

from __future__ import annotations

from collections.abc import Callable

from weft.opset import registry
from weft.opset.registry import Function

DOMAIN = "com.microsoft"
BLOCKED_DOMAIN = f"{DOMAIN}.nchwc"  # weights packed for one CPU, in a layout that the file does not specify


def op(name: str, outputs: tuple[int, int] | None = None) -> Callable[[Function], Function]:
    """Register the decorated function as the meaning of `name` in the domain, which has only one version."""
    return registry.op(name, domain=DOMAIN, outputs=outputs)
