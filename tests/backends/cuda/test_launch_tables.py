"""Launches that native code submits: the driver gets what the plan says, for any sizes, with and without a graph."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from backends.cuda.recording_driver import Node, RecordingDriver
from backends.cuda.test_graphs import branching, number_plan, open_compiler, plan_launch, scanning
from frontend.samples import model, node, tensor, value

import weft
from weft.backends.cuda import launch_form, launches
from weft.backends.cuda.launches import CudaLaunchCompiler, CudaRecording
from weft.backends.host.runner import runner
from weft.backends.resident.device import BufferSlice, Find
from weft.errors import DeviceError, ExecutionError
from weft.ir.work import Place, PlannedLaunch, unrolled
from weft.plan.plan import ABSOLUTE, SymbolicLoop, SymbolicPlace
from weft.plan.plan_numbers import PlanNumbers, SizedNumbers

Row = tuple[int, int, int, int, tuple[int, ...]]
"""Function, blocks, lanes, bytes of shared memory, words."""

LAUNCH_KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


# -- native code -----------------------------------------------------------------------------------------------------


def submit_rows(rows: list[tuple[int, ...]], errors: dict[int, int]) -> tuple[int, list[tuple[Any, ...]]]:
    """Submit rows to a function that fails for some functions, and return the result and the arguments of its calls."""
    calls: list[tuple[Any, ...]] = []

    def launch_kernel(*arguments: Any) -> int:
        calls.append(arguments)
        return errors.get(arguments[0], 0)

    callback = LAUNCH_KERNEL(launch_kernel)
    table = np.array(rows, np.int64).reshape(-1, 5)
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0
    return runner().submit(address, 0xABCDEF012345, table.ctypes.data, len(table)), calls


def test_submit_passes_all_arguments() -> None:
    rows = [(1 << 47 | 5, 2**31 - 1, 1024, 232448, 1 << 46 | 8), (7, 1, 32, 0, 16)]
    result, calls = submit_rows(rows, {})
    assert result == 0
    assert calls == [
        (function, blocks, 1, 1, lanes, 1, 1, shared, 0xABCDEF012345, parameters, None)
        for function, blocks, lanes, shared, parameters in rows
    ]


def test_submit_leaves_out_launches_without_blocks() -> None:
    _, calls = submit_rows([(1, 0, 32, 0, 8), (2, 3, 32, 0, 8), (3, 0, 32, 0, 8)], {1: 9, 3: 9})
    assert [call[0] for call in calls] == [2]
    assert submit_rows([], {}) == (0, [])


def test_submit_stops_at_the_first_error() -> None:
    result, calls = submit_rows([(number, 1, 32, 0, 8) for number in range(1, 6)], {3: 701, 4: 1})
    assert (result >> 32, result & 0xFFFFFFFF) == (2, 701)
    assert [call[0] for call in calls] == [1, 2, 3]


# -- what the driver gets --------------------------------------------------------------------------------------------


def expect_rows(compiler: CudaLaunchCompiler, plan: Iterator[PlannedLaunch], find: Find) -> list[Row]:
    """Compute the launches of a plan one by one."""
    rows = []
    for launch in plan:
        if not launch.blocks:
            continue
        slices = [find(place, size) for place, size in zip(launch.buffers, launch.sizes, strict=True)]
        buffers = [buffer for buffer in launch.kernel.buffers if buffer.local_size is None]
        counts = [memory.size // buffer.dtype.numpy.itemsize for buffer, memory in zip(buffers, slices)]
        largest = max(*counts, *map(abs, launch.parameters), launch.blocks)
        runs = compiler.codes[launch.kernel.name].runs
        unaligned = [
            buffer.name
            for buffer, memory in zip(buffers, slices)
            if buffer.name in runs
            and (memory.buffer.address + memory.offset) % min(runs[buffer.name] * buffer.dtype.numpy.itemsize, 16)
        ]
        bits = 64 if largest > launch_form._MOST_SHORT else 32
        lanes = replace(compiler._default_lanes, index_bits=bits, unaligned=frozenset(unaligned))
        function = compiler._functions[launch.kernel.name, lanes]
        words = [memory.buffer.address + memory.offset for memory in slices]
        words += [number % 2**64 for number in launch.parameters]
        rows.append((function.handle, launch.blocks, launch.kernel.lanes, function.shared_bytes, tuple(words)))
    return rows


def to_rows(nodes: list[Node]) -> list[Row]:
    return [(node.function, node.blocks, node.lanes, node.shared_bytes, node.words) for node in nodes]


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> list[list[Row]]:
    """The launches of every recording, in order."""
    recordings: list[list[Row]] = []
    real = CudaLaunchCompiler.record

    def record(
        self: CudaLaunchCompiler, slots: PlanNumbers, numbers: SizedNumbers, find: Find, *arguments: Any
    ) -> CudaRecording:
        recording = real(self, slots, numbers, find, *arguments)
        recordings.append(expect_rows(self, unrolled(slots.plan.at(numbers.sizes).launches), find))
        return recording

    monkeypatch.setattr(CudaLaunchCompiler, "record", record)
    return recordings


def joining() -> onnx.ModelProto:
    """A concatenation whose second part starts at any multiple of 4 bytes, and a gather that reports errors."""
    return model(
        [
            node("Sin", ["a"], ["c"]),
            node("MatMul", ["b", "w"], ["d"]),
            node("Reshape", ["d", "flat"], ["e"]),
            node("Concat", ["c", "e"], ["f"], axis=0),
            node("Gather", ["f", "index"], ["y"], axis=0),
        ],
        [value("a", ["m"]), value("b", ["n", 64]), value("index", ["k"], onnx.TensorProto.INT64)],
        [value("y", None)],
        [tensor("w", np.ones((64, 32), np.float32)), tensor("flat", np.int64([-1]))],
    )


def recurrent() -> onnx.ModelProto:
    return model(
        [node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=8)],
        [value("x", ["steps", "batch", 4])],
        [value("y", None), value("h", None), value("c", None)],
        [tensor("w", np.ones((1, 32, 4), np.float32)), tensor("r", np.ones((1, 32, 8), np.float32))],
    )


def draw_inputs(name: str, random: np.random.Generator) -> dict[str, Any]:
    first, second, third = (int(number) for number in random.integers(1, 70, 3))
    match name:
        case "branching":
            return {"x": np.ones((first, 64), np.float32)}
        case "scanning":
            return {"s": np.ones((1, 8), np.float32), "x": np.ones((first, 1, 8), np.float32)}
        case "recurrent":
            return {"x": np.ones((first, second, 4), np.float32)}
        case _:
            return {
                "a": np.ones(first, np.float32),
                "b": np.ones((second, 64), np.float32),
                "index": np.zeros(third, np.int64),
            }


MODELS = {"branching": branching, "scanning": scanning, "joining": joining, "recurrent": recurrent}


@pytest.mark.parametrize("most_short", [launch_form._MOST_SHORT, 1000])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_the_driver_gets_the_launches_of_the_plan(
    any_driver: RecordingDriver,
    monkeypatch: pytest.MonkeyPatch,
    expected: list[list[Row]],
    name: str,
    most_short: int,
    seed: int,
) -> None:
    """New sizes are submitted one launch after the other; a third run of the same sizes has a graph."""
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    monkeypatch.setattr(launch_form, "_MOST_SHORT", most_short)
    loaded = weft.load(MODELS[name](), device="cuda")
    for _ in range(4):
        inputs = draw_inputs(name, random)
        expected.clear()
        graphs = dict(any_driver.graphs)
        for run in range(4):
            any_driver.submitted.clear()
            loaded.run(inputs)
            if run < 2:
                assert to_rows(any_driver.submitted) == [row for rows in expected for row in rows]
            else:
                assert not any_driver.submitted
        recorded = [nodes for number, nodes in any_driver.graphs.items() if number not in graphs]
        assert [to_rows(nodes) for nodes in recorded] == expected
        assert expected


@pytest.mark.parametrize("runs", [1, 2, 3, 4])
def test_tensors_on_the_device_are_bound_in_place(driver: RecordingDriver, runs: int) -> None:
    """Inputs and outputs have other addresses in every run, with and without a graph."""
    loaded = weft.load(branching(), device="cuda")
    for _ in range(runs):
        driver.submitted.clear()
        x = loaded.to_device(np.ones((30, 64), np.float32))
        y = loaded.run({"x": x}, keep=["y"])["y"]
        nodes = driver.submitted or [node for nodes in driver.graphs.values() for node in nodes]
        words = [word for kernel_node in nodes for word in kernel_node.words]
        for place in (x.place_on(x.home), y.place_on(y.home)):
            assert place.buffer.address + place.offset in words
    assert len(driver.launched) == max(runs - 2, 0)


def test_sizes_that_return(driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are dropped where there are too many, the least recently used first, and made again on demand."""
    loaded = weft.load(branching(), device="cuda")
    for size in (300, 300, 300, 200, 100, 200, 300):
        for _ in range(4):
            loaded.run({"x": np.ones((size, 64), np.float32)})
        if len(driver.graphs) == 1:
            (nodes,) = driver.graphs.values()
            monkeypatch.setattr(launches, "_MOST_NODES_TOGETHER", 2 * len(nodes))
        assert len(driver.graphs) <= 2
    assert driver.calls["cuGraphCreate"] == 4  # of 300 twice


