"""Sizes for which a program is likely to be run, where none are given: what is made ready before a run is for these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from weft.ir import dims
from weft.ir.dims import Dim, Symbol
from weft.ir.program import Guard
from weft.ir.types import TensorType, Type

_SIZES = (128, 224, 640, 320, 64, 48, 32, 16, 8, 4, 2, 1)  # for a dynamic dim that nothing gives a size, in turn


class Typed(Protocol):
    """A value of a program, or an input as users see it."""

    @property
    def type(self) -> Type: ...


def dynamic_dims(inputs: Sequence[Typed]) -> dict[str, tuple[Symbol, int]]:
    """The symbols of inputs' shapes by name, each with the first axis where it stands alone."""
    found: dict[str, tuple[Symbol, int]] = {}
    for value in inputs:
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        for axis, dim in enumerate(shape or ()):
            symbol = dims.as_symbol(dim)
            if symbol is not None and (symbol.name not in found or axis < found[symbol.name][1]):
                found[symbol.name] = (symbol, axis)
    return found


def fixed_sizes(guards: Sequence[Guard]) -> dict[str, int]:
    """The sizes of dims that a program works for only if they are these."""
    found = {}
    for guard in guards:
        for one, other in ((guard.left, guard.right), (guard.right, guard.left)):
            symbol = None if isinstance(one, int) else dims.as_symbol(one)
            if symbol is not None and isinstance(other, int) and not guard.at_least:
                found[symbol.name] = other
    return found


def usual_sizes(inputs: Sequence[Typed], guards: Sequence[Guard], given: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes for all dynamic dims, the likeliest first.

    What is given, what must be, 1 for batches, and one usual size for all others.
    """
    known = dynamic_dims(inputs)
    given = {**fixed_sizes(guards), **given}
    seen: list[dict[str, int]] = []
    for size in _SIZES:
        sizes = {}
        for name, (symbol, axis) in known.items():
            usual = 1 if axis == 0 or "batch" in name.lower() else size
            low, high = symbol.low or 0, symbol.high
            sizes[name] = given.get(name, max(usual, low) if high is None else min(max(usual, low), high))
        if sizes not in seen:
            seen.append(sizes)
            yield sizes


def likely_sizes(inputs: Sequence[Typed], guards: Sequence[Guard], given: Mapping[str, int]) -> dict[str, int]:
    """The likeliest of these that the program works for as it is; the likeliest of all where none is."""
    candidates = list(usual_sizes(inputs, guards, given))
    return next((sizes for sizes in candidates if all(_holds(guard, sizes) for guard in guards)), candidates[0])


def _holds(guard: Guard, sizes: Mapping[str, int]) -> bool:
    """Whether sizes keep an assumption; what depends on others than these may be as it is assumed."""
    sides = [side if isinstance(side, int) else _number(side, sizes) for side in (guard.left, guard.right)]
    if None in sides:
        return True
    left, right = sides
    assert left is not None
    assert right is not None
    return left >= right if guard.at_least else left == right


def _number(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    return dims.evaluate(dim, sizes) if {symbol.name for symbol in dims.symbols(dim)} <= set(sizes) else None
