"""Tensors on a device: creation, use in runs, keeping outputs, reading, release."""

from __future__ import annotations

import gc
import threading
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from onnx import TensorProto
from test_api import X, Y, affine

import weft
from weft.backends.webgpu.gpu import Gpu, open_gpu
from weft.errors import DeviceError, DeviceLostError, InputError

DEVICES = ("webgpu:llvmpipe", "cpu", "reference")
GPU = DEVICES[0]
TYPES = [
    np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
    np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4,
]  # fmt: skip


@pytest.fixture(params=DEVICES)
def device_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def canonical(device_name: str) -> str:
    return weft.load(affine(), device=device_name).device


def recurrent() -> onnx.ModelProto:
    """state' = tanh(state @ w + x), total' = total + sum(x)."""
    return model(
        [
            node("MatMul", ["state", "w"], ["p"]),
            node("Add", ["p", "x"], ["s"]),
            node("Tanh", ["s"], ["new_state"]),
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Add", ["total", "sum"], ["new_total"]),
        ],
        [value("x", ["batch", 4]), value("state", ["batch", 4]), value("total", [])],
        [value("new_state", ["batch", 4]), value("new_total", [])],
        [tensor("w", (np.arange(16, dtype=np.float32).reshape(4, 4) - 8) / 16)],
    )


# -- properties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", TYPES, ids=lambda type: np.dtype(type).name)
def test_all_types_round_trip(device_name: str, type: Any) -> None:
    array = np.random.default_rng(3).integers(0, 7, (3, 5, 7)).astype(type)
    device_tensor = weft.to_device(array, device_name)
    assert (device_tensor.shape, device_tensor.dtype, device_tensor.device) == (
        array.shape,
        array.dtype,
        canonical(device_name),
    )
    assert (device_tensor.ndim, device_tensor.size, device_tensor.nbytes) == (array.ndim, array.size, array.nbytes)
    np.testing.assert_array_equal(device_tensor.numpy(), array)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5,)])
def test_all_shapes_round_trip(device_name: str, shape: tuple[int, ...]) -> None:
    array = np.full(shape, 2.5, np.float32)
    outputs = weft.to_device(array, device_name).numpy()
    assert outputs.shape == shape
    np.testing.assert_array_equal(outputs, array)


def test_numpy_converts_it(device_name: str) -> None:
    device_tensor = weft.to_device(X.T, device_name)
    np.testing.assert_array_equal(np.asarray(device_tensor), X.T)
    np.testing.assert_array_equal(np.asarray(device_tensor, np.float64), X.T)
    np.testing.assert_array_equal(np.add(device_tensor, 1), X.T + 1)
    assert isinstance(device_tensor, weft.DeviceTensor)
    assert repr(device_tensor) == f"<weft.DeviceTensor float32[3, 2] on {canonical(device_name)}>"


def test_it_is_a_copy(device_name: str) -> None:
    array = X.copy()
    device_tensor = weft.to_device(array, device_name)
    array[:] = 0
    read = device_tensor.numpy()
    np.testing.assert_array_equal(read, X)
    read[:] = 0
    np.testing.assert_array_equal(device_tensor.numpy(), X)


def test_invalid_tensors_are_refused(device_name: str) -> None:
    for wrong in (["a", "b"], np.array([1 + 2j], np.clongdouble), {"a": 1}, np.zeros(2, "datetime64[s]")):
        with pytest.raises(InputError, match="a device cannot hold an array"):
            weft.to_device(wrong, device_name)


# -- in runs ---------------------------------------------------------------------------------------------------------


def test_inputs_and_outputs(device_name: str) -> None:
    loaded = weft.load(affine(), device=device_name)
    inputs = loaded.to_device(X)
    for keep, device_outputs in ((False, set()), (True, {"y", "z"}), (["z"], {"z"}), ((), set())):
        for _ in range(2):
            outputs = loaded.run({"x": inputs}, keep=keep)
            assert {name for name, result in outputs.items() if isinstance(result, weft.DeviceTensor)} == device_outputs
            np.testing.assert_allclose(np.asarray(outputs["y"]), Y, rtol=1e-6)
            np.testing.assert_array_equal(np.asarray(outputs["z"]), -X)
    only = loaded.run({"x": inputs, "b": weft.to_device(np.float32([0, 0]), device_name)}, outputs=["y"], keep=["y"])
    np.testing.assert_allclose(only["y"].numpy(), Y - np.float32([10, 20]), rtol=1e-6)
    np.testing.assert_array_equal(loaded(inputs)[1], -X)


