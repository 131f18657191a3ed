"""Forms of tapes: native code fills in the numbers for some sizes as plain Python does."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
import pytest
from backends.cpu.tapes import TapeLaunch, TapeLoop, TapeTables, build_tape, read_tables

from weft.backends.cpu.tape import LONG, MAY_BLOCK, SHARED, Tape
from weft.backends.cpu.tape_form import TapeForm
from weft.backends.host.addresses import address
from weft.backends.host.numbers import compute_natively
from weft.backends.host.runner import runner
from weft.cost import launches as cost
from weft.cost.roofline import Peak
from weft.errors import ExecutionError, InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Kernel
from weft.ir.work import PlannedLaunch, Repeated
from weft.plan.plan import ARENA, BlockStack, Plan, SymbolicLaunch, SymbolicLoop, SymbolicPlace, SymbolicPlan
from weft.plan.plan_numbers import PlanNumbers, list_launches

PEAK = Peak(1e11, 2e10)
KERNELS = [Kernel(f"kernel{number}", (), (), 16, ()) for number in range(4)]
ADDRESSES = {kernel.name: 4096 * number for number, kernel in enumerate(KERNELS, 1)}
N, M = dims.symbol("n", 0), dims.symbol("m", 0)
NAMES = ("n", "m")
SEEDS = range(25)
BLOCKS = 5  # of the arena
MOST_WAITS = 40  # entries back


def a_plan(entries: Sequence[SymbolicLaunch | SymbolicLoop], stacks: Sequence[BlockStack] = ()) -> SymbolicPlan:
    stacks = tuple(stacks) or (BlockStack((0,) * BLOCKS, 0, ()),)
    return SymbolicPlan(tuple(entries), stacks, (), (), (), (), (), (), (), (), (), 64)


def a_launch(
    blocks: Dim,
    flops: Dim = 0,
    moved: Dim = 0,
    after: tuple[int, ...] | None = None,
    buffers: Sequence[SymbolicPlace] = (),
    parameters: Sequence[Dim] = (),
    kernel: Kernel = KERNELS[0],
    origin: str = "",
) -> SymbolicLaunch:
    return SymbolicLaunch(
        kernel, blocks, tuple(buffers), tuple(parameters), origin, 0, flops, moved, (0,) * len(buffers), after
    )


# -- the oracle ------------------------------------------------------------------------------------------------------


def estimate(launch: PlannedLaunch, count: int) -> float:
    """Estimate the seconds of a launch that is repeated; infinite if its effort is unknown."""
    if not launch.blocks or not count:
        return 0.0
    return cost.seconds(launch.flops, launch.bytes, PEAK) if launch.flops or launch.bytes else inf


def is_shared(launch: PlannedLaunch, count: int) -> bool:
    return launch.blocks > 1 and estimate(launch, count) >= cost.WORTH_SHARING


def most_blocks(launch: PlannedLaunch, count: int) -> int:
    """Count the blocks between two checks for an interrupt."""
    seconds = estimate(launch, count)
    if seconds == inf:
        return launch.blocks // cost.FEWEST_CHECKS
    return int(launch.blocks * cost.CHECK_INTERVAL / seconds) if seconds > cost.CHECK_INTERVAL else launch.blocks


def expected_flags(plan: Plan, threads: int) -> int:
    launches = [
        (launch, entry.count if isinstance(entry, Repeated) else 1)
        for entry in plan.launches
        for launch in list_launches(entry)
    ]
    times = [(launch, count, estimate(launch, count)) for launch, count in launches]
    shared = sum(seconds * count for launch, count, seconds in times if is_shared(launch, count))
    total = sum(seconds * count for _, count, seconds in times if seconds)
    known_total = sum(seconds * count for _, count, seconds in times if seconds < inf)
    is_slow = any(
        seconds > (cost.BLOCKING_BLOCK if launch.flops else cost.BLOCKING_BLOCK_TRAFFIC) * max(launch.blocks, 1)
        for launch, _, seconds in times
        if seconds < inf
    )
    return (
        SHARED * (threads > 1 and shared >= cost.WORTH_WAKING)
        | LONG * (total >= cost.LONG)
        | MAY_BLOCK * (is_slow or known_total >= cost.BLOCKING)
    )


def expected_tables(plan: Plan, threads: int) -> TapeTables:
    """Build the tables of a plan for one set of sizes in Python."""
    flags = expected_flags(plan, threads)
    entries: list[TapeLaunch | TapeLoop] = []
    sequence = inf  # seconds of the launches that the last step runs in order
    for number, entry in enumerate(plan.launches):
        if isinstance(entry, Repeated):
            parts = tuple(as_tape_launch(launch, entry.count) for launch in entry.launches)
            if flags & SHARED:
                entries.append(TapeLoop(parts, entry.shifts, entry.count))
            else:
                entries += unroll(parts, entry.shifts, entry.count)
            sequence = inf
            continue
        seconds = estimate(entry, 1)
        joined = False
        if is_shared(entry, 1):
            sequence = inf
        else:
            follows = entry.after is None or number - 1 in entry.after
            joined = follows and sequence + seconds <= cost.LONGEST_SEQUENCE
            sequence = sequence + seconds if joined else seconds
        entries.append(as_tape_launch(entry, 1, joined=joined))
    if not flags & SHARED:
        entries = [as_serial(entry) for entry in entries if isinstance(entry, TapeLaunch)]
    tables = read_tables(build_tape(entries), count_parameters(plan))
    return TapeTables(tables.launches, tables.parameters, tables.places, tables.steps, plan.arena_bytes, flags)


def as_tape_launch(launch: PlannedLaunch, count: int, *, joined: bool = False) -> TapeLaunch:
    return TapeLaunch(
        ADDRESSES[launch.kernel.name],
        launch.blocks,
        launch.buffers,
        launch.parameters,
        parallel=is_shared(launch, count),
        after=launch.after,
        joined=joined,
        most=most_blocks(launch, count),
    )


def as_serial(launch: TapeLaunch) -> TapeLaunch:
    return TapeLaunch(launch.function, launch.blocks, launch.buffers, launch.parameters, False, most=launch.most)


def unroll(launches: Sequence[TapeLaunch], shifts: Sequence[Sequence[int]], count: int) -> Sequence[TapeLaunch]:
    return [
        TapeLaunch(
            launch.function,
            launch.blocks,
            tuple(
                type(place)(place.region, place.offset + time * shift)
                for place, shift in zip(launch.buffers, by_buffer)
            ),
            launch.parameters,
            most=launch.most,
        )
        for time in range(count)
        for launch, by_buffer in zip(launches, shifts)
    ]


def count_parameters(plan: Plan) -> list[int]:
    """Return the number of parameters of each launch of the tape."""
    counts: list[int] = []
    for entry in plan.launches:
        times = entry.count if isinstance(entry, Repeated) else 1
        counts += [len(launch.parameters) for launch in list_launches(entry)] * times
    return counts


def fill(plan: SymbolicPlan, sizes: Mapping[str, int], threads: int = 2) -> Tape:
    slots = PlanNumbers(plan, NAMES, compute_natively)
    numbers = slots.evaluate(sizes)
    assert numbers is not None
    return TapeForm(slots, ADDRESSES, threads, PEAK, None).fill(numbers)


def fill_tables(plan: SymbolicPlan, sizes: Mapping[str, int], threads: int = 2) -> TapeTables:
    return read_tables(fill(plan, sizes, threads), count_parameters(plan.at(sizes)))


# -- random plans ----------------------------------------------------------------------------------------------------


class RandomPlans:
    """Random plans for all sizes."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)

    def number(self) -> Dim:
        pick = self.source.choice
        factor: int = pick((0, 1, 3, 64, 1000))
        return pick((factor, factor * N, factor * M, N * M, dims.floordiv(N, 4), N + factor, dims.maximum(N, 2 * M)))

    def effort(self) -> Dim:
        return self.number() * self.source.choice((0, 1, 1000, 100_000))

    def place(self) -> SymbolicPlace:
        if self.source.random() < 0.6:
            return SymbolicPlace(ARENA, self.number(), self.source.randrange(BLOCKS))
        return SymbolicPlace(self.source.randrange(8), self.number())

    def launch(self, number: int) -> SymbolicLaunch:
        source = self.source
        first = max(number - MOST_WAITS, 0)
        waits = source.sample(range(first, number), min(number - first, source.randrange(4)))
        if number and source.random() < 0.6:
            waits.append(number - 1)
        return a_launch(
            source.choice((0, 1, 1, N, M, 7 * N, self.number())),
            self.effort(),
            self.effort(),
            None if source.random() < 0.1 else tuple(sorted(set(waits))),
            [self.place() for _ in range(source.randrange(5))],
            [self.number() for _ in range(source.randrange(4))],
            source.choice(KERNELS),
        )

    def loop(self) -> SymbolicLoop:
        launches = tuple(self.launch(0) for _ in range(self.source.randrange(1, 5)))
        shifts = tuple(tuple(self.number() for _ in launch.buffers) for launch in launches)
        return SymbolicLoop(launches, shifts, self.source.choice((0, 1, 3, N, dims.floordiv(M, 2), 20)))

    def plan(self) -> SymbolicPlan:
        source = self.source
        stacks = [
            BlockStack(tuple(self.number() for _ in range(BLOCKS)), self.number(), ())
            for _ in range(source.randrange(1, 4))
        ]
        entries = [
            self.loop() if source.random() < 0.1 else self.launch(number) for number in range(source.randrange(60))
        ]
        return a_plan(entries, stacks)


