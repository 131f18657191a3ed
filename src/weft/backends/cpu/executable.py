"""A compiled program ready to run on the CPU: its code in memory, and what runs its sections in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.backends.cpu.codegen import load_code
from weft.backends.cpu.compile import kernel_names
from weft.backends.cpu.memory import ARENA_OVERHEAD, Arenas
from weft.backends.cpu.section import SectionRunner
from weft.backends.reference import interpret
from weft.ir.compiled import CompiledProgram
from weft.ir.program import Guard, TensorProgram, Value, bodies
from weft.ir.work import HostSection, NativeSection, Section
from weft.plan.limits import Room
from weft.plan.program import ProgramPlan, local_bytes, plan_program, weight_bytes
from weft.plan.sections import Plan

Array = np.ndarray[Any, Any]
REMEMBERED_SHAPES = 256  # sets of them, for which a program keeps the sizes that they bind


@dataclass(frozen=True, slots=True)
class Parts:
    """What runs the parts of a program: makes the runner of a native section, and runs a host step."""

    section: Callable[..., SectionRunner] = SectionRunner
    step: Callable[..., list[Any]] = interpret.run_step


class Executable:
    """Runs one program. Several threads may call `run` at once."""

    def __init__(
        self,
        program: CompiledProgram,
        threads: int,
        parts: Parts = Parts(),  # noqa: B008
        limit: int | None = None,
        may_grow: bool = False,
    ) -> None:
        """`limit`: the bytes that weights, arena, workspace and outputs may take together; under one, none may grow."""
        self.program = program
        self.threads = threads
        self.sections = program.sections
        names = kernel_names(program.sections)
        self._code = load_code(program.objects, names) if names else None
        addresses = self._code.addresses if self._code is not None else {}
        self.workspace = ARENA_OVERHEAD + threads * local_bytes(program)
        limited = limit is not None
        room = Room(limit, weight_bytes(program), self.workspace) if limited else Room(may_grow=may_grow)
        self._whole = _Sections(program, program.sections, addresses, threads, Arenas(room), parts)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs; GuardError where the program does not apply to their sizes."""
        return self._whole.run_bound(inputs, *self._whole.bind(inputs, {}))

    def plan(self, sizes: Mapping[str, int]) -> ProgramPlan:
        """The memory of a run with these sizes; GuardError where the program does not apply to them."""
        interpret.check_guards(self._whole.guards, sizes)
        runners = {id(runner.section): runner for runner in self._whole.all_runners()}

        def make(section: NativeSection, _: Mapping[Value, Array], sizes: Mapping[str, int]) -> Plan:
            return runners[id(section)].make_plan(sizes)

        return plan_program(self.program, sizes, self.workspace, make)

    def shortcut(self, inputs: Sequence[Any]) -> Callable[[Sequence[Array]], list[Array]] | None:
        """What gives the outputs for contiguous arrays of the dtypes and shapes of these, which ran before.

        All outputs are new arrays. None where that takes more than native code.
        """
        if not self._whole.single:
            return None
        runner = self._whole.runners[0]
        assert isinstance(runner, SectionRunner)
        return runner.prepared(self._whole.bind(inputs, {})[0]).run


class _Sections:
    """The sections of a program, or of a body inside one, in order."""

    def __init__(
        self,
        program: TensorProgram | CompiledProgram,
        sections: Sequence[Section],
        addresses: Mapping[str, int],
        threads: int,
        arenas: Arenas,
        parts: Parts,
    ) -> None:
        self.program = program
        self.parts = parts
        self.guards = tuple({(guard.left, guard.right, guard.at_least): guard for guard in program.guards}.values())
        self.inside: dict[int, _Sections] = {}  # by the id of the body
        self.runners: list[SectionRunner | HostSection] = []
        for section in sections:
            if isinstance(section, NativeSection):
                self.runners.append(parts.section(section, program.constants, addresses, threads, arenas))
                continue
            self.runners.append(section)
            inner = [body for step in section.steps for body in bodies(step.primitive)]
            for body, inside in zip(inner, section.bodies, strict=True):
                self.inside[id(body)] = _Sections(body, inside, addresses, threads, arenas, parts)
        self.has_host_steps = any(isinstance(runner, HostSection) for runner in self.runners)
        self.releases = _releases(program, sections) if self.has_host_steps else [[] for _ in sections]
        seen = _seen_on_host(program, sections)
        self.constants = {value: content for value, content in program.constants.items() if value in seen}
        self.single = _is_single(program, sections)
        self._bound: dict[Any, tuple[dict[str, int], tuple[Guard, ...]]] = {}  # by the shapes and sizes that say it

    def all_runners(self) -> Iterator[SectionRunner]:
        """What runs native sections, those inside of control flow too."""
        yield from (runner for runner in self.runners if isinstance(runner, SectionRunner))
        for body in self.inside.values():
            yield from body.all_runners()

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
            interpret.bind_sizes(value.type, content, sizes, rebind=True)
        found = sizes, interpret.check_guards(self.guards, sizes)
        if len(self._bound) >= REMEMBERED_SHAPES:
            self._bound.clear()
        self._bound[key] = found
        return found

    def run_bound(self, inputs: Sequence[Any], sizes: dict[str, int], pending: tuple[Guard, ...]) -> list[Any]:
        """The outputs, once sizes are bound."""
        if self.single and isinstance(self.runners[0], SectionRunner):
            return self.runners[0].run(inputs, sizes)
        values = self.constants.copy()
        values.update(zip(self.program.inputs, inputs))
        if self.has_host_steps:
            sizes = sizes.copy()  # host steps add to them
        for runner, released in zip(self.runners, self.releases):
            if isinstance(runner, SectionRunner):
                section = runner.section
                results = runner.run([values[value] for value in section.inputs], sizes)
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
            results = self.parts.step(step, [values[operand] for operand in step.operands], sizes, self.run)
            for value, content in zip(step.results, results, strict=True):
                interpret.bind_sizes(value.type, content, sizes, rebind=False)
                values[value] = content
            pending = interpret.check_guards(pending, sizes) if pending else pending
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
