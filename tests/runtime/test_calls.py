"""Consecutive calls: state that is cached from one call must not affect the next."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import onnx
import pytest
from frontend.samples import branching, model, node, tensor, value
from onnx import TensorProto, helper, numpy_helper

import weft
import weft.backends.cpu.section as cpu_section
from weft.backends.cpu import section
from weft.backends.host.runner import runner
from weft.cost.roofline import Peak
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.work import NativeSection
from weft.plan.schedule import side_by_side
from weft.plan.sections import make_plan
from weft.plan.verify import verify_plan


def layers(width: int = 16) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    return model(
        [node("MatMul", ["x", "a"], ["h"]), node("Tanh", ["h"], ["t"]), node("MatMul", ["t", "b"], ["y"])],
        [value("x", ["n", width])],
        [value("y", ["n", width])],
        [tensor(name, rng.standard_normal((width, width)).astype(np.float32)) for name in "ab"],
    )


def picking() -> onnx.ModelProto:
    return model(
        [node("Gather", ["x", "i"], ["g"]), node("Add", ["g", "g"], ["y"])],
        [value("x", ["n"]), value("i", ["m"], TensorProto.INT64)],
        [value("y", ["m"])],
    )


@pytest.fixture(params=["cpu", "reference"])
def loaded(request: pytest.FixtureRequest) -> weft.Model:
    return weft.load(layers(), device=request.param)


X = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)


def test_results_belong_to_the_caller(loaded: weft.Model) -> None:
    first = loaded.run({"x": X})["y"]
    copy = first.copy()
    for _ in range(5):
        again = loaded.run({"x": X})["y"]
        assert not np.shares_memory(first, again)
        again[:] = 0
    np.testing.assert_array_equal(first, copy)


def test_arrays_may_change_between_calls(loaded: weft.Model) -> None:
    x = X.copy()
    for factor in (1.0, -2.0, 0.0):
        x[:] = X * np.float32(factor)
        actual = loaded.run({"x": x})["y"]
        np.testing.assert_array_equal(actual, weft.load(layers(), device=loaded.device).run({"x": x.copy()})["y"])


def test_inputs_are_checked_every_time(loaded: weft.Model) -> None:
    for _ in range(3):
        loaded.run({"x": X})
    for wrong, message in [
        ({"x": X.astype(np.float64)}, "must be float32"),
        ({"x": X[:, :15]}, "size 16"),
        ({"x": X[0]}, "2 dimensions"),
        ({"z": X}, "no input 'z'"),
        ({"x": X, "z": X}, "no input 'z'"),
        ({}, "is missing"),
        ({"x": None}, "must be an array"),
    ]:
        with pytest.raises(weft.InputError, match=message):
            loaded.run(wrong)
    assert loaded.run({"x": X})["y"].shape == (3, 16)


class Subclass(np.ndarray):
    """A subclass of ndarray."""


def test_all_kinds_of_arrays_give_the_same_results(loaded: weft.Model) -> None:
    expected = loaded.run({"x": X})["y"]
    wide = np.zeros((3, 32), np.float32)
    wide[:, ::2] = X
    spread = np.zeros(X.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(X.shape)
    spread[:] = X
    readonly = X.copy()
    readonly.setflags(write=False)
    for same in (wide[:, ::2], np.asfortranarray(X), spread, readonly, X.tolist(), X.view(Subclass)):
        for _ in range(2):
            np.testing.assert_array_equal(loaded.run({"x": same})["y"], expected)


def test_shapes_may_alternate(loaded: weft.Model) -> None:
    expected = {n: weft.load(layers(), device=loaded.device).run({"x": np.tile(X, (n, 1))})["y"] for n in range(1, 12)}
    for n in [*range(1, 12)] * 2 + [3, 4] * 5:
        np.testing.assert_array_equal(loaded.run({"x": np.tile(X, (n, 1))})["y"], expected[n])


def test_runs_with_some_and_all_outputs_may_alternate(loaded: weft.Model) -> None:
    loaded.run({"x": X})
    assert list(loaded.run({"x": X}, ["y"])) == ["y"]
    with pytest.raises(weft.InputError, match="no output"):
        loaded.run({"x": X}, ["z"])


def test_call_after_an_error() -> None:
    loaded = weft.load(picking(), device="cpu")
    x = np.arange(5, dtype=np.float32)
    good, bad = np.array([0, 4, -1]), np.array([0, 5, 1])
    for _ in range(3):
        np.testing.assert_array_equal(loaded.run({"x": x, "i": good})["y"], [0, 8, 8])
        with pytest.raises(weft.ExecutionError, match=r"Gather|range"):
            loaded.run({"x": x, "i": bad})


def test_conflicting_sizes_are_noticed_after_a_valid_call() -> None:
    adding = model([node("Add", ["x", "z"], ["y"])], [value("x", ["n"]), value("z", ["n"])], [value("y", ["n"])])
    loaded = weft.load(adding, device="cpu")
    for _ in range(2):
        loaded.run({"x": np.ones(3, np.float32), "z": np.ones(3, np.float32)})
        assert loaded.run({"x": np.ones(3, np.float32), "z": np.ones(1, np.float32)})["y"].tolist() == [2, 2, 2]
        with pytest.raises(weft.InputError):
            loaded.run({"x": np.ones(3, np.float32), "z": np.ones(2, np.float32)})


def test_branches_may_alternate() -> None:
    loaded, reference = (weft.load(branching(), device=device) for device in ("cpu", "reference"))
    for number in range(12):
        shape = (2, 3) if number % 3 else (1, 3)
        feeds = {"x": np.full(shape, number - 5, np.float32), "c": np.array(number % 2 == 0)}
        np.testing.assert_array_equal(loaded.run(feeds)["y"], reference.run(feeds)["y"])


def stacked(depth: int = 6, channels: int = 24, size: int = 20) -> onnx.ModelProto:
    """Build layers of narrow convolutions of one input, concatenated."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for layer in range(depth):
        parts = []
        for branch, kernel in enumerate((1, 3, 5)):
            name = f"{layer}_{branch}"
            shape = (channels // 3, channels, kernel, kernel)
            weights.append(tensor(f"w{name}", (0.1 * rng.standard_normal(shape)).astype(np.float32)))
            nodes.append(node("Conv", [last, f"w{name}"], [f"c{name}"], pads=[kernel // 2] * 4))
            nodes.append(node("Relu" if branch else "Tanh", [f"c{name}"], [f"r{name}"]))
            parts.append(f"r{name}")
        nodes.append(node("Concat", parts, [f"j{layer}"], axis=1))
        last = f"j{layer}"
    nodes.append(node("GlobalAveragePool", [last], ["y"]))
    inputs = [value("x", [1, channels, size, size])]
    return model(nodes, inputs, [value("y", [1, channels, 1, 1])], weights)


IMAGE = np.random.default_rng(2).standard_normal((1, 24, 20, 20)).astype(np.float32)


def test_the_same_bits_on_any_number_of_threads() -> None:
    expected = weft.load(stacked(), device="cpu", threads=1).run({"x": IMAGE})["y"].tobytes()
    for threads in (2, 3, 4, 7):
        loaded = weft.load(stacked(), device="cpu", threads=threads)
        for _ in range(20):
            assert loaded.run({"x": IMAGE})["y"].tobytes() == expected


@pytest.mark.parametrize("threads", [1, 2])
def test_callers_in_threads_get_the_same_bits(threads: int) -> None:
    loaded = weft.load(stacked(), device="cpu", threads=threads)
    images = [IMAGE * np.float32(1 + number) for number in range(6)]
    expected = [loaded.run({"x": image})["y"].tobytes() for image in images]
    start = Barrier(len(images))

    def call(number: int) -> bool:
        start.wait()
        return all(loaded.run({"x": images[number]})["y"].tobytes() == expected[number] for _ in range(40))

    with ThreadPoolExecutor(len(images)) as pool:
        assert all(pool.map(call, range(len(images))))


def test_callers_run_native_code_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    """All callers reach native code before any of them leaves it; test_tape.py shows that it runs in parallel."""
    native, meeting = runner(), Barrier(3, timeout=240)

    def call(address: int) -> int:
        meeting.wait()
        return native.call(address)

    expected = weft.load(layers(), device="cpu", threads=1).run({"x": X})
    monkeypatch.setattr(section, "runner", lambda: replace(native, call=call))
    loaded = weft.load(layers(), device="cpu", threads=1)
    with ThreadPoolExecutor(3) as pool:
        for actual in pool.map(loaded.run, [{"x": X}] * 3):
            assert actual["y"].tobytes() == expected["y"].tobytes()


@pytest.mark.parametrize("threads", [3, 5])
def test_parallel_schedules_are_valid(threads: int) -> None:
    """They have every task once, after its operands; their plans are valid and deterministic."""
    program = weft.load(stacked(), device="cpu").session().whole.program
    (section,) = (part for part in program.sections if isinstance(part, NativeSection))
    numbers = range(len(section.tasks))
    slow = Peak(1e8, 1e8)  # everything takes long, so that company pays
    steps = side_by_side(section, numbers, DimEvaluator({}), slow, threads)
    assert steps == side_by_side(section, numbers, DimEvaluator({}), slow, threads)
    assert sorted(task for step in steps for task in step) == list(numbers)
    constants = {v: c for v, c in program.constants.items() if isinstance(c, np.ndarray)}
    assert len(steps) < len(numbers)
    verify_plan(section, make_plan(section, constants, {}, steps), constants, {})


def test_speed_preference_uses_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four single-threaded cumulative sums need four times the memory in parallel, which pays on a slow machine."""
    monkeypatch.setattr(cpu_section, "assumed_peak", lambda: Peak(1e9, 1e9))
    sizes = [20_000 - number for number in range(4)]
    nodes = [helper.make_node("CumSum", [f"x{n}", "axis"], [f"s{n}"]) for n in range(4)]
    nodes += [helper.make_node("ReduceMax", [f"s{n}"], [f"r{n}"], keepdims=1) for n in range(4)]
    nodes.append(helper.make_node("Sum", [f"r{n}" for n in range(4)], ["y"]))
    feeds = {f"x{n}": np.linspace(1, -1, size, dtype=np.float32)[None] for n, size in enumerate(sizes)}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])
    axis = numpy_helper.from_array(np.int64(1), "axis")
    graph = helper.make_graph(nodes, "branches", inputs, [output], [axis])
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    lean, quick, limited = (
        weft.load(built, device="cpu", threads=4, prefer=prefer, memory_limit=limit)
        for prefer, limit in (("memory", None), ("speed", None), ("speed", "1GB"))
    )
    each = 4 * sizes[-1]
    assert lean.memory().arena < 2 * each < 4 * each <= quick.memory().arena
    assert limited.memory().arena == lean.memory().arena
    expected = sum(np.cumsum(array.astype(np.float64)).max() for array in feeds.values())
    results = [model.run(feeds)["y"] for model in (lean, quick, limited)]
    np.testing.assert_allclose(results[0], expected, rtol=1e-4)
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    with pytest.raises(weft.DeviceError, match="'memory' or 'speed'"):
        weft.load(built, device="cpu", prefer="luck")
