"""The numbers that a value has over many runs, as a histogram, and the range of them that is worth eight bits.

Nothing but counts is kept. A histogram is symmetric around 0; where a number lies outside of it, it becomes twice as
wide as often as needed, and pairs of its bins become one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.ir.arrays import Array

BINS = 8192  # over both signs
LEVELS = 256
PERCENTILE = 99.99
SHRINKS = np.linspace(0.2, 1.0, 41)
"""The parts of a range that are tried."""


@dataclass(frozen=True, slots=True)
class CodeScale:
    """What turns numbers into eight bits: a scale, and the code of 0."""

    scale: float
    zero: int
    dtype: str

    @property
    def scale_array(self) -> Array:
        return np.asarray(self.scale, np.float32)

    @property
    def zero_array(self) -> Array:
        return np.asarray(self.zero, self.dtype)


class ValueRange:
    """Counts of the numbers of one value, run after run."""

    def __init__(self) -> None:
        self.low = 0.0  # 0 is always within the range: it is what padding has
        self.high = 0.0
        self.is_finite = True
        self._limit = 0.0
        self._counts: Array = np.zeros(BINS, np.int64)

    @property
    def largest(self) -> float:
        return max(self.high, -self.low)

    def add(self, content: Array) -> None:
        numbers = np.asarray(content, np.float32).reshape(-1)
        finite = np.isfinite(numbers)
        if not finite.all():
            self.is_finite = False
            numbers = numbers[finite]
        if not numbers.size:
            return
        low, high = float(numbers.min()), float(numbers.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.largest > self._limit:
            self._widen(self.largest)
        if self._limit:
            half = BINS // 2
            places = np.clip((numbers * (half / self._limit)).astype(np.int64, copy=False) + half, 0, BINS - 1)
            places -= (numbers < 0) & (places > 0)  # the cast above went towards 0
            self._counts += np.bincount(places, minlength=BINS)

    def _widen(self, largest: float) -> None:
        if not self._limit:
            self._limit = largest
        while largest > self._limit:
            quarter = BINS // 4
            pairs = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts = np.concatenate([np.zeros(quarter, np.int64), pairs, np.zeros(quarter, np.int64)])
            self._limit *= 2

    def chosen(self, method: str) -> tuple[float, float]:
        """The lowest and the highest number that a code stands for."""
        if not self._counts.any() or self.low == self.high:
            return self.low, self.high
        return METHODS[method](self)

    def bins(self) -> tuple[Array, Array]:
        """The middle of each bin, and its count; only of those within the range."""
        width = 2 * self._limit / BINS
        middles = (np.arange(BINS) + 0.5) * width - self._limit
        used = self._counts > 0
        return np.clip(middles[used], self.low, self.high), self._counts[used].astype(np.float64)


def code_scale(low: float, high: float, dtype: str) -> CodeScale:
    """Codes of uint8 or int8 over a range, in which 0 has a code of its own."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / (LEVELS - 1)))
    if not scale > np.finfo(np.float32).tiny or not np.isfinite(scale):
        return CodeScale(1.0, 0, dtype)
    zero = int(np.clip(np.rint(-low / scale), 0, LEVELS - 1))
    return CodeScale(scale, zero - (LEVELS // 2 if dtype == "int8" else 0), dtype)


def _whole(values: ValueRange) -> tuple[float, float]:
    return values.low, values.high


def _most(values: ValueRange) -> tuple[float, float]:
    """All but a few at each end."""
    middles, counts = values.bins()
    shares = np.cumsum(counts) / counts.sum()
    tail = (1 - PERCENTILE / 100) / 2
    low = middles[np.searchsorted(shares, tail)] if values.low < 0 else 0.0
    high = middles[min(int(np.searchsorted(shares, 1 - tail)), len(middles) - 1)] if values.high > 0 else 0.0
    return float(min(low, 0.0)), float(max(high, 0.0))


def _least_error(values: ValueRange) -> tuple[float, float]:
    """The range with the least squared error, of numbers that are cut off and of those that are rounded."""
    middles, counts = values.bins()

    def error(low: float, high: float) -> float:
        scale = (high - low) / (LEVELS - 1)
        codes = np.clip(np.rint(middles / scale), np.rint(low / scale), np.rint(high / scale))
        return float((counts * (codes * scale - middles) ** 2).sum())

    return _narrowest(values, error)


def _least_divergence(values: ValueRange) -> tuple[float, float]:
    """The range in which the distribution of codes tells most about that of the numbers (Kullback and Leibler)."""
    middles, counts = values.bins()
    shares = counts / counts.sum()

    def divergence(low: float, high: float) -> float:
        inside = np.clip(middles, low, high)
        codes = np.rint((inside - low) * ((LEVELS - 1) / (high - low))).astype(np.int64)
        within = np.where((middles >= low) & (middles <= high), shares, 0.0)
        total = np.bincount(codes, within, LEVELS)
        used = np.bincount(codes, within > 0, LEVELS)
        spread = np.where(within > 0, total[codes] / np.maximum(used[codes], 1), 0.0)
        clipped = within.copy()
        for outside, at in ((middles < low, 0), (middles > high, -1)):
            places = np.flatnonzero(within)
            if outside.any() and places.size:
                clipped[places[at]] += shares[outside].sum()
        seen = (clipped > 0) & (spread > 0)
        return float((clipped[seen] * np.log(clipped[seen] / (spread[seen] / spread.sum()))).sum())

    return _narrowest(values, divergence)


def _narrowest(values: ValueRange, cost: Callable[[float, float], float]) -> tuple[float, float]:
    """The best of many parts of the range, each end on its own and then again."""
    low, high = values.low, values.high
    for _ in range(2):
        if high > 0:
            high = min((float(part) * values.high for part in SHRINKS), key=lambda each: cost(low, each))
        if low < 0:
            low = min((float(part) * values.low for part in SHRINKS), key=lambda each: cost(each, high))
    return low, high


METHODS: dict[str, Callable[[ValueRange], tuple[float, float]]] = {
    "minmax": _whole,
    "percentile": _most,
    "entropy": _least_divergence,
    "mse": _least_error,
}
"""How a range is chosen, by name."""
