"""How many iterations a kernel's loops make, at most, for given parameters.

Mesa's software driver ends loops without a word after 65535 iterations of all loops of an invocation together. A
kernel's loops are described by a text that is kept with its shader, and counted before it runs there.
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
    """The loops of a kernel as a text; empty where there are none."""
    found = _loops(body)
    return json.dumps(found, separators=(",", ":")) if found else ""


def _loops(body: tuple[Statement, ...]) -> list[Any]:
    found: list[Any] = []
    for statement in body:
        match statement:
            case Let(name, value):
                found.append([_name(name), _text(value)])
            case Repeat(name, start, stop, step, inner):
                count = dims.ceildiv(stop - start, step)
                found.append([_name(name), _text(start), _text(count), step, _loops(inner)])
            case When(_, then, otherwise):
                found.append([_loops(then), _loops(otherwise)])
    return found if any(len(entry) != 2 or isinstance(entry[0], list) for entry in found) else []


def _name(name: str) -> str:
    """A variable's name that is no word of Python's."""
    return f"v_{name}"


def _text(value: Dim) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda word: word[0] if word[0] in ("min", "max") else _name(word[0]), str(value))


def most_trips(description: str, kernel: Kernel, blocks: int, parameters: tuple[int, ...]) -> int:
    """The most iterations that an invocation makes, seen at the ends and in the middle of what varies."""
    if not description:
        return 0
    loops = _parsed(description)
    known = dict(zip(map(_name, kernel.parameters), parameters))
    pairs = [(block, lane) for block in _some(blocks) for lane in _some(kernel.lanes)]
    return max(_trips(loops, {**known, _name(BLOCK): block, _name(LANE): lane}) for block, lane in pairs)


def _some(count: int) -> set[int]:
    return {number for number in (0, 1, count // 2, count - 2, count - 1) if 0 <= number < max(count, 1)}


@lru_cache(maxsize=1024)
def _parsed(description: str) -> list[Any]:
    """With expressions for their texts."""

    def parse(entry: Any) -> Any:
        match entry:
            case [str(name), str(value)]:
                return [name, _expression(value)]
            case [str(name), start, count, step, inner]:
                return [name, _expression(start), _expression(count), step, [parse(one) for one in inner]]
            case [first, second]:
                return [[parse(one) for one in first], [parse(one) for one in second]]
        raise InternalError(f"no loop: {entry}")

    return [parse(entry) for entry in json.loads(description)]


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _trips(loops: list[Any], known: Mapping[str, int]) -> int:
    known = dict(known)
    total = 0
    for entry in loops:
        match entry:
            case [str(name), value]:
                known[name] = _value(value, known)
            case [str(name), start, count, step, inner]:
                trips, first = max(_value(count, known), 0), _value(start, known)
                if trips:
                    at = [first + step * trip for trip in _some(trips)] if inner else []
                    total += trips * (1 + max((_trips(inner, {**known, name: place}) for place in at), default=0))
            case [first, second]:
                total += max(_trips(first, known), _trips(second, known))
    return total


def _value(node: ast.expr, known: Mapping[str, int]) -> int:
    """Index arithmetic."""
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.Name(name):
            return known[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, known)
        case ast.BinOp(left, operator, right):
            return _OPERATORS[type(operator)](_value(left, known), _value(right, known))
        case ast.Call(ast.Name(name), [left, right]):
            return (min if name == "min" else max)(_value(left, known), _value(right, known))
    raise InternalError(f"no index arithmetic: {ast.dump(node)}")


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b if b else 0,
    ast.Mod: lambda a, b: a % b if b else 0,
}