def test_state_stays_on_the_device(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are numpy's, and on a GPU nothing is read before the end."""
    loaded = weft.load(recurrent(), device=device_name)
    rng = np.random.default_rng(11)
    weights = (np.arange(16, dtype=np.float32).reshape(4, 4) - 8) / 16
    state, total = np.zeros((3, 4)), 0.0
    device_outputs: dict[str, Any] = {"state": np.zeros((3, 4), np.float32), "total": np.float32(0)}
    reads = []
    original = Gpu.run
    monkeypatch.setattr(Gpu, "run", lambda *arguments: (reads.append(1), original(*arguments))[1])
    for _ in range(20):
        x = rng.standard_normal((3, 4)).astype(np.float32)
        state, total = np.tanh(state @ weights + x), total + x.sum(dtype=np.float64)
        outputs = loaded.run({"x": x, **device_outputs}, keep=True)
        device_outputs = {"state": outputs["new_state"], "total": outputs["new_total"]}
    assert reads == []
    np.testing.assert_allclose(device_outputs["state"].numpy(), state, atol=1e-5)
    np.testing.assert_allclose(device_outputs["total"].numpy(), total, atol=1e-4)


def test_runs_do_not_modify_tensors(device_name: str) -> None:
    loaded = weft.load(recurrent(), device=device_name)
    inputs = {name: loaded.to_device(np.full((3, 4), 0.5, np.float32)) for name in ("x", "state")}
    inputs["total"] = loaded.to_device(np.float32(1))
    first = loaded.run(inputs, keep=True)
    before = {name: device_outputs.numpy() for name, device_outputs in first.items()}
    loaded.run({"x": inputs["x"], "state": first["new_state"], "total": first["new_total"]}, keep=True)
    for name, device_outputs in first.items():
        np.testing.assert_array_equal(device_outputs.numpy(), before[name])
    np.testing.assert_array_equal(inputs["x"].numpy(), np.full((3, 4), 0.5))


def test_outputs_that_are_inputs_or_constants(device_name: str) -> None:
    source = model(
        [node("Identity", ["x"], ["same"]), node("Identity", ["w"], ["fixed"]), node("Identity", ["x"], ["again"])],
        [value("x", ["n"])],
        [value("same", ["n"]), value("fixed", [2]), value("again", ["n"])],
        [tensor("w", np.float32([1, 2]))],
    )
    loaded = weft.load(source, device=device_name)
    inputs = loaded.to_device(np.float32([3, 4, 5]))
    device_outputs = loaded.run({"x": inputs}, keep=True)
    inputs.release()
    device_outputs["again"].release()
    np.testing.assert_array_equal(device_outputs["same"].numpy(), [3, 4, 5])
    np.testing.assert_array_equal(device_outputs["fixed"].numpy(), [1, 2])
    read = loaded.run({"x": np.float32([6])})
    np.testing.assert_array_equal(read["same"], [6])


def test_tensors_through_host_steps(device_name: str) -> None:
    """NonZero's size depends on data: it runs on the host, between kernels."""
    source = model(
        [
            node("Relu", ["x"], ["r"]),
            node("NonZero", ["r"], ["places"]),
            node("Cast", ["places"], ["p"], to=TensorProto.FLOAT),
            node("Mul", ["p", "p"], ["y"]),
        ],
        [value("x", ["n"])],
        [value("y", [1, "m"]), value("places", [1, "m"], TensorProto.INT64)],
    )
    loaded = weft.load(source, device=device_name)
    x = np.float32([1, -1, 2, -3, 4])
    device_outputs = loaded.run({"x": loaded.to_device(x)}, keep=True)
    assert all(isinstance(result, weft.DeviceTensor) for result in device_outputs.values())
    np.testing.assert_array_equal(device_outputs["places"].numpy(), [[0, 2, 4]])
    np.testing.assert_array_equal(device_outputs["y"].numpy(), [[0, 4, 16]])
    if device_name != "reference":
        assert [step.by_nature for step in loaded.explain()] == [True]


def test_sequences_stay_on_the_host(device_name: str) -> None:
    source = model(
        [node("SequenceConstruct", ["x", "x"], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=0)],
        [value("x", ["n"])],
        [value("y", ["m"])],
    )
    loaded = weft.load(source, device=device_name)
    device_outputs = loaded.run({"x": loaded.to_device(np.float32([1, 2]))}, keep=True)
    np.testing.assert_array_equal(device_outputs["y"].numpy(), [1, 2, 1, 2])


# -- errors ------------------------------------------------------------------------------------------------------------


def test_shapes_and_types_are_checked(device_name: str) -> None:
    loaded = weft.load(affine(), device=device_name)
    with pytest.raises(InputError, match="must be float32, not float64"):
        loaded.run({"x": loaded.to_device(X.astype(np.float64))})
    with pytest.raises(InputError, match="must have size 3 in dimension 1"):
        loaded.run({"x": loaded.to_device(X[:, :2])})
    with pytest.raises(InputError, match="must have 2 dimensions"):
        loaded.run({"x": loaded.to_device(X[0])})
    for keep, message in (("y", "not the string 'y'"), (["nope"], "no output 'nope'")):
        with pytest.raises(InputError, match=message):
            loaded.run({"x": X}, keep=keep)


def test_tensor_of_another_device() -> None:
    for here in DEVICES:
        loaded = weft.load(affine(), device=here)
        for there in DEVICES:
            if there != here:
                with pytest.raises(DeviceError, match=r"input 'x': .* on .* cannot be used on(.|\n)*numpy\(\)"):
                    loaded.run({"x": weft.to_device(X, there)})


def test_a_released_tensor(device_name: str) -> None:
    loaded = weft.load(affine(), device=device_name)
    device_tensor = loaded.to_device(X)
    loaded.run({"x": device_tensor})
    device_tensor.release()
    device_tensor.release()
    assert device_tensor.is_released
    for use in (device_tensor.numpy, lambda: np.asarray(device_tensor), lambda: loaded.run({"x": device_tensor})):
        with pytest.raises(DeviceError, match="was released"):
            use()


def test_a_tensor_of_a_lost_device() -> None:
    loaded = weft.load(affine(), device=GPU)
    device_tensor = loaded.run({"x": X}, keep=["z"])["z"]
    open_gpu("llvmpipe").destroy()
    again = weft.load(affine(), device=GPU)
    np.testing.assert_allclose(again(X)[0], Y, rtol=1e-6)
    for use in (device_tensor.numpy, lambda: again.run({"x": device_tensor}), lambda: loaded.run({"x": X})):
        with pytest.raises(DeviceLostError, match="lost"):
            use()
    device_tensor.release()


# -- memory ----------------------------------------------------------------------------------------------------------


def test_memory_is_freed() -> None:
    loaded = weft.load(affine(), device=GPU)
    gpu = open_gpu("llvmpipe")
    big = np.ones((10_000, 3), np.float32)
    loaded.run({"x": big}, keep=["z"])
    gc.collect()
    before = gpu.allocated
    device_outputs = [loaded.run({"x": big}, keep=["z"])["z"] for _ in range(3)]
    assert gpu.allocated == before + 3 * big.nbytes
    device_outputs[0].release()
    assert gpu.allocated == before + 2 * big.nbytes
    device_outputs.clear()
    assert gpu.allocated == before
    for _ in range(50):
        loaded.run({"x": big}, keep=True)
    assert gpu.peak < before + 10 * big.nbytes


def test_many_threads(device_name: str) -> None:
    loaded = weft.load(recurrent(), device=device_name)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((2, 4)).astype(np.float32)
        device_outputs: dict[str, Any] = {"state": np.zeros((2, 4), np.float32), "total": np.float32(0)}
        for _ in range(10):
            outputs = loaded.run({"x": x, **device_outputs}, keep=True)
            device_outputs = {"state": outputs["new_state"], "total": outputs["new_total"]}
        if not np.allclose(device_outputs["total"].numpy(), 10 * x.sum(dtype=np.float64), atol=1e-4):
            wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
