"""A case that can be rewritten: a model, its inputs, what they must give, and how to ask for it.

Forms copy what they change; a sample that was handed to a form can still be used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import weft

Array = np.ndarray[Any, Any]
Results = dict[str, Any]
DEFAULT_OPSET = 13  # for models that import another domain alone


@dataclass(frozen=True, slots=True)
class Sample:
    """`origins` names the output of the plain form that each output must equal; `call` loads and runs."""

    model: onnx.ModelProto
    inputs: Mapping[str, Any]
    expected: Mapping[str, Any]
    origins: Mapping[str, str] = field(default_factory=dict)
    call: Callable[[Sample, str], Results] | None = None

    @property
    def opset(self) -> int:
        return next((entry.version for entry in self.model.opset_import if not entry.domain), DEFAULT_OPSET)

    @property
    def tensors(self) -> dict[str, Array]:
        """The inputs that are tensors."""
        return {name: value for name, value in self.inputs.items() if isinstance(value, np.ndarray)}

    @property
    def has_tensor_outputs(self) -> bool:
        return all(isinstance(value, np.ndarray) for value in self.expected.values())

    def run(self, device: str) -> Results:
        return (self.call or run_once)(self, device)


Form = Callable[[Sample], "Sample | None"]  # None: the form does not apply


def run_once(sample: Sample, device: str, **options: Any) -> Results:
    loaded: Results = weft.load(sample.model, device=device, **options).run(sample.inputs)
    return loaded


def with_model(sample: Sample, **changes: Any) -> Sample:
    """The sample with a copy of its model that a form may edit, and that has ops of the default domain."""
    model = onnx.ModelProto()
    model.CopyFrom(sample.model)
    if not any(not entry.domain for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", DEFAULT_OPSET))
    return replace(sample, model=model, **changes)


def element_type(array: Array) -> int:
    if array.dtype == object:
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def declared(name: str, array: Array, shape: Any = ...) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type(array), array.shape if shape is ... else shape)


def declared_type(name: str, value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Another name of the same type."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy


def constant(name: str, array: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(array), name))


def replace_values(field: Any, values: Iterable[onnx.ValueInfoProto]) -> None:
    values = list(values)
    del field[:]
    field.extend(values)


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    nodes = list(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def defined(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """The values that nodes make."""
    for node in nodes:
        yield from (name for name in node.output if name)


def rename_nodes(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Copies of nodes in which values have other names, in their subgraphs too."""
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        _rename(copy, names)
        copies.append(copy)
    return copies


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {value.name for value in graph.input} | set(defined(graph.node))
            inner = {old: new for old, new in names.items() if old not in own}
            for nested in graph.node:
                _rename(nested, inner)
            for value in graph.output:
                value.name = inner.get(value.name, value.name)
