"""Lower scalar expressions to kernel code at given positions along the axes.

A load whose index may leave the tensor is clamped into it, unless an enclosing `select` tests for that: then the load
is masked by the test, so that neighbouring lanes stay neighbours in memory. If statements are collected, common
subexpressions are computed once, in a register.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from weft.ir import dims
from weft.ir.access import find_index_comparisons
from weft.ir.dims import Axis, Compound, Dim, Expr, Symbol
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    Buffer,
    Call,
    Code,
    Fetch,
    Integer,
    Number,
    Register,
    Statement,
    When,
    dims_vary,
    is_varying,
)
from weft.ir.layout import offset
from weft.ir.scalar import Apply, FlatLoad, Index, Literal, Load, Placeholder, Scalar, walk
from weft.ir.types import Shape
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, fetch
from weft.kernels.lower.operations import and_masks, cast
from weft.records import dataclass

_MAX_INT32 = 2**31 - 1
CHAINED_LOADS = 4  # minimum number of loads with loaded indices for a branch to pay
LITERAL_STRIDES = range(-1, 5)  # a backend may have better code than one access per lane for these


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a kernel reads: its buffer, and its strides in terms of the kernel's parameters."""

    buffer: Buffer
    shape: Shape
    strides: tuple[Dim, ...]


ValueKey = str | int | FlatLoad
"""The key of a value that a kernel has computed, or a flat load whose element it has."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that enclosing conditions establish: values that are at least 0, and values below a size."""

    not_negative: frozenset[Dim] = frozenset()
    below: frozenset[tuple[Dim, Dim]] = frozenset()
    mask: Code | None = None

    def assuming(self, condition: Scalar, test: Code) -> Facts:
        """Add the facts of a condition that holds."""
        comparisons = find_index_comparisons(condition)
        if not comparisons:
            return self
        not_negative, below = set(self.not_negative), set(self.below)
        for left, relation, right in comparisons:
            if relation == "greater_equal" and dims.is_at_least(right, 0):
                not_negative.add(left)
            elif relation == "less":
                below.add((left, right))
        mask = and_masks(self.mask, test)
        return Facts(frozenset(not_negative), frozenset(below), mask)

    def prove_inside(self, index: Dim, size: Dim) -> bool:
        """Return whether the facts imply 0 <= index < size."""
        above = index in self.not_negative or dims.is_at_least(index, 0)
        return above and ((index, size) in self.below or dims.is_at_least(size - 1, index))


NO_FACTS = Facts()


