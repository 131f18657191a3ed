"""Runs whose sizes change: bits, memory and programs do not depend on the sizes that ran before."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from changing_sizes import CHANGING_MODELS, Inputs, agrees_with_prediction, record_run_memory
from peers import onnxruntime_run

import weft

SEED = 26
RUNS = 12  # of each model
FRESH = {"cpu": RUNS, "webgpu:0": 3}  # how many of them are compared with a fresh model
DEVICES = pytest.mark.parametrize("device", FRESH)
MODELS = pytest.mark.parametrize("name", CHANGING_MODELS)


def draw_runs(name: str) -> list[Inputs]:
    """Draw inputs of random sizes, print the seed, and visit some sizes again at the end."""
    print(f"seed {SEED}")
    random = np.random.default_rng([SEED, *name.encode()])
    runs = [CHANGING_MODELS[name].draw(random) for _ in range(RUNS - 2)]
    return [*runs, runs[1], runs[0]]


def shapes_of(inputs: Inputs) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in inputs.items()}


@DEVICES
@MODELS
def test_sizes_that_ran_before_change_nothing(name: str, device: str) -> None:
    """Compare a model that has run other sizes with a fresh one: outputs, predicted and actual memory."""
    source, runs = CHANGING_MODELS[name].build(), draw_runs(name)
    model = weft.load(source, device=device)
    oracle = onnx.load_model_from_string(source)
    for number, inputs in enumerate(runs):
        shapes = shapes_of(inputs)
        predicted = model.memory(shapes)
        assert bool(predicted.unplanned) != CHANGING_MODELS[name].is_planned
        with record_run_memory() as arenas:
            outputs = model.run(inputs)
        assert agrees_with_prediction(predicted, arenas, outputs, device), (
            f"{shapes}: {predicted!r}, but it took {arenas}"
        )
        for key, expected in zip(outputs, onnxruntime_run(oracle, inputs), strict=True):
            np.testing.assert_allclose(outputs[key], expected, rtol=1e-4, atol=1e-5, err_msg=f"{key} of {shapes}")
        if number < RUNS - FRESH[device]:
            continue
        fresh = weft.load(source, device=device)
        assert fresh.memory(shapes) == predicted, shapes
        with record_run_memory() as fresh_arenas:
            expected_outputs = fresh.run(inputs)
        assert predicted.unplanned or fresh_arenas == arenas, shapes
        for key, array in expected_outputs.items():
            assert array.tobytes() == outputs[key].tobytes(), f"{key} of {shapes} has other bits in a fresh model"


@DEVICES
@MODELS
def test_no_program_is_compiled_after_the_first(name: str, device: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "weft.compiling")
    model = weft.load(CHANGING_MODELS[name].build(), device=device)
    for inputs in draw_runs(name):
        model.run(inputs)
    compilations = [record.getMessage() for record in caplog.records if "one more program" in record.getMessage()]
    assert len(compilations) <= CHANGING_MODELS[name].programs, compilations
    assert not [record for record in caplog.records if "node by node" in record.getMessage()]


@pytest.mark.parametrize("name", [name for name, case in CHANGING_MODELS.items() if case.is_planned])
def test_memory_limit_agrees_with_predictions(name: str) -> None:
    """A run is refused exactly where the prediction is, whatever ran before."""
    source, runs = CHANGING_MODELS[name].build(), draw_runs(name)
    free = weft.load(source, device="cpu")
    peaks = [free.memory(shapes_of(inputs)).peak for inputs in runs]
    limit = sorted(peaks)[RUNS // 2]
    limited = weft.load(source, device="cpu", memory_limit=limit)
    for inputs, peak in zip(runs, peaks):
        try:
            limited.memory(shapes_of(inputs))
        except weft.OutOfMemoryError:
            assert peak > limit
            with pytest.raises(weft.OutOfMemoryError, match="memory_limit"):
                limited.run(inputs)
        else:
            limited.run(inputs)
