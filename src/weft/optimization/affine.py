"""Scales and offsets go into the weights before them: batch normalisation, and products and sums with constants.

A layer is a convolution or a product with constant weights whose result one node alone reads. What becomes of weights
is computed in float64; where it does not fit into their type without losing range (ir/rounding.py), the nodes stay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.dtypes import DType, from_numpy
from weft.ir.graph import Graph, Node
from weft.ir.rounding import absorbs, round_finite, weights_vanish
from weft.optimization.facts import ValueFacts
from weft.optimization.rewriting import Rewriting, Workshop
from weft.records import dataclass

Array = np.ndarray[Any, Any]

INPUT, WEIGHTS, BIAS = 0, 1, 2
LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
MOVES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose")
EPSILON = float(np.float32(1e-5))  # attributes are of float32, also where they are left out
BROADCASTS = 7  # the first opset in which arithmetic broadcasts as numpy does
NORMALISED, SCALED, SHIFTED = "batch normalisation into weights", "factors into weights", "offsets into a bias"


@dataclass(frozen=True, slots=True)
class _Affine:
    """x * scale + offset, for each channel or for all."""

    scale: Array | None
    offset: Array | None
    done: str


def with_folded_normalisation(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph with layers that do what batch normalisations after them did."""
    rewriting = Rewriting(graph, facts, work)
    for node in rewriting.nodes("BatchNormalization"):
        layer = rewriting.only(node.inputs[0], *LAYERS)
        if layer is not None:
            _takes(rewriting, layer, node, 0)
    return rewriting.finish()


