"""Tiles chosen by measurement: the products of a program, each in the ways that promise to be quick, timed on a device.

In: the groups of a program for a device whose threads gain by sharing, and so many seconds. Out: a `Tuning`, what was
timed, with the `Choices` for the device's target. Each way is compiled as a program of its one group, takes the path
that models take, and runs on random data; what most of the time goes into, as the cost model sees it, comes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, Union

import numpy as np

from weft.backends.device import NO_SIZES, CompilingDriver, Driver, TunableDriver
from weft.cache.tuning import joined, keep_choices, kept_choices, read_choices
from weft.errors import DeviceError, DeviceLostError, WeftError
from weft.ir import dims
from weft.ir.compiled import CompiledProgram
from weft.ir.groups import FusedProgram, HeavyGroup, ScanGroup
from weft.ir.program import TensorProgram, Value
from weft.ir.record import NativeRecord
from weft.ir.specs import TensorSpec
from weft.ir.target import Choices, ThreadTarget
from weft.ir.types import TensorType
from weft.kernels.sections import build_sections, group_works
from weft.kernels.threads.product_choice import Asked, asked_products
from weft.logs import COMPILING
from weft.records import dataclass
from weft.runtime.generated_inputs import made_up

MOST_WAYS = 12  # of a product that are timed
PROMISING = 2.0  # times as long as the best is predicted to take, at most
GAIN = 0.02  # by which a way must be quicker than the cost model's own
FEWEST_RUNS, MOST_RUNS = 3, 30
ENOUGH = 1e-2  # seconds that the runs of a way take together

Array = np.ndarray[Any, Any]
TuneOption = Union[str, Path, float, None]
Tell = Callable[[str, float], None]  # hears what is timed, and how far it all is
Timer = Callable[[CompilingDriver, CompiledProgram, Sequence[Array]], float]


@dataclass(frozen=True, slots=True)
class Timed:
    """A product, how often it is computed, the way that the cost model takes, and the best of those that were timed."""

    product: str
    uses: int
    nodes: str
    before: str
    before_seconds: float
    best: str
    best_seconds: float
    ways: int  # that were timed


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was timed; products that were `known` before, and those that are `left` as the time was over."""

    timed: tuple[Timed, ...]
    known: int
    left: int

    @property
    def choices(self) -> Choices:
        return tuple(sorted((one.product, one.best) for one in self.timed))


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A product as it was asked for, in the first group that did so."""

    asked: Asked
    group: HeavyGroup
    fused: FusedProgram
    uses: int = 1

    @property
    def share(self) -> float:
        """Seconds that it is predicted to take in a run."""
        return self.uses * self.asked.ways[0][1]


def tune(
    fused: FusedProgram,
    opened: CompilingDriver,
    precision: str,
    seconds: float,
    *,
    sizes: Mapping[str, int] = NO_SIZES,
    again: bool = False,
    timer: Timer | None = None,
    clock: Callable[[], float] = time.monotonic,
    tell: Tell = lambda *_: None,
) -> Tuning:
    """Time the products of a program until so many seconds are over; DeviceError where a device has no choice.

    `sizes` are those of its dynamic dims; products whose sizes these do not tell are left out.
    `again`: also those that the device's target has choices for.
    """
    target = tunable_target(opened, precision)
    timer = recorded_seconds if timer is None else timer
    began = clock()
    tell("products", 0.0)
    plain = replace(target, tuned=())
    known = dict(target.tuned)
    found = _candidates(fused, plain, sizes)
    wanted = [one for one in found if again or one.asked.product not in known]
    timed: list[Timed] = []
    left = 0
    for one in wanted:

        def is_over() -> bool:
            return clock() - began >= seconds

        if is_over():
            left += 1
            continue
        tell(one.asked.product, min((clock() - began) / seconds, 1.0))
        measured = _best(one, opened, plain, sizes, timer, is_over)
        left += measured is None
        timed += [] if measured is None else [measured]
    return Tuning(tuple(timed), len(found) - len(wanted), left)


def tunable_target(opened: Driver, precision: str) -> ThreadTarget:
    """The target of a device that has choices; DeviceError for others."""
    target = opened.target(precision) if isinstance(opened, CompilingDriver) else None
    if not isinstance(target, ThreadTarget) or not target.sharing_pays:
        hint = "tuning is for GPUs; see `weft devices`"
        raise DeviceError(f"there is nothing to tune on device {opened.name!r}", hint=hint)
    return target


def recorded_seconds(opened: CompilingDriver, program: CompiledProgram, inputs: Sequence[Array]) -> float:
    """The least seconds that a program's launches took in some runs, by the device's clock."""
    recorder = opened.record(program, None)
    given = list(map(opened.place, inputs)) if opened.has_memory else list(inputs)
    recorder.run(given)
    fewest, spent, runs = inf, 0.0, 0
    while runs < FEWEST_RUNS or (runs < MOST_RUNS and spent < ENOUGH):
        parts = [part for part in recorder.run(given).parts if isinstance(part, NativeRecord)]
        taken = sum(float((part.times[..., 1] - part.times[..., 0]).sum()) for part in parts) * 1e-9
        fewest, spent, runs = min(fewest, taken), spent + taken, runs + 1
    return fewest


# -- what is timed ---------------------------------------------------------------------------------------------------


def _candidates(fused: FusedProgram, target: ThreadTarget, sizes: Mapping[str, int]) -> list[_Candidate]:
    """The distinct products for which there is more than one way, the largest share first."""
    found: dict[str, _Candidate] = {}
    for group, around in _heavy_groups(fused):
        if not _has_sizes(group, sizes):
            continue
        with asked_products(sizes) as asked:
            group_works(group, around, target)
        for one in {each.product: each for each in asked}.values():
            before = found.get(one.product)
            found[one.product] = (
                _Candidate(one, group, around) if before is None else replace(before, uses=before.uses + 1)
            )
    several = [one for one in found.values() if len(_promising(one.asked)) > 1]
    return sorted(several, key=lambda one: -one.share)


def _heavy_groups(fused: FusedProgram) -> Iterator[tuple[HeavyGroup, FusedProgram]]:
    for group in fused.groups:
        match group:
            case HeavyGroup():
                yield group, fused
            case ScanGroup(body=body):
                yield from _heavy_groups(body)


def _has_sizes(group: HeavyGroup, sizes: Mapping[str, int]) -> bool:
    """Whether a group's shapes are known with these sizes, which its operands show."""
    shapes = [_tensor(value).shape for value in (*group.operands, *group.results)]
    named = {symbol.name for shape in shapes for dim in shape or () for symbol in dims.symbols(dim)}
    alone = [dims.as_symbol(dim) for value in group.operands for dim in _tensor(value).shape or ()]
    return None not in shapes and named <= sizes.keys() & {symbol.name for symbol in alone if symbol is not None}


