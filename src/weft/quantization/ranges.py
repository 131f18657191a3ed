"""Choose the range of a value that eight bits represent, from a histogram over many runs.

A histogram is symmetric around 0. A number outside of it doubles its width as often as needed, which merges pairs of
bins.
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
"""The fractions of a range that are tried."""


@dataclass(frozen=True, slots=True)
class QuantizationParameters:
    """The scale and zero point of values in eight bits."""

    scale: float
    zero_point: int
    dtype: str

    @property
    def scale_array(self) -> Array:
        return np.asarray(self.scale, np.float32)

    @property
    def zero_array(self) -> Array:
        return np.asarray(self.zero_point, self.dtype)


class ValueRange:
    """The histogram of one value over runs."""

    def __init__(self) -> None:
        self.low = 0.0  # the range always includes 0, which padding needs
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
            bins = np.clip((numbers * (half / self._limit)).astype(np.int64, copy=False) + half, 0, BINS - 1)
            bins -= (numbers < 0) & (bins > 0)  # the cast rounds towards 0
            self._counts += np.bincount(bins, minlength=BINS)

    def _widen(self, largest: float) -> None:
        if not self._limit:
            self._limit = largest
        while largest > self._limit:
            quarter = BINS // 4
            pairs = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts = np.concatenate([np.zeros(quarter, np.int64), pairs, np.zeros(quarter, np.int64)])
            self._limit *= 2

    def choose(self, method: str) -> tuple[float, float]:
        """Choose the lowest and the highest number that eight bits represent."""
        if not self._counts.any() or self.low == self.high:
            return self.low, self.high
        return METHODS[method](self)

    def bins(self) -> tuple[Array, Array]:
        """Return the middle and the count of each bin that is not empty."""
        width = 2 * self._limit / BINS
        middles = (np.arange(BINS) + 0.5) * width - self._limit
        used = self._counts > 0
        return np.clip(middles[used], self.low, self.high), self._counts[used].astype(np.float64)


def make_parameters(low: float, high: float, dtype: str) -> QuantizationParameters:
    """Make the parameters of uint8 or int8 for a range, with an exact 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / (LEVELS - 1)))
    if not scale > np.finfo(np.float32).tiny or not np.isfinite(scale):
        return QuantizationParameters(1.0, 0, dtype)
    zero_point = int(np.clip(np.rint(-low / scale), 0, LEVELS - 1))
    return QuantizationParameters(scale, zero_point - (LEVELS // 2 if dtype == "int8" else 0), dtype)


def _choose_whole_range(values: ValueRange) -> tuple[float, float]:
    return values.low, values.high


def _choose_percentile(values: ValueRange) -> tuple[float, float]:
    middles, counts = values.bins()
    shares = np.cumsum(counts) / counts.sum()
    tail = (1 - PERCENTILE / 100) / 2
    low = middles[np.searchsorted(shares, tail)] if values.low < 0 else 0.0
    high = middles[min(int(np.searchsorted(shares, 1 - tail)), len(middles) - 1)] if values.high > 0 else 0.0
    return float(min(low, 0.0)), float(max(high, 0.0))


def _choose_least_error(values: ValueRange) -> tuple[float, float]:
    """Choose the range with the least squared error of clipping and rounding."""
    middles, counts = values.bins()

    def error(low: float, high: float) -> float:
        scale = (high - low) / (LEVELS - 1)
        quantized = np.clip(np.rint(middles / scale), np.rint(low / scale), np.rint(high / scale))
        return float((counts * (quantized * scale - middles) ** 2).sum())

    return _search(values, error)


def _choose_least_divergence(values: ValueRange) -> tuple[float, float]:
    """Choose the range with the least Kullback-Leibler divergence of quantized and original values."""
    middles, counts = values.bins()
    shares = counts / counts.sum()

    def divergence(low: float, high: float) -> float:
        inside = np.clip(middles, low, high)
        levels = np.rint((inside - low) * ((LEVELS - 1) / (high - low))).astype(np.int64)
        within = np.where((middles >= low) & (middles <= high), shares, 0.0)
        total = np.bincount(levels, within, LEVELS)
        used = np.bincount(levels, within > 0, LEVELS)
        quantized = np.where(within > 0, total[levels] / np.maximum(used[levels], 1), 0.0)
        clipped = within.copy()
        for outside, end in ((middles < low, 0), (middles > high, -1)):
            bins = np.flatnonzero(within)
            if outside.any() and bins.size:
                clipped[bins[end]] += shares[outside].sum()
        nonzero = (clipped > 0) & (quantized > 0)
        return float((clipped[nonzero] * np.log(clipped[nonzero] / (quantized[nonzero] / quantized.sum()))).sum())

    return _search(values, divergence)


def _search(values: ValueRange, cost: Callable[[float, float], float]) -> tuple[float, float]:
    """Minimise a cost over fractions of the range, alternating twice between its two ends."""
    low, high = values.low, values.high
    for _ in range(2):
        if high > 0:
            high = min((float(part) * values.high for part in SHRINKS), key=lambda each: cost(low, each))
        if low < 0:
            low = min((float(part) * values.low for part in SHRINKS), key=lambda each: cost(each, high))
    return low, high


METHODS: dict[str, Callable[[ValueRange], tuple[float, float]]] = {
    "minmax": _choose_whole_range,
    "percentile": _choose_percentile,
    "entropy": _choose_least_divergence,
    "mse": _choose_least_error,
}
"""The methods of calibration by name."""
