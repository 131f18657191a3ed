"""Upgrade a graph to a newer opset.

Most versions of an op differ in types alone. The table at the end lists those that differ in inputs, attributes or
meaning; a node that has no equivalent in the newer opset is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace

import numpy as np

from weft.errors import UnsupportedModelError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.graph import Attribute, Graph, Node, subgraphs
from weft.optimization.graph_edit import STANDARD, GraphEdit, has_subgraphs, tidy
from weft.optimization.value_facts import ValueFacts, infer_facts
from weft.records import dataclass

OLDEST = 7  # earlier elementwise ops have their own broadcasting rules
ALLOW_ZERO = 14  # the first opset in which Reshape can take 0 literally

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")


@dataclass(frozen=True, slots=True)
class _Change:
    """The form that a node has from version `since` on."""

    since: int
    adapt: Callable[[_Adapter, Node], Node]


@dataclass(frozen=True, slots=True)
class _Adapter:
    """Collects the constants and nodes that new forms need."""

    edit: GraphEdit
    facts: ValueFacts
    version: int  # the target opset
    constants: dict[str, Array] = field(default_factory=dict)  # those added here, by name

    def attributes_to_inputs(self, node: Node, names: Mapping[str, int], dtype: DType = DType.int64) -> Node:
        """Turn attributes into constant inputs at the positions in `names`."""
        inputs = list(node.inputs)
        for name, position in names.items():
            if name in node.attributes:
                inputs += [""] * (position + 1 - len(inputs))
                with np.errstate(over="ignore"):
                    content = np.asarray(node.attributes[name]).astype(dtype.numpy)
                inputs[position] = self.add_constant(f"{node.outputs[0]}_{name}", content)
        return replace(node, inputs=tuple(inputs), attributes=_drop_attributes(node, *names))

    def add_constant(self, stem: str, array: Array) -> str:
        name = self.edit.constant(stem, array)
        self.constants[name] = array
        return name

    def constant(self, name: str) -> Array | None:
        """Return the content of a constant of the graph or of this adapter."""
        return self.constants[name] if name in self.constants else self.facts.content(name)

    def input_dtype(self, node: Node) -> DType:
        dtype = self.facts.dtype(node.inputs[0])
        if dtype is None:
            raise _no_equivalent(node, f"the type of {node.inputs[0]} is not known")
        return dtype


def newest_version(graph: Graph) -> int:
    """Return the newest opset of any node; nodes differ only where functions of other opsets were inlined."""
    outer = (node.version for node in graph.nodes if node.domain == STANDARD)
    inner = (newest_version(each) for node in graph.nodes for each in subgraphs(node))
    return max((*outer, *inner), default=1)


def upgrade_graph(graph: Graph, version: int) -> Graph:
    """Rewrite all nodes for an opset."""
    facts = infer_facts(graph)
    try:
        return _upgrade(graph, version, facts)
    finally:
        facts.close()


def _upgrade(graph: Graph, version: int, facts: ValueFacts) -> Graph:
    if all(node.version == version for node in graph.nodes if node.domain == STANDARD) and not any(
        map(has_subgraphs, graph.nodes)
    ):
        return graph
    adapter = _Adapter(GraphEdit(graph, version), facts, version)
    nodes = [_upgrade_node(adapter, node) for node in graph.nodes]
    return _tidy_if_named(replace(graph, nodes=(*nodes, *adapter.edit.nodes), initializers=adapter.edit.initializers))


def _tidy_if_named(graph: Graph) -> Graph:
    has_aliases = any(value.shows for value in graph.outputs)
    return graph if has_aliases else tidy(graph)


def _upgrade_node(adapter: _Adapter, node: Node) -> Node:
    version = adapter.version
    attributes = {
        name: _upgrade(content, version, adapter.facts.inside(content)) if isinstance(content, Graph) else content
        for name, content in node.attributes.items()
    }
    node = replace(node, attributes=attributes)
    if node.domain != STANDARD or node.version == version:
        return node
    if node.version < OLDEST:
        problem = f"{node.op} of opset {node.version} cannot be written as one of opset {version}"
        raise UnsupportedModelError(problem, node=node.name, hint="export the model again with a newer opset")
    for change in _CHANGES.get(node.op, ()):
        if node.version < change.since <= version:
            node = change.adapt(adapter, node)
    return replace(node, version=version)


def _drop_attributes(node: Node, *names: str) -> dict[str, Attribute]:
    return {name: content for name, content in node.attributes.items() if name not in names}


def _as_axes(adapter: _Adapter, node: Node) -> Node:
    if node.op != "Unsqueeze" and not node.attributes.get("axes"):
        return replace(node, attributes=_drop_attributes(node, "axes"))  # no axes means all axes, in both forms
    return adapter.attributes_to_inputs(node, {"axes": 1})


def _clip(adapter: _Adapter, node: Node) -> Node:
    """A missing limit meant that of float32; now it means that of the data's type."""
    dtype = adapter.input_dtype(node)
    least, largest = dtype.limits
    limits: dict[str, Attribute] = {
        name: min(max(content, least), largest)
        for name, content in node.attributes.items()
        if isinstance(content, float)
    }
    if dtype is DType.float16:
        limits = {"min": -np.inf, "max": np.inf, **limits}
    return adapter.attributes_to_inputs(replace(node, attributes=limits), {"min": 1, "max": 2}, dtype)


