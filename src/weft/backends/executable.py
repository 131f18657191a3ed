"""Executables that run a program section by section: native sections on their device, host steps between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from numpy import ndarray

from weft.backends.device import NO_SIZES, DeviceProgram, Executable, Shortcut
from weft.backends.device_section import DeviceSection
from weft.backends.host_steps import GuardCheck, RunHost, SizeBinding, is_gradual, prepare_step, shown_sizes
from weft.backends.reference.sizes import GuardError, check_guards, in_order
from weft.errors import InternalError
from weft.interrupts import raise_if_abandoned
from weft.ir import dims
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Guard, Late, Observe, Step, TensorProgram, Value, bodies
from weft.ir.tensors import DeviceTensor, owned
from weft.ir.work import HostSection, NativeSection, Section
from weft.plan.plan import Plan
from weft.plan.program import ProgramPlan, plan_program

if TYPE_CHECKING:
    from weft.backends.jit import CompileLate, LateSteps
    from weft.backends.run_function import RunFunction

RUNS_BEFORE_COMPILING = 8  # one Python function for all sections is generated after this many runs
MOST_COMPILED = 1000  # steps and sections in a generated function
BoundSizes = tuple[dict[str, int], tuple[Guard, ...]]  # sizes, and the guards that cannot be checked yet
_NO_VALUES: frozenset[Value] = frozenset()


class _HostStep:
    """A step on the host: its function, the slots of its operands and results, and the sizes known after it."""

    __slots__ = ("binds", "check", "operands", "results", "run")

    def __init__(
        self, run: RunHost, operands: list[int], results: list[int], values: Sequence[Value], guards: list[Guard]
    ) -> None:
        """`values` are the results' values."""
        self.run, self.operands, self.results = run, operands, results
        self.binds = [(number, shown) for number, value in enumerate(values) if (shown := shown_sizes(value.type))]
        self.check = GuardCheck(guards) if guards else None


