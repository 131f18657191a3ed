"""Usual sizes for dynamic dims without a user's size, to prepare or plan a program before its first run."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from weft.ir import dims
from weft.ir.dims import Dim, Symbol
from weft.ir.program import Guard
from weft.ir.types import Type

_SIZES = (128, 224, 640, 320, 64, 48, 32, 16, 8, 4, 2, 1)  # candidates for a dynamic dim, in order


MAX_EXPRESSION = 200  # characters of a dim's name that is parsed
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_EXPRESSION_NODES = (ast.BinOp, ast.Name, ast.Load, ast.Constant, *_OPERATORS)


class Typed(Protocol):
    """A value of a program, or an input specification."""

    @property
    def type(self) -> Type: ...


def dynamic_dims(inputs: Sequence[Typed]) -> dict[str, tuple[Symbol, int]]:
    """Find the symbols of inputs' shapes by name, each with the first axis whose size it is."""
    symbols: dict[str, tuple[Symbol, int]] = {}
    for value in inputs:
        for axis, dim in enumerate(value.type.shape or ()):
            symbol = dims.as_symbol(dim)
            if symbol is not None and (symbol.name not in symbols or axis < symbols[symbol.name][1]):
                symbols[symbol.name] = (symbol, axis)
    return symbols


def fixed_sizes(guards: Sequence[Guard]) -> dict[str, int]:
    """Find the sizes that a program's guards fix."""
    fixed = {}
    for guard in guards:
        for side, other in ((guard.left, guard.right), (guard.right, guard.left)):
            symbol = None if isinstance(side, int) else dims.as_symbol(side)
            if symbol is not None and isinstance(other, int) and not guard.at_least:
                fixed[symbol.name] = other
    return fixed


def usual_sizes(
    inputs: Sequence[Typed], guards: Sequence[Guard], user_sizes: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Yield sizes for all dynamic dims, the likeliest first.

    User sizes and fixed sizes, 1 for batches, and one usual size for all others; a dim that is named as a sum or a
    product of others follows from those.
    """
    dynamic = dynamic_dims(inputs)
    known_sizes = {**fixed_sizes(guards), **user_sizes}
    tried: list[dict[str, int]] = []
    for size in _SIZES:
        sizes = {}
        for name, (symbol, axis) in dynamic.items():
            usual = 1 if axis == 0 or "batch" in name.lower() else size
            low, high = symbol.low or 0, symbol.high
            sizes[name] = known_sizes.get(name, max(usual, low) if high is None else min(max(usual, low), high))
        sizes = derive_sizes(sizes, known_sizes)
        if sizes not in tried:
            tried.append(sizes)
            yield sizes


def derive_sizes(sizes: Mapping[str, int], user_sizes: Mapping[str, int]) -> dict[str, int]:
    """Compute the sizes of dims that are named by an expression of others, such as "past_length + length".

    Exporters write such names. A user's size stays, as does one whose expression is negative.
    """
    derived = dict(sizes)
    for name in sizes:
        expression = None if name.isidentifier() or name in user_sizes else _parse_expression(name)
        if expression is not None and all(
            node.id in sizes for node in ast.walk(expression) if isinstance(node, ast.Name)
        ):
            derived[name] = size if (size := _evaluate_expression(expression, sizes)) >= 0 else sizes[name]
    return derived


@lru_cache(maxsize=256)
def _parse_expression(name: str) -> ast.expr | None:
    """Parse sums, differences and products of names and numbers; None for other names of dims."""
    if len(name) > MAX_EXPRESSION:
        return None
    try:
        expression = ast.parse(name.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return expression if all(map(_is_arithmetic, ast.walk(expression))) else None


def _is_arithmetic(node: ast.AST) -> bool:
    return isinstance(node, _EXPRESSION_NODES) and (not isinstance(node, ast.Constant) or type(node.value) is int)


def _evaluate_expression(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.BinOp(left=left, op=operation, right=right):
            return _OPERATORS[type(operation)](_evaluate_expression(left, sizes), _evaluate_expression(right, sizes))
        case ast.Name(id=name):
            return sizes[name]
        case ast.Constant(value=int() as number):
            return number
    raise ValueError(f"not a size: {ast.unparse(node)}")


def likely_sizes(inputs: Sequence[Typed], guards: Sequence[Guard], user_sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the first usual sizes that satisfy all guards, or else the first of all."""
    candidates = list(usual_sizes(inputs, guards, user_sizes))
    return next((sizes for sizes in candidates if all(_is_satisfied(guard, sizes) for guard in guards)), candidates[0])


def reference_sizes(inputs: Sequence[Typed], guards: Sequence[Guard]) -> list[dict[str, int]]:
    """Return the sizes for which memory is laid out: usual ones first, then large and small ones."""
    candidates = list(usual_sizes(inputs, guards, {}))
    satisfied = [sizes for sizes in candidates if all(_is_satisfied(guard, sizes) for guard in guards)] or candidates
    chosen = (satisfied[0], max(satisfied, key=_total), min(satisfied, key=_total))
    return [sizes for number, sizes in enumerate(chosen) if sizes not in chosen[:number]]


def _total(sizes: Mapping[str, int]) -> int:
    return sum(sizes.values())


def _is_satisfied(guard: Guard, sizes: Mapping[str, int]) -> bool:
    """Whether sizes satisfy a guard; one that depends on other sizes is assumed to hold."""
    sides = [side if isinstance(side, int) else _evaluate(side, sizes) for side in (guard.left, guard.right)]
    if None in sides:
        return True
    left, right = sides
    assert left is not None
    assert right is not None
    return left >= right if guard.at_least else left == right


def _evaluate(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    return dims.evaluate(dim, sizes) if {symbol.name for symbol in dims.symbols(dim)} <= set(sizes) else None
