"""Sizes that are new: what they create on the GPU, and the memory of a run."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import numpy as np
import onnx
import pytest
from changing_sizes import CHANGING_MODELS
from frontend.samples import model, node, tensor, value
from onnx import helper

import weft
import weft.ir.work
from weft.backends.resident.device import BufferSlice
from weft.backends.resident.section import RunMemory
from weft.backends.webgpu import launches, wgpu_native
from weft.backends.webgpu.gpu import Gpu, open_gpu
from weft.backends.webgpu.launch_table import LaunchTable
from weft.backends.webgpu.launches import WebGpuLaunchCompiler
from weft.plan.numbers import NumberTable
from weft.plan.plan import BlockStack, SymbolicPlan
from weft.plan.plan_numbers import PlanNumbers

GPU = "webgpu:llvmpipe"
Array = np.ndarray[Any, Any]
SEED = 26


@contextmanager
def count_calls() -> Iterator[Counter[str]]:
    """Count what a run creates: bind groups, batches of them, buffers, pipelines and whole plans."""
    counts: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:

        def count(owner: Any, name: str, label: str) -> None:
            function = getattr(owner, name)

            def call(*arguments: Any, **named: Any) -> Any:
                counts[label] += 1
                return function(*arguments, **named)

            patch.setattr(owner, name, call)

        make = wgpu_native.bind_groups

        def make_groups(device: Any, layouts: Any, entries: Any) -> Any:
            counts["groups"] += len(layouts)
            return make(device, layouts, entries)

        patch.setattr(wgpu_native, "bind_groups", make_groups)
        count(wgpu_native, "bind_group", "groups")
        count(Gpu, "buffer", "buffers")
        count(launches, "write_module", "modules")
        count(SymbolicPlan, "at", "plans")
        yield counts


def random(*shape: int) -> Array:
    return np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)


def layers() -> onnx.ModelProto:
    """Two products with a residual, for any number of rows."""
    return model(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("Relu", ["a"], ["b"]),
            node("MatMul", ["b", "w"], ["c"]),
            node("Add", ["c", "x"], ["d"]),
            node("Softmax", ["d"], ["y"]),
        ],
        [value("x", ["n", 64])],
        [value("y", ["n", 64])],
        [tensor("w", random(64, 64) / 8)],
    )


def scan() -> onnx.ModelProto:
    """A recurrence over any number of rows."""
    body = helper.make_graph(
        [node("Add", ["s", "r"], ["t"]), node("Tanh", ["t"], ["u"]), node("MatMul", ["u", "m"], ["z"])],
        "body",
        [value("s", [1, 8]), value("r", [1, 8])],
        [value("z", [1, 8]), value("u", [1, 8])],
    )
    return model(
        [node("Scan", ["s0", "rows"], ["last", "y"], body=body, num_scan_inputs=1)],
        [value("s0", [1, 8]), value("rows", ["n", 1, 8])],
        [value("last", [1, 8]), value("y", ["n", 1, 8])],
        [tensor("m", np.eye(8, dtype=np.float32) / 2)],
    )


# -- what is created ---------------------------------------------------------------------------------------------------


def test_new_size_creates_bind_groups_only() -> None:
    """A buffer of parameters and pipelines are there, and no plan is made but by verification."""
    loaded = weft.load(layers(), device=GPU)
    for n in (100, 64):
        loaded.run({"x": random(n, 64)})
    with count_calls() as counts:
        loaded.run({"x": random(72, 64)})
    assert 0 < counts["groups"] <= 5
    assert counts["buffers"] == counts["modules"] == 0
    assert counts["plans"] <= 1


def test_sizes_of_before_create_nothing() -> None:
    loaded = weft.load(layers(), device=GPU)
    for n in (100, 64, 72):
        loaded.run({"x": random(n, 64)})
    with count_calls() as counts:
        for n in (64, 100, 72, 64):
            x = random(n, 64)
            np.testing.assert_array_equal(loaded.run({"x": x})["y"], weft.load(layers(), device=GPU).run({"x": x})["y"])
            counts.clear()  # those of the fresh model
            loaded.run({"x": x})
            assert not counts


def test_iterations_share_bind_groups() -> None:
    """A loop of any length needs as many bind groups as it has launches."""
    loaded = weft.load(scan(), device=GPU)
    created = []
    for n in (40, 7, 1, 23):
        rows = random(n, 1, 8)
        with count_calls() as counts:
            outputs = loaded.run({"s0": np.zeros((1, 8), np.float32), "rows": rows})
        created.append(counts["groups"])
        state, expected = np.zeros((1, 8)), []
        for row in rows:
            expected.append(np.tanh(state + row))
            state = expected[-1] / 2
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(outputs["last"], state, rtol=1e-4, atol=1e-5)
    assert max(created) < 20


def test_plans_that_a_section_drops_are_freed() -> None:
    plan = SymbolicPlan((), (BlockStack((), 0, ()),), (), (), (), (), (), (), (), (), (), 256)
    slots = PlanNumbers(plan, (), NumberTable.compute)
    compiler = WebGpuLaunchCompiler(open_gpu("llvmpipe"), {})
    numbers = slots.evaluate({})
    assert numbers is not None
    recording = compiler.record(slots, numbers, lambda *_: BufferSlice(None, 0, 0))
    assert recording.count == 0
    dropped = ref(slots)
    del slots, numbers
    gc.collect()
    assert dropped() is None


@pytest.mark.parametrize("name", CHANGING_MODELS)
def test_table_agrees_with_planned_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of parameters hold the blocks and parameters of the plan, launch by launch."""
    print(f"seed {SEED}")
    tables = []
    list_rows = LaunchTable.list_rows

    def keep_rows(self: LaunchTable, numbers: Any, bound: Any) -> Any:
        order, rows = list_rows(self, numbers, bound)
        tables.append((self, numbers, bound, order, rows))
        return order, rows

    monkeypatch.setattr(LaunchTable, "list_rows", keep_rows)
    loaded = weft.load(CHANGING_MODELS[name].build(), device=GPU)
    draws = np.random.default_rng(SEED)
    for _ in range(4):
        loaded.run(CHANGING_MODELS[name].draw(draws))
    assert tables
    for table, numbers, bound, order, rows in tables:
        planned = list(weft.ir.work.unrolled(numbers._slots.plan.at(numbers.sizes).launches))
        assert [table.launches[number].kernel.name for number in order] == [launch.kernel.name for launch in planned]
        for number, launch, row in zip(order, planned, rows):
            expected = (launch.blocks, *launch.parameters) if launch.blocks else ()
            buffers = len(launch.buffers)
            width = 1 + buffers + len(launch.parameters)
            assert (row[0], *row[1 + buffers : width]) == expected or not launch.blocks
            assert not row[width:].any()
            assert bound.active[number] == (launch.blocks > 0)


