"""The layers whose weights can be narrowed: products and convolutions with a constant as one operand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.ir.arrays import Array
from weft.ir.graph import Graph, Node
from weft.optimization.graph_edit import STANDARD
from weft.records import dataclass

CONVOLUTIONS = ("Conv", "ConvTranspose")
PRODUCTS = ("MatMul", "Gemm")
LOOK_UP = "Gather"
LAYERS = (*CONVOLUTIONS, *PRODUCTS)
INPUT, WEIGHTS, BIAS = 0, 1, 2  # places among a layer's inputs

_QUANTISED = ("QLinear", "Quantize", "Dequantize", "DynamicQuantize", "QAttention", "QGemm", "QMoE")
_QUANTISED_PARTS = ("Integer", "NBits", "BlockQuantized", "Bnb4")


@dataclass(frozen=True, slots=True)
class NarrowedLayer:
    """A node with its weights."""

    node: Node
    weights: Array
    axis: int  # of the weights, along which an output has its own scale
    depth_axis: int  # of the weights of a product, along which products are summed up

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def output(self) -> str:
        return self.node.outputs[0]

    @property
    def input(self) -> str:
        return self.node.inputs[INPUT]

    @property
    def weights_name(self) -> str:
        return self.node.inputs[WEIGHTS]

    @property
    def bias_name(self) -> str:
        return self.node.inputs[BIAS] if len(self.node.inputs) > BIAS else ""

    @property
    def is_convolution(self) -> bool:
        return self.node.op in CONVOLUTIONS


def weight_operands(graph: Graph) -> list[str]:
    """What nodes that may be layers read as weights."""
    return [node.inputs[WEIGHTS] for node in graph.nodes if _may_be(node)]


def find_layers(graph: Graph, known: Mapping[str, Array], dtypes: tuple[str, ...]) -> list[NarrowedLayer]:
    """The layers of the main graph whose weights are constants of these types."""
    found = []
    for node in graph.nodes:
        weights = known.get(node.inputs[WEIGHTS]) if _may_be(node) else None
        if weights is None or weights.dtype.name not in dtypes or not weights.size or node.inputs[INPUT] in known:
            continue
        axes = _axes(node, weights)
        if axes is not None and np.isfinite(weights).all():
            found.append(NarrowedLayer(node, weights, *axes))
    return found


def find_tables(graph: Graph, known: Mapping[str, Array], block: int) -> list[NarrowedLayer]:
    """The look-ups of rows in constant tables, as embeddings are, whose rows are whole blocks."""
    found = []
    for node in graph.nodes:
        table = known.get(node.inputs[0]) if node.op == LOOK_UP and node.domain == STANDARD else None
        if table is None or table.ndim != 2 or table.dtype != np.float32 or node.inputs[1] in known:
            continue
        rows, depth = table.shape
        if rows and depth and depth % block == 0 and node.attributes.get("axis", 0) == 0 and np.isfinite(table).all():
            found.append(NarrowedLayer(node, table, 0, 1))
    return found


def quantised_node(graph: Graph) -> Node | None:
    """A node that computes with quantised numbers already."""
    return next((node for node in graph.nodes if _is_quantised(node)), None)


def _is_quantised(node: Node) -> bool:
    return node.op.startswith(_QUANTISED) or node.op.endswith(_QUANTISED_PARTS) or "Integer" in node.op


def _may_be(node: Node) -> bool:
    return node.op in LAYERS and node.domain == STANDARD and len(node.inputs) > WEIGHTS


def _axes(node: Node, weights: Array) -> tuple[int, int] | None:
    match node.op:
        case "MatMul":
            return (1, 0) if weights.ndim == 2 else None
        case "Gemm":
            plain = node.attributes.get("alpha", 1.0) == 1.0 and not node.attributes.get("transA", 0)
            if weights.ndim != 2 or not plain or node.attributes.get("beta", 1.0) != 1.0:
                return None
            return (0, 1) if node.attributes.get("transB", 0) else (1, 0)
        case "ConvTranspose":
            return (1, 0) if node.attributes.get("group", 1) == 1 and weights.ndim > 2 else None
    return (0, 1) if weights.ndim > 2 else None
