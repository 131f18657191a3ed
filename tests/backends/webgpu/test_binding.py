"""Tensors are bound in place: without copies, unnecessary bind groups or leaks."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, subgraph, tensor, value

import weft
from weft.backends.resident.section import ResidentSection
from weft.backends.resident.tensor import ResidentTensor
from weft.backends.webgpu import wgpu_native
from weft.backends.webgpu.allocations import GpuMemory, SpareMemory
from weft.backends.webgpu.gpu import Gpu, open_gpu

GPU = "webgpu:llvmpipe"
Array = np.ndarray[Any, Any]
SEED = 23


@pytest.fixture
def gpu() -> Gpu:
    return open_gpu("llvmpipe")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count created bind groups, created buffers and copies."""
    counts: Counter[str] = Counter()
    copy, create = wgpu_native.Encoder.copy_buffer_to_buffer, Gpu.buffer

    def count_calls(name: str, function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **named)

        return call

    for name in ("bind_group", "bind_groups"):
        monkeypatch.setattr(wgpu_native, name, count_calls("groups", getattr(wgpu_native, name)))
    monkeypatch.setattr(wgpu_native.Encoder, "copy_buffer_to_buffer", count_calls("copies", copy))
    monkeypatch.setattr(Gpu, "buffer", count_calls("buffers", create))
    return counts


