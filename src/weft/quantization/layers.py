"""Find the layers whose weights can be quantized: products and convolutions with constant weights."""

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
INPUT, WEIGHTS, BIAS = 0, 1, 2  # positions among a layer's inputs

_QUANTIZED_PREFIXES = ("QLinear", "Quantize", "Dequantize", "DynamicQuantize", "QAttention", "QGemm", "QMoE")
_QUANTIZED_SUFFIXES = ("Integer", "NBits", "BlockQuantized", "Bnb4")


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with its weights."""

    node: Node
    weights: Array
    axis: int  # of the output channels in the weights
    depth_axis: int  # of the reduction in the weights of a product

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


def weight_inputs(graph: Graph) -> list[str]:
    """Return the names of weights of all products and convolutions, constant or not."""
    return [node.inputs[WEIGHTS] for node in graph.nodes if _has_weights(node)]


def find_layers(graph: Graph, constants: Mapping[str, Array], dtypes: tuple[str, ...]) -> list[Layer]:
    """Return the layers of the main graph whose weights are constants of these types."""
    layers = []
    for node in graph.nodes:
        weights = constants.get(node.inputs[WEIGHTS]) if _has_weights(node) else None
        if weights is None or weights.dtype.name not in dtypes or not weights.size or node.inputs[INPUT] in constants:
            continue
        axes = _find_axes(node, weights)
        if axes is not None and np.isfinite(weights).all():
            layers.append(Layer(node, weights, *axes))
    return layers


def find_tables(graph: Graph, constants: Mapping[str, Array], block: int) -> list[Layer]:
    """Return the lookups of rows in constant tables (embeddings) whose rows are whole blocks."""
    layers = []
    for node in graph.nodes:
        table = constants.get(node.inputs[0]) if node.op == LOOK_UP and node.domain == STANDARD else None
        if table is None or table.ndim != 2 or table.dtype != np.float32 or node.inputs[1] in constants:
            continue
        rows, depth = table.shape
        if rows and depth and depth % block == 0 and node.attributes.get("axis", 0) == 0 and np.isfinite(table).all():
            layers.append(Layer(node, table, 0, 1))
    return layers


def find_quantized_node(graph: Graph) -> Node | None:
    """Return a node that computes on quantized numbers, if there is one."""
    return next((node for node in graph.nodes if _is_quantized(node)), None)


def _is_quantized(node: Node) -> bool:
    return node.op.startswith(_QUANTIZED_PREFIXES) or node.op.endswith(_QUANTIZED_SUFFIXES) or "Integer" in node.op


def _has_weights(node: Node) -> bool:
    return node.op in LAYERS and node.domain == STANDARD and len(node.inputs) > WEIGHTS


def _find_axes(node: Node, weights: Array) -> tuple[int, int] | None:
    """Return the axes of output channels and of the reduction; None if the layer cannot be quantized."""
    match node.op:
        case "MatMul":
            return (1, 0) if weights.ndim == 2 else None
        case "Gemm":
            is_plain = node.attributes.get("alpha", 1.0) == 1.0 and not node.attributes.get("transA", 0)
            if weights.ndim != 2 or not is_plain or node.attributes.get("beta", 1.0) != 1.0:
                return None
            return (0, 1) if node.attributes.get("transB", 0) else (1, 0)
        case "ConvTranspose":
            return (1, 0) if node.attributes.get("group", 1) == 1 and weights.ndim > 2 else None
    return (0, 1) if weights.ndim > 2 else None
