"""Names and descriptions of NVIDIA GPUs, and their code caches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from backends.cuda.conftest import Attach
from backends.cuda.recording_driver import A100, H200, T4, RecordingDriver
from backends.cuda.test_graphs import ONE
from frontend.samples import model, node, tensor, value
from test_api import X, affine

import weft
from weft.backends.cuda import launch_form
from weft.backends.cuda.device import DEVICE
from weft.backends.device import Standing
from weft.errors import DeviceError

OLD = replace(T4, name="Tesla P100", capability=(6, 0))


def numbered(*properties: object) -> list[object]:
    return [replace(device, number=number) for number, device in enumerate(properties)]  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("name", "device"),
    [("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1"), ("cuda:h200", "cuda:0"), ("cuda:Tesla", "cuda:2")],
)
def test_names(attach: Attach, name: str, device: str) -> None:
    attach(*numbered(H200, A100, T4))
    loaded = weft.load(affine(), device=name)
    loaded.run({"x": X})
    assert loaded.report().device == device


@pytest.mark.parametrize("name", ["cuda:7", "cuda:b300"])
def test_unknown_names(attach: Attach, name: str) -> None:
    attach(*numbered(H200, A100))
    message = rf"no device '{name}'(.|\n)*cuda:0 \(NVIDIA H200\), cuda:1 \(NVIDIA A100\)"
    with pytest.raises(DeviceError, match=message):
        weft.load(affine(), device=name)


def test_a_gpu_that_is_too_old(attach: Attach) -> None:
    attach(*numbered(OLD, A100))
    assert DEVICE.find("").name == "cuda:1"
    assert [device.available for device in DEVICE.devices()] == [False, True]
    with pytest.raises(DeviceError, match=r"Tesla P100(.|\n)*too old"):
        weft.load(affine(), device="cuda:0")


def test_descriptions(attach: Attach) -> None:
    attach(*numbered(H200, A100))
    first, _ = DEVICE.devices()
    assert (first.name, first.kind, first.driver) == ("cuda:0", "discrete", "CUDA 13.0")
    assert "NVIDIA H200, compute capability 9.0, 140 GiB" in first.description
    assert [device.name for device in DEVICE.automatic()] == ["cuda:0", "cuda:1"]
    assert DEVICE.standing(first) is Standing.ACCELERATOR


def test_a_second_load_assembles_nothing(attach: Attach, tmp_path: Path) -> None:
    file = tmp_path / "affine.onnx"
    file.write_bytes(affine().SerializeToString())

    def count_assemblies(driver: RecordingDriver) -> int:
        loaded = weft.load(file, device="cuda")
        loaded.run({"x": X})
        return driver.calls["cuLinkAddData_v2"]

    assert count_assemblies(attach(H200)) > 0
    assert count_assemblies(attach(H200)) == 0
    assert count_assemblies(attach(replace(H200, driver=12080))) > 0
    assert count_assemblies(attach(A100)) > 0
    assert count_assemblies(attach(H200)) == 0


def test_models_share_kernels(attach: Attach) -> None:
    """Equal kernels are loaded once per GPU, and assembled once."""
    driver = attach(H200)
    first = weft.load(affine(), device="cuda")
    counts = driver.calls["cuLinkAddData_v2"], driver.calls["cuModuleLoadData"]
    changed = affine()
    changed.graph.node[0].name = "another"
    second = weft.load(changed, device="cuda")
    assert (driver.calls["cuLinkAddData_v2"], driver.calls["cuModuleLoadData"]) == counts
    for loaded in (first, second):
        loaded.run({"x": X})


def test_listings(driver: RecordingDriver) -> None:
    """A driver lists kernels as LLVM IR and PTX without assembling them."""
    listings = DEVICE.driver("cuda:0").listings(ONE)  # type: ignore[attr-defined]
    assert [listing.title for listing in listings] == ["LLVM", "PTX"]
    assert ".target sm_90a" in listings[1].text
    assert not driver.texts


@pytest.mark.parametrize("cache", [False, True])
def test_code_for_large_tensors(attach: Attach, monkeypatch: pytest.MonkeyPatch, cache: bool) -> None:
    """Models from the cache recompile their kernels with 64-bit indices, too."""
    driver = attach(H200)
    loaded = weft.load(affine(), device="cuda", cache=cache)
    monkeypatch.setattr(launch_form, "_MOST_SHORT", 1)
    driver.texts.clear()
    loaded.run({"x": X})
    assert driver.texts
    assert all("st.global" in text for text in driver.texts)


@pytest.mark.parametrize("cache", [False, True])
def test_code_for_unaligned_outputs(attach: Attach, cache: bool) -> None:
    """The second part of a concatenation, 40 bytes from its start, is not written 16 bytes at a time."""
    driver = attach(H200)
    joined = model(
        [
            node("Sin", ["a"], ["c"]),
            node("MatMul", ["b", "w"], ["d"]),
            node("Reshape", ["d", "flat"], ["e"]),
            node("Concat", ["c", "e"], ["y"], axis=0),
        ],
        [value("a", [10]), value("b", [64, 256])],
        [value("y", None)],
        [tensor("w", np.ones((256, 128), np.float32)), tensor("flat", np.int64([-1]))],
    )
    loaded = weft.load(joined, device="cuda", cache=cache)
    driver.texts.clear()
    loaded.run({"a": np.ones(10, np.float32), "b": np.ones((64, 256), np.float32)})
    assert driver.texts
    assert not any("st.global.v4" in text for text in driver.texts)
