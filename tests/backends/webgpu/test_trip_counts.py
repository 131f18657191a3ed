"""Trip counts of loops, which a software adapter limits, are computed before a run."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import numpy as np
import pytest
from frontend.samples import model, node, value

import weft
from weft.backends.webgpu import launch_table
from weft.backends.webgpu.trip_counts import MOST_TRIPS, count_trips, describe_loops
from weft.errors import ExecutionError
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.kernel import Assign, Buffer, Call, Define, Fetch, Kernel, Let, Number, Put, Register, Repeat, When, block

GPU = "webgpu:llvmpipe"
F32 = DType.float32


def kernel(*body: object) -> Kernel:
    buffers = (Buffer("x", F32, False), Buffer("out", F32, True))
    return Kernel("made_up", buffers, ("n", "m"), 4, tuple(body))  # type: ignore[arg-type]


def count(built: Kernel, blocks: int, *parameters: int) -> int:
    counts = count_trips(describe_loops(built.body), built, np.array([blocks, 1]), np.array([parameters, (1, 1)]))
    return int(counts[0])


def test_loops_in_loops_and_after_each_other() -> None:
    n, m = dims.symbol("n", 0), dims.symbol("m", 0)
    inner = Repeat("j", 0, m, 2, ())
    built = kernel(Repeat("i", 0, n, 1, (inner,)), Repeat("k", 3, n, 5, ()))
    assert count(built, 1, 10, 7) == 10 * (1 + 4) + 2


def test_slices_of_an_axis_count_with_their_length() -> None:
    n, m = dims.symbol("n", 1), dims.symbol("m", 1)
    start = dims.mod(block(), n) * m
    built = kernel(Let("first", block() * 3), Repeat("i", start, dims.minimum(start + m, 1000), 1, ()))
    assert count(built, 100, 50, 20) == 20


def test_longer_branch_counts() -> None:
    n, m = dims.symbol("n", 0), dims.symbol("m", 0)
    test = Call("less", (Number(1, F32), Number(2, F32)), DType.bool)
    built = kernel(When(test, (Repeat("i", 0, n, 1, ()),), (Repeat("i", 0, m, 1, ()),)))
    assert count(built, 1, 9, 30) == 30


def test_a_kernel_without_loops() -> None:
    total = Register("total", F32, False)
    built = kernel(Define("total", Fetch("x", 0, F32), False), Assign("total", total), Put("out", 0, total))
    assert describe_loops(built.body) == ""
    assert count(built, 5, 1, 1) == 0


@pytest.mark.parametrize("length", [1000, 60_000, 3_000_000])
def test_long_row_is_correct_or_refused(length: int) -> None:
    built = model([node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)], [value("x", [1, "n"])], [value("y", [1], 7)])
    x = np.arange(length, dtype=np.float32)[None] % 1021
    x[0, length - 2] = 5000
    loaded = weft.load(built, device=GPU)
    with suppress(ExecutionError) if length > MOST_TRIPS else nullcontext():
        assert loaded(x) == [length - 2]


def test_too_many_iterations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_table, "MOST_TRIPS", 2)
    built = model([node("ReduceSum", ["x"], ["y"], keepdims=0)], [value("x", [64, 64])], [value("y", [])])
    with pytest.raises(ExecutionError, match="loop iterations"):
        weft.load(built, device=GPU)(np.ones((64, 64), np.float32))
