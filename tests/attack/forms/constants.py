"""Forms in which inputs are known when the model is loaded, or may be left to a default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from attack.forms.sample import Array, Form, Sample, constant, replace_nodes, replace_values, with_model
from onnx import helper


def all_initializers(sample: Sample) -> Sample | None:
    """All tensors are initializers: there is nothing left to compute."""
    return _with_constants(sample, sample.tensors)


def only(position: int) -> Form:
    """One input is an initializer, the others are given."""

    def form(sample: Sample) -> Sample | None:
        names = list(sample.tensors)
        return _with_constants(sample, names[position : position + 1]) if len(names) > 1 else None

    return form


def all_but_first(sample: Sample) -> Sample | None:
    """The first input is data, the rest are weights."""
    names = list(sample.tensors)
    return _with_constants(sample, names[1:]) if len(names) > 2 else None


def integers(sample: Sample) -> Sample | None:
    """Integers (shapes, axes, indices) are known, numbers are data."""
    integer_names = [name for name, array in sample.tensors.items() if array.dtype.kind in "iub"]
    return _with_constants(sample, integer_names) if len(integer_names) < len(sample.tensors) else None


def from_shapes(sample: Sample) -> Sample | None:
    """Integers that are sizes of another input are taken from its shape, others are known."""
    data = {n: a for n, a in sample.tensors.items() if a.dtype.kind == "f" and a.ndim}
    sizes = {n: a for n, a in sample.tensors.items() if a.dtype == np.int64 and a.ndim <= 1 and 0 < a.size <= 8}
    where = {int(size): (name, axis) for name, array in data.items() for axis, size in enumerate(array.shape)}
    if not any(int(number) in where for array in sizes.values() for number in array.flat):
        return None
    result = _with_constants(sample, sizes)
    assert result is not None
    graph = result.model.graph
    nodes = []
    for name, array in sizes.items():
        parts = [f"{name}_size_{position}" for position in range(array.size)]
        for part, number in zip(parts, array.flat):
            nodes += _size(part, int(number), where.get(int(number)))
        joined = f"{name}_joined" if array.ndim == 0 else name
        nodes.append(helper.make_node("Concat", parts, [joined], axis=0))
        if array.ndim == 0:
            nodes += [constant(f"{name}_none", np.empty(0, np.int64))]
            nodes.append(helper.make_node("Reshape", [joined, f"{name}_none"], [name]))
    del graph.initializer[:]
    replace_nodes(graph, [*nodes, *graph.node])
    return result


def _size(name: str, number: int, source: tuple[str, int] | None) -> list[onnx.NodeProto]:
    if source is None:
        return [constant(name, np.int64([number]))]
    return [
        helper.make_node("Shape", [source[0]], [f"{name}_shape"]),
        constant(f"{name}_axis", np.int64([source[1]])),
        helper.make_node("Gather", [f"{name}_shape", f"{name}_axis"], [name], axis=0),
    ]


def constant_nodes(sample: Sample) -> Sample | None:
    """All tensors come from Constant nodes."""
    return _with_constants(sample, sample.tensors, as_nodes=True)


def defaults_used(sample: Sample) -> Sample | None:
    """All tensors are defaults, and none is given."""
    return _with_defaults(sample, sample.tensors, overridden=False)


def defaults_overridden(sample: Sample) -> Sample | None:
    """All tensors have defaults, floats other ones than what is given."""
    return _with_defaults(sample, {name: _other(array) for name, array in sample.tensors.items()}, overridden=True)


def _other(array: Array) -> Array:
    return np.ascontiguousarray(np.flip(array)).reshape(array.shape) if array.dtype.kind == "f" else array


def _with_defaults(sample: Sample, defaults: Mapping[str, Array], *, overridden: bool) -> Sample | None:
    if not defaults:
        return None
    result = with_model(sample, inputs={n: v for n, v in sample.inputs.items() if overridden or n not in defaults})
    result.model.graph.initializer.extend(tensor(name, array) for name, array in defaults.items())
    for value in result.model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return result


def _with_constants(sample: Sample, names: Iterable[str], *, as_nodes: bool = False) -> Sample | None:
    constant_names = set(names)
    if not constant_names:
        return None
    result = with_model(sample, inputs={n: v for n, v in sample.inputs.items() if n not in constant_names})
    graph = result.model.graph
    result.model.ir_version = max(result.model.ir_version, 4)  # from then on an initializer need not be an input
    replace_values(graph.input, [value for value in graph.input if value.name not in constant_names])
    if as_nodes:
        replace_nodes(graph, [*(constant(n, sample.inputs[n]) for n in sorted(constant_names)), *graph.node])
    else:
        graph.initializer.extend(tensor(name, sample.inputs[name]) for name in sorted(constant_names))
    return result


def tensor(name: str, array: Any) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.asarray(array), name)
