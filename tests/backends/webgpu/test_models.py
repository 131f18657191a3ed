"""Every model of the catalog agrees with the CPU on a GPU, at its own sizes and at others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from models.catalog import CatalogModel, load_catalog, random_inputs, size_variants

import weft

GPU = "webgpu:0"
WITHIN = 1e-3  # of the output's largest magnitude
SHAPES = 2
SLOW = {  # seconds that a software GPU takes on two cores
    "wired-table-rec__cycle_center_net_v1": 68,
    "pipecat-ai__smart-turn-v3.2-cpu": 55,
    "gpt2": 41,
    "speechmos__sig_bak_ovr": 37,
    "light_vgg19": 28,
    "captcha-recognizer__slider": 25,
    "light_densenet121": 20,
    "whisper_tiny_encoder": 20,
    "lineless-table-rec__lore_process": 20,
    "light_inception_v1": 20,
    "light_inception_v2": 17,
    "resnet50": 16,  # like light_resnet50
    "rapidocr__PP-OCRv6_det_small": 7,  # like ch_PP-OCRv4_det_infer
    "light_zfnet512": 7,  # like light_bvlc_alexnet
}


def _parameter(model: CatalogModel) -> Any:
    marks = [pytest.mark.slow(reason=f"{SLOW[model.name]} s on a software GPU")] if model.name in SLOW else []
    return pytest.param(model, id=model.name, marks=marks)


@pytest.mark.models
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", [_parameter(model) for model in load_catalog()])
def test_model_agrees_with_the_cpu(model: CatalogModel, record_property: Callable[[str, object], None]) -> None:
    if model.missing:
        pytest.skip(model.missing)
    cpu, gpu = weft.load(model.file, device="cpu"), weft.load(model.file, device=GPU)
    for seed, sizes in enumerate(size_variants(model)[:SHAPES]):
        inputs = random_inputs(model, sizes, seed)
        try:
            expected = cpu.run(inputs)
        except weft.WeftError as error:
            assert seed > 0, "not even its own sizes run"
            record_property("left out", f"shape {sizes}: {error}")
            continue
        outputs = gpu.run(inputs)
        for name, right in expected.items():
            assert outputs[name].dtype == right.dtype
            assert outputs[name].shape == right.shape
            most = np.abs(right.astype(np.float64)).max(initial=0)
            apart = np.abs(outputs[name].astype(np.float64) - right.astype(np.float64)).max(initial=0)
            assert apart <= WITHIN * most, f"{name} at {sizes or 'its own sizes'}, seed {seed}: {apart} of {most}"
