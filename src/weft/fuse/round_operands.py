"""Store values in 16 bits where all kernels that read them round them to that type, on targets whose lanes are threads.

The step that computes such a value rounds it: the last map of a row group, the epilogue of a product or an attention.
Otherwise each product rounds its float32 operands itself. Reshapes and maps that only move elements pass the rounded
value on. Where an attention scales a query or a key, the scaled value is stored; its readers then find it as it is.

A value that something else reads in float32 (a residual) is also stored rounded if a row group computes it, which
writes both. Elsewhere a second result would take another kernel. That kernel exists already for an input of the program
that a convolution reads, whose channels have to be moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise

from weft.cost.effort import count_step_flops
from weft.cost.sizes import estimate
from weft.fuse.attention import map_loads, number_loads
from weft.fuse.channel_order import find_channel_reorderings
from weft.fuse.elements import Definitions, NotFoundError, unreshape_indices
from weft.fuse.grouping import TAKE_EPILOGUE, find_boundary, find_readers, single_group
from weft.fuse.layouts import same_in_memory
from weft.ir import dims
from weft.ir.access import axes_of_shape
from weft.ir.attention import Attention
from weft.ir.dims import Axis, Compound, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.groups import AttentionGroup, FusedProgram, Group, RowGroup
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Contract, Convolve, Map, Reshape, Step, Value, join_origins
from weft.ir.scalar import (
    ELEMENT,
    Apply,
    Index,
    Literal,
    Load,
    Placeholder,
    Scalar,
    bind_placeholders,
    identity_indices,
    loads,
    rebuild,
    walk,
)
from weft.ir.target import Target, ThreadTarget
from weft.ir.types import Shape, TensorType

_LEAST_LINES = 16  # rows and columns of a product that tile products compute
_LEAST_SUMS = 33
_LEAST_TIME = 1 / 3  # of a launch, that such a product takes without tile products
_LARGEST_SCALING = 8  # nodes of the expression of a query or key
_IDENTITY = Placeholder(ELEMENT, DType.float32)


def round_operands(fused: FusedProgram, target: Target) -> FusedProgram:
    """Round values that only products and attentions read, if these round them to 16 bits in one plane."""
    if not isinstance(target, ThreadTarget) or target.float32_tiles is None:
        return fused
    element, planes = target.float32_tiles
    if planes > 1 or element is DType.float32:
        return fused
    return _Rounder(fused, target, element).run()


class _RoundedReads:
    """Which values of a program are rounded where they are read.

    `forms` has what is rounded of an element of a value, as an expression of `ELEMENT`; readers of the values in `only`
    need nothing else.
    """

    def __init__(self, fused: FusedProgram, target: ThreadTarget) -> None:
        program = fused.program
        definitions = Definitions(program.steps, program.outputs, program.constants)
        self.group_of = {id(step): group for group in fused.groups for step in group.steps}
        self.own_forms = {id(group): _find_group_forms(group, definitions, target) for group in fused.groups}
        self.forms: dict[Value, Scalar] = {}
        self.only: set[Value] = set()
        readers = find_readers(program)
        for step in reversed(program.steps):
            for value in step.results:
                if value.has_shape and value.dtype is DType.float32:
                    self._add_value(value, readers.get(value, ()))
        for value in program.inputs:
            steps = [step for step in readers.get(value, ()) if step is not None]
            if any(isinstance(step.primitive, Convolve) for step in steps) and _moves_channels(value):
                self._add_value(value, steps)

    def _add_value(self, value: Value, readers: Sequence[Step | None]) -> None:
        forms: set[Scalar] = set()
        is_only = True
        for reader in readers:
            form, passes_all = (None, False) if reader is None else self._find_form(value, reader)
            if form is not None:
                forms.add(form)
            is_only = is_only and passes_all
        if len(forms) == 1:
            self.forms[value] = forms.pop()
            if is_only:
                self.only.add(value)

    def _find_form(self, value: Value, reader: Step) -> tuple[Scalar | None, bool]:
        """Return what a reader rounds of a value's elements, if anything, and whether that is all it needs."""
        group = self.group_of[id(reader)]
        form = self.own_forms[id(group)].get(value)
        if form is not None:
            return form, True
        if len(group.steps) > 1 or not reader.results or reader.results[0] not in self.forms:
            return None, False
        result = reader.results[0]
        form, is_only = self.forms[result], result in self.only
        if isinstance(reader.primitive, Reshape):
            indices = unreshape_indices(axes_of_shape(value.shape), value.shape, result.shape)
            return _move_form(form, indices), is_only
        if _moves_elements(reader) and is_only and form == _IDENTITY:
            return form, True
        return None, False


