"""Simplified symbolic integers have the values of Python's integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol, UndecidedError

Environment = dict[str, int]

SYMBOLS: dict[str, tuple[int | None, int | None]] = {
    "n": (1, None),
    "m": (0, None),
    "few": (2, 5),
    "signed": (-7, 9),
    "negative": (-9, -2),
    "any": (None, None),
}
AXES: dict[str, Any] = {"i0": "n", "i1": 6, "i2": "few"}  # the axis, and its size
FAR = 40
SOME = {"n": 40, "m": 3, "few": 3, "signed": 3, "negative": -3, "any": 0, "i0": 2, "i1": 2, "i2": 2}


@dataclass(frozen=True)
class Tree:
    """An expression as written, before any simplification."""

    operation: str
    left: Any  # a Tree; a name or an int for a leaf
    right: Any = None

    def __str__(self) -> str:
        return str(self.left) if self.operation == "leaf" else f"({self.left} {self.operation} {self.right})"


OPERATIONS = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "*": (lambda a, b: a * b, lambda a, b: a * b),
    "//": (dims.floordiv, lambda a, b: a // b),
    "%": (dims.mod, lambda a, b: a % b),
    "ceil": (dims.ceildiv, lambda a, b: -(-a // b)),
    "min": (dims.minimum, min),
    "max": (dims.maximum, max),
}

leaves = st.sampled_from([*SYMBOLS, *AXES]) | st.integers(-12, 12)
trees = st.recursive(
    leaves.map(lambda content: Tree("leaf", content)),
    lambda children: st.builds(Tree, st.sampled_from(list(OPERATIONS)), children, children),
    max_leaves=8,
)
polynomials = st.recursive(
    leaves.map(lambda content: Tree("leaf", content)),
    lambda children: st.builds(Tree, st.sampled_from(["+", "-", "*"]), children, children),
    max_leaves=7,
)


@st.composite
def environments(draw: st.DrawFn) -> Environment:
    """Draw sizes within the symbols' bounds, and positions within the axes'."""
    result = {}
    for name, (low, high) in SYMBOLS.items():
        result[name] = draw(st.integers(-FAR if low is None else low, FAR if high is None else high))
    for name, size in AXES.items():
        result[name] = draw(st.integers(0, (result[size] if isinstance(size, str) else size) - 1))
    return result


def leaf(content: str | int) -> Dim:
    if isinstance(content, int):
        return content
    if content in AXES:
        size = AXES[content]
        return dims.axis(int(content[1:]), leaf(size) if isinstance(size, str) else size)
    return dims.symbol(content, *SYMBOLS[content])


def build(tree: Tree) -> Dim:
    if tree.operation == "leaf":
        return leaf(tree.left)
    return OPERATIONS[tree.operation][0](build(tree.left), build(tree.right))


def value(tree: Tree, environment: Environment) -> int:
    """Evaluate the expression in Python."""
    if tree.operation == "leaf":
        return environment[tree.left] if isinstance(tree.left, str) else tree.left
    return OPERATIONS[tree.operation][1](value(tree.left, environment), value(tree.right, environment))


def built(tree: Tree) -> Dim:
    try:
        return build(tree)
    except ZeroDivisionError:
        assume(False)
        raise


def valued(tree: Tree, environment: Environment) -> int:
    try:
        return value(tree, environment)
    except ZeroDivisionError:
        assume(False)
        raise


many = settings(max_examples=300)


@many
@given(trees, environments())
def test_simplified_means_the_same(tree: Tree, environment: Environment) -> None:
    expected = valued(tree, environment)
    assert dims.evaluate(built(tree), environment) == expected


@many
@given(trees, environments())
@example(Tree("*", Tree("leaf", "i0"), Tree("leaf", "signed")), SOME | {"signed": -7})
@example(Tree("//", Tree("leaf", "negative"), Tree("leaf", "n")), SOME | {"negative": -2})
def test_bounds_hold_every_value(tree: Tree, environment: Environment) -> None:
    low, high = dims.bounds(built(tree))
    result = valued(tree, environment)
    assert low is None or low <= result
    assert high is None or result <= high


@many
@given(trees, trees, environments())
def test_decisions_are_never_wrong(left: Tree, right: Tree, environment: Environment) -> None:
    a, b = built(left), built(right)
    x, y = valued(left, environment), valued(right, environment)
    for decide, expected in ((dims.decide_less, x < y), (dims.decide_equal, x == y)):
        try:
            decided = decide(a, b)
        except UndecidedError:
            continue
        assert decided == expected
    if dims.is_at_least(a, b):
        assert x >= y


@many
@given(trees, st.dictionaries(st.sampled_from([*SYMBOLS, *AXES]), trees, max_size=3), environments())
def test_substitution_is_evaluation_in_two_steps(tree: Tree, chosen: dict[str, Tree], environment: Environment) -> None:
    """Only values within an atom's bounds are substituted, as with real sizes."""
    inner = {name: valued(replacement, environment) for name, replacement in chosen.items()}
    changed = environment | inner
    for name, (low, high) in SYMBOLS.items():
        assume((low is None or low <= changed[name]) and (high is None or changed[name] <= high))
    for name, size in AXES.items():
        assume(0 <= changed[name] < (changed[size] if isinstance(size, str) else size))
    replacements = {name: built(replacement) for name, replacement in chosen.items()}

    def replace(atom: Symbol | Axis) -> Dim:
        return replacements.get(str(atom), leaf(str(atom)))

    expected = valued(tree, changed)
    try:
        result = dims.substitute(built(tree), replace)
    except ZeroDivisionError:
        assume(False)
        raise
    assert dims.evaluate(result, environment) == expected


