"""Choose the tilings of matrix products by measurement on a device.

In: the groups of a program for a GPU, and a number of seconds. Out: a `Tuning` with the measurements and the `Choices`
for the device's target. Each tiling is compiled as a program of one group, as in a model, and runs on random data; the
products that take most of the predicted time come first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Union

import numpy as np

from weft.backends.device import NO_SIZES, CompilingDriver, Driver, TunableDriver
from weft.cache.tuning import cached_choices, merge_choices, read_choices, store_choices
from weft.errors import DeviceError, DeviceLostError, WeftError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.groups import FusedProgram, HeavyGroup, ScanGroup
from weft.ir.program import TensorProgram, Value
from weft.ir.run_record import NativeRecord
from weft.ir.specs import TensorSpec
from weft.ir.target import Choices, ThreadTarget
from weft.kernels.sections import build_group_works, build_sections
from weft.kernels.threads.product_choice import TilingQuery, record_tiling_queries
from weft.logs import COMPILING
from weft.records import dataclass
from weft.runtime.generated_inputs import generate_input

if TYPE_CHECKING:
    from weft.compiler import Pipeline

MOST_TILINGS = 12  # of a product that are timed
PROMISING = 2.0  # a tiling is timed if its prediction is within this factor of the best
GAIN = 0.02  # by which a tiling must beat that of the cost model
FEWEST_RUNS, MOST_RUNS = 3, 30
TILING_SECONDS = 1e-2  # of all runs of a tiling

TuneOption = Union[str, Path, float, None]
Report = Callable[[str, float], None]  # gets the product that is timed, and the fraction of the time
Timer = Callable[[CompilingDriver, CompiledProgram, Sequence[Array]], float]


@dataclass(frozen=True, slots=True)
class Timed:
    """A product with its number of uses, the tiling of the cost model, and the best of those that were timed."""

    product: str
    uses: int
    nodes: str
    before: str
    before_seconds: float
    best: str
    best_seconds: float
    ways: int  # the number of tilings that were timed


@dataclass(frozen=True, slots=True)
class Tuning:
    """The products that were timed, how many were tuned before, and how many the time did not suffice for."""

    timed: tuple[Timed, ...]
    tuned_before: int
    left: int

    @property
    def choices(self) -> Choices:
        return tuple(sorted((product.product, product.best) for product in self.timed))


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A product, in the first group that computes it."""

    query: TilingQuery
    group: HeavyGroup
    fused: FusedProgram
    uses: int = 1

    @property
    def share(self) -> float:
        """The predicted seconds of a run."""
        return self.uses * self.query.candidates[0][1]


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
    tell: Report = lambda *_: None,
) -> Tuning:
    """Time the products of a program for some seconds; DeviceError if the device cannot be tuned.

    sizes: of its dynamic dims; products whose sizes do not follow from these are left out.
    again: also time products that the device's target has choices for.
    """
    target = tunable_target(opened, precision)
    timer = recorded_seconds if timer is None else timer
    start = clock()
    tell("products", 0.0)
    plain = replace(target, tuned=())
    tuned = dict(target.tuned)
    candidates = _find_candidates(fused, plain, sizes)
    untuned = [candidate for candidate in candidates if again or candidate.query.product not in tuned]
    timed: list[Timed] = []
    left = 0
    for candidate in untuned:

        def is_over() -> bool:
            return clock() - start >= seconds

        if is_over():
            left += 1
            continue
        tell(candidate.query.product, min((clock() - start) / seconds, 1.0))
        measured = _time_tilings(candidate, opened, plain, sizes, timer, is_over)
        left += measured is None
        timed += [] if measured is None else [measured]
    return Tuning(tuple(timed), len(candidates) - len(untuned), left)


def tunable_target(opened: Driver, precision: str) -> ThreadTarget:
    """Return the target of a device that can be tuned; DeviceError for others."""
    target = opened.target(precision) if isinstance(opened, CompilingDriver) else None
    if not isinstance(target, ThreadTarget) or not target.sharing_pays:
        hint = "tuning is for GPUs; see `weft devices`"
        raise DeviceError(f"there is nothing to tune on device {opened.name!r}", hint=hint)
    return target


def recorded_seconds(opened: CompilingDriver, program: CompiledProgram, inputs: Sequence[Array]) -> float:
    """Return the least seconds of a program's launches over several runs, by the device's clock."""
    recorder = opened.record(program, None)
    feeds = list(map(opened.place, inputs)) if opened.has_memory else list(inputs)
    recorder.run(feeds)
    fewest, spent, runs = inf, 0.0, 0
    while runs < FEWEST_RUNS or (runs < MOST_RUNS and spent < TILING_SECONDS):
        parts = [part for part in recorder.run(feeds).parts if isinstance(part, NativeRecord)]
        seconds = sum(float((part.times[..., 1] - part.times[..., 0]).sum()) for part in parts) * 1e-9
        fewest, spent, runs = min(fewest, seconds), spent + seconds, runs + 1
    return fewest


# -- measurement -----------------------------------------------------------------------------------------------------


