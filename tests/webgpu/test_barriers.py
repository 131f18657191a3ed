"""Barriers: where lanes meet in memory, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from weft.backends.webgpu.barriers import with_barriers
from weft.backends.webgpu.bindings import module_text
from weft.backends.webgpu.emit import emit
from weft.backends.webgpu.gpu import UNIFORM, WRITE, Dispatch, Recording, ShaderSource, open_gpu
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    Assign,
    Barrier,
    Buffer,
    Call,
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
    verify_kernel,
)

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
    return " ".join(written(with_barriers(kernel(*body)).body))


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


def test_lanes_that_hand_on_what_they_have() -> None:
    """Each of 100 times, every lane takes what its neighbour has, by way of shared memory."""
    gpu = open_gpu("llvmpipe")
    more = Assign("x", Call("add", (X, Fetch("io", ME, F32)), F32))
    turn = Repeat("i", 0, variable("n"), 1, (Put("shared", ME, X), Assign("x", Fetch("shared", NEXT, F32)), more))
    made = kernel(Define("x", Fetch("io", ME, F32), True), turn, Put("io", ME, X))
    text = module_text(made, emit(made, gpu.abilities), {}, gpu.abilities)
    pipeline = gpu.pipelines({"made_up": ShaderSource(text, (UNIFORM, WRITE))})["made_up"]
    start = np.random.default_rng(5).integers(-9, 9, LANES).astype(np.float32)
    memory, parameters = gpu.buffer(4 * LANES), gpu.uniform(256)
    gpu.write(memory, 0, start)
    gpu.write(parameters, 0, np.array([1, 0, 100], np.int32))
    group = gpu.bind_group(pipeline, [(parameters, 0, 256), (memory, 0, 4 * LANES)])
    found = gpu.run(Recording([Dispatch(pipeline, group, 1)]), [(memory, 0, 4 * LANES)])[0].view(np.float32)
    expected = start.copy()
    for _ in range(100):
        expected = np.roll(expected, -1) + start
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("step", [1, LANES])
def test_own_elements_of_a_stride(step: int) -> None:
    """Lanes that stride by their number keep to their own elements; those that move by one do not."""
    place = variable("i") + ME
    turn = Repeat("i", 0, variable("n"), step, (Put("io", place, Fetch("shared", ME, F32)),))
    again = Repeat("i", 0, variable("n"), step, (Assign("x", Fetch("io", place, F32)),))
    shapes = shape(take(), turn, again)
    assert ("barrier" in shapes) == (step == 1)


def test_no_bool_lies_in_shared_memory() -> None:
    """NVIDIA's drivers lose them there, and with them every report of an index out of range."""
    there = Register("there", DType.bool, True)
    statements: tuple[Statement, ...] = (
        Define("there", Call("less", (Fetch("in", ME, F32), Fetch("in", NEXT, F32)), DType.bool), True),
        Put("held", ME, there),
        Barrier(),
        Assign("there", Fetch("held", NEXT, DType.bool)),
        Define("any", Across("maximum", there), False),
        Put("out", ME, Call("logical_and", (there, Register("any", DType.bool, False)), DType.bool)),
    )
    buffers = (Buffer("in", F32, False), Buffer("held", DType.bool, True, LANES), Buffer("out", DType.bool, True))
    kernel = Kernel("bools", buffers, (), LANES, statements)
    verify_kernel(kernel)
    text = emit(kernel, open_gpu("llvmpipe").abilities).text
    assert "var<workgroup>" in text
    assert "array<bool" not in text