@pytest.mark.parametrize("seed", SEEDS)
def test_forms_are_filled_as_in_python(seed: int) -> None:
    print(f"seed {seed}")
    plans = RandomPlans(seed)
    for _ in range(6):
        plan = plans.plan()
        for _ in range(6):
            sizes = {name: plans.source.choice((0, 1, 2, 5, 33, 1000)) for name in NAMES}
            threads = plans.source.choice((1, 2, 8))
            assert fill_tables(plan, sizes, threads) == expected_tables(plan.at(sizes), threads), (sizes, threads)


# -- limits ----------------------------------------------------------------------------------------------------------


def test_nothing_is_written_into_too_few_words() -> None:
    plan = a_plan([SymbolicLoop((a_launch(N),), ((),), M), a_launch(1, parameters=[N])])
    slots = PlanNumbers(plan, NAMES, compute_natively)
    form = TapeForm(slots, ADDRESSES, 2, PEAK, None)
    numbers = slots.evaluate({"n": 3, "m": 4})
    assert numbers is not None
    needed = len(form.fill(numbers)._table)
    guarded = np.full(needed + 8, 77, np.int64)
    values, start = address(numbers.values), address(guarded)
    assert runner().fill(form._at, values, start, needed - 1) == needed
    assert (guarded == 77).all()
    assert runner().fill(form._at, values, start, needed) == needed
    assert (guarded[needed:] == 77).all()


