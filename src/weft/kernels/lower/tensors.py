"""Tensors and epilogues that kernel builders take, and the work that they return."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout
from weft.ir.scalar import Scalar
from weft.ir.types import Shape
from weft.ir.work import Copy, Launch, Reference, Work, Workspace
from weft.records import dataclass

__all__ = [
    "LEFT",
    "RESULT",
    "RIGHT",
    "Copy",
    "Epilogue",
    "Launch",
    "Reference",
    "StoredTensor",
    "Work",
    "Workspace",
    "stage_operand",
]

LEFT, RIGHT = Reference("operand", 0), Reference("operand", 1)  # of a product
RESULT = Reference("result", 0)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor with its layout in memory."""

    dtype: DType
    shape: Shape
    layout: Layout

    @property
    def strides(self) -> tuple[Dim, ...]:
        return self.layout.strides(self.shape)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """An expression applied to each element of a heavy result before it is written.

    It is over the result's axes; `ELEMENT` stands for the element, and loads read `operands`.
    """

    expression: Scalar
    operands: tuple[StoredTensor, ...]


def stage_operand(work: Work, operand: Reference, conversion: Iterable[Launch], converted: StoredTensor) -> Work:
    """Convert an operand into a workspace before a work, which reads it from there.

    The launches of `conversion` read operand 0 and write result 0.
    """
    space = Reference("workspace", len(work.workspaces))
    launches = (
        *(launch.rebound({LEFT: operand, RESULT: space}) for launch in conversion),
        *(launch.rebound({operand: space}) for launch in work.launches),
    )
    workspace = Workspace(converted.dtype, dims.product(converted.shape))
    return replace(work, launches=launches, workspaces=(*work.workspaces, workspace))
