"""Fold batch normalisation into the weights of the layer before it.

New weights are computed in float64. Where they do not fit into their type without losing range (ir/rounding.py), the
nodes stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dtypes import from_numpy
from weft.ir.graph import Graph, Node, free_names, subgraphs
from weft.ir.rounding import absorbs, round_finite, weights_vanish
from weft.optimization.graph_edit import STANDARD, GraphEdit

WEIGHTS, BIAS = 1, 2
LAYERS = ("Conv", "ConvTranspose", "Gemm")
EPSILON = float(np.float32(1e-5))  # the default of ONNX, whose attributes are float32
MAX_COPY = 1 << 20  # bytes of weights that are copied where other nodes read them, too


def fold_batch_norms(graph: Graph, constants: Mapping[str, Array]) -> Graph:
    """Fold each batch normalisation into the layer before it, unless other nodes read that layer."""
    edit = GraphEdit(graph, 0)
    producers = {name: node for node in graph.nodes for name in node.outputs if name}
    uses = _count_uses(graph)
    replacements: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op != "BatchNormalization" or node.domain != STANDARD:
            continue
        layer = producers.get(node.inputs[0])
        if layer is None or layer.domain != STANDARD or layer.op not in LAYERS or uses[node.inputs[0]] != 1:
            continue
        weights = constants.get(layer.inputs[WEIGHTS])
        if weights is None or weights.dtype == object or not from_numpy(weights.dtype).is_float:
            continue
        if uses[layer.inputs[WEIGHTS]] > 1 and weights.nbytes > MAX_COPY:
            continue
        folded = _fold(edit, layer, node, weights, constants)
        if folded is not None:
            replacements[node.name] = folded
    return edit.finish([replacements.get(node.name, node) for node in graph.nodes]) if replacements else graph


def _count_uses(graph: Graph) -> Counter[str]:
    """Count the readers of each value; a value that a subgraph reads counts twice, so that it is never changed."""
    uses = Counter(value.name for value in graph.outputs)
    for node in graph.nodes:
        uses.update(filter(None, node.inputs))
        for inner in subgraphs(node):
            uses.update(dict.fromkeys(free_names(inner), 2))
    return uses


def _fold(edit: GraphEdit, layer: Node, norm: Node, weights: Array, constants: Mapping[str, Array]) -> Node | None:
    """Return the layer with folded weights and bias, or None where that would change its results."""
    channels = _count_channels(layer, weights)
    statistics = _read_statistics(norm, channels, weights.dtype, constants)
    has_bias = len(layer.inputs) > BIAS and bool(layer.inputs[BIAS])
    bias = constants.get(layer.inputs[BIAS]) if has_bias else None
    if statistics is None or (has_bias and bias is None):
        return None
    if layer.op == "Gemm" and has_bias and layer.attributes.get("beta", 1.0) != 1.0:
        return None
    scale, offset = statistics
    new_weights = _scale_weights(layer, weights, scale)
    new_bias = _fold_bias(bias, scale, offset, weights.dtype, channels)
    if new_weights is None or new_bias is None:
        return None
    inputs = (
        layer.inputs[0],
        edit.constant(f"{layer.inputs[WEIGHTS]}_scaled", new_weights),
        edit.constant(f"{norm.outputs[0]}_bias", new_bias),
    )
    attributes = {name: content for name, content in layer.attributes.items() if name != "beta"}
    return replace(layer, inputs=inputs, outputs=(norm.outputs[0],), attributes=attributes)


def _count_channels(layer: Node, weights: Array) -> int:
    if layer.op == "Conv":
        return int(weights.shape[0])
    if layer.op == "ConvTranspose":
        return int(weights.shape[1]) * _integer_attribute(layer, "group", 1)
    return int(weights.shape[0 if _integer_attribute(layer, "transB", 0) else 1])


def _read_statistics(
    norm: Node, channels: int, dtype: np.dtype[Any], constants: Mapping[str, Array]
) -> tuple[Array, Array] | None:
    """Return the scale and offset of each channel."""
    if _integer_attribute(norm, "training_mode", 0) or _integer_attribute(norm, "spatial", 1) != 1:
        return None
    arrays = [constants.get(name) for name in norm.inputs[1:5]]
    wide = [array.astype(np.float64) for array in arrays if array is not None and array.shape == (channels,)]
    if any(norm.outputs[1:]) or len(wide) != 4:
        return None
    gain, offset, mean, variance = wide
    epsilon = norm.attributes.get("epsilon", EPSILON)
    assert isinstance(epsilon, (int, float))
    if absorbs(mean, dtype) or absorbs(offset, dtype):
        return None
    with np.errstate(all="ignore"):
        scale = gain / np.sqrt(variance + float(epsilon))
        return scale, offset - mean * scale


def _fold_bias(bias: Array | None, scale: Array, offset: Array, dtype: np.dtype[Any], channels: int) -> Array | None:
    wide = np.zeros(1) if bias is None else bias.astype(np.float64)
    if absorbs(wide, dtype) or absorbs(offset, dtype):
        return None
    with np.errstate(all="ignore"):
        folded = wide * scale + offset
    if bias is not None and folded.size > max(bias.size, channels):
        return None  # a column for the rows of a product would become a matrix
    return round_finite(folded, dtype)


def _scale_weights(layer: Node, weights: Array, scale: Array) -> Array | None:
    """Scale the weights of each output channel, if their type holds the result."""
    view = weights
    channel_axes: tuple[int, ...] = (weights.ndim - 1,)
    if layer.op == "Conv" or (layer.op == "Gemm" and _integer_attribute(layer, "transB", 0)):
        channel_axes = (0,)
    elif layer.op == "ConvTranspose":
        groups = _integer_attribute(layer, "group", 1)
        view = weights.reshape(groups, weights.shape[0] // groups, *weights.shape[1:])
        channel_axes = (0, 2)
    factors = scale.reshape([size if axis in channel_axes else 1 for axis, size in enumerate(view.shape)])
    if weights_vanish(view, factors, tuple(axis for axis in range(view.ndim) if axis not in channel_axes)):
        return None
    with np.errstate(all="ignore"):
        wide = view.astype(np.float64) * factors
    return round_finite(wide.reshape(weights.shape), weights.dtype)


def _integer_attribute(node: Node, name: str, default: int) -> int:
    content = node.attributes.get(name, default)
    assert isinstance(content, int)
    return content