def _pad(adapter: _Adapter, node: Node) -> Node:
    node = adapter.attributes_to_inputs(node, {"pads": 1})
    if not node.attributes.get("value"):
        return replace(node, attributes=_drop_attributes(node, "value"))  # 0 in both forms
    return adapter.attributes_to_inputs(node, {"value": 2}, adapter.input_dtype(node))


def _slice(adapter: _Adapter, node: Node) -> Node:
    return adapter.attributes_to_inputs(node, {"starts": 1, "ends": 2, "axes": 3})


def _top_k(adapter: _Adapter, node: Node) -> Node:
    count = node.attributes["k"]
    assert isinstance(count, int)
    return adapter.attributes_to_inputs(replace(node, attributes={**node.attributes, "k": (count,)}), {"k": 1})


def _split(adapter: _Adapter, node: Node) -> Node:
    return adapter.attributes_to_inputs(node, {"split": 1})


def _split_evenly(_: _Adapter, node: Node) -> Node:
    """Without sizes, a node now states the number of outputs."""
    if len(node.inputs) > 1 and node.inputs[1]:
        return node
    return replace(node, attributes={**node.attributes, "num_outputs": len(node.outputs)})


def _dropout_mask(adapter: _Adapter, node: Node) -> Node:
    """The mask had the data's type; now it is bool."""
    if not any(node.outputs[1:]):
        return node
    flags = adapter.edit.fresh(f"{node.outputs[1]}_flags")
    adapter.edit.add_named("Cast", [flags], node.outputs[1], {"to": adapter.input_dtype(node).number})
    return replace(node, outputs=(node.outputs[0], flags))


def _dropout(_: _Adapter, node: Node) -> Node:
    return replace(node, attributes=_drop_attributes(node, "ratio"))


def _spatial(_: _Adapter, node: Node) -> Node:
    if node.attributes.get("spatial", 1) != 1:
        raise _no_equivalent(node, "it has statistics for each element")
    return replace(node, attributes=_drop_attributes(node, "spatial"))


def _inference(_: _Adapter, node: Node) -> Node:
    if any(node.outputs[1:]):
        raise _no_equivalent(node, "it outputs the statistics of training")
    return replace(node, outputs=node.outputs[:1])


def _softmax(adapter: _Adapter, node: Node) -> Node:
    """It normalised over all axes from `axis` on; now over that axis alone."""
    axis = node.attributes.get("axis", 1)
    assert isinstance(axis, int)
    rank = adapter.facts.rank(node.inputs[0])
    if axis == -1 or (rank is not None and axis == rank - 1):
        return replace(node, attributes={"axis": -1})
    edit, name = adapter.edit, node.outputs[0]
    flat = edit.add("Flatten", [node.inputs[0]], f"{name}_flat", {"axis": axis})
    soft = edit.add(node.op, [flat], f"{name}_rows", {"axis": -1})
    sizes = edit.add("Shape", [node.inputs[0]], f"{name}_shape")
    attributes: dict[str, Attribute] = {"allowzero": 1} if adapter.version >= ALLOW_ZERO else {}
    return replace(node, op="Reshape", inputs=(soft, sizes), attributes=attributes)


def _upsample_scales(adapter: _Adapter, node: Node) -> Node:
    return adapter.attributes_to_inputs(node, {"scales": 1}, DType.float32)


def _as_resize(_: _Adapter, node: Node) -> Node:
    mode = node.attributes.get("mode", "nearest")
    return replace(node, op="Resize", attributes={**node.attributes, "mode": "linear" if mode == "bilinear" else mode})