def test_sizes_that_alternate(driver: RecordingDriver) -> None:
    """Without a third run in a row, sizes get a graph when they have been run often."""
    loaded = weft.load(branching(), device="cuda")
    for run in range(1, 12):
        for size in (300, 200):
            loaded.run({"x": np.ones((size, 64), np.float32)})
        assert len(driver.graphs) == (2 if run > 8 else 0)
    loaded.run({"x": np.ones((100, 64), np.float32)})
    loaded.run({"x": np.ones((100, 64), np.float32)})
    loaded.run({"x": np.ones((300, 64), np.float32)})  # has a graph
    loaded.run({"x": np.ones((100, 64), np.float32)})
    assert len(driver.graphs) == 2


def test_constants_of_launches_that_are_left_out(driver: RecordingDriver) -> None:
    """Nothing looks for the constants of loops without iterations, or of launches without blocks."""
    gpu, compiler, memory = open_compiler()
    places = SymbolicPlace(ABSOLUTE, 12345), SymbolicPlace(1)
    without = replace(plan_launch(1, None), buffers=places)
    slots = number_plan([SymbolicLoop((without,), ((0, 0),), 0), replace(without, blocks=0), plan_launch(1, None)])
    numbers = slots.evaluate({})
    assert numbers is not None

    def find(place: Place, size: int) -> BufferSlice:
        assert place.region != ABSOLUTE
        return BufferSlice(memory.buffer, place.offset, size)

    recording = compiler.record(slots, numbers, find)
    with gpu.activate() as called:
        for _ in range(3):
            recording.launch(called, gpu.stream)
    (nodes,) = driver.graphs.values()
    assert len(nodes) == 1
    assert [to_rows([submitted]) for submitted in driver.submitted] == [to_rows(nodes)] * 2


