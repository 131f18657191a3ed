"""What kernel builders take and give."""

from __future__ import annotations

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout
from weft.ir.scalar import Scalar
from weft.ir.types import Shape
from weft.ir.work import Copy, Launch, Reference, Work, Workspace
from weft.records import dataclass

__all__ = ["LEFT", "RESULT", "RIGHT", "Copy", "Epilogue", "Launch", "Reference", "StoredTensor", "Work", "Workspace"]

LEFT, RIGHT = Reference("operand", 0), Reference("operand", 1)  # of a product
RESULT = Reference("result", 0)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a kernel meets it."""

    dtype: DType
    shape: Shape
    layout: Layout

    @property
    def strides(self) -> tuple[Dim, ...]:
        return self.layout.strides(self.shape)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to each element of a heavy result before it is written.

    `expression` is over the result's axes, what is at hand in it (`AT_HAND`) the element; loads read `operands`.
    """

    expression: Scalar
    operands: tuple[StoredTensor, ...]
