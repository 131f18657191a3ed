"""An open GPU on Mesa's llvmpipe: buffers, shaders, dispatches, and all their failures."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends.webgpu import adapters as adapters_module
from weft.backends.webgpu import wgpu_native
from weft.backends.webgpu.adapters import adapters, find_adapter
from weft.backends.webgpu.gpu import Gpu, open_gpu
from weft.backends.webgpu.recordings import DYNAMIC, UNIFORM, WRITE, ComputePipeline, Dispatch, Recording, ShaderSource
from weft.errors import DeviceError, DeviceLostError, KernelError, OutOfMemoryError

SOURCE = Path(weft.__file__).parents[1]

ADD_ONE = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) i: vec3<u32>) { x[i.x] = x[i.x] + 1.0; }
"""
SCALE = """
@group(0) @binding(0) var<uniform> by: vec4<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) i: vec3<u32>) { x[i.x] = x[i.x] * by.x; }
"""
IMMEDIATE = """
struct P { by: f32, plus: f32 }
var<immediate> p: P;
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) i: vec3<u32>) { x[i.x] = x[i.x] * p.by + p.plus; }
"""


@pytest.fixture
def gpu() -> Gpu:
    return open_gpu("llvmpipe")


@pytest.fixture(params=["direct", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Through wgpu's C library, and through its Python API alone."""
    assert wgpu_native.DIRECT
    if request.param == "python":
        monkeypatch.setattr(wgpu_native, "DIRECT", False)
    return str(request.param)


def add_one(gpu: Gpu, checked: bool = False) -> ComputePipeline:
    return gpu.pipelines({"add one": ShaderSource(ADD_ONE, (WRITE,), checked=checked)})["add one"]


def check_it_works(gpu: Gpu) -> None:
    buffer = gpu.buffer(1024)
    gpu.write(buffer, 0, np.arange(256, dtype=np.float32))
    pipeline = add_one(gpu)
    group = gpu.bind_group(pipeline, [(buffer, 0, 1024)])
    actual = gpu.run(Recording([Dispatch(pipeline, group, 4)] * 3), [(buffer, 0, 1024)])[0].view(np.float32)
    np.testing.assert_array_equal(actual, np.arange(256) + 3)


# -- adapters --------------------------------------------------------------------------------------------------------


def test_a_software_adapter_must_be_named() -> None:
    if not adapters()[0].is_software:
        pytest.skip("there is a real GPU here")
    with pytest.raises(DeviceError, match=r"no GPU(.|\n)*use webgpu:0, llvmpipe"):
        find_adapter()
    assert find_adapter("0") is find_adapter("LLVMpipe") is adapters()[0]
    for selector in ("7", "voodoo"):
        with pytest.raises(DeviceError, match=rf"no WebGPU adapter '{selector}'(.|\n)*webgpu:0 is llvmpipe"):
            find_adapter(selector)


def test_one_adapter_per_gpu() -> None:
    """wgpu lists llvmpipe twice, through Vulkan and through OpenGL."""
    assert [adapter.backend for adapter in adapters() if "llvmpipe" in adapter.name] == ["Vulkan"]
    described = [
        ("OpenGL", 0x10DE, 0), ("Vulkan", 0x10DE, 7), ("Vulkan", 0x10DE, 7), ("D3D12", 0x10DE, 7),
        ("OpenGL", 0x8086, 0), ("D3D12", 0x1414, 0x8C), ("Vulkan", 0x10DE, 8),
    ]  # fmt: skip
    entries: list[tuple[dict[str, Any], Any]] = [
        ({"backend_type": backend, "vendor_id": vendor, "device_id": device}, number)
        for number, (backend, vendor, device) in enumerate(described)
    ]
    distinct = adapters_module._remove_duplicates(entries)
    assert [number for _, number in distinct] == [1, 2, 4, 5, 6]


def test_limits_and_abilities(gpu: Gpu) -> None:
    limits = gpu.limits
    assert limits.max_binding_bytes <= limits.max_buffer_bytes
    assert limits.max_groups == 65535
    assert limits.is_software
    assert limits.timestamps
    assert (gpu.abilities.int64, gpu.abilities.float64, gpu.abilities.float16) == (True, True, True)


def test_opened_once(gpu: Gpu) -> None:
    assert open_gpu("llvmpipe") is gpu
    assert open_gpu(str(gpu.adapter.number)) is gpu


def test_nothing_is_printed() -> None:
    """Neither by Mesa without a display, nor by wgpu for failures that weft handles, nor at exit."""
    code = f"""
import sys; sys.path.insert(0, {str(SOURCE)!r})
from weft.backends.webgpu.gpu import open_gpu
from weft.backends.webgpu.recordings import ShaderSource
gpu = open_gpu("llvmpipe")
held_buffer = gpu.buffer(64)
broken, huge = lambda: gpu.pipelines(dict(a=ShaderSource("fn", ()))), lambda: gpu.buffer(1 << 50)
for failing in (broken, huge, gpu.destroy, gpu.check):
    try: failing()
    except Exception as error: print(type(error).__name__)
print(open_gpu("llvmpipe").read([(open_gpu("llvmpipe").buffer(64), 0, 4)])[0].sum())
"""
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240)
    assert done.stderr == ""
    assert done.stdout.split() == ["KernelError", "OutOfMemoryError", "DeviceLostError", "0"]
    assert done.returncode == 0


# -- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 4, 5, 4096, (16 << 20) + 5, (33 << 20) + 2])
def test_bytes_come_back(gpu: Gpu, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    buffer = gpu.buffer(size)
    gpu.write(buffer, 0, data)
    np.testing.assert_array_equal(gpu.read([(buffer, 0, size)])[0], data)


def test_many_slices_at_once(gpu: Gpu, way: str) -> None:
    rng = np.random.default_rng(5)
    data = rng.integers(0, 256, 5000, np.uint8)
    buffer, other = gpu.buffer(5000), gpu.buffer(100)
    gpu.write(buffer, 0, data.tobytes())
    gpu.write(other, 8, memoryview(np.full(3, 9, np.int32)))
    slices = [tuple(sorted(rng.integers(0, 5000, 2).tolist())) for _ in range(20)]
    reads = [(buffer, start, stop - start) for start, stop in slices]
    actual = gpu.read([*reads, (other, 8, 12), (other, 0, 0)])
    for (start, stop), got in zip(slices, actual):
        np.testing.assert_array_equal(got, data[start:stop])
    np.testing.assert_array_equal(actual[-2].view(np.int32), [9, 9, 9])
    assert actual[-1].size == 0
    assert all(array.flags.owndata for array in actual)


def test_memory_is_counted(gpu: Gpu) -> None:
    before = gpu.allocated
    buffer, other = gpu.buffer(1000), gpu.buffer(3)
    assert gpu.allocated == before + 1000 + 16
    buffer.release()
    buffer.release()
    assert gpu.allocated == before + 16
    del other
    assert gpu.allocated == before
    assert gpu.peak >= before + 1016


def test_released_buffer(gpu: Gpu) -> None:
    """Earlier bindings keep working; wgpu would abort if the buffer were destroyed."""
    buffer = gpu.buffer(1024)
    pipeline = add_one(gpu)
    group = gpu.bind_group(pipeline, [(buffer, 0, 1024)])
    buffer.release()
    for use in (
        lambda: gpu.read([(buffer, 0, 4)]),
        lambda: gpu.write(buffer, 0, b"1234"),
        lambda: gpu.bind_group(pipeline, [(buffer, 0, 1024)]),
    ):
        with pytest.raises(DeviceError, match="after its release"):
            use()
    gpu.run(Recording([Dispatch(pipeline, group, 4)]))
    check_it_works(gpu)


def test_staging_is_reused(gpu: Gpu) -> None:
    buffer = gpu.buffer(100_000)
    gpu.read([(buffer, 0, 100_000)])
    before = gpu.allocated
    for size in (100_000, 4, 50_000, 100_000):
        gpu.read([(buffer, 0, size)])
    assert gpu.allocated == before


# -- running ---------------------------------------------------------------------------------------------------------


def test_dispatches_run_in_order(gpu: Gpu, way: str) -> None:
    """With an offset into parameters for each, and with immediates."""
    sources = {
        "add": ShaderSource(ADD_ONE, (WRITE,)),
        "scale": ShaderSource(SCALE, (DYNAMIC, WRITE)),
        "fixed": ShaderSource(SCALE, (UNIFORM, WRITE)),
        "both": ShaderSource(IMMEDIATE, (WRITE,), immediate_bytes=8),
    }
    pipelines = gpu.pipelines(sources)
    buffer, parameters = gpu.buffer(1024), gpu.uniform(1024)
    rows = np.zeros((4, 64), np.float32)
    rows[:, 0] = [2, 3, 5, 7]
    gpu.write(parameters, 0, rows)
    gpu.write(buffer, 0, np.arange(256, dtype=np.float32))
    add = gpu.bind_group(pipelines["add"], [(buffer, 0, 1024)])
    scale = gpu.bind_group(pipelines["scale"], [(parameters, 0, 256), (buffer, 0, 1024)])
    fixed = gpu.bind_group(pipelines["fixed"], [(parameters, 256, 256), (buffer, 0, 1024)])
    recording = Recording(
        [
            Dispatch(pipelines["add"], add, 4),
            Dispatch(pipelines["scale"], scale, 4, offset=0),
            Dispatch(pipelines["scale"], scale, 4, offset=768),
            Dispatch(pipelines["fixed"], fixed, 4),
            Dispatch(pipelines["add"], add, 4),
            Dispatch(pipelines["add"], add, 4),
            Dispatch(pipelines["both"], add, 4, immediates=np.float32([2, 0.5]).tobytes()),
            Dispatch(pipelines["both"], add, 4, immediates=np.float32([1, 0.25]).tobytes()),
        ]
    )
    expected = np.arange(256, dtype=np.float32)
    for _ in range(2):
        expected = ((expected + 1) * 42 + 2) * 2 + 0.75
        actual = gpu.run(recording, [(buffer, 0, 1024)])[0].view(np.float32)
        np.testing.assert_array_equal(actual, expected)


def test_submissions_without_waiting(gpu: Gpu, way: str) -> None:
    buffer = gpu.buffer(1024)
    pipeline = add_one(gpu)
    recording = Recording([Dispatch(pipeline, gpu.bind_group(pipeline, [(buffer, 0, 1024)]), 4)])
    for _ in range(100):
        gpu.submit(recording)
    np.testing.assert_array_equal(gpu.read([(buffer, 0, 1024)])[0].view(np.float32), np.full(256, 100))


def test_many_threads(gpu: Gpu) -> None:
    """Each with its own buffer; their results come through the same queue and staging buffers."""
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        pipeline = add_one(gpu)
        for _ in range(20):
            data = rng.standard_normal(256).astype(np.float32)
            buffer = gpu.buffer(1024)
            group = gpu.bind_group(pipeline, [(buffer, 0, 1024)])
            gpu.write(buffer, 0, data)
            actual = gpu.run(Recording([Dispatch(pipeline, group, 4)]), [(buffer, 0, 1024)])[0].view(np.float32)
            if not np.array_equal(actual, data + 1):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_pipelines_are_cached(gpu: Gpu) -> None:
    assert add_one(gpu) is add_one(gpu)
    assert add_one(gpu, checked=True) is not add_one(gpu)
    names = {f"same {number}": ShaderSource(ADD_ONE, (WRITE,)) for number in range(3)}
    assert {id(pipeline) for pipeline in gpu.pipelines(names).values()} == {id(add_one(gpu))}


def test_bounds_checks_on_demand(gpu: Gpu) -> None:
    """Only checked shaders cannot access memory after a bound slice."""
    for checked in (True, False):
        buffer = gpu.buffer(1024)
        pipeline = add_one(gpu, checked)
        group = gpu.bind_group(pipeline, [(buffer, 0, 512)])
        gpu.run(Recording([Dispatch(pipeline, group, 4)]))
        actual = gpu.read([(buffer, 0, 1024)])[0].view(np.float32)
        np.testing.assert_array_equal(actual[:127], np.ones(127))
        if checked:
            np.testing.assert_array_equal(actual[128:], np.zeros(128))


def test_times(gpu: Gpu) -> None:
    buffer = gpu.buffer(1 << 20)
    pipeline = add_one(gpu)
    group = gpu.bind_group(pipeline, [(buffer, 0, 1 << 20)])
    times = gpu.time(Recording([Dispatch(pipeline, group, groups) for groups in (1, 4096, 1)]))
    assert len(times) == 3
    assert all(0 <= time < 1 for time in times)
    assert times[1] > 1e-6


def test_many_times(gpu: Gpu) -> None:
    """More timestamps than one query set has."""
    buffer = gpu.buffer(1024)
    pipeline = add_one(gpu)
    group = gpu.bind_group(pipeline, [(buffer, 0, 1024)])
    times = gpu.time(Recording([Dispatch(pipeline, group, 1)] * 5000))
    assert len(times) == 5000
    assert min(times) >= 0
    np.testing.assert_array_equal(gpu.read([(buffer, 0, 4)])[0].view(np.float32), [5000])
    assert gpu.time(Recording([])) == []


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_shader_that_does_not_compile(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    broken = {
        "syntax": "@compute @workgroup_size(1) fn main( {}",
        "types": "@compute @workgroup_size(1) fn main() { let x: i32 = 1.5; }",
        "entry": "@compute @workgroup_size(1) fn other() {}",
        "too large": "@compute @workgroup_size(4096) fn main() {}",
    }
    for name, text in broken.items():
        for checked in (False, True):
            with pytest.raises(KernelError, match=f"kernel '{name}'"):
                gpu.pipelines({"fine": ShaderSource(ADD_ONE, (WRITE,)), name: ShaderSource(text, (), checked=checked)})
    with caplog.at_level(logging.DEBUG, "wgpu"), pytest.raises(KernelError):
        gpu.pipelines({"binding": ShaderSource(ADD_ONE, ())})
    with pytest.raises(KernelError, match=r"kernel 'wide'(.|\n)*StorageBuffers"):
        gpu.pipelines({"wide": ShaderSource(ADD_ONE, (WRITE,) * (gpu.limits.max_bindings + 1))})
    with pytest.raises(KernelError, match="kernel 'shared' needs 40,000 bytes"):
        gpu.pipelines({"shared": ShaderSource(ADD_ONE, (WRITE,), shared_bytes=40_000)})
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    check_it_works(gpu)


def test_a_dispatch_beyond_the_limits(gpu: Gpu) -> None:
    pipeline = add_one(gpu)
    buffer = gpu.buffer(1024)
    group = gpu.bind_group(pipeline, [(buffer, 0, 1024)])
    with pytest.raises(DeviceError, match="65535"):
        gpu.submit(Recording([Dispatch(pipeline, group, 70000)]))
    with pytest.raises(DeviceError, match="bind group"):
        gpu.bind_group(pipeline, [])
    with pytest.raises(DeviceError):
        gpu.bind_group(pipeline, [(buffer, 4, 64)])
    with pytest.raises(DeviceError):
        gpu.read([(buffer, 0, 4096)])
    check_it_works(gpu)


def test_too_large_buffer(gpu: Gpu) -> None:
    with pytest.raises(OutOfMemoryError, match=r"bytes: .* allows"):
        gpu.buffer(gpu.limits.max_buffer_bytes + 4)
    check_it_works(gpu)


def test_out_of_memory() -> None:
    """In a process with limited memory, which llvmpipe uses as its own."""
    code = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {str(SOURCE)!r})
import numpy as np
from weft.backends.webgpu.gpu import open_gpu
from weft.errors import OutOfMemoryError
gpu = open_gpu("llvmpipe")
first = gpu.buffer(1 << 20)
gpu.write(first, 0, np.full(1 << 18, 7, np.int32))
gpu.read([(first, 0, 1 << 20)])
room = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
taken = []
try:
    for _ in range(40):
        taken.append(gpu.buffer(1 << 28))
except OutOfMemoryError as error:
    print(len(taken) < 5, "out of memory" in str(error))
print(gpu.read([(first, 0, 16)])[0].view(np.int32))
taken.clear()
print(gpu.buffer(1 << 28).size)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.split("\n")[:3] == ["True True", "[7 7 7 7]", str(1 << 28)], done.stderr


def test_a_lost_device() -> None:
    gpu = open_gpu("llvmpipe")
    pipeline = add_one(gpu)
    buffer = gpu.buffer(1024)
    group = gpu.bind_group(pipeline, [(buffer, 0, 1024)])
    recording = Recording([Dispatch(pipeline, group, 4)])
    gpu.run(recording)
    gpu.handle.destroy()  # which weft is not told of
    assert not gpu.is_lost
    meeting_it = [
        lambda: gpu.submit(recording),
        lambda: gpu.run(recording, [(buffer, 0, 16)]),
        lambda: gpu.read([(buffer, 0, 16)]),
        lambda: gpu.write(buffer, 0, b"1234"),
        lambda: gpu.buffer(16),
        lambda: gpu.bind_group(pipeline, [(buffer, 0, 1024)]),
        lambda: gpu.pipelines({"other": ShaderSource(ADD_ONE + "\n", (WRITE,))}),
        lambda: gpu.time(recording),
        gpu.flush,
        gpu.check,
    ]
    for meet in meeting_it:
        gpu._lost = None  # each is the first to meet it
        with pytest.raises(DeviceLostError, match="is lost"):
            meet()
        assert gpu.is_lost
        with pytest.raises(DeviceLostError):
            meet()
    buffer.release()
    fresh = open_gpu("llvmpipe")
    assert fresh is not gpu
    check_it_works(fresh)


def test_released_device() -> None:
    gpu = open_gpu("llvmpipe")
    gpu.destroy()
    gpu.destroy()
    with pytest.raises(DeviceLostError, match="destroyed"):
        gpu.check()
    check_it_works(open_gpu("llvmpipe"))
