"""A native section for one set of sizes: an arena with a place for every value, and the launches on them.

Regions: whole addresses (constants), the arena, the errors, then the section's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from weft.errors import ExecutionError
from weft.ir import dims
from weft.ir.compiled import read_operands
from weft.ir.dims import Dim
from weft.ir.numbers import Numbers
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.ir.work import NativeSection, Place, PlannedLaunch, Reference, Repeated, ScanTask, Work
from weft.plan.arena import Block, place

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
ALIGNMENT = 64
ABSOLUTE, ARENA, ERRORS, FIRST_FREE = 0, 1, 2, 3
_NOWHERE = Place(ABSOLUTE)
_UNROLLED = 6  # iterations of a scan up to which all launches are listed one by one


@dataclass(frozen=True, slots=True)
class Plan:
    """`constants` are arrays that launches point to, and so must live as long."""

    launches: tuple[PlannedLaunch | Repeated, ...]
    arena_bytes: int
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]  # shape and dtype of each
    constants: tuple[Array, ...]


def make_plan(section: NativeSection, constants: Mapping[Value, Array], sizes: Sizes) -> Plan:
    """Places and launches for given sizes; `constants` are those that tasks read from memory."""
    places = {value: Place(FIRST_FREE + number) for number, value in enumerate((*section.inputs, *section.outputs))}
    planner = _Planner(constants, Numbers(sizes))
    arena_bytes = planner.place_section(section, places, 0)
    launches = tuple(planner.launches(section, places))
    outputs = tuple((planner.shape(value), _dtype(value)) for value in section.outputs)
    return Plan(launches, arena_bytes, outputs, (*constants.values(), *planner.kept))


def shape_of(value: Value) -> tuple[Dim, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.shape or ()


class _Planner:
    def __init__(self, constants: Mapping[Value, Array], number: Numbers) -> None:
        self.constants = constants
        self.number = number
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
            for value in (*read_operands(task), *task.results):
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
        trial = _Planner(self.constants, self.number)
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
                    self.number.bind(symbol.name, size)

    # -- launches ----------------------------------------------------------------------------------------------------

    def launches(self, section: NativeSection, places: Mapping[Value, Place]) -> Iterator[PlannedLaunch | Repeated]:
        for task in section.tasks:
            if isinstance(task, ScanTask):
                yield from self.scan_launches(task, [places[_root(v, section.aliases)] for v in task.operands],
                                              [places[v] for v in task.results])  # fmt: skip
                continue
            operands = [places.get(_root(value, section.aliases), _NOWHERE) for value in task.operands]
            yield from self.work_launches(task.work, operands, [places[value] for value in task.results], task.origin)

    def work_launches(
        self, work: Work, operands: list[Place], results: list[Place], origin: str
    ) -> Iterator[PlannedLaunch]:
        for launch, references in work.launches:
            buffers = tuple(self.locate(reference, work, operands, results) for reference in references)
            parameters = tuple(map(self.number, launch.parameters))
            yield PlannedLaunch(launch.kernel, self.number(launch.blocks), buffers, parameters, origin)

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

    def scan_launches(
        self, task: ScanTask, operands: list[Place], results: list[Place]
    ) -> Iterator[PlannedLaunch | Repeated]:
        """The body's launches for every iteration; an output that is carried too is read back from where it went.

        Carries alternate between two places and sequences move on evenly, so iterations but the first and the last
        are one pair of them, repeated.
        """
        self.bind_body(task)
        length = self.number(task.primitive.length)
        steps = _ScanPlaces(self, task, operands, results, length)

        def pair(step: int) -> list[PlannedLaunch | Repeated]:
            return [*self.launches(task.body, steps.at(step)), *self.launches(task.body, steps.at(step + 1))]

        step = 0
        if length > _UNROLLED:
            yield from self.launches(task.body, steps.at(0))
            repeated = _repeat(pair(1), pair(3), (length - 2) // 2)
            if repeated is not None:
                yield repeated
                step = 1 + 2 * repeated.count
            else:
                step = 1
        for number in range(step, length):
            yield from self.launches(task.body, steps.at(number))
        for copy, source, result in zip(task.copies, steps.carries_before(length), results):
            if source != result:
                yield from self.work_launches(copy, [source], [result], task.origin)

    # -- numbers -----------------------------------------------------------------------------------------------------

    def shape(self, value: Value) -> tuple[int, ...]:
        sizes = tuple(map(self.number, shape_of(value)))
        if sizes and min(sizes) < 0:
            raise ExecutionError(f"a dimension of negative size: {value.type} is {sizes}")
        return sizes

    def bytes(self, value: Value) -> int:
        return prod(self.shape(value)) * _dtype(value).itemsize


class _ScanPlaces:
    """Where the values of a scan's body are in each iteration."""

    def __init__(
        self, planner: _Planner, task: ScanTask, operands: list[Place], results: list[Place], length: int
    ) -> None:
        self.task, self.operands, self.results, self.length = task, operands, results, length
        self.inside, self.pairs = planner.scans[id(task)]
        carries, sequences = task.primitive.carries, task.primitive.sequences
        inputs, outputs = task.program.inputs, task.program.outputs
        self.carried = inputs[:carries]
        self.sliced = [(v, p, planner.bytes(v)) for v, p in zip(inputs[carries:], operands[carries:][:sequences])]
        self.captured = dict(zip(inputs[carries + sequences :], operands[carries + sequences :]))
        self.stacked = [(v, p, planner.bytes(v)) for v, p in zip(outputs[carries:], results[carries:])]

    def at(self, step: int) -> dict[Value, Place]:
        places = {**self.inside, **self.captured}
        places.update(zip(self.carried, self.carries_before(step)))
        for value, start, size in self.sliced:
            places[value] = Place(start.region, start.offset + step * size)
        places.update(self.made_in(step))
        return places

    def made_in(self, step: int) -> dict[Value, Place]:
        outputs = self.task.program.outputs[: len(self.carried)]
        if step == self.length - 1:
            places = dict(zip(outputs, self.results))
        else:
            places = {value: pair[step % 2] for value, pair in zip(outputs, self.pairs)}
        for value, start, size in self.stacked:
            places[value] = Place(start.region, start.offset + step * size)
        return places

    def carries_before(self, step: int) -> list[Place]:
        if step == 0:
            return self.operands[: len(self.carried)]
        made = self.made_in(step - 1)
        return [made[value] for value in self.task.program.outputs[: len(self.carried)]]


def _repeat(
    first: list[PlannedLaunch | Repeated], second: list[PlannedLaunch | Repeated], count: int
) -> Repeated | None:
    """`first` and what follows from `second` being next; None where scans inside make them uneven."""
    shifts = []
    launches = []
    for one, other in zip(first, second, strict=True):
        if isinstance(one, Repeated) or isinstance(other, Repeated):
            return None
        launches.append(one)
        shifts.append(tuple(b.offset - a.offset for a, b in zip(one.buffers, other.buffers)))
    return Repeated(tuple(launches), tuple(shifts), count)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _dtype(value: Value) -> np.dtype[Any]:
    assert isinstance(value.type, TensorType)
    return value.type.dtype.numpy


def _root(value: Value, aliases: Mapping[Value, Value]) -> Value:
    while value in aliases:
        value = aliases[value]
    return value