def _moves_channels(value: Value) -> bool:
    """Whether an input has another layout in memory than a convolution reads."""
    return not same_in_memory(row_major(value.rank), channels_last(value.rank), value.shape)


def _find_group_forms(group: Group, definitions: Definitions, target: ThreadTarget) -> dict[Value, Scalar]:
    """Return what a group rounds of the elements of its operands."""
    if isinstance(group, AttentionGroup):
        return _find_attention_forms(group, definitions)
    if len(group.steps) == 1 and _uses_tiles(group.steps[0], definitions, target):
        (step,) = group.steps
        operands = step.operands[:1] if isinstance(step.primitive, Convolve) else step.operands
        return {
            value: _IDENTITY
            for value in operands
            if value.dtype is DType.float32 and not definitions.is_constant(value)
        }
    return {}


def _uses_tiles(step: Step, definitions: Definitions, target: ThreadTarget) -> bool:
    """Whether tile products are sure to compute a float32 product, by its sizes.

    Weights of few bits have kernels of their own.
    """
    if not isinstance(step.primitive, (Contract, Convolve)) or step.results[0].dtype is not DType.float32:
        return False
    left, right = step.operands
    if not left.has_shape or not right.has_shape:
        return False
    seconds = estimate(count_step_flops(step)) / (target.rates.compute_units * target.rates.unit_flops)
    if seconds < _LEAST_TIME * target.rates.launch_seconds:
        return False
    if any(definitions.is_constant(value) and value not in definitions.constants for value in (left, right)):
        return False
    if isinstance(step.primitive, Contract):
        sizes = dict(zip((*step.primitive.left, *step.primitive.right), (*left.shape, *right.shape)))
        sides = [set(step.primitive.left), set(step.primitive.right)]
        output = set(step.primitive.output)
        rows, columns = (own & output - other for own, other in (sides, sides[::-1]))
        lines = [estimate(dims.product(sizes[label] for label in labels)) for labels in (rows, columns)]
        sums = estimate(dims.product(size for label, size in sizes.items() if label not in output))
        return min(lines) >= _LEAST_LINES and sums >= _LEAST_SUMS
    groups, transposed = step.primitive.groups, step.primitive.transposed
    features = right.shape[1] if transposed else dims.floordiv(right.shape[0], groups)
    channels = dims.floordiv(left.shape[1], groups)
    sums = estimate(channels * dims.product(right.shape[2:]))
    positions = estimate(dims.product((left.shape[0], *step.results[0].shape[2:])))
    if groups != 1 and min(estimate(channels), estimate(features)) <= _LEAST_LINES:
        return False
    return min(positions, estimate(features)) >= _LEAST_LINES and sums >= _LEAST_SUMS


def _moves_elements(step: Step) -> bool:
    """Whether a step is a map whose elements are those of its operand, at places that depend on no data."""
    match step.primitive:
        case Map(Load(indices=indices, checked=False)):
            return len(step.operands) == 1 and all(isinstance(index, Index) for index in indices)
    return False


# -- attention --------------------------------------------------------------------------------------------------------


