"""Offsets in one arena for values with known sizes and lifetimes: those alive at the same time never share a byte.

Blocks are placed one after the other, each into a gap left by those that live with it. Several orders are tried. Where
none reaches the lower bound, the blocks that stand out move forward in the best of them, and all are placed again, a
bounded number of times. Nothing depends on time or chance: equal blocks get equal offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.records import dataclass

MOST_PLACEMENTS = 6000  # of single blocks, in the search for a smaller arena
MOST_ROUNDS = 150
_GOOD_ENOUGH = 1.002  # of the lower bound: what is left to gain is not worth the search


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


def place(blocks: Sequence[Lifetime], alignment: int) -> Placement:
    """Offsets for all blocks, multiples of `alignment`."""
    sizes = [-(-block.size // alignment) * alignment for block in blocks]
    lower_bound, busiest = most_alive([Lifetime(size, b.first, b.last) for b, size in zip(blocks, sizes)])
    search = _Search(blocks, sizes, lower_bound)
    for order in _orders(blocks, sizes, busiest):
        for fit in (_tightest_gap, _lowest_gap):
            search.attempt(order, fit, give_up=True)
            if search.is_done:
                return search.arena()
    search.improve()
    return search.arena()


def most_alive(blocks: Sequence[Lifetime]) -> tuple[int, int]:
    """The most bytes alive at any step, and the first such step."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + block.size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.size
    most = alive = busiest = 0
    for step in sorted(changes):
        alive += changes[step]
        if alive > most:
            most, busiest = alive, step
    return most, busiest


def _orders(blocks: Sequence[Lifetime], sizes: Sequence[int], busiest: int) -> list[list[int]]:
    """Orders to place blocks in: large ones first, those of the busiest step first, in time, long-lived ones first."""

    def length(number: int) -> int:
        return blocks[number].last - blocks[number].first + 1

    def away(number: int) -> int:
        return max(blocks[number].first - busiest, busiest - blocks[number].last, 0)

    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda number: (-sizes[number], blocks[number].first),
        lambda number: (away(number), -sizes[number]),
        lambda number: (-sizes[number] * length(number), blocks[number].first),
        lambda number: (blocks[number].first, -sizes[number]),
        lambda number: (-length(number), -sizes[number]),
    )
    return [sorted(range(len(blocks)), key=key) for key in keys]


Taken = Sequence[tuple[int, int]]


class _Search:
    """The best offsets so far, and what led to them."""

    def __init__(self, blocks: Sequence[Lifetime], sizes: Sequence[int], lower_bound: int) -> None:
        self.sizes = sizes
        self.lower_bound = lower_bound
        self.together = _together(blocks)
        self.best: tuple[int, list[int]] = (sum(sizes) + 1, [])
        self.best_order: list[int] = []
        self.best_fit: Callable[[Taken, int], int] = _tightest_gap

    @property
    def is_done(self) -> bool:
        return self.best[0] <= self.lower_bound * _GOOD_ENOUGH

    def arena(self) -> Placement:
        return Placement(tuple(self.best[1]), self.best[0], self.lower_bound)

    def attempt(self, order: Sequence[int], fit: Callable[[Taken, int], int], *, give_up: bool = False) -> list[int]:
        """Offsets that an order leads to; only some of them where it may give up on an arena that is no smaller."""
        sizes, together = self.sizes, self.together
        offsets = [-1] * len(sizes)
        total = 0
        for number in order:
            taken = sorted([(at, at + sizes[other]) for other in together[number] if (at := offsets[other]) >= 0])
            offset = offsets[number] = fit(taken, sizes[number])
            total = max(total, offset + sizes[number])
            if give_up and total >= self.best[0]:
                return offsets
        if total < self.best[0]:
            self.best, self.best_order, self.best_fit = (total, offsets), list(order), fit
        return offsets

    def improve(self) -> None:
        """Move those that stand out forward, a little further each time nothing is gained."""
        if not self.sizes:
            return
        rounds = min(MOST_ROUNDS, MOST_PLACEMENTS // len(self.sizes))
        order, offsets = self.best_order, self.best[1]
        patience = 0
        for turn in range(rounds):
            limit = self.lower_bound if turn % 2 else self.best[0] - 1
            outside = [n for n in order if offsets[n] + self.sizes[n] > limit]
            order = _moved_forward(order, outside, 1 + patience, self.together)
            before = self.best[0]
            offsets = self.attempt(order, (_tightest_gap, _lowest_gap)[turn // 2 % 2])
            if self.is_done:
                return
            patience = 0 if self.best[0] < before else patience + 1
            if patience > 12:
                order, offsets, patience = self.best_order, self.best[1], 1 + turn % 5


def _moved_forward(
    order: Sequence[int], outside: Sequence[int], by: int, together: Sequence[Sequence[int]]
) -> list[int]:
    """The order with some blocks before the last `by` of those that they live with and that came before them."""
    moved = list(order)
    for number in outside:
        at = moved.index(number)
        neighbours = set(together[number])
        left = by
        target = at
        for place in range(at - 1, -1, -1):
            if moved[place] in neighbours:
                target = place
                left -= 1
                if not left:
                    break
        moved.insert(target, moved.pop(at))
    return moved


def _together(blocks: Sequence[Lifetime]) -> list[list[int]]:
    """For each block, the others that live at one of its steps."""
    found: list[list[int]] = [[] for _ in blocks]
    alive: list[int] = []
    for number in sorted(range(len(blocks)), key=lambda n: blocks[n].first):
        first = blocks[number].first
        alive = [other for other in alive if blocks[other].last >= first]
        for other in alive:
            found[other].append(number)
        found[number].extend(alive)
        alive.append(number)
    return found


def _tightest_gap(taken: Taken, size: int) -> int:
    best, least = -1, 0
    end = 0
    for start, stop in taken:
        if start - end >= size and (best < 0 or start - end < least):
            best, least = end, start - end
        end = max(end, stop)
    return end if best < 0 else best


def _lowest_gap(taken: Taken, size: int) -> int:
    end = 0
    for start, stop in taken:
        if start - end >= size:
            return end
        end = max(end, stop)
    return end
