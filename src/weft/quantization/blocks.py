"""Products with weights of four bits, each block of a row with a scale of its own: as one node of com.microsoft, or
as a DequantizeLinear with blocks before the product that is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.ir.graph import Graph, Node
from weft.optimization.graph_edit import MICROSOFT, GraphEdit
from weft.quantization.layers import BIAS, INPUT, LOOK_UP, WEIGHTS, NarrowedLayer
from weft.quantization.sensitivity import Shadows
from weft.quantization.weights import CodedWeights, as_int4, coded_blocks, packed_blocks

STANDARD_SINCE = 21  # the first opset with blocks, and int4
ALONE, STANDARD_FORM = "microsoft", "standard"
FORMS = (ALONE, STANDARD_FORM)
LOOKED_UP = -1  # in place of an axis: a table is packed in another shape than weights


@dataclass(frozen=True, slots=True)
class BlockForm:
    """How weights lie in blocks."""

    block: int
    form: str


def in_blocks(graph: Graph, layers: Sequence[NarrowedLayer], form: BlockForm, version: int) -> Graph:
    """The graph with the products of these layers on weights of four bits."""
    writer = _BlockWriter(GraphEdit(graph, version), form)
    by_node = {layer.name: layer for layer in layers}
    nodes = [writer.layer(by_node[node.name]) if node.name in by_node else node for node in graph.nodes]
    return writer.edit.finish(nodes)


def shadow_blocks(graph: Graph, layers: Sequence[NarrowedLayer], form: BlockForm, version: int) -> Shadows:
    """The graph with each of these layers a second time, on weights of four bits."""
    writer = _BlockWriter(GraphEdit(graph, version), form)
    return Shadows(writer.edit, {layer.output: writer.edit.duplicate(writer.layer(layer)) for layer in layers})


class _BlockWriter:
    """Adds weights; those that several layers share once."""

    def __init__(self, edit: GraphEdit, form: BlockForm) -> None:
        self.edit = edit
        self._form = form
        self._coded: dict[tuple[str, int], tuple[str, ...]] = {}

    def layer(self, layer: NarrowedLayer) -> Node:
        node = layer.node
        if node.op == LOOK_UP:
            return self._look_up(layer)
        key = layer.weights_name, layer.axis
        if self._form.form == STANDARD_FORM:
            if key not in self._coded:
                self._coded[key] = (self._dequantised(layer),)
            inputs = list(node.inputs)
            inputs[WEIGHTS] = self._coded[key][0]
            return replace(node, inputs=tuple(inputs))
        if key not in self._coded:
            self._coded[key] = self._packed(layer)
        count, depth = layer.weights.shape[layer.axis], layer.weights.shape[layer.depth_axis]
        attributes = {"K": depth, "N": count, "bits": 4, "block_size": self._form.block}
        inputs = [node.inputs[INPUT], *self._coded[key]]
        kind = replace(node, op="MatMulNBits", domain=MICROSOFT, version=1)
        product = replace(kind, inputs=tuple(inputs), attributes=attributes)
        bias = node.inputs[BIAS] if len(node.inputs) > BIAS else ""
        if not bias:
            return product
        name = self.edit.fresh(f"{layer.output}_product")
        self.edit.nodes.append(replace(product, name=self.edit.fresh(f"{node.name}_product"), outputs=(name,)))
        return replace(node, op="Add", inputs=(name, bias), attributes={})

    def _look_up(self, layer: NarrowedLayer) -> Node:
        """Rows of a table that is packed."""
        name, indices = layer.node.inputs
        key = name, LOOKED_UP
        if key not in self._coded:
            coded = self._rows(layer)
            packed = packed_blocks(coded, self._form.block).reshape(len(coded.codes), -1)
            self._coded[key] = (
                self.edit.constant(f"{name}_packed", packed),
                self.edit.constant(f"{name}_scales", coded.scales),
            )
        table, scales = self._coded[key]
        attributes = {"bits": 4, "block_size": self._form.block, "gather_axis": 0, "quantize_axis": 1}
        kind = replace(layer.node, op="GatherBlockQuantized", domain=MICROSOFT, version=1)
        return replace(kind, inputs=(table, indices, scales), attributes=attributes)

    def _rows(self, layer: NarrowedLayer) -> CodedWeights:
        """The weights of each output as a row of codes."""
        rows = layer.weights if layer.axis == 0 else layer.weights.T
        return coded_blocks(rows, self._form.block)

    def _packed(self, layer: NarrowedLayer) -> tuple[str, str]:
        coded = self._rows(layer)
        return (
            self.edit.constant(f"{layer.weights_name}_packed", packed_blocks(coded, self._form.block)),
            self.edit.constant(f"{layer.weights_name}_scales", coded.scales),
        )

    def _dequantised(self, layer: NarrowedLayer) -> str:
        coded = self._rows(layer)
        codes, scales = coded.codes, coded.scales
        if layer.axis == 1:
            codes, scales = np.ascontiguousarray(codes.T), np.ascontiguousarray(scales.T)
        parameters = (
            self.edit.constant(f"{layer.weights_name}_quantized", as_int4(codes)),
            self.edit.constant(f"{layer.weights_name}_scales", scales),
        )
        attributes = {"axis": layer.depth_axis, "block_size": self._form.block}
        return self.edit.add("DequantizeLinear", parameters, f"{layer.weights_name}_dequantized", attributes)
