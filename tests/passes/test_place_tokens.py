"""Masks and positions that a paged program computes, and indices that it trusts."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.reference.interpret import run
from weft.errors import ExecutionError
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Map, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Load, Scalar, identity_indices
from weft.ir.types import TensorType
from weft.ir.verify import verify
from weft.passes.page_state import STARTS
from weft.passes.place_tokens import place_tokens
from weft.passes.trust_indices import trust_indices

BATCH, TOKENS, TOTAL = dims.symbol("batch"), dims.symbol("tokens"), dims.symbol("total")


def copy_step(source: Value, number: int) -> tuple[Step, Value]:
    result = Value(number, source.type)
    return Step(Map(Load(0, identity_indices(source.shape), source.dtype)), (source,), (result,), "copy"), result


@pytest.mark.parametrize("dtype", [DType.int64, DType.float32, DType.bool])
def test_masks_and_positions_follow_from_starts(dtype: DType) -> None:
    ids = Value(0, TensorType(DType.int64, (BATCH, TOKENS)), "ids")
    mask = Value(1, TensorType(dtype, (BATCH, TOTAL)), "mask")
    positions = Value(2, TensorType(DType.int32, (BATCH, TOKENS)), "positions")
    starts = Value(3, TensorType(DType.int64, (BATCH,)), STARTS)
    steps, outputs = zip(copy_step(mask, 4), copy_step(positions, 5))
    program = TensorProgram(inputs=(ids, mask, positions, starts), outputs=outputs, steps=steps)
    placed = place_tokens(program, TOKENS, "mask", "positions")
    verify(placed)
    assert placed.inputs == (ids, starts)
    begin = np.array([0, 3, 5])
    computed_mask, computed_positions = run(placed, [np.zeros((3, 2), np.int64), begin], {"total": 8})
    np.testing.assert_array_equal(computed_mask, (np.arange(8) < begin[:, None] + 2).astype(dtype.numpy), strict=True)
    np.testing.assert_array_equal(computed_positions, (begin[:, None] + np.arange(2)).astype(np.int32), strict=True)


def lookup(index: Scalar, rows: int, source: Value) -> TensorProgram:
    """Build a checked lookup in a table of some rows."""
    table = Value(10, TensorType(DType.float32, (rows,)), "table")
    result = Value(11, TensorType(DType.float32, (BATCH,)))
    element = Load(0, (index,), DType.float32, checked=True)
    return TensorProgram(
        inputs=(table, source), outputs=(result,), steps=(Step(Map(element), (table, source), (result,), "lookup"),)
    )


@pytest.mark.parametrize(
    ("rows", "of_ids", "trusted"),
    [(50, True, True), (49, True, False), (20, False, True), (19, False, False), (49, False, True)],
)
def test_checks_remain_where_tables_are_too_short(rows: int, of_ids: bool, trusted: bool) -> None:
    source = Value(0, TensorType(DType.int64, (BATCH,)), "source")
    index = Load(1, identity_indices(source.shape), DType.int64)
    program = trust_indices(lookup(index, rows, source), source if of_ids else None, vocabulary=50, length=20)
    inputs = [np.arange(rows, dtype=np.float32), np.array([rows])]
    if trusted:
        assert run(program, inputs)[0] == rows - 1
    else:
        with pytest.raises(ExecutionError):
            run(program, inputs)


@pytest.mark.parametrize("of_ids", [True, False])
def test_assertions_about_positions_are_trusted(of_ids: bool) -> None:
    source = Value(0, TensorType(DType.int64, (BATCH,)), "source")
    position = Load(1, identity_indices(source.shape), DType.int64)
    is_outside = Apply("less", (position, Apply("subtract", (position, position), DType.int64)), DType.bool)
    index = Apply("cast", (is_outside,), DType.int64)
    program = trust_indices(lookup(index, 1, source), source if of_ids else None, vocabulary=50, length=20)
    inputs = [np.ones(1, np.float32), np.array([-1])]
    if of_ids:
        with pytest.raises(ExecutionError):
            run(program, inputs)
    else:
        assert run(program, inputs)[0] == 1
