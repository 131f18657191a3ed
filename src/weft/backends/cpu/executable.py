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
from weft.backends.cpu.tape import Launch, Place, Tape
from weft.backends.reference import interpret
from weft.errors import ExecutionError
from weft.ir import dims
from weft.ir.kernel import Kernel
from weft.ir.program import TensorProgram, Value
from weft.ir.types import TensorType
from weft.kernels.launch import Reference
from weft.kernels.sections import HostSection, NativeSection, Section, Task, divide
from weft.plan.arena import Block, place

Array = np.ndarray[Any, Any]
REMEMBERED_PLANS = 64  # sets of sizes for which a section keeps its tape
ABSOLUTE, ARENA = 0, 1  # regions: whole addresses (constants), and the arena; inputs and outputs follow


class Executable:
    """Runs one program. Several threads may call `run` at once."""

    def __init__(
        self,
        program: TensorProgram,
        threads: int,
        cache: bool = True,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.program = program
        self.threads = threads
        machine = host()
        self.sections = divide(program, machine.target)
        kernels = _kernels(self.sections)
        addresses, self._code = _compile(kernels, machine, cache, progress)
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


@dataclass(frozen=True, slots=True)
class _Plan:
    """A section for one set of sizes."""

    tape: Tape
    arena_bytes: int
    output_shapes: tuple[tuple[int, ...], ...]
    spare: list[Array]  # arenas that no run uses now


class _NativeRunner:
    def __init__(
        self, section: NativeSection, constants: Mapping[Value, Any], addresses: Mapping[Kernel, int], threads: int
    ) -> None:
        self.section = section
        self.threads = threads
        self.addresses = addresses
        self.symbols = _section_symbols(section)
        self.constants: dict[Value, Array] = {}
        self.packed: dict[int, list[Array]] = {
            number: [np.ascontiguousarray(array) for array in task.work.constants]
            for number, task in enumerate(section.tasks)
        }
        for task in section.tasks:
            for value in _read_values(task):
                if value in constants:
                    self.constants[value] = np.ascontiguousarray(constants[value])
        self._plans: OrderedDict[tuple[int, ...], _Plan] = OrderedDict()
        self._lock = Lock()

    def run(self, values: dict[Value, Any], sizes: Mapping[str, int]) -> None:
        key = tuple(sizes[name] for name in self.symbols)
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                plan = self._plans[key] = self._make_plan(sizes)
                while len(self._plans) > REMEMBERED_PLANS:
                    self._plans.popitem(last=False)
            else:
                self._plans.move_to_end(key)
            arena = plan.spare.pop() if plan.spare else None
        if arena is None:
            arena = np.empty(plan.arena_bytes + 64, np.uint8)
        inputs = [np.ascontiguousarray(values[value]) for value in self.section.inputs]
        outputs = [
            np.empty(shape, value.type.dtype.numpy)  # type: ignore[union-attr]
            for value, shape in zip(self.section.outputs, plan.output_shapes)
        ]
        errors = np.zeros(1, np.int32)
        start = -(-arena.ctypes.data // 64) * 64
        regions = [0, start, errors.ctypes.data, *(array.ctypes.data for array in (*inputs, *outputs))]
        plan.tape.run(regions, self.threads)
        with self._lock:
            plan.spare.append(arena)
        if errors[0]:
            raise ExecutionError("an index is out of range")
        values.update(zip(self.section.outputs, outputs))

    def _make_plan(self, sizes: Mapping[str, int]) -> _Plan:
        section = self.section
        places: dict[Value, Place] = {}
        for number, value in enumerate((*section.inputs, *section.outputs)):
            places[value] = Place(3 + number)
        for value, array in self.constants.items():
            places[value] = Place(ABSOLUTE, array.ctypes.data)
        workspaces, arena_bytes = self._place_arena(places, sizes)
        launches: list[Launch] = []
        for number, task in enumerate(section.tasks):
            for launch, references in task.work.launches:
                buffers = tuple(self._place(reference, task, number, places, workspaces) for reference in references)
                blocks = dims.evaluate(launch.blocks, sizes)
                parameters = tuple(dims.evaluate(value, sizes) for value in launch.parameters)
                address = self.addresses[launch.kernel]
                launches.append(Launch(address, blocks, buffers, parameters, parallel=blocks > 1))
        shapes = tuple(tuple(dims.evaluate(d, sizes) for d in _shape(value)) for value in section.outputs)
        return _Plan(Tape(launches), arena_bytes, shapes, [])

    def _place_arena(
        self, places: dict[Value, Place], sizes: Mapping[str, int]
    ) -> tuple[dict[tuple[int, int], Place], int]:
        """Places for all values that only the section sees, and for workspaces by (task, number)."""
        section = self.section
        root = lambda value: _root(value, section.aliases)  # noqa: E731
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        blocks: list[Block] = []
        spaces: list[tuple[int, int]] = []
        for number, task in enumerate(section.tasks):
            for value in (*_read_values(task), *task.results):
                base = root(value)
                first.setdefault(base, number)
                last[base] = number
            for index, workspace in enumerate(task.work.workspaces):
                size = dims.evaluate(workspace.size, sizes) * workspace.dtype.numpy.itemsize
                blocks.append(Block(size, number, number))
                spaces.append((number, index))
        own = [value for value in first if value not in places]
        for value in own:
            size = dims.evaluate(dims.product(_shape(value)), sizes) * value.type.dtype.numpy.itemsize  # type: ignore[union-attr]
            blocks.append(Block(size, first[value], last[value]))
        arena = place(blocks, 64)
        offsets = [Place(ARENA, offset) for offset in arena.offsets]
        places.update(zip(own, offsets[len(spaces) :]))
        return dict(zip(spaces, offsets)), arena.size

    def _place(
        self,
        reference: Reference,
        task: Task,
        number: int,
        places: Mapping[Value, Place],
        workspaces: Mapping[tuple[int, int], Place],
    ) -> Place:
        match reference.kind:
            case "operand":
                return places[_root(task.operands[reference.number], self.section.aliases)]
            case "result":
                return places[task.results[reference.number]]
            case "workspace":
                return workspaces[number, reference.number]
            case "constant":
                return Place(ABSOLUTE, self.packed[number][reference.number].ctypes.data)
            case "errors":
                return Place(2)


def _root(value: Value, aliases: Mapping[Value, Value]) -> Value:
    while value in aliases:
        value = aliases[value]
    return value


def _read_values(task: Task) -> list[Value]:
    used = {
        reference.number
        for _, references in task.work.launches
        for reference in references
        if reference.kind == "operand"
    }
    return [task.operands[number] for number in sorted(used)]


def _shape(value: Value) -> tuple[dims.Dim, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.shape or ()


def _section_symbols(section: NativeSection) -> tuple[str, ...]:
    found: set[str] = set()
    for task in section.tasks:
        for launch, _ in task.work.launches:
            for value in (launch.blocks, *launch.parameters):
                found |= {symbol.name for symbol in dims.symbols(value)}
        for workspace in task.work.workspaces:
            found |= {symbol.name for symbol in dims.symbols(workspace.size)}
    for value in (*section.outputs, *(v for task in section.tasks for v in (*task.operands, *task.results))):
        for dim in _shape(value):
            found |= {symbol.name for symbol in dims.symbols(dim)}
    return tuple(sorted(found))


def _kernels(sections: Sequence[Section]) -> list[Kernel]:
    native = [section for section in sections if isinstance(section, NativeSection)]
    launches = [launch for section in native for task in section.tasks for launch, _ in task.work.launches]
    return list(dict.fromkeys(launch.kernel for launch in launches))


def _compile(
    kernels: Sequence[Kernel], machine: Machine, cache: bool, progress: Callable[[float], None] | None
) -> tuple[dict[Kernel, int], Any]:
    """The address of every kernel, and what keeps the code alive."""
    if not kernels:
        return {}, None
    named = [replace(kernel, name=f"{kernel.name}_{_digest(kernel)}") for kernel in kernels]
    tell = None if progress is None else lambda done, total: progress(done / total)
    objects = compile_modules(modules_of(named), machine, shared_cache() if cache else None, progress=tell)
    code = load_code(objects, [kernel.name for kernel in named])
    return {kernel: code.addresses[name.name] for kernel, name in zip(kernels, named)}, code


def _digest(kernel: Kernel) -> str:
    return sha256(str(kernel).encode()).hexdigest()[:16]


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
