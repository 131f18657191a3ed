"""Scalar expressions: what a map computes for one output element.

A `Scalar` is a tree of loads, literals, index arithmetic and function applications. Loads name their tensor by its
position among the step's operands, so that equal computations on different tensors are equal trees. Trees inside
kernel templates may also contain `Placeholder` and `FlatLoad`; those of a program's steps never do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Union

from weft.ir.dims import Axis, Dim, Symbol, axis, substitute
from weft.ir.dtypes import DType
from weft.ir.types import Shape
from weft.records import dataclass

# Every function an `Apply` may name, with its number of arguments. All work on one dtype (the arguments') except
# `cast` and `bitcast` (to the result's), `select` (bool first) and predicates (bool result). Integer `divide`
# truncates towards zero, `remainder` has the sign of the divisor, `fmod` that of the dividend; `minimum` and
# `maximum` propagate NaN; shifts by the width or more give 0; `fma` is a * b + c, rounded once where a device can.
FUNCTIONS: dict[str, int] = {
    "add": 2,
    "subtract": 2,
    "multiply": 2,
    "divide": 2,
    "remainder": 2,
    "fmod": 2,
    "power": 2,
    "fma": 3,
    "minimum": 2,
    "maximum": 2,
    "negate": 1,
    "absolute": 1,
    "sign": 1,
    "floor": 1,
    "ceil": 1,
    "round_half_even": 1,
    "truncate": 1,
    "sqrt": 1,
    "exp": 1,
    "log": 1,
    "log1p": 1,
    "sin": 1,
    "cos": 1,
    "tan": 1,
    "asin": 1,
    "acos": 1,
    "atan": 1,
    "sinh": 1,
    "cosh": 1,
    "tanh": 1,
    "asinh": 1,
    "acosh": 1,
    "atanh": 1,
    "erf": 1,
    "is_nan": 1,
    "is_inf": 1,
    "equal": 2,
    "not_equal": 2,
    "less": 2,
    "less_equal": 2,
    "greater": 2,
    "greater_equal": 2,
    "logical_and": 2,
    "logical_or": 2,
    "logical_xor": 2,
    "logical_not": 1,
    "bit_and": 2,
    "bit_or": 2,
    "bit_xor": 2,
    "bit_not": 1,
    "shift_left": 2,
    "shift_right": 2,
    "select": 3,
    "cast": 1,
    "bitcast": 1,
}

# Comparison operators of C-like languages.
COMPARISONS = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}


def same_number(a: object, b: object) -> bool:
    """Whether two literals are the same; -0.0 is not 0.0, and True is not 1."""
    return a is b or (type(a) is type(b) and repr(a) == repr(b))


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    value: bool | int | float | complex | str
    dtype: DType

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.dtype is other.dtype and same_number(self.value, other.value)

    def __hash__(self) -> int:
        return hash((self.value, self.dtype))

    def __str__(self) -> str:
        return f"{self.value!r}:{self.dtype}" if self.dtype is not DType.float32 else f"{self.value!r}"


@dataclass(frozen=True, slots=True)
class Index:
    """Integer arithmetic over the map's axes and the program's symbols, as an int64."""

    value: Dim

    @property
    def dtype(self) -> DType:
        return DType.int64

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Load:
    """An element of operand number `operand`.

    An index outside the tensor is clamped, so that a guarded load (`select(inside, load, fill)`) is harmless; with
    `checked` it raises an error instead.
    """

    operand: int
    indices: tuple[Scalar, ...]
    dtype: DType
    checked: bool = False

    def __str__(self) -> str:
        mark = "!" if self.checked else ""
        return f"${self.operand}{mark}[{', '.join(map(str, self.indices))}]"


@dataclass(frozen=True, slots=True)
class Apply:
    function: str
    arguments: tuple[Scalar, ...]
    dtype: DType

    def __str__(self) -> str:
        name = f"{self.function}<{self.dtype}>" if self.function in ("cast", "bitcast") else self.function
        return f"{name}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A value that the kernel around the expression provides under a key, from a register or from memory."""

    key: str | int
    dtype: DType

    def __str__(self) -> str:
        return f"%{self.key}"


@dataclass(frozen=True, slots=True)
class FlatLoad:
    """The element of operand number `operand` at an offset from its start that is certain to lie inside."""

    operand: int
    offset: Dim
    dtype: DType

    def __str__(self) -> str:
        return f"${self.operand}[+ {self.offset}]"


Scalar = Union[Literal, Index, Load, Apply, Placeholder, FlatLoad]

ELEMENT = "element"  # the key of the value that a template computes the expression of: an element, a product, a total


def identity_indices(shape: Shape) -> tuple[Index, ...]:
    """Return the indices with which an elementwise map reads a tensor of its own shape."""
    return tuple([Index(axis(position, size)) for position, size in enumerate(shape)])


def walk(scalar: Scalar) -> Iterator[Scalar]:
    """Yield every node of the tree, parents first; a subtree shared as one object comes only once."""
    pending = [scalar]
    visited: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        yield node
        if type(node) is Apply:  # faster than match; this loop is hot
            pending.extend(node.arguments)
        elif type(node) is Load:
            pending.extend(node.indices)


def loads(scalar: Scalar) -> list[Load]:
    return [node for node in walk(scalar) if isinstance(node, Load)]


def flat_loads(scalar: Scalar) -> list[FlatLoad]:
    return [node for node in walk(scalar) if isinstance(node, FlatLoad)]


def rebuild(
    scalar: Scalar,
    load: Callable[[Load], Scalar] | None = None,
    atom: Callable[[Symbol | Axis], Dim] | None = None,
    placeholder: Callable[[Placeholder], Scalar] | None = None,
) -> Scalar:
    """Copy an expression, replacing loads (after their indices), symbols and axes, and placeholders.

    A subtree that is shared as one object stays shared: large expressions are graphs rather than trees.
    """
    copies: dict[int, Scalar] = {}

    def copy(node: Scalar) -> Scalar:
        result = copies.get(id(node))
        if result is None:
            match node:
                case Apply(function, arguments, dtype):
                    result = Apply(function, tuple([copy(argument) for argument in arguments]), dtype)
                case Index(value):
                    result = node if atom is None else Index(substitute(value, atom))
                case Load(operand, indices, dtype, checked):
                    result = Load(operand, tuple([copy(index) for index in indices]), dtype, checked)
                    result = result if load is None else load(result)
                case Literal():
                    result = node
                case Placeholder():
                    result = node if placeholder is None else placeholder(node)
                case FlatLoad(operand, offset, dtype):
                    result = node if atom is None else FlatLoad(operand, substitute(offset, atom), dtype)
            copies[id(node)] = result
        return result

    return copy(scalar)


def bind_placeholders(scalar: Scalar, values: Mapping[str | int, Scalar]) -> Scalar:
    """Replace the placeholders of some keys by expressions."""
    return rebuild(scalar, placeholder=lambda node: values.get(node.key, node))


def computed_dtypes(expression: Scalar) -> list[DType]:
    """Return the types that an expression computes with, without those of index arithmetic."""
    return [node.dtype for node in walk(expression) if not isinstance(node, (Literal, Index))]
