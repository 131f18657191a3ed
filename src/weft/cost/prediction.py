"""Predict the time of a run on a device from the groups of a program and the device's calibration.

`build_workload` extracts the kind, type, operations and bytes of every group of a fused program, as dims, so that one
workload serves all sizes. `predict` evaluates it for given sizes and a calibration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from weft.cost.calibration import Amount, Calibration, Seconds, WorkKind, transfer_seconds, work_seconds
from weft.cost.effort import UnknownShapeError, count_bytes_moved, count_elements, count_step_flops
from weft.cost.expressions import cost
from weft.cost.programs import program_cost
from weft.cost.sizes import guess_size
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.groups import (
    AttentionGroup,
    FusedProgram,
    HeavyGroup,
    HostGroup,
    KernelGroup,
    ReduceGroup,
    ReshapeGroup,
    RowGroup,
    ScanGroup,
)
from weft.ir.program import (
    ArgReduce,
    Branch,
    Contract,
    Convolve,
    Cumulate,
    Loop,
    Map,
    Pool,
    Reduce,
    Scan,
    Scatter,
    Sort,
    Step,
    TensorProgram,
    Value,
)
from weft.ir.types import Shape
from weft.records import dataclass

UNKNOWN_TRIPS = 8  # the guess for a loop without a known count
STEPS_PER_GROUP = 3  # on average
SORT_OPERATIONS = 64  # per sorted element
LIGHT_LAUNCHES = 1.5  # overhead of a group in launches, for copies and waiting
HEAVY_LAUNCHES = 5  # the same for a product, which also adds partial sums
ITERATED_LAUNCHES = 1.6  # the same for a group in a scan, which also copies carries
LAUNCHES = {  # the same for kinds that need more
    WorkKind.PRODUCT: HEAVY_LAUNCHES,
    WorkKind.CONVOLUTION: HEAVY_LAUNCHES,
    WorkKind.TRANSFORMED: HEAVY_LAUNCHES,
    WorkKind.ATTENTION: HEAVY_LAUNCHES,
    WorkKind.SCATTER: 2,
    WorkKind.CUMULATE: 3,
    WorkKind.SORT: 8,
}


@dataclass(frozen=True, slots=True)
class Portion:
    """One group's work as dims, done `times` times; `iterated` says that it is in a scan's body."""

    kind: WorkKind
    dtype: DType
    flops: Dim
    bytes: Dim
    weights: int = 0  # the bytes that are constants
    launches: float = LIGHT_LAUNCHES
    serial: Dim = 0  # operations that a lane does sequentially
    times: Dim = 1
    iterated: bool = False
    origin: str = ""

    def amount(self, sizes: Mapping[str, int], *, cached: bool = True) -> Amount:
        """Evaluate the work for given sizes; `cached` says whether weights fit in the cache."""
        flops, moved, serial = (float(evaluate_at(dim, sizes)) for dim in (self.flops, self.bytes, self.serial))
        far = 0.0 if cached else min(float(self.weights), moved)
        return Amount(self.kind, self.dtype, flops, moved, self.launches, far, serial)


@dataclass(frozen=True, slots=True)
class Interruption:
    """Host steps, done `times` times, with the transfers of their operands and results."""

    down: tuple[Dim, ...]  # bytes of each value
    up: tuple[Dim, ...]
    times: Dim = 1
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """The work of a run on a device; `up` and `down` are the bytes of the program's inputs and outputs."""

    portions: tuple[Portion, ...]
    interruptions: tuple[Interruption, ...]
    weights: int  # bytes of all constants
    up: tuple[Dim, ...]
    down: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The estimated time of a run on a device, in total and by cause."""

    device: str
    seconds: float
    parts: Seconds


PortionCache = dict[int, "Portion | None"]  # by the id of a group


def build_workload(fused: FusedProgram, cache: PortionCache | None = None) -> Workload:
    """Extract the work of a program's groups; `cache` keeps it for other programs with the same groups."""
    portions, interruptions = _collect(fused, {} if cache is None else cache)
    program = fused.program
    weights = sum(portion.weights for portion in portions)
    return Workload(portions, interruptions, weights, _value_bytes(program.inputs), _value_bytes(program.outputs))


