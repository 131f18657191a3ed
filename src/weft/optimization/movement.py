"""Data that is only moved: orders and shapes one after the other become one, padding goes into what it is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim, Expr
from weft.ir.dtypes import DType
from weft.ir.graph import Attribute, Graph, Node
from weft.ir.types import Shape
from weft.optimization.facts import ValueFacts
from weft.optimization.rewriting import Rewriting, Workshop

VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin",
)  # fmt: skip
CHOOSING = ("ReduceMax", "ReduceMin", "ArgMax", "ArgMin")  # reductions whose result is one of the elements
INPUT_SHAPES = 5  # the first opset in which Reshape has its shape as an input
INPUT_PADS = 11
INPUT_SLICES = 10
INPUT_AXES = 13  # of Squeeze, Unsqueeze and ReduceSum
REDUCTION_AXES = 18  # of the other reductions
RESHAPED, ORDERED, CONVERTED = "shapes put together", "orders put together", "conversions put together"
PADDED, SLICED, JOINED = "padding into what it is for", "slices put together", "concatenations put together"
SQUEEZED, SIZED = "axes dropped by what reduces them", "shapes that need not be computed"
MANTISSAS = {DType.float16: 11, DType.bfloat16: 8, DType.float32: 24, DType.float64: 53}
WIDER = {
    DType.float16: (DType.float32, DType.float64),
    DType.bfloat16: (DType.float32, DType.float64),
    DType.float32: (DType.float64,),
}


def with_less_movement(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph with fewer nodes that only move data."""
    rewriting = Rewriting(graph, facts, work)
    if work.version >= INPUT_SHAPES:
        for node in rewriting.nodes("Reshape"):
            _sized(rewriting, node)
        for node in rewriting.nodes("Expand"):
            _expanded(rewriting, node)
        for node in rewriting.nodes(*VIEWS, "Transpose"):
            _reshaped(rewriting, node)
    for node in rewriting.nodes(*VIEWS):
        _unfolded(rewriting, node)
    for node in rewriting.nodes("Transpose"):
        _ordered(rewriting, node)
    for node in rewriting.nodes("Cast"):
        _converted(rewriting, node)
    for node in rewriting.nodes("Conv", "AveragePool"):
        _padded(rewriting, node)
    for node in rewriting.nodes("Slice"):
        _sliced(rewriting, node)
    for node in rewriting.nodes("Squeeze", "Reshape"):
        _picked(rewriting, node)
    for node in rewriting.nodes("Concat"):
        _joined(rewriting, node)
    for node in rewriting.nodes("Squeeze", "Unsqueeze"):
        _squeezed(rewriting, node)
    for node in rewriting.nodes(*REDUCTIONS):
        _reduced_before_order(rewriting, node)
    for node in rewriting.nodes("Gemm"):
        _transposed(rewriting, node)
    return rewriting.finish()


def _sized(rewriting: Rewriting, node: Node) -> None:
    """A shape that is computed as a constant, with 0 for a size that stays and -1 for one that follows."""
    source, result = rewriting.shape(node.inputs[0]), rewriting.shape(node.outputs[0])
    sizes = rewriting.facts.sizes(node.inputs[1])
    if rewriting.constant(node.inputs[1]) is not None or source is None or result is None:
        return
    wanted: list[Dim] = list(result)
    if sizes is not None and len(sizes) == len(result):
        if node.attributes.get("allowzero", 0) and 0 in sizes:
            return
        wanted = [size if isinstance(size, int) and size else told for size, told in zip(result, sizes)]
    target = _target(source, wanted, None if rewriting.work.options.exact else rewriting.facts)
    if target is not None:
        shape = rewriting.add_constant(f"{node.outputs[0]}_shape", np.array(target, np.int64))
        changed = replace(node, inputs=(node.inputs[0], shape), attributes=_without(node, "allowzero"))
        rewriting.put(node, changed, done=SIZED)


