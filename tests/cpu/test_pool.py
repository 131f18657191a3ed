"""Worker threads: shared by all callers, gone after a fork, asleep when idle, and never in the way of an exit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from threading import Barrier, Thread

import numpy as np
import pytest
from cpu.native import Array
from cpu.test_tape import chain, expected_chain

from weft.backends.cpu import pool
from weft.backends.cpu.pool import MOST_THREADS, shared_pool
from weft.backends.cpu.tape import Tape

SIZE, STEPS = 4000, 12


def run_once(tape: Tape, threads: int, seed: int = 0) -> bool:
    """One run on fresh memory; whether the result is right."""
    rng = np.random.default_rng(seed)
    constants = (1 + rng.random(SIZE + 16) / 100).astype(np.float32)
    given = rng.random(SIZE).astype(np.float32)
    arena, wanted = np.zeros(2 * SIZE, np.float32), np.zeros(SIZE, np.float32)
    arrays: list[Array] = [arena, constants, given, wanted]
    tape.run([array.ctypes.data for array in arrays], threads)
    return bool(np.array_equal(wanted, expected_chain(given, constants[16:], STEPS)))


@pytest.mark.parametrize("callers", [2, 8, 40])
def test_many_callers_at_once(callers: int) -> None:
    """More callers than slots, too: those go on alone."""
    tape = chain(SIZE, STEPS)
    barrier = Barrier(callers)
    right: list[bool] = []

    def call(seed: int) -> None:
        barrier.wait()
        right.extend(run_once(tape, 1 + seed % 4, seed * 100 + turn) for turn in range(30))

    threads = [Thread(target=call, args=(seed,)) for seed in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 30 * callers


def test_the_pool_grows_and_stays_within_limits() -> None:
    shared = shared_pool(3)
    assert shared.workers >= 2
    assert shared_pool(2) is shared
    assert shared_pool(10_000).workers == MOST_THREADS - 1
    assert run_once(chain(SIZE, STEPS), 10_000)


def test_idle_workers_use_no_time() -> None:
    tape = chain(SIZE, STEPS)
    assert run_once(tape, 4)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(1)
    assert time.process_time() - before < 0.02


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    tape = chain(SIZE, STEPS)
    assert run_once(tape, 3)
    parent = shared_pool(3)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        right = all(run_once(tape, 3, seed) for seed in range(50))
        os.write(writer, b"y" if right and shared_pool(1) is not parent and shared_pool(3).workers == 2 else b"n")
        os._exit(0)
    assert os.read(reader, 1) == b"y"
    assert os.waitpid(child, 0)[1] == 0
    assert shared_pool(3) is parent
    assert run_once(tape, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forks_while_others_run() -> None:
    """Whatever other threads are doing at that moment, the child can run."""
    tape = chain(SIZE, STEPS)
    stop = False

    def busy() -> None:
        while not stop:
            assert run_once(tape, 3)

    threads = [Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    outcomes = []
    for seed in range(10):
        child = os.fork()
        if child == 0:
            os._exit(0 if run_once(tape, 2, seed) else 1)
        outcomes.append(os.waitpid(child, 0)[1])
    stop = True
    for thread in threads:
        thread.join()
    assert outcomes == [0] * 10


PROGRAM = """
import atexit, sys
sys.path[:0] = {path!r}
from cpu.test_pool import STEPS, SIZE, run_once
from cpu.test_tape import chain
tape = chain(SIZE, STEPS)
atexit.register(lambda: print("late", run_once(tape, 3)))
print("early", run_once(tape, 3))
if len(sys.argv) > 1:
    import threading
    def forever():
        while True:
            run_once(tape, 3)
    threading.Thread(target=forever, daemon=True).start()
"""


@pytest.mark.parametrize("arguments", [[], ["busy"]])
def test_the_interpreter_exits_cleanly(arguments: list[str]) -> None:
    """Also while a daemon thread is still running models, and runs at exit still work."""
    program = PROGRAM.format(path=[path for path in sys.path if path])
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split() == ["early", "True", "late", "True"]


def test_a_stopped_pool_leaves_callers_alone() -> None:
    own = pool.Pool()
    own.grow(2)
    assert own.workers == 2
    own.stop()
    own.grow(5)
    assert own.workers == 2
