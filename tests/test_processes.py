"""Threads, forks, exits and signals at any moment: shared objects are built once, and nothing hangs or crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from weft.threads import HelperPool, NativeLibraryGuard, Once, PendingTask, make_lock, make_reentrant_lock, once

SOURCE = str(Path(weft.__file__).parents[1])
TESTS = str(Path(__file__).parent)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

PRELUDE = """
import gc, os, sys, threading, time
import numpy as np
import weft, weft.loading
from attack.scenarios import digest, feed, layers, press_ctrl_c
"""


def run_script(script: str, cache: Path) -> str:
    """Run a script in a new process, which must succeed, and return its output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, TESTS]), "WEFT_CACHE": str(cache)}
    process = subprocess.run(
        [sys.executable, "-c", PRELUDE + script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert process.returncode == 0, (process.returncode, process.stdout, process.stderr)
    assert process.stderr == "", process.stderr
    return process.stdout.strip()


# -- built once ------------------------------------------------------------------------------------------------------


def test_once_runs_once_for_all_threads() -> None:
    built = []

    @once
    def slow() -> object:
        time.sleep(0.05)
        built.append(object())
        return built[-1]

    barrier, results = threading.Barrier(8), []

    def ask() -> None:
        barrier.wait()
        results.append(slow())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == built * 8
    slow.cache_clear()
    assert slow() is not results[0]


def test_once_does_not_cache_an_error() -> None:
    errors = iter([ZeroDivisionError(), None])

    def make() -> int:
        error = next(errors)
        if error is not None:
            raise error
        return 5

    make_once = Once(make)
    with pytest.raises(ZeroDivisionError):
        make_once()
    assert make_once() == 5


def test_models_keep_their_native_code_alive(tmp_path: Path) -> None:
    script = """
from weft.backends.host import runner
for threads in (1, 4):
    model = weft.load(layers(1), device="cpu", threads=threads)
    before = [digest(model.run({"x": feed(1, batch)})["y"]) for batch in (3, 3, 300)]
    runner.runner.cache_clear()
    gc.collect()
    assert [digest(model.run({"x": feed(1, batch)})["y"]) for batch in (3, 3, 300)] == before
    shortcut = model.session().whole.shortcut([feed(1)])
    del model
    gc.collect()
    assert digest(shortcut([feed(1)])[0]) == before[0]
print("same")
"""
    assert run_script(script, tmp_path) == "same"


def test_concurrent_first_runs_of_a_process(tmp_path: Path) -> None:
    script = """
from weft.backends.host import runner
load_code, loaded = runner.load_code, []
def slowly(*arguments):
    time.sleep(0.1)  # so that other threads arrive before it is done
    loaded.append(load_code(*arguments))
    return loaded.pop()
runner.load_code = slowly
barrier, results = threading.Barrier(8), []
def work():
    model = weft.load(layers(1), device="cpu", threads=2)
    barrier.wait()
    results.extend(digest(model.run({"x": feed(1)})["y"]) for _ in range(5))
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(results), len(set(results)))
"""
    assert run_script(script, tmp_path) == "40 1"


# -- forks -----------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> int:
    """Run a function in a forked child and return its status; a child that hangs is killed."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1]


@needs_fork
def test_locks_are_free_in_children() -> None:
    locks = [make_lock(), make_reentrant_lock()]
    acquired, end = threading.Event(), threading.Event()

    def hold() -> None:
        with locks[0], locks[1]:
            acquired.set()
            end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    acquired.wait()

    def child() -> None:
        for each in locks:
            with each:
                pass

    assert in_child(child) == 0
    assert not locks[0].acquire(blocking=False)
    end.set()
    holder.join()


@needs_fork
def test_a_fork_waits_for_threads_inside_a_guarded_library() -> None:
    library = NativeLibraryGuard()
    events, inside = [], threading.Event()

    def work() -> None:
        with library, library:
            inside.set()
            time.sleep(0.2)
            events.append("done")

    worker = threading.Thread(target=work)
    worker.start()
    inside.wait()

    def child() -> None:
        assert events == ["done"]
        with library:
            pass

    assert in_child(child) == 0
    worker.join()
    with library:
        assert in_child(lambda: None) == 0  # the forking thread may be inside


@needs_fork
def test_children_forked_during_loads_can_load_and_run(tmp_path: Path) -> None:
    script = """
expected = digest(weft.load(layers(1), device="cpu", cache=False).run({"x": feed(1)})["y"])
shared = weft.load(layers(1), device="cpu")
ends = threading.Event()
def work():
    while not ends.is_set():
        weft.load(layers(2), device="cpu", cache=False)
threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
children = []
for number in range(4):
    time.sleep(0.05)
    children.append(os.fork())
    if children[-1] == 0:
        fresh = weft.load(layers(1), device="cpu", cache=False)
        same = all(digest(model.run({"x": feed(1)})["y"]) == expected for model in (fresh, shared))
        sys.exit(0 if same else 1)
print([os.waitpid(child, 0)[1] for child in children])
ends.set()
"""
    assert run_script(script, tmp_path) == "[0, 0, 0, 0]"


# -- exits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("daemon", [False, True])
def test_a_process_can_exit_while_it_compiles(tmp_path: Path, daemon: bool) -> None:
    script = f"""
def work():
    result = weft.load(layers(1, 6), device="cpu", cache=False).run({{"x": feed(1)}})
    print("done")
threading.Thread(target=work, daemon={daemon}).start()
time.sleep(0.1)
"""
    assert run_script(script, tmp_path) in (
        ("", "done") if daemon else ("done",)
    )  # the daemon may finish before the exit


def test_a_worker_ends_with_its_parent() -> None:
    """A worker ends even in the middle of a case, and while it starts."""
    script = """
import os, subprocess, sys
options = ["--device", "cpu", "--loader", "time:sleep", "--kind", "node"]
command = [sys.executable, "-m", "weft.compat.conformance.worker", *options]
print(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE).pid, flush=True)
os._exit(0)
"""
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    command = [sys.executable, "-c", script]
    parent = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    await_end(int(parent.stdout))


def await_end(process: int) -> None:
    """Wait for the end of a process that is not our child; a zombie has ended."""
    while True:
        try:
            state = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.05)


# -- missing threads, and signals ------------------------------------------------------------------------------------


def refuse_threads(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    left, start = [after], threading.Thread.start

    def refusing(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)


@pytest.mark.parametrize("available", [0, 1, 2, 9])
def test_a_pool_with_fewer_threads_than_requested(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    refuse_threads(monkeypatch, available)
    with HelperPool(3) as pool:
        assert list(pool.map(lambda a, b: a * b, range(50), range(50))) == [n * n for n in range(50)]
        assert pool.start_all() == min(available, 3)
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result()


@pytest.mark.parametrize("available", [0, 1])
def test_models_when_no_threads_can_be_started(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    from attack.scenarios import digest, feed, layers

    expected = digest(weft.load(layers(1), device="cpu", threads=4).run({"x": feed(1, 300)})["y"])
    refuse_threads(monkeypatch, available)
    model = weft.load(layers(1), device="cpu", threads=7, cache=False)
    assert digest(model.run({"x": feed(1, 300)})["y"]) == expected
    assert model.profile({"x": feed(1)}, repeat=1).kernels


def test_an_exception_does_not_wait_for_tasks() -> None:
    started, end = threading.Event(), threading.Event()
    tasks: list[PendingTask[bool]] = []

    def wait() -> bool:
        started.set()
        return end.wait()

    def interrupted() -> None:
        with HelperPool(1) as pool:
            tasks.extend([pool.submit(wait), pool.submit(wait)])
            started.wait()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(task._pending.locked() for task in tasks)
    end.set()
    assert tasks[0].result()
    assert tasks[1]._pending.locked()  # it was dropped before it started


def test_ctrl_c_while_loading(tmp_path: Path) -> None:
    script = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
for delay in (0.05, 0.15, 0.3):
    caught = threading.Event()
    try:
        thread = threading.Thread(target=press_ctrl_c, args=(delay, caught))
        thread.start()
        while True:
            weft.load(layers(1, 4), device="cpu", cache=False)
    except KeyboardInterrupt:
        caught.set()
        thread.join()
weft.load(layers(1), device="cpu", cache=False).run({"x": feed(1)})
print("usable")
"""
    assert run_script(script, tmp_path) == "usable"


def test_a_fork_waits_for_imports_of_other_threads(tmp_path: Path) -> None:
    """Otherwise an import of the same module in the child would wait for a thread that does not exist there."""
    (tmp_path / "slow_to_import.py").write_text("import time\nbegun = True\ntime.sleep(0.5)\nvalue = 1\n")
    program = """
import os, sys, threading, time
import weft.threads
thread = threading.Thread(target=lambda: __import__("slow_to_import"))
thread.start()
while "slow_to_import" not in sys.modules:
    time.sleep(0.01)
child = os.fork()
if child == 0:
    import slow_to_import
    os._exit(7 if slow_to_import.value == 1 else 1)
ended = os.waitpid(child, 0)[1]
thread.join()
import this
sys.exit(os.waitstatus_to_exitcode(ended))
"""
    source = str(Path(weft.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((source, str(tmp_path)))}
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, timeout=240, capture_output=True, check=False
    )
    assert process.returncode == 7, process.stderr.decode()


@needs_fork
def test_a_fork_waits_as_long_as_imports_make_progress(tmp_path: Path) -> None:
    for number in range(10):
        following = f"import slow_{number + 1}\n" if number < 9 else ""
        (tmp_path / f"slow_{number}.py").write_text(f"import time\ntime.sleep(0.4)\n{following}value = {number}\n")
    program = """
import os, sys, threading, time
import weft.threads
weft.threads.IMPORT_SECONDS = 1.5
thread = threading.Thread(target=lambda: __import__("slow_0"))
thread.start()
while "slow_0" not in sys.modules:
    time.sleep(0.01)
child = os.fork()
if child == 0:
    import faulthandler
    faulthandler.dump_traceback_later(20, exit=True)
    import slow_0
    os._exit(7 if slow_0.value == 0 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    source = str(Path(weft.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((source, str(tmp_path)))}
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, timeout=240, capture_output=True, check=False
    )
    assert process.returncode == 7, process.stderr.decode()


@needs_fork
def test_a_library_imported_while_a_fork_waits(tmp_path: Path) -> None:
    """The fork waits for the new library too, and releases exactly what it acquired."""
    (tmp_path / "slow_library.py").write_text(
        "import time\nfrom weft.threads import NativeLibraryGuard\ntime.sleep(0.5)\nlibrary = NativeLibraryGuard()\n"
    )
    program = """
import os, sys, threading, time
import weft.threads
inside = threading.Event()
def use():
    from slow_library import library
    with library:
        inside.set()
        time.sleep(0.3)
        inside.clear()
thread = threading.Thread(target=use)
thread.start()
while "slow_library" not in sys.modules:
    time.sleep(0.01)
child = os.fork()
if child == 0:
    from slow_library import library
    with library:
        os._exit(1 if inside.is_set() else 7)
ended = os.waitpid(child, 0)[1]
thread.join()
with sys.modules["slow_library"].library:
    sys.exit(os.waitstatus_to_exitcode(ended))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((SOURCE, str(tmp_path)))}
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, timeout=120, capture_output=True, check=False
    )
    assert process.returncode == 7, process.stderr.decode()


@needs_fork
def test_child_computes_a_property_that_another_thread_was_computing() -> None:
    """Before Python 3.12, all instances of a class share the lock of a cached property."""
    program = """
import os, threading
from weft.threads import cached_property

started, end = threading.Event(), threading.Event()

class Owner:
    waits = False
    @cached_property
    def value(self):
        if self.waits:
            started.set()
            end.wait()
        return 5

first = Owner()
first.waits = True
thread = threading.Thread(target=lambda: first.value)
thread.start()
started.wait()
child = os.fork()
if not child:
    os._exit(Owner().value)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
end.set()
thread.join()
"""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout == "5\n", result.stderr
