"""What kernel builders take and give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Kernel
from weft.ir.scalar import Scalar
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
class Epilogue:
    """What happens to each element of a heavy result before it is written.

    `expression` is over the result's axes; its loads from operand 0 stand for the element at hand (always at the plain
    axes), those from 1, 2, ... read `operands`.
    """

    expression: Scalar
    operands: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with what it is launched on: the number of blocks and the values of its parameters."""

    kernel: Kernel
    blocks: Dim
    parameters: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """Memory for a kernel's buffer: one of the step's operands, its result, or one of the work's own.

    `errors` is one int32 that a kernel sets to 1 where the data is at fault (an index out of range).
    """

    kind: Literal["operand", "result", "workspace", "constant", "errors"]
    number: int


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that is needed only while a work's kernels run."""

    dtype: DType
    size: Dim  # elements


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Kernels that together do one step: run in order, each with memory for its buffers (those that are not local)."""

    launches: tuple[tuple[Launch, tuple[Reference, ...]], ...]
    workspaces: tuple[Workspace, ...] = ()
    constants: tuple[np.ndarray[Any, Any], ...] = field(default=())