def _find_attention_forms(group: AttentionGroup, definitions: Definitions) -> dict[Value, Scalar]:
    """Return what an attention rounds of the operands that its queries, keys or values are elements of."""
    attention = group.attention
    roles = (attention.query, attention.key, attention.value)
    if attention.block_size is not None or any(role.dtype is not DType.float32 for role in roles):
        return {}
    others = (attention.score, attention.sink, attention.epilogue, *attention.loaded_bounds, *attention.loaded_starts)
    used = {load.operand for expression in others if expression is not None for load in loads(expression)}
    forms: dict[int, list[tuple[Scalar, Load]]] = {}
    for role in roles:
        own_loads = set(loads(role))
        load = next(iter(own_loads), None)
        if len(own_loads) == 1 and load is not None and load.dtype is DType.float32 and not load.checked:
            form = rebuild(role, lambda _: _IDENTITY)
            if not any(isinstance(node, Index) for node in walk(form)) and _count_nodes(form) <= _LARGEST_SCALING:
                forms.setdefault(load.operand, []).append((form, load))
                continue
        used |= {load.operand for load in own_loads}
    result: dict[Value, Scalar] = {}
    for number, own_forms in forms.items():
        value = group.operands[number]
        joined = None if number in used or definitions.is_constant(value) else _join_forms(own_forms, value.shape)
        if joined is not None and _is_moved_only(value, group, definitions):
            result[value] = joined
    return result


def _is_moved_only(value: Value, group: AttentionGroup, definitions: Definitions) -> bool:
    """Whether the products of an attention read a value as it is, or scaled, and nothing else of the group reads it."""
    products = [step for step in group.steps if isinstance(step.primitive, Contract)]
    weights = definitions.find_dependents(products[0].results[0])
    for operand in (operand for step in products for operand in step.operands if operand not in weights):
        expanded = _expand_inside(operand, group, definitions)
        if expanded is None or (len(expanded[0]) > 1 and value.number in {load.operand for load in expanded[0]}):
            return False
    return True


def _expand_inside(
    value: Value, group: AttentionGroup, definitions: Definitions
) -> tuple[set[Load], list[Step]] | None:
    """Return what the maps of a group load for an element of a value, with these maps; None if there are too many."""
    ids = {id(step) for step in group.steps}
    inlined: list[Step] = []

    def is_inside(operand: Value) -> bool:
        maker = definitions.makers.get(operand)
        return maker is not None and id(maker) in ids and isinstance(maker.primitive, (Map, Reshape))

    try:
        return set(loads(definitions.element(value, axes_of_shape(value.shape), is_inside, inlined))), inlined
    except NotFoundError:
        return None


def _count_nodes(expression: Scalar) -> int:
    return sum(1 for _ in walk(expression))


def _join_forms(forms: Sequence[tuple[Scalar, Load]], shape: Shape) -> Scalar | None:
    """Join what is rounded of a value's elements: one form, or one for each range of positions along an axis."""
    if len({form for form, _ in forms}) == 1:
        return forms[0][0]
    for axis in range(len(shape)):
        ranges: list[tuple[int, int, Scalar]] = []
        for form, load in forms:
            index = load.indices[axis]
            low, high = dims.bounds(index.value) if isinstance(index, Index) else (None, None)
            if low is not None and high is not None:
                ranges.append((low, high, form))
        ranges.sort(key=lambda own: own[:2])
        is_disjoint = all(before[1] < after[0] for before, after in pairwise(ranges))
        if len(ranges) < len(forms) or not is_disjoint:
            continue
        joined = last = ranges[-1][2]
        for (_, _, form), (start, _, _) in zip(ranges[-2::-1], ranges[:0:-1]):
            if form != last:
                joined = Apply("select", (_less(dims.axis(axis, shape[axis]), start), form, joined), DType.float32)
            last = form
        return joined
    return None


def _move_form(form: Scalar, indices: Sequence[Dim]) -> Scalar:
    """Replace the axes in the tests of a form."""
    match form:
        case Apply("select", (Apply("less", (Index(position), Index(int() as start))), before, after)):
            moved = dims.substitute(position, lambda atom: _index_of(atom, indices))
            return Apply("select", (_less(moved, start), before, _move_form(after, indices)), DType.float32)
    return form


def _index_of(atom: Symbol | Axis, indices: Sequence[Dim]) -> Dim:
    return indices[atom.position] if isinstance(atom, Axis) else dims.from_atom(atom)


def _less(position: Dim, start: int) -> Scalar:
    """Test whether a position is before a start, without divisions where the position is a quotient."""
    for atom in dims.atoms(position):
        match atom:
            case Compound("//", dividend, int() as divisor) if dims.from_atom(atom) == position:
                return _less(dividend, start * divisor)
    return Apply("less", (Index(position), Index(start)), DType.bool)


# -- the program ------------------------------------------------------------------------------------------------------


