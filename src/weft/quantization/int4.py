"""Quantize the weights of products to int4, with one scale for each block of a row.

A product becomes one node of com.microsoft, or reads its weights from a blocked DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.ir.graph import Graph, Node
from weft.optimization.graph_edit import MICROSOFT, GraphEdit
from weft.quantization.layers import BIAS, INPUT, LOOK_UP, WEIGHTS, Layer
from weft.quantization.options import STANDARD_FORM
from weft.quantization.sensitivity import Shadows
from weft.quantization.weights import QuantizedWeights, as_int4, pack_blocks, quantize_blocks

STANDARD_SINCE = 21  # the first opset with int4 and blocks
TABLE = -1  # stands for the axis of a table, which is packed in another shape than weights


@dataclass(frozen=True, slots=True)
class BlockForm:
    """The size of a block, and how weights are written."""

    block: int
    form: str


def write_int4(graph: Graph, layers: Sequence[Layer], form: BlockForm, version: int) -> Graph:
    """Return the graph with the weights of these layers in int4."""
    writer = _Int4Writer(GraphEdit(graph, version), form)
    by_node = {layer.name: layer for layer in layers}
    nodes = [writer.layer(by_node[node.name]) if node.name in by_node else node for node in graph.nodes]
    return writer.edit.finish(nodes)


def shadow_int4(graph: Graph, layers: Sequence[Layer], form: BlockForm, version: int) -> Shadows:
    """Add a copy of each of these layers with weights in int4."""
    writer = _Int4Writer(GraphEdit(graph, version), form)
    return Shadows(writer.edit, {layer.output: writer.edit.duplicate(writer.layer(layer)) for layer in layers})


class _Int4Writer:
    """Adds quantized weights, once for all layers that share them."""

    def __init__(self, edit: GraphEdit, form: BlockForm) -> None:
        self.edit = edit
        self._form = form
        self._weights: dict[tuple[str, int], tuple[str, ...]] = {}

    def layer(self, layer: Layer) -> Node:
        """Return the node of a layer with quantized weights."""
        node = layer.node
        if node.op == LOOK_UP:
            return self._table_node(layer)
        key = layer.weights_name, layer.axis
        if self._form.form == STANDARD_FORM:
            if key not in self._weights:
                self._weights[key] = (self._add_dequantized(layer),)
            inputs = list(node.inputs)
            inputs[WEIGHTS] = self._weights[key][0]
            return replace(node, inputs=tuple(inputs))
        if key not in self._weights:
            self._weights[key] = self._add_packed(layer)
        count, depth = layer.weights.shape[layer.axis], layer.weights.shape[layer.depth_axis]
        attributes = {"K": depth, "N": count, "bits": 4, "block_size": self._form.block}
        inputs = [node.inputs[INPUT], *self._weights[key]]
        kind = replace(node, op="MatMulNBits", domain=MICROSOFT, version=1)
        product = replace(kind, inputs=tuple(inputs), attributes=attributes)
        bias = node.inputs[BIAS] if len(node.inputs) > BIAS else ""
        if not bias:
            return product
        name = self.edit.fresh(f"{layer.output}_product")
        self.edit.nodes.append(replace(product, name=self.edit.fresh(f"{node.name}_product"), outputs=(name,)))
        return replace(node, op="Add", inputs=(name, bias), attributes={})

    def _table_node(self, layer: Layer) -> Node:
        """Return the node that looks up rows in a packed table."""
        name, indices = layer.node.inputs
        key = name, TABLE
        if key not in self._weights:
            quantized = self._quantize_rows(layer)
            packed = pack_blocks(quantized, self._form.block).reshape(len(quantized.integers), -1)
            self._weights[key] = (
                self.edit.constant(f"{name}_packed", packed),
                self.edit.constant(f"{name}_scales", quantized.scales),
            )
        table, scales = self._weights[key]
        attributes = {"bits": 4, "block_size": self._form.block, "gather_axis": 0, "quantize_axis": 1}
        kind = replace(layer.node, op="GatherBlockQuantized", domain=MICROSOFT, version=1)
        return replace(kind, inputs=(table, indices, scales), attributes=attributes)

    def _quantize_rows(self, layer: Layer) -> QuantizedWeights:
        """Quantize the weights with one row for each output."""
        rows = layer.weights if layer.axis == 0 else layer.weights.T
        return quantize_blocks(rows, self._form.block)

    def _add_packed(self, layer: Layer) -> tuple[str, str]:
        quantized = self._quantize_rows(layer)
        return (
            self.edit.constant(f"{layer.weights_name}_packed", pack_blocks(quantized, self._form.block)),
            self.edit.constant(f"{layer.weights_name}_scales", quantized.scales),
        )

    def _add_dequantized(self, layer: Layer) -> str:
        quantized = self._quantize_rows(layer)
        integers, scales = quantized.integers, quantized.scales
        if layer.axis == 1:
            integers, scales = np.ascontiguousarray(integers.T), np.ascontiguousarray(scales.T)
        parameters = (
            self.edit.constant(f"{layer.weights_name}_quantized", as_int4(integers)),
            self.edit.constant(f"{layer.weights_name}_scales", scales),
        )
        attributes = {"axis": layer.depth_axis, "block_size": self._form.block}
        return self.edit.add("DequantizeLinear", parameters, f"{layer.weights_name}_dequantized", attributes)
