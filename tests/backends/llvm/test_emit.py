"""Native code of kernels: every function of every type, and every memory access pattern, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backends.cpu.native import LANES, Array, build, elementwise, run_elementwise, run_kernel

from weft.backends.llvm.types import ELEMENT, MINIFLOATS, SMALL_INTEGERS
from weft.backends.reference.scalars import apply_function
from weft.ir import dims
from weft.ir import kernel as ir
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    Assign,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    Integer,
    Kernel,
    Number,
    Put,
    Register,
    Repeat,
    When,
)
from weft.ir.scalar import FUNCTIONS

F32, I64, BOOL = DType.float32, DType.int64, DType.bool
TYPES = [dtype for dtype in ELEMENT if dtype not in (*MINIFLOATS, *SMALL_INTEGERS)]  # these have tests of their own
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
ARITHMETIC = ("add", "subtract", "multiply", "divide", "remainder", "fmod", "minimum", "maximum")
UNARY = ("negate", "absolute", "sign", "floor", "ceil", "round_half_even", "truncate")
LOGICAL = ("logical_and", "logical_or", "logical_xor", "logical_not")
BITS = ("bit_and", "bit_or", "bit_xor", "bit_not", "shift_left", "shift_right")
ELEMENTARY = (
    *("power", "exp", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf"),
)


def functions_of(dtype: DType) -> tuple[str, ...]:
    if dtype is BOOL:
        return (*LOGICAL, "equal", "not_equal", "maximum", "minimum", "bit_and", "bit_or", "bit_xor", "bit_not")
    if dtype.is_float:
        return (*ARITHMETIC, *UNARY, *COMPARISONS, "sqrt", "is_nan", "is_inf")
    return (*ARITHMETIC, *UNARY, *COMPARISONS, *BITS, "power")


def samples(dtype: DType) -> Array:
    """Return numbers of all kinds: smallest, largest, zeros, ties, infinities, NaN."""
    rng = np.random.default_rng(5)
    if dtype is BOOL:
        return rng.integers(0, 2, 50).astype(bool)
    low, high = dtype.limits
    if dtype.is_float:
        tiny = float(np.nextafter(dtype.numpy.type(0), dtype.numpy.type(1)))
        special = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, low, high, tiny, np.inf, -np.inf, np.nan]
        return np.concatenate([special, rng.normal(0, 5, 60), rng.normal(0, 1e4, 21)]).astype(dtype.numpy)
    special = [value for value in (0, 1, 2, 3, 7, -1, -2, low, low + 1, high, high - 1) if low <= value]
    return np.concatenate(
        [np.array(special, dtype.numpy), rng.integers(low, high, 40, dtype.numpy, endpoint=True), np.arange(30)]
    ).astype(dtype.numpy)


def pairs(dtype: DType, function: str) -> list[Array]:
    values = samples(dtype)
    if FUNCTIONS[function] == 1:
        return [values]
    first, second = (array.ravel() for array in np.meshgrid(values, values))
    if function.startswith("shift"):
        second = np.abs(second.astype(np.float64) % 70).astype(dtype.numpy)
    if function == "power":
        second = (np.abs(second.astype(np.float64)) % 9).astype(dtype.numpy)
    return [np.ascontiguousarray(first), np.ascontiguousarray(second)]


def result_of(function: str, dtype: DType) -> DType:
    return BOOL if function in COMPARISONS or function.startswith(("is_", "logical")) else dtype


def assert_same(ours: Array, expected: Array, inputs: list[Array], name: str) -> None:
    wide = np.float64 if ours.dtype.kind in "fV" else ours.dtype
    with np.errstate(all="ignore"):
        ours, expected = ours.astype(wide), expected.astype(wide)
    same = (ours == expected) | ((ours != ours) & (expected != expected))
    if not same.all():
        worst = int(np.argmin(same))
        arguments = ", ".join(str(array[worst]) for array in inputs)
        raise AssertionError(f"{name}({arguments}) = {ours[worst]}, not {expected[worst]} ({(~same).sum()} differ)")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("lanes", [LANES, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_function(dtype: DType, lanes: int) -> None:
    kernels = {
        function: elementwise(
            f"k_{function}", function, [dtype] * FUNCTIONS[function], result_of(function, dtype), lanes
        )
        for function in functions_of(dtype)
    }
    code = build(list(kernels.values()))
    for function, kernel in kernels.items():
        inputs = pairs(dtype, function)
        if dtype.is_integer and function in ("floor", "ceil", "round_half_even", "truncate"):
            expected = inputs[0]  # numpy's way through float64 would not be exact
        else:
            expected = apply_function(function, inputs, result_of(function, dtype))
        assert_same(run_elementwise(kernel, code, inputs), expected, inputs, f"{function} of {dtype}")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [dtype for dtype in TYPES if dtype.is_float])
def test_elementary_functions_are_close(dtype: DType) -> None:
    """test_elementary.py has the exact limits."""
    kernels = {name: elementwise(f"e_{name}", name, [dtype] * FUNCTIONS[name], dtype) for name in ELEMENTARY}
    code = build(list(kernels.values()))
    first = np.linspace(-6, 6, 333).astype(dtype.numpy)
    second = np.linspace(-2, 3, 333).astype(dtype.numpy)
    tolerance = {DType.float64: 1e-11, F32: 1e-5, DType.float16: 4e-3, DType.bfloat16: 2e-2}[dtype]
    for name, kernel in kernels.items():
        inputs = [first, second][: FUNCTIONS[name]]
        expected = apply_function(name, [array.astype(np.float64) for array in inputs], DType.float64)
        expected = expected.astype(dtype.numpy).astype(np.float64)
        ours = run_elementwise(kernel, code, inputs).astype(np.float64)
        np.testing.assert_allclose(ours, expected, tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("dtype", [dtype for dtype in TYPES if dtype.is_signed])
def test_integer_power_of_negative_exponents(dtype: DType) -> None:
    kernel = elementwise("negative", "power", [dtype, dtype], dtype)
    bases, exponents = np.meshgrid(np.array([-3, -2, -1, 1, 2, 3]), np.array([-4, -3, -2, -1]))
    inputs = [bases.ravel().astype(dtype.numpy), exponents.ravel().astype(dtype.numpy)]
    expected = np.trunc(np.power(inputs[0].astype(float), inputs[1].astype(float))).astype(dtype.numpy)
    assert_same(run_elementwise(kernel, build([kernel]), inputs), expected, inputs, "power")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("lanes", [LANES, 1])
@pytest.mark.parametrize("source", TYPES)
def test_every_cast(source: DType, lanes: int) -> None:
    kernels = {target: elementwise(f"to_{target}", "cast", [source], target, lanes) for target in TYPES}
    code = build(list(kernels.values()))
    for target, kernel in kernels.items():
        values = samples(source)
        if source.is_float and target.is_integer:
            wide = values.astype(np.float64)
            values = values[np.isfinite(wide) & (np.abs(wide) < 2.0**62) & ((wide >= 0) | target.is_signed)]
        expected = apply_function("cast", [values], target)
        assert_same(run_elementwise(kernel, code, [values]), expected, [values], f"{source} as {target}")


def test_every_float16_from_wider_numbers() -> None:
    """All float16 values, the midpoints between neighbours and the floats beside them: every rounding decision."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middle = (halves[:-1] + halves[1:]) / 2
    exact = np.concatenate([halves, middle, [65519.9, 65520.0, 65520.1, 1e300, 5e-324]])
    values = np.concatenate([exact, np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf)])
    values = np.concatenate([values, -values])
    for source in (DType.float64, F32):
        inputs = [values.astype(source.numpy)]
        kernel = elementwise(f"half_from_{source}", "cast", [source], DType.float16)
        with np.errstate(over="ignore"):
            expected = inputs[0].astype(np.float16)
        ours = run_elementwise(kernel, build([kernel]), inputs)
        assert_same(ours, expected, inputs, f"{source} as float16")


