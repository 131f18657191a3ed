"""Converted models of scikit-learn, XGBoost, LightGBM and CatBoost, compared with onnxruntime.

models.zip, which write_models.py writes, has the models with inputs and expected outputs: those of onnxruntime, or of
the estimator if onnxruntime rejects the model.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft

Array = np.ndarray[Any, Any]
ARCHIVE = Path(__file__).with_name("models.zip")
INVALID = {
    "catboost_multiple",  # a classifier without labels
    "knn_of_two_outputs",  # probabilities of two and of three classes, joined
    "outlier_int64",  # the square root of integers
    "polynomial_double",  # floats and doubles, joined
    "stacking_two",  # four columns for a model of two
}
"""Models that the converters get wrong; onnxruntime rejects them, too."""
WRONG_TYPE = {"one_vs_one_words"}  # declares strings as its output, and returns indices


def model_names() -> list[str]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        return sorted(name.removesuffix(".onnx") for name in archive.namelist() if name.endswith(".onnx"))


def read_model(name: str) -> tuple[bytes, dict[str, Array]]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        arrays = np.load(io.BytesIO(archive.read(f"{name}.npz")))
        return archive.read(f"{name}.onnx"), {key: arrays[key] for key in arrays.files}


def select_inputs(arrays: dict[str, Array]) -> dict[str, Array]:
    return {key.removeprefix("input."): _to_objects(array) for key, array in arrays.items() if key.startswith("input.")}


def _to_objects(array: Array) -> Array:
    return array.astype(object) if array.dtype.kind == "U" else array


@pytest.mark.parametrize("name", sorted(set(model_names()) - INVALID - WRONG_TYPE))
def test_converted_model(name: str, request: pytest.FixtureRequest) -> None:
    model, arrays = read_model(name)
    devices = ["cpu", "reference"]
    for device in devices if request.config.getoption("--slow") else devices[len(name) % 2 :][:1]:
        results = weft.load(model, device=device).run(select_inputs(arrays))
        comparisons = [_compare(key, array, results) for key, array in arrays.items() if not key.startswith("input.")]
        assert any(comparisons), "no expected output was compared"


def _compare(key: str, array: Array, results: dict[str, Any]) -> bool:
    """Compare an expected output with the result of that name; return False if there is no such result."""
    kind, _, name = key.partition(".")
    match kind:
        case "output":
            assert results[name].dtype == _to_objects(array).dtype, name
            _assert_close(results[name], array)
        case _ if kind.startswith("part"):
            _assert_close(results[name][int(kind.removeprefix("part"))], array)
        case "keys":
            assert all(list(row) == array.tolist() for row in results[name])
        case "maps":
            assert all(type(number) is float for row in results[name] for number in row.values())
            _assert_close(np.array([list(row.values()) for row in results[name]]), array)
        case _:
            return _compare_with_estimator(name, array, list(results.values()))
    return True


def _compare_with_estimator(method: str, array: Array, results: list[Any]) -> bool:
    """Compare the output of an estimator, which may have another shape and type."""
    position = 1 if method == "predict_proba" else 0
    if position >= len(results) or (method == "transform" and len(results) > 1):
        return False
    result = results[position]
    if isinstance(result, list) and isinstance(result[0], dict):
        result = np.array([list(row.values()) for row in result])
    _assert_close(np.asarray(result).reshape(-1), array.reshape(-1), 1e-3)
    return True


def _assert_close(actual: Array, expected: Array, tolerance: float = 1e-4) -> None:
    assert actual.shape == expected.shape
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    else:
        assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize("name", sorted(INVALID))
def test_invalid_model_is_rejected(name: str) -> None:
    model, arrays = read_model(name)
    with pytest.raises(weft.WeftError):
        weft.load(model).run(select_inputs(arrays))
