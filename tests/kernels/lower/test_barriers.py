"""Barriers are inserted where lanes access each other's memory, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Assign,
    Barrier,
    Buffer,
    Define,
    Fetch,
    Kernel,
    Put,
    Register,
    Repeat,
    Statement,
    When,
    lane,
    variable,
)
from weft.ir.kernel_verify import verify_kernel
from weft.kernels.lower.barriers import insert_barriers

F32 = DType.float32
LANES = 32
ME = lane(LANES)
NEXT = dims.mod(ME + 1, LANES)
X = Register("x", F32, True)


def kernel(*body: Statement) -> Kernel:
    buffers = (Buffer("io", F32, True), Buffer("shared", F32, True, LANES))
    result = Kernel("made_up", buffers, ("n",), LANES, body)
    verify_kernel(result)
    return result


def describe(body: tuple[Statement, ...]) -> Iterator[str]:
    """Yield the kinds of statements, those of loops in brackets."""
    for statement in body:
        match statement:
            case Repeat():
                yield f"[{' '.join(describe(statement.body))}]"
            case When():
                yield f"({' '.join(describe(statement.body))})"
            case _:
                yield type(statement).__name__.lower()


def shape(*body: Statement) -> str:
    result = insert_barriers(kernel(*body))
    verify_kernel(result)
    assert insert_barriers(result) is result  # no more are needed
    return " ".join(describe(result.body))


def read(place: dims.Dim = ME) -> Define:
    return Define("x", Fetch("shared", place, F32), True)


PUT = Put("shared", ME, Fetch("io", ME, F32))


def test_barrier_before_reading_what_another_lane_wrote() -> None:
    assert shape(PUT, read(NEXT)) == "put barrier define"


def test_no_barrier_for_a_lanes_own_element() -> None:
    assert shape(PUT, read()) == "put define"


def test_barrier_before_overwriting_what_another_lane_reads() -> None:
    assert shape(read(NEXT), Put("shared", ME, X)) == "define barrier put"


def test_a_loop_that_reads_and_writes() -> None:
    turn = Repeat("i", 0, variable("n"), 1, (Assign("x", Fetch("shared", NEXT, F32)), Put("shared", ME, X)))
    assert shape(PUT, read(), turn) == "put define [barrier assign barrier put]"


def test_one_barrier_before_a_loop_that_only_reads() -> None:
    turn = Repeat("i", 0, variable("n"), 1, (Assign("x", Fetch("shared", NEXT, F32)),))
    assert shape(PUT, read(), turn) == "put define barrier [assign]"


def test_existing_barriers_are_kept() -> None:
    assert shape(PUT, Barrier(), read(NEXT), Barrier(), Put("shared", ME, X)) == "put barrier define barrier put"


def test_no_barrier_for_memory_that_is_only_written() -> None:
    puts = [Put("io", dims.mod(ME + number, LANES), Fetch("shared", ME, F32)) for number in range(3)]
    assert shape(*puts) == "put put put"


@pytest.mark.parametrize("step", [1, LANES])
def test_own_elements_of_a_stride(step: int) -> None:
    """Lanes that stride by their number keep to their own elements; those that move by one do not."""
    place = variable("i") + ME
    turn = Repeat("i", 0, variable("n"), step, (Put("io", place, Fetch("shared", ME, F32)),))
    again = Repeat("i", 0, variable("n"), step, (Assign("x", Fetch("io", place, F32)),))
    shapes = shape(read(), turn, again)
    assert ("barrier" in shapes) == (step == 1)


@pytest.mark.parametrize(
    ("place", "other", "expected"),
    [
        (2 * ME, 2 * ME + 1, "put put barrier define"),
        (ME, ME + 1, "put barrier put define"),  # a lane reads its own second element
        (ME, ME + LANES, "put put barrier define"),
        (4 * dims.mod(ME, 8), 4 * dims.floordiv(ME, 8) + 2, "put put barrier define"),
        (4 * dims.mod(ME, 8), 4 * dims.floordiv(ME, 8), "put barrier put barrier define"),
    ],
)
def test_writes_to_other_places_need_no_barrier(place: dims.Dim, other: dims.Dim, expected: str) -> None:
    puts = [Put("shared", at, Fetch("io", ME, F32)) for at in (place, other)]
    assert shape(*puts, Define("x", Fetch("shared", NEXT, F32), True)) == expected