def with_affine_weights(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph with layers that do what nodes before and after them did."""
    if work.options.exact or work.version < BROADCASTS:
        return graph
    graph = with_folded_normalisation(graph, facts, work)
    rewriting = Rewriting(graph, facts, work)
    for node in rewriting.nodes("Mul", "Div", "Add", "Sub"):
        for place in (0, 1):
            layer = rewriting.only(node.inputs[place], *LAYERS)
            if layer is None:
                if node.op in ("Mul", "Div") and _moved_scale(rewriting, node, place):
                    break
                continue
            if _takes(rewriting, layer, node, place):
                break
    for node in rewriting.nodes(*LAYERS):
        _scaled_before(rewriting, node)
    return rewriting.finish()


def _scaled_before(rewriting: Rewriting, layer: Node) -> None:
    """A factor of what a layer reads goes into its weights: zeros around the data stay zeros."""
    weights = rewriting.constant(layer.inputs[WEIGHTS])
    product = rewriting.only(layer.inputs[INPUT], "Mul", "Div")
    if product is None or weights is None or weights.dtype == object or not from_numpy(weights.dtype).is_float:
        return
    limit = rewriting.work.options.growth
    if rewriting.is_shared(layer.inputs[WEIGHTS]) and limit is not None and weights.nbytes > limit:
        return
    for place in (0,) if product.op == "Div" else (0, 1):
        factor = rewriting.scalar(product.inputs[1 - place])
        before, after = rewriting.shape(product.inputs[place]), rewriting.shape(product.outputs[0])
        if factor is None or before is None or before != after or not bool(factor):
            continue
        number = float(factor) if product.op == "Mul" else 1.0 / float(factor)
        scaled = _scaled(layer, weights, np.array([number]))
        if scaled is not None:
            name = rewriting.add_constant(f"{layer.inputs[WEIGHTS]}_scaled", scaled)
            inputs = (product.inputs[place], name, *layer.inputs[BIAS:])
            rewriting.put(layer, replace(layer, inputs=inputs), merged=[product], done=SCALED)
            return


def _moved_scale(rewriting: Rewriting, node: Node, place: int) -> bool:
    """A factor of what a layer gave, behind nodes that only move it."""
    factor = rewriting.scalar(node.inputs[1 - place])
    types = [rewriting.facts.type(name) for name in (node.inputs[place], node.outputs[0])]
    if factor is None or types[0] is None or types[0] != types[1] or (node.op == "Div" and (place or not factor)):
        return False
    if not types[0].dtype.is_float:
        return False
    moves: list[Node] = []
    name = node.inputs[place]
    while (move := rewriting.only(name, *MOVES, "Add")) is not None:
        side = _added(rewriting, move)
        if side is None:
            break
        moves.append(move)
        name = move.inputs[1 - side] if move.op == "Add" else move.inputs[0]
    layer = rewriting.only(name, *LAYERS)
    if layer is None or not moves:
        return False
    number = float(factor) if node.op == "Mul" else 1.0 / float(factor)
    offsets = {move.name: _scaled_constant(rewriting, move, number) for move in moves if move.op == "Add"}
    if any(offset is None for offset in offsets.values()):
        return False
    scaled = rewriting.work.fresh(f"{name}_scaled")
    changed = _with_affine(rewriting, layer, scaled, _Affine(np.array([number]), None, SCALED))
    if changed is None:
        return False
    nodes = [changed]
    for move in reversed(moves):
        last = move is moves[0]
        output = node.outputs[0] if last else rewriting.work.fresh(f"{move.outputs[0]}_scaled")
        fresh = rewriting.work.fresh(f"{move.name}_scaled")
        offset = offsets.get(move.name)
        others = move.inputs[1:] if offset is None else (rewriting.add_constant(f"{output}_offset", offset),)
        nodes.append(replace(move, name=fresh, inputs=(nodes[-1].outputs[0], *others), outputs=(output,)))
    rewriting.put(node, *nodes, merged=[layer, *moves], done=SCALED)
    return True


def _added(rewriting: Rewriting, move: Node) -> int | None:
    """Which input of a sum is a constant; 0 for a node that only moves what it reads."""
    if move.op != "Add":
        return 0
    return next((side for side in (1, 0) if rewriting.constant(move.inputs[side]) is not None), None)


def _scaled_constant(rewriting: Rewriting, move: Node, number: float) -> Array | None:
    """The constant of a sum, scaled; None where that overflows, or the sum rounds."""
    side = _added(rewriting, move)
    assert side is not None
    constant = rewriting.constant(move.inputs[side])
    assert constant is not None
    if absorbs(constant, constant.dtype):
        return None
    with np.errstate(all="ignore"):
        return round_finite(constant.astype(np.float64) * number, constant.dtype)


def _takes(rewriting: Rewriting, layer: Node, node: Node, place: int) -> bool:
    """Put one node in place of a layer and the node that reads it, if they can be one."""
    found = _layer_channels(rewriting, layer)
    affine = None if found is None else _affine(rewriting, node, place, layer, *found)
    changed = None if affine is None else _with_affine(rewriting, layer, node.outputs[0], affine)
    if changed is None or affine is None:
        return False
    rewriting.put(node, changed, merged=[layer], done=affine.done)
    return True


def _layer_channels(rewriting: Rewriting, layer: Node) -> tuple[int, int] | None:
    """How many channels a layer with constant weights gives, and the rank of that."""
    weights = rewriting.constant(layer.inputs[WEIGHTS])
    if weights is None or weights.dtype == object or not from_numpy(weights.dtype).is_float:
        return None
    channels, rank = _channels(rewriting, layer, weights)
    return None if channels is None else (channels, rank)


def _with_affine(rewriting: Rewriting, layer: Node, output: str, affine: _Affine) -> Node | None:
    """A layer that gives a value which was scaled and shifted."""
    weights, found = rewriting.constant(layer.inputs[WEIGHTS]), _layer_channels(rewriting, layer)
    if weights is None or found is None:
        return None
    limit = rewriting.work.options.growth
    copied = rewriting.is_shared(layer.inputs[WEIGHTS]) and limit is not None and weights.nbytes > limit
    if affine.scale is not None and copied:
        return None
    return _changed(rewriting, layer, output, weights, affine, found[0])


def _channels(rewriting: Rewriting, layer: Node, weights: Array) -> tuple[int | None, int]:
    """How many channels the result of a layer has, and its rank; None where that is not known."""
    match layer.op:
        case "Conv":
            return weights.shape[0], weights.ndim
        case "ConvTranspose":
            return weights.shape[1] * _integer(layer, "group", 1), weights.ndim
        case "Gemm":
            return weights.shape[0 if _integer(layer, "transB", 0) else 1], 2
    shape = rewriting.shape(layer.outputs[0])
    return (weights.shape[-1], len(shape)) if shape is not None and weights.ndim >= 2 else (None, 0)


def _affine(rewriting: Rewriting, node: Node, place: int, layer: Node, channels: int, rank: int) -> _Affine | None:
    """What a node does to each channel of a layer's result."""
    if node.op == "BatchNormalization":
        dtype = rewriting.dtype(layer.inputs[WEIGHTS])
        return None if layer.op == "MatMul" or dtype is None else _normalisation(rewriting, node, channels, dtype)
    constant = rewriting.constant(node.inputs[1 - place])
    if constant is None or constant.dtype == object or not from_numpy(constant.dtype).is_float:
        return None
    axis = rank - 1 if layer.op in ("Gemm", "MatMul") else 1
    found = _by_channel(constant, channels, rank, axis)
    if found is None:
        return None
    match node.op:
        case "Mul":
            return _Affine(found, None, SCALED)
        case "Div" if place == 0 and bool(found.all()):
            with np.errstate(over="ignore"):
                return _Affine(1.0 / found, None, SCALED)
        case "Add":
            return _Affine(None, found, SHIFTED)
        case "Sub" if place == 0:
            return _Affine(None, -found, SHIFTED)
        case "Sub":
            return _Affine(-np.ones(1), found, SHIFTED)
    return None


def _normalisation(rewriting: Rewriting, node: Node, channels: int, dtype: DType) -> _Affine | None:
    training = _integer(node, "training_mode", 0) or _integer(node, "spatial", 1) != 1
    if training or any(node.outputs[1:]):
        return None
    found = [rewriting.constant(name) for name in node.inputs[1:5]]
    arrays = [array.astype(np.float64) for array in found if array is not None and array.shape == (channels,)]
    if len(arrays) != 4:
        return None
    gain, offset, mean, variance = arrays
    epsilon = node.attributes.get("epsilon", EPSILON)
    assert isinstance(epsilon, (int, float))
    with np.errstate(all="ignore"):
        factor = gain / np.sqrt(variance + float(epsilon))
        shifted = offset - mean * factor
    if absorbs(mean, dtype.numpy) or absorbs(offset, dtype.numpy):
        return None
    return _Affine(factor, shifted, NORMALISED)


def _by_channel(constant: Array, channels: int, rank: int, axis: int) -> Array | None:
    """A constant as one number, or one for each channel, if it is that where it is broadcast."""
    if constant.ndim > rank:
        return None
    shape = (*[1] * (rank - constant.ndim), *constant.shape)
    if any(size != 1 for at, size in enumerate(shape) if at != axis) or shape[axis] not in (1, channels):
        return None
    return constant.astype(np.float64).reshape(-1)


def _changed(
    rewriting: Rewriting, layer: Node, name: str, weights: Array, affine: _Affine, channels: int
) -> Node | None:
    has_bias = len(layer.inputs) > BIAS and bool(layer.inputs[BIAS])
    before = rewriting.constant(layer.inputs[BIAS]) if has_bias else None
    if has_bias and before is None:
        return None
    if layer.op == "Gemm" and has_bias and layer.attributes.get("beta", 1.0) != 1.0:
        return None
    inputs = list(layer.inputs[:WEIGHTS])
    scaled = None if affine.scale is None else _scaled(layer, weights, affine.scale)
    if affine.scale is not None and scaled is None:
        return None
    bias = None
    if before is not None or affine.offset is not None:
        bias = _bias(before, affine, weights.dtype, channels)
        if bias is None:
            return None
    if layer.op == "MatMul":
        if scaled is None:
            return None if bias is None else _as_gemm(rewriting, layer, name, bias)
        if bias is not None:
            return None
        return replace(layer, inputs=(*inputs, rewriting.add_constant(f"{name}_weights", scaled)), outputs=(name,))
    stem = layer.inputs[WEIGHTS]
    inputs.append(stem if scaled is None else rewriting.add_constant(f"{stem}_scaled", scaled))
    if bias is not None:
        inputs.append(rewriting.add_constant(f"{name}_bias", bias))
    attributes = {key: content for key, content in layer.attributes.items() if key != "beta"}
    return replace(layer, inputs=tuple(inputs), outputs=(name,), attributes=attributes)


def _bias(before: Array | None, affine: _Affine, dtype: np.dtype[Any], channels: int) -> Array | None:
    """The bias of a layer that is scaled and shifted, in a shape that it takes; None where its type has none."""
    bias = np.zeros(1) if before is None else before.astype(np.float64)
    if absorbs(bias, dtype) or (affine.offset is not None and absorbs(affine.offset, dtype)):
        return None
    with np.errstate(all="ignore"):
        bias = bias if affine.scale is None else bias * affine.scale
        bias = bias if affine.offset is None else bias + affine.offset
    if bias.size == 1:
        bias = np.broadcast_to(bias.reshape(-1), (channels,))
    if before is not None and bias.size > max(before.size, channels):
        return None  # a column for the rows of a product would become a matrix
    return round_finite(bias, dtype)


def _scaled(layer: Node, weights: Array, scale: Array) -> Array | None:
    """Weights with a factor for each output channel or for all, if their type holds that."""
    view, channels = weights, tuple(range(weights.ndim))[-1:] if weights.ndim > 1 else ()
    match layer.op:
        case "Conv":
            channels = (0,)
        case "ConvTranspose":
            groups = _integer(layer, "group", 1)
            view = weights.reshape(groups, weights.shape[0] // groups, *weights.shape[1:])
            channels = (0, 2)
        case "Gemm" if _integer(layer, "transB", 0):
            channels = (0,)
    shape = [size if axis in channels and scale.size > 1 else 1 for axis, size in enumerate(view.shape)]
    summed = tuple(axis for axis in range(view.ndim) if axis not in channels)
    factors = scale.reshape(shape)
    if weights_vanish(view, factors, summed):
        return None
    with np.errstate(all="ignore"):
        wide = view.astype(np.float64) * factors
    return round_finite(wide.reshape(weights.shape), weights.dtype)


def _as_gemm(rewriting: Rewriting, layer: Node, name: str, bias: Array) -> Node | None:
    """A product of matrices and a sum as one node."""
    shapes = [rewriting.shape(each) for each in layer.inputs]
    if any(shape is None or len(shape) != 2 for shape in shapes):
        return None
    constant = rewriting.add_constant(f"{name}_bias", bias)
    return rewriting.node("Gemm", (*layer.inputs, constant), (name,))


def _integer(node: Node, name: str, default: int) -> int:
    content = node.attributes.get(name, default)
    assert isinstance(content, int)
    return content