@pytest.mark.parametrize("number", [-1, -(2**40), 2**31, 2**32, 2**62, 2**63 - 1, -(2**63)])
def test_impossible_numbers_are_refused(number: int) -> None:
    """Even where the checks of the table were skipped."""
    plan = a_plan([SymbolicLoop((a_launch(N), a_launch(1)), ((), ()), M), a_launch(1)])
    slots = PlanNumbers(plan, NAMES, compute_natively)
    form = TapeForm(slots, ADDRESSES, 2, PEAK, None)
    block = np.zeros(1 << 10, np.int64)
    for name in NAMES:
        values = slots.table.start([number if name == other else 1 for other in NAMES])
        compute_natively(slots.table, values)
        words = runner().fill(form._at, address(values), address(block), len(block))
        assert words == -1 or (name == "n" and number == 2**31 and words > 0)
        assert words > 0 or not block.any()
        block[:] = 0


def test_sizes_that_no_tape_can_have() -> None:
    blocks = a_plan([a_launch(N)])
    assert fill(blocks, {"n": 2**32 - 1, "m": 1}).count == 1
    with pytest.raises(ExecutionError, match="4,294,967,296 blocks"):
        fill(blocks, {"n": 2**32, "m": 1})
    with pytest.raises(ExecutionError, match="too many launches"):
        fill(a_plan([SymbolicLoop((a_launch(1),), ((),), N)]), {"n": 2**31, "m": 1})
    numbers = PlanNumbers(a_plan([a_launch(N - M)]), NAMES, compute_natively)
    assert numbers.evaluate({"n": 1, "m": 2}) is None
    numbers = PlanNumbers(a_plan([SymbolicLoop((a_launch(1),), ((),), N - M)]), NAMES, compute_natively)
    assert numbers.evaluate({"n": 1, "m": 2}) is None