class HostBodies:
    """The bodies of control flow on the host, by the id of their program.

    Host steps refer to this and not to the executable, so that no reference cycle keeps the executable alive.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, SectionedExecutable] = {}

    def run(self, program: TensorProgram, inputs: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
        """Run a body once; `sizes` are those known outside."""
        raise_if_abandoned()
        body = self.by_id[id(program)]
        return body.run_bound(inputs, *body.bind(inputs, sizes))

    def enter(self, program: TensorProgram, sizes: Mapping[str, int]) -> Callable[[list[Any]], list[Any]]:
        """Return a function that runs a body repeatedly while the sizes outside stay the same."""
        body = self.by_id[id(program)]

        def run_iteration(inputs: list[Any]) -> list[Any]:
            raise_if_abandoned()
            bound = body.bind(inputs, sizes)
            compiled = body._compiled
            return body.run_bound(inputs, *bound) if compiled is None else compiled(inputs, *bound)

        return run_iteration


class SectionedExecutable(Executable):
    """A program, or a body of control flow inside one, that runs section by section."""

    def __init__(
        self,
        program: DeviceProgram,
        sections: Sequence[Section],
        load: Callable[[NativeSection, Mapping[Value, Any]], DeviceSection[Any]],
        run_step: Callable[..., list[Any]] | None = None,
        outer_sizes: frozenset[str] = frozenset(),
        late: CompileLate | None = None,
    ) -> None:
        """`load` puts a native section with the program's constants on the device; `run_step` runs a host step.

        `outer_sizes` are the names of the sizes known outside a body. `late` compiles steps that are traced in a run.
        """
        super().__init__(program)
        self.guards = tuple({(guard.left, guard.right, guard.at_least): guard for guard in program.guards}.values())
        self.bodies = HostBodies()
        self.sections: list[DeviceSection[Any] | HostSection] = []
        self.is_body = isinstance(program, TensorProgram)
        types = [shown_sizes(value.type) for value in program.inputs]
        shown = [(number, sizes) for number, sizes in enumerate(types) if sizes is not None]
        self._bind_sizes = SizeBinding(shown)
        known_sizes = outer_sizes.union(bound[1] for _, sizes in shown for bound in sizes.bounds)
        steps = [step for section in sections if isinstance(section, HostSection) for step in section.steps]
        inner_sizes = known_sizes.union(*map(_sizes_bound_by, steps))
        for section in sections:
            if isinstance(section, NativeSection):
                self.sections.append(load(section, program.constants))
                continue
            self.sections.append(section)
            programs = [body for step in section.steps for body in bodies(step.primitive)]
            for body, body_sections in zip(programs, section.bodies, strict=True):
                inner = SectionedExecutable(body, body_sections, load, run_step, inner_sizes, late)
                self.bodies.by_id[id(body)] = inner
        self.has_host_steps = bool(steps)
        self.is_one_section = _is_one_section(program, sections)
        self._can_compile = run_step is None and len(sections) + len(steps) <= MOST_COMPILED
        self._runs = 0
        self._compiled: RunFunction | None = None
        self._adds_sizes = any(map(_sizes_bound_by, steps))
        host_values = _values_on_host(program, sections)
        constants = [value for value in program.constants if value in host_values]
        self._constants = [program.constants[value] for value in constants]
        slots: dict[Value, int] = {}
        for value in (*constants, *program.inputs):
            slots.setdefault(value, len(slots))
        self._inputs = [slots[value] for value in program.inputs]
        guards_after = _guards_after(self.guards, known_sizes, steps)
        self._first_guards = GuardCheck(guards_after.pop(0))
        releases = _releases(program, sections) if self.has_host_steps else [[] for _ in sections]
        self._schedule: list[tuple[Any, list[int], list[int], list[int]]] = []
        for device_section, section, released in zip(self.sections, sections, releases):
            if isinstance(section, NativeSection):
                operands = [slots.setdefault(value, len(slots)) for value in section.inputs]
                results = [slots.setdefault(value, len(slots)) for value in section.outputs]
                released_slots = [slots[value] for value in released if value in slots]
                self._schedule.append((device_section, operands, results, released_slots))
                continue
            host_steps = []
            for group in _join_late_steps(section.steps, late is not None and run_step is None):
                if len(group) == 1:
                    inputs, outputs = group[0].operands, group[0].results
                else:
                    inputs, outputs = _find_boundary(group, program, sections)
                operands = [slots.setdefault(value, len(slots)) for value in inputs]
                results = [slots.setdefault(value, len(slots)) for value in outputs]
                guards = [guard for _ in group for guard in guards_after.pop(0)]
                if late is not None and run_step is None and isinstance(group[0].primitive, Late):
                    from weft.backends.jit import LateSteps

                    run = _run_late(LateSteps(group, inputs, outputs, program.constants, late))
                else:
                    run = prepare_step(group[0], run_step, self.bodies.run, self.bodies.enter)
                host_steps.append(_HostStep(run, operands, results, outputs, guards))
            self._schedule.append((host_steps, [], [], [slots[value] for value in released if value in slots]))
        self._outputs = [slots[value] for value in program.outputs]
        self._empty = [None] * (len(slots) - len(self._constants))
        read = {value for step in steps if not is_gradual(step) for value in step.operands}
        self._read = [number for number, value in enumerate(program.inputs) if value in read]
        self._in_order = self._read if self.is_body else list(range(len(program.inputs)))

    def run(self, inputs: Sequence[Any], keep: Sequence[int] = (), sizes: Mapping[str, int] = NO_SIZES) -> list[Any]:
        bound, pending = self.bind(inputs, sizes)
        values = frozenset([self.program.outputs[number] for number in keep]) if keep else _NO_VALUES
        return self.run_bound(inputs, bound, pending, values)

    def shortcut(self, inputs: Sequence[Any]) -> Shortcut | None:
        sizes, pending = self.bind(inputs, NO_SIZES)
        computed = {value for section in self._native_sections() for value in section.section.outputs}
        outputs = self.program.outputs
        maybe_shared = [n for n, value in enumerate(outputs) if value not in computed or value in outputs[:n]]
        compiled: RunFunction | None = None

        def run(inputs: Sequence[Any], into: Sequence[Any] = ()) -> list[Any]:
            nonlocal compiled
            if not self._can_compile:
                results = self.run_bound(inputs, sizes, pending)
            else:
                if compiled is None:
                    compiled = self._compile(self._read, sizes)
                results = compiled(inputs, sizes, pending, into)
            for number in maybe_shared:
                results[number] = owned(results[number], [*inputs, *results[:number]])
            return results

        return run

    def plan_sections(self, sizes: Mapping[str, int], workspace: int) -> ProgramPlan:
        """Plan the memory of a run with these sizes; GuardError where the program does not apply to them."""
        assert isinstance(self.program, CompiledProgram)
        check_guards(self.guards, sizes)
        sections = {id(section.section): section for section in self.all_sections()}

        def make_plan(section: NativeSection, _: Mapping[Value, Any], sizes: Mapping[str, int]) -> Plan:
            return sections[id(section)].make_plan(sizes)

        return plan_program(self.program, sizes, workspace, make_plan)

    def all_sections(self) -> Iterator[DeviceSection[Any]]:
        """Yield the native sections, including those of bodies."""
        yield from self._native_sections()
        for body in self.bodies.by_id.values():
            yield from body.all_sections()

    def sections_for(self, sizes: Mapping[str, int]) -> Iterator[DeviceSection[Any]]:
        """Yield the native sections of the program and of the bodies whose guards hold for these sizes."""
        check_guards(self.guards, sizes)
        yield from self._native_sections()
        for body in self.bodies.by_id.values():
            with suppress(GuardError):
                yield from body.sections_for(sizes)

    def _native_sections(self) -> Iterator[DeviceSection[Any]]:
        return (section for section in self.sections if not isinstance(section, HostSection))

    def bind(self, inputs: Sequence[Any], outer: Mapping[str, int]) -> BoundSizes:
        """Return the sizes that inputs show, and the guards that cannot be checked yet."""
        if len(inputs) != len(self._inputs):
            raise InternalError(f"{len(inputs)} inputs for a program that takes {len(self._inputs)}")
        sizes = dict(outer)
        self._bind_sizes(inputs, sizes)
        return sizes, self._first_guards(sizes)

    def run_bound(
        self,
        inputs: Sequence[Any],
        sizes: dict[str, int],
        pending: tuple[Guard, ...],
        keep: frozenset[Value] = _NO_VALUES,
    ) -> list[Any]:
        """Run with the result of `bind`; outputs in `keep` stay on the device."""
        if self._compiled is not None and not keep:
            return self._compiled(inputs, sizes, pending)
        if self.is_one_section and not isinstance(self.sections[0], HostSection):
            return self.sections[0].run(inputs, sizes, keep)
        self._runs += 1
        if self._runs >= RUNS_BEFORE_COMPILING and self._can_compile:
            self._compiled = self._compile(self._in_order)
        values = [*self._constants, *self._empty]
        for slot, content in zip(self._inputs, inputs):
            values[slot] = content
        if self.has_host_steps:
            sizes = sizes.copy()  # host steps add to them
            for number in self._in_order:
                values[self._inputs[number]] = in_order(inputs[number])
        for section, operands, result_slots, released in self._schedule:
            if type(section) is list:
                pending = _run_host_steps(section, values, sizes, pending)
            else:
                results = section.run([values[slot] for slot in operands], sizes, keep)
                for slot, content in zip(result_slots, results):
                    values[slot] = content
            for slot in released:
                values[slot] = None
        return [values[slot] for slot in self._outputs]

    def _compile(self, ordered: Sequence[int], sizes: dict[str, int] | None = None) -> RunFunction:
        """Generate one function for all sections; a native section is bound to `sizes` if it depends on no others."""
        from weft.backends.run_function import RunFunctionBuilder

        ordered = ordered if self.has_host_steps else ()
        builder = RunFunctionBuilder(self._inputs, self._constants, ordered, copy_sizes=self._adds_sizes)
        arrays = set(self._inputs)  # slots that are known to hold arrays
        for section, operands, results, released in self._schedule:
            if type(section) is list:
                for step in section:
                    builder.add_host_step(step.run, step.operands, step.results, step.binds, step.check)
            else:
                bound = None if sizes is None or not arrays.issuperset(operands) else section.bind(sizes)
                outputs = [self._outputs.index(slot) if slot in self._outputs else None for slot in results]
                builder.add_section(
                    section.run if bound is None else bound,
                    operands,
                    results,
                    bound=bound is not None,
                    outputs=outputs if any(number is not None for number in outputs) else (),
                )
                arrays.update(results)
            builder.release(released)
        return builder.build(self._outputs)


def _run_host_steps(
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


def _run_late(steps: LateSteps) -> RunHost:
    return lambda operands, _: steps.run(operands)


def _join_late_steps(steps: Sequence[Step], can_compile: bool) -> list[list[Step]]:
    """Group steps: consecutive late steps together if they can be compiled, each other step alone."""
    groups: list[list[Step]] = []
    for step in steps:
        if can_compile and groups and isinstance(step.primitive, Late) and isinstance(groups[-1][0].primitive, Late):
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _find_boundary(
    group: Sequence[Step], program: DeviceProgram, sections: Sequence[Section]
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Find the values that a group of steps reads from outside, and the results that are read outside."""
    step_ids = {id(step) for step in group}
    read_outside = set(program.outputs)
    for section in sections:
        if isinstance(section, NativeSection):
            read_outside.update(section.inputs)
        else:
            read_outside.update(value for step in section.steps if id(step) not in step_ids for value in step.operands)
    results = [value for step in group for value in step.results]
    operands = dict.fromkeys(value for step in group for value in step.operands if value not in results)
    return tuple(operands), tuple(value for value in results if value in read_outside)


