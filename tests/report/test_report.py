"""Cost counting on small programs whose operations can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from weft.cost.programs import at_sizes, costs_by_origin, program_cost
from weft.ir.dims import Dim, axis, evaluate, symbol
from weft.ir.dtypes import DType
from weft.ir.program import (
    Branch,
    Contract,
    Convolve,
    Late,
    Loop,
    Map,
    Pool,
    Primitive,
    Reduce,
    Scan,
    Scatter,
    Step,
    TensorProgram,
    Value,
)
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.types import AnyType, TensorType
from weft.report.summary import find_dynamic_dims

BATCH = symbol("batch")


def tensor(number: int, *shape: Dim, name: str = "", dtype: DType = DType.float32) -> Value:
    return Value(number, TensorType(dtype, shape), name)


def program(primitive: Primitive, operands: tuple[Value, ...], *results: Value, **options: object) -> TensorProgram:
    return TensorProgram(operands, results, (Step(primitive, operands, results, "node"),), **options)  # type: ignore[arg-type]


def load(operand: int, *shape: Dim) -> Load:
    return Load(operand, tuple(Index(axis(position, size)) for position, size in enumerate(shape)), DType.float32)


def apply(function: str, *arguments: Scalar) -> Apply:
    return Apply(function, arguments, DType.float32)


ONE = Literal(1.0, DType.float32)


def test_contraction_is_two_operations_per_multiply_add() -> None:
    matmul = program(
        Contract((0, 1, 2), (2, 3), (0, 1, 3)), (tensor(0, BATCH, 7, 5), tensor(1, 5, 3)), tensor(2, BATCH, 7, 3)
    )
    cost = program_cost(matmul)
    assert cost.flops == 2 * 7 * 5 * 3 * BATCH
    assert at_sizes(cost.flops, {"batch": 4}) == 2 * 4 * 7 * 5 * 3
    assert at_sizes(cost.flops, {}) == cost.flops
    assert cost.unknown == ()


@pytest.mark.parametrize("groups", [1, 4])
def test_convolution(groups: int) -> None:
    convolve = Convolve((2, 2), (1, 1), ((1, 1), (1, 1)), groups)
    operands = tensor(0, 2, 8, 10, 10), tensor(1, 12, 8 // groups, 3, 3)
    expected = 2 * (2 * 12 * 5 * 5) * (8 // groups) * 9
    assert program_cost(program(convolve, operands, tensor(2, 2, 12, 5, 5))).flops == expected


def test_transposed_convolution_costs_what_its_adjoint_costs() -> None:
    forward = Convolve((2, 2), (1, 1), ((0, 0), (0, 0)), 2)
    adjoint = Convolve((2, 2), (1, 1), ((0, 0), (0, 0)), 2, transposed=True)
    small, large = (1, 12, 4, 4), (1, 8, 9, 9)
    there = program_cost(program(forward, (tensor(0, *large), tensor(1, 12, 4, 3, 3)), tensor(2, *small)))
    back = program_cost(program(adjoint, (tensor(0, *small), tensor(1, 12, 4, 3, 3)), tensor(2, *large)))
    assert there.flops == back.flops == 2 * 12 * 16 * 4 * 9


def test_map_counts_arithmetic_once_and_not_the_indices() -> None:
    x = load(0, BATCH, 6)
    negated = apply("negate", x)
    moved = Load(0, (Index(axis(0, BATCH)), apply("add", Index(axis(1, 6)), ONE)), DType.float32)
    cast = Apply("cast", (moved,), DType.float32)
    expression = apply("add", apply("multiply", negated, negated), cast)  # negate, multiply, add
    assert program_cost(program(Map(expression), (tensor(0, BATCH, 6),), tensor(1, BATCH, 6))).flops == 3 * 6 * BATCH


def test_moving_data_is_free() -> None:
    unknown = Value(1, TensorType(DType.float32, None))
    moved = program(Map(load(0, 4)), (tensor(0, 4),), unknown)
    assert program_cost(moved).flops == 0
    assert program_cost(moved).unknown == ()


def test_reductions_and_windows() -> None:
    assert program_cost(program(Reduce("sum", (1,)), (tensor(0, 3, 100),), tensor(1, 3))).flops == 300
    pool = Pool("maximum", (3, 2), (1, 1), (1, 1), ((0, 0), (0, 0)))
    assert program_cost(program(pool, (tensor(0, 1, 2, 9, 9),), tensor(1, 1, 2, 7, 8))).flops == 2 * 7 * 8 * 6
    scatter = Scatter((5, BATCH), (Index(0),), load(1, 5, BATCH), "add")
    operands = tensor(0, 9), tensor(1, 5, BATCH)
    assert program_cost(program(scatter, operands, tensor(2, 9))).flops == 5 * BATCH


def test_scan_repeats_its_body() -> None:
    body = program(Map(apply("add", load(0, 8), ONE)), (tensor(0, 8),), tensor(1, 8))
    scan = program(Scan(body, 1, 0, symbol("time")), (tensor(2, 8),), tensor(3, 8))
    assert evaluate(program_cost(scan).flops, {"time": 10}) == 80


def test_branch_costs_its_more_expensive_side() -> None:
    cheap = program(Map(load(0, 8)), (tensor(0, 8),), tensor(1, 8))
    expensive = program(Map(apply("exp", load(0, 8))), (tensor(0, 8),), tensor(1, 8))
    condition = tensor(4, dtype=DType.bool)
    assert program_cost(program(Branch(cheap, expensive), (condition, tensor(2, 8)), tensor(3, 8))).flops == 8


@pytest.mark.parametrize(("is_constant", "flops", "unknown"), [(True, 7 * 8, ()), (False, 8, ("node",))])
def test_loop_counts_its_trips_where_they_are_fixed(is_constant: bool, flops: int, unknown: tuple[str, ...]) -> None:
    number, condition, carry = tensor(0, dtype=DType.int64), tensor(1, dtype=DType.bool), tensor(2, 8)
    result = tensor(3, 8)
    step = Step(Map(apply("exp", load(0, 8))), (carry,), (result,), "inner")
    body = TensorProgram((number, condition, carry), (condition, result), (step,))
    trips, go, start = tensor(4, dtype=DType.int64), tensor(5, dtype=DType.bool), tensor(6, 8)
    constants = {trips: np.array(7), go: np.array(True)} if is_constant else {}
    cost = program_cost(program(Loop(body, 1), (trips, go, start), tensor(7, 8), constants=constants))
    assert (cost.flops, cost.unknown) == (flops, unknown)


def test_unknown_shapes_and_late_ops_are_named() -> None:
    late = Late("", "Anything", 20, {}, (True,))
    operand = Value(0, AnyType())
    assert program_cost(program(late, (operand,), Value(1, AnyType()))).unknown == ("node",)
    reduced = program(Reduce("sum", (0,)), (Value(0, TensorType(DType.float32, None)),), tensor(1))
    assert program_cost(reduced).unknown == ("node",)
    assert costs_by_origin(reduced) == {}


def test_dynamic_dims_of_inputs_and_of_data() -> None:
    rows_symbol = symbol("rows", 0)
    source = tensor(0, BATCH, 3, name="x")
    selected = tensor(1, rows_symbol, 3)
    result = tensor(2, rows_symbol, BATCH)
    steps = (
        Step(Map(ONE), (source,), (selected,), "select_rows"),
        Step(Map(ONE), (selected,), (result,), "finish"),
    )
    batch, rows = find_dynamic_dims(TensorProgram((source,), (result,), steps), ["y"])
    assert (batch.name, batch.places, batch.from_data) == ("batch", ("x[0]", "y[1]"), False)
    assert (rows.name, rows.places, rows.from_data) == ("rows", ("select_rows[0]", "y[0]"), True)
