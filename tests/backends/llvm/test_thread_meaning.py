"""Results of thread lanes, emulated on this CPU: every function of every type, and all communication between lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backends.cpu.native import elementwise
from backends.llvm.emulated import run_kernel
from backends.llvm.ptx import examples
from backends.llvm.test_emit import TYPES, assert_same, functions_of, pairs, result_of, row_sums

from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.backends.reference.scalars import apply_function
from weft.ir import dims
from weft.ir import kernel as ir
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    AcrossGroup,
    Assign,
    Buffer,
    Call,
    Define,
    Fetch,
    FetchRun,
    Integer,
    Kernel,
    Number,
    Put,
    PutRun,
    Register,
    Repeat,
    Transpose,
    View,
    When,
)
from weft.ir.scalar import FUNCTIONS

F32, I32, I64, BOOL = DType.float32, DType.int32, DType.int64, DType.bool


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", TYPES)
def test_every_function(dtype: DType) -> None:
    for function in functions_of(dtype):
        result = result_of(function, dtype)
        kernel = elementwise(f"k_{function}", function, [dtype] * FUNCTIONS[function], result)
        inputs = [array[:: max(array.size // 300, 1)].copy() for array in pairs(dtype, function)]
        if dtype.is_integer and function in ("floor", "ceil", "round_half_even", "truncate"):
            expected = inputs[0]
        else:
            expected = apply_function(function, inputs, result)
        operands = [*inputs, np.zeros(inputs[0].size, result.numpy)]
        ours = run_kernel(kernel, operands, -(-inputs[0].size // kernel.lanes), {"n": inputs[0].size})[-1]
        assert_same(ours, expected, inputs, f"{function} of {dtype}")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [F32, DType.float64, DType.float16])
def test_exact_remainders(dtype: DType) -> None:
    """For all magnitudes, including subnormals: a division, as NVIDIA uses it, is wrong for most of these."""
    random = np.random.default_rng(3)
    bits = {16: np.uint16, 32: np.uint32, 64: np.uint64}[dtype.bits]
    values = random.integers(0, np.iinfo(bits).max, (2, 2000), bits, endpoint=True).view(dtype.numpy)
    kernel = elementwise("rest", "fmod", [dtype, dtype], dtype)
    operands = [*map(np.ascontiguousarray, values), np.zeros(2000, dtype.numpy)]
    ours = run_kernel(kernel, operands, -(-2000 // kernel.lanes), {"n": 2000})[-1]
    assert_same(ours, np.fmod(*values), list(values), "fmod")


@pytest.mark.parametrize("lanes", [4, 32, 40, 96])
@pytest.mark.parametrize("dtype", [F32, I64, DType.float16, BOOL])
def test_across(dtype: DType, lanes: int) -> None:
    kind = "maximum" if dtype is BOOL else "sum"
    kernel = row_sums(dtype, kind, 0, 2, lanes)
    values = np.random.default_rng(lanes).integers(0, 2 if dtype is BOOL else 9, (3, 75)).astype(dtype.numpy)
    _, ours = run_kernel(kernel, [values, np.zeros(3, dtype.numpy)], 3, {"n": 75})
    np.testing.assert_array_equal(ours, values.max(1) if dtype is BOOL else values.sum(1).astype(dtype.numpy))


@pytest.mark.parametrize("bits", [32, 64])
def test_loops_conditions_views_and_shared_memory(bits: int) -> None:
    """Every lane reads its neighbour's value, in all blocks but the second, which copies its input."""
    lanes, rounds = 40, 5
    me = ir.lane(lanes)
    x = Register("x", F32, True)
    turn = (
        Put("held", me, x),
        Assign("x", Fetch("held", dims.mod(me + 1, lanes), F32)),
        Assign("x", Call("add", (x, Call("cast", (Integer(ir.variable("i")),), F32)), F32)),
    )
    second = Call("equal", (Integer(ir.block()), Integer(1)), BOOL)
    body = (
        View("row", "in", ir.block() * lanes),
        Define("x", Fetch("row", me, F32), True),
        When(second, (Assign("x", Call("negate", (x,), F32)),), (Repeat("i", 0, ir.variable("n"), 1, turn, 2),)),
        Put("out", ir.block() * lanes + me, x),
    )
    buffers = (Buffer("in", F32, False), Buffer("out", F32, True), Buffer("held", F32, True, lanes))
    values = np.random.default_rng(1).integers(-50, 50, (3, lanes)).astype(np.float32)
    expected = values.copy()
    for number in range(rounds):
        expected = np.roll(expected, -1, 1) + np.float32(number)
    expected[1] = -values[1]
    kernel = Kernel("made_up", buffers, ("n",), lanes, body)
    _, ours = run_kernel(kernel, [values, np.zeros_like(values)], 3, {"n": rounds}, ThreadLanes(index_bits=bits))
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("unaligned", [frozenset[str](), frozenset({"in"})])
@pytest.mark.parametrize("dtype", [F32, DType.uint8, DType.bfloat16])
def test_runs_under_masks(dtype: DType, unaligned: frozenset[str]) -> None:
    lanes, count = 8, 5
    me = ir.lane(lanes)
    inside = Call("less", (Integer(me), Integer(ir.variable("n"))), BOOL)
    names = ("a", "b", "c", "d")
    values = tuple(Register(name, dtype, True) for name in reversed(names))
    body = (FetchRun(names, "in", me * 4, dtype, inside), PutRun("out", me * 4, values, inside))
    kernel = Kernel("runs", (Buffer("in", dtype, False), Buffer("out", dtype, True)), ("n",), lanes, body)
    operands = np.arange(1, 4 * count + 1).astype(dtype.numpy)
    _, ours = run_kernel(kernel, [operands, np.zeros_like(operands)], 1, {"n": count}, ThreadLanes(unaligned=unaligned))
    assert ours.tobytes() == np.ascontiguousarray(operands.reshape(count, 4)[:, ::-1]).tobytes()


