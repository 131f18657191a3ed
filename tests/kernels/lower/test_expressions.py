"""Expressions of kernels have leaves of their own: values that are held, and elements at offsets."""

from __future__ import annotations

import pytest

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.access import axes_of, move_axes
from weft.ir.dtypes import DType
from weft.ir.kernel import Fetch, Number
from weft.ir.layout import row_major
from weft.ir.program import Map, Step, TensorProgram, Value
from weft.ir.scalar import AT_HAND, Apply, FlatLoad, Held, Index, Load, Scalar, computed_dtypes, loads, with_held
from weft.ir.types import TensorType
from weft.ir.verify import verify
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder
from weft.kernels.lower.merge_axes import flatten_loads, operand_inputs, operand_views
from weft.kernels.lower.tensors import Tensor

F32 = DType.float32


def test_loads_that_lie_inside_become_flat() -> None:
    inside = Load(0, (Index(dims.axis(0, 3)), Index(dims.axis(1, 5))), F32)
    outside = Load(0, (Index(dims.axis(0, 3) + 1), Index(dims.axis(1, 5))), F32)
    operand = Tensor(F32, (3, 5), row_major(2))
    assert flatten_loads(inside, [operand]) == FlatLoad(0, dims.axis(0, 3) * 5 + dims.axis(1, 5), F32)
    assert flatten_loads(outside, [operand]) == outside
    assert flatten_loads(Held(AT_HAND, F32), [operand]) == Held(AT_HAND, F32)


def test_they_are_walked_rebuilt_and_printed() -> None:
    scalar = Apply("add", (Held(AT_HAND, F32), FlatLoad(2, dims.axis(0, 4) * 3, F32)), F32)
    assert str(scalar) == f"add(%at_hand, $2[+ {dims.axis(0, 4) * 3}])"
    assert axes_of(scalar) == {0}
    assert loads(scalar) == []
    assert computed_dtypes(scalar) == [F32, F32, F32]
    moved = move_axes(scalar, {0: 7})
    assert moved == Apply("add", (Held(AT_HAND, F32), FlatLoad(2, 21, F32)), F32)
    assert with_held(moved, {AT_HAND: Held(3, F32)}) == Apply("add", (Held(3, F32), FlatLoad(2, 21, F32)), F32)


def test_kernels_read_what_they_do_not_hold() -> None:
    builder = KernelBuilder("lowered")
    operands = [Tensor(F32, (8,), row_major(1))]
    views = operand_views(operands, operand_inputs(operands, builder), builder)
    flat, held = FlatLoad(0, dims.axis(0, 8), F32), Held(0, F32)
    element = Number(2.0, F32)
    known = Lowering(views, {0: 5}, builder, {0: element, flat: element})
    assert known.code(flat) == known.code(held) == element
    assert Lowering(views, {0: 5}, builder).code(flat) == Fetch("in0", 5, F32)


@pytest.mark.parametrize("leaf", [Held(AT_HAND, F32), FlatLoad(0, 0, F32)])
def test_programs_have_none(leaf: Scalar) -> None:
    x, y = Value(0, TensorType(F32, (4,))), Value(1, TensorType(F32, (4,)))
    program = TensorProgram((x,), (y,), (Step(Map(leaf), (x,), (y,), "node"),))
    with pytest.raises(InternalError, match="is for kernels, not for programs"):
        verify(program)