class _Rounder:
    def __init__(self, fused: FusedProgram, target: ThreadTarget, element: DType) -> None:
        self.fused, self.program, self.element = fused, fused.program, element
        self.reads = _RoundedReads(fused, target)
        self.reorderings = find_channel_reorderings(fused.program)
        self.definitions = Definitions(self.program.steps, self.program.outputs, self.program.constants)
        values = (*self.program.inputs, *self.program.constants, *self.definitions.makers)
        self.numbers = count(max((value.number for value in values), default=0) + 1)
        self.rounded: dict[Value, Value] = {}

    def run(self) -> FusedProgram:
        images = [self.round_input(value) for value in self.program.inputs if value in self.reads.forms]
        members = [(single_group(step), [step]) for step in images]
        members += [(group, self.rewrite(group)) for group in self.fused.groups]
        if not self.rounded:
            return self.fused
        steps = _drop_unread([step for _, own_steps in members for step in own_steps], self.program.outputs)
        program = replace(self.program, steps=tuple(steps))
        readers, read_ids = find_readers(program), set(map(id, steps))
        groups: list[Group] = []
        for group, own_steps in members:
            own_steps = [step for step in own_steps if id(step) in read_ids]
            match group:
                case AttentionGroup():
                    operands, results = find_boundary(own_steps, readers)
                    attention = self.rewrite_attention(group, operands)
                    groups.append(AttentionGroup(tuple(own_steps), operands, results, attention))
                case RowGroup(frame=frame):
                    groups.append(RowGroup(tuple(own_steps), *find_boundary(own_steps, readers), frame))
                case _:
                    groups += map(single_group, own_steps)
        return FusedProgram(program, tuple(groups))

    def round_input(self, value: Value) -> Step:
        readers = [reader for reader in self.definitions.readers[value] if reader is not None]
        return self.round_value(value, join_origins(reader.origin for reader in readers))

    def rewrite(self, group: Group) -> list[Step]:
        """Rewrite the steps of a group to read rounded values, and to round those that are only read so."""
        match group:
            case AttentionGroup():
                return self.rewrite_attention_steps(group)
            case RowGroup():
                return self.rewrite_rows(group)
            case _:
                (step,) = group.steps
                return self.rewrite_step(step)

    def rewrite_rows(self, group: RowGroup) -> list[Step]:
        steps: list[Step] = []
        after: list[Step] = []
        for step in group.steps:
            value = step.results[0]
            if isinstance(step.primitive, Map) and value in self.reads.only:
                step = self.round_map(step)
            elif isinstance(step.primitive, Map) and value in self.reads.forms:
                after.append(self.round_value(value, step.origin))
            steps.append(step)
        return steps + after

    def rewrite_step(self, step: Step) -> list[Step]:
        reads = self.reads
        value = step.results[0] if step.results else None
        rounds_result = value is not None and value in reads.only
        match step.primitive:
            case Reshape() if step.operands[0] in self.rounded and value in reads.forms:
                assert value is not None
                moved = replace(step, operands=(self.rounded[step.operands[0]],), results=(self.add_rounded(value),))
                return [step, moved]
            case Map(Load() as load) if rounds_result and _moves_elements(step) and step.operands[0] in self.rounded:
                assert value is not None
                primitive, source = Map(replace(load, dtype=self.element)), self.rounded[step.operands[0]]
                return [replace(step, primitive=primitive, operands=(source,), results=(self.add_rounded(value),))]
            case Map() if rounds_result and value not in self.reorderings:
                return [self.round_map(step)]
            case Contract() | Convolve():
                own_forms = reads.own_forms[id(reads.group_of[id(step)])]
                operands = [self.rounded.get(o, o) if o in own_forms else o for o in step.operands]
                step = replace(step, operands=tuple(operands))
        if rounds_result and isinstance(step.primitive, TAKE_EPILOGUE):
            assert value is not None
            return [step, self.round_value(value, step.origin)]
        return [step]

    def rewrite_attention_steps(self, group: AttentionGroup) -> list[Step]:
        """Rewrite the products of an attention to read rounded values, which maps move to the products' axes."""
        steps: list[Step] = []
        for step in group.steps:
            if isinstance(step.primitive, Contract):
                moves = [self.move_rounded(value, step, group) for value in step.operands]
                steps += [move for move in moves if move is not None]
                operands = [v if move is None else move.results[0] for v, move in zip(step.operands, moves)]
                step = replace(step, operands=tuple(operands))
            steps.append(step)
        (result,) = group.results
        if result in self.reads.only:
            steps.append(self.round_value(result, steps[-1].origin))
        return steps

    def move_rounded(self, value: Value, product: Step, group: AttentionGroup) -> Step | None:
        """Return a map that moves a rounded operand of the group to where a product reads `value`, if there is one."""
        own_loads, inlined = _expand_inside(value, group, self.definitions) or (set[Load](), [])
        sources = [v for v in self.reads.own_forms[id(group)] if v in self.rounded]
        source = next((v for v in sources if {load.operand for load in own_loads} == {v.number}), None)
        if source is None:
            return None
        result = Value(next(self.numbers), TensorType(self.element, value.shape), value.name)
        (source_load,) = own_loads
        load = Load(0, source_load.indices, self.element)
        origin = join_origins(step.origin for step in inlined) or product.origin
        return Step(Map(load), (self.rounded[source],), (result,), origin)

    def rewrite_attention(self, group: AttentionGroup, operands: Sequence[Value]) -> Attention:
        """Rewrite an attention to read rounded operands, and to round its result."""
        attention = group.attention
        rounded = {v: self.rounded[v] for v in self.reads.own_forms[id(group)] if v in self.rounded}

        def read(expression: Scalar) -> Scalar:
            """Drop the scaling of a query or key that is stored scaled."""
            own_loads = set(loads(expression))
            load = next(iter(own_loads), None)
            is_rounded = len(own_loads) == 1 and load is not None and group.operands[load.operand] in rounded
            return load if load is not None and is_rounded else expression

        def renumber(load: Load) -> Load:
            value = group.operands[load.operand]
            value = rounded.get(value, value)
            return replace(load, operand=value.number, dtype=value.dtype)

        epilogue = attention.epilogue
        (result,) = group.results
        if result in self.rounded:
            element = Placeholder(ELEMENT, DType.float32) if epilogue is None else epilogue
            epilogue = bind_placeholders(self.round_element(result), {ELEMENT: element})
        attention = replace(
            attention,
            query=read(attention.query),
            key=read(attention.key),
            value=read(attention.value),
            epilogue=epilogue,
        )
        return number_loads(map_loads(attention, renumber), operands)

    # -- rounding ----------------------------------------------------------------------------------------------------

    def add_rounded(self, value: Value) -> Value:
        """Create the rounded value."""
        result = Value(next(self.numbers), TensorType(self.element, value.shape), value.name)
        self.rounded[value] = result
        return result

    def round_element(self, value: Value) -> Scalar:
        """Return a rounded element of a value as an expression of `ELEMENT`; numbers beyond the range are clamped."""
        low, high = (Literal(float(limit), DType.float32) for limit in self.element.limits)
        bounded = Apply("maximum", (self.reads.forms[value], low), DType.float32)
        bounded = Apply("minimum", (bounded, high), DType.float32)
        return Apply("cast", (bounded,), self.element)

    def round_map(self, step: Step) -> Step:
        """Return a map with its result rounded."""
        assert isinstance(step.primitive, Map)
        (value,) = step.results
        expression = bind_placeholders(self.round_element(value), {ELEMENT: step.primitive.expression})
        return replace(step, primitive=Map(expression), results=(self.add_rounded(value),))

    def round_value(self, value: Value, origin: str) -> Step:
        """Return a map that rounds a value."""
        load = Load(0, identity_indices(value.shape), DType.float32)
        expression = bind_placeholders(self.round_element(value), {ELEMENT: load})
        return Step(Map(expression), (value,), (self.add_rounded(value),), origin)


def _drop_unread(steps: Sequence[Step], outputs: Sequence[Value]) -> list[Step]:
    """Drop maps and reshapes whose results nothing reads."""
    needed = set(outputs)
    result: list[Step] = []
    for step in reversed(steps):
        if not isinstance(step.primitive, (Map, Reshape)) or needed.intersection(step.results):
            result.append(step)
            needed.update(step.operands)
    return result[::-1]
