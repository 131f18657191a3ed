"""Compute the mask and the positions of tokens from where each sequence begins, instead of reading them.

In: a program on a paged state (`page_state`), with an input `mask` [batch, total] that is 1 for the past and the tokens
of a sequence and 0 after them, and an input `positions` [batch, tokens] that counts on from the past. Out: the program
without these inputs. The total is then a size that no input shows.
"""

from __future__ import annotations

from dataclasses import replace

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import Map, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Index, Load, Scalar, identity_indices
from weft.passes.page_state import STARTS


def place_tokens(program: TensorProgram, tokens: Dim, mask: str | None, positions: str | None) -> TensorProgram:
    """Replace the inputs of these names; `tokens` is the number of new tokens of each sequence."""
    inputs = {value.name: value for value in program.inputs}
    starts = inputs[STARTS]
    steps = []
    for name, is_mask in ((mask, True), (positions, False)):
        value = inputs.get(name or "")
        if value is None:
            continue
        row, place = identity_indices(value.shape)
        start = Load(0, (row,), DType.int64)
        if is_mask:
            end = Apply("add", (start, Index(tokens)), DType.int64)
            element: Scalar = Apply("less", (place, end), DType.bool)
        else:
            element = Apply("add", (start, place), DType.int64)
        if element.dtype is not value.dtype:
            element = Apply("cast", (element,), value.dtype)
        steps.append(Step(Map(element), (starts,), (value,), value.name))
    computed = {result for step in steps for result in step.results}
    rest = tuple(value for value in program.inputs if value not in computed)
    return replace(program, inputs=rest, steps=(*steps, *program.steps))


def can_place(value: Value, batch: Dim) -> bool:
    """Whether an input has the form of a mask or of positions: a row of numbers for each sequence."""
    return value.has_shape and value.rank == 2 and value.shape[0] == batch and not value.dtype.is_complex
