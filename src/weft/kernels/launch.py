"""What kernel builders take and give."""

from __future__ import annotations

from dataclasses import dataclass

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Kernel
from weft.ir.types import Shape
from weft.kernels.layout import Layout


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a kernel meets it."""

    dtype: DType
    shape: Shape
    layout: Layout

    @property
    def strides(self) -> tuple[Dim, ...]:
        return self.layout.strides(self.shape)


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with what it is launched on: the number of blocks and the values of its parameters."""

    kernel: Kernel
    blocks: Dim
    parameters: tuple[Dim, ...]
