"""Kernels of many kinds on WebGPU, for a GPU with shared memory and for a software rasteriser, against onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from export.many_kernels import build_inputs, build_model, compute_expected

import weft
from weft.backends.webgpu import targets
from weft.runtime.options import Precision

SEED = 20261120


@pytest.mark.parametrize("precision", ["float32", "fast", "strict"])
@pytest.mark.parametrize("shares", [False, True])
def test_many_kernels(shares: bool, precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", SEED)
    build = targets.build_target

    def build_sharing(*arguments: Any, **options: Any) -> Any:
        return replace(build(*arguments, **options), sharing_pays=shares)

    monkeypatch.setattr(targets, "build_target", build_sharing)
    model, inputs = build_model(), build_inputs(SEED)
    actual = weft.load(model, device="webgpu:0", precision=precision, cache=False).run(inputs)
    for name, array in compute_expected(model, inputs).items():
        if array.dtype.kind != "f":
            np.testing.assert_array_equal(actual[name], array, err_msg=name)
            continue
        bound = (2e-3 if precision == "fast" else 1e-5) * max(np.abs(array).max(), 1)
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=bound, err_msg=name)