def _target(source: Shape, result: Sequence[Dim], given: ValueFacts | None = None) -> list[int] | None:
    """What to reshape to, for all sizes of the source: -1 is not told where a size that stays may be 0.

    With `given`, sizes of inputs are taken for more than 0: what stays would be a chain of nodes otherwise.
    """
    target: list[int] = []
    followed = any(size == -1 for size in result)
    for at, size in enumerate(result):
        if isinstance(size, int):
            if size == 0 and (at >= len(source) or source[at] != 0):
                return None
            target.append(size)
        elif at < len(source) and source[at] == size:
            target.append(0)
        elif -1 not in target and not followed:
            target.append(-1)
        else:
            return None
    if followed or -1 not in target:
        return target
    kept = [size for size, told in zip(result, target) if told == 0]
    return target if not kept or (given is not None and given.are_given(kept)) else None


def _expanded(rewriting: Rewriting, node: Node) -> None:
    """A shape to expand to as a constant, with 1 for sizes that stay."""
    source, sizes = rewriting.shape(node.inputs[0]), rewriting.facts.sizes(node.inputs[1])
    if rewriting.constant(node.inputs[1]) is not None or source is None or sizes is None:
        return
    shift = len(sizes) - len(source)
    target: list[int] = []
    for at, size in enumerate(sizes):
        if isinstance(size, Expr):
            if at < shift or source[at - shift] != size:
                return
            target.append(1)
        else:
            target.append(size)
    shape = rewriting.add_constant(f"{node.outputs[0]}_shape", np.array(target, np.int64))
    rewriting.put(node, replace(node, inputs=(node.inputs[0], shape)), done=SIZED)


def _is_view(rewriting: Rewriting, node: Node) -> bool:
    """Whether a node leaves the order of elements as it is."""
    if node.op in VIEWS:
        return True
    shape = rewriting.shape(node.inputs[0])
    if node.op != "Transpose" or shape is None:
        return False
    moved = [axis for axis in _order(node, len(shape)) if shape[axis] != 1]
    return moved == sorted(moved)


def _reshaped(rewriting: Rewriting, node: Node) -> None:
    """Two shapes one after the other."""
    first = rewriting.before(node.inputs[0], *VIEWS, "Transpose")
    if first is None or not _is_view(rewriting, node) or not _is_view(rewriting, first):
        return
    source, result = rewriting.shape(first.inputs[0]), rewriting.shape(node.outputs[0])
    if source is None or result is None:
        return
    if source == result:
        rewriting.alias(node.outputs[0], first.inputs[0], RESHAPED)
        return
    target = _target(source, result)
    if target is not None:
        shape = rewriting.add_constant(f"{node.outputs[0]}_shape", np.array(target, np.int64))
        changed = rewriting.node("Reshape", (first.inputs[0], shape), node.outputs)
        rewriting.put(node, changed, merged=[first], done=RESHAPED)


def _integers(node: Node, name: str) -> tuple[int, ...] | None:
    """An attribute that holds integers."""
    content = node.attributes.get(name)
    return tuple(each for each in content if isinstance(each, int)) if isinstance(content, tuple) else None


def _order(node: Node, rank: int) -> tuple[int, ...]:
    order = _integers(node, "perm")
    return tuple(reversed(range(rank))) if order is None else order


def _unfolded(rewriting: Rewriting, node: Node) -> None:
    """Axes that are merged, moved together and taken apart again: they are moved one by one."""
    order = rewriting.only(node.inputs[0], "Transpose")
    merge = None if order is None else rewriting.only(order.inputs[0], *VIEWS)
    if order is None or merge is None:
        return
    shapes = [rewriting.shape(name) for name in (merge.inputs[0], order.inputs[0], node.outputs[0])]
    if any(shape is None for shape in shapes):
        return
    source, merged, result = (shape for shape in shapes if shape is not None)
    groups = _groups(source, merged)
    if groups is None:
        return
    axes = [axis for group in _order(order, len(merged)) for axis in groups[group]]
    if [source[axis] for axis in axes] == list(result):
        changed = rewriting.node("Transpose", (merge.inputs[0],), node.outputs, {"perm": tuple(axes)})
        rewriting.put(node, changed, merged=[order, merge], done=ORDERED)
        return
    kept = [axis for axis in axes if source[axis] != 1]
    target = _target(source, [source[axis] for axis in sorted(kept)])
    if target is None or [source[axis] for axis in kept] != list(result):
        return
    places = {axis: at for at, axis in enumerate(sorted(kept))}
    plain = rewriting.work.fresh(f"{node.outputs[0]}_plain")
    shape = rewriting.add_constant(f"{plain}_shape", np.array(target, np.int64))
    view = rewriting.node("Reshape", (merge.inputs[0], shape), (plain,))
    turned = rewriting.node("Transpose", (plain,), node.outputs, {"perm": tuple(places[axis] for axis in kept)})
    rewriting.put(node, view, turned, merged=[order, merge], done=ORDERED)


