"""Generated from the definitions of the ops: see tests/builder/test_stubs.py"""

from collections.abc import Callable
from typing import Any

from weft.builder.tensor import DTypeLike, Tensor, TensorLike

def flex_attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    *,
    prob_mod: Callable[..., Any] | None = None,
    scale: float | None = None,
    score_mod: Callable[..., Any] | None = None,
    softmax_precision: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor: ...
