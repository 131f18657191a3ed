"""The sections of a program in order: native ones on whatever runs them, and steps for the host between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from weft.backends.reference.sizes import bind_sizes, check_guards, in_order
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Guard, TensorProgram, Value, bodies
from weft.ir.work import HostSection, NativeSection, Section
from weft.plan.plan import Plan
from weft.plan.program import ProgramPlan, plan_program

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


def run_on_host(*arguments: Any) -> list[Any]:
    """A step of the host's, in numpy; what does that is imported by those alone who have such steps."""
    from weft.backends.reference.interpret import run_step

    return run_step(*arguments)


class Sections:
    """The sections of a program, or of a body inside one, in order."""

    def __init__(
        self,
        program: TensorProgram | CompiledProgram,
        sections: Sequence[Section],
        make: Callable[[NativeSection, Mapping[Value, Any]], SectionRunner],
        step: Callable[..., list[Any]] | None = None,
    ) -> None:
        """`make` gives what runs a native section, from it and the program's constants; `step` runs a host step."""
        self.program = program
        self.step = step or run_on_host
        self.guards = tuple({(guard.left, guard.right, guard.at_least): guard for guard in program.guards}.values())
        self.inside: dict[int, Sections] = {}  # by the id of the body
        self.runners: list[SectionRunner | HostSection] = []
        for section in sections:
            if isinstance(section, NativeSection):
                self.runners.append(make(section, program.constants))
                continue
            self.runners.append(section)
            inner = [body for step in section.steps for body in bodies(step.primitive)]
            for body, inside in zip(inner, section.bodies, strict=True):
                self.inside[id(body)] = Sections(body, inside, make, step)
        self.has_host_steps = any(isinstance(runner, HostSection) for runner in self.runners)
        self.releases = _releases(program, sections) if self.has_host_steps else [[] for _ in sections]
        seen = _seen_on_host(program, sections)
        self.constants = {value: content for value, content in program.constants.items() if value in seen}
        self.single = _is_single(program, sections)
        self._bound: dict[Any, tuple[dict[str, int], tuple[Guard, ...]]] = {}  # by the shapes and sizes that say it

    def all_runners(self) -> Iterator[SectionRunner]:
        """What runs native sections, those inside of control flow too."""
        yield from (runner for runner in self.runners if not isinstance(runner, HostSection))
        for body in self.inside.values():
            yield from body.all_runners()

    def plan(self, program: CompiledProgram, sizes: Mapping[str, int], workspace: int) -> ProgramPlan:
        """The memory of a run with these sizes; GuardError where the program does not apply to them."""
        check_guards(self.guards, sizes)
        runners = {id(runner.section): runner for runner in self.all_runners()}

        def make(section: NativeSection, _: Mapping[Value, Any], sizes: Mapping[str, int]) -> Plan:
            return runners[id(section)].make_plan(sizes)

        return plan_program(program, sizes, workspace, make)

    def run(self, program: TensorProgram, inputs: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
        """The outputs of a body inside one of the host steps; `sizes` are those known around it."""
        body = self.inside[id(program)]
        return body.run_bound(inputs, *body.bind(inputs, sizes))

    def bind(self, inputs: Sequence[Any], outer: Mapping[str, int]) -> tuple[dict[str, int], tuple[Guard, ...]]:
        """The sizes that inputs show, and the guards that cannot be checked yet."""
        key = (tuple([getattr(content, "shape", None) for content in inputs]), tuple(outer.items()))
        found = self._bound.get(key)
        if found is not None:
            return found
        sizes = dict(outer)
        for value, content in zip(self.program.inputs, inputs, strict=True):
            bind_sizes(value.type, content, sizes, rebind=True)
        found = sizes, check_guards(self.guards, sizes)
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
        if self.single and not isinstance(self.runners[0], HostSection):
            return self.runners[0].run(inputs, sizes, keep)
        values = self.constants.copy()
        if self.has_host_steps:
            sizes = sizes.copy()  # host steps add to them
            inputs = [in_order(content) for content in inputs]
        values.update(zip(self.program.inputs, inputs))
        for runner, released in zip(self.runners, self.releases):
            if not isinstance(runner, HostSection):
                section = runner.section
                results = runner.run([values[value] for value in section.inputs], sizes, keep)
                values.update(zip(section.outputs, results))
            else:
                pending = self._run_host(runner, values, sizes, pending)
            for value in released:
                values.pop(value, None)
        return [values[output] for output in self.program.outputs]

    def _run_host(
        self, section: HostSection, values: dict[Value, Any], sizes: dict[str, int], pending: tuple[Guard, ...]
    ) -> tuple[Guard, ...]:
        for step in section.steps:
            results = self.step(step, [values[operand] for operand in step.operands], sizes, self.run)
            for value, content in zip(step.results, results, strict=True):
                bind_sizes(value.type, content, sizes, rebind=False)
                values[value] = content
            pending = check_guards(pending, sizes) if pending else pending
        return pending


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
