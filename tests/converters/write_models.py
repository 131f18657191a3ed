"""Fit and convert all cases, and write the models with their inputs and expected outputs.

Run `python -m converters.write_models tests/converters/models.zip` (with `PYTHONPATH=tests`) in an environment with the
packages of requirements.txt and the locale en_US.UTF-8, which text models name. The tests only read the archive.
"""

from __future__ import annotations

import io
import sys
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from converters.cases import Case


def main() -> None:
    warnings.simplefilter("ignore")
    onnx.helper.make_attribute = _accept_bools(onnx.helper.make_attribute)
    onnxruntime.set_default_logger_severity(4)
    written, failed = 0, 0
    with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for case in all_cases():
            try:
                model, estimator = convert(case)
            except Exception as error:
                failed += 1
                print(f"{case.name}: not converted: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
                continue
            write_case(archive, case, model, estimator)
            written += 1
    print(f"{written} models written, {failed} not converted")


def _accept_bools(make_attribute: Any) -> Any:
    """Convert bools to integers: skl2onnx passes bools, which newer versions of protobuf reject."""

    def make(name: str, value: Any, *others: Any, **named: Any) -> Any:
        if isinstance(value, list) and any(isinstance(item, bool) for item in value):
            value = [int(item) for item in value]
        return make_attribute(name, value, *others, **named)

    return make


def all_cases() -> Iterator[Case]:
    from converters import boosters, estimators, texts

    yield from estimators.cases()
    yield from texts.cases()
    yield from boosters.cases()


def convert(case: Case) -> tuple[onnx.ModelProto, Any]:
    estimator = case.fit()
    types = [(name, _converter_type(array)) for name, array in case.inputs.items()]
    match case.converter:
        case "xgboost":
            from onnxmltools import convert_xgboost

            return convert_xgboost(estimator, initial_types=_onnxmltools_types(types), target_opset=15), estimator
        case "lightgbm":
            from onnxmltools import convert_lightgbm

            return convert_lightgbm(
                estimator, initial_types=_onnxmltools_types(types), target_opset=15, **case.options
            ), estimator
        case "catboost":
            import tempfile

            with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
                estimator.save_model(file.name, format="onnx")
                return onnx.load(file.name), estimator
    from skl2onnx import to_onnx

    options = case.options
    if options and all(isinstance(key, str) for key in options):
        options = {id(estimator): options}
    model = to_onnx(estimator, initial_types=types, options=options or None, target_opset=case.opset)
    return model, estimator


def _converter_type(array: Any) -> Any:
    from skl2onnx.common import data_types

    shape = [None, *array.shape[1:]]
    kinds = {"f4": "Float", "f8": "Double", "i8": "Int64"}
    if array.dtype == object:
        return data_types.StringTensorType(shape)
    return getattr(data_types, f"{kinds[array.dtype.str[1:]]}TensorType")(shape)


def _onnxmltools_types(types: list[Any]) -> list[Any]:
    from onnxmltools.convert.common import data_types

    return [(name, getattr(data_types, type(kind).__name__)(kind.shape)) for name, kind in types]


def run_estimator(case: Case, estimator: Any) -> dict[str, Any]:
    """Return the results of the estimator; strings as unicode arrays, which need no pickle."""
    x: Any = next(iter(case.inputs.values()))
    if len(case.inputs) > 1:
        import pandas

        x = pandas.DataFrame({name: array[:, 0] for name, array in case.inputs.items()})
    elif x.dtype == object and case.name.startswith(("tfidf", "count", "text")):
        x = x.reshape(-1).tolist()
    results: dict[str, Any] = {}
    for method in ("predict", "predict_proba", "transform"):
        try:
            result = getattr(estimator, method)(x)
            result = result.toarray() if hasattr(result, "toarray") else np.asarray(result)
        except Exception:  # the estimator lacks the method, or the result is not one array
            continue
        if result.dtype == object:
            result = result.astype(str)
        results[method] = result
    return results


def run_onnxruntime(case: Case, model: onnx.ModelProto) -> dict[str, Any]:
    """Return the outputs of onnxruntime, a list of maps as keys and rows; empty if it rejects the model."""
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        results = session.run(None, dict(case.inputs))
    except Exception as error:
        print(f"{case.name}: onnxruntime rejects it: {' '.join(str(error).split())[:160]}")
        return {}
    arrays: dict[str, Any] = {}
    for output, result in zip(session.get_outputs(), results):
        if isinstance(result, list) and not isinstance(result[0], dict):
            arrays |= {f"part{index}.{output.name}": _to_unicode(array) for index, array in enumerate(result)}
        elif isinstance(result, list):
            arrays[f"keys.{output.name}"] = np.array(list(result[0]))
            arrays[f"maps.{output.name}"] = np.array([list(row.values()) for row in result])
        else:
            arrays[f"output.{output.name}"] = _to_unicode(np.asarray(result))
    return arrays


def write_case(archive: zipfile.ZipFile, case: Case, model: onnx.ModelProto, estimator: Any) -> None:
    model.ClearField("doc_string")
    arrays = {f"input.{name}": _to_unicode(array) for name, array in case.inputs.items()}
    arrays |= run_onnxruntime(case, model) or {
        f"expected.{name}": array for name, array in run_estimator(case, estimator).items()
    }
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    for name, content in ((f"{case.name}.onnx", model.SerializeToString()), (f"{case.name}.npz", stream.getvalue())):
        archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


def _to_unicode(array: Any) -> Any:
    return array.astype(str) if array.dtype == object else array


if __name__ == "__main__":
    main()
