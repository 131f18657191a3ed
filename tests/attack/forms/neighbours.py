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


def through_sequence(given: str, wanted: str, array: Array, opset: int) -> Nodes | None:
    """Put into a sequence, and taken out again."""
    if opset < 11 or not _is_plain(array):
        return None
    return [
        constant(f"{wanted}_position", np.int64(0)),
        node("SequenceConstruct", [given], [f"{wanted}_sequence"]),
        node("SequenceAt", [f"{wanted}_sequence", f"{wanted}_position"], [wanted]),
    ]


def through_optional(given: str, wanted: str, array: Array, opset: int) -> Nodes | None:
    """Made optional, and there after all."""
    if opset < 15 or not _is_plain(array):
        return None
    return [
        node("Optional", [given], [f"{wanted}_optional"]),
        node("OptionalGetElement", [f"{wanted}_optional"], [wanted]),
    ]


def _is_plain(array: Array) -> bool:
    return array.dtype.isbuiltin == 1


def through_product(given: str, wanted: str, array: Array, opset: int) -> Nodes | None:
    """Multiplied with the identity: by a 1×1 convolution if it could be an image, else as a matrix."""
    made = _product(given, wanted, array)
    return None if made is None or opset < 9 else made


def _product(given: str, wanted: str, array: Array) -> Nodes | None:
    if array.dtype != np.float32 or array.ndim < 2 or not array.size or not np.isfinite(array).all():
        return None
    weights = f"{wanted}_weights"
    if array.ndim == 4:
        one = np.eye(array.shape[1], dtype=np.float32)[:, :, None, None]
        return [constant(weights, one), node("Conv", [given, weights], [wanted])]
    return [constant(weights, np.eye(array.shape[-1], dtype=np.float32)), node("MatMul", [given, weights], [wanted])]


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


def largest(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """The largest element of each row."""
    if array.dtype.name not in ("float32", "int32", "int64") or not array.ndim or not array.size or opset < 11:
        return None
    if array.dtype.kind == "f" and np.isnan(array).any():
        return None
    if opset < 18:
        return [node("ReduceMax", [made], [wanted], axes=[-1], keepdims=0)], np.asarray(array.max(-1))
    axes = f"{wanted}_axes"
    reduce = node("ReduceMax", [made, axes], [wanted], keepdims=0)
    return [constant(axes, np.int64([-1])), reduce], np.asarray(array.max(-1))


def backward_rows(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """The rows in reverse order, gathered."""
    if opset < 11 or not array.ndim or not array.size or not _is_plain(array):
        return None
    order = f"{wanted}_order"
    gather = node("Gather", [made, order], [wanted], axis=0)
    return [constant(order, -1 - np.arange(array.shape[0])), gather], array[::-1]


def padded_and_cut(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """A border around it, and taken away."""
    if opset < 11 or array.dtype.name not in ("float32", "float64", "float16") or not array.ndim:
        return None
    names = [f"{wanted}_{part}" for part in ("pads", "starts", "ends")]
    padded = f"{wanted}_padded"
    ends = [1 + size for size in array.shape]
    contents = (np.int64([1] * 2 * array.ndim), np.int64([1] * array.ndim), np.int64(ends))
    return [
        *map(constant, names, contents),
        node("Pad", [made, names[0]], [padded]),
        node("Slice", [padded, *names[1:]], [wanted]),
    ], array


def chosen(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """Where it is itself, and elsewhere too."""
    if opset < 9 or not _is_plain(array):
        return None
    flag = f"{wanted}_flag"
    return [constant(flag, np.array(True)), node("Where", [flag, made, made], [wanted])], array


def multiplied(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """Multiplied with the identity."""
    nodes = _product(made, wanted, array) if opset >= 9 else None
    return None if nodes is None else (nodes, array)


def sequenced(made: str, wanted: str, array: Array, opset: int) -> tuple[Nodes, Array] | None:
    """Put into a sequence, and taken out again."""
    nodes = through_sequence(made, wanted, array, opset)
    return None if nodes is None else (nodes, array)
