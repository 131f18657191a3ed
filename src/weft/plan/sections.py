"""A native section for one set of sizes: an arena with a place for every value, and the launches on them.

Regions: whole addresses (constants), the arena, the errors, then the section's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.ir.work import NativeSection, Place, PlannedLaunch, Reference, ScanTask, Task, Work
from weft.plan.arena import Block, place

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
ALIGNMENT = 64
ABSOLUTE, ARENA, ERRORS, FIRST_FREE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Plan:
    """`constants` are arrays that launches point to, and so must live as long."""

    launches: tuple[PlannedLaunch, ...]
    arena_bytes: int
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]  # shape and dtype of each
    constants: tuple[Array, ...]


def make_plan(section: NativeSection, constants: Mapping[Value, Array], sizes: Sizes) -> Plan:
    """Places and launches for given sizes; `constants` are those that tasks read from memory."""
    places = {
        value: Place(FIRST_FREE + number) for number, value in enumerate((*section.inputs, *section.outputs))
    }
    planner = _Planner(constants, sizes)
    arena_bytes = planner.place_section(section, places, 0)
    launches = tuple(planner.launches(section, places))
    outputs = tuple((planner.shape(value), _dtype(value)) for value in section.outputs)
    return Plan(launches, arena_bytes, outputs, (*constants.values(), *planner.kept))


def read_values(task: Task | ScanTask) -> list[Value]:
    """The operands that a task reads from memory; a packed constant is read from the packing instead."""
    if isinstance(task, ScanTask):
        return list(task.operands)
    used = {r.number for _, references in task.work.launches for r in references if r.kind == "operand"}
    return [task.operands[number] for number in sorted(used)]


def shape_of(value: Value) -> tuple[Dim, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.shape or ()


class _Planner:
    def __init__(self, constants: Mapping[Value, Array], sizes: Sizes) -> None:
        self.constants = constants
        self.sizes = dict(sizes)
        self.kept: list[Array] = []  # packed constants that launches point to
        self.workspaces: dict[tuple[int, int], Place] = {}  # by (id of the work, number)
        self.packed: dict[tuple[int, int], Place] = {}
        self.scans: dict[int, tuple[dict[Value, Place], list[tuple[Place, Place]]]] = {}

    # -- places ------------------------------------------------------------------------------------------------------

    def place_section(self, section: NativeSection, places: dict[Value, Place], base: int) -> int:
        """Places in the arena, from `base` on, for what only the section sees; returns the bytes they take."""
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        blocks: list[Block] = []
        owners: list[tuple[int, int]] = []
        inner: dict[int, int] = {}
        for number, task in enumerate(section.tasks):
            for value in (*read_values(task), *task.results):
                root = _root(value, section.aliases)
                first.setdefault(root, number)
                last[root] = number
            if isinstance(task, ScanTask):
                inner[number] = len(blocks)
                blocks.append(Block(self.scan_bytes(task), number, number))
                owners.append((-1, number))
                continue
            for index, workspace in enumerate(task.work.workspaces):
                size = self.number(workspace.size) * workspace.dtype.numpy.itemsize
                blocks.append(Block(size, number, number))
                owners.append((id(task.work), index))
        own = [value for value in first if value not in places and value not in self.constants]
        blocks += [Block(self.bytes(value), first[value], last[value]) for value in own]
        arena = place(blocks, ALIGNMENT)
        spots = [Place(ARENA, base + offset) for offset in arena.offsets]
        for owner, spot in zip(owners, spots):
            if owner[0] != -1:
                self.workspaces[owner] = spot
        places.update(zip(own, spots[len(owners) :]))
        for value in [v for v in first if v in self.constants]:
            places[value] = Place(ABSOLUTE, self.constants[value].ctypes.data)
        for number, index in inner.items():
            task = section.tasks[number]
            assert isinstance(task, ScanTask)
            self.place_scan(task, spots[index].offset)
        return arena.size

    def scan_bytes(self, task: ScanTask) -> int:
        """Memory for two sets of carries and for the inside of the body."""
        self.bind_body(task)
        carried = sum(_aligned(self.bytes(value)) for value in task.program.inputs[: task.primitive.carries])
        trial = _Planner(self.constants, self.sizes)
        inside = {value: Place(ARENA) for value in (*task.body.inputs, *task.body.outputs)}
        return 2 * carried + trial.place_section(task.body, inside, 0)

    def place_scan(self, task: ScanTask, base: int) -> None:
        pairs: list[tuple[Place, Place]] = []
        for value in task.program.inputs[: task.primitive.carries]:
            size = _aligned(self.bytes(value))
            pairs.append((Place(ARENA, base), Place(ARENA, base + size)))
            base += 2 * size
        inside = {value: Place(ARENA) for value in (*task.body.inputs, *task.body.outputs)}
        self.place_section(task.body, inside, base)
        for value in (*task.body.inputs, *task.body.outputs):
            inside.pop(value)
        self.scans[id(task)] = (inside, pairs)

    def bind_body(self, task: ScanTask) -> None:
        """Sizes that the body's inputs show for the first time."""
        primitive = task.primitive
        for number, (inner, outer) in enumerate(zip(task.program.inputs, task.operands)):
            shape = self.shape(outer)
            is_sequence = primitive.carries <= number < primitive.carries + primitive.sequences
            for dim, size in zip(shape_of(inner), shape[1:] if is_sequence else shape):
                symbol = dims.as_symbol(dim)
                if symbol is not None:
                    self.sizes[symbol.name] = size

    # -- launches ----------------------------------------------------------------------------------------------------

    def launches(self, section: NativeSection, places: Mapping[Value, Place]) -> Iterator[PlannedLaunch]:
        for task in section.tasks:
            if isinstance(task, ScanTask):
                yield from self.scan_launches(task, [places[_root(v, section.aliases)] for v in task.operands],
                                              [places[v] for v in task.results])  # fmt: skip
                continue
            operands = [
                places.get(_root(value, section.aliases), Place(ABSOLUTE)) for value in task.operands
            ]
            yield from self.work_launches(task.work, operands, [places[value] for value in task.results], task.origin)

    def work_launches(
        self, work: Work, operands: list[Place], results: list[Place], origin: str
    ) -> Iterator[PlannedLaunch]:
        for launch, references in work.launches:
            buffers = tuple(self.locate(reference, work, operands, results) for reference in references)
            blocks = self.number(launch.blocks)
            parameters = tuple(self.number(value) for value in launch.parameters)
            yield PlannedLaunch(launch.kernel, blocks, buffers, parameters, origin)

    def locate(self, reference: Reference, work: Work, operands: list[Place], results: list[Place]) -> Place:
        match reference.kind:
            case "operand":
                return operands[reference.number]
            case "result":
                return results[reference.number]
            case "workspace":
                return self.workspaces[id(work), reference.number]
            case "constant":
                return self.pack(work, reference.number)
            case "errors":
                return Place(ERRORS)

    def pack(self, work: Work, number: int) -> Place:
        key = (id(work), number)
        if key not in self.packed:
            array = np.ascontiguousarray(work.constants[number])
            self.kept.append(array)
            self.packed[key] = Place(ABSOLUTE, array.ctypes.data)
        return self.packed[key]

    def scan_launches(self, task: ScanTask, operands: list[Place], results: list[Place]) -> Iterator[PlannedLaunch]:
        """The body's launches for every iteration; an output that is carried too is read back from where it went."""
        self.bind_body(task)
        carries, sequences = task.primitive.carries, task.primitive.sequences
        inside, pairs = self.scans[id(task)]
        inputs, outputs = task.program.inputs, task.program.outputs
        length = self.number(task.primitive.length)
        current = operands[:carries]
        for step in range(length):
            places = dict(inside)
            places.update(zip(inputs, current))
            for value, spot in zip(inputs[carries:], operands[carries : carries + sequences]):
                places[value] = Place(spot.region, spot.offset + step * self.bytes(value))
            places.update(zip(inputs[carries + sequences :], operands[carries + sequences :]))
            for number, value in enumerate(outputs[:carries]):
                places[value] = results[number] if step == length - 1 else pairs[number][step % 2]
            for number, value in enumerate(outputs[carries:], start=carries):
                places[value] = Place(results[number].region, results[number].offset + step * self.bytes(value))
            yield from self.launches(task.body, places)
            current = [places[value] for value in outputs[:carries]]
        for copy, source, result in zip(task.copies, current, results):
            if source != result:
                yield from self.work_launches(copy, [source], [result], task.origin)

    # -- numbers -----------------------------------------------------------------------------------------------------

    def number(self, value: Dim) -> int:
        return dims.evaluate(value, self.sizes)

    def shape(self, value: Value) -> tuple[int, ...]:
        return tuple(self.number(dim) for dim in shape_of(value))

    def bytes(self, value: Value) -> int:
        return self.number(dims.product(shape_of(value))) * _dtype(value).itemsize


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _dtype(value: Value) -> np.dtype[Any]:
    assert isinstance(value.type, TensorType)
    return value.type.dtype.numpy


def _root(value: Value, aliases: Mapping[Value, Value]) -> Value:
    while value in aliases:
        value = aliases[value]
    return value
