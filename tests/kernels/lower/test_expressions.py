"""Leaves that only kernel expressions have: placeholders and flat loads."""

from __future__ import annotations

import pytest

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.access import find_axes, substitute_axes
from weft.ir.dtypes import DType
from weft.ir.kernel import Fetch, Number
from weft.ir.layout import row_major
from weft.ir.program import Map, Step, TensorProgram, Value
from weft.ir.scalar import (
    ELEMENT,
    Apply,
    FlatLoad,
    Index,
    Load,
    Placeholder,
    Scalar,
    bind_placeholders,
    computed_dtypes,
    loads,
)
from weft.ir.types import TensorType
from weft.ir.verify import verify
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder
from weft.kernels.lower.merge_axes import flatten_loads, operand_inputs, operand_views
from weft.kernels.lower.tensors import StoredTensor

F32 = DType.float32


def test_loads_in_bounds_become_flat() -> None:
    inside = Load(0, (Index(dims.axis(0, 3)), Index(dims.axis(1, 5))), F32)
    outside = Load(0, (Index(dims.axis(0, 3) + 1), Index(dims.axis(1, 5))), F32)
    operand = StoredTensor(F32, (3, 5), row_major(2))
    assert flatten_loads(inside, [operand]) == FlatLoad(0, dims.axis(0, 3) * 5 + dims.axis(1, 5), F32)
    assert flatten_loads(outside, [operand]) == outside
    assert flatten_loads(Placeholder(ELEMENT, F32), [operand]) == Placeholder(ELEMENT, F32)


def test_leaves_are_walked_rebuilt_and_printed() -> None:
    scalar = Apply("add", (Placeholder(ELEMENT, F32), FlatLoad(2, dims.axis(0, 4) * 3, F32)), F32)
    assert str(scalar) == f"add(%element, $2[+ {dims.axis(0, 4) * 3}])"
    assert find_axes(scalar) == {0}
    assert loads(scalar) == []
    assert computed_dtypes(scalar) == [F32, F32, F32]
    moved = substitute_axes(scalar, {0: 7})
    assert moved == Apply("add", (Placeholder(ELEMENT, F32), FlatLoad(2, 21, F32)), F32)
    assert bind_placeholders(moved, {ELEMENT: Placeholder(3, F32)}) == Apply(
        "add", (Placeholder(3, F32), FlatLoad(2, 21, F32)), F32
    )


def test_values_replace_placeholders_and_flat_loads() -> None:
    builder = KernelBuilder("lowered")
    operands = [StoredTensor(F32, (8,), row_major(1))]
    views = operand_views(operands, operand_inputs(operands, builder), builder)
    flat, placeholder = FlatLoad(0, dims.axis(0, 8), F32), Placeholder(0, F32)
    element = Number(2.0, F32)
    lowering = Lowering(views, {0: 5}, builder, {0: element, flat: element})
    assert lowering.code(flat) == lowering.code(placeholder) == element
    assert Lowering(views, {0: 5}, builder).code(flat) == Fetch("in0", 5, F32)


@pytest.mark.parametrize("leaf", [Placeholder(ELEMENT, F32), FlatLoad(0, 0, F32)])
def test_programs_reject_these_leaves(leaf: Scalar) -> None:
    x, y = Value(0, TensorType(F32, (4,))), Value(1, TensorType(F32, (4,)))
    program = TensorProgram((x,), (y,), (Step(Map(leaf), (x,), (y,), "node"),))
    with pytest.raises(InternalError, match="may occur only in kernels, not in programs"):
        verify(program)
