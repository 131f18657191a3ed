"""Quantize layers to int8, in QDQ form.

Quantized values pass through QuantizeLinear and DequantizeLinear; weights are int8 with a DequantizeLinear. These
values are quantized: the inputs of layers; the outputs of convolutions (after their Relu or Clip), because engines
compute in integers only between quantized values; and the outputs of nodes that only move, select or add quantized
values. The outputs of products stay float32: residual sums and normalisation, which follow them in transformers, need
more than eight bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.ir.arrays import Array
from weft.ir.graph import Graph, Node
from weft.optimization.graph_edit import MICROSOFT, STANDARD, GraphEdit, readers, rename_inputs
from weft.quantization.layers import BIAS, INPUT, WEIGHTS, Layer
from weft.quantization.ranges import QuantizationParameters
from weft.quantization.sensitivity import Shadows
from weft.quantization.weights import channel_scales, quantize_bias, quantize_channels

PER_CHANNEL = 13  # the first opset with scales along an axis

_ABSORBED = ("Relu", "Clip")  # engines implement them as limits of the quantized values
_SAME_SCALE = (
    "DepthToSpace",
    "Flatten",
    "MaxPool",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
"""Ops whose outputs hold only elements of their first input, with the same scale."""
_OWN_SCALE = ("Add", "AveragePool", "Concat", "GlobalAveragePool")
"""Ops that engines compute in integers, with a new scale for their output."""


@dataclass(frozen=True, slots=True)
class Int8Plan:
    """The values to quantize: all readers get those in `quantized`, only layers and `inner` nodes get `layer_inputs`.

    `scale_sources` maps a value to another with the same scale.
    """

    layers: tuple[Layer, ...]
    quantized: frozenset[str]
    layer_inputs: frozenset[str]
    inner: frozenset[str]  # names of nodes
    scale_sources: Mapping[str, str]

    def scale_source(self, name: str) -> str:
        """Return the value that determines the scale of a value."""
        while name in self.scale_sources:
            name = self.scale_sources[name]
        return name


def plan_int8(graph: Graph, layers: Sequence[Layer], constants: Mapping[str, Array]) -> Int8Plan:
    """Plan which values to quantize so that these layers compute in int8."""
    reading = readers(graph)
    graph_outputs = {value.name for value in graph.outputs}
    by_node = {layer.name: layer for layer in layers}
    layer_inputs = {layer.input for layer in layers}
    quantized: set[str] = set()
    inner: set[str] = set()
    scale_sources: dict[str, str] = {}

    def activated_output(node: Node) -> str:
        """Return the output of a node, after an activation that alone reads it."""
        name = node.outputs[0]
        following = reading.get(name, [])
        if name not in graph_outputs and len(following) == 1 and _is_absorbed(following[0], name):
            return following[0].outputs[0]
        return name

    for node in graph.nodes:
        layer = by_node.get(node.name)
        if layer is not None:
            if layer.is_convolution and activated_output(node) not in graph_outputs:
                quantized.add(activated_output(node))
            continue
        candidates = quantized | layer_inputs
        varying = [name for name in node.inputs if name and name not in constants]
        if node.domain != STANDARD or not varying:
            continue
        if node.op in _SAME_SCALE and node.inputs[0] in candidates and not any(node.outputs[1:]):
            name = node.outputs[0]
            if name not in graph_outputs and _has_integer_reader(name, reading, by_node):
                inner.add(node.name)
                scale_sources[name] = node.inputs[0]
                quantized.add(name)
        elif node.op in _OWN_SCALE and len(varying) == len([name for name in node.inputs if name]):
            name = activated_output(node)
            if candidates.issuperset(varying) and name not in graph_outputs:
                inner.add(node.name)
                quantized.add(name)
    others = frozenset(layer_inputs - quantized)
    return Int8Plan(tuple(layers), frozenset(quantized), others, frozenset(inner), scale_sources)


def _is_absorbed(node: Node, source: str) -> bool:
    return node.op in _ABSORBED and node.domain == STANDARD and node.inputs[0] == source


def _has_integer_reader(name: str, reading: Mapping[str, Sequence[Node]], layers: Mapping[str, Layer]) -> bool:
    """Whether a layer or a node that may compute in integers reads a value."""
    return any(node.name in layers or node.op in (*_SAME_SCALE, *_OWN_SCALE) for node in reading.get(name, ()))


def write_int8(
    graph: Graph,
    plan: Int8Plan,
    parameters: Mapping[str, QuantizationParameters],
    constants: Mapping[str, Array],
    version: int,
) -> Graph:
    """Return the graph with the layers of a plan in int8; `parameters` are those of the calibrated values."""
    writer = _Int8Writer(GraphEdit(graph, version), constants, version)
    names = sorted(plan.quantized | plan.layer_inputs)
    dequantized = {name: writer.quantize(name, parameters[plan.scale_source(name)]) for name in names}
    for_all = {name: dequantized[name] for name in plan.quantized}
    by_node = {layer.name: layer for layer in plan.layers}
    nodes = []
    for node in graph.nodes:
        layer = by_node.get(node.name)
        if layer is not None:
            scale = parameters[plan.scale_source(layer.input)].scale
            nodes.append(writer.layer(layer, dequantized[layer.input], scale))
        else:
            nodes.append(rename_inputs(node, dequantized if node.name in plan.inner else for_all))
    return writer.edit.finish(nodes)


def shadow_int8(
    graph: Graph,
    plan: Int8Plan,
    parameters: Mapping[str, QuantizationParameters],
    constants: Mapping[str, Array],
    version: int,
) -> Shadows:
    """Add an int8 copy of each layer of a plan, which reads the original values."""
    writer = _Int8Writer(GraphEdit(graph, version), constants, version)
    names = {layer.input for layer in plan.layers}
    dequantized = {name: writer.quantize(name, parameters[plan.scale_source(name)]) for name in names}
    pairs = {}
    for layer in plan.layers:
        node = writer.layer(layer, dequantized[layer.input], parameters[plan.scale_source(layer.input)].scale)
        pairs[layer.output] = writer.edit.duplicate(node)
    return Shadows(writer.edit, pairs)


class _Int8Writer:
    """Adds quantized values, weights and biases, once for all layers that share them."""

    def __init__(self, edit: GraphEdit, constants: Mapping[str, Array], version: int) -> None:
        self.edit = edit
        self._constants = constants
        self._domain = STANDARD if version >= PER_CHANNEL else MICROSOFT
        self._parameters: dict[QuantizationParameters, tuple[str, str]] = {}
        self._weights: dict[tuple[str, int, bytes], str] = {}

    def quantize(self, name: str, parameters: QuantizationParameters) -> str:
        """Quantize and dequantize a value; return the name of the result."""
        if parameters not in self._parameters:
            self._parameters[parameters] = (
                self.edit.constant(f"{name}_scale", parameters.scale_array),
                self.edit.constant(f"{name}_zero_point", parameters.zero_array),
            )
        constants = self._parameters[parameters]
        integers = self.edit.add("QuantizeLinear", (name, *constants), f"{name}_quantized", {}, self._domain)
        return self.edit.add("DequantizeLinear", (integers, *constants), f"{name}_dequantized", {}, self._domain)

    def layer(self, layer: Layer, source: str, input_scale: float) -> Node:
        """Return the node of a layer with quantized weights and bias."""
        bias = self._constants.get(layer.bias_name)
        channels = layer.weights.shape[layer.axis]
        if bias is not None and (bias.size != channels or bias.dtype != np.float32):
            bias = None
        scales = channel_scales(layer.weights, layer.axis, None if bias is None else bias.reshape(-1), input_scale)
        inputs = list(layer.node.inputs)
        inputs[INPUT] = source
        inputs[WEIGHTS] = self._add_weights(layer, scales)
        if bias is not None:
            inputs[BIAS] = self._add_bias(layer, bias.reshape(-1), scales.astype(np.float64) * input_scale)
        return replace(layer.node, inputs=tuple(inputs))

    def _add_weights(self, layer: Layer, scales: Array) -> str:
        key = layer.weights_name, layer.axis, scales.tobytes()
        if key not in self._weights:
            integers = quantize_channels(layer.weights, layer.axis, scales)
            self._weights[key] = self._add_dequantized(layer.weights_name, integers, scales, layer.axis)
        return self._weights[key]

    def _add_bias(self, layer: Layer, bias: Array, scales: Array) -> str:
        stored = np.maximum(scales, np.finfo(np.float32).tiny).astype(np.float32)
        integers = quantize_bias(bias, stored.astype(np.float64))
        return self._add_dequantized(f"{layer.output}_bias", integers, stored, 0)

    def _add_dequantized(self, name: str, integers: Array, scales: Array, axis: int) -> str:
        inputs = (
            self.edit.constant(f"{name}_quantized", integers),
            self.edit.constant(f"{name}_scale", scales),
            self.edit.constant(f"{name}_zero_point", np.zeros(scales.shape, integers.dtype)),
        )
        return self.edit.add("DequantizeLinear", inputs, f"{name}_dequantized", {"axis": axis}, self._domain)
