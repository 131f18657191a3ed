"""Symbolic integers: the sizes of dimensions and the indices inside kernels.

A `Dim` is an int or an `Expr`: a polynomial with integer coefficients over atoms, in a canonical form, so that equal
polynomials compare equal. Atoms are named symbols, the loop variables of a map (`Axis`), and quotients,
remainders, minima and maxima that do not simplify. Arithmetic never leaves an `Expr` where an int would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from math import gcd
from operator import attrgetter
from typing import Any, Union

from weft.errors import WeftError
from weft.ir.atoms import Atom as Atom
from weft.ir.atoms import Axis as Axis
from weft.ir.atoms import Compound as Compound
from weft.ir.atoms import Symbol as Symbol
from weft.ir.interned import Interned
from weft.records import dataclass

Dim = Union[int, "Expr"]
Monomial = tuple["Atom", ...]
Interval = tuple["int | None", "int | None"]


LARGEST_SIZE = 10**9 - 1
"""The assumed upper bound of a named size, with which "to the end" in a slice is recognised."""

LARGEST_POSITION = 2**31 - 1
"""The largest size whose positions fit in a signed 32-bit integer."""


MOST_PARTS = 1000
"""Limit on the terms and atoms of a tensor's sizes, and on the terms of their product; real models reach about 60."""

MOST_TERMS = 8 * MOST_PARTS
"""Limit on the terms of a polynomial of sizes or indices."""

LARGEST_FACTOR = 2**32
"""Limit on the factor of a size: models compute sizes in 64 bits, which would overflow beyond it."""


class UndecidedError(WeftError):
    """Raised for a question about symbolic integers whose answer depends on the sizes, or is too long to use."""


@dataclass(frozen=True, slots=True)
class Equality:
    """Whether two sizes are equal (or, with `negated`, differ), where that is known only at run time."""

    left: Dim
    right: Dim
    negated: bool = False

    def __bool__(self) -> bool:
        raise UndecidedError(f"whether {self.left} == {self.right} depends on sizes known only at run time")


