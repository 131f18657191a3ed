"""Functions that numpy lacks."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from weft.ir.arrays import Array

_CHUNK = 8192  # elements whose temporaries stay in the cache


def erf(x: Array) -> Array:
    """Compute the error function in x's dtype, to a relative error below 1e-14."""
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty(flat.shape, flat.dtype)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK].astype(np.float64)
        result[start : start + _CHUNK] = _erf(part).astype(flat.dtype)
    return result.reshape(np.shape(x))


def _erf(x: Array) -> Array:
    near, tail = _coefficients()
    size = np.minimum(np.abs(x), 27.0)
    small = size < 1.0
    t = 1.0 / (1.0 + 0.5 * size)
    complement = t * np.exp(-size * size + chebyshev.chebval(2.0 * t - 1.0, tail))
    small_size = np.where(small, size, 0.0)
    series = small_size * chebyshev.chebval(2.0 * small_size * small_size - 1.0, near)
    result = np.copysign(np.where(small, series, 1.0 - complement), x)
    return np.where(np.isnan(x), x, result)


@lru_cache(maxsize=1)
def _coefficients() -> tuple[Array, Array]:
    """Fit erf(x) / x on [0, 1] as a series in 2x^2 - 1, and log(erfc(x) / t) + x^2 in t = 1 / (1 + x / 2)."""

    def near(u: Array) -> Array:
        x = np.sqrt(np.maximum((u + 1.0) / 2.0, 1e-30))
        return np.array([math.erf(v) / v for v in x])

    def tail(u: Array) -> Array:
        t = (u + 1.0) / 2.0
        x = np.minimum(2.0 / np.maximum(t, 1e-9) - 2.0, 26.0)
        return np.array([math.log(math.erfc(v) * (1.0 + 0.5 * v)) + v * v for v in x])

    return chebyshev.chebinterpolate(near, 18), _fit_tail(tail)


def _fit_tail(tail: Any) -> Array:
    """Interpolate where erfc does not underflow: t in [1 / 14, 1], which covers |x| <= 26."""
    low = 1.0 / 14.0
    u = np.cos(np.pi * (np.arange(200) + 0.5) / 200)
    nodes = (1.0 + low) / 2.0 + (1.0 - low) / 2.0 * u
    return chebyshev.chebfit(2.0 * nodes - 1.0, tail(2.0 * nodes - 1.0), 30)
