"""Real models as other exporters would have written them: dims without sizes or names, no ranks, one name for all dims,
initializers that are inputs too, another opset. They must give what onnxruntime gives for the model as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from attack.verdict import Payload, Verdict, right, wrong
from models.catalog import load_catalog, random_inputs
from onnx import helper, version_converter
from peers import onnxruntime_run

import weft

SECONDS = 300
SHARE = 2
QUICK_FILE, LARGEST_FILE = 100_000, 6_000_000
PROMISE = 1e-3  # of the largest output: float32 in another order, through a whole model


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    """All models that are here, in all forms, in random order: those first that take seconds."""
    del device
    small = [m for m in load_catalog() if m.kind == "pypi" and m.file.exists() and _size(m) <= LARGEST_FILE]
    pairs = [(model.name, form) for model in small for form in FORMS]
    quick = {model.name for model in small if _size(model) <= QUICK_FILE}
    shuffled = [pairs[int(number)] for number in random.permutation(len(pairs))]
    for name, form in sorted(shuffled, key=lambda pair: pair[0] not in quick):
        yield {"name": f"{name}: {form}", "model": name, "form": form}


def attack(payload: Payload, device: str) -> Verdict:
    entry = next(model for model in load_catalog() if model.name == payload["model"])
    built = onnx.load(entry.file)
    feeds = random_inputs(entry)
    expected = onnxruntime_run(built, feeds)
    names = [output.name for output in built.graph.output]
    try:
        results = weft.load(FORMS[payload["form"]](built), device=device, cache=False).run(feeds)
    except weft.InternalError:
        raise
    except weft.WeftError as error:
        return wrong(f"refused: {type(error).__name__}: {error}")
    for name, array in zip(names, expected):
        actual = results[name]
        if (actual.shape, actual.dtype) != (array.shape, array.dtype):
            return wrong(f"{name} is {actual.dtype}{actual.shape}, not {array.dtype}{array.shape}")
        if array.size and _distance(actual, array) > PROMISE:
            return wrong(f"{name} differs by {_distance(actual, array):.2g} of its largest element")
    return right()


def _size(model: Any) -> int:
    return int(model.file.stat().st_size)


def _distance(actual: np.ndarray, expected: np.ndarray) -> float:
    if expected.dtype == object:
        return float((actual != expected).any())
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    return float(np.nanmax(np.abs(actual - expected)) / (np.nanmax(np.abs(expected)) + 1e-9))


# -- forms -----------------------------------------------------------------------------------------------------------


def _opened(built: onnx.ModelProto, change: Callable[[str, Any], None]) -> onnx.ModelProto:
    """What is said of shapes left out: of inputs as `change` does it to name and type, elsewhere altogether."""
    constants = {constant.name for constant in built.graph.initializer}
    for input_name in built.graph.input:
        if input_name.name not in constants:
            change(input_name.name, input_name.type.tensor_type)
    del built.graph.value_info[:]
    for output in built.graph.output:
        output.type.tensor_type.ClearField("shape")
    return built


def _rename(name: Callable[[str, int], str]) -> Callable[[str, Any], None]:
    def change(input_name: str, type: Any) -> None:
        for axis, dim in enumerate(type.shape.dim):
            dim.Clear()
            dim.dim_param = name(input_name, axis)

    return change


def _with_inputs(built: onnx.ModelProto, ir_version: int) -> onnx.ModelProto:
    """Initializers as inputs too: defaults, or, as IR 3 has it, constants that are listed."""
    input_names = {input_name.name for input_name in built.graph.input}
    for constant in built.graph.initializer:
        if constant.name not in input_names:
            declared = helper.make_tensor_value_info(constant.name, constant.data_type, list(constant.dims))
            built.graph.input.append(declared)
    built.ir_version = ir_version
    return built


def _convert(built: onnx.ModelProto) -> onnx.ModelProto:
    """At a newer opset, where onnx can say how."""
    try:
        return version_converter.convert_version(built, 21)
    except Exception:
        return built


FORMS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "no sizes": lambda built: _opened(built, _rename(lambda *_: "")),
    "a name for each dim": lambda built: _opened(built, _rename(lambda input_name, axis: f"{input_name}_{axis}")),
    "one name for all dims": lambda built: _opened(built, _rename(lambda *_: "N")),
    "no ranks": lambda built: _opened(built, lambda _, type: type.ClearField("shape")),
    "defaults": lambda built: _with_inputs(built, 8),
    "IR 3": lambda built: _with_inputs(built, 3),
    "a newer opset": _convert,
}
