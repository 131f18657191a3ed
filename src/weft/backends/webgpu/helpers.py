"""Collect the WGSL helper functions of a shader: those that it calls, directly or through others.

Modules of this folder define them, with names that begin with `weft_`. In a template for several types, `$name` is a
value passed to `fill`, and `$NAME(x)` is a polynomial in x.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from weft.backends.webgpu.wgsl_types import Abilities
from weft.errors import InternalError

_START = re.compile(r"^(?=fn weft_)", re.MULTILINE)
_NAME = re.compile(r"\bweft_\w+")
_PLACEHOLDER = re.compile(r"\$([a-z_]+)|\$([A-Z0-9_]+)\((\w+)\)")


class Helpers:
    """Collects helper functions in the order of their first use."""

    def __init__(self, abilities: Abilities, definitions: Mapping[str, str]) -> None:
        self.abilities = abilities
        self._definitions = definitions
        self._used: dict[str, None] = {}

    def use(self, name: str) -> str:
        """Add a function that the shader calls, and return its full name."""
        full = f"weft_{name}"
        if full not in self._used:
            pending = [full]
            while pending:
                function = pending.pop()
                if function not in self._definitions:
                    raise InternalError(f"this adapter's WGSL does not support {function}")
                if function not in self._used:
                    self._used[function] = None
                    pending.extend(_find_names(self._definitions[function]))
        return full

    def text(self) -> str:
        return "\n".join(self._definitions[name] for name in self._used)


def split_functions(text: str) -> dict[str, str]:
    """Split a text into its functions, by name."""
    parts = [part for part in _START.split(text) if part.startswith("fn ")]
    return {_find_names(part)[0]: part for part in parts}


@lru_cache(maxsize=4096)
def _find_names(text: str) -> tuple[str, ...]:
    return tuple(_NAME.findall(text))


def fill(text: str, values: Mapping[str, str], polynomials: Mapping[str, Sequence[float]] | None = None) -> str:
    """Fill in a template."""

    def replace(match: re.Match[str]) -> str:
        name, table, argument = match.groups()
        return polynomial(argument, (polynomials or {})[table]) if name is None else values[name]

    return _PLACEHOLDER.sub(replace, text)


def polynomial(x: str, coefficients: Sequence[float]) -> str:
    """Write a polynomial by Horner's rule; the constant coefficient is the first."""
    text = number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        text = f"fma({text}, {x}, {number(coefficient)})"
    return text


def number(value: float) -> str:
    """Write a finite number as an abstract literal, which takes its type from the context."""
    return repr(float(value))


def leading_zeros(name: str, bits: int) -> str:
    """Write an expression that counts leading zeros; naga supports it for 32 bits only."""
    if bits == 32:
        return f"countLeadingZeros({name})"
    high, low = f"countLeadingZeros(u32({name} >> 32u))", f"32u + countLeadingZeros(u32({name}))"
    return f"select({high}, {low}, {name} <= 0xffffffff)"
