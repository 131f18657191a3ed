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
Before = Callable[[str, str, Array, int], "Nodes | None"]  # source, target, its content, opset -> nodes
After = Callable[[str, str, Array, int], "tuple[Nodes, Array] | None"]  # source, target, its content, opset

node = helper.make_node
SIGNED = "fi"


def before(make: Before) -> Form:
    """Each tensor input, where `make` has nodes for it, comes through those."""

    def form(sample: Sample) -> Sample | None:
        source = {name: make(f"{name}_source", name, array, sample.opset) for name, array in sample.tensors.items()}
        source = {name: nodes for name, nodes in source.items() if nodes is not None}
        if not source:
            return None
        result = with_model(
            sample, inputs={f"{name}_source" if name in source else name: v for name, v in sample.inputs.items()}
        )
        graph = result.model.graph
        for value in graph.input:
            if value.name in source:
                value.name += "_source"
        replace_nodes(graph, [*(entry for nodes in source.values() for entry in nodes or ()), *graph.node])
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
            source = make(value.name, f"{value.name}_after", content, sample.opset) if is_tensor else None
            if source is None or keep:
                expected[value.name] = content
                outputs.append(value)
            if source is not None:
                nodes.extend(source[0])
                expected[f"{value.name}_after"] = source[1]
                outputs.append(declared(f"{value.name}_after", source[1]))
        if not nodes:
            return None
        result = with_model(sample, expected=expected)
        result.model.graph.node.extend(nodes)
        replace_values(result.model.graph.output, outputs)
        return result

    return form


# -- before --------------------------------------------------------------------------------------------------------


def identity(source: str, target: str, array: Array, opset: int) -> Nodes | None:
    return [node("Identity", [source], [target])]


def twice_negative(source: str, target: str, array: Array, opset: int) -> Nodes | None:
    if array.dtype == bool:
        return [node("Not", [source], [f"{target}_not"]), node("Not", [f"{target}_not"], [target])]
    if not _negates(array, opset):
        return None
    return [node("Neg", [source], [f"{target}_negative"]), node("Neg", [f"{target}_negative"], [target])]


def _negates(array: Array, opset: int) -> bool:
    kinds = {"float16", "float32", "float64", "int8", "int16", "int32", "int64"}
    return opset >= 6 and array.dtype.name in (kinds | {"bfloat16"} if opset >= 13 else kinds)


def twice_transposed(source: str, target: str, array: Array, opset: int) -> Nodes | None:
    if array.ndim < 2 or not _moves(array, opset):
        return None
    turned = f"{target}_turned"
    return [node("Transpose", [source], [turned]), node("Transpose", [turned], [target])]


def flattened(source: str, target: str, array: Array, opset: int) -> Nodes | None:
    """Flattened, and brought back to a constant shape."""
    if opset < 5 or not array.size or not _moves(array, opset):
        return None
    flat, shape = f"{target}_flat", f"{target}_shape"
    return [
        constant(f"{target}_all", np.int64([-1])),
        constant(shape, np.int64(array.shape)),
        node("Reshape", [source, f"{target}_all"], [flat]),
        node("Reshape", [flat, shape], [target]),
    ]


def flattened_by_shape(source: str, target: str, array: Array, opset: int) -> Nodes | None:
    """Flattened, and brought back to the shape that it had."""
    if opset < 5 or not array.size or not array.ndim or not _moves(array, opset):
        return None
    flat, shape = f"{target}_flat", f"{target}_shape"
    return [
        node("Shape", [source], [shape]),
        constant(f"{target}_all", np.int64([-1])),
        node("Reshape", [source, f"{target}_all"], [flat]),
        node("Reshape", [flat, shape], [target]),
    ]


def in_two_parts(source: str, target: str, array: Array, opset: int) -> Nodes | None:
    """Cut in two, and put together."""
    if opset < 13 or not array.ndim or array.shape[0] < 2 or not _moves(array, opset):
        return None
    parts = [f"{target}_head", f"{target}_tail"]
    sizes = f"{target}_sizes"
    return [
        constant(sizes, np.int64([1, array.shape[0] - 1])),
        node("Split", [source, sizes], parts, axis=0),
        node("Concat", parts, [target], axis=0),
    ]


def through_sequence(source: str, target: str, array: Array, opset: int) -> Nodes | None:
    """Put into a sequence, and taken out again."""
    if opset < 11 or not _is_plain(array):
        return None
    return [
        constant(f"{target}_position", np.int64(0)),
        node("SequenceConstruct", [source], [f"{target}_sequence"]),
        node("SequenceAt", [f"{target}_sequence", f"{target}_position"], [target]),
    ]


def through_optional(source: str, target: str, array: Array, opset: int) -> Nodes | None:
    """Made optional, and there after all."""
    if opset < 15 or not _is_plain(array):
        return None
    return [
        node("Optional", [source], [f"{target}_optional"]),
        node("OptionalGetElement", [f"{target}_optional"], [target]),
    ]


def _is_plain(array: Array) -> bool:
    return array.dtype.isbuiltin == 1


def through_product(source: str, target: str, array: Array, opset: int) -> Nodes | None:
    """Multiplied with the identity: by a 1×1 convolution if it could be an image, else as a matrix."""
    source = _product(source, target, array)
    return None if source is None or opset < 9 else source


