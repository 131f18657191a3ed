"""Names of NVIDIA's GPUs, what is told of them, and what is kept on disk for each."""

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
from weft.backends.cuda import launches
from weft.backends.cuda.device import DEVICE
from weft.backends.device import Standing
from weft.errors import DeviceError

OLD = replace(T4, name="Tesla P100", capability=(6, 0))


def numbered(*described: object) -> list[object]:
    return [replace(each, number=number) for number, each in enumerate(described)]  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("name", "found"),
    [("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1"), ("cuda:h200", "cuda:0"), ("cuda:Tesla", "cuda:2")],
)
def test_names(attach: Attach, name: str, found: str) -> None:
    attach(*numbered(H200, A100, T4))
    loaded = weft.load(affine(), device=name)
    loaded.run({"x": X})
    assert loaded.report().device == found


@pytest.mark.parametrize("name", ["cuda:7", "cuda:b300"])
def test_names_of_nothing(attach: Attach, name: str) -> None:
    attach(*numbered(H200, A100))
    told = rf"no device '{name}'(.|\n)*cuda:0 \(NVIDIA H200\), cuda:1 \(NVIDIA A100\)"
    with pytest.raises(DeviceError, match=told):
        weft.load(affine(), device=name)


def test_a_gpu_that_is_too_old(attach: Attach) -> None:
    attach(*numbered(OLD, A100))
    assert DEVICE.find("").name == "cuda:1"
    assert [each.available for each in DEVICE.devices()] == [False, True]
    with pytest.raises(DeviceError, match=r"Tesla P100(.|\n)*too old"):
        weft.load(affine(), device="cuda:0")


def test_what_is_told(attach: Attach) -> None:
    attach(*numbered(H200, A100))
    first, _ = DEVICE.devices()
    assert (first.name, first.kind, first.driver) == ("cuda:0", "discrete", "CUDA 13.0")
    assert "NVIDIA H200, compute capability 9.0, 140 GiB" in first.description
    assert [each.name for each in DEVICE.automatic()] == ["cuda:0", "cuda:1"]
    assert DEVICE.standing(first) is Standing.ACCELERATOR


def test_a_second_load_assembles_nothing(attach: Attach, tmp_path: Path) -> None:
    file = tmp_path / "affine.onnx"
    file.write_bytes(affine().SerializeToString())

    def assembled(driver: RecordingDriver) -> int:
        loaded = weft.load(file, device="cuda")
        loaded.run({"x": X})
        return driver.calls["cuLinkAddData_v2"]

    assert assembled(attach(H200)) > 0
    assert assembled(attach(H200)) == 0
    assert assembled(attach(replace(H200, driver=12080))) > 0
    assert assembled(attach(A100)) > 0
    assert assembled(attach(H200)) == 0


def test_kernels_that_other_models_have(attach: Attach) -> None:
    """They are loaded once for a GPU, and assembled once for all."""
    driver = attach(H200)
    first = weft.load(affine(), device="cuda")
    made = driver.calls["cuLinkAddData_v2"], driver.calls["cuModuleLoadData"]
    changed = affine()
    changed.graph.node[0].name = "another"
    second = weft.load(changed, device="cuda")
    assert (driver.calls["cuLinkAddData_v2"], driver.calls["cuModuleLoadData"]) == made
    for loaded in (first, second):
        loaded.run({"x": X})


def test_code_is_told(driver: RecordingDriver) -> None:
    """As LLVM's and as PTX, without assembling anything."""
    listings = DEVICE.driver("cuda:0").listings(ONE)  # type: ignore[attr-defined]
    assert [each.title for each in listings] == ["LLVM", "PTX"]
    assert ".target sm_90a" in listings[1].text
    assert not driver.texts


@pytest.mark.parametrize("kept", [False, True])
def test_code_for_large_tensors(attach: Attach, monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    """Of models that were kept, too."""
    driver = attach(H200)
    loaded = weft.load(affine(), device="cuda", cache=kept)
    monkeypatch.setattr(launches, "_MOST_SHORT", 1)
    driver.texts.clear()
    loaded.run({"x": X})
    assert driver.texts
    assert all("st.global" in text for text in driver.texts)


@pytest.mark.parametrize("kept", [False, True])
def test_code_for_results_that_start_anywhere(attach: Attach, kept: bool) -> None:
    """The second part of a concatenation, 40 bytes from its start, is not written by 16 bytes at once."""
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
    loaded = weft.load(joined, device="cuda", cache=kept)
    driver.texts.clear()
    loaded.run({"a": np.ones(10, np.float32), "b": np.ones((64, 256), np.float32)})
    assert driver.texts
    assert not any("st.global.v4" in text for text in driver.texts)
