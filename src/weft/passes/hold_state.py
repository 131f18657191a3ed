"""Hold the state of a program in place: inputs that come back as outputs with more elements along an axis.

In: a program, and pairs of an input and an output of which the output appends to the input. Out: a program whose input
is a buffer with room, into which the new elements are written behind the old ones. The output is a slice of the
buffer, which its readers inline; if no run asks for it, it is never stored.

The length of the input, which no shape shows any more, and the room that is left are sizes that a run binds. An output
that the branches of a merged decoder compute is written in the branches; the branch that ran returns its length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import Branch, Concat, Dims, Guard, Map, Scatter, Step, TensorProgram, Value, bodies
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, identity_indices
from weft.ir.state import HeldInput
from weft.ir.types import TensorType
from weft.passes.dead_code import guard_symbols, step_symbols, type_symbols, with_outputs
from weft.passes.rewrite import count_uses, next_number
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class HeldState:
    """A program with the inputs that it changes, and the values that are lengths after the run, by their sizes."""

    program: TensorProgram
    inputs: tuple[HeldInput, ...]
    lengths: Mapping[str, Value]


Pair = tuple[Value, Value, int]  # an input, its output, and the axis along which it grows


def hold_state(program: TensorProgram, pairs: Sequence[Pair], returned: Sequence[Value] = ()) -> HeldState:
    """Write the outputs of pairs into their inputs where that is possible.

    The outputs remain values of the program, except those that branches compute; `with_outputs` drops the values that
    no run asks for. `returned` outputs are asked for.
    """
    work = _Holding(program, {source for source, _, _ in pairs})
    branches: dict[int, list[Pair]] = {}
    for pair in pairs:
        step = work.makers.get(pair[1])
        if step is not None and isinstance(step.primitive, Branch):
            branches.setdefault(id(step), []).append(pair)
        else:
            work.hold_output(*pair)
    for step in program.steps:
        if id(step) in branches:
            work.hold_branches(step, branches[id(step)], returned)
    return work.finish()


@dataclass(slots=True)
class _Holding:
    """The rewriting of one program."""

    program: TensorProgram
    sources: set[Value]
    makers: dict[Value, Step] = field(default_factory=dict)
    uses: Counter[Value] = field(default_factory=Counter)
    shown_names: set[str] = field(default_factory=set)
    rooms: dict[tuple[str, Dim], str] = field(default_factory=dict)
    buffers: dict[Value, Value] = field(default_factory=dict)
    replaced_steps: dict[int, list[Step]] = field(default_factory=dict)
    held_inputs: list[HeldInput] = field(default_factory=list)
    lengths: dict[str, Value] = field(default_factory=dict)
    removed: set[Value] = field(default_factory=set)
    number: int = 0

    def __post_init__(self) -> None:
        self.makers = {value: step for step in self.program.steps for value in step.results}
        self.uses = count_uses(self.program)
        shapes = [value.shape for value in self.program.inputs if value.has_shape and value not in self.sources]
        symbols = [dims.as_symbol(dim) for shape in shapes for dim in shape]
        self.shown_names = {symbol.name for symbol in symbols if symbol is not None}
        self.number = next_number(self.program)

    def finish(self) -> HeldState:
        steps = [new for step in self.program.steps for new in self.replaced_steps.get(id(step), [step])]
        inputs = tuple(self.buffers.get(value, value) for value in self.program.inputs)
        outputs = tuple(value for value in self.program.outputs if value not in self.removed)
        program = replace(self.program, inputs=inputs, steps=tuple(steps), outputs=outputs)
        return HeldState(program, tuple(self.held_inputs), self.lengths)

    def new_value(self, type: TensorType, name: str = "") -> Value:
        self.number += 1
        return Value(self.number - 1, type, name)

    def new_buffer(self, source: Value, axis: int, size: Dim) -> Value:
        shape = (*source.shape[:axis], size, *source.shape[axis + 1 :])
        return self.new_value(TensorType(source.dtype, shape), source.name)

    def find_room(self, source: Value, axis: int, after: Dim) -> str | None:
        """Return the size that is left after the run; None if a length is not known before it."""
        length = dims.as_symbol(source.shape[axis])
        if length is None or not dims.symbol_names(after) <= self.shown_names | {length.name}:
            return None
        return self.rooms.setdefault((length.name, after), f"{length.name}.room{len(self.rooms) or ''}")

    # -- outputs of the program itself -------------------------------------------------------------------------------

    def hold_output(self, source: Value, output: Value, axis: int) -> None:
        step = self.makers.get(output)
        if step is None or self.uses[source] != 1:
            return
        room = self.find_room(source, axis, output.shape[axis])
        updates = self.find_updates(source, step, axis, self.makers, self.uses)
        if updates is None or room is None:
            return
        self.buffers[source] = self.new_buffer(source, axis, output.shape[axis] + dims.symbol(room, 0))
        self.replaced_steps[id(step)] = self.write_updates(updates, self.buffers[source], output)
        rooms = ((room, output.shape[axis]),)
        reads_beyond = isinstance(step.primitive, Scatter)  # shorter sequences of a batch end before the others
        self.held_inputs.append(HeldInput(source.name, axis, str(source.shape[axis]), rooms, reads_beyond))

    def find_updates(
        self, source: Value, step: Step, axis: int, makers: Mapping[Value, Step], uses: Counter[Value]
    ) -> list[Step] | None:
        """Return steps of which the last, a scatter, computes a step's result in the memory of its first operand.

        None if the result does not append to the source.
        """
        if source.dtype is not step.results[0].dtype:
            return None
        match step.primitive:
            case Concat(along) if along == axis and step.operands[0] == source:
                return self.append_operands(step, axis)
            case Scatter(reduction="none", update=update, indices=indices):
                extended = makers.get(step.operands[0])
                if extended is None or uses[step.operands[0]] != 1 or not _extends(extended, source, axis):
                    return None
                if any(isinstance(node, Load) and node.operand == 0 for node in (update, *indices)):
                    return None
                return [replace(step, primitive=replace(step.primitive, in_place=True))]
            case _:
                return None

    def append_operands(self, step: Step, axis: int) -> list[Step]:
        """Return a scatter of the operands of a concatenation after the first, joined if there are several."""
        source, new, *others = step.operands
        steps = []
        if others:
            shape = (*new.shape[:axis], step.results[0].shape[axis] - source.shape[axis], *new.shape[axis + 1 :])
            joined = self.new_value(TensorType(new.dtype, shape))
            steps.append(Step(Concat(axis), (new, *others), (joined,), step.origin))
            new = joined
        return [*steps, _write(source, new, axis, source.shape[axis], step)]

    def write_updates(self, updates: Sequence[Step], buffer: Value, output: Value) -> list[Step]:
        """Return the updates of a buffer, and the output as a slice of it."""
        *before, update = updates
        assert isinstance(buffer.type, TensorType)
        extended = self.new_value(buffer.type)
        element = Load(0, identity_indices(output.shape), output.dtype)
        return [
            *before,
            replace(update, operands=(buffer, *update.operands[1:]), results=(extended,)),
            Step(Map(element), (extended,), (output,), update.origin),
        ]

    # -- outputs of branches -----------------------------------------------------------------------------------------

    def hold_branches(self, step: Step, pairs: Sequence[Pair], returned: Sequence[Value]) -> None:
        """Write outputs that branches compute in the branches; all pairs of the step, or none."""
        assert isinstance(step.primitive, Branch)
        parts = bodies(step.primitive)
        captures = _split_captures(step, parts)
        if any(self.uses[output] != 1 or output in returned for _, output, _ in pairs):
            return
        if any(self.uses[source] != step.operands.count(source) for source, _, _ in pairs):
            return
        before = self.number, dict(self.rooms)
        results = [
            _HeldBody(self, step, body, dict(zip(values, body.inputs))).hold(pairs)
            for body, values in zip(parts, captures)
        ]
        kept_results = [value for value in step.results if value not in {output for _, output, _ in pairs}]
        if None in results or self._uses_sizes_of(step, pairs, kept_results):
            self.number, self.rooms = before
            return
        then, otherwise = (body for body in results if body is not None)
        for source, output, axis in pairs:
            size = dims.symbol(f"{source.shape[axis]}.capacity", 0)
            self.buffers[source] = self.new_buffer(source, axis, size)
            rooms = tuple(body.rooms[source] for body in (then, otherwise))
            reads_beyond = then.reads_beyond or otherwise.reads_beyond
            self.held_inputs.append(HeldInput(source.name, axis, str(source.shape[axis]), rooms, reads_beyond))
            self.removed.add(output)
        new_lengths = {name: self.new_value(TensorType(DType.int64, (1,))) for name in then.lengths}
        self.lengths |= new_lengths
        operands = [step.operands[0]]
        for body in (then, otherwise):
            operands += [self.buffers.get(value, value) for value in body.captures]
        primitive = Branch(then.program, otherwise.program)
        new_step = Step(primitive, tuple(operands), (*kept_results, *new_lengths.values()), step.origin)
        self.replaced_steps[id(step)] = [new_step]

    def _uses_sizes_of(self, step: Step, pairs: Sequence[Pair], others: Sequence[Value]) -> bool:
        """Whether something else uses sizes that only the outputs of the pairs show."""
        bound = set().union(*(type_symbols(output.type) for _, output, _ in pairs)) - self.shown_names
        bound -= set().union(
            *(type_symbols(value.type) for value in others), *(type_symbols(s.type) for s, _, _ in pairs)
        )
        other_steps = (other for other in self.program.steps if other is not step)
        used = set().union(*map(step_symbols, other_steps), *map(guard_symbols, self.program.guards))
        return bool(bound & used)


@dataclass(slots=True)
class _HeldBody:
    """The rewriting of a branch: `captures` are the outer values of its inputs, `rooms` those of the sources."""

    outer: _Holding
    step: Step
    program: TensorProgram
    inputs: dict[Value, Value]  # by the outer values
    captures: list[Value] = field(default_factory=list)
    rooms: dict[Value, tuple[str, Dim]] = field(default_factory=dict)
    lengths: dict[str, Value] = field(default_factory=dict)
    buffers: dict[Value, Value] = field(default_factory=dict)
    makers: dict[Value, Step] = field(default_factory=dict)
    uses: Counter[Value] = field(default_factory=Counter)
    replaced_steps: dict[int, list[Step]] = field(default_factory=dict)
    added_steps: list[Step] = field(default_factory=list)
    reads_beyond: bool = False  # see HeldInput

    def hold(self, pairs: Sequence[Pair]) -> _HeldBody | None:
        """Write all outputs of the pairs into buffers; None if one does not allow it."""
        self.makers = {value: step for step in self.program.steps for value in step.results}
        self.uses = count_uses(self.program)
        self.captures = list(self.inputs)
        if not all(self.hold_pair(*pair) for pair in pairs):
            return None
        steps = [new for step in self.program.steps for new in self.replaced_steps.get(id(step), [step])]
        held_outputs = {self.step.results.index(output) for _, output, _ in pairs}
        outputs = [value for number, value in enumerate(self.program.outputs) if number not in held_outputs]
        rooms = sorted({room for room, _ in self.rooms.values()})
        fits = [Guard(dims.symbol(room, None), 0, self.step.origin, at_least=True) for room in rooms]
        program = replace(
            self.program,
            inputs=tuple(self.buffers.get(value) or self.inputs[value] for value in self.captures),
            steps=(*steps, *self.added_steps),
            guards=(*self.program.guards, *fits),
        )
        self.program = with_outputs(program, (*outputs, *self.lengths.values()))
        return self

    def hold_pair(self, source: Value, output: Value, axis: int) -> bool:
        """Write the branch's output into a buffer: behind its past, or alone if the branch does not read a past."""
        inner = self.inputs.get(source)
        result = self.program.outputs[self.step.results.index(output)]
        if not result.has_shape or result.rank != source.rank or result.dtype is not source.dtype:
            return False
        after = result.shape[axis]
        room = self.outer.find_room(source, axis, after)
        if room is None or (*result.shape[:axis], *result.shape[axis + 1 :]) != (
            *source.shape[:axis],
            *source.shape[axis + 1 :],
        ):
            return False
        buffer = self.outer.new_buffer(source, axis, after + dims.symbol(room, 0))
        if inner is None:
            write = _write(source, result, axis, 0, self.step)
            self.added_steps.append(self.outer.write_updates([write], buffer, result)[0])
            self.captures.append(source)
        elif not self.append_to(inner, result, axis, buffer):
            return False
        self.buffers[source] = buffer
        self.rooms[source] = room, after
        length = str(source.shape[axis])
        if length not in self.lengths:
            self.lengths[length] = self.outer.new_value(TensorType(DType.int64, (1,)))
            self.added_steps.append(Step(Dims((after,)), (), (self.lengths[length],), self.step.origin))
        return True

    def append_to(self, inner: Value, result: Value, axis: int, buffer: Value) -> bool:
        """Write a result that appends to the branch's input, or is the input itself."""
        if self.uses[inner] != 1:
            return False
        if result == inner:
            return True
        maker = self.makers.get(result)
        updates = None if maker is None else self.outer.find_updates(inner, maker, axis, self.makers, self.uses)
        if maker is None or updates is None:
            return False
        self.reads_beyond |= isinstance(maker.primitive, Scatter)
        self.replaced_steps[id(maker)] = self.outer.write_updates(updates, buffer, result)
        return True


