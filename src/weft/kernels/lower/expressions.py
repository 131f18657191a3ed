"""Scalar expressions -> kernel code, for given index values of the axes.

A load whose index may leave the tensor is clamped into it, unless a `select` around it tests just that: then it is
masked by the test, which keeps neighbouring lanes neighbours in memory. Where statements are collected, what occurs
in several places is computed once, in a register.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from weft.ir import dims
from weft.ir.access import compared_indices
from weft.ir.dims import Axis, Compound, Dim, Expr, Symbol
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    Buffer,
    Call,
    Code,
    Integer,
    Number,
    Register,
    Statement,
    When,
    dims_vary,
    is_varying,
)
from weft.ir.layout import offset
from weft.ir.scalar import Apply, FlatLoad, Held, Index, Literal, Load, Scalar, walk
from weft.ir.types import Shape
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, fetch
from weft.records import dataclass

LONG_WAY = 4  # loads at places that loads decide
LITERAL_STRIDES = range(-1, 5)  # those for which a backend may have better than one access a lane


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a kernel reads: its buffer, and its strides as the kernel sees them."""

    buffer: Buffer
    shape: Shape
    strides: tuple[Dim, ...]


Known = str | int | FlatLoad
"""What a kernel may hold: a value under a key, or the element of a flat load."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the conditions around an expression say: values that are at least 0, and values below a size."""

    not_negative: frozenset[Dim] = frozenset()
    below: frozenset[tuple[Dim, Dim]] = frozenset()
    mask: Code | None = None

    def under(self, condition: Scalar, test: Code) -> Facts:
        """The facts where `condition` holds too."""
        comparisons = compared_indices(condition)
        if not comparisons:
            return self
        not_negative, below = set(self.not_negative), set(self.below)
        for left, relation, right in comparisons:
            if relation == "greater_equal" and dims.is_at_least(right, 0):
                not_negative.add(left)
            elif relation == "less":
                below.add((left, right))
        mask = test if self.mask is None else Call("logical_and", (self.mask, test), DType.bool)
        return Facts(frozenset(not_negative), frozenset(below), mask)

    def cover(self, index: Dim, size: Dim) -> bool:
        """Whether they keep an index inside a dimension."""
        above = index in self.not_negative or dims.is_at_least(index, 0)
        return above and ((index, size) in self.below or dims.is_at_least(size - 1, index))


NO_FACTS = Facts()


