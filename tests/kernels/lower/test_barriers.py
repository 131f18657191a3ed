"""Barriers: where lanes meet in memory, and nowhere else."""

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
from weft.kernels.lower.barriers import with_barriers

F32 = DType.float32
LANES = 32
ME = lane(LANES)
NEXT = dims.mod(ME + 1, LANES)
X = Register("x", F32, True)


def kernel(*body: Statement) -> Kernel:
    buffers = (Buffer("io", F32, True), Buffer("shared", F32, True, LANES))
    made = Kernel("made_up", buffers, ("n",), LANES, body)
    verify_kernel(made)
    return made


def written(body: tuple[Statement, ...]) -> Iterator[str]:
    """The kinds of statements, those of loops in brackets."""
    for statement in body:
        match statement:
            case Repeat():
                yield f"[{' '.join(written(statement.body))}]"
            case When():
                yield f"({' '.join(written(statement.body))})"
            case _:
                yield type(statement).__name__.lower()


def shape(*body: Statement) -> str:
    made = with_barriers(kernel(*body))
    verify_kernel(made)
    assert with_barriers(made) is made  # they suffice
    return " ".join(written(made.body))


def take(place: dims.Dim = ME) -> Define:
    return Define("x", Fetch("shared", place, F32), True)


GIVE = Put("shared", ME, Fetch("io", ME, F32))


def test_what_another_lane_wrote_is_waited_for() -> None:
    assert shape(GIVE, take(NEXT)) == "put barrier define"


def test_a_lane_does_not_wait_for_itself() -> None:
    assert shape(GIVE, take()) == "put define"


def test_what_another_lane_has_still_to_read_is_not_overwritten() -> None:
    assert shape(take(NEXT), Put("shared", ME, X)) == "define barrier put"


def test_a_loop_that_reads_and_writes() -> None:
    turn = Repeat("i", 0, variable("n"), 1, (Assign("x", Fetch("shared", NEXT, F32)), Put("shared", ME, X)))
    assert shape(GIVE, take(), turn) == "put define [barrier assign barrier put]"


def test_one_barrier_before_a_loop_that_only_reads() -> None:
    turn = Repeat("i", 0, variable("n"), 1, (Assign("x", Fetch("shared", NEXT, F32)),))
    assert shape(GIVE, take(), turn) == "put define barrier [assign]"


def test_barriers_that_are_there_suffice() -> None:
    assert shape(GIVE, Barrier(), take(NEXT), Barrier(), Put("shared", ME, X)) == "put barrier define barrier put"


def test_what_nobody_reads_nobody_waits_for() -> None:
    puts = [Put("io", dims.mod(ME + number, LANES), Fetch("shared", ME, F32)) for number in range(3)]
    assert shape(*puts) == "put put put"


@pytest.mark.parametrize("step", [1, LANES])
def test_own_elements_of_a_stride(step: int) -> None:
    """Lanes that stride by their number keep to their own elements; those that move by one do not."""
    place = variable("i") + ME
    turn = Repeat("i", 0, variable("n"), step, (Put("io", place, Fetch("shared", ME, F32)),))
    again = Repeat("i", 0, variable("n"), step, (Assign("x", Fetch("io", place, F32)),))
    shapes = shape(take(), turn, again)
    assert ("barrier" in shapes) == (step == 1)