def _split_captures(step: Step, parts: Sequence[TensorProgram]) -> list[tuple[Value, ...]]:
    """Return the operands that each branch captures."""
    captures, start = [], 1
    for body in parts:
        captures.append(step.operands[start : start + len(body.inputs)])
        start += len(body.inputs)
    return captures


def _write(buffer: Value, new: Value, axis: int, start: Dim, step: Step) -> Step:
    """Return a scatter that writes a tensor into a buffer, from `start` on along an axis."""
    own = identity_indices(new.shape)
    indices: list[Scalar] = list(own)
    indices[axis] = Index(own[axis].value + start)
    primitive = Scatter(new.shape, tuple(indices), Load(1, own, new.dtype), "none", checked=False, in_place=True)
    return Step(primitive, (buffer, new), step.results, step.origin)


def _extends(step: Step, source: Value, axis: int) -> bool:
    """Whether a map is a tensor with zeros after it along an axis."""
    if not isinstance(step.primitive, Map) or step.operands != (source,):
        return False
    own = identity_indices(step.results[0].shape)
    match step.primitive.expression:
        case Apply("select", (Apply("less", (Index(position), Index(end))), Load(_, indices), Literal(0))):
            return position == own[axis].value and end == source.shape[axis] and indices == own
        case _:
            return False