def _sizes_bound_by(step: Step) -> set[str]:
    """Return the names of the sizes that a host step may be the first to show."""
    if isinstance(step.primitive, Observe):
        return set(map(str, step.primitive.symbols))
    types = [shown_sizes(value.type) for value in step.results]
    return {bound[1] for shown in types if shown is not None for bound in shown.bounds}


def _guards_after(guards: Sequence[Guard], known_sizes: frozenset[str], steps: Sequence[Step]) -> list[list[Guard]]:
    """List the guards to check once inputs are bound, and after each step: as soon as all their sizes are known."""
    bound_at = {
        name: number
        for number, step in reversed([*enumerate(steps, 1)])
        for name in _sizes_bound_by(step) - known_sizes
    }
    guards_after: list[list[Guard]] = [[] for _ in range(len(steps) + 1)]
    for guard in guards:
        names = [symbol.name for side in (guard.left, guard.right) for symbol in dims.symbols(side)]
        guards_after[max((bound_at.get(name, 0) for name in names), default=0)].append(guard)
    return guards_after


def _is_one_section(program: DeviceProgram, sections: Sequence[Section]) -> bool:
    """Whether a program is one native section, with the same inputs and outputs."""
    if len(sections) != 1 or not isinstance(sections[0], NativeSection):
        return False
    return (program.inputs, program.outputs) == (sections[0].inputs, sections[0].outputs)


def _values_on_host(program: DeviceProgram, sections: Sequence[Section]) -> set[Value]:
    """Find the values that are read as arrays: by host steps, as inputs of native sections, or as outputs."""
    values = set(program.outputs)
    for section in sections:
        if isinstance(section, NativeSection):
            values.update(section.inputs)
        else:
            values.update(operand for step in section.steps for operand in step.operands)
    return values


def _releases(program: DeviceProgram, sections: Sequence[Section]) -> list[list[Value]]:
    """List, for each section, the values that nothing reads after it."""
    last_use: dict[Value, int] = {}
    for number, section in enumerate(sections):
        if isinstance(section, NativeSection):
            values = [*section.inputs, *section.outputs]
        else:
            values = [value for step in section.steps for value in (*step.operands, *step.results)]
        for value in values:
            last_use[value] = number
    never_released = {*program.outputs, *program.constants}
    releases: list[list[Value]] = [[] for _ in sections]
    for value, number in last_use.items():
        if value not in never_released:
            releases[number].append(value)
    return releases
