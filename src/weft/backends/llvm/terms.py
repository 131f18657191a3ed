"""LLVM values as Python expressions: operators append instructions, numbers become constants of the other operand.

A term is a float, an integer or a truth value, or a vector of them; all terms of an expression have the same length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.types import BIT, vector
from weft.records import dataclass

Operand = Union["Term", int, float]


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    builder: Any
    value: Any

    @property
    def element(self) -> Any:
        return self.value.type.element if isinstance(self.value.type, ir.VectorType) else self.value.type

    @property
    def is_float(self) -> bool:
        return isinstance(self.element, (ir.FloatType, ir.DoubleType))

    @property
    def bits(self) -> int:
        """The width of an element."""
        if isinstance(self.element, ir.IntType):
            return int(self.element.width)
        return 64 if isinstance(self.element, ir.DoubleType) else 32

    @property
    def fraction(self) -> int:
        """How many bits of a float's element hold its fraction."""
        return 52 if self.bits == 64 else 23

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        return (1 << self.bits - self.fraction - 2) - 1 << self.fraction

    @property
    def magic(self) -> float:
        """A float whose last place is worth 1: added to a number, it rounds that to an integer in the last bits."""
        return 1.5 * 2.0**self.fraction

    def constant(self, number: int | float) -> Term:
        """A number as a term of this one's type."""
        kind = self.value.type
        number = float(number) if self.is_float else int(number)
        return self._term(
            ir.Constant(kind, [number] * kind.count) if isinstance(kind, ir.VectorType) else ir.Constant(kind, number)
        )

    def like(self, element: Any) -> Any:
        """The type of as many elements of another kind."""
        return vector(element, self.value.type.count) if isinstance(self.value.type, ir.VectorType) else element

    def __add__(self, other: Operand) -> Term:
        return self._apply("fadd", "add", other)

    def __sub__(self, other: Operand) -> Term:
        return self._apply("fsub", "sub", other)

    def __mul__(self, other: Operand) -> Term:
        return self._apply("fmul", "mul", other)

    def __truediv__(self, other: Operand) -> Term:
        return self._apply("fdiv", "sdiv", other)

    def __radd__(self, other: float) -> Term:
        return self.constant(other) + self

    def __rsub__(self, other: float) -> Term:
        return self.constant(other) - self

    def __rmul__(self, other: float) -> Term:
        return self.constant(other) * self

    def __rtruediv__(self, other: float) -> Term:
        return self.constant(other) / self

    def __neg__(self) -> Term:
        return self._term(self.builder.fneg(self.value) if self.is_float else self.builder.neg(self.value))

    def __lshift__(self, other: Operand) -> Term:
        return self._apply("", "shl", other)

    def __rshift__(self, other: Operand) -> Term:
        """Arithmetic: the sign is kept."""
        return self._apply("", "ashr", other)

    def __and__(self, other: Operand) -> Term:
        return self._apply("", "and_", other)

    def __or__(self, other: Operand) -> Term:
        return self._apply("", "or_", other)

    def __xor__(self, other: Operand) -> Term:
        return self._apply("", "xor", other)

    def __invert__(self) -> Term:
        return self._term(self.builder.not_(self.value))

    def __lt__(self, other: Operand) -> Term:
        return self._compare("<", other)

    def __le__(self, other: Operand) -> Term:
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> Term:
        return self._compare(">", other)

    def __ge__(self, other: Operand) -> Term:
        return self._compare(">=", other)

    def equals(self, other: Operand) -> Term:
        return self._compare("==", other)

    def is_not_below(self, other: float) -> Term:
        """Not less, which includes NaN."""
        return self._term(self.builder.fcmp_unordered(">=", self.value, self._value(other)))

    def logical_shift_right(self, other: Operand) -> Term:
        return self._apply("", "lshr", other)

    def as_integer(self) -> Term:
        """The bits of a float."""
        return self._term(self.builder.bitcast(self.value, self.like(ir.IntType(self.bits))))

    def as_float(self) -> Term:
        """Bits as the float they are of."""
        return self._term(self.builder.bitcast(self.value, self.like(_float_type(self.bits))))

    def is_odd(self) -> Term:
        """Whether an integer is odd."""
        return self._term(self.builder.trunc(self.value, self.like(BIT)))

    def widened(self) -> Term:
        return self._term(self.builder.fpext(self.value, self.like(ir.DoubleType())))

    def narrowed(self) -> Term:
        return self._term(self.builder.fptrunc(self.value, self.like(ir.FloatType())))

    def _term(self, value: Any) -> Term:
        return Term(self.builder, value)

    def _value(self, other: Operand) -> Any:
        return other.value if isinstance(other, Term) else self.constant(other).value

    def _apply(self, real: str, integer: str, other: Operand) -> Term:
        method = getattr(self.builder, real if self.is_float else integer)
        return self._term(method(self.value, self._value(other)))

    def _compare(self, order: str, other: Operand) -> Term:
        method = self.builder.fcmp_ordered if self.is_float else self.builder.icmp_signed
        return self._term(method(order, self.value, self._value(other)))


