"""Inline maps into their readers, if they have a single reader or are too cheap to be stored.

Readers are maps, and scatters in place, which compute what they write. Work is not duplicated: a reader with more
elements than the map it reads inlines only cheap maps, and the size of an expression is limited. A map that is only
reshaped, by splitting its axes, computes the elements of the reshaped tensor, so that readers of that can inline it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from weft.cost.expressions import divides
from weft.fuse.channel_order import find_channel_reorderings
from weft.fuse.elements import unreshape_indices
from weft.fuse.quantized import find_stored_bytes
from weft.ir import dims
from weft.ir.access import axes_of_shape, find_nonlinear_axes, substitute_axes
from weft.ir.dims import Axis
from weft.ir.program import Map, Primitive, Reshape, Scatter, Step, TensorProgram, Value, join_origins
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
    """A map or a scatter in place, with precomputed properties of its expressions over a domain."""

    step: Step
    domain: Shape
    expressions: tuple[Scalar, ...]
    nodes: int
    loads: tuple[Load, ...]
    is_costly: bool


def inline_maps(program: TensorProgram, most_operands: int = MANY, stored: Collection[Value] = ()) -> TensorProgram:
    """Inline maps into the maps and scatters in place that read them, and drop maps without readers.

    A map with inlined ones has at most `most_operands` operands. The values in `stored` are not inlined.
    """
    maps: dict[Value, _MapInfo] = {}
    readers = _find_readers(program)
    in_place = find_channel_reorderings(program)
    stored = find_stored_bytes(program).union(stored)
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step.primitive, Reshape):
            step = _split_axes(step, maps, readers) or step
        if isinstance(step.primitive, Map):
            info = _analyse(step)
            info = info if step.results[0] in in_place else _inline_all(info, maps, readers, most_operands)
            step = info.step
            if step.results[0] not in stored:
                maps[step.results[0]] = info
        elif isinstance(step.primitive, Scatter) and step.primitive.in_place:
            step = _inline_all(_analyse(step), maps, readers, most_operands).step
        steps.append(step)
    return replace(program, steps=drop_unread_maps(steps, program.outputs))


def _split_axes(reshape: Step, maps: Mapping[Value, _MapInfo], readers: dict[Value, set[Value | None]]) -> Step | None:
    """Return the map that computes a reshaped movement of data; None unless the reshape only splits axes of one."""
    (source,), (result,) = reshape.operands, reshape.results
    inner = maps.get(source)
    if inner is None or readers[source] != {result} or not _is_cheap(inner) or not _reads_less(inner):
        return None
    indices = unreshape_indices(axes_of_shape(result.shape), result.shape, source.shape)
    if any(map(find_nonlinear_axes, indices)):
        return None
    for operand in inner.step.operands:
        readers[operand] = readers[operand] - {source} | {result}
    expression = substitute_axes(inner.expressions[0], indices)
    return replace(inner.step, primitive=Map(expression), results=reshape.results)


def _analyse(step: Step) -> _MapInfo:
    expressions: tuple[Scalar, ...]
    match step.primitive:
        case Map(expression):
            domain, expressions = step.results[0].shape, (expression,)
        case Scatter(domain, indices, update):
            expressions = (*indices, update)
        case _:
            raise AssertionError(step.primitive)
    nodes = [node for expression in expressions for node in walk(expression)]
    loads = tuple(node for node in nodes if isinstance(node, Load))
    is_costly = any(isinstance(node, Apply) and node.function in COSTLY for node in nodes)
    return _MapInfo(step, domain, expressions, len(nodes), loads, is_costly)


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
    is_lower = inner.step.results[0].rank < len(outer.domain)
    if checks and is_lower:
        return False  # an index is checked once, not by each of many readers
    if _is_index_table(inner) and is_lower:
        return False
    position = outer.step.operands.index(inner.step.results[0])
    shape = inner.step.results[0].shape
    value_loads = [load for load in outer.loads if load.operand == position]
    if outer.nodes + inner.nodes * len(value_loads) > LARGEST_EXPRESSION:
        return False
    if not all(_is_inside(load, shape) for load in value_loads):
        return False
    cheap = _is_cheap(inner) and not _is_worth_storing(inner, outer)
    if cheap and _reads_less(inner):
        return True
    same_size = dims.product(outer.domain) == dims.product(shape)
    return only_reader and (cheap or (same_size and len({load.indices for load in value_loads}) == 1))


def _is_index_table(inner: _MapInfo) -> bool:
    """Whether the map computes only with its indices, and expensively."""
    if inner.loads:
        return False
    indices = [node.value for node in walk(inner.expressions[0]) if isinstance(node, Index)]
    return inner.is_costly or any(map(divides, indices))


def _is_worth_storing(inner: _MapInfo, outer: _MapInfo) -> bool:
    """Whether the map's strides vary, as in reflection padding, and elements are read more than once."""
    shape = inner.step.results[0].shape
    indices = [index.value for load in inner.loads for index in load.indices if isinstance(index, Index)]
    uneven = any(dims.is_uneven(index, len(shape) - 1) for index in indices)
    return uneven and not dims.is_at_least(dims.product(shape), dims.product(outer.domain))


def _is_inside(load: Load, shape: Shape) -> bool:
    """Whether the indices depend only on axes and sizes, and are certain to be in range."""
    return all(
        isinstance(index, Index) and dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)
        for index, size in zip(load.indices, shape)
    )


def _is_cheap(inner: _MapInfo) -> bool:
    return inner.nodes <= CHEAP_NODES and not inner.is_costly


def _reads_less(inner: _MapInfo) -> bool:
    """Whether recomputing the map reads no more memory than reading its result."""
    return len(inner.loads) <= 1


def _inline(outer: _MapInfo, inner: _MapInfo) -> Step:
    """Replace the outer map's loads of the inner one by the inner expression.

    Each operand occurs once, in the order of first loads; that in which a scatter writes is the first one.
    """
    position = outer.step.operands.index(inner.step.results[0])
    own_indices = identity_indices(inner.step.results[0].shape)
    single = sum(1 for load in outer.loads if load.operand == position) == 1  # several loads need separate copies
    order: dict[Value, int] = {}
    if isinstance(outer.step.primitive, Scatter):
        order[outer.step.operands[0]] = 0
    inner_expression = inner.expressions[0]

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
            return inner_expression if single and keeps_numbers() else rebuild(inner_expression, renumber)
        positions = [index.value for index in load.indices if isinstance(index, Index)]
        return rebuild(
            inner_expression,
            renumber,
            lambda atom: positions[atom.position] if isinstance(atom, Axis) else dims.from_atom(atom),
        )

    expressions = [rebuild(expression, read_operand) for expression in outer.expressions]
    origin = join_origins([inner.step.origin, outer.step.origin])
    primitive = _replace_expressions(outer.step.primitive, expressions)
    return replace(outer.step, origin=origin, primitive=primitive, operands=tuple(order))


def _replace_expressions(primitive: Primitive, expressions: Sequence[Scalar]) -> Map | Scatter:
    """Return a primitive with other expressions, in the order of `_analyse`."""
    if isinstance(primitive, Scatter):
        *indices, update = expressions
        return replace(primitive, indices=tuple(indices), update=update)
    return Map(expressions[0])


def drop_unread_maps(steps: list[Step], outputs: tuple[Value, ...]) -> tuple[Step, ...]:
    """Drop the maps that no step after them reads."""
    needed = set(outputs)
    result: list[Step] = []
    for step in reversed(steps):
        if not isinstance(step.primitive, Map) or needed.intersection(step.results):
            result.append(step)
            needed.update(step.operands)
    return tuple(reversed(result))
