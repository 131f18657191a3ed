"""Offsets in one arena for values with known sizes and lifetimes: those alive at the same time never share a byte.

Several greedy orders are tried, each placing a value into the tightest gap left by those that live with it; the
smallest arena wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """Memory needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arena:
    offsets: tuple[int, ...]  # one per block
    size: int
    lower_bound: int  # the most bytes alive at any step


def place(blocks: Sequence[Block], alignment: int) -> Arena:
    """Offsets for all blocks, multiples of `alignment`."""
    sizes = [-(-block.size // alignment) * alignment for block in blocks]
    lower_bound = _most_alive(blocks, sizes)
    best: tuple[int, list[int]] | None = None
    for order in _ORDERS:
        if best is not None and best[0] == lower_bound:
            break
        numbers = sorted(range(len(blocks)), key=lambda number: order(blocks[number]))
        offsets = _place_in_order(blocks, sizes, numbers)
        total = max((offset + size for offset, size in zip(offsets, sizes)), default=0)
        if best is None or total < best[0]:
            best = (total, offsets)
    assert best is not None
    return Arena(tuple(best[1]), best[0], lower_bound)


_ORDERS: tuple[Callable[[Block], tuple[int, ...]], ...] = (
    lambda block: (-block.size, block.first),
    lambda block: (block.first, -block.size),
    lambda block: (-(block.last - block.first), -block.size),
)


def _place_in_order(blocks: Sequence[Block], sizes: Sequence[int], numbers: Sequence[int]) -> list[int]:
    offsets = [0] * len(blocks)
    alive: list[list[int]] = [[] for _ in range(1 + max((block.last for block in blocks), default=0))]  # by step
    for number in numbers:
        block = blocks[number]
        steps = alive[block.first : block.last + 1]
        others = set().union(*steps)
        taken = sorted((offsets[other], offsets[other] + sizes[other]) for other in others)
        offsets[number] = _tightest_gap(taken, sizes[number])
        for step in steps:
            step.append(number)
    return offsets


def _tightest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        if start - end >= size and (best is None or start - end < best[0]):
            best = (start - end, end)
        end = max(end, stop)
    return end if best is None else best[1]


def _most_alive(blocks: Sequence[Block], sizes: Sequence[int]) -> int:
    changes: dict[int, int] = {}
    for block, size in zip(blocks, sizes):
        changes[block.first] = changes.get(block.first, 0) + size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - size
    most = alive = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most