def test_launches_wait_for_earlier_ones_only() -> None:
    for after in ((0,), (1,), (-1,)):
        with pytest.raises(InternalError, match="waits for"):
            fill(a_plan([a_launch(1, after=after)]), {"n": 1, "m": 1})


def test_progress_names_the_node() -> None:
    loop = SymbolicLoop((a_launch(8, origin="b"), a_launch(8, origin="c")), ((), ()), M)
    plan = a_plan([a_launch(1, origin="a"), loop, a_launch(1, origin="d")])
    tape = fill(plan, {"n": 1, "m": 2})
    names = [tape.describe_step(step) for step in (0, 1, 2, 4, 5, 99)]
    assert [name.split("(")[1] for name in names] == ["a)", "b)", "c)", "c)", "d)", "d)"]
    assert fill(plan, {"n": 1, "m": 0}).describe_step(1) == "at launch 2 of 2 (d)"
    assert fill(a_plan([]), {"n": 1, "m": 0}).describe_step(0) == "at its end"


# -- estimated times -------------------------------------------------------------------------------------------------


def fill_launches(*launches: tuple[float, float, int], repeats: int = 1) -> TapeTables:
    """Fill the tape of launches with these operations, bytes and blocks, on two threads."""
    entries = tuple(a_launch(blocks, int(flops), int(moved), ()) for flops, moved, blocks in launches)
    loop = SymbolicLoop(entries, ((),) * len(entries), repeats)
    return fill_tables(a_plan([loop] if repeats > 1 else entries), {"n": 1, "m": 1})


def test_small_launches_run_on_one_thread() -> None:
    steps = fill_launches((1e7, 1e4, 8), (1e4, 1e4, 8), (1e7, 1e4, 1), (0, 0, 8)).steps
    assert [parts for *_, parts, _ in steps] == [8, 1, 1, 8]  # nothing is known of the last one


def test_short_runs_wake_no_workers() -> None:
    medium = (1e6, 0, 8)  # 17 µs
    assert not fill_launches(medium).flags & SHARED
    assert fill_launches(medium, medium).flags & SHARED
    assert fill_launches(medium, repeats=2).flags & SHARED
    assert not fill_launches(*[(1e3, 1e3, 8)] * 100).flags & SHARED


def test_long_runs_and_blocks_are_interruptible() -> None:
    assert not fill_launches((1e6, 0, 8)).flags & LONG
    assert fill_launches((1e9, 0, 8)).flags & LONG
    assert fill_launches((1e6, 0, 8), repeats=1000).flags & LONG
    assert not fill_launches((1e9, 0, 1000)).flags & MAY_BLOCK
    assert fill_launches((1e9, 0, 2)).flags & MAY_BLOCK
    rows = fill_launches((6e7, 0, 100), (0, 0, 640), (1e3, 0, 7)).launches
    assert [most for *_, most in rows] == [49, 10, 7]