class Lowering:
    """One or more expressions in the making, for one vector of elements.

    `known` are the values that the kernel holds, by key, and those of flat loads; `mask` the lanes that are inside the
    domain. With
    `statements`, definitions of shared subexpressions are added there. Strides are parameters unless they are to be
    `literal`. With `shared`, what the expressions have in common was counted before. With `asks`, lanes go on together,
    and long ways that none of them takes are left out.
    `checks` gathers the conditions under which the data is at fault.
    """

    def __init__(
        self,
        operands: Mapping[int, Operand],
        axes: Mapping[int, Dim],
        builder: KernelBuilder,
        known: Mapping[Known, Code] | None = None,
        mask: Code | None = None,
        statements: list[Statement] | None = None,
        literal: bool = False,
        shared: Sharing | None = None,
        asks: bool = False,
    ) -> None:
        self.operands = operands
        self.axes = axes
        self.builder = builder
        self.known = {} if known is None else known  # it may grow
        self.mask = mask
        self.statements = statements
        self.literal = literal
        self.asks = asks
        self.checks: list[Code] = []
        self._shared = Sharing() if shared is None else shared
        self._counted = shared is not None
        self._done: dict[tuple[int, int], Code] = {}
        self._facts: list[Facts] = []  # keeps alive what _done names by identity

    def code(self, scalar: Scalar, facts: Facts = NO_FACTS) -> Code:
        """The value of an expression."""
        if self.statements is None:
            return self._build(scalar, facts)
        if not self._counted:
            self._shared.count(scalar)
        return self._visit(scalar, facts)

    def expect(self, scalars: Iterable[Scalar]) -> None:
        """Expressions that are still to come: what they share with others is computed once."""
        for scalar in scalars:
            self._shared.count(scalar)

    def _visit(self, scalar: Scalar, facts: Facts) -> Code:
        if self.statements is None or isinstance(scalar, (Literal, Index)):
            return self._build(scalar, facts)
        number = self._shared.number(scalar)
        key = (number, id(facts))
        known = self._done.get(key)
        if known is None:
            known = self._build(scalar, facts)
            if self._shared.uses[number] > 1 and not isinstance(known, (Register, Number, Integer)):
                known = self.keep(known)
            self._done[key] = known
            self._facts.append(facts)
        return known

    def keep(self, value: Code) -> Code:
        """A value in a register of its own, where statements are collected."""
        if self.statements is None:
            return value
        defined, register = self.builder.keep("t", value)
        self.statements.append(defined)
        return register

    def _build(self, scalar: Scalar, facts: Facts) -> Code:
        match scalar:
            case Literal(value, dtype):
                assert not isinstance(value, (str, complex))
                return Number(value, dtype)
            case Index(value):
                return Integer(self.index(value))
            case Load():
                return self.load(scalar, facts)
            case Held(key):
                return self.known[key]
            case FlatLoad(operand, place):
                if scalar in self.known:
                    return self.known[scalar]
                return self.fetch(self.operands[operand], self.flat_offset(place), None, None)
            case Apply("select", (condition, chosen, other), dtype) if self._is_worth_asking(chosen):
                return self._where_needed(condition, chosen, other, facts)
            case Apply("select", (condition, chosen, other), dtype):
                test = self._visit(condition, facts)
                inside = facts.under(condition, test)
                return Call("select", (test, self._visit(chosen, inside), self._visit(other, facts)), dtype)
            case Apply(function, arguments, dtype):
                return Call(function, tuple([self._visit(argument, facts) for argument in arguments]), dtype)

    def _is_worth_asking(self, chosen: Scalar) -> bool:
        """Whether vectors none of whose lanes chooses this had better not compute it."""
        return self.asks and self.statements is not None and is_long_way(chosen)

    def _where_needed(self, condition: Scalar, chosen: Scalar, other: Scalar, facts: Facts) -> Code:
        """A `select` whose first side is computed where any lane chooses it."""
        outside, done = self.statements, self._done
        assert outside is not None
        test, light = self._visit(condition, facts), self._visit(other, facts)
        test = self.keep(test if self.mask is None or not is_varying(test) else both(self.mask, test) or test)
        defined, result = self.builder.keep("t", light, varying=True)
        outside.append(defined)
        self.statements, self._done = [], dict(done)  # what is computed there is at hand there alone
        heavy = self._visit(chosen, facts)
        body = (*self.statements, assign(result, Call("select", (test, heavy, result), result.dtype)))
        self.statements, self._done = outside, done
        outside.append(When(Across("maximum", test) if is_varying(test) else test, body))
        return result

    def index(self, value: Dim) -> Dim:
        """Index arithmetic over the kernel's variables."""
        return dims.substitute(self.builder.symbols(value), self._atom)

    def _atom(self, atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return self.axes[atom.position]
        return dims.symbol(atom.name, atom.low, atom.high)

    def load(self, load: Load, facts: Facts) -> Code:
        operand = self.operands[load.operand]
        places: list[Dim] = []
        indirect: Code | None = None
        mask: Code | None = None
        for index, size, stride in zip(load.indices, operand.shape, operand.strides, strict=True):
            if isinstance(index, Index):
                place, test = self.inside(index.value, size, facts, load.checked)
                places.append(place)
            else:
                position = self._visit(index, facts)
                part, test = (position, None) if _fits(index, size) else self.clamped(position, size, load.checked)
                scaled = part if stride == 1 else Call("multiply", (part, Integer(stride)), DType.int64)
                indirect = scaled if indirect is None else Call("add", (indirect, scaled), DType.int64)
                places.append(0)
            if test is not mask:
                mask = both(mask, test)
        return self.fetch(operand, offset(operand.strides, places), indirect, mask)

    def inside(self, index: Dim, size: Dim, facts: Facts, checked: bool) -> tuple[Dim, Code | None]:
        """An index as a place inside the dimension, wherever the mask that comes with it holds."""
        if dims.is_at_least(index, 0) and dims.is_at_least(size - 1, index):
            return self.index(index), None
        if facts.cover(index, size) and not checked:
            return self.index(index), facts.mask
        place = self.index(dims.minimum(dims.maximum(index, 0), size - 1))
        if checked:
            self._check(Integer(self.index(index)), Integer(place))
        return place, self._not_empty(size)

    def clamped(self, position: Code, size: Dim, checked: bool) -> tuple[Code, Code | None]:
        """The same for an index that data decides."""
        position = self.keep(position)
        last = Integer(self.index(size - 1))
        least = Call("maximum", (position, Integer(0)), DType.int64)
        inside = self.keep(Call("minimum", (least, last), DType.int64))
        if checked:
            self._check(position, inside)
        return inside, self._not_empty(size)

    def _not_empty(self, size: Dim) -> Code | None:
        if dims.is_at_least(size, 1):
            return None
        return Call("greater", (Integer(self.index(size)), Integer(0)), DType.bool)

    def fetch(self, operand: Operand, place: Dim, indirect: Code | None, mask: Code | None) -> Code:
        """A load that lanes outside of the domain leave alone."""
        varies = dims_vary(place) or (indirect is not None and is_varying(indirect))
        if varies:
            mask = both(self.mask, mask)
        return fetch(operand.buffer, place, indirect, mask)

    def flat_offset(self, value: Dim) -> Dim:
        """An offset with the strides of the axes as parameters."""
        strides, rest = split_strides(value)
        total = self.index(rest)
        for position, stride in strides.items():
            literal = self.literal or stride in LITERAL_STRIDES
            factor = self.builder.symbols(stride) if literal else self.builder.size(stride)
            total = total + factor * self.axes[position]
        return total

    def _check(self, position: Code, inside: Code) -> None:
        wrong: Code = Call("not_equal", (position, inside), DType.bool)
        if self.mask is not None and is_varying(wrong):
            wrong = Call("logical_and", (self.mask, wrong), DType.bool)
        self.checks.append(wrong)


def is_long_way(scalar: Scalar) -> bool:
    """Whether loads wait for loads that wait for others, none of which tells of faults."""
    found = [node for node in walk(scalar) if isinstance(node, Load)]
    chained = [load for load in found if not all(isinstance(index, Index) for index in load.indices)]
    return len(chained) >= LONG_WAY and not any(load.checked for load in found)


def _fits(index: Scalar, size: Dim) -> bool:
    """Whether an index that data decides is a number of a type that never leaves the dimension."""
    match index:
        case Apply("cast", (inner,), _) if inner.dtype.is_unsigned:
            return dims.is_at_least(size, 1 << inner.dtype.bits)
    return False


class Sharing:
    """Numbers for subexpressions, equal ones alike, and how often each is used."""

    def __init__(self) -> None:
        self.uses: Counter[int] = Counter()
        self._numbers: dict[object, int] = {}
        self._known: dict[int, int] = {}
        self._alive: list[Scalar] = []  # keeps identities unique

    def count(self, scalar: Scalar) -> None:
        self.uses[self.number(scalar)] += 1

    def number(self, scalar: Scalar) -> int:
        found = self._known.get(id(scalar))
        if found is not None:
            return found
        parts: list[int] = []
        key: object = scalar
        match scalar:
            case Apply(function, arguments, dtype):
                parts = [self.number(argument) for argument in arguments]
                key = (function, dtype, *parts)
            case Load(operand, indices, _, checked):
                parts = [self.number(index) for index in indices]
                key = (Load, operand, checked, *parts)
            case Literal(value, dtype):
                key = (repr(value), dtype)
            case Index(value):
                key = (Index, value)
        count = len(self._numbers)
        number = self._numbers.setdefault(key, count)
        if number == count:
            for part in parts:
                self.uses[part] += 1
        self._known[id(scalar)] = number
        self._alive.append(scalar)
        return number


def split_strides(value: Dim) -> tuple[dict[int, Dim], Dim]:
    """({axis: stride}, rest) of an offset: what each axis is multiplied by, and all that is not linear in one axis."""
    strides, rest = _split_strides(value)
    return dict(strides), rest


@lru_cache(maxsize=4096)
def _split_strides(value: Dim) -> tuple[tuple[tuple[int, Dim], ...], Dim]:
    strides: dict[int, Dim] = {}
    rest: Dim = 0
    for monomial, coefficient in value.terms if isinstance(value, Expr) else (((), value),):
        axes = [atom for atom in monomial if isinstance(atom, Axis)]
        linear = len(axes) == 1 and not any(isinstance(atom, Compound) and _has_axis(atom) for atom in monomial)
        term: Dim = coefficient
        for atom in monomial:
            if not (linear and isinstance(atom, Axis)):
                term = term * Expr((((atom,), 1),))
        if linear:
            strides[axes[0].position] = strides.get(axes[0].position, 0) + term
        else:
            rest = rest + term
    return tuple(strides.items()), rest


def _has_axis(atom: Compound) -> bool:
    return any(isinstance(inner, Axis) for side in (atom.left, atom.right) for inner in dims.atoms(side))


def both(left: Code | None, right: Code | None) -> Code | None:
    """Where two masks hold; None holds everywhere."""
    if left is None or right is None:
        return left if right is None else right
    return Call("logical_and", (left, right), DType.bool)
