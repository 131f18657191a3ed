"""Tell where 32-bit index arithmetic is exact, on devices whose sizes and positions have 32 bits."""

from __future__ import annotations

from weft.ir.dims import Compound, Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Code, Integer, Number

_SMALL = range(-(2**31), 2**31)


def index_of(code: Code) -> Dim | None:
    """Return a value as index arithmetic; None if it is anything else."""
    match code:
        case Integer(value):
            return value
        case Number(int(value), DType.int64):
            return value
    return None


def are_indices(*codes: Code) -> bool:
    """Whether all values are index arithmetic that 32 bits hold."""
    return all((value := index_of(code)) is not None and fit(value) for code in codes)


def fit(*values: Dim) -> bool:
    """Whether all numbers in index arithmetic have 32 bits; sizes and positions always do."""
    return all(_has_small_numbers(value) for value in values)


def _has_small_numbers(value: Dim) -> bool:
    if isinstance(value, int):
        return value in _SMALL
    return all(
        coefficient in _SMALL and all(fit(atom.left, atom.right) for atom in monomial if isinstance(atom, Compound))
        for monomial, coefficient in value.terms
    )


def is_short(value: Dim) -> bool:
    """Whether index arithmetic is a position or a size, perhaps plus a small number, which fits 32 bits."""
    if isinstance(value, int):
        return True
    return all(len(monomial) <= 1 and abs(coefficient) <= (1 << 16) for monomial, coefficient in value.terms) and (
        sum(bool(monomial) for monomial, _ in value.terms) <= 1
        and all(abs(coefficient) == 1 for monomial, coefficient in value.terms if monomial)
    )
