"""The convolution that templates build, with the sizes and windows that follow from it."""

from __future__ import annotations

from collections.abc import Callable

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.program import Convolve
from weft.kernels.build.windows import Phase, Window, find_phases, input_dilations
from weft.kernels.lower.tensors import Epilogue, StoredTensor
from weft.records import dataclass

CHANNEL = 1


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """Operands of its work are x, w, then those of the epilogue; a constant w has its logical shape.

    `order` permutes the channels of x: input channel i1 is channel `order` of x. It requires a 1 x 1 kernel without
    padding and x in channels-last layout.
    """

    primitive: Convolve
    x: StoredTensor
    w: StoredTensor
    result: StoredTensor
    epilogue: Epilogue | None = None
    constant: Array | None = None
    order: Dim | None = None
    prepare: Callable[[Array], Array] | None = None  # applied to constant weights before they are packed
    has_wide_result: bool = False  # float32, before the epilogue, though operands are narrower floats

    @property
    def channels(self) -> Dim:
        """Input channels of a group."""
        groups = self.primitive.groups
        total = self.w.shape[CHANNEL] * groups if self.order is not None else self.x.shape[CHANNEL]
        return dims.floordiv(total, groups)

    @property
    def features(self) -> Dim:
        """Output channels of a group."""
        return dims.floordiv(self.result.shape[CHANNEL], self.primitive.groups)

    @property
    def phases(self) -> list[Phase]:
        return find_phases(self.primitive, self.w.shape[2:], self.result.shape[2:])

    @property
    def input_dilations(self) -> tuple[int, ...]:
        return input_dilations(self.primitive)


def tap_slice(window: Window) -> slice:
    """Return the slice of a constant kernel that holds the taps of a window."""
    first, count = constant_size(window.tap_first), constant_size(window.taps)
    stop = first + count * window.tap_step
    return slice(first, stop if stop >= 0 else None, window.tap_step)


def constant_size(size: Dim) -> int:
    """Return the size of a constant, which must be known."""
    if not isinstance(size, int):
        raise InternalError(f"a constant operand has the unknown size {size}")
    return size
