"""Fusion of maps: a map that only another map needs, or that is too cheap to be stored, is computed in its reader.

TensorProgram -> TensorProgram. Work is never multiplied: a reader with more elements than the map it reads takes in
only what costs next to nothing, and an expression stops growing at some size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.cost.expressions import divides
from weft.fuse.channel_order import read_in_place
from weft.fuse.quantized import kept_bytes
from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.program import Map, Step, TensorProgram, Value, join_origins
from weft.ir.scalar import Apply, Index, Load, Scalar, rebuild, walk
from weft.ir.types import Shape, TensorType
from weft.records import dataclass

LARGEST_EXPRESSION = 160  # nodes
CHEAP_NODES = 12
MANY = 1 << 30
COSTLY = frozenset(
    "divide remainder fmod power sqrt exp log log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf".split()
)


@dataclass(frozen=True, slots=True)
class _Known:
    """A map, and what is asked of its expression again and again."""

    step: Step
    expression: Scalar
    nodes: int
    loads: tuple[Load, ...]
    is_costly: bool


def inline_maps(program: TensorProgram, most_operands: int = MANY) -> TensorProgram:
    """Fuse maps into the maps that read them; what nobody reads any more is dropped.

    A map that takes in others reads no more than `most_operands`.
    """
    maps: dict[Value, _Known] = {}
    readers = _readers(program)
    in_place = read_in_place(program)
    kept = kept_bytes(program)
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step.primitive, Map):
            known = _know(step)
            known = known if step.results[0] in in_place else _take_in(known, maps, readers, most_operands)
            step = known.step
            if step.results[0] not in kept:
                maps[step.results[0]] = known
        steps.append(step)
    return replace(program, steps=_needed(steps, program.outputs))


def _know(step: Step) -> _Known:
    assert isinstance(step.primitive, Map)
    nodes = list(walk(step.primitive.expression))
    loads = tuple(node for node in nodes if isinstance(node, Load))
    is_costly = any(isinstance(node, Apply) and node.function in COSTLY for node in nodes)
    return _Known(step, step.primitive.expression, len(nodes), loads, is_costly)


def _readers(program: TensorProgram) -> dict[Value, set[Value | None]]:
    """Who reads each value, by first result; None stands for the world outside and for steps without results."""
    readers: dict[Value, set[Value | None]] = {}
    for step in program.steps:
        for operand in step.operands:
            readers.setdefault(operand, set()).add(step.results[0] if step.results else None)
    for output in program.outputs:
        readers.setdefault(output, set()).add(None)
    return readers


def _take_in(outer: _Known, maps: Mapping[Value, _Known], readers: dict[Value, set[Value | None]], most: int) -> _Known:
    """The map with others inlined, as long as there are any; one that is left without readers reads no more itself."""
    reader = outer.step.results[0]
    while True:
        for operand in outer.step.operands:
            inner = maps.get(operand)
            if inner is None or len({*outer.step.operands, *inner.step.operands}) > most + 1:
                continue
            if not _may_inline(inner, outer, only_reader=readers[operand] == {reader}):
                continue
            outer = _know(_inline(outer, inner))
            readers[operand].discard(reader)
            for source in inner.step.operands:
                readers[source].add(reader)
                if not readers[operand]:
                    readers[source].discard(operand)
            break
        else:
            return outer


def _may_inline(inner: _Known, outer: _Known, *, only_reader: bool) -> bool:
    checks = any(load.checked for load in inner.loads)
    if checks and len(_shape(inner.step.results[0])) < len(_shape(outer.step.results[0])):
        return False  # faults of the data are told once, not by each of many readers
    if _is_table(inner) and len(_shape(inner.step.results[0])) < len(_shape(outer.step.results[0])):
        return False
    position = outer.step.operands.index(inner.step.results[0])
    shape = _shape(inner.step.results[0])
    own = [load for load in outer.loads if load.operand == position]
    if outer.nodes + inner.nodes * len(own) > LARGEST_EXPRESSION:
        return False
    if not all(_is_inside(load, shape) for load in own):
        return False
    cheap = inner.nodes <= CHEAP_NODES and not inner.is_costly and not _is_worth_storing(inner, outer)
    if cheap and _reads_less(inner):
        return True
    same_size = dims.product(_shape(outer.step.results[0])) == dims.product(shape)
    return only_reader and (cheap or (same_size and len({load.indices for load in own}) == 1))


def _is_table(inner: _Known) -> bool:
    """Whether the map is made of its indices alone, by divisions."""
    if inner.loads:
        return False
    indices = [node.value for node in walk(inner.expression) if isinstance(node, Index)]
    return inner.is_costly or any(map(divides, indices))


def _is_worth_storing(inner: _Known, outer: _Known) -> bool:
    """Whether the map reads neighbours at uneven places, as padding by reflection does, for several readers each."""
    shape = _shape(inner.step.results[0])
    indices = [index.value for load in inner.loads for index in load.indices if isinstance(index, Index)]
    uneven = any(dims.is_uneven(index, len(shape) - 1) for index in indices)
    return uneven and not dims.is_at_least(dims.product(shape), dims.product(_shape(outer.step.results[0])))


def _is_inside(load: Load, shape: Shape) -> bool:
    """Whether the indices are sizes alone and certain to lie in the tensor, so that they may replace its axes."""
    return all(
        isinstance(index, Index) and dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)
        for index, size in zip(load.indices, shape)
    )


def _reads_less(inner: _Known) -> bool:
    """Whether computing the map again reads no more memory than reading its stored result would."""
    return len(inner.loads) <= 1


def _inline(outer: _Known, inner: _Known) -> Step:
    """The outer map with the inner one's expression in the place of its loads, and each operand once, in the order of
    their first loads.
    """
    position = outer.step.operands.index(inner.step.results[0])
    shape = _shape(inner.step.results[0])
    plain = tuple(Index(dims.axis(number, size)) for number, size in enumerate(shape))
    single = sum(1 for load in outer.loads if load.operand == position) == 1  # two places are two trees
    order: dict[Value, int] = {}

    def number(load: Load, operands: Sequence[Value]) -> Scalar:
        place = order.setdefault(operands[load.operand], len(order))
        return load if place == load.operand else Load(place, load.indices, load.dtype, load.checked)

    def renumber(load: Load) -> Scalar:
        return number(load, inner.step.operands)

    def keeps_numbers() -> bool:
        """Whether the inner map's operands have their numbers in the result as well; one that it has twice has two."""
        twice = len(set(inner.step.operands)) < len(inner.step.operands)
        if twice or tuple(order) != inner.step.operands[: len(order)]:
            return False
        order.update((operand, place) for place, operand in enumerate(inner.step.operands))
        return True

    def through(load: Load) -> Scalar:
        if load.operand != position:
            return number(load, outer.step.operands)
        if load.indices == plain:
            return inner.expression if single and keeps_numbers() else rebuild(inner.expression, renumber)
        places = [index.value for index in load.indices if isinstance(index, Index)]
        return rebuild(inner.expression, renumber, lambda atom: _place(atom, places))

    expression = rebuild(outer.expression, through)
    origin = join_origins([inner.step.origin, outer.step.origin])
    return replace(outer.step, origin=origin, primitive=Map(expression), operands=tuple(order))


def _place(atom: Symbol | Axis, places: list[Dim]) -> Dim:
    return places[atom.position] if isinstance(atom, Axis) else dims.symbol(atom.name, atom.low, atom.high)


def _needed(steps: list[Step], outputs: tuple[Value, ...]) -> tuple[Step, ...]:
    needed = set(outputs)
    kept: list[Step] = []
    for step in reversed(steps):
        if not isinstance(step.primitive, Map) or needed.intersection(step.results):
            kept.append(step)
            needed.update(step.operands)
    return tuple(reversed(kept))


def _shape(value: Value) -> Shape:
    assert isinstance(value.type, TensorType)
    return value.type.shape or ()