def predict(
    work: Workload, sizes: Mapping[str, int], calibration: Calibration, kept_outputs: Sequence[int] = ()
) -> Prediction:
    """Predict the time of a run with these sizes; `kept_outputs`, by index, stay on the device."""
    total = Seconds(launches=calibration.run_seconds)
    cached = work.weights <= calibration.peak.cache_bytes
    for portion in work.portions:
        amount = portion.amount(sizes, cached=cached or portion.iterated)
        once = work_seconds(amount, calibration, iterated=portion.iterated)
        total = total + once * evaluate_at(portion.times, sizes)
    for interruption in work.interruptions:
        moved = _transfer_time(interruption.up, interruption.down, sizes, calibration)
        once = Seconds(host=calibration.host_step_seconds, transfers=moved)
        total = total + once * evaluate_at(interruption.times, sizes)
    down = [bytes for number, bytes in enumerate(work.down) if number not in kept_outputs]
    total = total + Seconds(transfers=_transfer_time(work.up, down, sizes, calibration))
    return Prediction(calibration.device, total.total, total)


def guess_fastest(program: TensorProgram, sizes: Mapping[str, int], calibrations: Mapping[str, Calibration]) -> str:
    """Guess the fastest device before fusion, to decide which one to fuse for first."""
    flops = evaluate_at(program_cost(program).flops, sizes)
    groups = len(program.steps) / STEPS_PER_GROUP
    average = Amount(WorkKind.PRODUCT, DType.float32, flops / max(groups, 1), 0.0)

    def seconds(device: str) -> float:
        calibration = calibrations[device]
        moved = _transfer_time(_value_bytes(program.inputs), _value_bytes(program.outputs), sizes, calibration)
        return calibration.run_seconds + moved + groups * work_seconds(average, calibration).total

    return min(calibrations, key=seconds)


