"""Inline maps into their readers, if they have a single reader or are too cheap to be stored.

Work is not duplicated: a reader with more elements than the map it reads inlines only cheap maps, and the size of an
expression is limited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.cost.expressions import divides
from weft.fuse.channel_order import find_channel_reorderings
from weft.fuse.quantized import find_stored_bytes
from weft.ir import dims
from weft.ir.dims import Axis
from weft.ir.program import Map, Step, TensorProgram, Value, join_origins
from weft.ir.scalar import Apply, Index, Load, Scalar, identity_indices, rebuild, walk
from weft.ir.types import Shape
from weft.records import dataclass

LARGEST_EXPRESSION = 160  # nodes
CHEAP_NODES = 12
MANY = 1 << 30
COSTLY = frozenset(
    "divide remainder fmod power sqrt exp log log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf".split()
)


@dataclass(frozen=True, slots=True)
class _MapInfo:
    """A map with precomputed properties of its expression."""

    step: Step
    expression: Scalar
    nodes: int
    loads: tuple[Load, ...]
    is_costly: bool


def inline_maps(program: TensorProgram, most_operands: int = MANY) -> TensorProgram:
    """Inline maps into the maps that read them, and drop maps without readers.

    A map with inlined ones has at most `most_operands` operands.
    """
    maps: dict[Value, _MapInfo] = {}
    readers = _find_readers(program)
    in_place = find_channel_reorderings(program)
    stored = find_stored_bytes(program)
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step.primitive, Map):
            info = _analyse(step)
            info = info if step.results[0] in in_place else _inline_all(info, maps, readers, most_operands)
            step = info.step
            if step.results[0] not in stored:
                maps[step.results[0]] = info
        steps.append(step)
    return replace(program, steps=_drop_unread_maps(steps, program.outputs))


def _analyse(step: Step) -> _MapInfo:
    assert isinstance(step.primitive, Map)
    nodes = list(walk(step.primitive.expression))
    loads = tuple(node for node in nodes if isinstance(node, Load))
    is_costly = any(isinstance(node, Apply) and node.function in COSTLY for node in nodes)
    return _MapInfo(step, step.primitive.expression, len(nodes), loads, is_costly)


def _find_readers(program: TensorProgram) -> dict[Value, set[Value | None]]:
    """Return the readers of each value by first result; None stands for outputs and steps without results."""
    readers: dict[Value, set[Value | None]] = {}
    for step in program.steps:
        for operand in step.operands:
            readers.setdefault(operand, set()).add(step.results[0] if step.results else None)
    for output in program.outputs:
        readers.setdefault(output, set()).add(None)
    return readers


def _inline_all(
    outer: _MapInfo, maps: Mapping[Value, _MapInfo], readers: dict[Value, set[Value | None]], most: int
) -> _MapInfo:
    """Inline maps into `outer` repeatedly, and update readers; a map without readers no longer reads its operands."""
    reader = outer.step.results[0]
    while True:
        for operand in outer.step.operands:
            inner = maps.get(operand)
            if inner is None or len({*outer.step.operands, *inner.step.operands}) > most + 1:
                continue
            if not _may_inline(inner, outer, only_reader=readers[operand] == {reader}):
                continue
            outer = _analyse(_inline(outer, inner))
            readers[operand].discard(reader)
            for source in inner.step.operands:
                readers[source].add(reader)
                if not readers[operand]:
                    readers[source].discard(operand)
            break
        else:
            return outer


def _may_inline(inner: _MapInfo, outer: _MapInfo, *, only_reader: bool) -> bool:
    checks = any(load.checked for load in inner.loads)
    if checks and inner.step.results[0].rank < outer.step.results[0].rank:
        return False  # an index is checked once, not by each of many readers
    if _is_index_table(inner) and inner.step.results[0].rank < outer.step.results[0].rank:
        return False
    position = outer.step.operands.index(inner.step.results[0])
    shape = inner.step.results[0].shape
    value_loads = [load for load in outer.loads if load.operand == position]
    if outer.nodes + inner.nodes * len(value_loads) > LARGEST_EXPRESSION:
        return False
    if not all(_is_inside(load, shape) for load in value_loads):
        return False
    cheap = inner.nodes <= CHEAP_NODES and not inner.is_costly and not _is_worth_storing(inner, outer)
    if cheap and _reads_less(inner):
        return True
    same_size = dims.product(outer.step.results[0].shape) == dims.product(shape)
    return only_reader and (cheap or (same_size and len({load.indices for load in value_loads}) == 1))


def _is_index_table(inner: _MapInfo) -> bool:
    """Whether the map computes only with its indices, and expensively."""
    if inner.loads:
        return False
    indices = [node.value for node in walk(inner.expression) if isinstance(node, Index)]
    return inner.is_costly or any(map(divides, indices))


def _is_worth_storing(inner: _MapInfo, outer: _MapInfo) -> bool:
    """Whether the map's strides vary, as in reflection padding, and elements are read more than once."""
    shape = inner.step.results[0].shape
    indices = [index.value for load in inner.loads for index in load.indices if isinstance(index, Index)]
    uneven = any(dims.is_uneven(index, len(shape) - 1) for index in indices)
    return uneven and not dims.is_at_least(dims.product(shape), dims.product(outer.step.results[0].shape))


