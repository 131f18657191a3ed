"""Scalar expressions that are written once and emitted in every language of the backends.

Operators and functions on terms append instructions (`llvm/terms.py`) or build text (`webgpu/terms.py`). Numbers become
constants of the other operand's type. Integers have no sign: comparisons are signed in LLVM and unsigned in WGSL, so
definitions compare only integers for which both agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar, Union

from weft.errors import InternalError

T = TypeVar("T", bound="Term")
Operand = Union["Term", int, float]

_FRACTION_BITS = {32: 23, 64: 52}


class Term(ABC):
    """A float, an integer or a truth value, or a vector of them; all terms of an expression have the same length."""

    __slots__ = ()

    @property
    @abstractmethod
    def bits(self) -> int:
        """The width of an element."""

    @abstractmethod
    def apply(self: T, operation: str, *operands: Operand) -> T:
        """Apply an operation to this term and others; a mask is the first operand of `select`."""

    @abstractmethod
    def constant(self: T, number: int | float) -> T:
        """A number as a term of this one's type."""

    @abstractmethod
    def let(self: T, name: str, /) -> T:
        """The same value, computed once and named where a language has names."""

    @property
    def fraction(self) -> int:
        """The number of bits in a float's fraction."""
        return _FRACTION_BITS[self.bits]

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        return (1 << self.bits - self.fraction - 2) - 1 << self.fraction

    def __add__(self: T, other: Operand) -> T:
        return self.apply("add", other)

    def __sub__(self: T, other: Operand) -> T:
        return self.apply("subtract", other)

    def __mul__(self: T, other: Operand) -> T:
        return self.apply("multiply", other)

    def __truediv__(self: T, other: Operand) -> T:
        return self.apply("divide", other)

    def __radd__(self: T, other: float) -> T:
        return self.constant(other) + self

    def __rsub__(self: T, other: float) -> T:
        return self.constant(other) - self

    def __rmul__(self: T, other: float) -> T:
        return self.constant(other) * self

    def __rtruediv__(self: T, other: float) -> T:
        return self.constant(other) / self

    def __neg__(self: T) -> T:
        return self.apply("negate")

    def __lshift__(self: T, other: Operand) -> T:
        return self.apply("shift_left", other)

    def __rshift__(self: T, other: Operand) -> T:
        """Shift right arithmetically, repeating the sign."""
        return self.apply("shift_right", other)

    def __and__(self: T, other: Operand) -> T:
        return self.apply("and", other)

    def __or__(self: T, other: Operand) -> T:
        return self.apply("or", other)

    def __xor__(self: T, other: Operand) -> T:
        return self.apply("xor", other)

    def __invert__(self: T) -> T:
        return self.apply("not")

    def __lt__(self: T, other: Operand) -> T:
        return self.apply("<", other)

    def __le__(self: T, other: Operand) -> T:
        return self.apply("<=", other)

    def __gt__(self: T, other: Operand) -> T:
        return self.apply(">", other)

    def __ge__(self: T, other: Operand) -> T:
        return self.apply(">=", other)

    def equals(self: T, other: Operand) -> T:
        return self.apply("==", other)

    def differs(self: T, other: Operand) -> T:
        """Whether two floats are different numbers; NaN does not differ."""
        return self.apply("differs", other)

    def logical_shift_right(self: T, other: Operand) -> T:
        return self.apply("logical_shift_right", other)

    def as_integer(self: T) -> T:
        """The bits of a float."""
        return self.apply("as_integer")

    def as_float(self: T) -> T:
        """The float with these bits."""
        return self.apply("as_float")

    def to_float(self: T) -> T:
        """An unsigned integer converted to a float of its width."""
        return self.apply("to_float")

    def to_integer(self: T) -> T:
        """1 where a mask holds and else 0, as a 32-bit integer."""
        return self.apply("to_integer")

    def widen(self: T) -> T:
        """float32 converted to float64."""
        return self.apply("widen")

    def narrow(self: T) -> T:
        """float64 converted to float32."""
        return self.apply("narrow")


def let(name: str, value: T) -> T:
    return value.let(name)


def fma(a: T, b: Operand, c: Operand) -> T:
    """a * b + c, rounded once where the device can."""
    return a.apply("fma", b, c)


def choose(mask: T, yes: Operand, no: Operand) -> T:
    """`yes` where the mask holds, else `no`; one of the two has to be a term."""
    if not isinstance(yes, Term) and not isinstance(no, Term):
        raise InternalError("a choice between two numbers has no type")
    return mask.apply("select", yes, no)


def at_most(x: T, limit: float) -> T:
    """The smaller one; NaN stays NaN where the device keeps it."""
    bound = x.constant(limit)
    return choose(bound < x, bound, x)


def at_least(x: T, limit: float) -> T:
    """The larger one; NaN stays NaN where the device keeps it."""
    bound = x.constant(limit)
    return choose(bound > x, bound, x)


def absolute(x: T) -> T:
    return x.apply("absolute")


def square_root(x: T) -> T:
    return x.apply("square_root")


def truncate(x: T) -> T:
    return x.apply("truncate")


def with_sign(magnitude: T, sign: T) -> T:
    return magnitude.apply("with_sign", sign)


def is_nan(x: T) -> T:
    return x.apply("is_nan")


def is_odd(x: T) -> T:
    """Whether an integer is odd."""
    return x.apply("is_odd")


def is_negative(x: T) -> T:
    """Whether the sign bit of a float is set."""
    return x.apply("is_negative")


def nearest_multiple(x: T, unit: float) -> T:
    """Divide by a power of two and round to the nearest integer, ties to even; x is positive, the result short."""
    return x.apply("nearest_multiple", unit)


def polynomial(x: T, coefficients: Sequence[float]) -> T:
    """Evaluate by Horner's rule; the constant comes first."""
    result = x.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def odd_polynomial(x: T, coefficients: Sequence[float]) -> T:
    """x + x³ q(x²)."""
    z = let("z", x * x)
    return fma(x * z, polynomial(z, coefficients), x)