class Expr:
    """An immutable polynomial that is not a plain int. Build it with operators, `symbol` and `axis`.

    Polynomials are interned, and cache their atoms, bounds and text.
    """

    __slots__ = ("__weakref__", "_atoms", "_bounds", "_names", "_symbols", "_text", "terms")
    terms: tuple[tuple[Monomial, int], ...]
    _atoms: frozenset[Atom] | None
    _bounds: Interval | None
    _names: frozenset[str] | None
    _symbols: frozenset[Symbol] | None
    _text: str | None

    def __new__(cls, terms: tuple[tuple[Monomial, int], ...]) -> Expr:
        entry = _find_expr(terms)
        existing = None if entry is None else entry()
        if existing is not None:
            return existing
        new = object.__new__(cls)
        new.terms = terms
        new._atoms = new._bounds = new._names = new._symbols = new._text = None
        return _EXPRS.add(terms, new)

    def __reduce__(self) -> tuple[Any, ...]:
        return Expr, (self.terms,)

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, Expr):
            return _add(self, other)
        if not isinstance(other, int):
            return NotImplemented
        return _add(self, other) if other else self

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Expr(tuple([(monomial, -coefficient) for monomial, coefficient in self.terms]))

    def __sub__(self, other: Dim) -> Dim:
        if isinstance(other, Expr):
            return _subtract(self, other)
        if not isinstance(other, int):
            return NotImplemented
        return _add(self, -other) if other else self

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, Expr):
            return _multiply_exprs(self, other)
        if not isinstance(other, int):
            return NotImplemented
        return _multiply_exprs(self, other) if other != 1 else self

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other) if isinstance(other, (int, Expr)) else NotImplemented

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other) if isinstance(other, (int, Expr)) else NotImplemented

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)

    def __lt__(self, other: Dim) -> bool:
        return decide_less(self, other) if isinstance(other, (int, Expr)) else NotImplemented

    def __le__(self, other: Dim) -> bool:
        return not decide_less(other, self) if isinstance(other, (int, Expr)) else NotImplemented

    def __gt__(self, other: Dim) -> bool:
        return decide_less(other, self) if isinstance(other, (int, Expr)) else NotImplemented

    def __ge__(self, other: Dim) -> bool:
        return not decide_less(self, other) if isinstance(other, (int, Expr)) else NotImplemented

    def __str__(self) -> str:
        if self._text is None:
            self._text = self._format()
        return self._text

    __repr__ = __str__

    def _format(self) -> str:
        parts: list[str] = []
        for monomial, coefficient in self.terms:
            factors = [_factor(atom, alone=len(monomial) == 1 and coefficient == 1) for atom in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            text = "*".join(factors)
            parts.append(f" {sign} {text}" if parts else (f"-{text}" if sign == "-" else text))
        return "".join(parts)


_EXPRS: Interned[Expr] = Interned()
_find_expr = _EXPRS.find


@lru_cache(maxsize=65536)
def symbol(name: str, low: int | None = 1, high: int | None = LARGEST_SIZE) -> Expr:
    """Return a named size within [low, high]; runs check that their inputs keep to these bounds."""
    return from_atom(Symbol(name, low, high))


def axis(position: int, size: Dim) -> Dim:
    """Return the loop variable of output dimension `position`, or 0 if the size is 1."""
    return 0 if size == 1 else from_atom(Axis(position, size))


def from_atom(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


def floordiv(a: Dim, b: Dim) -> Dim:
    """Divide, rounding down, and simplify as far as the bounds of the atoms allow."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if a == 0:
        return 0
    quotient = _divide_exactly(a, b)
    if quotient is not None:
        return quotient
    if isinstance(b, int):
        if b < 0:
            return floordiv(-a, -b)
        quotient, remainder = _split_multiples(a, b)
        if _within(remainder, b):
            return quotient
        common = reduce(gcd, (abs(c) for _, c in _terms(remainder)), b)
        return quotient + _divide_remainder(floordiv(remainder, common), b // common)
    quotient, remainder = _split_symbolic(a, b)
    return quotient if _within(remainder, b) else quotient + from_atom(Compound("//", remainder, b))


def _divide_remainder(a: Dim, b: int) -> Dim:
    if b == 1 or isinstance(a, int):
        return a // b
    if len(a.terms) == 1 and a.terms[0][1] == 1 and len(a.terms[0][0]) == 1:
        inner = a.terms[0][0][0]
        if isinstance(inner, Compound) and inner.operation == "//" and isinstance(inner.right, int):
            return floordiv(inner.left, inner.right * b)
    return from_atom(Compound("//", a, b))


def mod(a: Dim, b: Dim) -> Dim:
    """Return the remainder of `floordiv`, in [0, b) for a positive b."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b == 1 or _divide_exactly(a, b) is not None:
        return 0
    if isinstance(b, int) and b > 0:
        _, remainder = _split_multiples(a, b)
        return remainder if _within(remainder, b) else from_atom(Compound("%", remainder, b))
    _, remainder = _split_symbolic(a, b)
    return remainder if _within(remainder, b) else from_atom(Compound("%", remainder, b))


def ceildiv(a: Dim, b: Dim) -> Dim:
    return -floordiv(-a, b)


def minimum(a: Dim, b: Dim) -> Dim:
    return _choose("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    return _choose("max", a, b)


def product(dims: Iterable[Dim]) -> Dim:
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def decide_less(a: Dim, b: Dim) -> bool:
    """Whether a < b; raise UndecidedError if that depends on the sizes."""
    if is_at_least(b, a + 1):
        return True
    if is_at_least(a, b):
        return False
    raise UndecidedError(f"whether {a} < {b} depends on sizes known only at run time")


def decide_equal(a: Dim, b: Dim) -> bool:
    """Whether two dims are equal; raise UndecidedError if that depends on the sizes."""
    if a == b:
        return True
    low, high = bounds(a - b)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    raise UndecidedError(f"whether {a} == {b} depends on sizes known only at run time")


def is_at_least(a: Dim, b: Dim) -> bool:
    """Whether a >= b is certain."""
    low = bounds(a - b)[0]
    return low is not None and low >= 0


def bounds(dim: Dim) -> Interval:
    """Return an interval that contains the value for all sizes; None means unbounded."""
    if isinstance(dim, int):
        return dim, dim
    if dim._bounds is None:
        dim._bounds = _find_bounds(dim)
    return dim._bounds


def _find_bounds(dim: Expr) -> Interval:
    low, high = _tight_interval(dim)
    loops = [atom for atom in _top_atoms(dim) if isinstance(atom, Axis) and not isinstance(atom.size, int)]
    if loops:  # interval arithmetic ignores i < n: also evaluate at both ends of the loops
        low = _larger(low, _tight_interval(_at_extreme(dim, loops, lowest=True))[0])
        high = _smaller(high, _tight_interval(_at_extreme(dim, loops, lowest=False))[1])
    return low, high


def is_tractable(sizes: Iterable[Dim]) -> bool:
    """Whether a tensor's sizes are short enough to multiply, compare and print."""
    parts, terms = 0, 1
    for dim in sizes:
        if not isinstance(dim, int):
            parts += _count_parts(dim)
            terms *= len(dim.terms)
    return parts <= MOST_PARTS and terms <= MOST_PARTS


@lru_cache(maxsize=65536)
def _count_parts(dim: Expr) -> int:
    """Count the terms and atoms of the whole tree; a factor that is too large exceeds the limit."""
    count = 0
    for monomial, coefficient in dim.terms:
        count += 1 + len(monomial) + (MOST_PARTS if monomial and abs(coefficient) > LARGEST_FACTOR else 0)
        for atom in monomial:
            if isinstance(atom, Compound):
                count += sum(1 if isinstance(part, int) else _count_parts(part) for part in (atom.left, atom.right))
    return count


def symbols(dim: Dim) -> frozenset[Symbol]:
    """Return the named symbols that occur anywhere in `dim`."""
    if isinstance(dim, int):
        return _NO_SYMBOLS
    if dim._symbols is None:
        dim._symbols = frozenset(atom for atom in atoms(dim) if isinstance(atom, Symbol))
    return dim._symbols


def symbol_names(dim: Dim) -> frozenset[str]:
    """Return the names of the symbols that occur anywhere in `dim`."""
    if isinstance(dim, int):
        return _NO_NAMES
    if dim._names is None:
        dim._names = frozenset().union(*[monomial_names(monomial) for monomial, _ in dim.terms])
    return dim._names


@lru_cache(maxsize=65536)
def monomial_names(monomial: Monomial) -> frozenset[str]:
    """Return the names of the symbols that occur anywhere in a product of atoms."""
    names: set[str] = set()
    for atom in monomial:
        match atom:
            case Symbol(name):
                names.add(name)
            case Compound(_, left, right):
                names |= symbol_names(left) | symbol_names(right)
            case Axis(_, size):
                names |= symbol_names(size)
    return frozenset(names)


_NO_SYMBOLS: frozenset[Symbol] = frozenset()
_NO_NAMES: frozenset[str] = frozenset()
_NO_ATOMS: frozenset[Atom] = frozenset()


def atoms(dim: Dim) -> frozenset[Atom]:
    """Return every atom in `dim`, including those inside compounds and axis sizes."""
    if isinstance(dim, int):
        return _NO_ATOMS
    if dim._atoms is None:
        result: set[Atom] = set()
        for atom in _top_atoms(dim):
            result.add(atom)
            match atom:
                case Compound(_, left, right):
                    result |= atoms(left) | atoms(right)
                case Axis(_, size):
                    result |= atoms(size)
        dim._atoms = frozenset(result)
    return dim._atoms


def is_uneven(dim: Dim, position: int) -> bool:
    """Whether the stride along the axis at `position` may vary: a quotient, remainder or extreme depends on it."""
    compounds = [atom for atom in atoms(dim) if isinstance(atom, Compound)]
    inside = [atom for compound in compounds for part in (compound.left, compound.right) for atom in atoms(part)]
    return any(isinstance(atom, Axis) and atom.position == position for atom in inside)


def as_symbol(dim: Dim) -> Symbol | None:
    """Return the symbol if `dim` is nothing but a symbol."""
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0]
    return None


def fold(dim: Dim, leaf: Callable[[Symbol | Axis], Any], functions: Mapping[str, Callable[[Any, Any], Any]]) -> Any:
    """Evaluate in another arithmetic: `leaf` maps symbols and axes to values, `functions` implements the compounds."""
    if isinstance(dim, int):
        return dim
    total: Any = 0
    for monomial, coefficient in dim.terms:
        term: Any = coefficient
        for atom in monomial:
            if isinstance(atom, Compound):
                factor = functions[atom.operation](fold(atom.left, leaf, functions), fold(atom.right, leaf, functions))
            else:
                factor = leaf(atom)
            term = factor if isinstance(term, int) and term == 1 else term * factor
        total = term if isinstance(total, int) and total == 0 else total + term
    return total


def substitute(dim: Dim, replace: Callable[[Symbol | Axis], Dim]) -> Dim:
    """Replace symbols and axes by other dims, and simplify."""
    if isinstance(dim, int):
        return dim
    total: dict[Monomial, int] = {}
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom in monomial:
            if isinstance(atom, Compound):
                function = _SYMBOLIC[atom.operation]
                factor = function(substitute(atom.left, replace), substitute(atom.right, replace))
            else:
                factor = replace(atom)
            term = factor * term
        _accumulate(total, term)
    return _from_terms(total)


def weighted_sum(weights: Iterable[Dim], values: Iterable[Dim]) -> Dim:
    """Sum the products of pairs."""
    total: dict[Monomial, int] = {}
    for weight, value in zip(weights, values):
        _accumulate(total, value * weight)
    return _from_terms(total)


def _accumulate(total: dict[Monomial, int], dim: Dim) -> None:
    if isinstance(dim, int):
        total[()] = total.get((), 0) + dim
        return
    for monomial, coefficient in dim.terms:
        total[monomial] = total.get(monomial, 0) + coefficient


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return the value for given sizes; raise KeyError for a symbol without one."""
    return dim if isinstance(dim, int) else int(fold(dim, lambda atom: sizes[str(atom)], _NUMERIC))


_NUMERIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}
_SYMBOLIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "//": floordiv,
    "%": mod,
    "min": minimum,
    "max": maximum,
}


@lru_cache(maxsize=65536)
def _add(a: Expr, b: Dim) -> Dim:
    if isinstance(b, int):
        *others, (last, constant) = a.terms
        if last:
            return Expr((*a.terms, ((), b)))
        return Expr((*others, ((), constant + b)) if constant + b else tuple(others))
    total = dict(a.terms)
    for monomial, coefficient in b.terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    return _from_terms(total)


@lru_cache(maxsize=65536)
def _subtract(a: Expr, b: Expr) -> Dim:
    total = dict(a.terms)
    for monomial, coefficient in b.terms:
        total[monomial] = total.get(monomial, 0) - coefficient
    return _from_terms(total)


@lru_cache(maxsize=65536)
def _multiply_exprs(a: Expr, b: Dim) -> Dim:
    if isinstance(b, int):
        return Expr(tuple([(monomial, coefficient * b) for monomial, coefficient in a.terms])) if b else 0
    total: dict[Monomial, int] = {}
    if len(a.terms) * len(b.terms) > MOST_TERMS:
        raise UndecidedError(f"a product of sizes has more than {MOST_TERMS} terms")
    for left, x in a.terms:
        for right, y in b.terms:
            monomial = tuple(sorted(left + right, key=_atom_order)) if left and right else left or right
            total[monomial] = total.get(monomial, 0) + x * y
    return _from_terms(total)


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Expr):
        return dim.terms
    return (((), dim),) if dim else ()


def _from_terms(total: dict[Monomial, int]) -> Dim:
    terms = [term for term in total.items() if term[1]]
    if len(terms) > 1:
        if len(terms) > MOST_TERMS:
            raise UndecidedError(f"a sum of sizes has more than {MOST_TERMS} terms")
        terms.sort(key=_term_order)
    elif not terms:
        return 0
    elif not terms[0][0]:
        return terms[0][1]
    return Expr(tuple(terms))


def _term_order(term: tuple[Monomial, int]) -> tuple[int, tuple[str, ...]]:
    return _monomial_order(term[0])


@lru_cache(maxsize=65536)
def _monomial_order(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    return -len(monomial), tuple([atom.order for atom in monomial])


_atom_order = attrgetter("order")


def _divide_exactly(a: Dim, b: Dim) -> Dim | None:
    """Return a / b if there is no remainder, by polynomial long division."""
    if a == b:
        return 1
    if b == 0:
        raise ZeroDivisionError(f"{a} divided by 0")
    divisor = _terms(b)
    lead, lead_coefficient = divisor[0]
    quotient: Dim = 0
    remainder = a
    for _ in range(32):
        if remainder == 0:
            return quotient
        monomial, coefficient = _terms(remainder)[0]
        remaining = _remove(monomial, lead)
        if remaining is None or coefficient % lead_coefficient:
            return None
        step = _from_terms({remaining: coefficient // lead_coefficient})
        quotient = quotient + step
        remainder = remainder - step * b
    return None


def _remove(monomial: Monomial, factor: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _split_multiples(a: Dim, b: int) -> tuple[Dim, Dim]:
    """(q, r) with a == b * q + r, where r's coefficients lie in [0, b) unless that would lose an exact term."""
    quotients: dict[Monomial, int] = {}
    remainders: dict[Monomial, int] = {}
    for monomial, coefficient in _terms(a):
        quotient, remainder = divmod(coefficient, b)
        if monomial and remainder:  # keep x - 1: rewriting -x as (b-1)x would prevent simplification
            quotient, remainder = 0, coefficient
        quotients[monomial] = quotient
        remainders[monomial] = remainder
    return _from_terms(quotients), _from_terms(remainders)


def _split_symbolic(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """(q, r) with a == b * q + r, where q collects the terms that b divides."""
    total_quotient: Dim = 0
    remainder: Dim = 0
    for monomial, coefficient in _terms(a):
        term = _from_terms({monomial: coefficient})
        quotient = _divide_exactly(term, b)
        if quotient is None:
            remainder = remainder + term
        else:
            total_quotient = total_quotient + quotient
    return total_quotient, remainder


def _within(a: Dim, b: Dim) -> bool:
    """Whether 0 <= a < b is certain."""
    return is_at_least(a, 0) and is_at_least(b, a + 1)


def _choose(operation: str, a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b) if operation == "min" else max(a, b)
    if is_at_least(a, b):
        return b if operation == "min" else a
    if is_at_least(b, a):
        return a if operation == "min" else b
    first, second = sorted((a, b), key=str)
    return from_atom(Compound(operation, first, second))


def _top_atoms(dim: Expr) -> list[Atom]:
    return [atom for monomial, _ in dim.terms for atom in monomial]


def _at_extreme(dim: Expr, loops: list[Axis], *, lowest: bool) -> Dim:
    """Put each loop variable at the end of its range that minimises (or maximises) `dim`, if that is certain."""
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        axes = [atom for atom in monomial if isinstance(atom, Axis) and atom in loops]
        others = _from_terms({tuple(atom for atom in monomial if atom not in axes): coefficient})
        low, high = _interval(others)
        rises, falls = low is not None and low >= 0, high is not None and high <= 0
        if not axes or not (rises or falls):
            total = total + _from_terms({monomial: coefficient})
        elif rises != lowest:  # the last iteration; at the first the term is 0
            total = total + others * product(atom.size - 1 for atom in axes)
    return total


def _tight_interval(dim: Dim) -> Interval:
    """Return an interval that also uses x - c < c * (x // c) <= x."""
    low, high = _interval(dim)
    relaxed, below, above = dim, 0, 0
    for monomial, coefficient in _terms(dim):
        match monomial:
            case (Compound("//", left, int(divisor)),) if divisor > 0 and coefficient % divisor == 0:
                times = coefficient // divisor
                relaxed = relaxed - _from_terms({monomial: coefficient}) + times * left
                below -= max(times, 0) * (divisor - 1)
                above += max(-times, 0) * (divisor - 1)
    if relaxed is dim:
        return low, high
    least, greatest = _interval(relaxed)
    return (
        _larger(low, None if least is None else least + below),
        _smaller(high, None if greatest is None else greatest + above),
    )


def _larger(a: int | None, b: int | None) -> int | None:
    return max((bound for bound in (a, b) if bound is not None), default=None)


def _smaller(a: int | None, b: int | None) -> int | None:
    return min((bound for bound in (a, b) if bound is not None), default=None)


def _interval(dim: Dim) -> Interval:
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in _terms(dim):
        term: Interval = (coefficient, coefficient)
        for atom in monomial:
            term = _multiply(term, _atom_interval(atom))
        low = None if low is None or term[0] is None else low + term[0]
        high = None if high is None or term[1] is None else high + term[1]
    return low, high


def _multiply(a: Interval, b: Interval) -> Interval:
    (a_low, a_high), (b_low, b_high) = a, b
    if a_low is not None and a_high is not None and b_low is not None and b_high is not None:
        corners = (a_low * b_low, a_low * b_high, a_high * b_low, a_high * b_high)
        return min(corners), max(corners)
    if a_low is not None and a_low >= 0 and b_low is not None and b_low >= 0:
        high = None if a_high is None or b_high is None else a_high * b_high
        return a_low * b_low, high
    for fixed, other in ((a, b), (b, a)):
        scale = fixed[0]
        if scale is not None and scale == fixed[1] and scale < 0:
            low, high = _multiply((-scale, -scale), other)
            return (None if high is None else -high), (None if low is None else -low)
    return None, None


def _atom_interval(atom: Atom) -> Interval:
    match atom:
        case Symbol(_, low, high):
            return low, high
        case Axis(_, size):
            largest = bounds(size)[1]
            return 0, None if largest is None else largest - 1
        case Compound("%", _, right):
            low, high = bounds(right)
            return (0, None if high is None else high - 1) if low is not None and low > 0 else (None, None)
        case Compound("//", left, right):
            low, high = bounds(left)
            divisor = bounds(right)
            if divisor[0] is None or divisor[0] <= 0:
                return None, None
            if isinstance(right, int):
                return (None if low is None else low // right), (None if high is None else high // right)
            if high is not None and high < 0:  # a larger divisor brings it nearer to 0, but it stays negative
                return low, -1
            return (0, high) if low is not None and low >= 0 else (low, high)
        case Compound(operation, left, right):
            lows, highs = zip(bounds(left), bounds(right))
            known_lows = [x for x in lows if x is not None]
            known_highs = [x for x in highs if x is not None]
            if operation == "min":
                return (min(known_lows) if len(known_lows) == 2 else None), min(known_highs, default=None)
            return max(known_lows, default=None), (max(known_highs) if len(known_highs) == 2 else None)


def _factor(atom: Atom, *, alone: bool) -> str:
    divides = isinstance(atom, Compound) and atom.operation in ("//", "%")
    return f"({atom})" if divides and not alone else str(atom)
