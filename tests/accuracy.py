"""Elementary functions in a wider type than the tested one, numbers to try them on, and distances in ulp."""

from __future__ import annotations

import math

import numpy as np
import pytest

NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"} | {f"a{h}": f"arc{h}" for h in ("sinh", "cosh", "tanh")}
SPECIAL = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 1e10, 1e-40, 5e-324, math.inf, math.nan, math.pi, math.pi / 2, 88.7, 709.7)
needs_longdouble = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="longdouble is no wider than float64 here"
)


def widened(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)


def true_values(name: str, *arguments: np.ndarray) -> np.ndarray:
    wide = [widened(argument) for argument in arguments]
    with np.errstate(all="ignore"):
        if name != "erf":
            return np.asarray(getattr(np, NUMPY.get(name, name))(*wide))
        if wide[0].dtype == np.float64:
            return np.fromiter(map(math.erf, wide[0].tolist()), np.float64, len(wide[0]))
        return true_erf(wide[0])


def true_erf(x: np.ndarray) -> np.ndarray:
    """2 / sqrt(pi) exp(-x²) (x + 2 x³ / 3 + 4 x⁵ / 15 + ...): all terms have one sign, so none cancel."""
    y = np.minimum(np.abs(x), 6)
    term = y
    total = y
    for degree in range(3, 301, 2):
        term = term * (2 * y * y / degree)
        total = total + term
    # acos(-1) is pi in full longdouble precision
    return np.copysign(np.exp(-y * y) * total * 2 / np.sqrt(np.arccos(-np.ones_like(y))), x)


def errors(got: np.ndarray, true: np.ndarray) -> np.ndarray:
    """In ulp of the true value; infinite where only one is NaN or a zero has the wrong sign."""
    facts = np.finfo(got.dtype)
    wide = true.dtype.type
    largest = np.ldexp(wide(1), facts.maxexp)  # what infinity would be, had the type one more exponent
    with np.errstate(all="ignore"):
        finite = np.clip(true, -largest, largest)
        exponent = np.clip(np.frexp(finite)[1] - 1, facts.minexp, facts.maxexp - 1)
        difference = np.abs(np.clip(widened(got), -largest, largest) - finite)
        distance = np.ldexp(difference, facts.nmant - exponent)
    nan = np.isnan(true)
    wrong = (np.isnan(got) != nan) | ((got == 0) & (true == 0) & (np.signbit(got) != np.signbit(true)))
    return np.where(wrong, np.inf, np.where(nan, 0, distance)).astype(np.float64)


def samples(dtype: str, count: int, seed: int = 0) -> np.ndarray:
    """Special values, every exponent with random fractions, and numbers of everyday size, for half of the count."""
    generator = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    unsigned = np.dtype(f"u{kind.itemsize}")
    anything = generator.integers(0, np.iinfo(unsigned).max, count // 2, unsigned, endpoint=True).view(kind)
    usual = generator.normal(size=count // 4) * np.exp(generator.uniform(-8, 5.5, count // 4))
    units = generator.uniform(-2, 2, count // 4)
    facts = np.finfo(kind)
    special = np.array([*SPECIAL, facts.max, facts.tiny, facts.smallest_subnormal], kind)
    with np.errstate(over="ignore"):
        near = np.concatenate([special, np.nextafter(special, kind.type(0)), np.nextafter(special, kind.type(np.inf))])
    return np.concatenate([near, -near, anything, usual.astype(kind), units.astype(kind)])
