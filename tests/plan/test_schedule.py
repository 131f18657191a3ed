"""Dependencies between launches, and which are worth parallelising: against brute force, and in small cases."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from weft.cost import launches as cost
from weft.cost.roofline import Peak
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Kernel
from weft.ir.work import Place, PlannedLaunch, Repeated
from weft.plan.waits import with_waits

READ, WRITE = Buffer("r", DType.float32, False), Buffer("w", DType.float32, True)
Bytes = tuple[int, int, int, bool]  # region, start, stop, written


def a_launch(uses: list[Bytes]) -> PlannedLaunch:
    kernel = Kernel("k", tuple(WRITE if written else READ for *_, written in uses), (), 1, ())
    places = tuple(Place(region, start) for region, start, _, _ in uses)
    return PlannedLaunch(kernel, 1, places, (), sizes=tuple(stop - start for _, start, stop, _ in uses))


def random_uses(rng: np.random.Generator) -> list[Bytes]:
    uses = []
    for number in range(int(rng.integers(1, 5))):
        start = int(rng.integers(0, 60))
        stop = start + int(rng.integers(1, 25))
        uses.append((int(rng.integers(0, 2)), start, stop, number == 0))
    return uses


def conflict(one: list[Bytes], other: list[Bytes]) -> bool:
    return any(
        a[0] == b[0] and a[1] < b[2] and b[1] < a[2] and (a[3] or b[3]) and a[1] < a[2] and b[1] < b[2]
        for a in one
        for b in other
    )


@pytest.mark.parametrize("seed", range(30))
def test_conflicts_are_waited_for(seed: int) -> None:
    """A launch waits, directly or indirectly, for all conflicting launches, and directly for no other."""
    rng = np.random.default_rng(seed)
    uses = [random_uses(rng) for _ in range(40)]
    planned = with_waits([a_launch(use) for use in uses])
    before: list[set[int]] = []
    for number, launch in enumerate(planned):
        assert isinstance(launch, PlannedLaunch)
        assert launch.after is not None
        assert all(conflict(uses[number], uses[earlier]) for earlier in launch.after), f"seed {seed}"
        reached = set(launch.after).union(*(before[earlier] for earlier in launch.after))
        before.append(reached)
        needed = {earlier for earlier in range(number) if conflict(uses[number], uses[earlier])}
        assert needed <= reached, f"seed {seed}: launch {number} does not wait for {needed - reached}"


def test_repeated_launch_covers_all_its_memory() -> None:
    step = a_launch([(0, 100, 104, True), (1, 50, 54, False)])
    repeated = Repeated((step,), ((4, -4),), 10)
    beside = a_launch([(0, 140, 144, True)])
    inside, below = a_launch([(0, 136, 140, False)]), a_launch([(1, 14, 18, True)])
    planned = with_waits([repeated, beside, inside, below])
    assert [entry.after for entry in planned[1:] if isinstance(entry, PlannedLaunch)] == [(), (0,), (0,)]


def test_empty_buffers_do_not_conflict() -> None:
    one = PlannedLaunch(Kernel("k", (WRITE,), (), 1, ()), 1, (Place(2),), (), sizes=(0,))
    assert [entry.after for entry in with_waits([one, one]) if isinstance(entry, PlannedLaunch)] == [(), ()]


PEAK = Peak(1e11, 2e10)


def sized(flops: float, bytes: float, blocks: int = 8, after: tuple[int, ...] | None = None) -> PlannedLaunch:
    return PlannedLaunch(Kernel("k", (), (), 1, ()), blocks, (), (), flops=flops, bytes=bytes, after=after)


def test_seconds_are_the_maximum_of_arithmetic_and_memory() -> None:
    assert cost.launch_seconds(sized(6e7, 1e3), PEAK) == pytest.approx(1e-3, rel=0.01)
    assert cost.launch_seconds(sized(10, 2e7), PEAK) == pytest.approx(1e-3, rel=0.01)
    assert cost.launch_seconds(sized(0, 0), PEAK) == inf


def test_small_launches_run_on_one_thread() -> None:
    assert cost.is_worth_sharing(sized(1e7, 1e4), PEAK)
    assert not cost.is_worth_sharing(sized(1e4, 1e4), PEAK)
    assert not cost.is_worth_sharing(sized(1e7, 1e4, blocks=1), PEAK)
    assert cost.is_worth_sharing(sized(0, 0), PEAK)  # nothing is known of it


def test_short_runs_wake_no_workers() -> None:
    medium = sized(1e6, 0)  # 17 µs
    assert not cost.is_worth_waking([medium], PEAK)
    assert cost.is_worth_waking([medium, medium], PEAK)
    assert cost.is_worth_waking([Repeated((medium,), ((),), 2)], PEAK)
    assert not cost.is_worth_waking([sized(1e3, 1e3)] * 100, PEAK)


def test_short_launches_in_a_row_are_joined() -> None:
    short = [sized(1e3, 1e3, after=(number - 1,) if number else ()) for number in range(5)]
    assert cost.find_sequences(short, PEAK) == [False, True, True, True, True]
    apart = [sized(1e3, 1e3, after=()) for _ in range(3)]
    assert cost.find_sequences(apart, PEAK) == [False, False, False]
    large = sized(1e8, 0, after=(0,))
    assert cost.find_sequences([short[0], large, sized(1e3, 1e3, after=(1,))], PEAK) == [False, False, False]
    many = [sized(1e3, 1e3, after=(number - 1,)) for number in range(300)]
    assert 2 < cost.find_sequences(many, PEAK).count(False) < 20