def _groups(source: Shape, merged: Shape) -> list[list[int]] | None:
    """The axes that each axis of a merged shape is made from, in order."""
    groups: list[list[int]] = []
    at = 0
    for size in merged:
        group: list[int] = []
        while at < len(source) and (not group or dims.product(source[axis] for axis in group) != size):
            group.append(at)
            at += 1
        if not group or dims.product(source[axis] for axis in group) != size:
            return None
        groups.append(group)
    return groups if at == len(source) else None


def _ordered(rewriting: Rewriting, node: Node) -> None:
    """Two orders one after the other."""
    first = rewriting.before(node.inputs[0], "Transpose")
    shape = rewriting.shape(node.inputs[0])
    if first is None or shape is None:
        return
    inner, outer = _order(first, len(shape)), _order(node, len(shape))
    order = tuple(inner[axis] for axis in outer)
    if order == tuple(range(len(order))):
        rewriting.alias(node.outputs[0], first.inputs[0], ORDERED)
    else:
        changed = replace(node, inputs=first.inputs, attributes={"perm": order})
        rewriting.put(node, changed, merged=[first], done=ORDERED)


def _converted(rewriting: Rewriting, node: Node) -> None:
    """A conversion to a type that holds all values, and one from there."""
    if rewriting.dtype(node.inputs[0]) is not None and rewriting.dtype(node.inputs[0]) is _target_type(node):
        rewriting.alias(node.outputs[0], node.inputs[0], CONVERTED)
        return
    first = rewriting.before(node.inputs[0], "Cast")
    if first is None:
        return
    start, middle = rewriting.dtype(first.inputs[0]), rewriting.dtype(node.inputs[0])
    end = rewriting.dtype(node.outputs[0])
    if start is None or middle is None or end is None or not _holds(middle, start) or end is DType.string:
        return  # texts of numbers tell their type
    if start is end:
        rewriting.alias(node.outputs[0], first.inputs[0], CONVERTED)
    else:
        rewriting.put(node, replace(node, inputs=first.inputs), merged=[first], done=CONVERTED)


