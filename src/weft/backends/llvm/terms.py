"""Terms whose operations append LLVM instructions."""

from __future__ import annotations

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Builder, Value, declare, intrinsic, like, splat
from weft.backends.llvm.types import BIT, INT32
from weft.backends.numerics import terms
from weft.backends.numerics.terms import Operand
from weft.records import dataclass

# methods of the builder for integers and floats
_INSTRUCTIONS = {
    "add": ("add", "fadd"),
    "subtract": ("sub", "fsub"),
    "multiply": ("mul", "fmul"),
    "divide": ("sdiv", "fdiv"),
    "negate": ("neg", "fneg"),
    "shift_left": ("shl", ""),
    "shift_right": ("ashr", ""),
    "logical_shift_right": ("lshr", ""),
    "and": ("and_", ""),
    "or": ("or_", ""),
    "xor": ("xor", ""),
    "not": ("not_", ""),
}
_INTRINSICS = {
    "fma": "llvm.fma",
    "absolute": "llvm.fabs",
    "square_root": "llvm.sqrt",
    "truncate": "llvm.trunc",
    "with_sign": "llvm.copysign",
}
_FLOAT_TYPES = {32: ir.FloatType(), 64: ir.DoubleType()}


@dataclass(frozen=True, slots=True, eq=False)
class Term(terms.Term):
    builder: Builder
    value: Value

    @property
    def element(self) -> ir.Type:
        return self.value.type.element if isinstance(self.value.type, ir.VectorType) else self.value.type

    @property
    def is_float(self) -> bool:
        return isinstance(self.element, (ir.FloatType, ir.DoubleType))

    @property
    def bits(self) -> int:
        if isinstance(self.element, ir.IntType):
            return int(self.element.width)
        return 64 if isinstance(self.element, ir.DoubleType) else 32

    @property
    def magic(self) -> float:
        """A float whose last bit is worth 1: adding it rounds a number to an integer, which is in the last bits."""
        return 1.5 * 2.0**self.fraction

    def constant(self, number: int | float) -> Term:
        return self._term(splat(self.value.type, float(number) if self.is_float else int(number)))

    def let(self, _: str, /) -> Term:
        return self

    def apply(self, operation: str, *operands: Operand) -> Term:
        builder, value = self.builder, self.value
        if operation == "select":
            sample = next(operand for operand in operands if isinstance(operand, Term))
            return self._term(builder.select(value, *(sample._value(operand) for operand in operands)))
        values = [self._value(operand) for operand in operands]
        if operation in _INSTRUCTIONS:
            return self._term(getattr(builder, _INSTRUCTIONS[operation][self.is_float])(value, *values))
        if operation in _INTRINSICS:
            kind = value.type
            return self._term(intrinsic(builder, _INTRINSICS[operation], [kind], kind, [value, *values]))
        match operation:
            case "as_integer":
                return self._term(builder.bitcast(value, like(value, ir.IntType(self.bits))))
            case "as_float":
                return self._term(builder.bitcast(value, like(value, _FLOAT_TYPES[self.bits])))
            case "to_float":
                return self._term(builder.uitofp(value, like(value, _FLOAT_TYPES[self.bits])))
            case "to_integer":
                return self._term(builder.zext(value, like(value, INT32)))
            case "widen":
                return self._term(builder.fpext(value, like(value, ir.DoubleType())))
            case "narrow":
                return self._term(builder.fptrunc(value, like(value, ir.FloatType())))
            case "differs":
                return self._term(builder.fcmp_ordered("!=", value, *values))
            case "is_nan":
                return self._term(builder.fcmp_unordered("uno", value, value))
            case "is_odd":
                return self._term(builder.trunc(value, like(value, BIT)))
            case "is_negative":
                return self.as_integer() < 0
            case "nearest_multiple":
                (unit,) = operands
                step = self.constant(unit * 2**self.fraction)  # the unit is its last place
                return (self + step).as_integer() - step.as_integer()
        return self._term((builder.fcmp_ordered if self.is_float else builder.icmp_signed)(operation, value, *values))

    def is_not_below(self, other: float) -> Term:
        """Whether a number is not less than another; true for NaN."""
        return self._term(self.builder.fcmp_unordered(">=", self.value, self._value(other)))

    def _term(self, value: Value) -> Term:
        return Term(self.builder, value)

    def _value(self, operand: Operand) -> Value:
        if isinstance(operand, terms.Term):
            assert isinstance(operand, Term)
            return operand.value
        return self.constant(operand).value


def any_lane(mask: Term) -> Term:
    """Whether a mask holds anywhere, as a scalar."""
    kind = mask.value.type
    if not isinstance(kind, ir.VectorType):
        return mask
    function = declare(mask.builder, f"llvm.vector.reduce.or.v{kind.count}i1", ir.FunctionType(BIT, [kind]))
    return Term(mask.builder, mask.builder.call(function, [mask.value]))