def test_uniform_values_are_written_once() -> None:
    lanes = 8
    me = ir.lane(lanes)
    low = Call("less", (Integer(me), Integer(3)), BOOL)
    where = Fetch("at", 0, I64, mask=Call("less", (Integer(ir.block()), Integer(2)), BOOL))
    body = (
        Put("one", ir.block(), Across("sum", Fetch("in", me, F32)), where),
        Put("two", ir.block() * lanes + me, Fetch("in", me, F32, Across("maximum", Fetch("at", me, I64)), low)),
    )
    buffers = (Buffer("in", F32, False), Buffer("at", I64, False), Buffer("one", F32, True), Buffer("two", F32, True))
    values, places = np.arange(16, dtype=np.float32), np.array([1, 0, 2, 0, 0, 5, 0, 0])
    operands = [values, places, np.zeros(5, np.float32), np.zeros((2, lanes), np.float32)]
    *_, one, two = run_kernel(Kernel("uniform", buffers, (), lanes, body), operands, 2)
    np.testing.assert_array_equal(one, [0, 28, 28, 0, 0])
    np.testing.assert_array_equal(two, np.where(np.arange(lanes) < 3, values[5:13], 0)[None].repeat(2, 0))


@pytest.mark.parametrize("dtype", [F32, BOOL, DType.float64])
@pytest.mark.parametrize(("lanes", "members", "step"), [(8, 4, 1), (8, 4, 2), (64, 8, 8), (64, 64, 1), (128, 16, 8)])
def test_groups_of_lanes(dtype: DType, lanes: int, members: int, step: int) -> None:
    me = ir.lane(lanes)
    total = AcrossGroup("maximum" if dtype is BOOL else "sum", Fetch("in", me, dtype), members, step)
    buffers = (Buffer("in", dtype, False), Buffer("out", dtype, True))
    kernel = Kernel("groups", buffers, (), lanes, (Put("out", me, total),))
    operands = np.random.default_rng(3).normal(0, 1, lanes).astype(dtype.numpy)
    groups = operands.reshape(-1, members, step)
    expected = np.empty_like(groups)
    expected[:] = fold_tree(groups)[:, None]
    _, ours = run_kernel(kernel, [operands, np.zeros_like(operands)], 1)
    assert ours.tobytes() == expected.tobytes()