def test_parts_of_constants_that_depend_on_sizes() -> None:
    """Rows of a constant behind as many as the input has: none for the longest input."""
    built = model(
        [
            node("Shape", ["x"], ["n"]),
            node("Slice", ["w", "n", "end"], ["rest"], name="rest"),
            node("Concat", ["x", "rest"], ["c"], axis=0),
            node("ReduceSum", ["rest"], ["s"], keepdims=0),
            node("Add", ["c", "s"], ["y"]),
        ],
        [value("x", ["n"])],
        [value("y", ["m"])],
        [tensor("w", random(12)), tensor("end", np.array([12]))],
    )
    loaded = weft.load(built, device=GPU)
    for n in (5, 12, 3, 11, 12, 1):
        x = random(n) + 1
        expected = np.concatenate([x, random(12)[n:]]) + random(12)[n:].astype(np.float64).sum()
        np.testing.assert_allclose(loaded.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_growing_sizes_need_few_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer has the predicted size, and grows in steps."""
    loaded = weft.load(layers(), device=GPU)
    buffers: list[Any] = []
    reserve = RunMemory.reserve

    def keep_buffer(self: RunMemory, size: int) -> Any:
        buffers.append(reserve(self, size))
        return buffers[-1]

    monkeypatch.setattr(RunMemory, "reserve", keep_buffer)
    for n in range(100, 200):
        x = random(n, 64)
        loaded.run({"x": x})
        memory = loaded.memory({"n": n})
        parameters = memory.arena + memory.workspace + memory.outputs - buffers[-1].size
        assert parameters % 256 == 0
        assert 0 < parameters <= 5 * 256
    assert len({id(buffer) for buffer in buffers}) <= 9


def test_limited_models_take_exact_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    reserve = RunMemory.reserve
    monkeypatch.setattr(RunMemory, "reserve", lambda self, size: (sizes.append(size), reserve(self, size))[1])
    free = weft.load(layers(), device=GPU)
    limited = weft.load(layers(), device=GPU, memory_limit=free.memory({"n": 1000}).peak)
    x = random(1000, 64)
    np.testing.assert_array_equal(limited.run({"x": x})["y"], free.run({"x": x})["y"])
    exact, rounded = sizes
    assert exact < rounded <= exact * 9 / 8
    assert free.memory({"n": 1000}).peak - limited.memory({"n": 1000}).peak == rounded - exact
