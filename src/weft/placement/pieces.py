"""A program cut into pieces: each a program of its own, whose inputs come from outside and whose outputs others need.

The guards are all pieces': what is planned for one, and what it does once its host steps have found a size, holds for
sizes that the whole is for. Sizes that a piece finds, where another needs them and no output shows them, are put into
one output more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import Dims, Observe, Step, TensorProgram, Value
from weft.ir.types import TensorType
from weft.ir.verify import verify
from weft.passes.drop import bound_symbols, guard_symbols, step_symbols, type_symbols
from weft.records import dataclass

SIZES = "sizes"  # the origin of a step that only tells sizes


@dataclass(frozen=True, slots=True, eq=False)
class ProgramPiece:
    """A part of a program for one device, and the numbers of the pieces that it needs something of.

    Its last output holds the sizes `shown`, where there are any.
    """

    device: str
    program: TensorProgram
    after: tuple[int, ...] = ()
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceSteps:
    """Steps for one device, before they are a program."""

    device: str
    steps: tuple[Step, ...]


def cut(program: TensorProgram, parts: Sequence[DeviceSteps]) -> tuple[ProgramPiece, ...]:
    """The parts as programs. They hold every step once, each in the program's order, and stand in an order that the
    data allows.
    """
    finders = size_finders(program)
    owners = _owners(parts, finders)
    mentioned = [set().union(*map(step_symbols, part.steps)) if owners else set() for part in parts]
    wanted = _wanted_sizes(program, mentioned, owners)
    readers = _outer_readers(program, parts)
    makers = {value: number for number, part in enumerate(parts) for step in part.steps for value in step.results}
    numbers = count(_highest(program) + 1)
    pieces = []
    for number, part in enumerate(parts):
        made = dict.fromkeys(value for step in part.steps for value in step.results)
        read = dict.fromkeys(value for step in part.steps for value in step.operands if value not in made)
        outputs = [value for value in made if readers.get(value, set()) - {number}]
        seen = {str(dim) for value in outputs for dim in _shape(value) if dims.as_symbol(dim) is not None}
        shown = tuple(sorted(name for name in wanted if owners[name] == number and name not in seen))
        steps = part.steps
        if shown:
            told = Value(next(numbers), TensorType(DType.int64, (len(shown),)), SIZES)
            steps = (*steps, Step(Dims(tuple(finders[name].dim for name in shown)), (), (told,), SIZES))
            outputs.append(told)
        piece = TensorProgram(
            tuple(value for value in read if value not in program.constants),
            tuple(outputs),
            steps,
            {value: program.constants[value] for value in read if value in program.constants},
            program.guards,
        )
        verify(piece)
        before = {makers[value] for value in read if value in makers}
        before |= {owners[name] for name in mentioned[number] if name in owners}
        pieces.append(ProgramPiece(part.device, piece, tuple(sorted(before - {number})), shown))
    return tuple(pieces)


# -- sizes that host steps find --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SizeFinder:
    """A size that is known once a step has run: the first that shows it, and the size itself."""

    step: Step
    dim: Dim


def size_finders(program: TensorProgram) -> dict[str, SizeFinder]:
    """The sizes that no input shows, by name."""
    given = set().union(*(type_symbols(value.type) for value in program.inputs))
    found: dict[str, SizeFinder] = {}
    for step in program.steps:
        for name in bound_symbols(step) - given - found.keys():
            dim = next(dim for dim in _shown_dims(step) if str(dim) == name)
            found[name] = SizeFinder(step, dim)
    return found


def _shown_dims(step: Step) -> Iterator[Dim]:
    if isinstance(step.primitive, Observe):
        yield from step.primitive.symbols
    for value in step.results:
        yield from _shape(value)


def _owners(parts: Sequence[DeviceSteps], finders: Mapping[str, SizeFinder]) -> dict[str, int]:
    """Which part finds each size."""
    where = {id(step): number for number, part in enumerate(parts) for step in part.steps}
    return {name: where[id(finder.step)] for name, finder in finders.items()}


def _wanted_sizes(program: TensorProgram, mentioned: Sequence[set[str]], owners: Mapping[str, int]) -> set[str]:
    """Sizes that are found in one part and needed outside of it; `mentioned` are those that the steps of each name."""
    wanted: set[str] = set()
    for number, names in enumerate(mentioned):
        wanted |= {name for name in names if owners.get(name, number) != number}
    for guard in program.guards:
        found = guard_symbols(guard) & owners.keys()
        wanted |= found if len({owners[name] for name in found}) > 1 else set()
    return wanted


# -- values ----------------------------------------------------------------------------------------------------------


def _outer_readers(program: TensorProgram, parts: Sequence[DeviceSteps]) -> dict[Value, set[int]]:
    """The parts that read each value; -1 stands for the world outside."""
    readers: dict[Value, set[int]] = {}
    for number, part in enumerate(parts):
        for step in part.steps:
            for value in step.operands:
                readers.setdefault(value, set()).add(number)
    for value in program.outputs:
        readers.setdefault(value, set()).add(-1)
    return readers


def _shape(value: Value) -> tuple[Dim, ...]:
    return (value.type.shape or ()) if isinstance(value.type, TensorType) else ()


def _highest(program: TensorProgram) -> int:
    values = [*program.inputs, *program.constants, *(value for step in program.steps for value in step.results)]
    return max((value.number for value in values), default=0)