def random(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


WEIGHTS = random(np.random.default_rng(SEED), 8, 8) / 4


def step_model() -> onnx.ModelProto:
    """state' = tanh(state @ w + x), y = state' * 2 + x."""
    return model(
        [
            node("MatMul", ["state", "w"], ["p"]),
            node("Add", ["p", "x"], ["s"]),
            node("Tanh", ["s"], ["new"]),
            node("Mul", ["new", "two"], ["t"]),
            node("Add", ["t", "x"], ["y"]),
        ],
        [value("x", ["n", 8]), value("state", ["n", 8])],
        [value("new", ["n", 8]), value("y", ["n", 8])],
        [tensor("w", WEIGHTS), tensor("two", np.float32(2))],
    )


def step(x: Array, state: Array) -> tuple[Array, Array]:
    new = np.tanh(state.astype(np.float64) @ WEIGHTS + x)
    return new, new * 2 + x


def assert_close(outputs: Any, expected: Array) -> None:
    np.testing.assert_allclose(np.asarray(outputs), expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def loaded() -> weft.Model:
    return weft.load(step_model(), device=GPU)


# -- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 37])
def test_device_outputs_agree_with_read_ones(loaded: weft.Model, rows: int) -> None:
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    for _ in range(5):
        x, state = random(rng, rows, 8), random(rng, rows, 8)
        new, y = step(x, state)
        device_inputs = {"x": loaded.to_device(x), "state": loaded.to_device(state)}
        for inputs in ({"x": x, "state": state}, device_inputs, {"x": device_inputs["x"], "state": state}):
            for keep in ((), True, ["new"], ["y"]):
                outputs = loaded.run(inputs, keep=keep)
                assert_close(outputs["new"], new)
                assert_close(outputs["y"], y)


def test_the_same_tensor_for_two_inputs(loaded: weft.Model) -> None:
    x = random(np.random.default_rng(SEED), 5, 8)
    inputs = loaded.to_device(x)
    outputs = loaded.run({"x": inputs, "state": inputs}, keep=True)
    new, y = step(x, x)
    assert_close(outputs["new"], new)
    assert_close(outputs["y"], y)
    again = loaded.run({"x": inputs, "state": loaded.to_device(2 * x)}, keep=True)
    assert_close(again["new"], step(x, 2 * x)[0])
    assert_close(outputs["new"], new)
    np.testing.assert_array_equal(inputs.numpy(), x)


def test_carried_state_is_not_copied(loaded: weft.Model, gpu: Gpu, calls: Counter[str]) -> None:
    """After the first few runs nothing is created, copied or rebound, and memory stays constant."""
    rng = np.random.default_rng(SEED)
    x, state = random(rng, 4, 8), random(rng, 4, 8)
    inputs, output = loaded.to_device(x), loaded.to_device(state)
    allocated = []
    for turn in range(200):
        if turn == 20:
            calls.clear()
        output = loaded.run({"x": inputs, "state": output}, keep=True, outputs=["new"])["new"]
        state = step(x, state)[0]
        allocated.append(gpu.allocated)
    assert calls == {}
    assert len(set(allocated[2:])) == 1
    assert_close(output, state)


def test_alternating_inputs_are_bound_once(loaded: weft.Model, calls: Counter[str]) -> None:
    rng = np.random.default_rng(SEED)
    arrays = [random(rng, 4, 8) for _ in range(2)]
    device_inputs = [loaded.to_device(array) for array in arrays]
    state = random(rng, 4, 8)
    for turn in range(12):
        if turn == 4:
            calls.clear()
        outputs = loaded.run({"x": device_inputs[turn % 2], "state": state})
        assert_close(outputs["y"], step(arrays[turn % 2], state)[1])
    assert calls["groups"] == calls["buffers"] == 0


def test_alternating_sizes(loaded: weft.Model) -> None:
    rng = np.random.default_rng(SEED)
    for turn in range(12):
        x, state = random(rng, 1 + turn % 3, 8), random(rng, 1 + turn % 3, 8)
        outputs = loaded.run({"x": loaded.to_device(x), "state": loaded.to_device(state)}, keep=["y"])
        assert_close(outputs["y"], step(x, state)[1])


def test_outputs_do_not_share_memory(loaded: weft.Model) -> None:
    rng = np.random.default_rng(SEED)
    inputs = [(random(rng, 2, 8), random(rng, 2, 8)) for _ in range(10)]
    outputs = [loaded.run({"x": x, "state": state}, keep=True) for x, state in inputs]
    for (x, state), output in zip(inputs, outputs):
        assert_close(output["new"], step(x, state)[0])
        assert_close(output["y"], step(x, state)[1])


@pytest.mark.parametrize("type", [np.int8, np.float16, np.bool_, np.int64, np.float64])
def test_other_types(type: Any) -> None:
    """Sizes that are not multiples of 4 or 16 bytes."""
    dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(type))
    built = model(
        [node("Concat", ["x", "z"], ["c"], axis=0), node("Identity", ["c"], ["y"])],
        [value("x", ["n"], dtype), value("z", ["m"], dtype)],
        [value("y", ["k"], dtype)],
    )
    loaded_model = weft.load(built, device=GPU)
    rng = np.random.default_rng(SEED)
    for n, m in ((1, 1), (3, 5), (17, 2), (0, 7), (0, 0)):
        x, z = (rng.integers(0, 2, size).astype(type) for size in (n, m))
        for _ in range(2):
            output = loaded_model.run({"x": loaded_model.to_device(x), "z": loaded_model.to_device(z)}, keep=True)["y"]
            np.testing.assert_array_equal(output.numpy(), np.concatenate([x, z]))


def test_timed_runs_bind_too(loaded: weft.Model, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    if not gpu.limits.timestamps:
        pytest.skip("this adapter has no clock")
    record, recordings = ResidentSection._record, []

    def timed(self: ResidentSection, *arguments: Any) -> Any:
        recordings.append(self.device.timed(record(self, *arguments)))
        return recordings[-1]

    monkeypatch.setattr(ResidentSection, "_record", timed)
    rng = np.random.default_rng(SEED)
    for _ in range(3):
        x, state = random(rng, 5, 8), random(rng, 5, 8)
        outputs = loaded.run({"x": loaded.to_device(x), "state": loaded.to_device(state)}, keep=True)
        assert_close(outputs["y"], step(x, state)[1])
        ticks = recordings[0].ticks()
        assert len(ticks) == recordings[0].count + 1
        assert np.all(np.diff(ticks) >= 0)
    assert len(recordings) == 1
    assert loaded.profile({"x": loaded.to_device(x), "state": state}, repeat=2).seconds > 0


# -- tensors that cannot be bound --------------------------------------------------------------------------------------


def inside(gpu: Gpu, array: Array, offset: int) -> ResidentTensor:
    """A tensor that starts inside of a buffer."""
    buffer = gpu.buffer(offset + array.nbytes + 64)
    gpu.write(buffer, offset, array)
    return ResidentTensor(gpu, buffer, array.shape, array.dtype, offset)


@pytest.mark.parametrize("offset", [0, 4, 16, 48, 256, 1024])
def test_tensor_inside_a_buffer(loaded: weft.Model, gpu: Gpu, offset: int) -> None:
    rng = np.random.default_rng(SEED)
    x, state = random(rng, 3, 8), random(rng, 3, 8)
    for _ in range(2):
        outputs = loaded.run({"x": inside(gpu, x, offset), "state": inside(gpu, state, 256)}, keep=True)
        assert_close(outputs["y"], step(x, state)[1])
        outputs = loaded.run({"x": loaded.to_device(state), "state": x}, keep=True)
        assert_close(outputs["y"], step(state, x)[1])


def test_tensor_in_the_weights(loaded: weft.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory bound read-only cannot be bound read-write in the same dispatch: it is copied."""
    sections: list[ResidentSection] = []
    original = ResidentSection.run
    monkeypatch.setattr(
        ResidentSection,
        "run",
        lambda self, *inputs, **named: (sections.append(self), original(self, *inputs, **named))[1],
    )
    x = random(np.random.default_rng(SEED), 8, 8)
    loaded.run({"x": x, "state": x})
    section = sections[0]
    places = [uploaded.place for uploaded in section._weights._arrays.values() if uploaded.array.nbytes >= x.nbytes]
    content = section.device.read([(places[0].buffer, places[0].offset, x.nbytes)])[0].view(np.float32).reshape(8, 8)
    tensor = ResidentTensor(section.device, places[0].buffer, x.shape, x.dtype, places[0].offset)
    for _ in range(2):
        assert_close(loaded.run({"x": x, "state": tensor}, keep=True)["new"], step(x, content)[0])
        assert_close(loaded.run({"x": tensor, "state": tensor}, keep=True)["new"], step(content, content)[0])
        assert_close(loaded.run({"x": x, "state": x}, keep=True)["new"], step(x, x)[0])


@pytest.fixture
def narrow(gpu: Gpu) -> Iterator[Gpu]:
    """A GPU that binds 1 KiB at a time."""
    limits = gpu.limits
    gpu.limits = replace(limits, max_binding_bytes=1024)
    yield gpu
    gpu.limits = limits


def test_several_bindings(narrow: Gpu) -> None:
    del narrow
    built = model([node("Mul", ["x", "x"], ["s"])], [value("x", ["n"])], [value("s", ["n"])])
    loaded_model = weft.load(built, device=GPU)
    rng = np.random.default_rng(SEED)
    for _ in range(3):
        x = random(rng, 611)
        assert_close(loaded_model.run({"x": loaded_model.to_device(x)}, keep=True)["s"], x * x)


# -- loops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [3, 20, 150])
def test_repeated_launches(length: int, calls: Counter[str]) -> None:
    """Few dispatches are bound to each run's tensors; for many, tensors are copied."""
    body = subgraph(
        "body",
        [
            node("MatMul", ["h", "w"], ["p"]),
            node("Add", ["p", "e"], ["s"]),
            node("Tanh", ["s"], ["h2"]),
            node("Identity", ["h2"], ["o"]),
        ],
        ["h2", "o"],
        [value("h", [2, 8]), value("e", [2, 8])],
    )
    built = model(
        [node("Scan", ["h0", "x"], ["last", "all"], body=body, num_scan_inputs=1)],
        [value("h0", [2, 8]), value("x", [length, 2, 8])],
        [value("last", [2, 8]), value("all", [length, 2, 8])],
        [tensor("w", WEIGHTS)],
    )
    loaded_model = weft.load(built, device=GPU)
    rng = np.random.default_rng(SEED)
    device_inputs = [(random(rng, 2, 8), random(rng, length, 2, 8)) for _ in range(3)]
    tensors = [(loaded_model.to_device(h), loaded_model.to_device(x)) for h, x in device_inputs]
    for turn in range(12):
        if turn == 9:
            calls.clear()
        (h, x), (h0, steps) = device_inputs[turn % 3], tensors[turn % 3]
        outputs = loaded_model.run({"h0": h0, "x": steps}, keep=True)
        expected = []
        for step in x:
            h = np.tanh(h.astype(np.float64) @ WEIGHTS + step)
            expected.append(h)
        if turn < 3:
            assert_close(outputs["last"], h)
            assert_close(outputs["all"], np.stack(expected))
    assert_close(outputs["all"], np.stack(expected))
    assert calls["buffers"] == 0


# -- memory ----------------------------------------------------------------------------------------------------------


def test_released_tensors_are_freed_though_bound(loaded: weft.Model, gpu: Gpu) -> None:
    x = np.ones((4, 8), np.float32)
    inputs = loaded.to_device(x)
    loaded.run({"x": inputs, "state": x})
    memory = inputs.place_on(gpu).buffer.live_memory()
    groups = list(memory._groups)
    assert groups
    reference = weakref.ref(memory.handle)
    del memory
    inputs.release()
    gpu._spares.clear()
    assert reference() is None
    assert [group.handle for group in groups] == [None] * len(groups)
    assert_close(loaded.run({"x": loaded.to_device(2 * x), "state": x})["new"], step(2 * x, x)[0])


def test_memory_stays_constant(loaded: weft.Model, gpu: Gpu) -> None:
    rng = np.random.default_rng(SEED)
    sizes = []
    for _ in range(200):
        x = random(rng, 3, 8)
        outputs = loaded.run({"x": loaded.to_device(x), "state": x}, keep=True)
        assert_close(outputs["y"], step(x, x)[1])
        del outputs
        gc.collect(0)
        sizes.append((gpu.allocated, gpu._spares.size))
    assert len(set(sizes[5:])) == 1


def test_tensors_in_reference_cycles(loaded: weft.Model, gpu: Gpu) -> None:
    """Python finalizes the objects of a cycle in any order: memory must be reused after that."""
    x = np.ones((6, 8), np.float32)
    allocated = set()
    for turn in range(6):
        circle: list[Any] = [loaded.to_device(x * turn)]
        circle += [loaded.run({"x": circle[0], "state": circle[0]}, keep=True), circle]
        assert_close(circle[1]["y"], step(x * turn, x * turn)[1])
        del circle
        gc.collect()
        allocated.add(gpu.allocated)
    assert len(allocated) == 1
    assert gpu._spares.size >= 3 * x.nbytes


def test_spare_memory_is_bounded() -> None:
    spares = SpareMemory(100)
    for size in (40, 40, 40, 101, 10):
        spares.put(GpuMemory(object(), size))
    assert spares.size == 90
    assert spares.take(39) is None
    assert spares.take(10) is not None
    assert spares.take(10) is None
    assert spares.clear()
    assert not spares.clear()
    for _ in range(1000):
        spares.put(GpuMemory(object(), 0))
    assert len(spares._unused) == 64


def test_spare_memory_is_released_when_memory_is_short(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.unset_buffer(64).release()
    assert gpu._spares.size
    create, failed = gpu.handle.create_buffer, []

    def failing(**options: Any) -> Any:
        if not failed:
            failed.append(1)
            raise MemoryError
        return create(**options)

    monkeypatch.setattr(gpu.handle, "create_buffer", failing)
    assert gpu.buffer(128).size == 128
    assert failed
    assert gpu._spares.size == 0
