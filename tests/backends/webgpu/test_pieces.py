"""Programs in pieces on a GPU and the processor give what they give on one of them, wherever they are cut."""

from __future__ import annotations

import numpy as np
import pytest
from backends.mixed.test_runner import SAMPLES
from peers import onnxruntime_run
from placement.forcing import forced, optimised, posed, started

import weft
from weft.ir.tensors import DeviceTensor
from weft.runtime.devices import choose, compiling

GPU = "webgpu:llvmpipe"


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("side_by_side", [False, True], ids=["in order", "side by side"])
def test_wherever_it_is_cut(name: str, side_by_side: bool) -> None:
    built, feeds = SAMPLES[name]
    drivers = (compiling(choose(GPU).name), compiling("cpu"))
    problem = posed(optimised(built), drivers)
    for first in (0, 1):
        runner = started(forced(problem, drivers, lambda n, first=first: (n + first) % 2, side_by_side), drivers)  # type: ignore[misc]
        for feed in feeds:
            inputs = [feed[entry.name] for entry in built.graph.input]
            found = runner.run(inputs)
            for one, other in zip(found, onnxruntime_run(built, feed), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
            kept = runner.run(inputs, keep=range(len(found)))
            for one, other in zip(kept, found):
                array = one.numpy() if isinstance(one, DeviceTensor) else one
                assert array.tobytes() == other.tobytes()


def test_a_model_on_both() -> None:
    built, feeds = SAMPLES["layers"]
    loaded = weft.load(built, device=f"{GPU}+cpu", cache=False)
    assert loaded.device == "webgpu:0+cpu"
    found = loaded.run(feeds[0], keep=True)["y"]
    assert found.device == "webgpu:0"
    np.testing.assert_allclose(found.numpy(), onnxruntime_run(built, feeds[0])[0], rtol=1e-4, atol=1e-5)
