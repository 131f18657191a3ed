"""How long a run takes on a device, about: the groups of a program, put through what the device was measured to do.

In: a fused program. `workload` makes of it what counts: for every group its kind, type, operations and bytes as dims,
so that one workload serves all sizes. Out, for given sizes and a calibration: a `Prediction`, and where its seconds go.
It reads no device's name; what only the host can do there is a host group of the fused program already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from weft.cost.calibration import Amount, Calibration, Seconds, WorkKind, transfer_seconds, work_seconds
from weft.cost.effort import UnknownShapeError, bytes_moved, elements, step_flops
from weft.cost.expressions import cost
from weft.cost.programs import program_cost
from weft.cost.sizes import UNKNOWN_SIZE
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
from weft.ir.types import Shape, TensorType
from weft.records import dataclass

UNKNOWN_TRIPS = 8  # of a loop whose end only the run reveals
STEPS_OF_A_GROUP = 3  # about
SORT_OPERATIONS = 64  # of an element that is sorted
LIGHT_LAUNCHES = 1.5  # what a group costs beside its work, in the time of the shortest launches: copies, waiting
HEAVY_LAUNCHES = 5  # and what a product costs: partial sums, too
ITERATED_LAUNCHES = 1.6  # and a group in a scan: carries are copied
LAUNCHES = {  # of kinds that need more
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
    """One group's work for any sizes; done `times` times, each of them in a scan's body if it is `iterated`."""

    kind: WorkKind
    dtype: DType
    flops: Dim
    bytes: Dim
    weights: int = 0  # those of the bytes that are constants
    launches: float = LIGHT_LAUNCHES
    serial: Dim = 0  # operations that a lane does one after the other
    times: Dim = 1
    iterated: bool = False
    origin: str = ""

    def amount(self, sizes: Mapping[str, int], *, cached: bool = True) -> Amount:
        """The work at given sizes, once; `cached`: whether weights can be in a cache."""
        flops, moved, serial = (float(number_at(dim, sizes)) for dim in (self.flops, self.bytes, self.serial))
        far = 0.0 if cached else min(float(self.weights), moved)
        return Amount(self.kind, self.dtype, flops, moved, self.launches, far, serial)


@dataclass(frozen=True, slots=True)
class Interruption:
    """Steps on the host, done `times` times: what they read comes there first, what they make goes back."""

    down: tuple[Dim, ...]  # bytes of each value
    up: tuple[Dim, ...]
    times: Dim = 1
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run has to do on a device. `up` and `down` are the bytes of the program's inputs and outputs."""

    portions: tuple[Portion, ...]
    interruptions: tuple[Interruption, ...]
    weights: int  # bytes of all constants
    up: tuple[Dim, ...]
    down: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a run takes on a device, about, and on what."""

    device: str
    seconds: float
    parts: Seconds


Known = dict[int, "Portion | None"]  # by the id of a group


def workload(fused: FusedProgram, known: Known | None = None) -> Workload:
    """What counts of a program's groups; `known` takes in what is found, for other programs with the same groups."""
    portions, interruptions = _inside(fused, {} if known is None else known)
    program = fused.program
    weights = sum(portion.weights for portion in portions)
    return Workload(portions, interruptions, weights, _sizes(program.inputs), _sizes(program.outputs))


def predict(work: Workload, sizes: Mapping[str, int], calibration: Calibration, kept: Sequence[int] = ()) -> Prediction:
    """How long a run with these sizes takes; outputs whose numbers are `kept` stay on the device."""
    total = Seconds(launches=calibration.run_seconds)
    cached = work.weights <= calibration.peak.cache_bytes
    for portion in work.portions:
        amount = portion.amount(sizes, cached=cached or portion.iterated)
        once = work_seconds(amount, calibration, iterated=portion.iterated)
        total = total + once * number_at(portion.times, sizes)
    for interruption in work.interruptions:
        moved = _moved(interruption.up, interruption.down, sizes, calibration)
        once = Seconds(host=calibration.host_step_seconds, transfers=moved)
        total = total + once * number_at(interruption.times, sizes)
    down = [bytes for number, bytes in enumerate(work.down) if number not in kept]
    total = total + Seconds(transfers=_moved(work.up, down, sizes, calibration))
    return Prediction(calibration.device, total.total, total)


