"""Scalar expressions -> kernel code, for given index values of the axes.

A load whose index may leave the tensor is clamped into it, unless a `select` around it tests just that: then it is
masked by the test, which keeps neighbouring lanes neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.ir import dims
from weft.ir.dims import Axis, Compound, Dim, Expr, Symbol
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Fetch, Integer, Number, dims_vary, is_varying
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.types import Shape
from weft.kernels.layout import offset
from weft.kernels.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a kernel reads: its buffer, and its strides as the kernel sees them.

    A flat one is read at offsets that are known to lie inside.
    """

    buffer: str
    dtype: DType
    shape: Shape
    strides: tuple[Dim, ...]
    flat: bool = False


class Lowering:
    """One expression in the making."""

    def __init__(
        self,
        operands: Sequence[Operand],
        axes: Mapping[int, Dim],
        parameters: Parameters,
        replace: Mapping[int, Code] | None = None,
        mask: Code | None = None,
    ) -> None:
        self.operands = operands
        self.axes = axes
        self.parameters = parameters
        self.replace = replace or {}  # operands whose element is at hand already
        self.mask = mask  # lanes that are inside the domain

    def code(self, scalar: Scalar, facts: Facts | None = None) -> Code:
        facts = facts or Facts(frozenset(), frozenset(), None)
        match scalar:
            case Literal(value, dtype):
                assert not isinstance(value, (str, complex))
                return Number(value, dtype)
            case Index(value):
                return Integer(self.index(value))
            case Load():
                return self.load(scalar, facts)
            case Apply("select", (condition, chosen, other), dtype):
                test = self.code(condition, facts)
                inside = facts.under(condition, test)
                return Call("select", (test, self.code(chosen, inside), self.code(other, facts)), dtype)
            case Apply(function, arguments, dtype):
                return Call(function, tuple(self.code(argument, facts) for argument in arguments), dtype)

    def index(self, value: Dim) -> Dim:
        """Index arithmetic over the kernel's variables."""
        return dims.substitute(self.parameters.symbols(value), self._atom)

    def _atom(self, atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return self.axes[atom.position]
        return dims.symbol(atom.name, atom.low, atom.high)

    def load(self, load: Load, facts: Facts) -> Code:
        if load.operand in self.replace:
            return self.replace[load.operand]
        operand = self.operands[load.operand]
        if operand.flat:
            (place,) = load.indices
            assert isinstance(place, Index)
            return self.fetch(operand, self.flat_offset(place.value), None, None)
        places: list[Dim] = []
        indirect: Code | None = None
        masked = False
        for index, size, stride in zip(load.indices, operand.shape, operand.strides):
            if isinstance(index, Index):
                inside = dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)
                guarded = facts.cover(index.value, size)
                place = index.value
                if not inside and guarded:
                    masked = True
                elif not inside:
                    place = dims.minimum(dims.maximum(place, 0), size - 1)
                places.append(self.index(place))
            else:
                part = self.clamped(self.code(index, facts), size)
                scaled = part if stride == 1 else Call("multiply", (part, Integer(stride)), DType.int64)
                indirect = scaled if indirect is None else Call("add", (indirect, scaled), DType.int64)
                places.append(0)
        return self.fetch(operand, offset(operand.strides, places), indirect, facts.mask if masked else None)

    def fetch(self, operand: Operand, place: Dim, indirect: Code | None, mask: Code | None) -> Code:
        """A load that lanes outside of the domain leave alone."""
        varies = dims_vary(place) or (indirect is not None and is_varying(indirect))
        if self.mask is not None and varies:
            mask = self.mask if mask is None else Call("logical_and", (self.mask, mask), DType.bool)
        return Fetch(operand.buffer, place, operand.dtype, indirect, mask)

    def flat_offset(self, value: Dim) -> Dim:
        """An offset with the strides of the axes as parameters."""
        strides: dict[int, Dim] = {}
        rest: Dim = 0
        for monomial, coefficient in value.terms if isinstance(value, Expr) else (((), value),):
            axes = [atom for atom in monomial if isinstance(atom, Axis)]
            term: Dim = coefficient
            for atom in monomial:
                term = term * (1 if axes == [atom] else Expr((((atom,), 1),)))
            if len(axes) == 1 and not any(isinstance(atom, Compound) for atom in monomial):
                strides[axes[0].position] = strides.get(axes[0].position, 0) + term
            else:
                rest = rest + (term if len(axes) != 1 else term * Expr((((axes[0],), 1),)))
        total = self.index(rest)
        for position, stride in strides.items():
            total = total + self.parameters.size(stride) * self.axes[position]
        return total

    def clamped(self, position: Code, size: Dim) -> Code:
        last = Integer(self.index(size - 1))
        least = Call("maximum", (position, Integer(0)), DType.int64)
        return Call("minimum", (least, last), DType.int64)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the conditions around an expression say: values that are at least 0, and values below a size."""

    not_negative: frozenset[Dim]
    below: frozenset[tuple[Dim, Dim]]
    mask: Code | None

    def under(self, condition: Scalar, test: Code) -> Facts:
        """The facts where `condition` holds too."""
        not_negative, below = set(self.not_negative), set(self.below)
        for left, relation, right in _comparisons(condition):
            if relation == "greater_equal" and right == 0:
                not_negative.add(left)
            elif relation == "less":
                below.add((left, right))
        mask = test if self.mask is None else Call("logical_and", (self.mask, test), DType.bool)
        return Facts(frozenset(not_negative), frozenset(below), mask)

    def cover(self, index: Dim, size: Dim) -> bool:
        """Whether they keep an index inside a dimension."""
        above = index in self.not_negative or dims.is_at_least(index, 0)
        return above and ((index, size) in self.below or dims.is_at_least(size - 1, index))


def _comparisons(condition: Scalar) -> list[tuple[Dim, str, Dim]]:
    match condition:
        case Apply("logical_and", (left, right)):
            return _comparisons(left) + _comparisons(right)
        case Apply(relation, (Index(left), Index(right))):
            return [(left, relation, right)]
        case Apply(relation, (Index(left), Literal(int(right)))):
            return [(left, relation, right)]
        case _:
            return []