class Lowering:
    """Lowers one or more expressions for one vector of elements.

    - `values`: those that the kernel has computed, by key or by flat load.
    - `mask`: the lanes that are inside the domain.
    - `statements`: takes the definitions of common subexpressions.
    - `literal`: strides are literals instead of parameters.
    - `shared`: common subexpressions that were counted before.
    - `branches`: lanes run in lockstep, so costly sides of a `select` that no lane needs are skipped.

    `checks` collects the conditions under which an index is out of range.
    """

    def __init__(
        self,
        operands: Mapping[int, Operand],
        axes: Mapping[int, Dim],
        builder: KernelBuilder,
        values: Mapping[ValueKey, Code] | None = None,
        mask: Code | None = None,
        statements: list[Statement] | None = None,
        literal: bool = False,
        shared: CommonSubexpressions | None = None,
        branches: bool = False,
    ) -> None:
        self.operands = operands
        self.axes = axes
        self.builder = builder
        self.values = {} if values is None else values  # the caller may add to it
        self.mask = mask
        self.statements = statements
        self.literal = literal
        self.branches = branches
        self.checks: list[Code] = []
        self._shared = CommonSubexpressions() if shared is None else shared
        self._counted = shared is not None
        self._codes: dict[tuple[int, int], Code] = {}  # by subexpression and identity of the facts
        self._facts: list[Facts] = []  # keeps the identities in `_codes` alive

    def code(self, scalar: Scalar, facts: Facts = NO_FACTS) -> Code:
        """Lower an expression."""
        if self.statements is None:
            return self._build(scalar, facts)
        if not self._counted:
            self._shared.count(scalar)
        return self._visit(scalar, facts)

    def expect(self, scalars: Iterable[Scalar]) -> None:
        """Announce expressions that are still to be lowered, so that they share subexpressions with others."""
        for scalar in scalars:
            self._shared.count(scalar)

    def _visit(self, scalar: Scalar, facts: Facts) -> Code:
        if self.statements is None or isinstance(scalar, (Literal, Index)):
            return self._build(scalar, facts)
        number = self._shared.number(scalar)
        key = (number, id(facts))
        code = self._codes.get(key)
        if code is None:
            code = self._build(scalar, facts)
            if self._shared.uses[number] > 1 and not isinstance(code, (Register, Number, Integer)):
                code = self.keep(code)
            self._codes[key] = code
            self._facts.append(facts)
        return code

    def keep(self, value: Code) -> Code:
        """Keep a value in a register, if statements are collected."""
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
            case Placeholder(key):
                return self.values[key]
            case FlatLoad():
                if scalar in self.values:
                    return self.values[scalar]
                return self.fetch_load(scalar)
            case Apply("select", (condition, chosen, other), dtype) if self._should_branch(chosen):
                return self._build_branch(condition, chosen, other, facts)
            case Apply("select", (condition, chosen, other), dtype):
                test = self._visit(condition, facts)
                inside = facts.assuming(condition, test)
                return Call("select", (test, self._visit(chosen, inside), self._visit(other, facts)), dtype)
            case Apply(function, arguments, dtype):
                return Call(function, tuple([self._visit(argument, facts) for argument in arguments]), dtype)

    def _should_branch(self, chosen: Scalar) -> bool:

        return self.branches and self.statements is not None and is_costly_branch(chosen)

    def _build_branch(self, condition: Scalar, chosen: Scalar, other: Scalar, facts: Facts) -> Code:
        """Build a `select` whose first side is computed only if any lane chooses it."""
        outside, codes = self.statements, self._codes
        assert outside is not None
        test, light = self._visit(condition, facts), self._visit(other, facts)
        test = self.keep(and_masks(self.mask, test) if is_varying(test) else test)
        defined, result = self.builder.keep("t", light, varying=True)
        outside.append(defined)
        self.statements, self._codes = [], dict(codes)  # registers of the branch are defined only there
        heavy = self._visit(chosen, facts)
        body = (*self.statements, assign(result, Call("select", (test, heavy, result), result.dtype)))
        self.statements, self._codes = outside, codes
        outside.append(When(Across("maximum", test) if is_varying(test) else test, body))
        return result

    def index(self, value: Dim) -> Dim:
        """Express index arithmetic in the kernel's variables."""
        return dims.substitute(self.builder.replace_symbols(value), self._atom)

    def _atom(self, atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return self.axes[atom.position]
        return dims.from_atom(atom)

    def fetch_load(self, load: Load | FlatLoad) -> Fetch:
        """Build the fetch of a load, without looking for its value among those that the kernel has computed."""
        if isinstance(load, Load):
            return self.load(load, NO_FACTS)
        return self.fetch(self.operands[load.operand], self.flat_offset(load.offset), None, None)

    def load(self, load: Load, facts: Facts) -> Fetch:
        operand = self.operands[load.operand]
        places: list[Dim] = []
        indirect: Code | None = None
        mask: Code | None = None
        for index, size, stride in zip(load.indices, operand.shape, operand.strides, strict=True):
            if isinstance(index, Index):
                place, test = self.inside(index.value, size, facts, load.checked)
                places.append(place)
            else:
                if _always_fits(index, size):
                    part, test = self._visit(index, facts), None
                else:
                    part, test = self._clamp(index, size, facts, load.checked)
                scaled = part if stride == 1 else Call("multiply", (part, Integer(stride)), DType.int64)
                indirect = scaled if indirect is None else Call("add", (indirect, scaled), DType.int64)
                places.append(0)
            if test is not mask:
                mask = and_masks(mask, test)
        return self.fetch(operand, offset(operand.strides, places), indirect, mask)

    def inside(self, index: Dim, size: Dim, facts: Facts, checked: bool) -> tuple[Dim, Code | None]:
        """Return an index that is inside the dimension wherever the returned mask holds."""
        if dims.is_at_least(index, 0) and dims.is_at_least(size - 1, index):
            return self.index(index), None
        if facts.prove_inside(index, size) and not checked:
            return self.index(index), facts.mask
        place = self.index(dims.minimum(dims.maximum(index, 0), size - 1))
        if checked:
            self._check(Integer(self.index(index)), Integer(place))
        return place, self._not_empty(size)

    def _clamp(self, index: Scalar, size: Dim, facts: Facts, checked: bool) -> tuple[Code, Code | None]:
        """Clamp an index that depends on data, in 32 bits if it has no more; return the mask like `inside`."""
        dtype, last = DType.int64, size - 1
        if isinstance(index, Apply) and index.function == "cast" and index.arguments[0].dtype is DType.int32:
            (index,), dtype, last = index.arguments, DType.int32, dims.minimum(last, _MAX_INT32)
        position = self.keep(self._visit(index, facts))
        nonnegative = Call("maximum", (position, Number(0, dtype)), dtype)
        clamped = Call("minimum", (nonnegative, cast(Integer(self.index(last)), dtype)), dtype)
        inside = self.keep(cast(clamped, DType.int64))
        if checked:
            self._check(cast(position, DType.int64), inside)
        return inside, self._not_empty(size)

    def _not_empty(self, size: Dim) -> Code | None:
        if dims.is_at_least(size, 1):
            return None
        return Call("greater", (Integer(self.index(size)), Integer(0)), DType.bool)

    def fetch(self, operand: Operand, place: Dim, indirect: Code | None, mask: Code | None) -> Fetch:
        """Build a load that is masked for lanes outside the domain."""
        varies = dims_vary(place) or (indirect is not None and is_varying(indirect))
        if varies:
            mask = and_masks(self.mask, mask)
        return fetch(operand.buffer, place, indirect, mask)

    def flat_offset(self, value: Dim) -> Dim:
        """Express an offset with the strides of the axes as parameters, or as literals if `literal`."""
        strides, rest = split_strides(value)
        total = self.index(rest)
        for position, stride in strides.items():
            literal = self.literal or stride in LITERAL_STRIDES
            factor = self.builder.replace_symbols(stride) if literal else self.builder.size(stride)
            total = total + factor * self.axes[position]
        return total

    def _check(self, position: Code, inside: Code) -> None:
        wrong = Call("not_equal", (position, inside), DType.bool)
        self.checks.append(and_masks(self.mask, wrong) if is_varying(wrong) else wrong)


def is_costly_branch(scalar: Scalar) -> bool:
    """Return whether an expression has many loads with loaded indices, and none that is checked."""
    loads = [node for node in walk(scalar) if isinstance(node, Load)]
    chained = [load for load in loads if not all(isinstance(index, Index) for index in load.indices)]
    return len(chained) >= CHAINED_LOADS and not any(load.checked for load in loads)


def _always_fits(index: Scalar, size: Dim) -> bool:
    """Return whether an index that depends on data has a dtype too small to leave the dimension."""
    if isinstance(index, Apply) and index.function == "cast":
        dtype = index.arguments[0].dtype
        return dtype.is_unsigned and dims.is_at_least(size, 1 << dtype.bits)
    return False


class CommonSubexpressions:
    """Gives each distinct subexpression a number, and counts its uses."""

    def __init__(self) -> None:
        self.uses: Counter[int] = Counter()
        self._numbers: dict[object, int] = {}
        self._by_id: dict[int, int] = {}
        self._alive: list[Scalar] = []  # keeps identities unique

    def count(self, scalar: Scalar) -> None:
        self.uses[self.number(scalar)] += 1

    def number(self, scalar: Scalar) -> int:
        cached = self._by_id.get(id(scalar))
        if cached is not None:
            return cached
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
        self._by_id[id(scalar)] = number
        self._alive.append(scalar)
        return number


def split_strides(value: Dim) -> tuple[dict[int, Dim], Dim]:
    """Split an offset into ({axis: stride}, rest), the rest being all terms that are not linear in one axis."""
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
