"""Choose among candidates by ranges of dynamic sizes.

In: extents as dims, and the times of all candidates for samples of the extents. Out: some of the candidates, each with
an indicator: a dim that is 1 for the sizes it is chosen for and 0 for all others. For any sizes exactly one is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product as combinations
from math import isqrt, prod
from typing import TypeVar

import numpy as np

from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim, Symbol
from weft.ir.work import Launch
from weft.records import dataclass

Choice = TypeVar("Choice")

_POWERS = tuple(1 << power for power in range(10))
_BETWEEN = (3, 6, 12, 24, 48, 96, 192)
_ALONE = tuple(sorted((*_POWERS, *_BETWEEN, 1024, 2048, 4096)))
_COARSE = (1, 8, 64, 512)
_TOLERANCE = 0.1  # by which a candidate may be slower than the best one
_MIN_GAIN = 0.05  # of the squared loss, that another range has to save
_MAX_WEIGHT = 4.0  # of the smallest size, which is the most frequent, and of the largest ones
_LONG = 25.0  # microseconds; samples that take longer have more weight
_MAX_SLOWDOWN = 30.0  # relative to the best time: worse candidates are all treated alike
_MAX_PRODUCT = 1 << 53  # of a sample's extents: no run computes more, and float64 times are exact up to there


@dataclass(frozen=True, slots=True)
class Range:
    """The index of a candidate, and the indicator of the sizes that it is chosen for."""

    candidate: int
    active: Dim


def sample_extents(extents: Sequence[Dim]) -> list[tuple[int, ...]]:
    """Sample the values of extents from small to large, without zeros and without more than any run computes.

    At most one sample where all extents are known.
    """
    symbols = sorted({symbol for extent in extents for symbol in dims.symbols(extent)}, key=lambda symbol: symbol.name)
    samples: dict[tuple[int, ...], None] = {}
    for values in _sample_symbols(symbols):
        sizes = {symbol.name: value for symbol, value in zip(symbols, values)}
        try:
            numbers = tuple(dims.evaluate(extent, sizes) for extent in extents)
        except ArithmeticError:
            continue
        if all(number > 0 for number in numbers) and prod(numbers) <= _MAX_PRODUCT:
            samples[numbers] = None
    return list(samples)


def _sample_symbols(symbols: Sequence[Symbol]) -> list[tuple[int, ...]]:
    if len(symbols) > len((_ALONE, _POWERS, _COARSE)):  # too many to combine: sample the diagonal
        columns = [[_clamp(symbol, value) for value in _POWERS] for symbol in symbols]
        return list(zip(*columns))
    values = (_ALONE, _POWERS, _COARSE)[max(len(symbols) - 1, 0)]
    return list(combinations(*(sorted({_clamp(symbol, value) for value in values}) for symbol in symbols)))


def _clamp(symbol: Symbol, value: int) -> int:
    value = max(value, symbol.low or 0)
    return value if symbol.high is None else min(value, symbol.high)


def choose_ranges(
    extents: Sequence[Dim], samples: Sequence[Sequence[int]], times: Array, max_ranges: int
) -> list[Range]:
    """Choose candidates for ranges of the measure that separates them best: an extent, or a product of several.

    `times` is [samples, candidates]. There are fewer than `max_ranges` ranges where fewer do about as well.
    """
    losses = np.minimum(times / times.min(axis=1, keepdims=True), _MAX_SLOWDOWN) - 1
    weights = 1 + np.minimum(times.min(axis=1) / _LONG, _MAX_WEIGHT - 1)
    weights[0] = _MAX_WEIGHT
    best: tuple[float, Dim, list[tuple[int, int]]] | None = None
    for measure, values in _list_measures(extents, samples):
        loss, cuts = _cut_ranges(values, losses, weights, max_ranges)
        if best is None or loss < best[0]:
            best = loss, measure, cuts
    assert best is not None
    _, measure, cuts = best
    stops: list[int | None] = [*(first for first, _ in cuts[1:]), None]
    starts: list[int | None] = [None, *(first for first, _ in cuts[1:])]
    ranges = [Range(index, indicator(measure, low, high)) for (_, index), low, high in zip(cuts, starts, stops)]
    return [entry for entry in ranges if entry.active != 0]


def _list_measures(extents: Sequence[Dim], samples: Sequence[Sequence[int]]) -> list[tuple[Dim, Array]]:
    """List the measures to divide into ranges: dynamic extents, and their product without the reduction (the last)."""
    columns = np.array(samples, dtype=np.int64).T
    dynamic = [number for number, extent in enumerate(extents) if not isinstance(extent, int)]
    measures = {extents[number]: columns[number] for number in reversed(dynamic)}
    outer = [number for number in dynamic if number < len(extents) - 1]
    if len(outer) > 1:
        measures[dims.product(extents[number] for number in outer)] = np.prod(columns[outer], axis=0)
    return list(measures.items()) or [(1, np.ones(len(samples), np.int64))]


def _cut_ranges(values: Array, losses: Array, weights: Array, max_ranges: int) -> tuple[float, list[tuple[int, int]]]:
    """Cut the values into as few ranges as are good enough, by dynamic programming.

    Returns the total loss, and the start and the candidate of each range.
    """
    levels, places = np.unique(values, return_inverse=True)
    count, candidates = len(levels), losses.shape[1]
    squares, worst = np.zeros((count, candidates)), np.zeros((count, candidates))
    np.add.at(squares, places, weights[:, None] * losses**2)
    np.maximum.at(worst, places, losses)
    total = np.concatenate([np.zeros((1, candidates)), np.cumsum(squares, axis=0)])
    spans = total[None] - total[:, None]  # [first, stop, candidate]
    choice, price = spans.argmin(axis=2), spans.min(axis=2)
    price[np.tril_indices(count + 1)] = np.inf
    best, steps = price[0], [np.zeros(count + 1, np.int64)]
    ranges = _trace_ranges(steps, choice, count)
    for _ in range(1, min(max_ranges, count)):
        if max(worst[first:stop, index].max() for first, stop, index in ranges) <= _TOLERANCE:
            break
        options = best[:, None] + price
        steps.append(options.argmin(axis=0))
        following = options.min(axis=0)
        if best[-1] - following[-1] < _MIN_GAIN * weights.sum() * _TOLERANCE**2:
            break
        best, ranges = following, _trace_ranges(steps, choice, count)
    return float(best[-1]), [(_range_start(levels, first), index) for first, _, index in ranges]


def _trace_ranges(steps: Sequence[Array], choice: Array, count: int) -> list[tuple[int, int, int]]:
    """Trace the best ranges back: first level, the one after the last, candidate."""
    ranges: list[tuple[int, int, int]] = []
    stop = count
    for cuts in reversed(steps):
        first = int(cuts[stop])
        ranges.insert(0, (first, stop, int(choice[first, stop])))
        stop = first
    return ranges


def _range_start(levels: Array, first: int) -> int:
    """Return a bound between the last level of one range and the first of the next."""
    if first == 0:
        return 0
    last, level = int(levels[first - 1]), int(levels[first])
    return max(isqrt(last * level), last + 1)


def list_active(choices: Sequence[tuple[int, Choice]], measure: Dim) -> list[tuple[Choice, Dim]]:
    """Pair choices, each with the first number it is for, with their indicators; without those that are never used."""
    firsts: list[int | None] = [None, *(first for first, _ in choices[1:])]
    ends: list[int | None] = [*firsts[1:], None]
    pairs = [(choice, indicator(measure, low, high)) for (_, choice), low, high in zip(choices, firsts, ends)]
    return [(choice, active) for choice, active in pairs if active != 0]


def run_where(active: Dim, launch: Launch) -> Launch:
    """Return the launch with its blocks where an indicator is 1, and with no blocks elsewhere."""
    return launch if active == 1 else replace(launch, blocks=active * launch.blocks)


def equal(extent: Dim, number: int) -> Dim:
    """Return an indicator that is 1 where an extent is this number."""
    return int(extent == number) if isinstance(extent, int) else indicator(extent, number, number + 1)


def indicator(measure: Dim, low: int | None, high: int | None) -> Dim:
    """Return a dim that is 1 from `low` to before `high`, 0 for others."""
    inside: Dim = 1
    if low is not None:
        inside = dims.minimum(inside, measure - low + 1)
    if high is not None:
        inside = dims.minimum(inside, high - measure)
    return dims.maximum(inside, 0)
