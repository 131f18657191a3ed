"""Arithmetic on constants for rewrites: in float64, and only if the result type can represent the results.

Rewrites may round a constant, which costs half a unit in the last place, but not let it underflow or overflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.arrays import Array


def round_product(left: Array, right: Array, dtype: np.dtype[Any]) -> Array | None:
    """Multiply two constants and round the product; return None if an element over- or underflows."""
    with np.errstate(all="ignore"):
        wide = left.astype(np.float64) * right.astype(np.float64)
    underflows = (np.abs(wide) < _limits(dtype).smallest_normal) & (left != 0) & (right != 0)
    return None if bool(underflows.any()) else round_finite(wide, dtype)


def round_finite(wide: Array, dtype: np.dtype[Any]) -> Array | None:
    """Round float64 numbers to a type; return None if any becomes infinite or NaN."""
    with np.errstate(all="ignore"):
        rounded: Array = np.asarray(wide).astype(dtype)
    return rounded if is_finite(rounded) else None


def is_finite(array: Array) -> bool:
    """Whether an array of any float type holds neither infinities nor NaN."""
    return bool(np.isfinite(array if array.dtype.kind == "f" else array.astype(np.float64)).all())


def weights_vanish(weights: Array, factors: Array, axes: tuple[int, ...]) -> bool:
    """Whether scaling weights makes all the weights of one sum, over `axes`, too small for their type.

    An element may underflow if others of the same sum do not: the error is below their rounding error. Weights that
    were subnormal before may stay so, unless they get smaller.
    """
    highest, lowest = (
        reduce(weights, axis=axes, keepdims=True, initial=0).astype(np.float64) for reduce in (np.max, np.min)
    )
    largest = np.maximum(highest, -lowest)
    with np.errstate(all="ignore"):
        small = largest * np.abs(factors) < np.minimum(largest, float(_limits(weights.dtype).smallest_normal))
    return bool((small & (largest != 0) & (factors != 0)).any())


def absorbs(offset: Array, dtype: np.dtype[Any]) -> bool:
    """Whether adding an offset rounds fractions away, which `(x + 1.5 * 2**23) - 1.5 * 2**23` does on purpose."""
    with np.errstate(all="ignore"):
        return not bool((np.abs(offset) < 2.0 ** (_limits(dtype).nmant - 1)).all())


def _limits(dtype: np.dtype[Any]) -> Any:
    import ml_dtypes

    describe: Any = ml_dtypes.finfo
    return describe(dtype)
