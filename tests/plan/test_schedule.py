"""Dependencies between launches, and which are worth parallelising: against brute force, and in small cases."""

from __future__ import annotations

import numpy as np
import pytest

from weft.cost.launches import seconds
from weft.cost.roofline import Peak
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Kernel
from weft.plan.plan import ARENA, FIRST_FREE, SymbolicLaunch, SymbolicLoop, SymbolicPlace
from weft.plan.waits import with_waits

READ, WRITE = Buffer("r", DType.float32, False), Buffer("w", DType.float32, True)
Bytes = tuple[int, Dim, Dim, bool]  # region, start, stop, written


def a_launch(uses: list[Bytes], block: int = -1) -> SymbolicLaunch:
    kernel = Kernel("k", tuple(WRITE if written else READ for *_, written in uses), (), 1, ())
    places = tuple(SymbolicPlace(region, start, block) for region, start, _, _ in uses)
    return SymbolicLaunch(kernel, 1, places, (), "", 0, 0, 0, tuple(stop - start for _, start, stop, _ in uses))


def random_uses(rng: np.random.Generator) -> list[Bytes]:
    uses: list[Bytes] = []
    for number in range(int(rng.integers(1, 5))):
        start = int(rng.integers(0, 60))
        stop = start + int(rng.integers(1, 25))
        uses.append((FIRST_FREE + int(rng.integers(0, 2)), start, stop, number == 0))
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
    planned = with_waits([a_launch(use) for use in uses], [])
    before: list[set[int]] = []
    for number, launch in enumerate(planned):
        assert isinstance(launch, SymbolicLaunch)
        assert launch.after is not None
        assert all(conflict(uses[number], uses[earlier]) for earlier in launch.after), f"seed {seed}"
        reached = set(launch.after).union(*(before[earlier] for earlier in launch.after))
        before.append(reached)
        needed = {earlier for earlier in range(number) if conflict(uses[number], uses[earlier])}
        assert needed <= reached, f"seed {seed}: launch {number} does not wait for {needed - reached}"


def waits_of(*entries: SymbolicLaunch | SymbolicLoop, apart: tuple[int, ...] = ()) -> list[tuple[int, ...] | None]:
    return [entry.after for entry in with_waits(entries, apart) if isinstance(entry, SymbolicLaunch)]


def test_launches_after_a_loop_wait_for_it() -> None:
    step = a_launch([(3, 100, 104, True), (4, 50, 54, False)])
    loop = SymbolicLoop((step,), ((4, -4),), 10)
    assert waits_of(step, loop, step, step) == [(), (1,), (1, 2)]


def test_empty_buffers_do_not_conflict() -> None:
    one = a_launch([(3, 8, 8, True)])
    assert waits_of(one, one) == [(), ()]


def test_ranges_that_are_apart_for_all_sizes_do_not_conflict() -> None:
    n = dims.symbol("n")
    first, second, both = (a_launch([(3, a, b, True)]) for a, b in ((0, n), (n, 3 * n), (0, 3 * n)))
    assert waits_of(first, second, both) == [(), (), (0, 1)]
    assert waits_of(first, a_launch([(3, 7, 9, True)])) == [(), (0,)]


def test_blocks_that_may_overlap_wait_for_each_other() -> None:
    first, second = (a_launch([(ARENA, 0, 8, True)], block) for block in (0, 1))
    assert waits_of(first, second, apart=(0, 0)) == [(), (0,)]
    assert waits_of(first, second, apart=(2, 1)) == [(), ()]
    part = a_launch([(ARENA, 8, 16, True)], 1)  # it does not depend on `second`, but on the users of the memory
    assert waits_of(first, second, part, apart=(0, 0)) == [(), (0,), (0,)]


def test_seconds_are_the_maximum_of_arithmetic_and_memory() -> None:
    peak = Peak(1e11, 2e10)
    assert seconds(6e7, 1e3, peak) == pytest.approx(1e-3, rel=0.01)
    assert seconds(10, 2e7, peak) == pytest.approx(1e-3, rel=0.01)
