"""GPU faults become WeftErrors, and the next model runs after every fault."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from onnx import TensorProto
from test_api import X, Y, affine

import weft
from weft.backends.webgpu import launch_table, launches
from weft.backends.webgpu.gpu import open_gpu
from weft.backends.webgpu.recordings import ShaderSource
from weft.errors import DeviceError, DeviceLostError, ExecutionError, KernelError, OutOfMemoryError

SOURCE = Path(weft.__file__).parents[1]
DEVICE = "webgpu:llvmpipe"


@pytest.fixture(autouse=True)
def _the_next_model_runs() -> Any:
    yield
    np.testing.assert_allclose(weft.load(affine(), device=DEVICE).run({"x": X})["y"], Y, rtol=1e-6)


def outer() -> onnx.ModelProto:
    """Build y = x * w, where x and w are small and y is large."""
    return model(
        [node("Mul", ["x", "w"], ["y"])],
        [value("x", ["n", 1])],
        [value("y", ["n", 1000])],
        [tensor("w", np.arange(1000, dtype=np.float32).reshape(1, 1000))],
    )


def take() -> onnx.ModelProto:
    return model(
        [node("Gather", ["x", "at"], ["y"])],
        [value("x", ["n"]), value("at", ["m"], TensorProto.INT64)],
        [value("y", ["m"])],
    )


# -- a device that is lost -------------------------------------------------------------------------------------------


def test_a_lost_device() -> None:
    first, other = weft.load(affine(), device=DEVICE), weft.load(outer(), device=DEVICE)
    np.testing.assert_allclose(first(X)[0], Y, rtol=1e-6)
    open_gpu("llvmpipe").handle.destroy()  # which weft is not told of
    for lost in (first, other, first):
        with pytest.raises(DeviceLostError, match=r"is lost(.|\n)*load the model again"):
            lost.run({"x": X if lost is first else X[:, :1]})
    again = weft.load(outer(), device=DEVICE)
    np.testing.assert_array_equal(again(np.float32([[2]])), np.arange(1000, dtype=np.float32)[None] * 2)
    with pytest.raises(DeviceLostError):
        first(X)


def test_device_lost_between_runs_of_different_shapes() -> None:
    loaded = weft.load(affine(), device=DEVICE)
    for batch in (1, 2):
        loaded(np.ones((batch, 3), np.float32))
    open_gpu("llvmpipe").destroy()
    for batch in (2, 3):
        with pytest.raises(DeviceLostError):
            loaded(np.ones((batch, 3), np.float32))


# -- kernels that cannot be ------------------------------------------------------------------------------------------

BROKEN = {
    "it does not parse": "fn main( {",
    "its types are wrong": "@compute @workgroup_size(1) fn main() { let x: i32 = 1.5; }",
    "its groups are too large": "@compute @workgroup_size(4096) fn main() {}",
    "it has other bindings": "@group(0) @binding(40) var<storage, read_write> b: array<f32>;\n"
    "@compute @workgroup_size(1) fn main() { b[0] = 1.0; }",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_shader_that_does_not_compile(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(launches, "write_module", lambda *_: text)
        with pytest.raises(KernelError, match=r"kernel '.*' *, on llvmpipe"):
            weft.load(affine(), device=DEVICE, cache=False)
    np.testing.assert_allclose(weft.load(affine(), device=DEVICE)(X)[0], Y, rtol=1e-6)


def test_kernel_with_too_much_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*arguments: Any, **named: Any) -> ShaderSource:
        return ShaderSource(*arguments, **{**named, "shared_bytes": 1 << 20})

    with monkeypatch.context() as patch:
        patch.setattr(launches, "ShaderSource", greedy)
        with pytest.raises(KernelError, match="needs 1,048,576 bytes"):
            weft.load(affine(), device=DEVICE, cache=False)
    np.testing.assert_allclose(weft.load(affine(), device=DEVICE)(X)[0], Y, rtol=1e-6)


# -- memory ----------------------------------------------------------------------------------------------------------


def test_run_that_needs_a_too_large_buffer() -> None:
    loaded = weft.load(outer(), device=DEVICE)
    with pytest.raises(OutOfMemoryError, match="bytes"):
        loaded(np.ones((1 << 20, 1), np.float32))
    np.testing.assert_array_equal(loaded(np.float32([[3]])), np.arange(1000, dtype=np.float32)[None] * 3)


def test_out_of_memory(tmp_path: Path) -> None:
    """In a process with limited memory, which llvmpipe uses as its own."""
    (tmp_path / "outer.onnx").write_bytes(outer().SerializeToString())
    code = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {str(SOURCE)!r})
import numpy as np
import weft
loaded = weft.load({str(tmp_path / "outer.onnx")!r}, device={DEVICE!r}, cache=False)
x = np.ones((2, 1), np.float32)
expected = loaded(x)
kept = loaded.run(dict(x=x), keep=True)["y"]
room = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (600 << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
for count in (200_000, 400_000):
    try:
        loaded.run(dict(x=np.ones((count, 1), np.float32)), keep=True)
    except weft.OutOfMemoryError as error:
        print("refused", error.file is not None)
print((loaded(x) == expected).all(), (kept.numpy() == expected).all())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:3] == ["refused True", "refused True", "True True"], done.stderr[-2000:]


def test_a_memory_limit() -> None:
    with pytest.raises(OutOfMemoryError):
        weft.load(affine(), device=DEVICE, memory_limit=10)
    loaded = weft.load(outer(), device=DEVICE, memory_limit="1MB")
    loaded(np.ones((10, 1), np.float32))
    with pytest.raises(OutOfMemoryError):
        loaded(np.ones((1000, 1), np.float32))


# -- data and devices ------------------------------------------------------------------------------------------------


def test_data_errors() -> None:
    loaded = weft.load(take(), device=DEVICE)
    x = np.arange(5, dtype=np.float32)
    for wrong in (5, 2**40, -6):
        with pytest.raises((ExecutionError, DeviceError), match=r"out of|index|range"):
            loaded(x, np.int64([1, wrong]))
        np.testing.assert_array_equal(loaded(x, np.int64([1, -1])), [1, 4])


def test_kernels_are_timed_by_the_gpu() -> None:
    loaded = weft.load(outer(), device=DEVICE)
    profile = loaded.profile({"x": np.ones((100, 1), np.float32)}, repeat=3)
    assert [kernel.nodes for kernel in profile.kernels] == [("Mul_y",)]
    assert 0 < profile.kernels[0].seconds < max(profile.runs)
    assert profile.machine.flops > 0
    assert profile.machine.bandwidth > 0
    assert all(0 <= span.start < span.end <= profile.seconds for span in profile.spans)


def test_profile_needs_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = weft.load(outer(), device=DEVICE)
    gpu = open_gpu("llvmpipe")
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, timestamps=False))
    with pytest.raises(DeviceError, match="cannot time its kernels"):
        loaded.profile({"x": np.ones((100, 1), np.float32)})


def test_more_elements_than_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = weft.load(outer(), device=DEVICE, cache=False)
    monkeypatch.setattr(launch_table, "MOST_ELEMENTS", 2500)
    with pytest.raises(ExecutionError, match=r"3,0\d\d elements.*support up to 2,500"):
        loaded.run({"x": np.ones((3, 1), np.float32)})
    assert loaded.run({"x": np.ones((2, 1), np.float32)})["y"].shape == (2, 1000)
