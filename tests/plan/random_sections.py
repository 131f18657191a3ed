"""Random sections, and an interpreter that runs their plans on real bytes: an oracle for planner and verifier.

Kernels are only names here. What a launch computes is decided by its name and the bytes that it reads.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Kernel
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.ir.work import (
    Copy,
    Launch,
    NativeSection,
    Place,
    PlannedLaunch,
    Reference,
    Task,
    Work,
    Workspace,
    unrolled,
)
from weft.plan.plan import ABSOLUTE, ARENA, FIRST_FREE, Plan

Array = np.ndarray[Any, Any]
BYTE = DType.uint8


@dataclass(frozen=True)
class RandomSection:
    section: NativeSection
    constants: Mapping[Value, Array]
    steps: tuple[tuple[int, ...], ...]


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.values: list[Value] = []
        self.tasks: list[Task] = []
        self.aliases: dict[Value, Value] = {}

    def value(self, size: int) -> Value:
        return Value(len(self.values) + 1000, TensorType(BYTE, (size,)), f"v{len(self.values)}")

    def add(self, work: Work, operands: Sequence[Value], size: int) -> Value:
        result = self.value(size)
        self.values.append(result)
        self.tasks.append(Task(work, tuple(operands), (result,), f"task {len(self.tasks)}"))
        return result

    def pick(self) -> Value:
        recent = self.values[-8:] if self.random.random() < 0.8 else self.values
        return self.random.choice(recent)

    def compute(self) -> None:
        """Compute some function of the operands, with or without a workspace."""
        operands = list(dict.fromkeys(self.pick() for _ in range(self.random.randint(1, 3))))
        size = self.random.choice([size_of(operands[0]), self.random.randint(1, 2000)])
        reads = [Reference("operand", number) for number in range(len(operands))]
        if self.random.random() < 0.3:
            space = Reference("workspace", 0)
            launches = (
                launch("prepare", [reads[0]], [space]),
                launch("mix", [*reads, space], [Reference("result", 0)]),
            )
            work = Work(launches, (Workspace(BYTE, self.random.randint(1, 3000)),))
        else:
            work = Work((launch("mix", reads, [Reference("result", 0)]),))
        self.add(work, operands, size)

    def elementwise(self) -> None:
        operand = self.pick()
        other = self.pick()
        operands = list(dict.fromkeys((operand, other)))
        reads = [Reference("operand", number) for number in range(len(operands))]
        free = tuple(n for n, value in enumerate(operands) if size_of(value) == size_of(operand))
        work = Work((launch("add", reads, [Reference("result", 0)]),), overwritable=free)
        self.add(work, operands, size_of(operand))

    def concatenate(self) -> None:
        operands = [self.pick() for _ in range(self.random.randint(1, 4))]
        launches, copies = [], []
        start = 0
        for number, operand in enumerate(operands):
            launches.append(launch("copy", [Reference("operand", number)], [Reference("result", 0)], (0, start)))
            pieces = self.random.choice([1, 1, 1, 2])
            copies.append(Copy(number, number, 0, start, size_of(operand), pieces))
            start += size_of(operand)
        self.add(Work(tuple(launches), copies=tuple(copies)), operands, start)

    def cut(self) -> None:
        operand = self.pick()
        start = self.random.randrange(size_of(operand))
        size = self.random.randint(1, size_of(operand) - start)
        work = Work(
            (launch("copy", [Reference("operand", 0)], [Reference("result", 0)], (start, 0)),),
            copies=(Copy(0, 0, start, 0, size, self.random.choice([1, 1, 2])),),
        )
        self.add(work, [operand], size)

    def alias(self) -> None:
        operand = self.pick()
        value = self.value(size_of(operand))
        self.aliases[value] = operand
        self.values.append(value)


def random_section(seed: int, tasks: int = 25) -> RandomSection:
    """Generate a section with this many tasks, and steps for them."""
    maker = _Maker(seed)
    inputs = [maker.value(maker.random.randint(1, 1000)) for _ in range(1)]
    maker.values += inputs
    constants = [maker.value(maker.random.randint(1, 500))]
    maker.values += constants
    kinds = [maker.compute, maker.elementwise, maker.elementwise, maker.concatenate, maker.cut, maker.alias]
    while len(maker.tasks) < tasks:
        maker.random.choice(kinds)()
    results = [task.results[0] for task in maker.tasks]
    read = {_root(value, maker.aliases) for task in maker.tasks for value in task.operands}
    outputs = [value for value in results if value not in read or maker.random.random() < 0.1]
    contents = {value: np.arange(size_of(value), dtype=np.uint8) for value in constants}
    section = NativeSection(tuple(maker.tasks), maker.aliases, tuple(inputs), tuple(outputs))
    return RandomSection(section, contents, tuple(_steps(section, maker.random)))


def launch(
    name: str, reads: Sequence[Reference], writes: Sequence[Reference], parameters: tuple[int, ...] = ()
) -> Launch:
    buffers = [Buffer(f"in{n}", BYTE, False) for n in range(len(reads))]
    buffers += [Buffer(f"out{n}", BYTE, True) for n in range(len(writes))]
    names = tuple(f"p{n}" for n in range(len(parameters)))
    bound = tuple((buffer.name, reference) for buffer, reference in zip(buffers, (*reads, *writes)))
    return Launch(Kernel(name, tuple(buffers), names, 1, ()), 1, tuple(zip(names, parameters)), bound)


def size_of(value: Value) -> int:
    assert isinstance(value.type, TensorType)
    assert value.type.shape is not None
    (size,) = value.type.shape
    assert isinstance(size, int)
    return size


def _root(value: Value, aliases: Mapping[Value, Value]) -> Value:
    while value in aliases:
        value = aliases[value]
    return value


def _steps(section: NativeSection, chooser: random.Random) -> list[tuple[int, ...]]:
    """Return a valid order with up to three tasks in parallel."""
    producers = {value: number for number, task in enumerate(section.tasks) for value in task.results}
    needs = [
        {producers[root] for value in task.operands if (root := _root(value, section.aliases)) in producers}
        for task in section.tasks
    ]
    done: set[int] = set()
    steps = []
    while len(done) < len(section.tasks):
        ready = [number for number in range(len(section.tasks)) if number not in done and needs[number] <= done]
        step = tuple(chooser.sample(ready, min(len(ready), chooser.randint(1, 3))))
        steps.append(step)
        done |= set(step)
    return steps


# -- running -----------------------------------------------------------------------------------------------------------


def run_plan(case: RandomSection, plan: Plan, inputs: Sequence[Array]) -> list[Array]:
    """Run the launches of a plan in order on an arena of random bytes, and return the outputs."""
    section = case.section
    regions: dict[int, Array] = {ARENA: np.full(plan.arena_bytes, 0xA5, np.uint8)}
    outputs = [np.full(size_of(value), 0x5A, np.uint8) for value in section.outputs]
    for number, array in enumerate((*inputs, *outputs)):
        regions[FIRST_FREE + number] = array
    sizes = _sizes(section)
    for planned in unrolled(plan.launches):
        task = section.tasks[planned.task]
        number = _number_of(task.work, planned)
        _run_launch(task, number, planned, regions, case, sizes)
    return outputs


def expected_outputs(case: RandomSection, inputs: Sequence[Array]) -> list[Array]:
    """Compute the outputs with separate memory for every value."""
    section = case.section
    memory: dict[Value, Array] = {**dict(zip(section.inputs, inputs)), **case.constants}
    for task in section.tasks:
        operands = [memory[_root(value, section.aliases)] for value in task.operands]
        results = [np.full(size_of(value), 0x5A, np.uint8) for value in task.results]
        spaces = [np.zeros(int(space.size), np.uint8) for space in task.work.workspaces]  # type: ignore[arg-type]
        for one in task.work.launches:
            by_kind = {"operand": operands, "result": results, "workspace": spaces}
            arrays = [by_kind[reference.kind][reference.number] for reference in one.references]
            _compute(one.kernel, [int(p) for p in one.values], arrays)  # type: ignore[arg-type]
        memory.update(zip(task.results, results))
    return [memory[value] for value in section.outputs]


def _number_of(work: Work, planned: PlannedLaunch) -> int:
    for number, one in enumerate(work.launches):
        if one.kernel == planned.kernel and one.values == planned.parameters:
            return number
    raise AssertionError(f"{planned.kernel.name} is no launch of {planned.origin}")


def _sizes(section: NativeSection) -> dict[tuple[int, str, int], int]:
    sizes = {}
    for number, task in enumerate(section.tasks):
        for n, value in enumerate(task.operands):
            sizes[number, "operand", n] = size_of(value)
        for n, value in enumerate(task.results):
            sizes[number, "result", n] = size_of(value)
        for n, space in enumerate(task.work.workspaces):  # type: ignore[union-attr]
            sizes[number, "workspace", n] = int(space.size)  # type: ignore[arg-type]
    return sizes


def _run_launch(
    task: Any,
    number: int,
    planned: PlannedLaunch,
    regions: Mapping[int, Array],
    case: RandomSection,
    sizes: Mapping[tuple[int, str, int], int],
) -> None:
    arrays = []
    for reference, place in zip(task.work.launches[number].references, planned.buffers):
        size = sizes[planned.task, reference.kind, reference.number]
        arrays.append(_memory(place, size, regions, case))
    _compute(planned.kernel, list(planned.parameters), arrays)


def _memory(place: Place, size: int, regions: Mapping[int, Array], case: RandomSection) -> Array:
    if place.region == ABSOLUTE:
        for array in case.constants.values():
            start = place.offset - array.ctypes.data
            if start >= 0 and start + size <= array.nbytes:
                return array[start : start + size]
        raise AssertionError("no constant is there")
    content = regions[place.region][place.offset : place.offset + size]
    assert len(content) == size
    assert place.offset >= 0
    return content


def _compute(kernel: Kernel, parameters: Sequence[int], arrays: Sequence[Array]) -> None:
    reads = [array for array, buffer in zip(arrays, kernel.buffers) if not buffer.written]
    (out,) = [array for array, buffer in zip(arrays, kernel.buffers) if buffer.written]
    match kernel.name:
        case "copy":
            source, target = parameters
            size = min(len(reads[0]) - source, len(out) - target)
            out[target : target + size] = reads[0][source : source + size].copy()
        case "add":
            total = np.zeros(len(out), np.uint8)
            for array in reads:
                total += np.resize(array, len(out)) * np.uint8(3) + np.uint8(7)
            out[:] = total
        case _:
            content = b"".join(array.tobytes() for array in reads) + kernel.name.encode()
            seed = int.from_bytes(hashlib.sha256(content).digest()[:8], "little")
            out[:] = np.random.default_rng(seed).integers(0, 256, len(out), np.uint8)
