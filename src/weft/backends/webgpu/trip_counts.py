"""Count the loop iterations of a kernel for its parameters.

Mesa's software driver silently ends loops after 65535 iterations of all loops of an invocation together. A description
of a kernel's loops is kept with its shader, and evaluated before it runs on that driver.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.kernel import BLOCK, LANE, Kernel, Let, Repeat, Statement, When

MOST_TRIPS = 65535
_SAMPLES = 5  # of a range of numbers
Number = Any  # an int, or an array of them


def describe_loops(body: tuple[Statement, ...]) -> str:
    """Describe the loops of a kernel as text; empty if there are none."""
    loops = _list_loops(body)
    return json.dumps(loops, separators=(",", ":")) if loops else ""


def _list_loops(body: tuple[Statement, ...]) -> list[Any]:
    loops: list[Any] = []
    for statement in body:
        match statement:
            case Let(name, value):
                loops.append([_name(name), _text(value)])
            case Repeat(name, start, stop, step, inner):
                count = dims.ceildiv(stop - start, step)
                loops.append([_name(name), _text(start), _text(count), step, _list_loops(inner)])
            case When(_, then, otherwise):
                loops.append([_list_loops(then), _list_loops(otherwise)])
    return loops if any(len(entry) != 2 or isinstance(entry[0], list) for entry in loops) else []


def _name(name: str) -> str:
    """Return a variable's name with a prefix, so that it is not a Python keyword."""
    return f"v_{name}"


def _text(value: Dim) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda word: word[0] if word[0] in ("min", "max") else _name(word[0]), str(value))


def count_trips(description: str, kernel: Kernel, blocks: Array, parameters: Array) -> Array:
    """Return the most iterations of an invocation for each launch, among samples of blocks, lanes and outer iterations.

    `parameters` has a row for each launch.
    """
    if not description or not len(blocks):
        return np.zeros(len(blocks), np.int64)
    variables = {_name(name): parameters[:, number] for number, name in enumerate(kernel.parameters)}
    lanes = _sample(np.full(len(blocks), kernel.lanes))
    variables |= {_name(BLOCK): _sample(blocks)[:, None], _name(LANE): lanes}
    trips = _count_trips(_parse_loops(description), variables, 3)
    most: Array = np.broadcast_to(trips, (_SAMPLES, _SAMPLES, len(blocks))).max(axis=(0, 1))
    return most


def _sample(counts: Array) -> Array:
    """Return some of the numbers from 0 to each count, along a new first axis."""
    samples: Array = np.empty((_SAMPLES, *counts.shape), np.int64)
    samples[0], samples[1], samples[2], samples[3], samples[4] = 0, 1, counts >> 1, counts - 2, counts - 1
    np.minimum(samples, counts - 1, out=samples)
    return np.maximum(samples, 0, out=samples)


@lru_cache(maxsize=1024)
def _parse_loops(description: str) -> list[Any]:
    """Parse a description; texts of expressions become syntax trees."""

    def parse(entry: Any) -> Any:
        match entry:
            case [str(name), str(value)]:
                return [name, _parse_expression(value)]
            case [str(name), start, count, step, inner]:
                return [name, _parse_expression(start), _parse_expression(count), step, [parse(one) for one in inner]]
            case [first, second]:
                return [[parse(one) for one in first], [parse(one) for one in second]]
        raise InternalError(f"not the description of a loop: {entry}")

    return [parse(entry) for entry in json.loads(description)]


def _parse_expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _count_trips(loops: list[Any], variables: Mapping[str, Number], rank: int) -> Number:
    """Return the iterations of loops for arrays of variables with up to `rank` axes."""
    variables = dict(variables)
    total: Number = 0
    for entry in loops:
        match entry:
            case [str(name), value]:
                variables[name] = _evaluate(value, variables)
            case [str(name), start, count, step, inner]:
                trips = _larger(_evaluate(count, variables), 0)
                each: Number = 1
                if inner:
                    counts = np.asarray(trips)
                    samples = _sample(counts.reshape((1,) * (rank - counts.ndim) + counts.shape))
                    values = _evaluate(start, variables) + step * samples
                    inner_trips = _count_trips(inner, {**variables, name: values}, rank + 1)
                    each = 1 + (inner_trips.max(axis=0) if np.ndim(inner_trips) > rank else inner_trips)
                total = total + trips * each
            case [first, second]:
                total = total + _larger(*(_count_trips(branch, variables, rank) for branch in (first, second)))
    return total


def _evaluate(node: ast.expr, variables: Mapping[str, Number]) -> Number:
    """Evaluate index arithmetic."""
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.Name(name):
            return variables[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_evaluate(operand, variables)
        case ast.BinOp(left, operation, right):
            return _OPERATORS[type(operation)](_evaluate(left, variables), _evaluate(right, variables))
        case ast.Call(ast.Name(name), [left, right]):
            function = _smaller if name == "min" else _larger
            return function(_evaluate(left, variables), _evaluate(right, variables))
    raise InternalError(f"not index arithmetic: {ast.dump(node)}")


def _smaller(left: Number, right: Number) -> Number:
    return min(left, right) if isinstance(left, int) and isinstance(right, int) else np.minimum(left, right)


def _larger(left: Number, right: Number) -> Number:
    return max(left, right) if isinstance(left, int) and isinstance(right, int) else np.maximum(left, right)


def _divide(left: Number, right: Number) -> Number:
    if isinstance(right, int):
        return left // right if right else 0
    return left // np.where(right == 0, 1, right) * (right != 0)


def _remainder(left: Number, right: Number) -> Number:
    if isinstance(right, int):
        return left % right if right else 0
    return left % np.where(right == 0, 1, right) * (right != 0)


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _divide,
    ast.Mod: _remainder,
}