def expanded(tree: Tree) -> dict[tuple[str, ...], int]:
    """Expand a polynomial independently: sorted names -> coefficient."""
    if tree.operation == "leaf":
        return {(tree.left,): 1} if isinstance(tree.left, str) else {(): tree.left} if tree.left else {}
    left, right = expanded(tree.left), expanded(tree.right)
    total: dict[tuple[str, ...], int] = {}
    if tree.operation == "*":
        for a, x in left.items():
            for b, y in right.items():
                key = tuple(sorted(a + b))
                total[key] = total.get(key, 0) + x * y
    else:
        sign = 1 if tree.operation == "+" else -1
        for part, factor in ((left, 1), (right, sign)):
            for key, x in part.items():
                total[key] = total.get(key, 0) + factor * x
    return {key: x for key, x in total.items() if x}


@many
@given(polynomials, polynomials)
def test_equal_polynomials_are_equal(left: Tree, right: Tree) -> None:
    a, b = build(left), build(right)
    assert (a == b) == (expanded(left) == expanded(right))
    if a == b:
        assert hash(a) == hash(b)
        assert str(a) == str(b)


@many
@given(polynomials, st.randoms(use_true_random=False))
def test_order_of_terms_does_not_matter(tree: Tree, random: Any) -> None:
    terms = list(expanded(tree).items())
    random.shuffle(terms)
    total: Dim = 0
    for names, coefficient in terms:
        shuffled = list(names)
        random.shuffle(shuffled)
        total = total + dims.product([coefficient, *map(leaf, shuffled)])
    assert total == build(tree)
    assert isinstance(total, int) == (not any(names for names, _ in terms))


@many
@given(trees, environments())
def test_text_reads_back_as_python(tree: Tree, environment: Environment) -> None:
    """Evaluating the printed text in Python gives the value."""
    result = built(tree)
    expected = valued(tree, environment)
    named = {(f"{name}_" if name == "any" else name): size for name, size in environment.items()}
    text = str(result).replace("any", "any_")
    assert eval(text, {"min": min, "max": max}, named) == expected


@many
@given(trees)
def test_symbols_and_atoms(tree: Tree) -> None:
    result = built(tree)
    names = {symbol.name for symbol in dims.symbols(result)}
    mentioned = set()

    def collect(part: Tree) -> None:
        if part.operation == "leaf":
            if isinstance(part.left, str):
                mentioned.add(part.left)
                mentioned.add(AXES.get(part.left))
        else:
            collect(part.left)
            collect(part.right)

    collect(tree)
    assert names <= mentioned
    assert names == {str(atom) for atom in dims.atoms(result) if isinstance(atom, Symbol)}


n, m = dims.symbol("n"), dims.symbol("m")
i, j = dims.axis(0, n), dims.axis(1, 8)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (dims.floordiv(8 * i + j, 8), i),
        (dims.mod(8 * i + j, 8), j),
        (dims.floordiv(n * m, n), m),
        (dims.floordiv(m * i + dims.axis(1, m), m), i),
        (dims.mod(m * i + dims.axis(1, m), m), dims.axis(1, m)),
        (dims.floordiv(dims.floordiv(n, 2), 3), dims.floordiv(n, 6)),
        (dims.floordiv(2 * n + 4, 2), n + 2),
        (dims.floordiv(2 * n + 1, 2), n),
        (dims.mod(dims.mod(n, 6), 6), dims.mod(n, 6)),
        (dims.minimum(n, n + 1), n),
        (dims.maximum(dims.minimum(n, 1), 0), 1),
        (n * (m + 1) - n, n * m),
        (n - n, 0),
        ((n + 1) * (n - 1), n * n - 1),
        (dims.axis(0, 1), 0),
    ],
)
def test_simplifies(actual: Dim, expected: Dim) -> None:
    assert actual == expected


@pytest.mark.parametrize("divide", [dims.floordiv, dims.mod])
def test_division_by_zero(divide: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        divide(n, 0)


def test_multiples_of_quotients_are_bounded_by_the_dividend() -> None:
    n = dims.symbol("n")
    frames = dims.floordiv(n, 160) + 1
    place = 160 * dims.axis(0, frames) + dims.axis(1, 512)
    assert dims.is_at_least(n + 511, place)
    assert not dims.is_at_least(n + 510, place)
    assert dims.bounds(n - 160 * dims.floordiv(n, 160)) == (0, 159)
    assert dims.bounds(2 * n - 6 * dims.floordiv(n + 1, 3))[1] == 2
