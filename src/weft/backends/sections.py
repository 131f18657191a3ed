"""The sections of a program in order: native ones on whatever runs them, and steps for the host between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from numpy import ndarray

from weft.backends.device import Shortcut
from weft.backends.host_steps import GuardCheck, RunHost, is_gradual, ready_step, shown_sizes
from weft.backends.reference.sizes import GuardError, check_guards, in_order
from weft.errors import InternalError
from weft.interrupts import check
from weft.ir import dims
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Guard, Late, Observe, Step, TensorProgram, Value, bodies
from weft.ir.tensors import DeviceTensor, owned
from weft.ir.work import HostSection, NativeSection, Section
from weft.plan.plan import Plan
from weft.plan.program import ProgramPlan, plan_program

if TYPE_CHECKING:
    from weft.backends.late import CompileLate, LateSteps
    from weft.backends.written_runs import WrittenRun

FIRST_WRITTEN = 8  # runs, after which one is written out as a function
MOST_WRITTEN = 1000  # steps and sections of such a function
REMEMBERED_SHAPES = 256  # sets of them, for which a program keeps the sizes that they bind


class SectionRunner(Protocol):
    """What runs one native section. Several threads may call `run` at once."""

    @property
    def section(self) -> NativeSection: ...

    def run(self, inputs: Sequence[Any], sizes: Mapping[str, int], keep: frozenset[Value] = ...) -> list[Any]:
        """The section's outputs; those to `keep` stay on the device, if it has memory of its own."""
        ...

    def make_plan(self, sizes: Mapping[str, int]) -> Plan:
        """Memory and launches for given sizes."""
        ...

    def direct(self, sizes: Mapping[str, int]) -> Shortcut | None:
        """What runs on arrays with these sizes, the only ones that it depends on; None where it depends on others."""
        ...


class _HostStep:
    """A step for the host in its place: what runs it, where its operands and results are, what is known after it."""

    __slots__ = ("binds", "check", "operands", "results", "run")

    def __init__(
        self, run: RunHost, operands: list[int], results: list[int], made: Sequence[Value], guards: list[Guard]
    ) -> None:
        """`made` are the values that lie at the places of its results."""
        self.run, self.operands, self.results = run, operands, results
        self.binds = [(number, shown) for number, value in enumerate(made) if (shown := shown_sizes(value.type))]
        self.check = GuardCheck(guards) if guards else None


