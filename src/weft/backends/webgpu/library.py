"""Write the values of a shader in WGSL: types, literals, scalar functions and conversions.

Methods take registers and return expressions, as text; `prelude` returns the helper functions that they call. Registers
are bool, i32, u32, i64, u64, f32 or f64. Narrower types use registers of 32 bits, wrapped or rounded after each
operation; 64-bit integers are pairs of u32 if the adapter has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import isfinite
from typing import Any

import numpy as np

from weft.backends.webgpu import conversions, elementary, floats, functions, integers, minifloats, pairs, wgsl_types
from weft.backends.webgpu.helpers import Helpers, split_functions
from weft.backends.webgpu.wgsl_types import Abilities
from weft.ir.dtypes import DType
from weft.ir.kernel import ACROSS_FUNCTIONS

__all__ = ["Abilities", "Library"]


class Library:
    """Writes the values of one shader, and collects the helper functions that they need."""

    def __init__(self, abilities: Abilities) -> None:
        self.abilities = abilities
        self._helpers = Helpers(abilities, _list_helpers(abilities))
        self._literals: dict[str, float] = {}  # text -> number

    def register_type(self, dtype: DType) -> str:
        return wgsl_types.register_type(dtype, self.abilities)

    def storage_type(self, dtype: DType) -> str:
        """Return the element type of a storage array; u32 for packed types."""
        return wgsl_types.storage_type(dtype, self.abilities)

    def elements_in_word(self, dtype: DType) -> int:
        return wgsl_types.elements_in_word(dtype, self.abilities)

    def literal(self, value: bool | int | float, dtype: DType) -> str:
        """Write a number; integers wrap around, floats are rounded."""
        kind = wgsl_types.kind_of(dtype, self.abilities)
        if kind == "bool":
            return "true" if value else "false"
        if dtype.is_float:
            with np.errstate(all="ignore"):
                exact = (
                    np.array(value, np.float64).astype(dtype.numpy).astype(np.float64 if kind == "f64" else np.float32)
                )
            number, text = float(exact), self._float(exact[()], kind)
        else:
            low = int(dtype.limits[0])
            number = low + (int(value) - low) % (1 << dtype.bits)
            text = _integer(int(number), kind)
        self._literals[text] = number
        return text

    def _float(self, number: Any, kind: str) -> str:
        wide = kind == "f64"
        if isfinite(number):
            text = f"{np.format_float_scientific(number, trim='0')}{'lf' if wide else 'f'}"
            return f"({text})" if text.startswith("-") else text
        bits = f"{number.view(np.uint64 if wide else np.uint32):#x}{'lu' if wide else 'u'}"
        return f"{self._helpers.use(f'make_{kind}')}({bits})"

    def call(self, function: str, arguments: Sequence[str], dtypes: Sequence[DType], result: DType) -> str:
        """Write a call of a function of `weft.ir.scalar.FUNCTIONS`, fma or dot4."""
        constant = self._literals.get(arguments[-1])
        if function == "cast" and constant is not None and dtypes[0].is_integer:
            return self._convert_constant(int(constant), dtypes[0], result)
        atoms = [_atom(argument) for argument in arguments]
        return functions.apply(self._helpers, function, atoms, dtypes, result, constant)

    def _convert_constant(self, number: int, source: DType, target: DType) -> str:
        """Convert a constant integer here, since naga rejects some of these conversions of constants."""
        if target.is_float:
            return self.literal(float(np.array(number, source.numpy).astype(target.numpy)), target)
        return self.literal(number != 0 if target is DType.bool else number, target)

    def combine(self, kind: str, dtype: DType, a: str, b: str) -> str:
        """Write the sum, product, maximum or minimum of two registers."""
        return self.call(ACROSS_FUNCTIONS[kind], [a, b], [dtype, dtype], dtype)

    def cast(self, text: str, source: DType, target: DType) -> str:
        return conversions.cast(self._helpers, _atom(text), source, target)

    def bitcast(self, text: str, source: DType, target: DType) -> str:
        return conversions.bitcast(self._helpers, _atom(text), source, target)

    def from_index(self, text: str) -> str:
        """Convert an i32 to an int64 register."""
        return conversions.cast(self._helpers, _atom(text), DType.int32, DType.int64)

    def to_index(self, text: str) -> str:
        """Convert an int64 register that fits to an i32."""
        return conversions.cast(self._helpers, _atom(text), DType.int64, DType.int32)

    def loaded(self, text: str, dtype: DType) -> str:
        """Convert a storage element, or the low bits of a word, to a register."""
        return conversions.decode(self._helpers, _atom(text), dtype)

    def stored(self, text: str, dtype: DType) -> str:
        """Convert a register to a storage element, or to the low bits of a word whose other bits are 0."""
        return conversions.encode(self._helpers, _atom(text), dtype)

    def prelude(self) -> str:
        """Return the helper functions that the expressions written so far need."""
        return self._helpers.text()


def _integer(number: int, kind: str) -> str:
    if kind.endswith("pair"):
        return f"vec2<u32>({number & 0xFFFFFFFF}u, {number >> 32 & 0xFFFFFFFF}u)"
    suffix = {"i32": "i", "u32": "u", "i64": "li", "u64": "lu"}[kind]
    if number in (-(2**31), -(2**63)):  # the literal is positive before it is negated, and would not fit
        return f"({number + 1}{suffix} - 1{suffix})"
    return f"({number}{suffix})" if number < 0 else f"{number}{suffix}"


def _atom(text: str) -> str:
    """Parenthesize an expression unless it can be an operand of any operator."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and (letter == " " or (position == 0 and letter in "-!~&*")):
            return f"({text})"
    return text


@cache
def _list_helpers(abilities: Abilities) -> dict[str, str]:
    """List all helper functions of an adapter, by name."""
    helpers = integers.define_functions(32) | floats.define_functions(32) | minifloats.define_functions()
    helpers |= split_functions(functions.DOT4) | elementary.define_functions(32)
    helpers |= integers.define_functions(64) if abilities.int64 else pairs.define_functions()
    if abilities.int64 and abilities.float64:
        helpers |= floats.define_functions(64) | elementary.define_functions(64)
    return helpers | split_functions(conversions.define_conversions(abilities))