def likely_quickest(program: TensorProgram, sizes: Mapping[str, int], calibrations: Mapping[str, Calibration]) -> str:
    """The device that is likely to be the quickest, before anything is fused: whom to fuse for first."""
    flops = number_at(program_cost(program).flops, sizes)
    groups = len(program.steps) / STEPS_OF_A_GROUP
    each = Amount(WorkKind.PRODUCT, DType.float32, flops / max(groups, 1), 0.0)

    def seconds(device: str) -> float:
        found = calibrations[device]
        moved = _moved(_sizes(program.inputs), _sizes(program.outputs), sizes, found)
        return found.run_seconds + moved + groups * work_seconds(each, found).total

    return min(calibrations, key=seconds)


def number_at(dim: Dim, sizes: Mapping[str, int]) -> int:
    """A dim at given sizes; what these do not tell is guessed."""
    if isinstance(dim, int):
        return dim
    missing = {symbol.name: _guess(symbol) for symbol in dims.symbols(dim) if symbol.name not in sizes}
    try:
        return max(dims.evaluate(dim, {**sizes, **missing} if missing else sizes), 0)
    except ArithmeticError:  # a quotient of sizes that do not go together
        return 0


def portion(group: KernelGroup, fused: FusedProgram) -> Portion | None:
    """What counts of one group for kernels; None where there is nothing to do."""
    if isinstance(group, ReshapeGroup):
        return None
    heavy = _heavy(group)
    kind = _kind(group, heavy)
    constants = [fused.program.constants[value] for value in group.operands if value in fused.program.constants]
    weights = sum(content.nbytes for content in constants if isinstance(content, np.ndarray))
    try:
        flops: Dim = 0
        for step in group.steps:
            flops = flops + _operations(step)
        moved = bytes_moved(group.steps, group.operands, group.results)
    except UnknownShapeError:
        flops, moved = 0, 0
    launches = LAUNCHES.get(kind, LIGHT_LAUNCHES)
    return Portion(
        kind, _dtype(heavy), flops, moved, weights, launches, _serial(group, fused, flops), origin=heavy.origin
    )


# -- groups ----------------------------------------------------------------------------------------------------------


def _inside(fused: FusedProgram, known: Known) -> tuple[tuple[Portion, ...], tuple[Interruption, ...]]:
    portions: list[Portion] = []
    interruptions: list[Interruption] = []
    for group in fused.groups:
        match group:
            case ScanGroup():
                portions += _scanned(group, known)
            case HostGroup():
                inner = _on_host(group, known)
                portions += inner[0]
                interruptions += inner[1]
            case _:
                if id(group) not in known:
                    known[id(group)] = portion(group, fused)
                found = known[id(group)]
                if found is not None and isinstance(group, HeavyGroup) and group.heavy.results[0] in fused.tiles:
                    found = replace(found, kind=WorkKind.TRANSFORMED)
                portions += [found] if found is not None else []
    return tuple(portions), tuple(interruptions)


def _scanned(group: ScanGroup, known: Known) -> Iterator[Portion]:
    primitive = group.steps[0].primitive
    assert isinstance(primitive, Scan)
    for inner in _inside(group.body, known)[0]:
        yield replace(inner, times=inner.times * primitive.length, launches=ITERATED_LAUNCHES, iterated=True)


