"""Exchange of tensors and streams with other libraries on the same GPU."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from backends.cuda.recording_driver import RecordingDriver
from test_api import X, affine

import weft
from weft.backends.cuda import interop
from weft.backends.cuda.gpu import CudaGpu, open_gpu
from weft.backends.cuda.interop import CUDA, CudaTensor, adopt
from weft.backends.resident.tensor import upload
from weft.errors import DeviceError, InputError

DTYPES = [np.float32, np.float16, np.int64, np.uint8, np.bool_, ml_dtypes.bfloat16, np.float64]


class Foreign:
    """A tensor of another library with `__cuda_array_interface__`."""

    def __init__(self, gpu: CudaGpu, array: np.ndarray[Any, Any], **changes: Any) -> None:
        self.tensor = upload(gpu, array)
        place = self.tensor.place_on(gpu)
        self.address = place.buffer.address
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.address, False),
            "version": 3,
            **changes,
        }


class Exporting:
    """A tensor of another library with DLPack only; it records the requested streams."""

    def __init__(self, tensor: CudaTensor, device: tuple[int, int] = (CUDA, 0), strides: Any = None) -> None:
        self.tensor, self.device, self.strides, self.streams = tensor, device, strides, []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.streams.append(stream)
        capsule = self.tensor.__dlpack__(stream=-1)
        if self.strides is not None:
            address = interop._python.PyCapsule_GetPointer(capsule, b"dltensor")
            managed = interop._DLManagedTensor.from_address(address)
            self.stride_array = (interop.c_int64 * len(self.strides))(*self.strides)
            managed.tensor.strides = interop.ctypes.cast(self.stride_array, interop.ctypes.POINTER(interop.c_int64))
        return capsule


def upload_tensor(gpu: CudaGpu, array: np.ndarray[Any, Any]) -> CudaTensor:
    tensor = upload(gpu, array)
    assert isinstance(tensor, CudaTensor)
    return tensor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (7,)])
def test_capsules_and_back(driver: RecordingDriver, dtype: Any, shape: tuple[int, ...]) -> None:
    gpu = open_gpu()
    array = (np.arange(np.prod(shape, dtype=int)) % 3).reshape(shape).astype(dtype)
    tensor = upload_tensor(gpu, array)
    used = driver.used
    adopted = adopt(gpu, Exporting(tensor))
    assert adopted is not None
    assert driver.used == used  # nothing was copied
    assert (adopted.shape, adopted.dtype) == (array.shape, array.dtype)
    tensor.release()
    np.testing.assert_array_equal(adopted.numpy(), array)  # the memory outlives the exporting tensor
    adopted.release()
    del adopted
    gc.collect()
    assert not interop._exports
    assert gpu.allocated == 0


def test_a_capsule_that_is_never_consumed(driver: RecordingDriver) -> None:
    gpu = open_gpu()
    tensor = upload_tensor(gpu, X)
    capsule = tensor.__dlpack__()
    tensor.release()
    assert gpu.allocated
    del capsule
    gc.collect()
    assert not interop._exports
    assert gpu.allocated == 0


def test_capsules_are_ordered_by_streams(driver: RecordingDriver) -> None:
    gpu = open_gpu()
    own = gpu.stream.value
    tensor = upload_tensor(gpu, X)
    tensor.__dlpack__(stream=77)
    assert driver.waits == [(77, own), (own, 77)]  # and back, when the capsule is freed
    tensor.__dlpack__()
    assert driver.waits[2:] == [(1, own), (own, 1)]  # the legacy stream
    tensor.__dlpack__(stream=-1)
    assert len(driver.waits) == 4
    exporting = Exporting(tensor)
    adopt(gpu, exporting)
    assert exporting.streams == [own]
    adopt(gpu, Foreign(gpu, X, stream=55))
    assert driver.waits[-1] == (own, 55)
    adopt(gpu, Foreign(gpu, X))
    assert driver.waits[-1] == (own, 1)


def test_unsupported_exports(driver: RecordingDriver) -> None:
    tensor = upload_tensor(open_gpu(), X)
    with pytest.raises(BufferError):
        tensor.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        tensor.__dlpack__(dl_device=(1, 0))
    assert tensor.__dlpack_device__() == (CUDA, 0)


def test_array_interface(driver: RecordingDriver) -> None:
    gpu = open_gpu()
    tensor = upload_tensor(gpu, X)
    interface = tensor.__cuda_array_interface__
    assert interface["shape"] == X.shape
    assert interface["typestr"] == X.dtype.str
    assert interface["data"] == (tensor.place_on(gpu).buffer.address, True)
    assert (interface["strides"], interface["version"], interface["stream"]) == (None, 3, gpu.stream.value)
    with pytest.raises(AttributeError, match="DLPack"):
        _ = upload_tensor(gpu, X.astype(ml_dtypes.bfloat16)).__cuda_array_interface__


def test_models_read_foreign_tensors_in_place(driver: RecordingDriver) -> None:
    loaded = weft.load(affine(), device="cuda")
    gpu = open_gpu()
    foreign_tensor, exporting = Foreign(gpu, X), Exporting(upload_tensor(gpu, X + 1))
    for foreign, address in (
        (foreign_tensor, foreign_tensor.address),
        (exporting, exporting.tensor.place_on(gpu).buffer.address),
    ):
        driver.submitted.clear()
        loaded.run({"x": foreign})
        nodes = driver.submitted
        assert all(address in node.words for node in nodes)


def test_an_unaligned_tensor(driver: RecordingDriver) -> None:
    """It becomes an aligned buffer and an offset."""
    gpu = open_gpu()
    content = np.arange(100, dtype=np.float32)
    foreign_tensor = Foreign(gpu, content)
    foreign_tensor.__cuda_array_interface__.update(data=(foreign_tensor.address + 12, False), shape=(7,))
    adopted = adopt(gpu, foreign_tensor)
    assert adopted is not None
    np.testing.assert_array_equal(adopted.numpy(), content[3:10])
    assert driver.used == 400


@pytest.mark.parametrize("strides", [(4, 12), (24, 4), (0, 4)])
def test_noncontiguous_tensors(driver: RecordingDriver, strides: tuple[int, int]) -> None:
    gpu = open_gpu()
    with pytest.raises(InputError, match=r"not contiguous(.|\n)*contiguous\(\)"):
        adopt(gpu, Foreign(gpu, X, strides=strides))
    elements = tuple(step // 4 for step in strides)
    with pytest.raises(InputError, match="not contiguous"):
        adopt(gpu, Exporting(upload_tensor(gpu, X), strides=elements))
    gc.collect()
    assert not interop._exports


def test_strides_of_axes_of_size_1(driver: RecordingDriver) -> None:
    gpu = open_gpu()
    adopted = adopt(gpu, Foreign(gpu, X[:, None], strides=(12, 999, 4)))
    assert adopted is not None
    np.testing.assert_array_equal(adopted.numpy(), X[:, None])


def test_tensors_of_other_devices(driver: RecordingDriver) -> None:
    gpu = open_gpu()
    with pytest.raises(DeviceError, match=r"GPU 1, but the model is on cuda:0(.|\n)*device='cuda:1'"):
        adopt(gpu, Exporting(upload_tensor(gpu, X), (CUDA, 1)))
    assert adopt(gpu, Exporting(upload_tensor(gpu, X), (1, 0))) is None  # on the host
    assert adopt(gpu, X) is None
    assert adopt(gpu, object()) is None


def test_runs_are_ordered_by_a_stream(driver: RecordingDriver) -> None:
    loaded = weft.load(affine(), device="cuda")
    own = open_gpu().stream.value
    loaded.run({"x": X}, keep=["y"], stream=4711)
    assert driver.waits == [(own, 4711), (4711, own)]
    with pytest.raises(InputError, match="stream"):
        loaded.run({"x": X}, stream="4711")  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="no streams"):
        weft.load(affine(), device="cpu").run({"x": X}, stream=4711)


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4)])
def test_write_into_foreign_tensors(driver: RecordingDriver, shape: tuple[int, ...]) -> None:
    gpu = open_gpu()
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    target = Foreign(gpu, np.zeros(shape, np.float32))
    upload_tensor(gpu, array).write_into(target)
    assert np.array_equal(target.tensor.numpy(), array)


def test_outputs_in_foreign_tensors(driver: RecordingDriver) -> None:
    loaded = weft.load(affine(), device="cuda")
    gpu = open_gpu()
    expected = weft.load(affine(), device="reference").run({"x": X})
    for _ in range(2):
        target, own = Foreign(gpu, np.zeros((2, 2), np.float32)), np.zeros((2, 3), np.float32)
        outputs = loaded.run({"x": X}, into={"y": target, "z": own})
        assert outputs["y"] is target
        assert outputs["z"] is own
        assert driver.waits[-1] == (1, gpu.stream.value)
        exported = Exporting(upload_tensor(gpu, np.zeros((2, 3), np.float32)))
        loaded.run({"x": X}, ["z"], into={"z": exported}, stream=4711)
        assert driver.waits[-1] == (4711, gpu.stream.value)
    assert target.tensor.shape == expected["y"].shape


def test_foreign_tensors_that_outputs_do_not_fit_in(driver: RecordingDriver) -> None:
    loaded = weft.load(affine(), device="cuda")
    gpu = open_gpu()
    for array, message in ((np.zeros((2, 3), np.float32), "has shape"), (np.zeros((2, 2)), "is float32"),
                        (np.zeros((3, 2), np.float32), "does not fit into")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            loaded.run({"x": X}, into={"y": Foreign(gpu, array)})
    frozen = Foreign(gpu, np.zeros((2, 2), np.float32))
    frozen.__cuda_array_interface__["data"] = (frozen.address, True)
    with pytest.raises(InputError, match="may not be written to"):
        loaded.run({"x": X}, into={"y": frozen})
    with pytest.raises(InputError, match="memory is not accessible"):
        weft.load(affine(), device="cpu").run({"x": X}, into={"y": Foreign(gpu, np.zeros((2, 2), np.float32))})


def test_write_into_rejects_other_shapes_and_dtypes(driver: RecordingDriver) -> None:
    gpu = open_gpu()
    tensor = upload_tensor(gpu, np.ones((2, 3), np.float32))
    for other in (Foreign(gpu, np.zeros((2, 2), np.float32)), Foreign(gpu, np.zeros((2, 3), np.float64)), object()):
        with pytest.raises(InputError, match="does not fit into"):
            tensor.write_into(other)
