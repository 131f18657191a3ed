"""Binary ops as they were before opset 7: broadcasting only on request, aligned by an `axis` attribute."""

from __future__ import annotations

from collections.abc import Callable

from weft.opset.activations import parametric_relu
from weft.opset.arithmetic import add, divide, multiply, power, subtract
from weft.opset.comparison import equal, greater, less, logical_and, logical_or, logical_xor
from weft.opset.language import Tensor, assume_equal, reshape
from weft.opset.registry import normalize_axis, op, require


def _align(a: Tensor, b: Tensor, axis: int | None) -> Tensor:
    """Append dimensions of size 1 to b, so that its first one is at `axis` of a."""
    start = a.rank - b.rank if axis is None else normalize_axis(axis, a.rank)
    missing = a.rank - start - b.rank
    require(start >= 0 and missing >= 0, f"{b.type} at axis {axis} does not fit into {a.type}")
    return reshape(b, [*b.shape, *(1,) * missing])


def _before_7(modern: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def legacy(
        a: Tensor,
        b: Tensor,
        *,
        axis: int | None = None,
        broadcast: int = 0,
        consumed_inputs: tuple[int, ...] | None = None,
    ) -> Tensor:
        if broadcast:
            return modern(a, _align(a, b, axis))
        require(a.rank == b.rank, f"{a.type} and {b.type} differ, and broadcast is not set")
        for left, right in zip(a.shape, b.shape):
            assume_equal(left, right, "without broadcast both sides must have the same shape")
        return modern(a, b)

    return legacy


for _name, _modern in {
    "Add": add,
    "Sub": subtract,
    "Mul": multiply,
    "Div": divide,
    "Pow": power,
    "And": logical_and,
    "Or": logical_or,
    "Xor": logical_xor,
    "Equal": equal,
    "Greater": greater,
    "Less": less,
}.items():
    op(_name)(_before_7(_modern))


@op("PRelu")
def prelu_1(x: Tensor, slope: Tensor, *, consumed_inputs: tuple[int, ...] | None = None) -> Tensor:
    """Apply one slope for all, or one per channel."""
    per_channel = slope if slope.size == 1 else _align(x, reshape(slope, [slope.size]), min(1, x.rank - 1))
    return parametric_relu(x, per_channel)
