"""A program ready to run on the CPU: compiled kernels, packed constants, and a tape for each set of sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from threading import Lock
from typing import Any

import numpy as np

from weft.backends.cpu.code_cache import shared_cache
from weft.backends.cpu.codegen import compile_modules, load_code
from weft.backends.cpu.machine import Machine, host
from weft.backends.cpu.modules import modules_of
from weft.backends.cpu.tape import Launch, Tape
from weft.backends.reference import interpret
from weft.errors import ExecutionError
from weft.ir import dims
from weft.ir.kernel import Kernel, fingerprint
from weft.ir.program import TensorProgram, Value
from weft.ir.work import HostSection, NativeSection, ScanTask, Section, all_works
from weft.plan.sections import ALIGNMENT, make_plan, read_values, shape_of

Array = np.ndarray[Any, Any]
REMEMBERED_PLANS = 64  # sets of sizes for which a section keeps its tape


class Executable:
    """Runs one program. Several threads may call `run` at once."""

    def __init__(
        self,
        program: TensorProgram,
        sections: Sequence[Section],
        threads: int,
        cache: bool = True,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.program = program
        self.threads = threads
        self.sections = tuple(sections)
        addresses, self._code = _compile(_kernels(self.sections), host(), cache, progress)
        self._runners: list[_NativeRunner | HostSection] = [
            _NativeRunner(section, program.constants, addresses, threads)
            if isinstance(section, NativeSection)
            else section
            for section in self.sections
        ]
        self._releases = _releases(program, self.sections)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs; GuardError where the program does not apply to their sizes."""
        sizes: dict[str, int] = {}
        values: dict[Value, Any] = dict(self.program.constants)
        for value, content in zip(self.program.inputs, inputs, strict=True):
            interpret.bind_sizes(value.type, content, sizes, rebind=True)
            values[value] = content
        pending = interpret.check_guards(self.program.guards, sizes)
        for runner, released in zip(self._runners, self._releases):
            if isinstance(runner, HostSection):
                for step in runner.steps:
                    results = interpret.run_step(step, [values[operand] for operand in step.operands], sizes)
                    for value, content in zip(step.results, results, strict=True):
                        interpret.bind_sizes(value.type, content, sizes, rebind=False)
                        values[value] = content
                    pending = interpret.check_guards(pending, sizes) if pending else pending
            else:
                runner.run(values, sizes)
            for value in released:
                values.pop(value, None)
        return [values[output] for output in self.program.outputs]


class _NativeRunner:
    """One native section: its constants in memory, and a plan for each set of sizes that it has met."""

    def __init__(
        self, section: NativeSection, constants: Mapping[Value, Any], addresses: Mapping[Kernel, int], threads: int
    ) -> None:
        self.section = section
        self.threads = threads
        self.addresses = addresses
        self.symbols = tuple(sorted(_section_symbols(section)))
        self.constants = _gather_constants(section, constants)
        self._plans: OrderedDict[tuple[int, ...], _Prepared] = OrderedDict()
        self._lock = Lock()

    def run(self, values: dict[Value, Any], sizes: Mapping[str, int]) -> None:
        """Compute the section's outputs from its inputs in `values`."""
        plan, arena = self._plan(sizes)
        inputs = [np.ascontiguousarray(values[value]) for value in self.section.inputs]
        outputs = [np.empty(shape, dtype) for shape, dtype in plan.outputs]
        errors = np.zeros(1, np.int32)
        start = -(-arena.ctypes.data // ALIGNMENT) * ALIGNMENT
        regions = [0, start, errors.ctypes.data, *(array.ctypes.data for array in (*inputs, *outputs))]
        plan.tape.run(regions, self.threads)
        plan.spare.append(arena)
        if errors[0]:
            raise ExecutionError("an index is out of range")
        values.update(zip(self.section.outputs, outputs))

    def _plan(self, sizes: Mapping[str, int]) -> tuple[_Prepared, Array]:
        key = tuple([sizes[name] for name in self.symbols])
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                plan = self._plans[key] = self._prepare(sizes)
                while len(self._plans) > REMEMBERED_PLANS:
                    self._plans.popitem(last=False)
            else:
                self._plans.move_to_end(key)
            if plan.spare:
                return plan, plan.spare.pop()
        return plan, np.empty(plan.arena_bytes + ALIGNMENT, np.uint8)


    def _prepare(self, sizes: Mapping[str, int]) -> _Prepared:
        plan = make_plan(self.section, self.constants, sizes)
        launches = [
            Launch(self.addresses[step.kernel], step.blocks, step.buffers, step.parameters, parallel=step.blocks > 1)
            for step in plan.launches
        ]
        return _Prepared(Tape(launches, keep=plan.constants), plan.arena_bytes, plan.outputs, [])


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A section for one set of sizes."""

    tape: Tape
    arena_bytes: int
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]  # shape and dtype of each
    spare: list[Array]  # arenas that no run uses now


def _gather_constants(section: NativeSection, constants: Mapping[Value, Any]) -> dict[Value, Array]:
    """The constants that tasks read from memory, contiguous; those of scans' bodies too."""
    gathered: dict[Value, Array] = {}
    for task in section.tasks:
        if isinstance(task, ScanTask):
            gathered |= _gather_constants(task.body, task.program.constants)
        for value in read_values(task):
            if value in constants:
                gathered[value] = np.ascontiguousarray(constants[value])
    return gathered


def _section_symbols(section: NativeSection) -> set[str]:
    """The sizes that a section's plan depends on."""
    found: set[str] = set()
    for task in section.tasks:
        if isinstance(task, ScanTask):
            found |= _names(task.primitive.length) | (_section_symbols(task.body) & _outer_symbols(task))
            continue
        for launch, _ in task.work.launches:
            for value in (launch.blocks, *launch.parameters):
                found |= _names(value)
        for workspace in task.work.workspaces:
            found |= _names(workspace.size)
    for value in (*section.outputs, *(v for task in section.tasks for v in (*task.operands, *task.results))):
        for dim in shape_of(value):
            found |= _names(dim)
    return found


def _outer_symbols(task: ScanTask) -> set[str]:
    return {name for value in (*task.operands, *task.program.inputs) for dim in shape_of(value) for name in _names(dim)}


def _names(value: dims.Dim) -> set[str]:
    return {symbol.name for symbol in dims.symbols(value)}


def _kernels(sections: Sequence[Section]) -> list[Kernel]:
    native = [section for section in sections if isinstance(section, NativeSection)]
    launches = [launch for section in native for work in all_works(section) for launch, _ in work.launches]
    return list(dict.fromkeys(launch.kernel for launch in launches))


def _compile(
    kernels: Sequence[Kernel], machine: Machine, cache: bool, progress: Callable[[float], None] | None
) -> tuple[dict[Kernel, int], Any]:
    """The address of every kernel, and what keeps the code alive."""
    if not kernels:
        return {}, None
    names = {kernel: f"{kernel.name}_{sha256(fingerprint(kernel).encode()).hexdigest()[:16]}" for kernel in kernels}
    named = {name: replace(kernel, name=name) for kernel, name in names.items()}
    tell = None if progress is None else lambda done, total: progress(done / total)
    texts = modules_of(list(named.values()))
    objects = compile_modules(texts, machine, shared_cache() if cache else None, progress=tell)
    code = load_code(objects, named)
    return {kernel: code.addresses[name] for kernel, name in names.items()}, code


def _releases(program: TensorProgram, sections: Sequence[Section]) -> list[list[Value]]:
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
