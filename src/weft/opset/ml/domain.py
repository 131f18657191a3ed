"""The domain ai.onnx.ml, and the decorator of its ops."""

from __future__ import annotations

from collections.abc import Callable

from weft.ir.dtypes import DType
from weft.opset import registry
from weft.opset.functions import cast
from weft.opset.language import Tensor
from weft.opset.registry import Function

DOMAIN = "ai.onnx.ml"


def op(name: str, since: int = 1) -> Callable[[Function], Function]:
    """Register the decorated function as an operator of this domain."""
    return registry.op(name, since=since, domain=DOMAIN)


def as_float(x: Tensor) -> Tensor:
    """Convert features to floats: float64 stays, everything else becomes float32."""
    return x if x.dtype is DType.float64 else cast(x, DType.float32)