def _resize(adapter: _Adapter, node: Node) -> Node:
    """Mode nearest rounded up along axes that shrink and down along those that grow; now a node rounds one way."""
    source, factors = node.inputs
    if node.attributes.get("mode", "nearest") != "nearest":
        return _asymmetric(adapter, node, source, factors, {})
    scales = adapter.constant(factors)
    if scales is None:
        raise _no_equivalent(node, "it rounds up or down by scales that are not constant")
    scales = scales.reshape(-1)
    shrinks, grows = scales < 1, scales > 1
    if not shrinks.any():
        return _asymmetric(adapter, node, source, factors, {"nearest_mode": "floor"})
    if grows.any():
        first = adapter.add_constant(f"{node.outputs[0]}_shrinking", np.where(shrinks, scales, 1).astype(scales.dtype))
        factors = adapter.add_constant(f"{node.outputs[0]}_growing", np.where(grows, scales, 1).astype(scales.dtype))
        small = _asymmetric(adapter, node, source, first, {"nearest_mode": "ceil"})
        source = adapter.edit.add("Resize", small.inputs, f"{node.outputs[0]}_small", small.attributes)
    rounding = "floor" if grows.any() else "ceil"
    return _asymmetric(adapter, node, source, factors, {"nearest_mode": rounding})


def _asymmetric(adapter: _Adapter, node: Node, source: str, scales: str, attributes: Mapping[str, Attribute]) -> Node:
    empty = adapter.add_constant(f"{node.outputs[0]}_roi", np.zeros(0, np.float32))
    mode: dict[str, Attribute] = {"coordinate_transformation_mode": "asymmetric"}
    return replace(node, inputs=(source, empty, scales), attributes={**node.attributes, **mode, **attributes})


def _resize_coordinates(_: _Adapter, node: Node) -> Node:
    if node.attributes.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        raise _no_equivalent(node, "coordinate_transformation_mode 'tf_half_pixel_for_nn' was removed")
    return node


def _scatter(_: _Adapter, node: Node) -> Node:
    return replace(node, op="ScatterElements")


def _grid_sample(_: _Adapter, node: Node) -> Node:
    new = {"bilinear": "linear", "bicubic": "cubic"}
    mode = str(node.attributes.get("mode", "bilinear"))
    return replace(node, attributes={**node.attributes, "mode": new.get(mode, mode)})


def _roi_align(_: _Adapter, node: Node) -> Node:
    return replace(node, attributes={"coordinate_transformation_mode": "output_half_pixel", **node.attributes})


def _fourier(adapter: _Adapter, node: Node) -> Node:
    axis = node.attributes.get("axis", 1)
    return adapter.attributes_to_inputs(replace(node, attributes={**node.attributes, "axis": axis}), {"axis": 2})


def _reject(_: _Adapter, node: Node) -> Node:
    raise _no_equivalent(node, "its meaning changed")


def _no_equivalent(node: Node, reason: str) -> UnsupportedModelError:
    problem = f"{node.op} of opset {node.version} cannot be written in a newer opset: {reason}"
    return UnsupportedModelError(problem, node=node.name, hint="export the model again with a newer opset")


_SOFTMAX = (_Change(13, _softmax),)
_CHANGES: dict[str, tuple[_Change, ...]] = {
    "BatchNormalization": (_Change(9, _spatial), _Change(14, _inference)),
    "Clip": (_Change(11, _clip),),
    "DFT": (_Change(20, _fourier),),
    "Dropout": (_Change(10, _dropout_mask), _Change(12, _dropout)),
    "GridSample": (_Change(20, _grid_sample),),
    "GroupNormalization": (_Change(21, _reject),),
    "Hardmax": _SOFTMAX,
    "LogSoftmax": _SOFTMAX,
    "Pad": (_Change(11, _pad),),
    "ReduceSum": (_Change(13, _as_axes),),
    "Resize": (_Change(11, _resize), _Change(13, _resize_coordinates)),
    "RoiAlign": (_Change(16, _roi_align),),
    "Scan": (_Change(9, _reject),),
    "Scatter": (_Change(11, _scatter),),
    "Slice": (_Change(10, _slice),),
    "Softmax": _SOFTMAX,
    "Split": (_Change(13, _split), _Change(18, _split_evenly)),
    "Squeeze": (_Change(13, _as_axes),),
    "TopK": (_Change(10, _top_k),),
    "Unsqueeze": (_Change(13, _as_axes),),
    "Upsample": (_Change(9, _upsample_scales), _Change(10, _as_resize), _Change(11, _resize)),
    **{f"Reduce{name}": (_Change(18, _as_axes),) for name in _REDUCTIONS},
}
