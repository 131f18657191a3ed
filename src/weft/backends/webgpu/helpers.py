"""The helper functions of a shader: those that its code calls, and those that they call in turn.

Their WGSL is written in modules of this folder, as texts of many functions; all names begin with `weft_`. In a text
for several types, `$name` stands for what `fill` is given, and `$NAME(x)` for a polynomial in x.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from weft.backends.webgpu.wgsl_types import Abilities
from weft.errors import InternalError

_START = re.compile(r"^(?=fn weft_)", re.MULTILINE)
_NAME = re.compile(r"\bweft_\w+")
_PLACE = re.compile(r"\$([a-z_]+)|\$([A-Z0-9_]+)\((\w+)\)")


class Helpers:
    """Collects helper functions in the order of their first use."""

    def __init__(self, abilities: Abilities, known: Mapping[str, str]) -> None:
        self.abilities = abilities
        self._known = known
        self._used: dict[str, None] = {}

    def use(self, name: str) -> str:
        """The full name of a function that the shader is going to call."""
        full = f"weft_{name}"
        if full not in self._used:
            pending = [full]
            while pending:
                found = pending.pop()
                if found not in self._known:
                    raise InternalError(f"this adapter's language lacks what {found} needs")
                if found not in self._used:
                    self._used[found] = None
                    pending.extend(_names(self._known[found]))
        return full

    def text(self) -> str:
        return "\n".join(self._known[name] for name in self._used)


def functions_in(text: str) -> dict[str, str]:
    """The functions of a text by their names."""
    parts = [part for part in _START.split(text) if part.startswith("fn ")]
    return {_names(part)[0]: part for part in parts}


@lru_cache(maxsize=4096)
def _names(text: str) -> tuple[str, ...]:
    return tuple(_NAME.findall(text))


def fill(text: str, values: Mapping[str, str], polynomials: Mapping[str, Sequence[float]] | None = None) -> str:
    """A template with its places filled."""

    def replace(match: re.Match[str]) -> str:
        name, table, argument = match.groups()
        return polynomial(argument, (polynomials or {})[table]) if name is None else values[name]

    return _PLACE.sub(replace, text)


def polynomial(x: str, coefficients: Sequence[float]) -> str:
    """By Horner's rule, the constant first."""
    text = number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        text = f"fma({text}, {x}, {number(coefficient)})"
    return text


def number(value: float) -> str:
    """A finite number as an abstract literal, which takes the type of what it meets."""
    return repr(float(value))


def leading_zeros(name: str, bits: int) -> str:
    """The number of zeros before a word's first bit; naga counts in 32 bits only."""
    if bits == 32:
        return f"countLeadingZeros({name})"
    high, low = f"countLeadingZeros(u32({name} >> 32u))", f"32u + countLeadingZeros(u32({name}))"
    return f"select({high}, {low}, {name} <= 0xffffffff)"
