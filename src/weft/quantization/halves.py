"""Models in float16 or bfloat16: weights alone, or all that is computed and stands the narrower range.

Inputs and outputs keep their types. In the full form every node has float32 or the narrow type for all that it reads
and gives of either, with a Cast where the two meet. Nodes stay in float32 where ops need the range or the digits (sums
of many numbers, exponentials, positions), where they take or give values beyond the range of the narrow type, and
where there is control flow. In the other form, weights lie in the narrow type and are cast to float32 by a node of
their own, which every engine can run, those included that do not compute in the type.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.graph import Graph, Node, subgraphs
from weft.optimization.graph_edit import STANDARD, GraphEdit, read_inside, renamed_inputs
from weft.quantization.layers import LAYERS
from weft.quantization.preparing import constants

LEAST_WEIGHTS = 64  # elements of a weight that is worth a node to cast it
DIGITS = 16.0  # times the smallest number of all digits: a value that is smaller everywhere is noise in the type
SPARE = 0.5  # of the range is kept free: data of a run may be larger than what was seen
BFLOAT16 = 13  # the first opset in which values are cast from it
ALL_IN_BFLOAT16 = 22  # the first opset in which convolutions and pooling take bfloat16

_NARROW = (
    "Abs", "Add", "AveragePool", "Clip", "Concat", "Conv", "ConvTranspose", "DepthToSpace", "Div", "Dropout", "Elu",
    "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool",
    "HardSigmoid", "HardSwish", "LeakyRelu", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg", "PRelu", "Pad", "Relu",
    "Reshape", "Selu", "Sigmoid", "Slice", "SpaceToDepth", "Split", "Squeeze", "Sub", "Tanh", "Tile", "Transpose",
    "Unsqueeze", "Where",
)  # fmt: skip
"""Ops that lose little but digits when they compute in a narrow type, and that engines have in it."""
_UNTYPED = ("Shape", "Size")  # which read no element
_OF_SQUARES = ("Sqrt", "Log", "Pow", "Reciprocal")  # which bring squares back to the range of what was squared
_KEEP_SQUARES = (
    "Abs", "Add", "Clip", "Concat", "Div", "Expand", "Flatten", "Gather", "Gemm", "Identity", "MatMul", "Max", "Min",
    "Mul", "Pad", "ReduceMean", "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze",
    "Where",
)  # fmt: skip
"""Ops whose results are of squares where their operands are."""


@dataclass(frozen=True, slots=True)
class SeenValues:
    """What runs showed of the values of a graph: types, and largest magnitudes; infinite where a value had no end."""

    dtypes: Mapping[str, DType]
    largest: Mapping[str, float]


def narrow_nodes(graph: Graph, seen: SeenValues, dtype: DType) -> list[Node]:
    """The nodes that can compute in a narrow type."""
    known = constants(graph)
    limit = dtype.limits[1]
    powers = _powers(graph)

    def fits(name: str) -> bool:
        if name in known:
            return _magnitude(known[name]) <= limit and not _vanishes(known[name], dtype)
        largest = seen.largest.get(name, np.inf)
        return largest == 0 or _smallest(dtype) * DIGITS <= largest <= limit * SPARE

    found = []
    for node in graph.nodes:
        values = [name for name in (*node.inputs, *node.outputs) if name]
        is_told = all(name in known or name in seen.dtypes for name in values)
        floats = [name for name in values if _is_float(name, seen, known)]
        plain = node.op in _NARROW and node.domain == STANDARD and not any(True for _ in subgraphs(node))
        if node.name in powers:
            continue
        if plain and is_told and any(name not in known for name in floats) and all(map(fits, floats)):
            found.append(node)
    return _worthwhile(found, known)


def _powers(graph: Graph) -> set[str]:
    """The names of nodes between squares and what takes their root or logarithm, as in the power of a sound.

    They have twice the range of what is squared: what the samples show of it says little of louder and quieter data.
    """
    squares = {node.name for node in graph.nodes if _is_square(node)}
    carriers, made = set(squares), {name for node in graph.nodes if node.name in squares for name in node.outputs}
    for node in graph.nodes:
        if node.op in _KEEP_SQUARES and node.name not in squares and not made.isdisjoint(node.inputs):
            carriers.add(node.name)
            made.update(node.outputs)
    found: set[str] = set()
    wanted = {name for node in graph.nodes if node.op in _OF_SQUARES for name in node.inputs if name}
    for node in reversed(graph.nodes):
        if node.name in carriers and not wanted.isdisjoint(node.outputs):
            found.add(node.name)
            wanted.update(() if node.name in squares else filter(None, node.inputs))
    return found


def _is_square(node: Node) -> bool:
    return node.op in ("Pow", "ReduceSumSquare") or (node.op == "Mul" and len(set(node.inputs)) == 1)


def _worthwhile(nodes: Sequence[Node], known: Mapping[str, Array]) -> list[Node]:
    """Those that hang together with a product or convolution: for the others, casts would be all that is won."""
    members: dict[str, list[Node]] = {}
    for node in nodes:
        for name in {*node.inputs, *node.outputs} - {""} - known.keys():
            members.setdefault(name, []).append(node)
    waiting = [node for node in nodes if node.op in LAYERS]
    reached = {node.name for node in waiting}
    while waiting:
        node = waiting.pop()
        for name in (*node.inputs, *node.outputs):
            for other in members.pop(name, ()):
                if other.name not in reached:
                    reached.add(other.name)
                    waiting.append(other)
    return [node for node in nodes if node.name in reached]


def _smallest(dtype: DType) -> float:
    """The smallest number that has all of its digits."""
    describe: Any = ml_dtypes.finfo
    return float(describe(dtype.numpy).smallest_normal)


def _vanishes(array: Array, dtype: DType) -> bool:
    """Whether a constant of few elements, as what keeps a logarithm from 0, has one that the type takes for nothing."""
    if array.size > LEAST_WEIGHTS or array.dtype != np.float32:
        return False
    sizes = np.abs(array[array != 0])
    return bool(sizes.size and float(sizes.min()) < _smallest(dtype))


def _magnitude(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0)) if np.isfinite(array).all() else np.inf


def _is_float(name: str, seen: SeenValues, known: Mapping[str, Array]) -> bool:
    if name in known:
        return bool(known[name].dtype == np.float32)
    return seen.dtypes.get(name) is DType.float32


def in_halves(graph: Graph, chosen: Sequence[Node], seen: SeenValues, dtype: DType, version: int) -> Graph:
    """The graph with these nodes in a narrow type. Values keep their names, but those that must be float32 under it."""
    known = constants(graph)
    fixed = read_inside(graph) | {value.name for value in graph.outputs}
    writer = _HalfWriter(GraphEdit(graph, version), known, dtype)
    names = {node.name for node in chosen}
    for node in chosen:
        for name in filter(None, node.outputs):
            if _is_float(name, seen, known):
                writer.made[name] = writer.edit.fresh(f"{name}_{dtype}") if name in fixed else name
    nodes = []
    for node in graph.nodes:
        is_narrow = node.name in names
        convert = writer.narrow if is_narrow else writer.any if node.op in _UNTYPED else writer.wide
        inputs = tuple(convert(name) if _is_float(name, seen, known) else name for name in node.inputs)
        outputs = tuple(writer.made.get(name, name) for name in node.outputs) if is_narrow else node.outputs
        nodes.append(replace(node, inputs=inputs, outputs=outputs))
    for name in fixed & writer.made.keys():
        writer.wide(name)
    return writer.edit.finish(nodes)


class _HalfWriter:
    """Adds the casts between the two types, and the constants in the narrow one."""

    def __init__(self, edit: GraphEdit, known: Mapping[str, Array], dtype: DType) -> None:
        self.edit = edit
        self.made: dict[str, str] = {}  # values that nodes give in the narrow type, with the name that they have there
        self._known = known
        self._dtype = dtype
        self._narrow: dict[str, str] = {}
        self._wide: dict[str, str] = {}

    def narrow(self, name: str) -> str:
        if name in self.made:
            return self.made[name]
        if name not in self._narrow:
            stem = f"{name}_{self._dtype}"
            if name in self._known:
                self._narrow[name] = self.edit.constant(stem, self._known[name].astype(self._dtype.numpy))
            else:
                self._narrow[name] = self.edit.add("Cast", [name], stem, {"to": self._dtype.number})
        return self._narrow[name]

    def any(self, name: str) -> str:
        return self.made.get(name, name)

    def wide(self, name: str) -> str:
        half = self.made.get(name)
        if half is None:
            return name
        if name not in self._wide:
            attributes = {"to": DType.float32.number}
            if half == name:
                self._wide[name] = self.edit.add("Cast", [half], f"{name}_float32", attributes)
            else:
                self._wide[name] = self.edit.add_named("Cast", [half], name, attributes)
        return self._wide[name]


def with_half_weights(graph: Graph, dtype: DType, kept: Collection[str], version: int) -> Graph:
    """The graph with large weights in a narrow type, each cast to float32 before it is used."""
    edit = GraphEdit(graph, version)
    wide = {"to": DType.float32.number}
    names = {
        name: edit.add("Cast", [edit.constant(f"{name}_{dtype}", array.astype(dtype.numpy))], f"{name}_wide", wide)
        for name, array in half_weights(graph, dtype).items()
        if name not in kept
    }
    inside = read_inside(graph) | {value.name for value in graph.outputs}
    names = {name: other for name, other in names.items() if name not in inside}
    return edit.finish([renamed_inputs(node, names) for node in graph.nodes])


def half_weights(graph: Graph, dtype: DType) -> dict[str, Array]:
    """The weights that are worth to be narrow, and fit into the type."""
    limit = dtype.limits[1]
    return {
        name: array
        for name, array in constants(graph).items()
        if array.dtype == np.float32 and array.size >= LEAST_WEIGHTS and _magnitude(array) <= limit
    }
