"""Which of several ways to do the same is best for which sizes, where only a run tells the sizes.

In: extents as dims, and the time that each way takes for samples of them. Out: some of the ways, each with an
indicator: a dim that is 1 for the sizes it is for and 0 for all others. For any sizes exactly one of them is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as combinations
from math import isqrt, prod
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim, Symbol
from weft.records import dataclass

Array = np.ndarray[Any, Any]

_POWERS = tuple(1 << power for power in range(10))
_BETWEEN = (3, 6, 12, 24, 48, 96, 192)
_ALONE = tuple(sorted((*_POWERS, *_BETWEEN, 1024, 2048, 4096)))
_COARSE = (1, 8, 64, 512)
_TOLERANCE = 0.1  # by which a way may be slower than the best one
_WORTH = 0.05  # of the sum of squares of what is lost, which another way has to save
_LEAST_WEIGHT = 4.0  # of the least size, which is met more often than any other, and of the largest ones
_LONG = 25.0  # microseconds from which on they are felt
_WORST = 30.0  # times the best time: ways that do worse than that are all alike
_MOST = 1 << 53  # of all extents of a sample together: no run does as much, and times are exact up to there


@dataclass(frozen=True, slots=True)
class Range:
    """A way, by its number, and the indicator of the sizes that it is for."""

    way: int
    active: Dim


def sample(extents: Sequence[Dim]) -> list[tuple[int, ...]]:
    """What extents may be, without those of which one is 0, or which are more than any run computes.

    From small to large; one at most where all are known.
    """
    names = sorted({symbol for extent in extents for symbol in dims.symbols(extent)}, key=lambda symbol: symbol.name)
    found: dict[tuple[int, ...], None] = {}
    for values in _assignments(names):
        sizes = {symbol.name: value for symbol, value in zip(names, values)}
        try:
            numbers = tuple(dims.evaluate(extent, sizes) for extent in extents)
        except ArithmeticError:
            continue
        if all(number > 0 for number in numbers) and prod(numbers) <= _MOST:
            found[numbers] = None
    return list(found)


def _assignments(symbols: Sequence[Symbol]) -> list[tuple[int, ...]]:
    if len(symbols) > len((_ALONE, _POWERS, _COARSE)):  # too many to try them independently
        columns = [[_within(symbol, value) for value in _POWERS] for symbol in symbols]
        return list(zip(*columns))
    values = (_ALONE, _POWERS, _COARSE)[max(len(symbols) - 1, 0)]
    return list(combinations(*(sorted({_within(symbol, value) for value in values}) for symbol in symbols)))


def _within(symbol: Symbol, value: int) -> int:
    value = max(value, symbol.low or 0)
    return value if symbol.high is None else min(value, symbol.high)


def ranges(extents: Sequence[Dim], samples: Sequence[Sequence[int]], times: Array, most: int) -> list[Range]:
    """Ways for ranges of what tells them apart best: one of the extents, or the product of several.

    `times` are those of each sample and way; no more than `most` ways are taken, and fewer where these do about as
    well.
    """
    lost = np.minimum(times / times.min(axis=1, keepdims=True), _WORST) - 1
    weights = 1 + np.minimum(times.min(axis=1) / _LONG, _LEAST_WEIGHT - 1)
    weights[0] = _LEAST_WEIGHT
    best: tuple[float, Dim, list[tuple[int, int]]] | None = None
    for measure, values in _measures(extents, samples):
        loss, cuts = _cut(values, lost, weights, most)
        if best is None or loss < best[0]:
            best = loss, measure, cuts
    assert best is not None
    _, measure, cuts = best
    stops: list[int | None] = [*(first for first, _ in cuts[1:]), None]
    starts: list[int | None] = [None, *(first for first, _ in cuts[1:])]
    found = [Range(way, _indicator(measure, low, high)) for (_, way), low, high in zip(cuts, starts, stops)]
    return [entry for entry in found if entry.active != 0]


def _measures(extents: Sequence[Dim], samples: Sequence[Sequence[int]]) -> list[tuple[Dim, Array]]:
    """What ranges may be of: extents that a run tells, and the product of those among them that are no sums."""
    columns = np.array(samples, dtype=np.int64).T
    unknown = [number for number, extent in enumerate(extents) if not isinstance(extent, int)]
    found = {extents[number]: columns[number] for number in reversed(unknown)}
    outer = [number for number in unknown if number < len(extents) - 1]
    if len(outer) > 1:
        found[dims.product(extents[number] for number in outer)] = np.prod(columns[outer], axis=0)
    return list(found.items()) or [(1, np.ones(len(samples), np.int64))]


def _cut(values: Array, lost: Array, weights: Array, most: int) -> tuple[float, list[tuple[int, int]]]:
    """What is lost in all with as few ranges as are good enough, and these: where each starts, and its way."""
    levels, places = np.unique(values, return_inverse=True)
    count, ways = len(levels), lost.shape[1]
    squares, worst = np.zeros((count, ways)), np.zeros((count, ways))
    np.add.at(squares, places, weights[:, None] * lost**2)
    np.maximum.at(worst, places, lost)
    total = np.concatenate([np.zeros((1, ways)), np.cumsum(squares, axis=0)])
    spans = total[None] - total[:, None]  # [first, stop, way]
    way, price = spans.argmin(axis=2), spans.min(axis=2)
    price[np.tril_indices(count + 1)] = np.inf
    best, before = price[0], [np.zeros(count + 1, np.int64)]
    kept = _traced(before, way, count)
    for _ in range(1, min(most, count)):
        if max(worst[first:stop, w].max() for first, stop, w in kept) <= _TOLERANCE:
            break
        options = best[:, None] + price
        before.append(options.argmin(axis=0))
        following = options.min(axis=0)
        if best[-1] - following[-1] < _WORTH * weights.sum() * _TOLERANCE**2:
            break
        best, kept = following, _traced(before, way, count)
    return float(best[-1]), [(_start(levels, first), w) for first, _, w in kept]


def _traced(before: Sequence[Array], way: Array, count: int) -> list[tuple[int, int, int]]:
    """The ranges that led to the best: first level, the one after the last, way."""
    found: list[tuple[int, int, int]] = []
    stop = count
    for cuts in reversed(before):
        first = int(cuts[stop])
        found.insert(0, (first, stop, int(way[first, stop])))
        stop = first
    return found


def _start(levels: Array, first: int) -> int:
    """Between the last level of one range and the first of the next."""
    if first == 0:
        return 0
    last, level = int(levels[first - 1]), int(levels[first])
    return max(isqrt(last * level), last + 1)


def equal(extent: Dim, number: int) -> Dim:
    """1 where an extent is this number, 0 for others."""
    return int(extent == number) if isinstance(extent, int) else _indicator(extent, number, number + 1)


def _indicator(measure: Dim, low: int | None, high: int | None) -> Dim:
    """1 from `low` to before `high`, 0 for others."""
    inside: Dim = 1
    if low is not None:
        inside = dims.minimum(inside, measure - low + 1)
    if high is not None:
        inside = dims.minimum(inside, high - measure)
    return dims.maximum(inside, 0)
