"""Count the loop iterations of a kernel for its parameters.

Mesa's software driver silently ends loops after 65535 iterations of all loops of an invocation together. A description
of a kernel's loops is kept with its shader, and evaluated before it runs on that driver.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import BLOCK, LANE, Kernel, Let, Repeat, Statement, When

MOST_TRIPS = 65535


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


def count_trips(description: str, kernel: Kernel, blocks: int, parameters: tuple[int, ...]) -> int:
    """Return the most iterations of an invocation, among samples of blocks, lanes and outer iterations."""
    if not description:
        return 0
    loops = _parse_loops(description)
    variables = dict(zip(map(_name, kernel.parameters), parameters))
    pairs = [(block, lane) for block in _sample(blocks) for lane in _sample(kernel.lanes)]
    return max(_count_trips(loops, {**variables, _name(BLOCK): block, _name(LANE): lane}) for block, lane in pairs)


def _sample(count: int) -> set[int]:
    return {number for number in (0, 1, count // 2, count - 2, count - 1) if 0 <= number < max(count, 1)}


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


def _count_trips(loops: list[Any], variables: Mapping[str, int]) -> int:
    variables = dict(variables)
    total = 0
    for entry in loops:
        match entry:
            case [str(name), value]:
                variables[name] = _evaluate(value, variables)
            case [str(name), start, count, step, inner]:
                trips, first = max(_evaluate(count, variables), 0), _evaluate(start, variables)
                if trips:
                    values = [first + step * trip for trip in _sample(trips)] if inner else []
                    total += trips * (
                        1 + max((_count_trips(inner, {**variables, name: value}) for value in values), default=0)
                    )
            case [first, second]:
                total += max(_count_trips(first, variables), _count_trips(second, variables))
    return total


def _evaluate(node: ast.expr, variables: Mapping[str, int]) -> int:
    """Evaluate index arithmetic."""
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.Name(name):
            return variables[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_evaluate(operand, variables)
        case ast.BinOp(left, operator, right):
            return _OPERATORS[type(operator)](_evaluate(left, variables), _evaluate(right, variables))
        case ast.Call(ast.Name(name), [left, right]):
            return (min if name == "min" else max)(_evaluate(left, variables), _evaluate(right, variables))
    raise InternalError(f"not index arithmetic: {ast.dump(node)}")


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b if b else 0,
    ast.Mod: lambda a, b: a % b if b else 0,
}
