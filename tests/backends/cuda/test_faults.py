"""Driver errors become weft errors with a hint, and the next device takes over."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from backends.cuda.conftest import Attach
from backends.cuda.recording_driver import H200, RecordingDriver
from test_api import X, Y, affine

import weft
from weft.backends.cuda import device, discovery, gpu, launches, library
from weft.backends.cuda.gpu import open_gpu
from weft.errors import DeviceError, DeviceLostError, FallbackWarning, KernelError

SOURCE = Path(weft.__file__).parents[1]


# -- while the driver starts -----------------------------------------------------------------------------------------


def replace_driver(monkeypatch: pytest.MonkeyPatch, driver: RecordingDriver) -> None:
    """Replace the driver that is loaded on first use."""
    monkeypatch.setattr(library, "_owner", None)
    monkeypatch.setattr(library, "ctypes", SimpleNamespace(CDLL=lambda _: None))
    monkeypatch.setattr(library, "DriverLibrary", lambda _: driver)
    fresh = library.once(library.library._make), discovery.once(discovery.list_gpus._make)
    for module in (library, discovery, gpu):
        monkeypatch.setattr(module, "library", fresh[0])
    monkeypatch.setattr(discovery, "list_gpus", fresh[1])
    monkeypatch.setattr(gpu, "_open", {})
    monkeypatch.setattr(device, "_has_no_gpu_files", lambda: False)


START_FAULTS = {100: "CUDA_VISIBLE_DEVICES", 803: "restart the machine", 34: "stub", 3: "nvidia-smi"}


@pytest.mark.parametrize("code", START_FAULTS)
def test_a_driver_that_does_not_start(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    replace_driver(monkeypatch, RecordingDriver(fail={"cuInit": code}))
    with pytest.raises(DeviceError, match=rf"does not start(.|\n)*error {code}(.|\n)*{START_FAULTS[code]}"):
        weft.load(affine(), device="cuda")
    with pytest.warns(FallbackWarning, match="cuda failed, cpu is used instead"):
        loaded = weft.load(affine(), device=["cuda", "cpu"])
    np.testing.assert_allclose(loaded.run({"x": X})["y"], Y, rtol=1e-6)
    (attempt,) = loaded.report().attempts
    assert (attempt.device, attempt.stage) == ("cuda", "finding")
    (listed,) = device.DEVICE.devices()
    assert not listed.available
    assert f"error {code}" in listed.description


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose address space is limited to 8 GB."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8_000_000_000, resource.RLIM_INFINITY))


LIMIT = r"limited to 8,000,000,000 bytes \(RLIMIT_AS\)(.|\n)*ulimit -v unlimited"


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("code", [2, 304])
def test_a_driver_that_lacks_address_space(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    replace_driver(monkeypatch, RecordingDriver(fail={"cuInit": code}))
    with pytest.raises(DeviceError, match=rf"does not start(.|\n)*error {code}(.|\n)*{LIMIT}"):
        weft.load(affine(), device="cuda")


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("function", ["cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuMemPoolCreate"])
def test_a_gpu_that_lacks_address_space(driver: RecordingDriver, function: str) -> None:
    """The error names the limit, and the next device takes over."""
    driver.fail[function] = 2
    with pytest.raises(DeviceError, match=rf"NVIDIA H200 cannot be opened(.|\n)*{LIMIT}") as caught:
        weft.load(affine(), device="cuda")
    assert "smaller inputs" not in str(caught.value)
    with pytest.warns(FallbackWarning, match="cpu is used instead"):
        loaded = weft.load(affine(), device=["cuda", "cpu"])
    np.testing.assert_allclose(loaded.run({"x": X})["y"], Y, rtol=1e-6)


@pytest.mark.usefixtures("limited")
def test_a_driver_library_that_cannot_be_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise OSError("libcuda.so.1: failed to map segment from shared object")

    replace_driver(monkeypatch, RecordingDriver())
    monkeypatch.setattr(library, "ctypes", SimpleNamespace(CDLL=fail))
    with pytest.raises(DeviceError, match=rf"does not load(.|\n)*map segment(.|\n)*{LIMIT}"):
        weft.load(affine(), device="cuda")


def test_a_gpu_whose_memory_is_full_when_it_is_opened(driver: RecordingDriver) -> None:
    driver.fail["cuDevicePrimaryCtxRetain"] = 2
    with pytest.raises(weft.OutOfMemoryError, match="out of memory"):
        weft.load(affine(), device="cuda")


def test_a_driver_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_driver(monkeypatch, RecordingDriver(version=11080, gpus=(H200,)))
    with pytest.raises(DeviceError, match=r"it supports CUDA 11\.8, weft needs 12\.0(.|\n)*update the driver"):
        weft.load(affine(), device="cuda")


def test_a_driver_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_driver(monkeypatch, RecordingDriver())
    with pytest.raises(DeviceError, match=r"shows no GPU(.|\n)*CUDA_VISIBLE_DEVICES"):
        weft.load(affine(), device="cuda")
    assert [listed.available for listed in device.DEVICE.devices()] == [False]


def test_a_driver_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_driver(monkeypatch, RecordingDriver(gpus=(H200,)))
    assert discovery.list_gpus() == (H200,)
    assert weft.load(affine(), device="cuda", cache=False).report().device == "cuda:0"


def test_no_driver_at_all() -> None:
    script = (
        "import weft; from weft.backends.cuda import device\n"
        "device._has_no_gpu_files = lambda: False\n"
        "print(device.DEVICE.devices()[0].description)\n"
        "try: device.DEVICE.find('')\n"
        "except weft.DeviceError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "WEFT_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("there is no driver of an NVIDIA GPU: /nowhere/libcuda.so.1") == 2
    assert "install NVIDIA's driver" in done.stdout


# -- while code is assembled -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "hint"), [(221, "ptxjitcompiler"), (222, "update the driver")])
def test_code_that_the_driver_does_not_take(driver: RecordingDriver, code: int, hint: str) -> None:
    driver.fail["cuLinkAddData_v2"] = code
    with pytest.raises(KernelError, match=rf"kernel '\w+', on NVIDIA H200(.|\n)*error {code}(.|\n)*{hint}"):
        weft.load(affine(), device="cuda")
    assert driver.calls["cuLinkDestroy"] == driver.calls["cuLinkCreate_v2"]
    with pytest.warns(FallbackWarning, match="cuda:0 failed, cpu is used instead"):
        loaded = weft.load(affine(), device=["cuda", "cpu"])
    np.testing.assert_allclose(loaded.run({"x": X})["y"], Y, rtol=1e-6)
    assert [(attempt.device, attempt.stage) for attempt in loaded.report().attempts] == [("cuda:0", "loading")]
    driver.fail.clear()
    assert weft.load(affine(), device="cuda").report().device == "cuda:0"


def test_native_code_gets_the_address_of_a_function() -> None:
    address = library.DriverLibrary(ctypes.pythonapi).address("Py_GetVersion")
    assert (ctypes.PYFUNCTYPE(ctypes.c_char_p)(address)() or b"").decode() == sys.version


# -- while it runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["cuLaunchKernel", "cuGraphLaunch", "cuStreamSynchronize", "cuMemcpyDtoHAsync_v2"])
def test_a_fault_that_the_gpu_does_not_recover_from(
    driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "cuGraphLaunch":
        monkeypatch.setattr(launches, "_RUNS_BEFORE_GRAPH", 0)
    loaded, other = weft.load(affine(), device="cuda"), weft.load(affine(), device="cuda")
    output = loaded.run({"x": X}, keep=["y"])["y"]
    driver.fails_once[where] = 700
    message = "is lost(.|\n)*start another process"
    with pytest.raises(DeviceLostError, match=message):
        loaded.run({"x": X})
    launched = len(driver.launched), len(driver.submitted)
    for lost in (loaded, other):
        with pytest.raises(DeviceLostError, match=message):
            lost.run({"x": X})
    with pytest.raises(DeviceLostError):
        output.numpy()
    with pytest.raises(DeviceLostError):
        weft.load(affine(), device="cuda", cache=False)
    assert (len(driver.launched), len(driver.submitted)) == launched


def test_the_next_device_takes_over(driver: RecordingDriver) -> None:
    loaded = weft.load(affine(), device=["cuda", "cpu"])
    loaded.run({"x": X})
    driver.fails_once["cuLaunchKernel"] = 700
    with pytest.warns(FallbackWarning, match="cuda:0 failed, cpu is used instead"):
        outputs = loaded.run({"x": X})
    np.testing.assert_allclose(outputs["y"], Y, rtol=1e-6)
    report = loaded.report()
    assert [(attempt.device, attempt.stage) for attempt in report.attempts] == [("cuda:0", "running")]
    assert "error 700" in str(report)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(loaded.run({"x": X})["y"], Y, rtol=1e-6)


def test_a_fault_that_passes(driver: RecordingDriver) -> None:
    loaded = weft.load(affine(), device="cuda")
    driver.fails_once["cuLaunchKernel"] = 701
    with pytest.raises(DeviceError, match=r"cuLaunchKernel of \w+.*error 701") as raised:
        loaded.run({"x": X})
    assert not isinstance(raised.value, DeviceLostError)
    loaded.run({"x": X})


def test_a_device_that_is_lost_before_it_is_opened(attach: Attach) -> None:
    driver = attach(H200)
    driver.fail["cuDevicePrimaryCtxRetain"] = 46
    with pytest.raises(DeviceLostError, match="error 46"):
        weft.load(affine(), device="cuda")
    driver.fail.clear()
    assert weft.load(affine(), device="cuda").report().device == "cuda:0"


# -- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_may_not_use_it(driver: RecordingDriver) -> None:
    loaded = weft.load(affine(), device="cuda")
    output = loaded.run({"x": X}, keep=["y"])["y"]
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
        child = os.fork()
    if not child:
        messages = []
        try:
            before = sum(driver.calls.values())
            for use in (lambda: loaded.run({"x": X}), output.numpy, open_gpu):
                try:
                    use()
                    messages.append("it ran")
                except DeviceError as error:
                    messages.append(str(error))
            output.release()
            messages.append(str(sum(driver.calls.values()) - before))
        finally:
            os.write(write, "\n--\n".join(messages).encode())
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as content:
        *errors, calls = content.read().split("\n--\n")
    assert len(errors) == 3
    assert all("forked" in error and "spawn" in error for error in errors)
    assert calls == "0"
    loaded.run({"x": X})
    assert output.numpy().shape == Y.shape