def fold_tree(groups: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Add the elements of axis 1 in the order of a binary tree."""
    while groups.shape[1] > 1:
        groups = groups[:, ::2] + groups[:, 1::2]
    return groups[:, 0]


@pytest.mark.parametrize("dtype", [F32, BOOL, DType.float64])
def test_transposed_squares(dtype: DType) -> None:
    lanes = 8
    me = ir.lane(lanes)
    names = tuple(f"r{number}" for number in range(lanes))
    body = (
        *(Define(name, Fetch("in", me * lanes + number, dtype), True) for number, name in enumerate(names)),
        Transpose(names),
        *(Put("out", me * lanes + number, Register(name, dtype, True)) for number, name in enumerate(names)),
    )
    kernel = Kernel("square", (Buffer("in", dtype, False), Buffer("out", dtype, True)), (), lanes, body)
    operands = np.random.default_rng(2).integers(0, 2 if dtype is BOOL else 99, (lanes, lanes)).astype(dtype.numpy)
    np.testing.assert_array_equal(run_kernel(kernel, [operands, np.zeros_like(operands)], 1)[1], operands.T)


def test_products_of_bytes() -> None:
    kernel = elementwise("dots", "dot4", [I32] * 3, I32)
    random = np.random.default_rng(4)
    unsigned, signed = random.integers(0, 256, (50, 4)).astype(np.uint8), random.integers(-128, 128, (50, 4))
    total = random.integers(-(2**31), 2**31, 50).astype(np.int32)
    words = [unsigned.view(np.int32).ravel(), signed.astype(np.int8).view(np.int32).ravel(), total]
    ours = run_kernel(kernel, [*words, np.zeros(50, np.int32)], 4, {"n": 50})[-1]
    np.testing.assert_array_equal(ours, ((unsigned * signed).sum(1) + total).astype(np.int32))


def test_indices_beyond_32_bits() -> None:
    large = 3 * 2**31
    place = ir.lane(8)
    body = Put("out", place, Integer(place * large + large))
    _, ours = run_kernel(
        Kernel("wide", (Buffer("in", F32, False), Buffer("out", I64, True)), (), 8, (body,)),
        [np.zeros(1, np.float32), np.zeros(8, np.int64)],
        1,
    )
    np.testing.assert_array_equal(ours, np.arange(1, 9) * large)


def test_constants() -> None:
    body = Put("out", ir.lane(4), Number(-2.5, F32))
    (ours,) = run_kernel(Kernel("numbers", (Buffer("out", F32, True),), (), 4, (body,)), [np.zeros(4, np.float32)], 1)
    np.testing.assert_array_equal(ours, np.full(4, -2.5, np.float32))


@pytest.mark.parametrize("name", ["map", "reduction", "product"])
def test_works_of_builders(name: str) -> None:
    """The kernels that test_thread_lanes.py compiles for GPUs, at sizes that a CPU can emulate."""
    (example,) = [example for example in examples(sizes=(70, 37, 36)) if example.name == name]
    arrays = [array.copy() for array in example.arrays]
    for kernel, launch in zip(example.kernels, example.launches, strict=True):
        numbers = dict(zip(kernel.parameters, launch.parameters, strict=True))
        results = run_kernel(kernel, [arrays[place] for place in launch.places], launch.blocks, numbers)
        for place, array in zip(launch.places, results):
            arrays[place] = array
    example.check([array.tobytes() for array in arrays])