class HostBodies:
    """The programs inside of host steps, which refer to these alone: what has the steps goes without a collector."""

    def __init__(self) -> None:
        self.by_id: dict[int, Sections] = {}

    def run(self, program: TensorProgram, inputs: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
        """The outputs of a body inside one of the host steps; `sizes` are those known around it."""
        check()
        body = self.by_id[id(program)]
        entered = body._entered
        if entered[0] is not sizes or entered[1] != len(sizes):  # names are only added, and not while a step runs
            entered = body._entered = (sizes, len(sizes), {})
        known = entered[2]
        key = tuple([getattr(content, "shape", None) for content in inputs])
        found = known.get(key)
        if found is None:
            found = body.bind(inputs, sizes)
            if len(known) < REMEMBERED_SHAPES:
                known[key] = found
        return body.run_bound(inputs, *found)

    def enter(self, program: TensorProgram, sizes: Mapping[str, int]) -> Callable[[list[Any]], list[Any]]:
        """What runs a body inside one of the host steps, again and again, while all other sizes stay as they are."""
        body = self.by_id[id(program)]
        shown = [number for number, _ in body._shown]
        known: dict[Any, tuple[dict[str, int], tuple[Guard, ...]]] = {}

        def turn(inputs: list[Any]) -> list[Any]:
            check()
            key = tuple([inputs[number].shape for number in shown])
            found = known.get(key)
            if found is None:
                found = body.bind(inputs, sizes)
                if len(known) < REMEMBERED_SHAPES:
                    known[key] = found
            written = body._written
            return body.run_bound(inputs, *found) if written is None else written(inputs, *found)

        return turn


class Sections:
    """The sections of a program, or of a body inside one, in order."""

    def __init__(
        self,
        program: TensorProgram | CompiledProgram,
        sections: Sequence[Section],
        make: Callable[[NativeSection, Mapping[Value, Any]], SectionRunner],
        step: Callable[..., list[Any]] | None = None,
        around: frozenset[str] = frozenset(),
        late: CompileLate | None = None,
    ) -> None:
        """`make` gives what runs a native section, from it and the program's constants; `step` runs a host step.

        `around` are the names of sizes that are known around a body. `late` compiles steps that are traced in a run.
        """
        self.program = program
        self.guards = tuple({(guard.left, guard.right, guard.at_least): guard for guard in program.guards}.values())
        self.inside = HostBodies()
        self.runners: list[SectionRunner | HostSection] = []
        self.is_body = isinstance(program, TensorProgram)
        shown = [shown_sizes(value.type) for value in program.inputs]
        self._shown = [(number, found) for number, found in enumerate(shown) if found is not None]
        known = around.union(bound[1] for _, found in self._shown for bound in found.bounds)
        steps = [one for section in sections if isinstance(section, HostSection) for one in section.steps]
        everything = known.union(*map(_bound_by, steps))
        for section in sections:
            if isinstance(section, NativeSection):
                self.runners.append(make(section, program.constants))
                continue
            self.runners.append(section)
            inner = [body for one in section.steps for body in bodies(one.primitive)]
            for body, inside in zip(inner, section.bodies, strict=True):
                self.inside.by_id[id(body)] = Sections(body, inside, make, step, everything, late)
        self.has_host_steps = bool(steps)
        self._is_lean = step is None and len(sections) + len(steps) <= MOST_WRITTEN
        self._runs = 0
        self._written: WrittenRun | None = None
        self._adds = any(map(_bound_by, steps))
        self.single = _is_single(program, sections)
        self._bound: dict[Any, tuple[dict[str, int], tuple[Guard, ...]]] = {}  # by the shapes and sizes that say it
        self._entered: tuple[Any, int, dict[Any, Any]] = (
            None,
            0,
            {},
        )  # sizes around a body, and what was bound within them
        slots: dict[Value, int] = {}
        seen = _seen_on_host(program, sections)
        self._filled = [content for value, content in program.constants.items() if value in seen]
        for value in (*(value for value in program.constants if value in seen), *program.inputs):
            slots.setdefault(value, len(slots))
        self._inputs = [slots[value] for value in program.inputs]
        after = _guards_after(self.guards, known, steps)
        self._first = GuardCheck(after.pop(0))
        releases = _releases(program, sections) if self.has_host_steps else [[] for _ in sections]
        self._parts: list[tuple[Any, list[int], list[int], list[int]]] = []
        for runner, section, released in zip(self.runners, sections, releases):
            if isinstance(section, NativeSection):
                taken = [slots.setdefault(value, len(slots)) for value in section.inputs]
                made = [slots.setdefault(value, len(slots)) for value in section.outputs]
                self._parts.append((runner, taken, made, [slots[value] for value in released if value in slots]))
                continue
            ready = []
            for row in _rows(section.steps, late is not None and step is None):
                takes, makes = (row[0].operands, row[0].results) if len(row) == 1 else _ends(row, program, sections)
                taken = [slots.setdefault(value, len(slots)) for value in takes]
                made = [slots.setdefault(value, len(slots)) for value in makes]
                guards = [guard for _ in row for guard in after.pop(0)]
                if late is not None and step is None and isinstance(row[0].primitive, Late):
                    from weft.backends.late import LateSteps

                    run = _late(LateSteps(row, takes, makes, program.constants, late))
                else:
                    run = ready_step(row[0], step, self.inside.run, self.inside.enter)
                ready.append(_HostStep(run, taken, made, makes, guards))
            self._parts.append((ready, [], [], [slots[value] for value in released if value in slots]))
        self._outputs = [slots[value] for value in program.outputs]
        self._empty = [None] * (len(slots) - len(self._filled))
        read = {value for one in steps if not is_gradual(one) for value in one.operands}
        self._read = [n for n, value in enumerate(program.inputs) if value in read]
        self._in_order = self._read if self.is_body else list(range(len(program.inputs)))

    def all_runners(self) -> Iterator[SectionRunner]:
        """What runs native sections, those inside of control flow too."""
        yield from (runner for runner in self.runners if not isinstance(runner, HostSection))
        for body in self.inside.by_id.values():
            yield from body.all_runners()

    def runners_for(self, sizes: Mapping[str, int]) -> Iterator[SectionRunner]:
        """Yield the runners that sizes may reach: those of the program, and of bodies whose guards hold."""
        check_guards(self.guards, sizes)
        yield from (runner for runner in self.runners if not isinstance(runner, HostSection))
        for body in self.inside.by_id.values():
            with suppress(GuardError):
                yield from body.runners_for(sizes)

    def plan(self, program: CompiledProgram, sizes: Mapping[str, int], workspace: int) -> ProgramPlan:
        """The memory of a run with these sizes; GuardError where the program does not apply to them."""
        check_guards(self.guards, sizes)
        runners = {id(runner.section): runner for runner in self.all_runners()}

        def make(section: NativeSection, _: Mapping[Value, Any], sizes: Mapping[str, int]) -> Plan:
            return runners[id(section)].make_plan(sizes)

        return plan_program(program, sizes, workspace, make)

    def bind(self, inputs: Sequence[Any], outer: Mapping[str, int]) -> tuple[dict[str, int], tuple[Guard, ...]]:
        """The sizes that inputs show, and the guards that cannot be checked yet."""
        key = None
        if not self.is_body:
            key = (tuple([getattr(content, "shape", None) for content in inputs]), tuple(outer.items()))
            found = self._bound.get(key)
            if found is not None:
                return found
        if len(inputs) != len(self._inputs):
            raise InternalError(f"{len(inputs)} inputs for a program that takes {len(self._inputs)}")
        sizes = dict(outer)
        for number, shown in self._shown:
            content = inputs[number]
            if isinstance(content, (ndarray, DeviceTensor)):
                shown.bind(content, sizes, rebind=True)
        found = sizes, self._first(sizes)
        if key is not None:
            if len(self._bound) >= REMEMBERED_SHAPES:
                self._bound.clear()
            self._bound[key] = found
        return found

    def run_bound(
        self,
        inputs: Sequence[Any],
        sizes: dict[str, int],
        pending: tuple[Guard, ...],
        keep: frozenset[Value] = frozenset(),
    ) -> list[Any]:
        """The outputs, once sizes are bound; those to `keep` stay on the device."""
        if self._written is not None and not keep:
            return self._written(inputs, sizes, pending)
        if self.single and not isinstance(self.runners[0], HostSection):
            return self.runners[0].run(inputs, sizes, keep)
        self._runs += 1
        if self._runs >= FIRST_WRITTEN and self._is_lean:
            self._written = self._write(self._in_order)
        values = [*self._filled, *self._empty]
        for slot, content in zip(self._inputs, inputs):
            values[slot] = content
        if self.has_host_steps:
            sizes = sizes.copy()  # host steps add to them
            for number in self._in_order:
                values[self._inputs[number]] = in_order(inputs[number])
        for runner, taken, made, released in self._parts:
            if type(runner) is list:
                pending = _run_host(runner, values, sizes, pending)
            else:
                results = runner.run([values[slot] for slot in taken], sizes, keep)
                for slot, content in zip(made, results):
                    values[slot] = content
            for slot in released:
                values[slot] = None
        return [values[slot] for slot in self._outputs]

    def shortcut(self, sizes: dict[str, int], pending: tuple[Guard, ...]) -> Shortcut:
        """What runs on inputs that show these sizes; its results are the caller's alone."""
        made = {
            value for runner in self.runners if not isinstance(runner, HostSection) for value in runner.section.outputs
        }
        outputs = self.program.outputs
        doubtful = [n for n, value in enumerate(outputs) if value not in made or value in outputs[:n]]

        written = self._write(self._read, sizes) if self._is_lean else None

        def run(inputs: Sequence[Any], into: Sequence[Any] = ()) -> list[Any]:
            if written is None:
                results = self.run_bound(inputs, sizes, pending)
            else:
                results = written(inputs, sizes, pending, into)
            for number in doubtful:
                results[number] = owned(results[number], [*inputs, *results[:number]])
            return results

        return run

    def _write(self, ordered: Sequence[int], sizes: dict[str, int] | None = None) -> WrittenRun:
        """All of it as one function; native sections are bound to `sizes` where those are all that they depend on."""
        from weft.backends.written_runs import RunWriter

        writer = RunWriter(self._inputs, self._filled, ordered if self.has_host_steps else (), adds=self._adds)
        arrays = set(self._inputs)  # places of what is an array for sure
        for runner, taken, made, released in self._parts:
            if type(runner) is list:
                for step in runner:
                    writer.host(step.run, step.operands, step.results, step.binds, step.check)
            else:
                direct = None if sizes is None or not arrays.issuperset(taken) else runner.direct(sizes)
                outputs = [self._outputs.index(slot) if slot in self._outputs else None for slot in made]
                writer.native(
                    runner.run if direct is None else direct,
                    taken,
                    made,
                    bound=direct is not None,
                    outputs=outputs if any(number is not None for number in outputs) else (),
                )
                arrays.update(made)
            writer.release(released)
        return writer.finish(self._outputs)


def _run_host(
    steps: Sequence[_HostStep], values: list[Any], sizes: dict[str, int], pending: tuple[Guard, ...]
) -> tuple[Guard, ...]:
    for step in steps:
        results = step.run([values[slot] for slot in step.operands], sizes)
        for slot, content in zip(step.results, results, strict=True):
            values[slot] = content
        for number, shown in step.binds:
            content = results[number]
            if isinstance(content, (ndarray, DeviceTensor)):
                shown.bind(content, sizes, rebind=False)
        if step.check is not None:
            pending += step.check(sizes)
        if pending:
            pending = check_guards(pending, sizes)
    return pending


def _late(steps: LateSteps) -> RunHost:
    return lambda operands, _: steps.run(operands)


def _rows(steps: Sequence[Step], joining: bool) -> list[list[Step]]:
    """Steps one by one, but late ones that follow each other together, where they can be compiled."""
    rows: list[list[Step]] = []
    for step in steps:
        if joining and rows and isinstance(step.primitive, Late) and isinstance(rows[-1][0].primitive, Late):
            rows[-1].append(step)
        else:
            rows.append([step])
    return rows


def _ends(
    row: Sequence[Step], program: TensorProgram | CompiledProgram, sections: Sequence[Section]
) -> tuple[list[Value], list[Value]]:
    """What steps take from outside, and what of their results is seen there."""
    own = {id(step) for step in row}
    seen = set(program.outputs)
    for section in sections:
        if isinstance(section, NativeSection):
            seen.update(section.inputs)
        else:
            seen.update(value for step in section.steps if id(step) not in own for value in step.operands)
    made = [value for step in row for value in step.results]
    taken = dict.fromkeys(value for step in row for value in step.operands if value not in made)
    return list(taken), [value for value in made if value in seen]


def _bound_by(step: Step) -> set[str]:
    """The names of sizes that a step for the host may be the first to show."""
    if isinstance(step.primitive, Observe):
        return set(map(str, step.primitive.symbols))
    found = [shown_sizes(value.type) for value in step.results]
    return {bound[1] for shown in found if shown is not None for bound in shown.bounds}


def _guards_after(guards: Sequence[Guard], known: frozenset[str], steps: Sequence[Step]) -> list[list[Guard]]:
    """The guards to check once inputs are bound, and after each step: as soon as all their sizes are known."""
    later = {name: number for number, step in reversed([*enumerate(steps, 1)]) for name in _bound_by(step) - known}
    found: list[list[Guard]] = [[] for _ in range(len(steps) + 1)]
    for guard in guards:
        names = [symbol.name for side in (guard.left, guard.right) for symbol in dims.symbols(side)]
        found[max((later.get(name, 0) for name in names), default=0)].append(guard)
    return found


def _is_single(program: TensorProgram | CompiledProgram, sections: Sequence[Section]) -> bool:
    """Whether a program is one native section, with the same inputs and outputs."""
    if len(sections) != 1 or not isinstance(sections[0], NativeSection):
        return False
    return (program.inputs, program.outputs) == (sections[0].inputs, sections[0].outputs)


def _seen_on_host(program: TensorProgram | CompiledProgram, sections: Sequence[Section]) -> set[Value]:
    """Values that are read as arrays: by host steps, as inputs of native sections, or by whoever runs the program."""
    seen = set(program.outputs)
    for section in sections:
        if isinstance(section, NativeSection):
            seen.update(section.inputs)
        else:
            seen.update(operand for step in section.steps for operand in step.operands)
    return seen


def _releases(program: TensorProgram | CompiledProgram, sections: Sequence[Section]) -> list[list[Value]]:
    """For each section, the values that nothing needs after it."""
    last: dict[Value, int] = {}
    for number, section in enumerate(sections):
        if isinstance(section, NativeSection):
            values = [*section.inputs, *section.outputs]
        else:
            values = [value for step in section.steps for value in (*step.operands, *step.results)]
        for value in values:
            last[value] = number
    kept = {*program.outputs, *program.constants}
    releases: list[list[Value]] = [[] for _ in sections]
    for value, number in last.items():
        if value not in kept:
            releases[number].append(value)
    return releases
