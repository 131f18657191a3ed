"""Generated from the definitions of the ops: see tests/builder/test_stubs.py"""

from collections.abc import Sequence

from weft.builder.tensor import Tensor, TensorLike

def adagrad(
    rate: TensorLike,
    count: TensorLike,
    *states: TensorLike,
    decay_factor: float = 0.0,
    epsilon: float = 1e-06,
    norm_coefficient: float = 0.0,
    name: str | None = None,
) -> tuple[Tensor, ...]: ...
def adam(
    rate: TensorLike,
    count: TensorLike,
    *states: TensorLike,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-06,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
    name: str | None = None,
) -> tuple[Tensor, ...]: ...
def gradient(
    *point: TensorLike, xs: Sequence[str], y: str, zs: Sequence[str] | None = None, name: str | None = None
) -> tuple[Tensor, ...]: ...
def momentum(
    rate: TensorLike,
    count: TensorLike,
    *states: TensorLike,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
    name: str | None = None,
) -> tuple[Tensor, ...]: ...
