"""Layers in int8: each value that they read or give goes through QuantizeLinear and DequantizeLinear, weights lie as
int8 before a DequantizeLinear of their own.

Which values: what a layer reads; what a convolution gives (behind the Relu or Clip that follows it), since engines
compute in integers only between the two; and what nodes give that merely move, choose or add such values. Products
give float32: what follows them in transformers (residual sums, normalisation) is where eight bits are too few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.ir.arrays import Array
from weft.ir.graph import Graph, Node
from weft.optimization.graph_edit import MICROSOFT, STANDARD, GraphEdit, readers, renamed_inputs
from weft.quantization.layers import BIAS, INPUT, WEIGHTS, NarrowedLayer
from weft.quantization.ranges import CodeScale
from weft.quantization.sensitivity import Shadows
from weft.quantization.weights import channel_scales, coded_bias, coded_channels

PER_CHANNEL = 13  # the first opset with scales along an axis

_ABSORBED = ("Relu", "Clip")  # which engines make a part of the bounds of codes
_SAME = ("DepthToSpace", "Flatten", "MaxPool", "Reshape", "Slice", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze")
"""Nodes that give some of the numbers that they read first, and no others: with the same scale."""
_OWN = ("Add", "AveragePool", "Concat", "GlobalAveragePool")
"""Nodes that engines have in integers, with a scale of their own for what they give."""


@dataclass(frozen=True, slots=True)
class IntegerPlan:
    """Which values become codes: `rounded` is read as codes by everybody, `read` by layers and `inner` nodes alone.

    `alike` tells of values that have the scale of another one.
    """

    layers: tuple[NarrowedLayer, ...]
    rounded: frozenset[str]
    read: frozenset[str]
    inner: frozenset[str]  # names of nodes
    alike: Mapping[str, str]

    @property
    def calibrated(self) -> list[str]:
        """The values whose ranges must be known."""
        return sorted((self.rounded | self.read) - self.alike.keys())

    def source(self, name: str) -> str:
        """The value whose scale a value has."""
        while name in self.alike:
            name = self.alike[name]
        return name


def plan_integers(graph: Graph, layers: Sequence[NarrowedLayer], known: Mapping[str, Array]) -> IntegerPlan:
    """What becomes of a graph when these layers are computed in int8."""
    reading = readers(graph)
    shown = {value.name for value in graph.outputs}
    by_node = {layer.name: layer for layer in layers}
    read = {layer.input for layer in layers}
    rounded: set[str] = set()
    inner: set[str] = set()
    alike: dict[str, str] = {}

    def behind(node: Node) -> str:
        """The value that a node gives, behind an activation that only it leads to."""
        name = node.outputs[0]
        following = reading.get(name, [])
        if name not in shown and len(following) == 1 and _is_absorbed(following[0], name):
            return following[0].outputs[0]
        return name

    for node in graph.nodes:
        layer = by_node.get(node.name)
        if layer is not None:
            if layer.is_convolution and behind(node) not in shown:
                rounded.add(behind(node))
            continue
        codes = rounded | read
        varying = [name for name in node.inputs if name and name not in known]
        if node.domain != STANDARD or not varying:
            continue
        if node.op in _SAME and node.inputs[0] in codes and not any(node.outputs[1:]):
            name = node.outputs[0]
            if name not in shown and _leads_on(name, reading, by_node):
                inner.add(node.name)
                alike[name] = node.inputs[0]
                rounded.add(name)
        elif node.op in _OWN and len(varying) == len([name for name in node.inputs if name]):
            name = behind(node)
            if codes.issuperset(varying) and name not in shown:
                inner.add(node.name)
                rounded.add(name)
    return IntegerPlan(tuple(layers), frozenset(rounded), frozenset(read - rounded), frozenset(inner), alike)


def _is_absorbed(node: Node, source: str) -> bool:
    return node.op in _ABSORBED and node.domain == STANDARD and node.inputs[0] == source


def _leads_on(name: str, reading: Mapping[str, Sequence[Node]], layers: Mapping[str, NarrowedLayer]) -> bool:
    """Whether a value is worth to stay in codes: a layer or a node that may stay in them reads it."""
    return any(node.name in layers or node.op in (*_SAME, *_OWN) for node in reading.get(name, ()))


def in_integers(
    graph: Graph, plan: IntegerPlan, scales: Mapping[str, CodeScale], known: Mapping[str, Array], version: int
) -> Graph:
    """The graph with the layers of a plan in int8; `scales` are those of the values that were calibrated."""
    writer = _Writer(GraphEdit(graph, version), known, version)
    codes = {name: writer.rounded(name, scales[plan.source(name)]) for name in sorted(plan.rounded | plan.read)}
    for_all = {name: codes[name] for name in plan.rounded}
    by_node = {layer.name: layer for layer in plan.layers}
    nodes = []
    for node in graph.nodes:
        layer = by_node.get(node.name)
        if layer is not None:
            scale = scales[plan.source(layer.input)].scale
            nodes.append(writer.layer(layer, codes[layer.input], scale))
        else:
            nodes.append(renamed_inputs(node, codes if node.name in plan.inner else for_all))
    return writer.edit.finish(nodes)


def shadow_integers(
    graph: Graph, plan: IntegerPlan, scales: Mapping[str, CodeScale], known: Mapping[str, Array], version: int
) -> Shadows:
    """The graph with each layer of a plan a second time, in int8 and from the values as they are."""
    writer = _Writer(GraphEdit(graph, version), known, version)
    codes = {name: writer.rounded(name, scales[plan.source(name)]) for name in {layer.input for layer in plan.layers}}
    pairs = {}
    for layer in plan.layers:
        node = writer.layer(layer, codes[layer.input], scales[plan.source(layer.input)].scale)
        pairs[layer.output] = writer.edit.duplicate(node)
    return Shadows(writer.edit, pairs)


class _Writer:
    """Adds codes, weights and biases; what several layers share is added once."""

    def __init__(self, edit: GraphEdit, known: Mapping[str, Array], version: int) -> None:
        self.edit = edit
        self._known = known
        self._domain = STANDARD if version >= PER_CHANNEL else MICROSOFT
        self._scales: dict[CodeScale, tuple[str, str]] = {}
        self._weights: dict[tuple[str, int, bytes], str] = {}

    def rounded(self, name: str, scale: CodeScale) -> str:
        """A value through codes and back."""
        if scale not in self._scales:
            self._scales[scale] = (
                self.edit.constant(f"{name}_scale", scale.scale_array),
                self.edit.constant(f"{name}_zero_point", scale.zero_array),
            )
        parameters = self._scales[scale]
        codes = self.edit.add("QuantizeLinear", (name, *parameters), f"{name}_quantized", {}, self._domain)
        return self.edit.add("DequantizeLinear", (codes, *parameters), f"{name}_dequantized", {}, self._domain)

    def layer(self, layer: NarrowedLayer, source: str, input_scale: float) -> Node:
        """The node of a layer with weights and a bias that are codes."""
        bias = self._known.get(layer.bias_name)
        channels = layer.weights.shape[layer.axis]
        if bias is not None and (bias.size != channels or bias.dtype != np.float32):
            bias = None
        scales = channel_scales(layer.weights, layer.axis, None if bias is None else bias.reshape(-1), input_scale)
        inputs = list(layer.node.inputs)
        inputs[INPUT] = source
        inputs[WEIGHTS] = self._coded_weights(layer, scales)
        if bias is not None:
            inputs[BIAS] = self._coded_bias(layer, bias.reshape(-1), scales.astype(np.float64) * input_scale)
        return replace(layer.node, inputs=tuple(inputs))

    def _coded_weights(self, layer: NarrowedLayer, scales: Array) -> str:
        key = layer.weights_name, layer.axis, scales.tobytes()
        if key not in self._weights:
            codes = coded_channels(layer.weights, layer.axis, scales)
            self._weights[key] = self._dequantised(layer.weights_name, codes, scales, layer.axis)
        return self._weights[key]

    def _coded_bias(self, layer: NarrowedLayer, bias: Array, scales: Array) -> str:
        stored = np.maximum(scales, np.finfo(np.float32).tiny).astype(np.float32)
        return self._dequantised(f"{layer.output}_bias", coded_bias(bias, stored.astype(np.float64)), stored, 0)

    def _dequantised(self, name: str, codes: Array, scales: Array, axis: int) -> str:
        parameters = (
            self.edit.constant(f"{name}_quantized", codes),
            self.edit.constant(f"{name}_scale", scales),
            self.edit.constant(f"{name}_zero_point", np.zeros(scales.shape, codes.dtype)),
        )
        return self.edit.add("DequantizeLinear", parameters, f"{name}_dequantized", {"axis": axis}, self._domain)
