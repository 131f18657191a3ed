"""A convolution as templates are given it, and what they all want to know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.program import Convolve
from weft.kernels.build.windows import Phase, Window, distances, phases
from weft.kernels.lower.tensors import Epilogue, StoredTensor
from weft.records import dataclass

Array = np.ndarray[Any, Any]
CHANNEL = 1


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """Operands of its work are x, w, then those of the epilogue; a constant w is given with its logical shape.

    With `order`, for 1 x 1 kernels without padding, input channel i1 is channel `order` of x, which has them last.
    """

    primitive: Convolve
    x: StoredTensor
    w: StoredTensor
    result: StoredTensor
    epilogue: Epilogue | None = None
    constant: Array | None = None
    order: Dim | None = None
    prepare: Callable[[Array], Array] | None = None  # makes of constant weights what is packed

    @property
    def channels(self) -> Dim:
        """Of the input, in a group."""
        groups = self.primitive.groups
        every = self.w.shape[CHANNEL] * groups if self.order is not None else self.x.shape[CHANNEL]
        return dims.floordiv(every, groups)

    @property
    def features(self) -> Dim:
        """Of the result, in a group."""
        return dims.floordiv(self.result.shape[CHANNEL], self.primitive.groups)

    @property
    def phases(self) -> list[Phase]:
        return phases(self.primitive, self.w.shape[2:], self.result.shape[2:])

    @property
    def distances(self) -> tuple[int, ...]:
        return distances(self.primitive)


def kernel_slice(window: Window) -> slice:
    """Which elements of a constant kernel the taps of a window are."""
    first, count = fixed(window.tap_first), fixed(window.taps)
    stop = first + count * window.tap_step
    return slice(first, stop if stop >= 0 else None, window.tap_step)


def fixed(size: Dim) -> int:
    """A size of a constant, which is a number."""
    if not isinstance(size, int):
        raise InternalError(f"constant weights of the unknown size {size}")
    return size