def _product(source: str, target: str, array: Array) -> Nodes | None:
    if array.dtype != np.float32 or array.ndim < 2 or not array.size or not np.isfinite(array).all():
        return None
    weights = f"{target}_weights"
    if array.ndim == 4:
        one = np.eye(array.shape[1], dtype=np.float32)[:, :, None, None]
        return [constant(weights, one), node("Conv", [source, weights], [target])]
    return [constant(weights, np.eye(array.shape[-1], dtype=np.float32)), node("MatMul", [source, weights], [target])]


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


def same(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    return [node("Identity", [source], [target])], array


def added_zero(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    if opset < 7 or not _adds(array, opset):
        return None
    zero = f"{target}_zero"
    return [constant(zero, np.zeros((), array.dtype)), node("Add", [source, zero], [target])], array


def _adds(array: Array, opset: int) -> bool:
    name = array.dtype.name
    if name in ("float16", "float32", "float64", "int32", "int64", "uint32", "uint64"):
        return True
    return (opset >= 14 and name in ("int8", "int16", "uint8", "uint16")) or (opset >= 13 and name == "bfloat16")


def rectified(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    if array.dtype.name not in ("float16", "float32", "float64") or opset < 6 or np.isnan(array).any():
        return None
    return [node("Relu", [source], [target])], np.maximum(array, array.dtype.type(0))


WIDER = {
    "bool": TensorProto.INT32, "int8": TensorProto.INT32, "uint8": TensorProto.INT32, "int16": TensorProto.INT32,
    "uint16": TensorProto.INT32, "int32": TensorProto.INT64, "uint32": TensorProto.INT64,
    "float16": TensorProto.FLOAT, "float32": TensorProto.DOUBLE, "bfloat16": TensorProto.FLOAT,
}  # fmt: skip


def there_and_back(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """Cast to a wider type and back."""
    wider = WIDER.get(array.dtype.name)
    if wider is None or opset < 9 or (array.dtype.name == "bfloat16" and opset < 13):
        return None
    there = node("Cast", [source], [f"{target}_wider"], to=wider)
    return [there, node("Cast", [f"{target}_wider"], [target], to=element_type(array))], array


def doubled_and_cut(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """Put beside itself, and the first half taken."""
    if opset < 10 or not array.ndim or not _moves(array, opset):
        return None
    double, start, end, axis = f"{target}_double", f"{target}_start", f"{target}_end", f"{target}_axis"
    last = array.ndim - 1
    return [
        node("Concat", [source, source], [double], axis=last),
        constant(start, np.int64([0])),
        constant(end, np.int64([array.shape[last]])),
        constant(axis, np.int64([last])),
        node("Slice", [double, start, end, axis], [target]),
    ], array


def turned(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    if array.ndim < 2 or not _moves(array, opset):
        return None
    return [node("Transpose", [source], [target])], np.transpose(array)


def flat(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    if opset < 5 or not _moves(array, opset) or not array.size:
        return None
    return [
        constant(f"{target}_all", np.int64([-1])),
        node("Reshape", [source, f"{target}_all"], [target]),
    ], array.ravel()


def largest(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """The largest element of each row."""
    if array.dtype.name not in ("float32", "int32", "int64") or not array.ndim or not array.size or opset < 11:
        return None
    if array.dtype.kind == "f" and np.isnan(array).any():
        return None
    if opset < 18:
        return [node("ReduceMax", [source], [target], axes=[-1], keepdims=0)], np.asarray(array.max(-1))
    axes = f"{target}_axes"
    reduce = node("ReduceMax", [source, axes], [target], keepdims=0)
    return [constant(axes, np.int64([-1])), reduce], np.asarray(array.max(-1))


def backward_rows(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """The rows in reverse order, gathered."""
    if opset < 11 or not array.ndim or not array.size or not _is_plain(array):
        return None
    order = f"{target}_order"
    gather = node("Gather", [source, order], [target], axis=0)
    return [constant(order, -1 - np.arange(array.shape[0])), gather], array[::-1]


def padded_and_cut(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """A border around it, and taken away."""
    if opset < 11 or array.dtype.name not in ("float32", "float64", "float16") or not array.ndim:
        return None
    names = [f"{target}_{part}" for part in ("pads", "starts", "ends")]
    padded = f"{target}_padded"
    ends = [1 + size for size in array.shape]
    contents = (np.int64([1] * 2 * array.ndim), np.int64([1] * array.ndim), np.int64(ends))
    return [
        *map(constant, names, contents),
        node("Pad", [source, names[0]], [padded]),
        node("Slice", [padded, *names[1:]], [target]),
    ], array


def chosen(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """Where it is itself, and elsewhere too."""
    if opset < 9 or not _is_plain(array):
        return None
    flag = f"{target}_flag"
    return [constant(flag, np.array(True)), node("Where", [flag, source, source], [target])], array


def multiplied(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """Multiplied with the identity."""
    nodes = _product(source, target, array) if opset >= 9 else None
    return None if nodes is None else (nodes, array)


def sequenced(source: str, target: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """Put into a sequence, and taken out again."""
    nodes = through_sequence(source, target, array, opset)
    return None if nodes is None else (nodes, array)
