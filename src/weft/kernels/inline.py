"""Fusion of maps: a map that only another map needs, or that is too cheap to be stored, is computed in its reader.

TensorProgram -> TensorProgram. Work is never multiplied: a reader with more elements than the map it reads takes in
only what costs next to nothing, and an expression stops growing at some size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.program import Map, Step, TensorProgram, Value, join_origins
from weft.ir.scalar import Apply, Index, Load, Scalar, rebuild, walk
from weft.ir.types import Shape, TensorType
from weft.kernels.orders import read_in_place

LARGEST_EXPRESSION = 160  # nodes
CHEAP_NODES = 12
MANY = 1 << 30
COSTLY = frozenset(
    "divide remainder fmod power sqrt exp log log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf".split()
)


def inline_maps(program: TensorProgram, most_operands: int = MANY) -> TensorProgram:
    """Fuse maps into the maps that read them; what nobody reads any more is dropped.

    A map that takes in others reads no more than `most_operands`.
    """
    maps: dict[Value, Step] = {}
    readers = _readers(program)
    in_place = read_in_place(program)
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step.primitive, Map):
            step = step if step.results[0] in in_place else _take_in(step, maps, readers, most_operands)
            maps[step.results[0]] = step
        steps.append(step)
    return replace(program, steps=_needed(steps, program.outputs))


def _readers(program: TensorProgram) -> dict[Value, set[Value | None]]:
    """Who reads each value, by first result; None stands for the world outside and for steps without results."""
    readers: dict[Value, set[Value | None]] = {}
    for step in program.steps:
        for operand in step.operands:
            readers.setdefault(operand, set()).add(step.results[0] if step.results else None)
    for output in program.outputs:
        readers.setdefault(output, set()).add(None)
    return readers


def _take_in(step: Step, maps: Mapping[Value, Step], readers: dict[Value, set[Value | None]], most: int) -> Step:
    """The step with maps inlined, as long as there are any; one that is left without readers reads no more itself."""
    reader = step.results[0]
    while True:
        for operand in step.operands:
            inner = maps.get(operand)
            if inner is None or len({*step.operands, *inner.operands}) > most + 1:
                continue
            if not _may_inline(inner, step, only_reader=readers[operand] == {reader}):
                continue
            step = _inline(step, inner)
            readers[operand].discard(reader)
            for source in inner.operands:
                readers[source].add(reader)
                if not readers[operand]:
                    readers[source].discard(operand)
            break
        else:
            return step


def _may_inline(inner: Step, outer: Step, *, only_reader: bool) -> bool:
    assert isinstance(inner.primitive, Map)
    assert isinstance(outer.primitive, Map)
    position = outer.operands.index(inner.results[0])
    shape = _shape(inner.results[0])
    own = [load for load in walk(outer.primitive.expression) if isinstance(load, Load) and load.operand == position]
    if not all(_is_inside(load, shape) for load in own):
        return False
    nodes = sum(1 for _ in walk(inner.primitive.expression))
    if sum(1 for _ in walk(outer.primitive.expression)) + nodes * len(own) > LARGEST_EXPRESSION:
        return False
    cheap = nodes <= CHEAP_NODES and not _is_costly(inner.primitive.expression) and not _is_worth_storing(inner, outer)
    if cheap and _reads_less(inner):
        return True
    same_size = dims.product(_shape(outer.results[0])) == dims.product(shape)
    return only_reader and (cheap or (same_size and len({load.indices for load in own}) == 1))


def _is_worth_storing(inner: Step, outer: Step) -> bool:
    """Whether the map reads neighbours at uneven places, as padding by reflection does, for several readers each."""
    assert isinstance(inner.primitive, Map)
    shape = _shape(inner.results[0])
    loads = [node for node in walk(inner.primitive.expression) if isinstance(node, Load)]
    indices = [index.value for load in loads for index in load.indices if isinstance(index, Index)]
    uneven = any(dims.is_uneven(index, len(shape) - 1) for index in indices)
    return uneven and not dims.is_at_least(dims.product(shape), dims.product(_shape(outer.results[0])))


def _is_inside(load: Load, shape: Shape) -> bool:
    """Whether the indices are sizes alone and certain to lie in the tensor, so that they may replace its axes."""
    return all(
        isinstance(index, Index) and dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)
        for index, size in zip(load.indices, shape)
    )


def _reads_less(inner: Step) -> bool:
    """Whether computing the map again reads no more memory than reading its stored result would."""
    assert isinstance(inner.primitive, Map)
    return sum(1 for node in walk(inner.primitive.expression) if isinstance(node, Load)) <= 1


def _is_costly(expression: Scalar) -> bool:
    return any(isinstance(node, Apply) and node.function in COSTLY for node in walk(expression))


def _inline(outer: Step, inner: Step) -> Step:
    assert isinstance(outer.primitive, Map)
    assert isinstance(inner.primitive, Map)
    expression = inner.primitive.expression
    operands = [*outer.operands, *inner.operands]
    base, position = len(outer.operands), outer.operands.index(inner.results[0])
    shifted = rebuild(expression, lambda load: Load(load.operand + base, load.indices, load.dtype, load.checked))

    def through(load: Load) -> Scalar:
        if load.operand != position:
            return load
        places = [index.value for index in load.indices if isinstance(index, Index)]
        return rebuild(shifted, atom=lambda atom: _place(atom, places))

    both = replace(outer, origin=join_origins([inner.origin, outer.origin]))
    return _compact(both, rebuild(outer.primitive.expression, through), operands)


def _place(atom: Symbol | Axis, places: list[Dim]) -> Dim:
    return places[atom.position] if isinstance(atom, Axis) else dims.symbol(atom.name, atom.low, atom.high)


def _compact(step: Step, expression: Scalar, operands: list[Value]) -> Step:
    """The map with each operand once, in the order of their first loads."""
    order: list[Value] = []

    def renumber(load: Load) -> Scalar:
        value = operands[load.operand]
        if value not in order:
            order.append(value)
        return Load(order.index(value), load.indices, load.dtype, load.checked)

    renumbered = rebuild(expression, renumber)
    return replace(step, primitive=Map(renumbered), operands=tuple(order))


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
