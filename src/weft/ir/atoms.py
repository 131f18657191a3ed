"""The atoms of symbolic integers: named sizes, loop variables, and operations that do not simplify.

Atoms are interned (ir/interned.py). `order` is the text by which the factors of a term are sorted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from weft.ir.interned import Interned

if TYPE_CHECKING:
    from weft.ir.dims import Dim


class Symbol:
    """A size known only at run time, within [low, high]."""

    __slots__ = ("__weakref__", "high", "low", "name", "order")
    __match_args__ = ("name", "low", "high")
    name: str
    low: int | None
    high: int | None
    order: str

    def __new__(cls, name: str, low: int | None = 1, high: int | None = None) -> Symbol:
        key = name, low, high
        entry = _find_symbol(key)
        existing = None if entry is None else entry()
        if existing is not None:
            return existing
        new = object.__new__(cls)
        new.name, new.low, new.high = key
        new.order = f"Symbol:{name}"
        return _SYMBOLS.add(key, new)

    def __reduce__(self) -> tuple[Any, ...]:
        return Symbol, (self.name, self.low, self.high)

    def __repr__(self) -> str:
        return f"Symbol(name={self.name!r}, low={self.low!r}, high={self.high!r})"

    def __str__(self) -> str:
        return self.name


class Axis:
    """The loop variable of a map's output dimension `position`: 0 <= Axis < size."""

    __slots__ = ("__weakref__", "order", "position", "size")
    __match_args__ = ("position", "size")
    position: int
    size: Dim
    order: str

    def __new__(cls, position: int, size: Dim) -> Axis:
        key = position, size
        entry = _find_axis(key)
        existing = None if entry is None else entry()
        if existing is not None:
            return existing
        new = object.__new__(cls)
        new.position, new.size = key
        new.order = f"Axis:i{position}"
        return _AXES.add(key, new)

    def __reduce__(self) -> tuple[Any, ...]:
        return Axis, (self.position, self.size)

    def __repr__(self) -> str:
        return f"Axis(position={self.position!r}, size={self.size!r})"

    def __str__(self) -> str:
        return f"i{self.position}"


class Compound:
    """An operation that does not simplify: `//` and `%` (flooring, like Python's), `min`, `max`."""

    __slots__ = ("__weakref__", "left", "operation", "order", "right")
    __match_args__ = ("operation", "left", "right")
    operation: str
    left: Dim
    right: Dim
    order: str

    def __new__(cls, operation: str, left: Dim, right: Dim) -> Compound:
        key = operation, left, right
        entry = _find_compound(key)
        existing = None if entry is None else entry()
        if existing is not None:
            return existing
        new = object.__new__(cls)
        new.operation, new.left, new.right = key
        return _COMPOUNDS.add(key, new)

    def __getattr__(self, name: str) -> str:
        """Compute `order` on first use: unpickled atoms often never need it."""
        if name != "order":
            raise AttributeError(name)
        self.order = order = f"Compound:{self}"
        return order

    def __reduce__(self) -> tuple[Any, ...]:
        return Compound, (self.operation, self.left, self.right)

    def __repr__(self) -> str:
        return f"Compound(operation={self.operation!r}, left={self.left!r}, right={self.right!r})"

    def __str__(self) -> str:
        if self.operation in ("min", "max"):
            return f"{self.operation}({self.left}, {self.right})"
        return f"{_parenthesized(self.left)} {self.operation} {_parenthesized(self.right)}"


Atom = Union[Symbol, Axis, Compound]

_SYMBOLS: Interned[Symbol] = Interned()
_AXES: Interned[Axis] = Interned()
_COMPOUNDS: Interned[Compound] = Interned()
_find_symbol, _find_axis, _find_compound = _SYMBOLS.find, _AXES.find, _COMPOUNDS.find


def _parenthesized(dim: Dim) -> str:
    text = str(dim)
    return f"({text})" if " " in text or "*" in text or text.startswith("-") else text