def fma(a: Term, b: Operand, c: Operand) -> Term:
    """a * b + c, rounded once."""
    return call("llvm.fma", a, *(x if isinstance(x, Term) else a.constant(x) for x in (b, c)))


def choose(mask: Term, yes: Operand, no: Operand) -> Term:
    """`yes` where the mask holds; one of the two has to be a term."""
    sample = yes if isinstance(yes, Term) else no
    assert isinstance(sample, Term)
    values = [choice.value if isinstance(choice, Term) else sample.constant(choice).value for choice in (yes, no)]
    return Term(mask.builder, mask.builder.select(mask.value, *values))


def at_most(x: Term, limit: float) -> Term:
    """The smaller one; NaN stays NaN."""
    bound = x.constant(limit)
    return choose(bound < x, bound, x)


def at_least(x: Term, limit: float) -> Term:
    """The larger one; NaN stays NaN."""
    bound = x.constant(limit)
    return choose(bound > x, bound, x)


def absolute(x: Term) -> Term:
    return call("llvm.fabs", x)


def square_root(x: Term) -> Term:
    return call("llvm.sqrt", x)


def with_sign(magnitude: Term, sign: Term) -> Term:
    return call("llvm.copysign", magnitude, sign)


def polynomial(x: Term, coefficients: Sequence[float]) -> Term:
    """By Horner's rule, the constant first."""
    result = x.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def odd_polynomial(x: Term, coefficients: Sequence[float]) -> Term:
    """x + x³ q(x²)."""
    z = x * x
    return fma(x * z, polynomial(z, coefficients), x)


def any_lane(mask: Term) -> Term:
    """Whether a mask holds anywhere, as a scalar."""
    kind = mask.value.type
    if not isinstance(kind, ir.VectorType):
        return mask
    function = declare(mask.builder.module, f"llvm.vector.reduce.or.v{kind.count}i1", ir.FunctionType(BIT, [kind]))
    return Term(mask.builder, mask.builder.call(function, [mask.value]))


def call(name: str, *terms: Term) -> Term:
    """An LLVM intrinsic whose result and operands have one type."""
    kind = terms[0].value.type
    letter = "f" if terms[0].is_float else "i"
    count = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
    signature = ir.FunctionType(kind, [kind] * len(terms))
    function = declare(terms[0].builder.module, f"{name}.{count}{letter}{terms[0].bits}", signature)
    return Term(terms[0].builder, terms[0].builder.call(function, [term.value for term in terms]))


def declare(module: Any, name: str, signature: Any) -> Any:
    return module.globals[name] if name in module.globals else ir.Function(module, signature, name)


def _float_type(bits: int) -> Any:
    return ir.DoubleType() if bits == 64 else ir.FloatType()