def _find_candidates(fused: FusedProgram, target: ThreadTarget, sizes: Mapping[str, int]) -> list[_Candidate]:
    """Find the distinct products with several promising tilings, the largest share first."""
    candidates: dict[str, _Candidate] = {}
    for group, around in _heavy_groups(fused):
        if not _has_sizes(group, sizes):
            continue
        with record_tiling_queries(sizes) as queries:
            build_group_works(group, around, target)
        for query in {query.product: query for query in queries}.values():
            before = candidates.get(query.product)
            candidates[query.product] = (
                _Candidate(query, group, around) if before is None else replace(before, uses=before.uses + 1)
            )
    several = [candidate for candidate in candidates.values() if len(_promising_tilings(candidate.query)) > 1]
    return sorted(several, key=lambda candidate: -candidate.share)


def _heavy_groups(fused: FusedProgram) -> Iterator[tuple[HeavyGroup, FusedProgram]]:
    for group in fused.groups:
        match group:
            case HeavyGroup():
                yield group, fused
            case ScanGroup(body=body):
                yield from _heavy_groups(body)


def _has_sizes(group: HeavyGroup, sizes: Mapping[str, int]) -> bool:
    """Whether these sizes, as far as the operands show them, determine a group's shapes."""
    shapes = [value.known_shape for value in (*group.operands, *group.results)]
    named = {symbol.name for shape in shapes for dim in shape or () for symbol in dims.symbols(dim)}
    alone = [dims.as_symbol(dim) for value in group.operands for dim in value.known_shape or ()]
    return None not in shapes and named <= sizes.keys() & {symbol.name for symbol in alone if symbol is not None}


def _promising_tilings(query: TilingQuery) -> list[str]:
    limit = PROMISING * query.candidates[0][1]
    return [name for name, seconds in query.candidates if seconds <= limit][:MOST_TILINGS]


def _time_tilings(
    candidate: _Candidate,
    opened: CompilingDriver,
    target: ThreadTarget,
    sizes: Mapping[str, int],
    timer: Timer,
    is_over: Callable[[], bool],
) -> Timed | None:
    """Time the tilings of a product; None if fewer than two could be timed."""
    fused = _program_of_group(candidate.group, candidate.fused)
    random = np.random.default_rng(0)
    inputs = [generate_input(_tensor_spec(value, sizes), {}, random) for value in fused.program.inputs]
    before = candidate.query.chosen
    times: dict[str, float] = {}
    for tiling in dict.fromkeys((before, *_promising_tilings(candidate.query))):
        if times and is_over():
            break
        try:
            tuned = replace(target, tuned=((candidate.query.product, tiling),))
            sections = build_sections(fused, tuned)
            program = opened.compile(fused.program, sections, True, lambda *_: None)
            times[tiling] = timer(opened, program, inputs)
        except DeviceLostError:
            raise
        except WeftError as error:
            COMPILING.info("tuning %s: %s is left out: %s", candidate.query.product, tiling, error.problem)
    if len(times) < 2 or before not in times:
        return None
    best = min(times, key=lambda tiling: times[tiling])
    if times[best] > (1 - GAIN) * times[before]:
        best = before
    nodes, product = candidate.group.heavy.origin, candidate.query.product
    return Timed(product, candidate.uses, nodes, before, times[before], best, times[best], len(times))


def _program_of_group(group: HeavyGroup, fused: FusedProgram) -> FusedProgram:
    """Make a program of one group, with the layouts that its values have in the model."""
    constants = {value: fused.program.constants[value] for value in group.operands if value in fused.program.constants}
    inputs = tuple(value for value in group.operands if value not in constants)
    program = TensorProgram(inputs, group.results, group.steps, constants)
    return replace(fused, program=program, groups=(group,))


def _tensor_spec(value: Value, sizes: Mapping[str, int]) -> TensorSpec:
    return TensorSpec(value.name, tuple(dims.evaluate(dim, sizes) for dim in value.shape), value.type)


# -- loads -----------------------------------------------------------------------------------------------------------


def choosing_driver(opened: Driver, option: TuneOption, cache: bool) -> Driver:
    """Give a driver the choices of a file, or the cached ones; none without a cache."""
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
    tell: Report,
) -> TunableDriver:
    """Tune a driver for a program, and cache the choices."""
    before = cached_choices(opened.hardware) if cache else ()
    tuning = tune(fused, opened.with_choices(before), precision, seconds, sizes=sizes, tell=tell)
    if cache and tuning.choices:
        store_choices(opened.hardware, tuning.choices)
    return opened.with_choices(merge_choices(before, tuning.choices))


def tune_pipeline(pipeline: Pipeline, driver: TunableDriver, seconds: float) -> None:
    """Tune a pipeline's driver for its model, with the sizes of the sample if there is one."""
    from weft.runtime.choose_device import sample_shapes
    from weft.runtime.memory import bind_shapes
    from weft.runtime.ranking import likely_sizes

    def report(product: str, fraction: float) -> None:
        pipeline.progress.stage(f"tuning {product}", fraction)

    options, program = pipeline.options, pipeline.program()
    names = {value.name for value in program.inputs}
    shapes = {name: shape for name, shape in sample_shapes(options.sample or {}).items() if name in names}
    sizes = likely_sizes(program, bind_shapes(program.inputs, shapes, pipeline.file)[0])
    fused = pipeline.fuse(program)
    pipeline.driver = tuned_driver(driver, fused, pipeline.precision, seconds, sizes, options.cache, report)
