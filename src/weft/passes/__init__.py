"""TensorProgram -> TensorProgram, one file a pass, and the one order in which they run."""

from __future__ import annotations

from collections.abc import Callable

from weft.ir.program import TensorProgram
from weft.passes.drop import drop_unused

Pass = Callable[[TensorProgram], TensorProgram]

PIPELINE: tuple[Pass, ...] = (drop_unused,)
