"""The cases of the installed onnx package's suite, without any network.

Node cases are in memory. Others are folders with a model and its data, or name a model by url: the package ships light
stand-ins for those, whose inputs are ramps from 0 to 1 and whose expected outputs lie beside the model.
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

from weft.compat.conformance.node_tests import node_tests
from weft.compat.conformance.records import CaseInfo
from weft.compat.positional import bind_inputs
from weft.errors import UnsupportedModelError
from weft.records import dataclass

_LIGHT_MODELS = "onnx/backend/test/data/light/"
_PACKAGES = Path(onnx.__file__).parent.parent


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A case ready to run. `source` is what to load, `missing` says why there is nothing to load."""

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


def collect(kinds: Iterable[str]) -> dict[str, Case]:
    """The cases of these kinds by name, in the suite's order (by name where that is a folder's)."""
    cases: dict[str, Case] = {}
    for kind in kinds:
        if kind == "node":
            tests = node_tests()
        else:
            tests = sorted(load_model_tests(kind=kind), key=lambda test: test.name)
        cases.update((test.name, _case(test, kind)) for test in tests)
    return cases


def data_sets(case: Case) -> Iterator[DataSet]:
    """The case's inputs with what they must give, read as they are asked for."""
    model = case.model
    assert model is not None, "a case with missing data has no data sets"
    if case.test.data_sets is not None:
        pairs: Iterable[tuple[list[Any], list[Any]]] = (
            ([_array(value) for value in inputs], [_array(value) for value in outputs])
            for inputs, outputs in case.test.data_sets
        )
    elif case.test.model_dir is not None:
        pairs = _stored_data(Path(case.test.model_dir), model.graph)
    else:
        assert isinstance(case.source, Path)
        pairs = [_light_data(case.source, model.graph)]
    for inputs, outputs in pairs:
        names = [output.name for output in model.graph.output[: len(outputs)]]
        yield DataSet(bind_inputs(model.graph, inputs), dict(zip(names, outputs, strict=True)))


def _case(test: TestCase, kind: str) -> Case:
    if test.model is not None:
        return Case(CaseInfo(test.name, kind, _ops(test.model.graph)), test, test.model, test.model)
    if test.model_dir is not None:
        path = Path(test.model_dir, "model.onnx")
    elif test.url is not None and test.url.startswith(_LIGHT_MODELS):
        path = _PACKAGES / test.url
    else:
        return Case(CaseInfo(test.name, kind, ()), test, None, None, f"the onnx package lacks its data: {test.url}")
    if not path.exists():
        return Case(CaseInfo(test.name, kind, ()), test, None, None, f"the onnx package lacks its model: {path.name}")
    model = onnx.load(path)
    return Case(CaseInfo(test.name, kind, _ops(model.graph)), test, model, path)


def _ops(graph: onnx.GraphProto) -> tuple[str, ...]:
    """The op types in a graph and its subgraphs."""
    found: set[str] = set()
    for node in graph.node:
        found.add(node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}")
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                found.update(_ops(subgraph))
    return tuple(sorted(found))


def _stored_data(folder: Path, graph: onnx.GraphProto) -> Iterator[tuple[list[Any], list[Any]]]:
    for data in sorted(folder.glob("test_data_set*")):
        inputs = [_read(path, graph.input[i].type) for i, path in enumerate(_numbered(data, "input"))]
        outputs = [_read(path, graph.output[i].type) for i, path in enumerate(_numbered(data, "output"))]
        yield inputs, outputs


def _numbered(folder: Path, stem: str) -> list[Path]:
    return [folder / f"{stem}_{i}.pb" for i in range(len(list(folder.glob(f"{stem}_*.pb"))))]


def _light_data(path: Path, graph: onnx.GraphProto) -> tuple[list[Any], list[Any]]:
    given = {initializer.name for initializer in graph.initializer}
    inputs = [_ramp(value.type.tensor_type) for value in graph.input if value.name not in given]
    outputs = [_read(path.with_name(f"{path.stem}_output_{i}.pb"), value.type) for i, value in enumerate(graph.output)]
    return inputs, outputs


def _ramp(kind: onnx.TypeProto.Tensor) -> np.ndarray[Any, Any]:
    """What the suite feeds a light model: float32 values from 0 to 1, unknown dims as 1."""
    shape = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in kind.shape.dim]
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    content = path.read_bytes()
    match kind.WhichOneof("value"):
        case "tensor_type":
            return numpy_helper.to_array(onnx.TensorProto.FromString(content))
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
        case other:
            raise UnsupportedModelError(f"the suite stores no data of type {other}", file=str(path))


def _array(value: Any) -> Any:
    match value:
        case onnx.TensorProto():
            return numpy_helper.to_array(value)
        case list() | tuple():
            return [_array(element) for element in value]
        case np.generic():
            return np.asarray(value)
        case _:
            return value
