"""Convert models to float16 or bfloat16, "half" types: only weights, or all nodes that tolerate the smaller range.

Inputs and outputs keep their types. In the full form, a node computes either in float32 or in the half type, with a
Cast between nodes of different types. Nodes stay in float32 if their op needs the range or the precision (sums of many
numbers, exponentials, positions), if their values exceed the range of the half type, and if they have subgraphs. In
the weights form, weights are stored in the half type and cast to float32 by a node, which any engine can run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.graph import Graph, Node
from weft.optimization.graph_edit import STANDARD, GraphEdit, has_subgraphs, read_inside, rename_inputs
from weft.quantization.layers import LAYERS
from weft.quantization.prepare import find_constants

LEAST_WEIGHTS = 64  # elements of a weight that is worth a Cast
LEAST_MAGNITUDE = 16.0  # times the smallest normal number: a value that stays below would lose its precision
HEADROOM = 0.5  # the part of the range that observed values may use: other data may be larger
BFLOAT16 = 13  # the first opset that casts from bfloat16
ALL_IN_BFLOAT16 = 22  # the first opset with convolutions and pooling in bfloat16

_HALF_OPS = (
    "Abs", "Add", "AveragePool", "Clip", "Concat", "Conv", "ConvTranspose", "DepthToSpace", "Div", "Dropout", "Elu",
    "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool",
    "HardSigmoid", "HardSwish", "LeakyRelu", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg", "PRelu", "Pad", "Relu",
    "Reshape", "Selu", "Sigmoid", "Slice", "SpaceToDepth", "Split", "Squeeze", "Sub", "Tanh", "Tile", "Transpose",
    "Unsqueeze", "Where",
)  # fmt: skip
"""Ops that lose only precision in a half type, and that engines support in it."""
_UNTYPED = ("Shape", "Size")  # they read no elements
_AFTER_SQUARES = ("Sqrt", "Log", "Pow", "Reciprocal")  # they bring squares back to the range of the operand
_PASS_SQUARES = (
    "Abs", "Add", "Clip", "Concat", "Div", "Expand", "Flatten", "Gather", "Gemm", "Identity", "MatMul", "Max", "Min",
    "Mul", "Pad", "ReduceMean", "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze",
    "Where",
)  # fmt: skip
"""Ops whose results have the range of squares if their operands have it."""


@dataclass(frozen=True, slots=True)
class ObservedValues:
    """The types and largest magnitudes of the values of a graph on samples; infinite for values that overflow."""

    dtypes: Mapping[str, DType]
    largest: Mapping[str, float]


def find_half_nodes(graph: Graph, observed: ObservedValues, dtype: DType) -> list[Node]:
    """Return the nodes that can compute in a half type."""
    constants = find_constants(graph)
    limit = dtype.limits[1]
    squares = _find_squares(graph)

    def fits(name: str) -> bool:
        if name in constants:
            return _magnitude(constants[name]) <= limit and not _underflows(constants[name], dtype)
        largest = observed.largest.get(name, np.inf)
        return largest == 0 or _smallest_normal(dtype) * LEAST_MAGNITUDE <= largest <= limit * HEADROOM

    nodes = []
    for node in graph.nodes:
        values = [name for name in (*node.inputs, *node.outputs) if name]
        has_types = all(name in constants or name in observed.dtypes for name in values)
        floats = [name for name in values if _is_float(name, observed, constants)]
        is_half_op = node.op in _HALF_OPS and node.domain == STANDARD and not has_subgraphs(node)
        if node.name in squares:
            continue
        if is_half_op and has_types and any(name not in constants for name in floats) and all(map(fits, floats)):
            nodes.append(node)
    return _drop_isolated(nodes, constants)


def _find_squares(graph: Graph) -> set[str]:
    """Return the names of nodes between a square and its root or logarithm, as in the power of an audio signal.

    Squares have twice the range of their operand, so samples say little about the range on louder or quieter data.
    """
    squares = {node.name for node in graph.nodes if _is_square(node)}
    carriers = set(squares)
    squared = {name for node in graph.nodes if node.name in squares for name in node.outputs}
    for node in graph.nodes:
        if node.op in _PASS_SQUARES and node.name not in squares and not squared.isdisjoint(node.inputs):
            carriers.add(node.name)
            squared.update(node.outputs)
    between: set[str] = set()
    reaching = {name for node in graph.nodes if node.op in _AFTER_SQUARES for name in node.inputs if name}
    for node in reversed(graph.nodes):
        if node.name in carriers and not reaching.isdisjoint(node.outputs):
            between.add(node.name)
            reaching.update(() if node.name in squares else filter(None, node.inputs))
    return between


def _is_square(node: Node) -> bool:
    return node.op in ("Pow", "ReduceSumSquare") or (node.op == "Mul" and len(set(node.inputs)) == 1)


def _drop_isolated(nodes: Sequence[Node], constants: Mapping[str, Array]) -> list[Node]:
    """Keep the nodes that are connected to a product or convolution; others would only gain casts."""
    members: dict[str, list[Node]] = {}
    for node in nodes:
        for name in {*node.inputs, *node.outputs} - {""} - constants.keys():
            members.setdefault(name, []).append(node)
    pending = [node for node in nodes if node.op in LAYERS]
    reached = {node.name for node in pending}
    while pending:
        node = pending.pop()
        for name in (*node.inputs, *node.outputs):
            for other in members.pop(name, ()):
                if other.name not in reached:
                    reached.add(other.name)
                    pending.append(other)
    return [node for node in nodes if node.name in reached]


def _smallest_normal(dtype: DType) -> float:
    describe: Any = ml_dtypes.finfo
    return float(describe(dtype.numpy).smallest_normal)


def _underflows(array: Array, dtype: DType) -> bool:
    """Whether a small constant, such as the epsilon of a logarithm, has an element below the normal range of a type."""
    if array.size > LEAST_WEIGHTS or array.dtype != np.float32:
        return False
    magnitudes = np.abs(array[array != 0])
    return bool(magnitudes.size and float(magnitudes.min()) < _smallest_normal(dtype))


def _magnitude(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0)) if np.isfinite(array).all() else np.inf


def _is_float(name: str, observed: ObservedValues, constants: Mapping[str, Array]) -> bool:
    if name in constants:
        return bool(constants[name].dtype == np.float32)
    return observed.dtypes.get(name) is DType.float32


def write_half(graph: Graph, chosen: Sequence[Node], observed: ObservedValues, dtype: DType, version: int) -> Graph:
    """Return the graph with these nodes in a half type; outputs and values of subgraphs keep name and type."""
    constants = find_constants(graph)
    fixed = read_inside(graph) | {value.name for value in graph.outputs}
    writer = _HalfWriter(GraphEdit(graph, version), constants, dtype)
    names = {node.name for node in chosen}
    for node in chosen:
        for name in filter(None, node.outputs):
            if _is_float(name, observed, constants):
                writer.computed[name] = writer.edit.fresh(f"{name}_{dtype}") if name in fixed else name
    nodes = []
    for node in graph.nodes:
        is_half = node.name in names
        convert = writer.as_half if is_half else writer.as_any if node.op in _UNTYPED else writer.as_float32
        inputs = tuple(convert(name) if _is_float(name, observed, constants) else name for name in node.inputs)
        outputs = tuple(writer.computed.get(name, name) for name in node.outputs) if is_half else node.outputs
        nodes.append(replace(node, inputs=inputs, outputs=outputs))
    for name in sorted(fixed & writer.computed.keys()):
        writer.as_float32(name)
    return writer.edit.finish(nodes)


class _HalfWriter:
    """Adds the casts between the two types, and the constants in the half type."""

    def __init__(self, edit: GraphEdit, constants: Mapping[str, Array], dtype: DType) -> None:
        self.edit = edit
        self.computed: dict[str, str] = {}  # the names of values that nodes compute in the half type
        self._constants = constants
        self._dtype = dtype
        self._half: dict[str, str] = {}
        self._float32: dict[str, str] = {}

    def as_half(self, name: str) -> str:
        if name in self.computed:
            return self.computed[name]
        if name not in self._half:
            stem = f"{name}_{self._dtype}"
            if name in self._constants:
                self._half[name] = self.edit.constant(stem, self._constants[name].astype(self._dtype.numpy))
            else:
                self._half[name] = self.edit.add("Cast", [name], stem, {"to": self._dtype.number})
        return self._half[name]

    def as_any(self, name: str) -> str:
        return self.computed.get(name, name)

    def as_float32(self, name: str) -> str:
        half = self.computed.get(name)
        if half is None:
            return name
        if name not in self._float32:
            attributes = {"to": DType.float32.number}
            if half == name:
                self._float32[name] = self.edit.add("Cast", [half], f"{name}_float32", attributes)
            else:
                self._float32[name] = self.edit.add_named("Cast", [half], name, attributes)
        return self._float32[name]


def write_half_weights(graph: Graph, dtype: DType, excluded: Collection[str], version: int) -> Graph:
    """Return the graph with large weights in a half type, each cast to float32 before its use."""
    edit = GraphEdit(graph, version)
    wide = {"to": DType.float32.number}
    names = {
        name: edit.add("Cast", [edit.constant(f"{name}_{dtype}", array.astype(dtype.numpy))], f"{name}_wide", wide)
        for name, array in find_half_weights(graph, dtype).items()
        if name not in excluded
    }
    inside = read_inside(graph) | {value.name for value in graph.outputs}
    names = {name: other for name, other in names.items() if name not in inside}
    return edit.finish([rename_inputs(node, names) for node in graph.nodes])


def find_half_weights(graph: Graph, dtype: DType) -> dict[str, Array]:
    """Return the float32 weights that are large enough and fit into a half type."""
    limit = dtype.limits[1]
    return {
        name: array
        for name, array in find_constants(graph).items()
        if array.dtype == np.float32 and array.size >= LEAST_WEIGHTS and _magnitude(array) <= limit
    }