@pytest.mark.parametrize("source", TYPES)
def test_every_bitcast(source: DType) -> None:
    targets = [dtype for dtype in TYPES if dtype.bits == source.bits and BOOL not in (dtype, source)]
    kernels = {target: elementwise(f"as_{target}", "bitcast", [source], target) for target in targets}
    if not kernels:
        pytest.skip("bool has no bits of its own")
    code = build(list(kernels.values()))
    for target, kernel in kernels.items():
        values = samples(source)
        if source.is_float or target.is_float:
            values = values[~np.isnan(values.view(target.numpy if target.is_float else source.numpy).astype(float))]
        assert run_elementwise(kernel, code, [values]).tobytes() == values.tobytes(), target


@pytest.mark.parametrize("dtype", TYPES)
def test_select(dtype: DType) -> None:
    kernel = elementwise("choose", "select", [BOOL, dtype, dtype], dtype)
    values = samples(dtype)
    other = values[::-1].copy()
    condition = np.arange(values.size) % 3 == 0
    ours = run_elementwise(kernel, build([kernel]), [condition, values, other])
    assert ours.tobytes() == np.where(condition, values, other).tobytes()


@pytest.mark.parametrize("constant", [0.0, 6.0, float("nan"), float("-inf")])
@pytest.mark.parametrize("function", ["minimum", "maximum"])
def test_extremes_with_a_constant(function: str, constant: float) -> None:
    place = ir.block() * LANES + ir.lane(LANES)
    values = np.array([-1, 0, 1, 7, np.nan, np.inf, -np.inf, 6.5] * 4, np.float32)
    for arguments in ((Fetch("x", place, F32), Number(constant, F32)), (Number(constant, F32), Fetch("x", place, F32))):
        put = Put("z", place, Call(function, arguments, F32))
        kernel = Kernel("clip", (Buffer("x", F32, False), Buffer("z", F32, True)), (), LANES, (put,))
        _, ours = run_kernel(kernel, [values, np.zeros_like(values)], 2)
        expected = apply_function(function, [values, np.full_like(values, constant)], F32)
        assert_same(ours, expected, [values], function)


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 31, 33, 100])
@pytest.mark.parametrize("dtype", TYPES)
def test_masked_copies_of_any_size(dtype: DType, size: int) -> None:
    """Copies of sizes around the number of lanes access nothing outside of the arrays."""
    place = ir.block() * LANES + ir.lane(LANES)
    mask = Call("less", (Integer(place), Integer(ir.variable("n"))), BOOL)
    put = Put("z", place, Fetch("x", place, dtype, mask=mask), mask=mask)
    kernel = Kernel("copy", (Buffer("x", dtype, False), Buffer("z", dtype, True)), ("n",), LANES, (put,))
    values = np.resize(samples(dtype), size)
    _, ours = run_kernel(kernel, [values, np.zeros_like(values)], -(-size // LANES), {"n": size})
    np.testing.assert_array_equal(ours.astype(np.float64), values.astype(np.float64))


def memory_kernel(dtype: DType, load: Any, store: Any, lanes: int, masked: bool) -> Kernel:
    mask = Call("less", (Integer(ir.block() * lanes + ir.lane(lanes)), Integer(ir.variable("n"))), BOOL)
    condition: Code | None = mask if masked else None
    put = Put("z", store, Fetch("x", load, dtype, mask=condition), mask=condition)
    return Kernel("move", (Buffer("x", dtype, False), Buffer("z", dtype, True)), ("n",), lanes, (put,))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("lanes", [8, 16, 32])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pattern", ["contiguous", "strided", "reversed", "scattered", "divided", "uniform"])
def test_access_patterns(pattern: str, masked: bool, lanes: int, dtype: DType) -> None:
    size = 3 * lanes - (5 if masked else 0)
    number = ir.block() * lanes + ir.lane(lanes)
    index = np.arange(size)
    load, store, source, target = {
        "contiguous": (number + 3, number, index + 3, index),
        "strided": (number * 3 + 1, number, index * 3 + 1, index),
        "reversed": (3 * lanes - number, number, 3 * lanes - index, index),
        "scattered": (number, number * 2 + 1, index, index * 2 + 1),
        "divided": (dims.floordiv(number, 3) + dims.mod(number, 5), number, index // 3 + index % 5, index),
        "uniform": (ir.block() * 2, number, index // lanes * 2, index),
    }[pattern]
    values = np.resize(samples(dtype), source.max() + 1)
    expected = np.zeros(target.max() + 1, dtype.numpy)
    expected[target] = values[source]
    kernel = memory_kernel(dtype, load, store, lanes, masked)
    _, ours = run_kernel(kernel, [values, np.zeros_like(expected)], 3, {"n": size})
    np.testing.assert_array_equal(ours.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("dtype", [F32, DType.uint8, DType.bfloat16, DType.float64])
def test_indirect_access(dtype: DType) -> None:
    """Gather by indices that are data, and scatter by others; masked lanes read and write nothing."""
    size = 45
    rng = np.random.default_rng(7)
    source, target = rng.integers(0, 100, size), rng.permutation(size)
    place = ir.block() * LANES + ir.lane(LANES)
    mask = Call("less", (Integer(place), Integer(ir.variable("n"))), BOOL)
    fetch = Fetch("x", 4, dtype, Fetch("from", place, I64, mask=mask), mask)
    put = Put("z", 2, fetch, Fetch("to", place, I64, mask=mask), mask)
    buffers = (
        Buffer("x", dtype, False),
        Buffer("from", I64, False),
        Buffer("to", I64, False),
        Buffer("z", dtype, True),
    )
    values = np.resize(samples(dtype), 104)
    expected = np.zeros(size + 2, dtype.numpy)
    expected[target + 2] = values[source + 4]
    results = run_kernel(
        Kernel("indirect", buffers, ("n",), LANES, (put,)),
        [values, source, target, np.zeros_like(expected)],
        3,
        {"n": size},
    )
    np.testing.assert_array_equal(results[-1].astype(np.float64), expected.astype(np.float64))


def test_uniform_access_under_conditions() -> None:
    """A uniform address read under a uniform and a varying mask, and written under a uniform one."""
    place = ir.block() * LANES + ir.lane(LANES)
    even = Call("equal", (Integer(dims.mod(ir.block(), 2)), Integer(0)), BOOL)
    low = Call("less", (Integer(ir.lane(LANES)), Integer(ir.block())), BOOL)
    body = (
        Put("one", ir.block(), Fetch("x", ir.block(), F32, mask=even)),
        Put("two", place, Fetch("x", ir.block(), F32, mask=low)),
        Put("three", ir.block(), Number(7.0, F32), mask=even),
    )
    buffers = (Buffer("x", F32, False), *(Buffer(name, F32, True) for name in ("one", "two", "three")))
    values = np.arange(1, 6, dtype=np.float32)
    arrays = [values, np.ones(5, np.float32), np.ones((5, LANES), np.float32), np.ones(5, np.float32)]
    _, one, two, three = run_kernel(Kernel("guards", buffers, (), LANES, body), arrays, 5)
    blocks = np.arange(5)
    np.testing.assert_array_equal(one, np.where(blocks % 2 == 0, values, 0))
    np.testing.assert_array_equal(two, np.where(np.arange(LANES) < blocks[:, None], values[:, None], 0))
    np.testing.assert_array_equal(three, np.where(blocks % 2 == 0, 7, 1))


# -- statements ------------------------------------------------------------------------------------------------------


def row_sums(dtype: DType, kind: str, start: float, unroll: int, lanes: int = LANES) -> Kernel:
    """Build a kernel whose blocks reduce a row of `n` elements, first within lanes and then across them."""
    name = {"sum": "add", "product": "multiply", "maximum": "maximum", "minimum": "minimum"}[kind]
    column = ir.variable("i") + ir.lane(lanes)
    width = ir.variable("n")
    inside = Call("less", (Integer(column), Integer(width)), BOOL)
    neutral = Number(start, dtype)
    value = Call("select", (inside, Fetch("x", ir.block() * width + column, dtype, mask=inside), neutral), dtype)
    total = Register("total", dtype, True)
    body = (
        Define("total", neutral, True),
        Repeat("i", 0, width, lanes, (Assign("total", Call(name, (total, value), dtype)),), unroll),
        Put("z", ir.block(), Across(kind, total)),
    )
    return Kernel("rows", (Buffer("x", dtype, False), Buffer("z", dtype, True)), ("n",), lanes, body)


@pytest.mark.parametrize("unroll", [1, 2, 4])
@pytest.mark.parametrize("width", [1, 5, 16, 47, 64, 200])
def test_loops_and_sums_across_lanes(width: int, unroll: int) -> None:
    values = np.random.default_rng(1).integers(-50, 50, (6, width)).astype(np.float32)
    _, ours = run_kernel(row_sums(F32, "sum", 0, unroll), [values, np.zeros(6, np.float32)], 6, {"n": width})
    np.testing.assert_array_equal(ours, values.sum(axis=1))


@pytest.mark.parametrize("dtype", [dtype for dtype in TYPES if dtype is not BOOL])
@pytest.mark.parametrize(("kind", "start"), [("sum", 0), ("product", 1), ("maximum", 0), ("minimum", 9)])
def test_across_every_type(kind: str, start: int, dtype: DType) -> None:
    values = np.random.default_rng(2).integers(1, 3, (4, 6)).astype(dtype.numpy)
    _, ours = run_kernel(row_sums(dtype, kind, start, 1), [values, np.zeros(4, dtype.numpy)], 4, {"n": 6})
    reduce = {"sum": np.sum, "product": np.prod, "maximum": np.max, "minimum": np.min}[kind]
    np.testing.assert_array_equal(ours.astype(np.float64), reduce(values.astype(np.float64), axis=1))


def test_maxima_across_lanes_propagate_nan() -> None:
    values = np.ones((2, 20), np.float32)
    values[1, 13] = np.nan
    _, ours = run_kernel(row_sums(F32, "maximum", -np.inf, 1), [values, np.zeros(2, np.float32)], 2, {"n": 20})
    np.testing.assert_array_equal(ours, [1, np.nan])


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 10, 1), (3, 10, 4), (5, 5, 1), (7, 2, 3), (-5, 6, 2)])
@pytest.mark.parametrize("unroll", [1, 3])
def test_loop_bounds(start: int, stop: int, step: int, unroll: int) -> None:
    """A loop has the iterations of Python's range, whatever its unrolling."""
    index = ir.variable("i", None)
    body = (
        Define("count", Number(0, I64), False),
        Define("sum", Number(0, I64), False),
        Repeat(
            "i",
            ir.variable("start", None),
            ir.variable("stop", None),
            step,
            (
                Assign("count", Call("add", (Register("count", I64, False), Number(1, I64)), I64)),
                Assign("sum", Call("add", (Register("sum", I64, False), Integer(index * index + index)), I64)),
            ),
            unroll,
        ),
        Put("z", 0, Register("count", I64, False)),
        Put("z", 1, Register("sum", I64, False)),
    )
    kernel = Kernel("visit", (Buffer("z", I64, True),), ("start", "stop"), LANES, body)
    (ours,) = run_kernel(kernel, [np.zeros(2, np.int64)], 1, {"start": start, "stop": stop})
    visited = range(start, stop, step)
    assert ours.tolist() == [len(visited), sum(i * i + i for i in visited)]


def test_conditions_nested_in_loops() -> None:
    index = ir.variable("i")
    odd = Call("equal", (Integer(dims.mod(index, 2)), Integer(1)), BOOL)
    late = Call("greater", (Integer(index), Integer(6)), BOOL)
    total = Register("total", I64, False)

    def plus(number: int) -> Assign:
        return Assign("total", Call("add", (total, Number(number, I64)), I64))

    body = (
        Define("total", Number(0, I64), False),
        Repeat("i", 0, 10, 1, (When(odd, (plus(1), When(late, (plus(100),))), (plus(10),)),)),
        Put("z", ir.block(), total),
    )
    (ours,) = run_kernel(Kernel("branch", (Buffer("z", I64, True),), (), LANES, body), [np.zeros(3, np.int64)], 3)
    assert ours.tolist() == [5 + 50 + 200] * 3


def test_local_memory_belongs_to_a_block() -> None:
    """Lanes exchange their values through local memory: a reversal within each block."""
    lane, place = ir.lane(LANES), ir.block() * LANES + ir.lane(LANES)
    body = (
        Put("scratch", lane, Fetch("x", place, F32)),
        Put("z", place, Fetch("scratch", LANES - 1 - lane, F32)),
    )
    buffers = (Buffer("x", F32, False), Buffer("scratch", F32, True, LANES), Buffer("z", F32, True))
    values = np.arange(4 * LANES, dtype=np.float32).reshape(4, LANES)
    _, ours = run_kernel(Kernel("turn", buffers, (), LANES, body), [values, np.zeros_like(values)], 4)
    np.testing.assert_array_equal(ours, values[:, ::-1])


def test_index_arithmetic_is_pythons() -> None:
    """Quotients and remainders floor for all signs; minima and maxima as well."""
    a, b = ir.variable("a", None), ir.variable("b", None)
    expressions = [dims.floordiv(a, b), dims.mod(a, b), dims.minimum(a, b), dims.maximum(a, b), a * a - 3 * b + 7]
    body = tuple(Put("z", place, Integer(value)) for place, value in enumerate(expressions))
    kernel = Kernel("indices", (Buffer("z", I64, True),), ("a", "b"), LANES, body)
    code = build([kernel])
    for x in (-7, -6, -1, 0, 1, 5, 6, 2**30):
        for y in (-4, -3, -1, 1, 2, 3, 7):
            (ours,) = run_kernel(kernel, [np.zeros(5, np.int64)], 1, {"a": x, "b": y}, code)
            assert ours.tolist() == [x // y, x % y, min(x, y), max(x, y), x * x - 3 * y + 7]


def test_fused_multiply_add_rounds_once() -> None:
    kernel = elementwise("fused", "fma", [F32, F32, F32], F32)
    a = np.float32(1 + 2**-12)
    inputs = [np.full(5, a, np.float32), np.full(5, a, np.float32), np.full(5, -1, np.float32)]
    ours = run_elementwise(kernel, build([kernel]), inputs)
    assert (ours == np.float32(float(a) * float(a) - 1)).all()