# -- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_names_the_node(driver: RecordingDriver) -> None:
    """Also that of a launch far into a loop."""
    gpu, compiler, memory = open_compiler()
    first, second = (replace(plan_launch(1, None), origin=name) for name in ("one", "two"))
    slots = number_plan([first, SymbolicLoop((first, second), ((0, 0), (0, 0)), 500)])
    numbers = slots.evaluate({})
    assert numbers is not None
    recording = compiler.record(slots, numbers, lambda place, size: BufferSlice(memory.buffer, place.offset, size))
    real = driver.cuLaunchKernel

    def launch_kernel(*arguments: Any) -> int:
        if len(driver.submitted) == 700:
            return 701
        real(*arguments)
        return 0

    driver.cuLaunchKernel = launch_kernel  # type: ignore[method-assign,assignment]
    with (
        pytest.raises(DeviceError, match=r"running, on NVIDIA H200: cuLaunchKernel of two: .*error 701"),
        gpu.guard("running") as called,
    ):
        recording.launch(called, gpu.stream)
    assert len(driver.submitted) == 700


def test_too_many_blocks(driver: RecordingDriver) -> None:
    assert driver is not None
    _, compiler, memory = open_compiler()
    slots = number_plan([replace(plan_launch(2**31, None), origin="large")])
    numbers = slots.evaluate({})
    assert numbers is not None
    with pytest.raises(ExecutionError, match=r"2,147,483,648 blocks: CUDA allows 2,147,483,647") as caught:
        compiler.record(slots, numbers, lambda place, size: BufferSlice(memory.buffer, place.offset, size))
    assert "large" in str(caught.value)
