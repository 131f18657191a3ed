"""Models of scikit-learn, XGBoost, LightGBM and CatBoost, as their converters write them, compared with onnxruntime.

models.zip has them with their inputs and with what onnxruntime made of these, or the estimator itself where onnxruntime
refuses the model; write_models.py made it.
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
    "outlier_int64",  # the root of whole numbers
    "polynomial_double",  # floats and doubles, joined
    "stacking_two",  # four columns for a model of two
}
"""Models that converters get wrong, which onnxruntime refuses too."""
UNTYPED = {"one_vs_one_words"}  # is said to give texts, and gives their numbers


def names() -> list[str]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        return sorted(name.removesuffix(".onnx") for name in archive.namelist() if name.endswith(".onnx"))


def load(name: str) -> tuple[bytes, dict[str, Array]]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        arrays = np.load(io.BytesIO(archive.read(f"{name}.npz")))
        return archive.read(f"{name}.onnx"), {key: arrays[key] for key in arrays.files}


def feeds(arrays: dict[str, Array]) -> dict[str, Array]:
    return {key.removeprefix("input."): _objects(array) for key, array in arrays.items() if key.startswith("input.")}


def _objects(array: Array) -> Array:
    return array.astype(object) if array.dtype.kind == "U" else array


@pytest.mark.parametrize("name", sorted(set(names()) - INVALID - UNTYPED))
def test_converted(name: str, request: pytest.FixtureRequest) -> None:
    model, arrays = load(name)
    both = request.config.getoption("--slow")
    devices = ["cpu", "reference"]
    for device in devices if both else devices[len(name) % 2 :][:1]:
        results = weft.load(model, device=device).run(feeds(arrays))
        compared = [_compare(key, array, results) for key, array in arrays.items() if not key.startswith("input.")]
        assert any(compared), "there is nothing to compare with"


def _compare(key: str, array: Array, results: dict[str, Any]) -> bool:
    """Compare what others say with the result of that name; False where there is no such result."""
    kind, _, name = key.partition(".")
    match kind:
        case "output":
            assert results[name].dtype == _objects(array).dtype, name
            _close(results[name], array)
        case _ if kind.startswith("part"):
            _close(results[name][int(kind.removeprefix("part"))], array)
        case "keys":
            assert all(list(row) == array.tolist() for row in results[name])
        case "maps":
            assert all(type(number) is float for row in results[name] for number in row.values())
            _close(np.array([list(row.values()) for row in results[name]]), array)
        case _:
            return _compare_estimated(name, array, list(results.values()))
    return True


def _compare_estimated(method: str, array: Array, results: list[Any]) -> bool:
    """What an estimator says, which may be of another shape and type."""
    place = 1 if method == "predict_proba" else 0
    if place >= len(results) or (method == "transform" and len(results) > 1):
        return False
    result = results[place]
    if isinstance(result, list) and isinstance(result[0], dict):
        result = np.array([list(row.values()) for row in result])
    _close(np.asarray(result).reshape(-1), array.reshape(-1), 1e-3)
    return True


def _close(actual: Array, expected: Array, tolerance: float = 1e-4) -> None:
    assert actual.shape == expected.shape
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    else:
        assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize("name", sorted(INVALID))
def test_a_model_that_a_converter_got_wrong_is_refused(name: str) -> None:
    model, arrays = load(name)
    with pytest.raises(weft.WeftError):
        weft.load(model).run(feeds(arrays))