def evaluate_at(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Evaluate a dim for given sizes, with guesses for missing ones."""
    if isinstance(dim, int):
        return dim
    missing = {symbol.name: guess_size(symbol) for symbol in dims.symbols(dim) if symbol.name not in sizes}
    try:
        return max(dims.evaluate(dim, {**sizes, **missing} if missing else sizes), 0)
    except ArithmeticError:  # inconsistent sizes, such as a division by 0
        return 0


def build_portion(group: KernelGroup, fused: FusedProgram) -> Portion | None:
    """Extract the work of one group; None for a reshape, which does nothing."""
    if isinstance(group, ReshapeGroup):
        return None
    heavy = _heavy_step(group)
    kind = _work_kind(group, heavy)
    constants = [fused.program.constants[value] for value in group.operands if value in fused.program.constants]
    weights = sum(content.nbytes for content in constants if isinstance(content, np.ndarray))
    try:
        flops: Dim = 0
        for step in group.steps:
            flops = flops + _weighted_operations(step)
        moved = count_bytes_moved(group.steps, group.operands, group.results)
    except UnknownShapeError:
        flops, moved = 0, 0
    launches = LAUNCHES.get(kind, LIGHT_LAUNCHES)
    return Portion(
        kind,
        _computation_dtype(heavy),
        flops,
        moved,
        weights,
        launches,
        _serial_operations(group, fused, flops),
        origin=heavy.origin,
    )


# -- groups ----------------------------------------------------------------------------------------------------------


def _collect(fused: FusedProgram, cache: PortionCache) -> tuple[tuple[Portion, ...], tuple[Interruption, ...]]:
    portions: list[Portion] = []
    interruptions: list[Interruption] = []
    for group in fused.groups:
        match group:
            case ScanGroup():
                portions += _collect_scan(group, cache)
            case HostGroup():
                inner = _collect_host(group, cache)
                portions += inner[0]
                interruptions += inner[1]
            case _:
                if id(group) not in cache:
                    cache[id(group)] = build_portion(group, fused)
                work = cache[id(group)]
                if work is not None and isinstance(group, HeavyGroup) and group.heavy.results[0] in fused.tiles:
                    work = replace(work, kind=WorkKind.TRANSFORMED)
                portions += [work] if work is not None else []
    return tuple(portions), tuple(interruptions)


def _collect_scan(group: ScanGroup, cache: PortionCache) -> Iterator[Portion]:
    primitive = group.steps[0].primitive
    assert isinstance(primitive, Scan)
    for inner in _collect(group.body, cache)[0]:
        yield replace(inner, times=inner.times * primitive.length, launches=ITERATED_LAUNCHES, iterated=True)


def _collect_host(group: HostGroup, cache: PortionCache) -> tuple[list[Portion], list[Interruption]]:
    """Return the work and interruptions of a host group; for a branch, those of the longer side."""
    portions: list[Portion] = []
    down, up = _value_bytes(group.operands), _value_bytes(group.results)
    interruptions = [Interruption(down, up, 1, group.steps[0].origin)]
    bodies = iter(group.bodies)
    times: Dim
    for step in group.steps:
        match step.primitive:
            case Branch():
                sides = [_collect(next(bodies), cache) for _ in range(2)]
                inner, times = max(sides, key=lambda side: len(side[0])), 1
            case Loop():
                inner, times = _collect(next(bodies), cache), UNKNOWN_TRIPS
            case Scan(_, _, _, length):
                inner, times = _collect(next(bodies), cache), length
            case _:
                continue
        portions += [replace(portion, times=portion.times * times) for portion in inner[0]]
        interruptions += [replace(interruption, times=interruption.times * times) for interruption in inner[1]]
        interruptions += [Interruption((), (), times, step.origin)] if portions else []
    return portions, interruptions


def _heavy_step(group: KernelGroup) -> Step:
    if isinstance(group, (HeavyGroup, ReduceGroup)):
        return group.heavy
    products = [step for step in group.steps if isinstance(step.primitive, Contract)]
    return products[0] if products else group.steps[-1]


def _work_kind(group: KernelGroup, heavy: Step) -> WorkKind:
    match group, heavy.primitive:
        case AttentionGroup(), _:
            return WorkKind.ATTENTION
        case RowGroup(), _:
            return WorkKind.ROWS
        case ReduceGroup(), _:
            return WorkKind.REDUCE
        case _, Contract():
            return WorkKind.PRODUCT
        case _, Convolve():
            return WorkKind.DEPTHWISE if _is_depthwise(heavy) else WorkKind.CONVOLUTION
        case _, Pool():
            return WorkKind.POOL
        case _, Cumulate():
            return WorkKind.CUMULATE
        case _, Sort():
            return WorkKind.SORT
        case _, Scatter():
            return WorkKind.SCATTER
    return WorkKind.MAP


def _serial_operations(group: KernelGroup, fused: FusedProgram, flops: Dim) -> Dim:
    """Return the sequential operations per row of a reduction that is not along the contiguous axis."""
    for step in group.steps:
        match step.primitive:
            case Reduce(_, axes):
                reduced = axes
            case ArgReduce(_, axis):
                reduced = (axis,)
            case _:
                continue
        shape = step.operands[0].known_shape
        if shape is None or _contiguous_axis(shape, group, fused) in reduced:
            continue
        rows = dims.product(size for axis, size in enumerate(shape) if axis not in reduced)
        return dims.floordiv(flops, rows) if rows != 0 else 0
    return 0


def _contiguous_axis(shape: Shape, group: KernelGroup, fused: FusedProgram) -> int:
    """Return the contiguous axis of the operand with this shape."""
    for value in group.operands:
        layout, value_shape = fused.layouts.get(value), value.known_shape
        if layout is not None and value_shape is not None and value_shape[: len(shape)] == shape:
            return next((axis for axis in reversed(layout.order) if value_shape[axis] != 1), 0)
    return len(shape) - 1


def _is_depthwise(step: Step) -> bool:
    assert isinstance(step.primitive, Convolve)
    return step.primitive.groups != 1 and step.operands[1].shape[1] == 1


def _computation_dtype(step: Step) -> DType:
    """Return the type in which a step computes; int8 for products of bytes."""
    values = step.operands[:1] or step.results[:1]
    dtype = values[0].dtype if values and values[0].is_tensor else DType.float32
    return DType.int8 if dtype is DType.uint8 else dtype


def _weighted_operations(step: Step) -> Dim:
    """Count the operations of a step, with functions of maps weighted by their instructions."""
    match step.primitive:
        case Map(expression):
            return max(cost(expression), 1) * count_elements(step.results[0])
        case Sort():
            return SORT_OPERATIONS * count_elements(step.operands[0])
        case _:
            return count_step_flops(step)


# -- bytes -----------------------------------------------------------------------------------------------------------


def _value_bytes(values: Iterable[Value]) -> tuple[Dim, ...]:
    """Return the bytes of each value, 0 if its shape is unknown."""
    return tuple(value.nbytes if value.has_shape else 0 for value in values)


def _transfer_time(up: Sequence[Dim], down: Sequence[Dim], sizes: Mapping[str, int], calibration: Calibration) -> float:
    """Estimate the time of transfers, one per tensor."""
    there = sum(transfer_seconds(evaluate_at(bytes, sizes), calibration, "up") for bytes in up)
    return there + sum(transfer_seconds(evaluate_at(bytes, sizes), calibration, "down") for bytes in down)