def _target_type(node: Node) -> DType | None:
    number = node.attributes.get("to")
    return next((each for each in DType if each.number == number), None)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether a type has all numbers of another."""
    if wide is narrow:
        return True
    if narrow is DType.bool:
        return wide.is_integer or wide in MANTISSAS
    if narrow.is_integer and wide.is_integer:
        spare = 1 if wide.is_signed and not narrow.is_signed else 0
        return (wide.is_signed or not narrow.is_signed) and wide.bits >= narrow.bits + spare
    if narrow.is_integer:
        return narrow.bits <= MANTISSAS.get(wide, 0)
    return wide in WIDER.get(narrow, ())


def _padded(rewriting: Rewriting, node: Node) -> None:
    """Zeros around the data of a convolution as its own padding."""
    pad = rewriting.before(node.inputs[0], "Pad")
    if pad is None or node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return
    if node.op == "AveragePool" and not (node.attributes.get("count_include_pad", 0) and not _overhangs(node)):
        return
    pads = _zero_pads(rewriting, pad)
    rank = len(pads) // 2
    if rank < 3 or any(pads[at] for at in (0, 1, rank, rank + 1)) or min(pads) < 0:
        return
    told = _integers(node, "pads")
    own = (0,) * (2 * rank - 4) if told is None or node.attributes.get("auto_pad") == "VALID" else told
    both = tuple(a + b for a, b in zip((*pads[2:rank], *pads[rank + 2 :]), own))
    if node.op == "AveragePool" and not _smaller(node, both):
        return
    attributes: dict[str, Attribute] = {**_without(node, "auto_pad"), "pads": both}
    changed = replace(node, inputs=(pad.inputs[0], *node.inputs[1:]), attributes=attributes)
    rewriting.put(node, changed, merged=[pad], done=PADDED)


def _overhangs(node: Node) -> bool:
    return bool(node.attributes.get("ceil_mode", 0))


def _smaller(node: Node, pads: Sequence[int]) -> bool:
    """Whether engines take padding: it has to be less than the window."""
    window = _integers(node, "kernel_shape")
    return window is not None and all(pad < size for pad, size in zip(pads, (*window, *window)))


def _zero_pads(rewriting: Rewriting, node: Node) -> tuple[int, ...]:
    """How much a node pads with zeros; nothing where that is not known."""
    if node.attributes.get("mode", "constant") != "constant":
        return ()
    if rewriting.version < INPUT_PADS:
        told = _integers(node, "pads") or _integers(node, "paddings")
        return told if told is not None and not node.attributes.get("value", 0.0) else ()
    if len(node.inputs) > 3 and node.inputs[3]:
        return ()
    if len(node.inputs) > 2 and node.inputs[2] and rewriting.scalar(node.inputs[2]) != 0:
        return ()
    pads = rewriting.constant(node.inputs[1])
    return () if pads is None else tuple(int(pad) for pad in pads)


def _sliced(rewriting: Rewriting, node: Node) -> None:
    """Slices along different axes, one after the other."""
    first = rewriting.before(node.inputs[0], "Slice")
    if first is None or rewriting.version < INPUT_SLICES:
        return
    shape = rewriting.shape(node.inputs[0])
    if shape is None:
        return
    parts = [_slice_parts(rewriting, each, len(shape)) for each in (first, node)]
    if any(part is None for part in parts):
        return
    inner, outer = (part for part in parts if part is not None)
    if set(inner[2]) & set(outer[2]):
        return
    names = ("starts", "ends", "axes", "steps")
    kind = np.int64
    arrays = [np.array([*a, *b], kind) for a, b in zip(inner, outer)]
    inputs = [rewriting.add_constant(f"{node.outputs[0]}_{name}", array) for name, array in zip(names, arrays)]
    rewriting.put(node, replace(node, inputs=(first.inputs[0], *inputs)), merged=[first], done=SLICED)


def _picked(rewriting: Rewriting, node: Node) -> None:
    """One element along an axis, and the shape without that axis."""
    part = rewriting.before(node.inputs[0], "Slice")
    if part is None or rewriting.version < INPUT_SLICES:
        return
    source, sliced, result = (rewriting.shape(name) for name in (part.inputs[0], part.outputs[0], node.outputs[0]))
    parts = None if source is None else _slice_parts(rewriting, part, len(source))
    if source is None or sliced is None or result is None or parts is None or len(parts[0]) != 1:
        return
    (start,), _, (axis,), (step,) = parts
    size = source[axis]
    if not isinstance(size, int) or not -size <= start < size:
        return
    if step != 1 or sliced[axis] != 1 or result != (*source[:axis], *source[axis + 1 :]):
        return
    index = rewriting.add_constant(f"{node.outputs[0]}_index", np.array(start % size, np.int64))
    changed = rewriting.node("Gather", (part.inputs[0], index), node.outputs, {"axis": axis})
    rewriting.put(node, changed, merged=[part], done=SLICED)


def _slice_parts(rewriting: Rewriting, node: Node, rank: int) -> tuple[list[int], ...] | None:
    """Starts, ends, axes and steps, where they are constants."""
    found: list[list[int]] = []
    for place in range(1, 5):
        if len(node.inputs) > place and node.inputs[place]:
            array = rewriting.constant(node.inputs[place])
            if array is None:
                return None
            found.append([int(each) for each in array.reshape(-1)])
        else:
            found.append(list(range(len(found[0]))) if place == 3 else [1] * len(found[0]))
    found[2] = [axis % rank for axis in found[2]]
    return tuple(found)


def _joined(rewriting: Rewriting, node: Node) -> None:
    """A concatenation of concatenations along the same axis."""
    rank = len(rewriting.shape(node.outputs[0]) or ())
    if not rank:
        return
    merged: list[Node] = []
    inputs: list[str] = []
    for name in node.inputs:
        inner = rewriting.only(name, "Concat")
        if inner is not None and _axis(inner, rank) == _axis(node, rank):
            merged.append(inner)
            inputs += inner.inputs
        else:
            inputs.append(name)
    if merged:
        rewriting.put(node, replace(node, inputs=tuple(inputs)), merged=merged, done=JOINED)


def _axis(node: Node, rank: int) -> int:
    axis = node.attributes.get("axis", 1)
    assert isinstance(axis, int)
    return axis % rank


def _squeezed(rewriting: Rewriting, node: Node) -> None:
    """Axes that a reduction keeps or drops, instead of a node that does the opposite."""
    reduction = rewriting.only(node.inputs[0], *REDUCTIONS)
    if reduction is None:
        return
    keeps = bool(reduction.attributes.get("keepdims", 1))
    shape = rewriting.shape(reduction.inputs[0])
    if shape is None or keeps != (node.op == "Squeeze"):
        return
    reduced, squeezed = _reduced(rewriting, reduction), _axes(rewriting, node, INPUT_AXES)
    if not reduced or squeezed is None:
        return
    rank = len(shape) if keeps else len(shape) - len(reduced) + len(squeezed)  # in which Squeeze and Unsqueeze count
    if {axis % len(shape) for axis in reduced} == {axis % rank for axis in squeezed}:
        attributes = {**reduction.attributes, "keepdims": 0 if keeps else 1}
        changed = replace(reduction, outputs=node.outputs, attributes=attributes)
        rewriting.put(node, changed, merged=[reduction], done=SQUEEZED)


def _reduced_before_order(rewriting: Rewriting, node: Node) -> None:
    """A reduction of axes that were moved, where those that are left have kept their order: it is of other axes."""
    order = rewriting.before(node.inputs[0], "Transpose")
    shape = rewriting.shape(node.inputs[0])
    axes = _reduced(rewriting, node)
    if order is None or shape is None or not axes or node.attributes.get("keepdims", 1):
        return
    if rewriting.work.options.exact and node.op not in CHOOSING:
        return  # numbers would be added in another order
    moved = _order(order, len(shape))
    gone = {axis % len(shape) for axis in axes}
    left = [moved[axis] for axis in range(len(shape)) if axis not in gone]
    if left != sorted(left):
        return
    new = sorted(moved[axis] for axis in gone)
    since = INPUT_AXES if node.op == "ReduceSum" else REDUCTION_AXES
    inputs, attributes = (order.inputs[0], *node.inputs[1:]), dict(node.attributes)
    if node.op in ("ArgMax", "ArgMin"):
        attributes["axis"] = new[0]
    elif rewriting.version < since:
        attributes["axes"] = tuple(new)
    else:
        inputs = (order.inputs[0], rewriting.add_constant(f"{node.outputs[0]}_axes", np.array(new, np.int64)))
    changed = replace(node, inputs=inputs, attributes=attributes)
    rewriting.put(node, changed, merged=[order], done=ORDERED)


def _reduced(rewriting: Rewriting, node: Node) -> list[int] | None:
    if node.op in ("ArgMax", "ArgMin"):
        axis = node.attributes.get("axis", 0)
        return [axis] if isinstance(axis, int) else None
    since = INPUT_AXES if node.op == "ReduceSum" else REDUCTION_AXES
    return _axes(rewriting, node, since)


def _axes(rewriting: Rewriting, node: Node, since: int) -> list[int] | None:
    """The axes that a node names; None where it names none, or they are not known."""
    if rewriting.version < since:
        told = _integers(node, "axes")
        return None if told is None else list(told)
    array = rewriting.constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    return None if array is None else [int(axis) for axis in array.reshape(-1)]


def _transposed(rewriting: Rewriting, node: Node) -> None:
    """A product of a matrix that was transposed for it."""
    for place, flag in enumerate(("transA", "transB")):
        first = rewriting.before(node.inputs[place], "Transpose")
        if first is not None and _order(first, 2) == (1, 0):
            inputs = list(node.inputs)
            inputs[place] = first.inputs[0]
            attributes = {**node.attributes, flag: 0 if node.attributes.get(flag, 0) else 1}
            changed = replace(node, inputs=tuple(inputs), attributes=attributes)
            rewriting.put(node, changed, merged=[first], done=ORDERED)
            return


def _without(node: Node, name: str) -> dict[str, Attribute]:
    return {key: content for key, content in node.attributes.items() if key != name}
