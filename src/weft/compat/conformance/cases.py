"""The cases of the suite in the installed onnx package, without the network.

Node cases are in memory. Others are folders with a model and its data, or refer to a model by URL. For the latter, the
package has light models, whose inputs are ramps from 0 to 1 and whose expected outputs are files next to the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from weft.compat.conformance.node_tests import load_node_tests
from weft.compat.conformance.records import CaseInfo
from weft.compat.positional import bind_inputs
from weft.errors import UnsupportedModelError
from weft.records import dataclass

_LIGHT_MODELS = "onnx/backend/test/data/light/"
_PACKAGES = Path(onnx.__file__).parent.parent


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A case to run. `source` is what to load; where that is None, `missing` is the reason."""

    info: CaseInfo
    test: TestCase
    model: onnx.ModelProto | None
    source: onnx.ModelProto | Path | None
    missing: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Inputs and expected outputs by name."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


def collect_cases(kinds: Iterable[str]) -> dict[str, Case]:
    """Return the cases of these kinds by name: node cases in the suite's order, others sorted."""
    cases: dict[str, Case] = {}
    for kind in kinds:
        if kind == "node":
            tests = load_node_tests()
        else:
            tests = sorted(load_model_tests(kind=kind), key=lambda test: test.name)
        cases.update((test.name, _make_case(test, kind)) for test in tests)
    return cases


def read_data_sets(case: Case) -> Iterator[DataSet]:
    """Yield the inputs and expected outputs of a case; each set is read when it is needed."""
    model = case.model
    assert model is not None, "a case with missing data has no data sets"
    if case.test.data_sets is not None:
        pairs: Iterable[tuple[list[Any], list[Any]]] = (
            ([_to_array(value) for value in inputs], [_to_array(value) for value in outputs])
            for inputs, outputs in case.test.data_sets
        )
    elif case.test.model_dir is not None:
        pairs = _read_folder(Path(case.test.model_dir), model.graph)
    else:
        assert isinstance(case.source, Path)
        pairs = [_make_light_data(case.source, model.graph)]
    for inputs, outputs in pairs:
        names = [output.name for output in model.graph.output[: len(outputs)]]
        yield DataSet(bind_inputs(model.graph, inputs), dict(zip(names, outputs, strict=True)))


def _make_case(test: TestCase, kind: str) -> Case:
    if test.model is not None:
        return Case(CaseInfo(test.name, kind, _list_ops(test.model.graph)), test, test.model, test.model)
    if test.model_dir is not None:
        path = Path(test.model_dir, "model.onnx")
    elif test.url is not None and test.url.startswith(_LIGHT_MODELS):
        path = _PACKAGES / test.url
    else:
        return Case(CaseInfo(test.name, kind, ()), test, None, None, f"the onnx package lacks its data: {test.url}")
    if not path.exists():
        return Case(CaseInfo(test.name, kind, ()), test, None, None, f"the onnx package lacks its model: {path.name}")
    model = onnx.load(path)
    return Case(CaseInfo(test.name, kind, _list_ops(model.graph)), test, model, path)


def _list_ops(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Return the op types in a graph and its subgraphs, sorted."""
    ops: set[str] = set()
    for node in graph.node:
        ops.add(node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}")
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                ops.update(_list_ops(subgraph))
    return tuple(sorted(ops))


def _read_folder(folder: Path, graph: onnx.GraphProto) -> Iterator[tuple[list[Any], list[Any]]]:
    for data in sorted(folder.glob("test_data_set*")):
        inputs = [_read_value(path, graph.input[i].type) for i, path in enumerate(_numbered_files(data, "input"))]
        outputs = [_read_value(path, graph.output[i].type) for i, path in enumerate(_numbered_files(data, "output"))]
        yield inputs, outputs


def _numbered_files(folder: Path, stem: str) -> list[Path]:
    return [folder / f"{stem}_{i}.pb" for i in range(len(list(folder.glob(f"{stem}_*.pb"))))]


def _make_light_data(path: Path, graph: onnx.GraphProto) -> tuple[list[Any], list[Any]]:
    defaults = {initializer.name for initializer in graph.initializer}
    inputs = [_make_ramp(value.type.tensor_type) for value in graph.input if value.name not in defaults]
    outputs = [
        _read_value(path.with_name(f"{path.stem}_output_{i}.pb"), value.type) for i, value in enumerate(graph.output)
    ]
    return inputs, outputs


def _make_ramp(type: onnx.TypeProto.Tensor) -> np.ndarray[Any, Any]:
    """Return the suite's input of a light model: float32 values from 0 to 1, with unknown dims of size 1."""
    shape = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in type.shape.dim]
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


def _read_value(path: Path, type: onnx.TypeProto) -> Any:
    content = path.read_bytes()
    match type.WhichOneof("value"):
        case "tensor_type":
            return numpy_helper.to_array(onnx.TensorProto.FromString(content))
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
        case other:
            raise UnsupportedModelError(f"the runner cannot read data of type {other}", file=str(path))


def _to_array(value: Any) -> Any:
    match value:
        case onnx.TensorProto():
            return numpy_helper.to_array(value)
        case list() | tuple():
            return [_to_array(element) for element in value]
        case np.generic():
            return np.asarray(value)
        case _:
            return value