def _on_host(group: HostGroup, known: Known) -> tuple[list[Portion], list[Interruption]]:
    """The interruption, and what is done inside of it: of a branch, the longer side."""
    portions: list[Portion] = []
    down, up = _sizes(group.operands), _sizes(group.results)
    interruptions = [Interruption(down, up, 1, group.steps[0].origin)]
    bodies = iter(group.bodies)
    for step in group.steps:
        match step.primitive:
            case Branch():
                sides = [_inside(next(bodies), known) for _ in range(2)]
                inner, times = max(sides, key=lambda side: len(side[0])), 1
            case Loop():
                inner, times = _inside(next(bodies), known), UNKNOWN_TRIPS
            case Scan(_, _, _, length):
                inner, times = _inside(next(bodies), known), length  # type: ignore[assignment]
            case _:
                continue
        portions += [replace(found, times=found.times * times) for found in inner[0]]
        interruptions += [replace(found, times=found.times * times) for found in inner[1]]
        interruptions += [Interruption((), (), times, step.origin)] if portions else []
    return portions, interruptions


def _heavy(group: KernelGroup) -> Step:
    if isinstance(group, (HeavyGroup, ReduceGroup)):
        return group.heavy
    products = [step for step in group.steps if isinstance(step.primitive, Contract)]
    return products[0] if products else group.steps[-1]


def _kind(group: KernelGroup, heavy: Step) -> WorkKind:
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


def _serial(group: KernelGroup, fused: FusedProgram, flops: Dim) -> Dim:
    """How many operations a lane does for a row of its own, where neighbours in memory are of other rows."""
    for step in group.steps:
        match step.primitive:
            case Reduce(_, axes):
                reduced = axes
            case ArgReduce(_, axis):
                reduced = (axis,)
            case _:
                continue
        shape = _shape(step.operands[0])
        if shape is None or _innermost(shape, group, fused) in reduced:
            continue
        rows = dims.product(size for axis, size in enumerate(shape) if axis not in reduced)
        return dims.floordiv(flops, rows) if rows != 0 else 0
    return 0


def _innermost(shape: Shape, group: KernelGroup, fused: FusedProgram) -> int:
    """The axis of a shape along which what the group reads of it has its neighbours in memory."""
    for value in group.operands:
        layout, own = fused.layouts.get(value), _shape(value)
        if layout is not None and own is not None and own[: len(shape)] == shape:
            return next((axis for axis in reversed(layout.order) if own[axis] != 1), 0)
    return len(shape) - 1


def _shape(value: Value) -> Shape | None:
    return value.type.shape if isinstance(value.type, TensorType) else None


def _is_depthwise(step: Step) -> bool:
    filters = step.operands[1].type
    assert isinstance(step.primitive, Convolve)
    assert isinstance(filters, TensorType)
    return step.primitive.groups != 1 and filters.shape is not None and filters.shape[1] == 1


def _dtype(step: Step) -> DType:
    """The type in which a step computes: of bytes that are multiplied, theirs."""
    types = [value.type for value in (step.operands[:1] or step.results[:1])]
    dtype = types[0].dtype if types and isinstance(types[0], TensorType) else DType.float32
    return DType.int8 if dtype is DType.uint8 else dtype


def _operations(step: Step) -> Dim:
    """Operations of a step, functions of maps weighed by their instructions."""
    match step.primitive:
        case Map(expression):
            return max(cost(expression), 1) * elements(step.results[0])
        case Sort():
            return SORT_OPERATIONS * elements(step.operands[0])
        case _:
            return step_flops(step)


# -- bytes -----------------------------------------------------------------------------------------------------------


def _sizes(values: Iterable[Value]) -> tuple[Dim, ...]:
    """Bytes of each; of what has no known shape, none."""
    return tuple(_bytes(value) for value in values)


def _bytes(value: Value) -> Dim:
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return 0
    return value.type.dtype.numpy.itemsize * dims.product(value.type.shape)


def _moved(up: Sequence[Dim], down: Sequence[Dim], sizes: Mapping[str, int], calibration: Calibration) -> float:
    """Seconds of transfers, one for each tensor."""
    there = sum(transfer_seconds(number_at(bytes, sizes), calibration, "up") for bytes in up)
    return there + sum(transfer_seconds(number_at(bytes, sizes), calibration, "down") for bytes in down)


def _guess(symbol: dims.Symbol) -> int:
    at_least = max(UNKNOWN_SIZE, symbol.low or 0)
    return at_least if symbol.high is None else min(at_least, symbol.high)