def _promising(asked: Asked) -> list[str]:
    most = PROMISING * asked.ways[0][1]
    return [name for name, seconds in asked.ways if seconds <= most][:MOST_WAYS]


def _best(
    one: _Candidate,
    opened: CompilingDriver,
    target: ThreadTarget,
    sizes: Mapping[str, int],
    timer: Timer,
    is_over: Callable[[], bool],
) -> Timed | None:
    """The ways of a product, timed; None where the time is over before two were, or the device takes none of them."""
    fused = _alone(one.group, one.fused)
    random = np.random.default_rng(0)
    inputs = [made_up(_spec(value, sizes), {}, random) for value in fused.program.inputs]
    before = one.asked.chosen
    found: dict[str, float] = {}
    for way in dict.fromkeys((before, *_promising(one.asked))):
        if found and is_over():
            break
        try:
            tuned = replace(target, tuned=((one.asked.product, way),))
            sections = build_sections(fused, tuned)
            program = opened.compile(fused.program, sections, True, lambda *_: None)
            found[way] = timer(opened, program, inputs)
        except DeviceLostError:
            raise
        except WeftError as error:
            COMPILING.info("tuning %s: %s is left out: %s", one.asked.product, way, error.problem)
    if len(found) < 2 or before not in found:
        return None
    best = min(found, key=lambda way: found[way])
    if found[best] > (1 - GAIN) * found[before]:
        best = before
    nodes = one.group.heavy.origin
    return Timed(one.asked.product, one.uses, nodes, before, found[before], best, found[best], len(found))


def _alone(group: HeavyGroup, fused: FusedProgram) -> FusedProgram:
    """A program of one group, with the layouts that values have around it."""
    constants = {value: fused.program.constants[value] for value in group.operands if value in fused.program.constants}
    inputs = tuple(value for value in group.operands if value not in constants)
    program = TensorProgram(inputs, group.results, group.steps, constants)
    return replace(fused, program=program, groups=(group,))


def _spec(value: Value, sizes: Mapping[str, int]) -> TensorSpec:
    kind = _tensor(value)
    return TensorSpec(value.name, tuple(dims.evaluate(dim, sizes) for dim in kind.shape or ()), kind)


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


# -- what loads take -------------------------------------------------------------------------------------------------


def choosing_driver(opened: Driver, option: TuneOption, cache: bool) -> Driver:
    """A device with the choices of a file, with those that are kept, or without any where nothing may be kept."""
    if not isinstance(opened, TunableDriver):
        if option is not None:
            COMPILING.info("device %s takes no tuned choices", opened.name)
        return opened
    if isinstance(option, (str, Path)):
        return opened.with_choices(read_choices(Path(option), opened.hardware))
    return opened if cache or option is not None else opened.with_choices(())


def tuned_driver(
    opened: TunableDriver,
    fused: FusedProgram,
    precision: str,
    seconds: float,
    sizes: Mapping[str, int],
    cache: bool,
    tell: Tell,
) -> TunableDriver:
    """A device with what is kept and what it was now tuned to for a program, which is kept where it may be."""
    before = kept_choices(opened.hardware) if cache else ()
    tuning = tune(fused, opened.with_choices(before), precision, seconds, sizes=sizes, tell=tell)
    if cache and tuning.choices:
        keep_choices(opened.hardware, tuning.choices)
    return opened.with_choices(joined(before, tuning.choices))
