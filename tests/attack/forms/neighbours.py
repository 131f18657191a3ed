"""Forms with neighbours before and after that change nothing, or what numpy changes as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from attack.forms.sample import (
    Array,
    Form,
    Sample,
    constant,
    declared,
    element_type,
    replace_nodes,
    replace_values,
    with_model,
)
from onnx import TensorProto, helper

Nodes = Sequence[onnx.NodeProto]
Before = Callable[[str, str, Array, int], "Nodes | None"]  # given, wanted, its content, opset -> nodes
After = Callable[[str, str, Array, int], "tuple[Nodes, Array] | None"]  # made, wanted, its content, opset

node = helper.make_node
SIGNED = "fi"


def before(make: Before) -> Form:
    """Each tensor input, where `make` has nodes for it, comes through those."""

    def form(sample: Sample) -> Sample | None:
        made = {name: make(f"{name}_given", name, array, sample.opset) for name, array in sample.tensors.items()}
        made = {name: nodes for name, nodes in made.items() if nodes is not None}
        if not made:
            return None
        result = with_model(
            sample, inputs={f"{name}_given" if name in made else name: v for name, v in sample.inputs.items()}
        )
        graph = result.model.graph
        for value in graph.input:
            if value.name in made:
                value.name += "_given"
        replace_nodes(graph, [*(entry for nodes in made.values() for entry in nodes or ()), *graph.node])
        return result

    return form


def after(make: After, *, keep: bool = False) -> Form:
    """Each tensor output, where `make` has nodes for it, goes through those; `keep` leaves it an output as well."""

    def form(sample: Sample) -> Sample | None:
        expected: dict[str, Any] = {}
        nodes: list[onnx.NodeProto] = []
        outputs: list[onnx.ValueInfoProto] = []
        for value in sample.model.graph.output:
            content = sample.expected[value.name]
            is_tensor = isinstance(content, np.ndarray)
            made = make(value.name, f"{value.name}_after", content, sample.opset) if is_tensor else None
            if made is None or keep:
                expected[value.name] = content
                outputs.append(value)
            if made is not None:
                nodes.extend(made[0])
                expected[f"{value.name}_after"] = made[1]
                outputs.append(declared(f"{value.name}_after", made[1]))
        if not nodes:
            return None
        result = with_model(sample, expected=expected)
        result.model.graph.node.extend(nodes)
        replace_values(result.model.graph.output, outputs)
        return result

    return form


# -- before --------------------------------------------------------------------------------------------------------


def identity(given: str, wanted: str, array: Array, opset: int) -> Nodes | None:
    return [node("Identity", [given], [wanted])]


def twice_negative(given: str, wanted: str, array: Array, opset: int) -> Nodes | None:
    if array.dtype == bool:
        return [node("Not", [given], [f"{wanted}_not"]), node("Not", [f"{wanted}_not"], [wanted])]
    if not _negates(array, opset):
        return None
    return [node("Neg", [given], [f"{wanted}_negative"]), node("Neg", [f"{wanted}_negative"], [wanted])]


def _negates(array: Array, opset: int) -> bool:
    kinds = {"float16", "float32", "float64", "int8", "int16", "int32", "int64"}
    return opset >= 6 and array.dtype.name in (kinds | {"bfloat16"} if opset >= 13 else kinds)


def twice_transposed(given: str, wanted: str, array: Array, opset: int) -> Nodes | None:
    if array.ndim < 2 or not _moves(array, opset):
        return None
    turned = f"{wanted}_turned"
    return [node("Transpose", [given], [turned]), node("Transpose", [turned], [wanted])]


def flattened(given: str, wanted: str, array: Array, opset: int) -> Nodes | None:
    """Flattened, and brought back to a constant shape."""
    if opset < 5 or not array.size or not _moves(array, opset):
        return None
    flat, shape = f"{wanted}_flat", f"{wanted}_shape"
    return [
        constant(f"{wanted}_all", np.int64([-1])),
        constant(shape, np.int64(array.shape)),
        node("Reshape", [given, f"{wanted}_all"], [flat]),
        node("Reshape", [flat, shape], [wanted]),
    ]


def flattened_by_shape(given: str, wanted: str, array: Array, opset: int) -> Nodes | None:
    """Flattened, and brought back to the shape that it had."""
    if opset < 5 or not array.size or not array.ndim or not _moves(array, opset):
        return None
    flat, shape = f"{wanted}_flat", f"{wanted}_shape"
    return [
        node("Shape", [given], [shape]),
        constant(f"{wanted}_all", np.int64([-1])),
        node("Reshape", [given, f"{wanted}_all"], [flat]),
        node("Reshape", [flat, shape], [wanted]),
    ]


def in_two_parts(given: str, wanted: str, array: Array, opset: int) -> Nodes | None:
    """Cut in two, and put together."""
    if opset < 13 or not array.ndim or array.shape[0] < 2 or not _moves(array, opset):
        return None
    parts = [f"{wanted}_head", f"{wanted}_tail"]
    sizes = f"{wanted}_sizes"
    return [
        constant(sizes, np.int64([1, array.shape[0] - 1])),
        node("Split", [given, sizes], parts, axis=0),
        node("Concat", parts, [wanted], axis=0),
    ]


def _moves(array: Array, opset: int) -> bool:
    """Whether ops that move elements take this type in this opset."""
    name = array.dtype.name
    if name == "bfloat16":
        return opset >= 13
    if name.startswith("float8") and "e8m0" not in name:
        return opset >= 21
    if name in ("int4", "uint4"):
        return opset >= 21
    if name.startswith("float4") or "e8m0" in name:
        return opset >= 24
    if name in ("int2", "uint2"):
        return opset >= 25
    return True


# -- after ---------------------------------------------------------------------------------------------------------


def same(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    return [node("Identity", [made], [wanted])], array


def added_zero(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    if opset < 7 or not _adds(array, opset):
        return None
    zero = f"{wanted}_zero"
    return [constant(zero, np.zeros((), array.dtype)), node("Add", [made, zero], [wanted])], array


def _adds(array: Array, opset: int) -> bool:
    name = array.dtype.name
    if name in ("float16", "float32", "float64", "int32", "int64", "uint32", "uint64"):
        return True
    return (opset >= 14 and name in ("int8", "int16", "uint8", "uint16")) or (opset >= 13 and name == "bfloat16")


def rectified(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    if array.dtype.name not in ("float16", "float32", "float64") or opset < 6 or np.isnan(array).any():
        return None
    return [node("Relu", [made], [wanted])], np.maximum(array, array.dtype.type(0))


WIDER = {
    "bool": TensorProto.INT32, "int8": TensorProto.INT32, "uint8": TensorProto.INT32, "int16": TensorProto.INT32,
    "uint16": TensorProto.INT32, "int32": TensorProto.INT64, "uint32": TensorProto.INT64,
    "float16": TensorProto.FLOAT, "float32": TensorProto.DOUBLE, "bfloat16": TensorProto.FLOAT,
}  # fmt: skip


def there_and_back(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """Cast to a wider type and back."""
    wider = WIDER.get(array.dtype.name)
    if wider is None or opset < 9 or (array.dtype.name == "bfloat16" and opset < 13):
        return None
    there = node("Cast", [made], [f"{wanted}_wider"], to=wider)
    return [there, node("Cast", [f"{wanted}_wider"], [wanted], to=element_type(array))], array


def doubled_and_cut(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """Put beside itself, and the first half taken."""
    if opset < 10 or not array.ndim or not _moves(array, opset):
        return None
    double, start, end, axis = f"{wanted}_double", f"{wanted}_start", f"{wanted}_end", f"{wanted}_axis"
    last = array.ndim - 1
    return [
        node("Concat", [made, made], [double], axis=last),
        constant(start, np.int64([0])),
        constant(end, np.int64([array.shape[last]])),
        constant(axis, np.int64([last])),
        node("Slice", [double, start, end, axis], [wanted]),
    ], array


def turned(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    if array.ndim < 2 or not _moves(array, opset):
        return None
    return [node("Transpose", [made], [wanted])], np.transpose(array)


def flat(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    if opset < 5 or not _moves(array, opset) or not array.size:
        return None
    return [
        constant(f"{wanted}_all", np.int64([-1])),
        node("Reshape", [made, f"{wanted}_all"], [wanted]),
    ], array.ravel()
