"""Tapes: many launches in one native call, with buffers in regions that each call passes."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from backends.cpu.native import Array, build, elementwise
from backends.cpu.tapes import TapeLaunch, build_tape
from backends.llvm.test_emit import row_sums

from weft.backends.cpu import pool
from weft.backends.cpu.tape import SlicedRun, Tape
from weft.backends.host.codegen import LoadedCode
from weft.errors import InternalError
from weft.ir.dtypes import DType
from weft.ir.kernel import Kernel
from weft.ir.work import Place
from weft.threads import usable_cores

MOST_TRIES = 5000  # to see what happens as soon as a core is free

F32 = DType.float32
ADD = elementwise("plus", "add", [F32, F32], F32)
DOUBLE = elementwise("product", "multiply", [F32, F32], F32)
SUM = row_sums(F32, "sum", 0, 2)
NOTHING = Kernel("nothing", (), (), 16, ())


@cache
def code() -> LoadedCode:
    return build([ADD, DOUBLE, SUM, NOTHING])


def chain(size: int, steps: int, grain: int = 1) -> Tape:
    """Build out = (input + constants) * constants + constants ... in an arena of two halves."""
    blocks = -(-size // 16)
    arena, constants, input_region, output_region = range(4)
    launches = []
    for step in range(steps):
        source = Place(input_region) if step == 0 else Place(arena, (step % 2) * size * 4)
        target = Place(output_region) if step == steps - 1 else Place(arena, ((step + 1) % 2) * size * 4)
        function = code().addresses["plus" if step % 2 == 0 else "product"]
        launches.append(
            TapeLaunch(
                function, blocks, (source, Place(constants, 64), target), (size,), grain=grain, parallel=step % 5 != 4
            )
        )
    return build_tape(launches, code())


def expected_chain(source: Array, constants: Array, steps: int) -> Array:
    result = source
    for step in range(steps):
        result = result + constants if step % 2 == 0 else result * constants
    return result


@pytest.mark.parametrize("size", [1, 15, 16, 17, 500, 5003])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_chain_of_launches(size: int, threads: int) -> None:
    rng = np.random.default_rng(size)
    constants = np.concatenate([np.zeros(16), 1 + rng.random(size)]).astype(np.float32)
    source = rng.random(size).astype(np.float32)
    arena, target = np.zeros(2 * size, np.float32), np.zeros(size, np.float32)
    tape = chain(size, 9)
    for _ in range(20):
        target[:] = 0
        tape.run([array.ctypes.data for array in (arena, constants, source, target)], threads)
        np.testing.assert_array_equal(target, expected_chain(source, constants[16:], 9))


def test_the_same_bits_for_any_number_of_threads() -> None:
    values = np.random.default_rng(0).standard_normal((257, 333)).astype(np.float32)
    results = []
    for threads in (1, 2, 3, 4, 7):
        for grain in (1, 5, 100):
            sums = np.zeros(257, np.float32)
            tape = build_tape(
                [TapeLaunch(code().addresses["rows"], 257, (Place(0), Place(1)), (333,), grain=grain)], code()
            )
            tape.run([values.ctypes.data, sums.ctypes.data], threads)
            results.append(sums.tobytes())
    assert len(set(results)) == 1


def test_thousands_of_runs() -> None:
    size = 800
    constants = np.ones(size + 16, np.float32)
    source = np.arange(size, dtype=np.float32)
    arena, target = np.zeros(2 * size, np.float32), np.zeros(size, np.float32)
    tape = chain(size, 6)
    addresses = [array.ctypes.data for array in (arena, constants, source, target)]
    for turn in range(4000):
        source[0] = turn
        tape.run(addresses, 2 + turn % 3)
        assert target[0] == turn + 3
    np.testing.assert_array_equal(target[1:], source[1:] + 3)


def test_an_empty_tape_and_empty_launches() -> None:
    build_tape([]).run([])
    build_tape([TapeLaunch(code().addresses["nothing"], 0, ())], code()).run([], 2)


def test_missing_regions_are_noticed() -> None:
    with pytest.raises(InternalError, match="regions"):
        chain(16, 2).run([0, 0, 0])


def random_launches(seed: int, slots: int, steps: int, size: int) -> tuple[Tape, list[tuple[str, int, int, int]]]:
    """Build sums and products of random slots of an arena, with minimal dependencies."""
    rng = np.random.default_rng(seed)
    recipe, launches = [], []
    written, read = {}, {slot: [] for slot in range(slots)}
    for number in range(steps):
        one, other, target = (int(slot) for slot in rng.integers(0, slots, 3))
        name = "plus" if rng.random() < 0.7 else "product"
        after = {written[slot] for slot in (one, other, target) if slot in written} | set(read[target])
        blocks = -(-size // 16)
        launches.append(
            TapeLaunch(
                code().addresses[name],
                blocks,
                tuple(Place(0, slot * size * 4) for slot in (one, other, target)),
                (size,),
                parallel=bool(rng.random() < 0.6),
                grain=int(rng.integers(1, 4)),
                after=None if rng.random() < 0.03 else tuple(sorted(after)),
                joined=bool(rng.random() < 0.3),
            )
        )
        recipe.append((name, one, other, target))
        written[target] = number
        read[target] = []
        for slot in {one, other} - {target}:
            read[slot].append(number)
    return build_tape(launches, code()), recipe


def expected_web(recipe: list[tuple[str, int, int, int]], arena: Array) -> Array:
    result = arena.copy()
    for name, one, other, target in recipe:
        function = np.add if name == "plus" else np.multiply
        result[target] = (
            function(result[one], result[other])
            if one != target != other
            else function(result[one].copy(), result[other].copy())
        )
    return result


@pytest.mark.parametrize("seed", range(12))
def test_launches_wait_for_what_they_need(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    slots, steps, size = int(rng.integers(3, 40)), int(rng.integers(1, 300)), int(rng.integers(1, 2000))
    tape, recipe = random_launches(seed, slots, steps, size)
    source = rng.choice(np.array([-1, -0.5, 0.25, 0.5, 1], np.float32), (slots, size))
    with np.errstate(all="ignore"):
        expected = expected_web(recipe, source)
    for turn in range(60):
        arena = source.copy()
        tape.run([arena.ctypes.data], 1 + turn % 5)
        np.testing.assert_array_equal(arena, expected, err_msg=f"seed {seed}, {1 + turn % 5} threads")


def test_many_callers_at_once() -> None:
    """More callers than cores, each with its own arena, on the workers of one pool."""
    tape, recipe = random_launches(99, 20, 200, 700)
    source = np.random.default_rng(0).choice(np.array([-1, 0.5, 1], np.float32), (20, 700))
    with np.errstate(all="ignore"):
        expected = expected_web(recipe, source)

    def call(caller: int) -> bool:
        same = True
        for turn in range(40):
            arena = source.copy()
            tape.run([arena.ctypes.data], 1 + (caller + turn) % 4)
            same &= arena.tobytes() == expected.tobytes()
        return same

    with ThreadPoolExecutor(6) as callers:
        assert all(callers.map(call, range(6)))


def test_first_run_of_a_pool() -> None:
    """It uses memory that was never written."""
    values = np.random.default_rng(0).standard_normal((64, 100)).astype(np.float32)
    expected = None
    for threads in (1, 2, 3, 5, 64, 100):
        pool._drop_pool()
        sums = np.zeros(64, np.float32)
        tape = build_tape([TapeLaunch(code().addresses["rows"], 64, (Place(0), Place(1)), (100,))] * 3, code())
        times = tape.run_timed([values.ctypes.data, sums.ctypes.data], threads)
        assert times.shape == (3, min(threads, pool.MOST_THREADS), 2)
        expected = sums.tobytes() if expected is None else expected
        assert sums.tobytes() == expected


@pytest.mark.skipif(usable_cores() < 2, reason="one core runs one launch at a time")
def test_independent_launches_overlap() -> None:
    size = 1 << 20
    arena = np.ones((4, size), np.float32)
    places = [tuple(Place(0, 4 * size * slot) for slot in slots) for slots in ((0, 0, 1), (2, 2, 3))]
    function = code().addresses["plus"]
    tape = build_tape(
        [TapeLaunch(function, size // 16, at, (size,), parallel=False, after=()) for at in places], code()
    )
    for _ in range(MOST_TRIES):  # on a busy machine the worker may be late
        one, other = (times[times[:, 0] > 0][0] for times in tape.run_timed([arena.ctypes.data], 2))
        if one[0] < other[1] and other[0] < one[1]:
            return
    pytest.fail("two launches that do not wait for each other never ran side by side")


def test_callers_run_in_parallel() -> None:
    """Two Python threads are in native code at the same time, so it does not hold the GIL."""
    size = 1 << 20
    arenas = np.ones((2, 2, size), np.float32)
    function = code().addresses["plus"]
    places = tuple(Place(0, 4 * size * slot) for slot in (0, 0, 1))
    tape = build_tape([TapeLaunch(function, size // 16, places, (size,), parallel=False)], code())
    start = threading.Barrier(2)

    def call(arena: np.ndarray) -> tuple[int, int]:
        start.wait()
        begin, end = tape.run_timed([arena.ctypes.data])[0, 0]
        return int(begin), int(end)

    with ThreadPoolExecutor(2) as callers:
        for _ in range(MOST_TRIES):
            one, other = callers.map(call, arenas)
            if one[0] < other[1] and other[0] < one[1]:
                return
    pytest.fail("one caller always waited for the other")


def test_times_of_launches() -> None:
    size = 300_000
    constants, source = np.ones(size + 16, np.float32), np.ones(size, np.float32)
    arena, target = np.zeros(2 * size, np.float32), np.zeros(size, np.float32)
    tape = chain(size, 6)
    before = time.monotonic_ns()
    times = tape.run_timed([array.ctypes.data for array in (arena, constants, source, target)], 3)
    after = time.monotonic_ns()
    assert times.shape == (6, 3, 2)
    worked = times[..., 0] > 0
    assert worked.any(axis=1).all()
    assert (times[worked][:, 0] >= before).all()
    assert (times[worked][:, 1] <= after).all()
    assert (times[worked][:, 1] >= times[worked][:, 0]).all()
    starts, ends = np.where(worked, times[..., 0], after).min(axis=1), times[..., 1].max(axis=1)
    assert (starts[1:] >= ends[:-1]).all()  # one launch after the other
    assert worked[4].sum() == 1  # that one is not parallel


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals come to the main thread")
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_ctrl_c_ends_a_run(threads: int, parallel: bool) -> None:
    """A signal interrupts a run of hours; afterwards runs work as before."""
    hours = build_tape(
        [TapeLaunch(code().addresses["nothing"], (1 << 32) - 1, (), parallel=parallel, most=1)] * 1000, code()
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(3):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                hours.run([], threads)
    finally:
        signal.signal(signal.SIGINT, before)
    test_a_chain_of_launches(500, threads)


def test_sliced_run_runs_every_block_once() -> None:
    """With slices of no time, every block runs once, in order, on any thread."""
    size, turns = 800, 50
    constants = np.ones(size + 16, np.float32)
    source = np.arange(size, dtype=np.float32)
    launches = [
        replace(launch, most=1 + number % 3)
        for number, launch in enumerate([_plus(size, step) for step in range(turns)])
    ]
    for threads in (1, 2, 4):
        arena, target = np.zeros(2 * size, np.float32), np.zeros(size, np.float32)
        tape = build_tape(launches, code())
        addresses = [array.ctypes.data for array in (arena, constants, source, target)]
        shared = pool.shared_pool(threads) if threads > 1 else None
        sliced = SlicedRun(tape, addresses, shared, threads, 0, None)
        slices = 0
        while pool.runner().go(sliced._at, 0):
            slices += 1
        assert slices > 0 or threads > 1  # where others may be done before
        np.testing.assert_array_equal(arena[size * (turns % 2) :][:size], source + turns)
        assert not pool.runner().go(sliced._at, 0)


def _plus(size: int, step: int) -> TapeLaunch:
    source = Place(2) if step == 0 else Place(0, (step % 2) * size * 4)
    target = Place(0, ((step + 1) % 2) * size * 4)
    return TapeLaunch(
        code().addresses["plus"], -(-size // 16), (source, Place(1, 64), target), (size,), parallel=step % 4 != 3
    )
