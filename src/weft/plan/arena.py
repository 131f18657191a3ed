"""Place blocks with known sizes and lifetimes in one arena: blocks alive at the same time never share a byte.

Blocks are placed one after the other, each into a gap between those that live at the same time. Several orders are
tried. If none reaches the lower bound, the blocks beyond it move forward in the best order and all are placed again, a
bounded number of times. The search is deterministic: equal blocks get equal offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.records import dataclass

MOST_PLACEMENTS = 6000  # of single blocks in the search for a smaller arena
MOST_ROUNDS = 150
_GOOD_ENOUGH = 1.002  # times the lower bound, where the search ends


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Memory needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Placement:
    offsets: tuple[int, ...]  # one per block
    size: int
    lower_bound: int  # the most bytes alive at any step


def place_blocks(blocks: Sequence[Lifetime], alignment: int) -> Placement:
    """Find offsets for all blocks, multiples of `alignment`."""
    sizes = [-(-block.size // alignment) * alignment for block in blocks]
    lower_bound, busiest = most_alive([Lifetime(size, b.first, b.last) for b, size in zip(blocks, sizes)])
    search = _Search(blocks, sizes, lower_bound)
    for order in _orders(blocks, sizes, busiest):
        for fit in (_find_tightest_gap, _find_lowest_gap):
            search.attempt(order, fit, give_up=True)
            if search.is_done:
                return search.arena()
    search.improve()
    return search.arena()


def most_alive(blocks: Sequence[Lifetime]) -> tuple[int, int]:
    """Return the most bytes alive at any step, and the first such step."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + block.size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.size
    peak = alive = busiest = 0
    for step in sorted(changes):
        alive += changes[step]
        if alive > peak:
            peak, busiest = alive, step
    return peak, busiest


def _orders(blocks: Sequence[Lifetime], sizes: Sequence[int], busiest: int) -> list[list[int]]:
    """List placement orders: large blocks first, those of the busiest step first, by time, long-lived ones first."""

    def length(number: int) -> int:
        return blocks[number].last - blocks[number].first + 1

    def distance(number: int) -> int:
        return max(blocks[number].first - busiest, busiest - blocks[number].last, 0)

    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda number: (-sizes[number], blocks[number].first),
        lambda number: (distance(number), -sizes[number]),
        lambda number: (-sizes[number] * length(number), blocks[number].first),
        lambda number: (blocks[number].first, -sizes[number]),
        lambda number: (-length(number), -sizes[number]),
    )
    return [sorted(range(len(blocks)), key=key) for key in keys]


Occupied = Sequence[tuple[int, int]]  # sorted (start, end)


class _Search:
    """The best offsets so far, with the order in which blocks were placed."""

    def __init__(self, blocks: Sequence[Lifetime], sizes: Sequence[int], lower_bound: int) -> None:
        self.sizes = sizes
        self.lower_bound = lower_bound
        self.overlaps = find_overlaps(blocks)
        self.best: tuple[int, list[int]] = (sum(sizes) + 1, [])
        self.best_order: list[int] = []

    @property
    def is_done(self) -> bool:
        return self.best[0] <= self.lower_bound * _GOOD_ENOUGH

    def arena(self) -> Placement:
        return Placement(tuple(self.best[1]), self.best[0], self.lower_bound)

    def attempt(self, order: Sequence[int], fit: Callable[[Occupied, int], int], *, give_up: bool = False) -> list[int]:
        """Place blocks in an order; with `give_up`, stop as soon as the arena is not smaller than the best."""
        sizes, overlaps = self.sizes, self.overlaps
        offsets = [-1] * len(sizes)
        total = 0
        for number in order:
            occupied = sorted([(at, at + sizes[other]) for other in overlaps[number] if (at := offsets[other]) >= 0])
            offset = offsets[number] = fit(occupied, sizes[number])
            total = max(total, offset + sizes[number])
            if give_up and total >= self.best[0]:
                return offsets
        if total < self.best[0]:
            self.best, self.best_order = (total, offsets), list(order)
        return offsets

    def improve(self) -> None:
        """Move the blocks beyond the limit forward in the order, further each time that nothing is gained."""
        if not self.sizes:
            return
        rounds = min(MOST_ROUNDS, MOST_PLACEMENTS // len(self.sizes))
        order, offsets = self.best_order, self.best[1]
        failures = 0
        for number in range(rounds):
            limit = self.lower_bound if number % 2 else self.best[0] - 1
            outside = [block for block in order if offsets[block] + self.sizes[block] > limit]
            order = _move_forward(order, outside, 1 + failures, self.overlaps)
            before = self.best[0]
            offsets = self.attempt(order, (_find_tightest_gap, _find_lowest_gap)[number // 2 % 2])
            if self.is_done:
                return
            failures = 0 if self.best[0] < before else failures + 1
            if failures > 12:
                order, offsets, failures = self.best_order, self.best[1], 1 + number % 5


def _move_forward(
    order: Sequence[int], outside: Sequence[int], by: int, overlaps: Sequence[Sequence[int]]
) -> list[int]:
    """Move some blocks in the order before the last `by` overlapping blocks that precede them."""
    new_order = list(order)
    for number in outside:
        at = new_order.index(number)
        neighbours = set(overlaps[number])
        left = by
        target = at
        for place in range(at - 1, -1, -1):
            if new_order[place] in neighbours:
                target = place
                left -= 1
                if not left:
                    break
        new_order.insert(target, new_order.pop(at))
    return new_order


def find_overlaps(blocks: Sequence[Lifetime]) -> list[list[int]]:
    """List for each block the others whose lifetimes overlap its own."""
    overlaps: list[list[int]] = [[] for _ in blocks]
    alive: list[int] = []
    for number in sorted(range(len(blocks)), key=lambda n: blocks[n].first):
        first = blocks[number].first
        alive = [other for other in alive if blocks[other].last >= first]
        for other in alive:
            overlaps[other].append(number)
        overlaps[number].extend(alive)
        alive.append(number)
    return overlaps


def _find_tightest_gap(occupied: Occupied, size: int) -> int:
    best, smallest_gap = -1, 0
    end = 0
    for start, stop in occupied:
        if start - end >= size and (best < 0 or start - end < smallest_gap):
            best, smallest_gap = end, start - end
        end = max(end, stop)
    return end if best < 0 else best


def _find_lowest_gap(occupied: Occupied, size: int) -> int:
    end = 0
    for start, stop in occupied:
        if start - end >= size:
            return end
        end = max(end, stop)
    return end
