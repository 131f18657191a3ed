"""What is placed: the groups of a program, with what each would cost on each device and what passes between them.

A unit is what fusion joins for the first device: no piece ends inside of one. Its costs are those of its group as
each device would run it: by kernels, as a scan, or on the host, which then includes the way there and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.cost.calibration import Calibration
from weft.cost.effort import UnknownShapeError, effort
from weft.cost.prediction import Known, Workload, number_at, predict, workload
from weft.fuse import adapted, join_steps
from weft.fuse.grouping import single_group
from weft.fuse.host import host_by_nature, host_group
from weft.ir import dims
from weft.ir.groups import FusedProgram, Group, HostGroup
from weft.ir.program import TensorProgram, Value
from weft.ir.target import Target
from weft.ir.types import TensorType
from weft.passes.drop import step_symbols
from weft.placement.pieces import size_finders
from weft.records import dataclass

HOME = 0  # the candidate on which tensors are kept, and by whose rules steps are joined
NUMPY_BYTES = 1e9  # a second, that a step which no kernel does is taken to read and write on the host
NUMPY_FLOPS = 1e9


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that parts of a program could run on: its name, what kernels for it are built for, what it costs."""

    name: str
    target: Target
    calibration: Calibration
    has_memory: bool  # of its own, so that values have to be brought there


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A group: the units that it needs something of, its seconds on each candidate, and on which ones kernels lack."""

    group: Group
    before: frozenset[int]
    seconds: tuple[float, ...]
    lacking: tuple[str | None, ...]  # why a candidate has no kernel for it, though it is no work for the host


@dataclass(frozen=True, slots=True)
class Passing:
    """A value that units read: who makes it (None: the caller), who reads it, whether the caller does, its bytes."""

    value: Value
    maker: int | None
    readers: tuple[int, ...]
    is_output: bool
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """All that a placement is decided by. Units stand in an order that the data allows."""

    source: TensorProgram
    program: TensorProgram  # with maps joined
    candidates: tuple[Candidate, ...]
    units: tuple[Unit, ...]
    passing: tuple[Passing, ...]


def problem(program: TensorProgram, candidates: Sequence[Candidate], sizes: Mapping[str, int]) -> Problem:
    """The units of a program and their costs at given sizes; the first candidate is the program's home."""
    fewest = min(candidate.target.most_buffers for candidate in candidates)
    joined = join_steps(program, replace(candidates[HOME].target, most_buffers=fewest))
    joined = _without_lacking_parts(joined, candidates)
    there = [adapted(joined, candidate.target) for candidate in candidates]
    return replace(problem_of(there, candidates, sizes, {}), source=program)


def problem_of(
    there: Sequence[FusedProgram], candidates: Sequence[Candidate], sizes: Mapping[str, int], known: Known
) -> Problem:
    """The same from one program's groups as each of the candidates would do them, one by one the same steps."""
    joined = there[HOME]
    weights = [workload(fused, known).weights for fused in there]
    makers = {value: number for number, group in enumerate(joined.groups) for value in group.results}
    before = _needed(joined, makers)
    units = []
    for number, group in enumerate(joined.groups):
        seconds = tuple(
            _seconds(workload(replace(fused, groups=(fused.groups[number],)), known), total, one.calibration, sizes)
            + _interpreted_seconds(fused.groups[number], sizes)
            for fused, total, one in zip(there, weights, candidates)
        )
        lacking = tuple(_lacking(fused.groups[number]) for fused in there)
        units.append(Unit(group, before[number], seconds, lacking))
    return Problem(joined.program, joined.program, tuple(candidates), tuple(units), _passing(joined, makers, sizes))


def _without_lacking_parts(joined: FusedProgram, candidates: Sequence[Candidate]) -> FusedProgram:
    """Groups that a candidate has no kernels for as single steps: it may have some for most of them."""
    groups: list[Group] = []
    for group in joined.groups:
        lacks = len(group.steps) > 1 and any(host_group(group, one.target) is not None for one in candidates)
        groups += map(single_group, group.steps) if lacks else (group,)
    return replace(joined, groups=tuple(groups))


def _needed(joined: FusedProgram, makers: Mapping[Value, int]) -> list[frozenset[int]]:
    """For each group, those that make what it reads, or find a size that it mentions."""
    where = {id(step): number for number, group in enumerate(joined.groups) for step in group.steps}
    finders = {name: where[id(finder.step)] for name, finder in size_finders(joined.program).items()}
    needed = []
    for number, group in enumerate(joined.groups):
        found = {makers[value] for value in group.operands if value in makers}
        if finders:
            found |= {finders[name] for step in group.steps for name in step_symbols(step) if name in finders}
        needed.append(frozenset(found - {number}))
    return needed


def _passing(joined: FusedProgram, makers: Mapping[Value, int], sizes: Mapping[str, int]) -> tuple[Passing, ...]:
    program = joined.program
    readers: dict[Value, dict[int, None]] = {value: {} for value in program.outputs}
    for number, group in enumerate(joined.groups):
        for value in group.operands:
            if makers.get(value) != number:
                readers.setdefault(value, {})[number] = None
    return tuple(
        Passing(value, makers.get(value), tuple(found), value in program.outputs, value_bytes(value, sizes))
        for value, found in readers.items()
        if value not in program.constants
    )


def value_bytes(value: Value, sizes: Mapping[str, int]) -> int:
    """Bytes of a tensor at given sizes; of what has no known shape, none."""
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return 0
    return value.type.dtype.numpy.itemsize * number_at(dims.product(value.type.shape), sizes)


# -- costs -----------------------------------------------------------------------------------------------------------


def _seconds(work: Workload, weights: int, calibration: Calibration, sizes: Mapping[str, int]) -> float:
    """How long a device takes for one group's work, which is a part of a run that reads so many bytes of weights."""
    alone = replace(work, weights=weights, up=(), down=())
    return predict(alone, sizes, calibration).seconds - calibration.run_seconds


def _lacking(group: Group) -> str | None:
    """Why kernels for a group are missing, if they are and the group is not the host's by its nature."""
    if not isinstance(group, HostGroup) or any(host_by_nature(step) is not None for step in group.steps):
        return None
    return group.reason


def _interpreted_seconds(group: Group, sizes: Mapping[str, int]) -> float:
    """How long numpy takes for what should be a kernel's work, where kernels are missing."""
    if _lacking(group) is None:
        return 0.0
    try:
        work = effort(group.steps, group.operands, group.results)
    except UnknownShapeError:
        return 0.0
    return number_at(work.flops, sizes) / NUMPY_FLOPS + number_at(work.bytes, sizes) / NUMPY_BYTES
