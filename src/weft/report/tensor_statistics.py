"""What the elements of a stored tensor are like: range, mean, spread, a histogram; of large ones by a sample."""

from __future__ import annotations

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy
from weft.records import dataclass

WHOLE = 1 << 18  # elements up to which all are looked at
CHUNK = 1 << 12  # elements of a stretch of the sample
BINS = 32
FEW = 16  # elements that are listed
LONGEST_TEXT = 60


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """`sampled` elements were looked at; numbers are of the finite ones, None where there are none of them."""

    sampled: int
    least: float | None
    most: float | None
    mean: float | None
    deviation: float | None
    zeros: float  # as a part of all
    not_finite: int
    histogram: tuple[int, ...]
    elements: str  # of a small tensor


def tensor_statistics(array: Array) -> TensorStatistics:
    """Look at a tensor, or at stretches of it that lie evenly apart."""
    flat = array.reshape(-1)
    listed = _listed(flat) if flat.size <= FEW else ""
    if from_numpy(array.dtype) is DType.string:
        first = listed or f"{_listed(flat[:FEW])}, …"
        return TensorStatistics(flat.size, None, None, None, None, 0.0, 0, (), first)
    sample = _sample(flat)
    if np.iscomplexobj(sample):
        sample = np.abs(sample)
    numbers = sample.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return TensorStatistics(numbers.size, None, None, None, None, 0.0, numbers.size, (), listed)
    least, most = float(finite.min()), float(finite.max())
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = float(finite.mean()), float(finite.std())
    return TensorStatistics(
        sampled=numbers.size,
        least=least,
        most=most,
        mean=mean if np.isfinite(mean) else None,
        deviation=deviation if np.isfinite(deviation) else None,
        zeros=float(np.count_nonzero(numbers == 0) / numbers.size),
        not_finite=numbers.size - finite.size,
        histogram=_histogram(finite, least, most),
        elements=listed,
    )


def _sample(flat: Array) -> Array:
    if flat.size <= WHOLE:
        return flat
    starts = np.linspace(0, flat.size - CHUNK, WHOLE // CHUNK).astype(np.int64)
    return np.concatenate([flat[start : start + CHUNK] for start in starts])


def _histogram(finite: Array, least: float, most: float) -> tuple[int, ...]:
    width = most - least
    if not width or not np.isfinite(width):
        return ()
    places = ((finite - least) * (BINS / width)).astype(np.int64)
    return tuple(np.bincount(np.minimum(places, BINS - 1), minlength=BINS).tolist())


def _listed(flat: Array) -> str:
    return ", ".join(_element(element) for element in flat.tolist())


def _element(element: object) -> str:
    match element:
        case bool():
            return str(element).lower()
        case float():
            return f"{element:.6g}"
        case str() | bytes():
            text = element if isinstance(element, str) else element.decode("utf-8", "replace")
            text = text.encode("utf-8", "replace").decode()
            return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
        case _:
            return str(element)
