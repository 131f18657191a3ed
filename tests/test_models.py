"""Every model of the catalog agrees with onnxruntime in native code, at several sizes of dynamic dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from models.catalog import Array, CatalogModel, dim_groups, load_catalog, random_inputs, size_variants

import weft

TOLERANCE = 1e-3
"""Largest difference, relative to the largest magnitude of the output; or three times the model's own noise."""

MOST_ON_REFERENCE = 2  # shapes: it takes long, and goes the same way for all of them

SLOW = {  # CPU seconds of large models; smaller ones of the same kind remain
    "wired-table-rec__cycle_center_net_v1": 9,
    "gpt2": 8,
    "speechmos__sig_bak_ovr": 7,
    "rapidocr__ch_PP-OCRv4_rec_infer": 4,
    "light_vgg19": 3,
    "rapidocr__ch_PP-OCRv4_det_infer": 3,
}


def _parameter(model: CatalogModel) -> Any:
    marks = [pytest.mark.slow(reason=f"{SLOW[model.name]} s of CPU time")] if model.name in SLOW else []
    return pytest.param(model, id=model.name, marks=marks)


@pytest.mark.models
@pytest.mark.timeout(900)
@pytest.mark.parametrize("entry", [_parameter(model) for model in load_catalog()])
def test_agrees_with_onnxruntime(entry: CatalogModel, record_property: Callable[[str, object], None]) -> None:
    if entry.missing:
        pytest.skip(entry.missing)
    oracle = _onnxruntime(entry)
    models = {device: weft.load(entry.file, device=device) for device in ("reference", "cpu")}
    _check_inputs(entry, models["cpu"])
    assert not [step for step in models["cpu"].explain() if not step.by_nature]
    shapes: dict[str, set[tuple[int, ...]]] = {}
    on_reference = 0
    for seed, sizes in enumerate(size_variants(entry)):
        inputs = random_inputs(entry, sizes, seed)
        expected = _expected(oracle, inputs)
        if isinstance(expected, str):
            assert seed > 0, f"onnxruntime refuses even the sample shape: {expected}"
            record_property("left out", f"shape {sizes}: onnxruntime refuses it: {expected}")
            continue
        for device, model in models.items():
            if device == "reference":
                on_reference += 1
                if on_reference > MOST_ON_REFERENCE:
                    continue
            actual = model.run(inputs)
            assert list(actual) == list(expected)
            for name, array in expected.items():
                _check_agreement(entry, f"{name} at {sizes} on {device}", np.asarray(actual[name]), array)
                shapes.setdefault(name, set()).add(array.shape)
    _check_outputs(models["cpu"], shapes)


def test_catalog_is_complete() -> None:
    models = load_catalog()
    assert len({model.name for model in models}) == len(models) == 54
    for model in models:
        inputs = random_inputs(model)
        assert {name: array.shape for name, array in inputs.items()} == {spec.name: spec.shape for spec in model.inputs}
        assert all(np.array_equal(array, random_inputs(model)[name]) for name, array in inputs.items())


ORACLE_ERROR = {"credsweeper__ml_model": 2e-7}
"""Absolute errors of onnxruntime itself, which matter where all outputs are tiny.

credsweeper: its Sigmoid is an approximation; of logits -9.27567 and -11.763844 it makes 9.36687e-05 and 7.77841e-06,
where float64 gives 9.36671e-05 and 7.78080e-06 (and weft, from its own logits, 9.36668e-05 and 7.78077e-06).
"""


def _onnxruntime(entry: CatalogModel) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(entry.file), options, providers=["CPUExecutionProvider"])


def _expected(oracle: onnxruntime.InferenceSession, inputs: Mapping[str, Array]) -> dict[str, Array] | str:
    """Return onnxruntime's outputs, or its error message."""
    try:
        outputs = oracle.run(None, dict(inputs))
    except Exception as error:  # onnxruntime's own exception types are not public
        return str(error).splitlines()[0][:200]
    return {declared.name: output for declared, output in zip(oracle.get_outputs(), outputs, strict=True)}


def _check_inputs(entry: CatalogModel, model: weft.Model) -> None:
    """Check that exactly the dynamic dims of the file are symbolic."""
    open_places = {place for group in dim_groups(entry) for place in group.places}
    specs = {spec.name: spec for spec in model.inputs}
    assert sorted(specs) == sorted(spec.name for spec in entry.inputs)
    for spec in entry.inputs:
        assert specs[spec.name].dtype == spec.dtype
        for axis, dim in enumerate(specs[spec.name].shape):
            if (spec.name, axis) in open_places:
                assert isinstance(dim, str), f"axis {axis} of {spec.name} should be symbolic, not {dim}"
            else:
                assert dim == spec.shape[axis]


def _check_outputs(model: weft.Model, shapes: Mapping[str, set[tuple[int, ...]]]) -> None:
    """Check that dims that varied are symbolic, and that static dims never varied."""
    for spec in model.outputs:
        for shape in shapes[spec.name]:
            assert len(spec.shape) == len(shape)
            for axis, (dim, size) in enumerate(zip(spec.shape, shape, strict=True)):
                assert isinstance(dim, str) or dim == size, f"axis {axis} of {spec.name} is {size}, declared {dim}"


def _check_agreement(entry: CatalogModel, what: str, actual: Array, expected: Array) -> None:
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    assert np.array_equal(np.isfinite(actual), np.isfinite(expected)), f"{what}: infinities or NaNs differ"
    finite = np.isfinite(expected)
    wide_actual, wide_expected = actual[finite].astype(np.float64), expected[finite].astype(np.float64)
    allowed = max(TOLERANCE, 3 * entry.noise) * np.abs(wide_expected).max(initial=0.0)
    allowed = max(allowed, ORACLE_ERROR.get(entry.name, 0.0))
    difference = np.abs(wide_actual - wide_expected).max(initial=0.0)
    assert difference <= allowed, f"{what}: differs by {difference:.3g}, allowed are {allowed:.3g}"