def _is_inside(load: Load, shape: Shape) -> bool:
    """Whether the indices depend only on axes and sizes, and are certain to be in range."""
    return all(
        isinstance(index, Index) and dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)
        for index, size in zip(load.indices, shape)
    )


def _reads_less(inner: _MapInfo) -> bool:
    """Whether recomputing the map reads no more memory than reading its result."""
    return len(inner.loads) <= 1


def _inline(outer: _MapInfo, inner: _MapInfo) -> Step:
    """Replace the outer map's loads of the inner one by the inner expression.

    Each operand occurs once, in the order of first loads.
    """
    position = outer.step.operands.index(inner.step.results[0])
    own_indices = identity_indices(inner.step.results[0].shape)
    single = sum(1 for load in outer.loads if load.operand == position) == 1  # several loads need separate copies
    order: dict[Value, int] = {}

    def number(load: Load, operands: Sequence[Value]) -> Scalar:
        slot = order.setdefault(operands[load.operand], len(order))
        return load if slot == load.operand else Load(slot, load.indices, load.dtype, load.checked)

    def renumber(load: Load) -> Scalar:
        return number(load, inner.step.operands)

    def keeps_numbers() -> bool:
        """Whether the inner map's operands keep their numbers, which a repeated operand does not."""
        twice = len(set(inner.step.operands)) < len(inner.step.operands)
        if twice or tuple(order) != inner.step.operands[: len(order)]:
            return False
        order.update((operand, slot) for slot, operand in enumerate(inner.step.operands))
        return True

    def read_operand(load: Load) -> Scalar:
        if load.operand != position:
            return number(load, outer.step.operands)
        if load.indices == own_indices:
            return inner.expression if single and keeps_numbers() else rebuild(inner.expression, renumber)
        positions = [index.value for index in load.indices if isinstance(index, Index)]
        return rebuild(
            inner.expression,
            renumber,
            lambda atom: positions[atom.position] if isinstance(atom, Axis) else dims.from_atom(atom),
        )

    expression = rebuild(outer.expression, read_operand)
    origin = join_origins([inner.step.origin, outer.step.origin])
    return replace(outer.step, origin=origin, primitive=Map(expression), operands=tuple(order))


def _drop_unread_maps(steps: list[Step], outputs: tuple[Value, ...]) -> tuple[Step, ...]:
    needed = set(outputs)
    result: list[Step] = []
    for step in reversed(steps):
        if not isinstance(step.primitive, Map) or needed.intersection(step.results):
            result.append(step)
            needed.update(step.operands)
    return tuple(reversed(result))
