"""Statistics of a stored tensor: range, mean, deviation, histogram; large tensors are sampled."""

from __future__ import annotations

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy
from weft.records import dataclass

SAMPLE = 1 << 18  # elements; smaller tensors are read whole
CHUNK = 1 << 12  # contiguous elements of a sample
BINS = 32
LISTED = 16  # elements up to which all are listed
LONGEST_TEXT = 60


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """Of `sampled` elements; range, mean and deviation are of the finite ones, None if there are none."""

    sampled: int
    least: float | None
    most: float | None
    mean: float | None
    deviation: float | None
    zeros: float  # fraction of all
    not_finite: int
    histogram: tuple[int, ...]
    elements: str  # the list of them, for a small tensor


def compute_statistics(array: Array) -> TensorStatistics:
    """Compute the statistics of a tensor, or of evenly spaced chunks of a large one."""
    flat = array.reshape(-1)
    elements = _list_elements(flat) if flat.size <= LISTED else ""
    if from_numpy(array.dtype) is DType.string:
        elements = elements or f"{_list_elements(flat[:LISTED])}, …"
        return TensorStatistics(flat.size, None, None, None, None, 0.0, 0, (), elements)
    sample = _sample_chunks(flat)
    if np.iscomplexobj(sample):
        sample = np.abs(sample)
    numbers = sample.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return TensorStatistics(numbers.size, None, None, None, None, 0.0, numbers.size, (), elements)
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
        elements=elements,
    )


def _sample_chunks(flat: Array) -> Array:
    if flat.size <= SAMPLE:
        return flat
    starts = np.linspace(0, flat.size - CHUNK, SAMPLE // CHUNK).astype(np.int64)
    return np.concatenate([flat[start : start + CHUNK] for start in starts])


def _histogram(finite: Array, least: float, most: float) -> tuple[int, ...]:
    width = most - least
    if not width or not np.isfinite(width):
        return ()
    bins = ((finite - least) * (BINS / width)).astype(np.int64)
    return tuple(np.bincount(np.minimum(bins, BINS - 1), minlength=BINS).tolist())


def _list_elements(flat: Array) -> str:
    return ", ".join(_format_element(element) for element in flat.tolist())


def _format_element(element: object) -> str:
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
