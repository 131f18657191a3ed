"""Threads, forks, exits and signals at bad moments: each scenario runs in its own process.

`python -m attack.scenarios '{"scenario": …, "seed": …, "threads": …, "device": …, "expected": …}'` exits with 0 and
"held" as its last line, or prints what failed. `expected` has digests of results that one thread computed.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import weft
import weft.loading
from weft.errors import DeviceError

CALLERS = 8
SIZE = 24
ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "Softplus", "Erf", "Exp")
CHILD_TIMEOUT = 60.0  # seconds; less than the limit of a scenario, so that a child's stack is reported
Payload = dict[str, Any]


def layers(seed: int, count: int = 2, size: int = SIZE, batch: int | str = "n") -> bytes:
    """Build products with activations in between, and a softmax."""
    rng = np.random.default_rng(seed)
    nodes, weights, current = [], [], "x"
    for number in range(count):
        array = (rng.standard_normal((size, size)) / size**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{number}"))
        activation = ACTIVATIONS[(seed + number) % len(ACTIVATIONS)]
        nodes.append(helper.make_node("MatMul", [current, f"w{number}"], [f"p{number}"]))
        nodes.append(helper.make_node(activation, [f"p{number}"], [f"a{number}"]))
        current = f"a{number}"
    nodes.append(helper.make_node("Softmax", [current], ["y"], axis=-1))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, size])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = onnx.ModelProto.SerializeToString(model)
    return content


def feed(seed: int, batch: int = 3, size: int = SIZE) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, batch]).standard_normal((batch, size)).astype(np.float32)


def digest(array: np.ndarray[Any, Any]) -> str:
    return sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()


BATCHES = (1, 2, 3, 5, 8, 13, 30)
MODELS = 3  # different models in a scenario


class Case:
    """The parameters of a scenario, and the expected digests of its models."""

    def __init__(self, payload: Payload) -> None:
        self.seed = int(payload["seed"])
        self.threads = int(payload["threads"])
        self.device = str(payload["device"])
        self.expected: dict[str, str] = payload["expected"]
        self.random = np.random.default_rng(self.seed)

    def load(self, number: int, cache: bool = True) -> weft.Model:
        return weft.load(layers(self.seed + number % MODELS), device=self.device, threads=self.threads, cache=cache)

    def check(self, model: weft.Model, number: int, batch: int = 3) -> None:
        number %= MODELS
        result = model.run({"x": feed(self.seed + number, batch)})["y"]
        if digest(result) != self.expected[f"{number} {batch}"]:
            raise AssertionError(f"model {number} with a batch of {batch} has other bits than a sequential run")


def run_threads(work: Callable[[int], None], count: int = CALLERS, daemon: bool = False) -> None:
    """Call from `count` threads; raise the first exception of any of them."""
    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=daemon) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


# -- threads ---------------------------------------------------------------------------------------------------------


def first_runs(case: Case) -> None:
    """Start the first runs of the process at the same time."""
    sys.setswitchinterval(1e-6)
    barrier = threading.Barrier(CALLERS)

    def work(number: int) -> None:
        model = case.load(number)
        barrier.wait()
        for _ in range(3):
            case.check(model, number)

    run_threads(work)


def first_loads(case: Case) -> None:
    """Load equal and different models in all threads, from an empty cache and from a full one."""
    sys.setswitchinterval(1e-6)
    for _ in range(2):
        run_threads(lambda number: case.check(case.load(number), number))


def unloads(case: Case) -> None:
    """Release models while others run."""

    def work(number: int) -> None:
        for turn in range(4):
            model = case.load(number + turn, cache=turn % 2 == 0)
            case.check(model, number + turn)
            del model
            gc.collect()

    run_threads(work)


def shapes(case: Case) -> None:
    """Run one model in all threads, with different shapes."""
    model = case.load(0)
    first = case.random.integers(len(BATCHES), size=CALLERS)

    def work(number: int) -> None:
        for turn in range(12):
            case.check(model, 0, BATCHES[(int(first[number]) + turn) % len(BATCHES)])

    run_threads(work)


def no_threads(case: Case) -> None:
    """Load when the system allows only a few new threads, or none."""
    remaining = [int(case.random.integers(3))]
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if remaining[0] <= 0:
            raise RuntimeError("can't start new thread")
        remaining[0] -= 1
        start(thread)

    threading.Thread.start = start_or_refuse  # type: ignore[method-assign]
    try:
        model = case.load(0, cache=False)
    except DeviceError:
        if case.device == "cpu":
            raise
        return  # wgpu needs a thread
    case.check(model, 0)


# -- forks -----------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], None], leave: bool) -> int:
    """Fork and work in the child, which then exits at once (`leave`) or normally."""
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(CHILD_TIMEOUT / 2)
        try:
            work()
        except BaseException as error:
            print(f"child: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        if leave:
            os._exit(0)
        sys.exit(0)
    return child


def await_children(children: list[int]) -> None:
    end = time.monotonic() + CHILD_TIMEOUT
    for child in children:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                assert status == 0, f"a child exited with {status}"
                break
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise AssertionError("a child timed out")
            time.sleep(0.01)


def fork_while(case: Case, work: Callable[[], None], child: Callable[[], None]) -> None:
    """Fork at random moments while other threads work."""
    stop = threading.Event()

    def repeat(_: int) -> None:
        while not stop.is_set():
            work()

    busy = threading.Thread(target=run_threads, args=(repeat, 2))
    busy.start()
    children = []
    try:
        for number in range(4):
            time.sleep(case.random.random() * 0.2)
            children.append(in_child(child, leave=number % 2 == 0))
        await_children(children)
    finally:
        stop.set()
        busy.join()


def forks_while_loading(case: Case) -> None:
    fork_while(
        case,
        lambda: case.check(case.load(0, cache=False), 0),
        lambda: case.check(case.load(1, cache=False), 1),
    )


def forks_while_running(case: Case) -> None:
    model = case.load(0)
    case.check(model, 0)
    fork_while(
        case,
        lambda: case.check(model, 0, BATCHES[threading.get_ident() % len(BATCHES)]),
        lambda: [case.check(model, 0, batch) for batch in BATCHES] and None,
    )


def forks_after_gpu(case: Case) -> None:
    """In the child of a process that uses a GPU, every use is an error; the parent keeps working."""
    model = case.load(0)
    case.check(model, 0)

    def child() -> None:
        attempts = (
            lambda: case.check(model, 0),
            lambda: model.run({"x": feed(0)}, keep=True),
            lambda: case.load(1, cache=False),
            lambda: model.to_device(feed(0)),
        )
        for attempt in attempts:
            try:
                attempt()
            except DeviceError as error:
                if "fork" in str(error):
                    continue
                raise
            raise AssertionError("a forked child could use the GPU")
        host = weft.load(layers(case.seed), device="cpu")
        host.run({"x": feed(case.seed)})
        gc.collect()

    await_children([in_child(child, leave=number % 2 == 0) for number in range(2)])
    case.check(model, 0)


# -- exits -----------------------------------------------------------------------------------------------------------


def ends_while_loading(case: Case) -> None:
    """Exit while threads compile."""
    daemon = bool(case.random.integers(2))
    for number in range(2):
        work = lambda number=number: case.check(case.load(number, cache=False), number)  # noqa: E731
        threading.Thread(target=work, daemon=daemon).start()
    time.sleep(case.random.random() * 0.5)


def ends_while_running(case: Case) -> None:
    model = case.load(0)
    case.check(model, 0)
    daemon = bool(case.random.integers(2))

    def work() -> None:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            case.check(model, 0, BATCHES[threading.get_ident() % len(BATCHES)])

    for _ in range(4):
        threading.Thread(target=work, daemon=daemon).start()
    time.sleep(case.random.random() * 0.5)


# -- signals ---------------------------------------------------------------------------------------------------------


def press_ctrl_c(delay: float, caught: threading.Event) -> None:
    """Send SIGINT after a delay, and again until it is caught: Python drops exceptions in finalizers and callbacks."""
    while not caught.wait(delay):
        os.kill(os.getpid(), signal.SIGINT)
        delay = 5.0


def interrupts(case: Case) -> None:
    """Press Ctrl-C at random moments of loads and runs; later runs must be right."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    size = 256 if case.device != "cpu" else 768
    long = weft.load(layers(case.seed, 4, size, size), device=case.device, threads=case.threads)
    array = feed(case.seed, size, size)
    expected_digest = digest(long.run({"x": array})["y"])
    for turn in range(6):
        caught = threading.Event()
        sender = threading.Thread(target=press_ctrl_c, args=(float(case.random.random()) * 0.4, caught))
        try:
            sender.start()
            while True:
                if turn % 2:
                    case.check(case.load(turn, cache=False), turn)
                else:
                    assert digest(long.run({"x": array})["y"]) == expected_digest
        except KeyboardInterrupt:
            caught.set()
        sender.join()
    case.check(case.load(0, cache=False), 0)
    assert digest(long.run({"x": array})["y"]) == expected_digest, "other bits after Ctrl-C"


SCENARIOS: dict[str, Callable[[Case], None]] = {
    scenario.__name__: scenario
    for scenario in (
        first_runs,
        first_loads,
        unloads,
        shapes,
        no_threads,
        forks_while_loading,
        forks_while_running,
        forks_after_gpu,
        ends_while_loading,
        ends_while_running,
        interrupts,
    )
}


def main() -> None:
    payload = json.loads(sys.argv[1])
    SCENARIOS[payload["scenario"]](Case(payload))
    print("held", flush=True)


if __name__ == "__main__":
    main()
