"""WGSL types of each element type, in registers and in storage buffers, for an adapter's abilities."""

from __future__ import annotations

import re

from weft.errors import InternalError
from weft.ir.dtypes import DType
from weft.records import dataclass

MINIFLOATS = frozenset(dtype for dtype in DType if dtype.is_float and dtype.bits <= 8)
PAIR = "vec2<u32>"  # 64 bits, the low word first
_USES_F16 = re.compile(r"\bf16\b")
_USES_SUBGROUPS = re.compile(r"\bsubgroup")


@dataclass(frozen=True, slots=True)
class Abilities:
    """The types that an adapter has besides those of 32 bits, and the correctness of its driver.

    `subgroups`: lanes can exchange values; with `subgroup_directive` a shader must declare that they do, which naga
    refuses and browsers require.
    `exact_division`: float32 division follows IEEE 754. `widens`: an i64 converted from an i32 compares correctly,
    which fails with Mesa's software driver.
    """

    int64: bool
    float64: bool
    float16: bool
    subgroups: bool = False
    subgroup_directive: bool = False
    exact_division: bool = True
    widens: bool = True


def list_directives(text: str, abilities: Abilities) -> list[str]:
    """List the directives that a shader needs, and no more: compilers refuse those that the adapter lacks."""
    directives = ["enable f16;"] if _USES_F16.search(text) else []
    if abilities.subgroup_directive and _USES_SUBGROUPS.search(text):
        directives.append("enable subgroups;")
    return directives


def kind_of(dtype: DType, abilities: Abilities) -> str:
    """Return how a type is computed: bool, i32, u32, i64, u64, signed_pair, unsigned_pair, f32 or f64."""
    if dtype is DType.bool:
        return "bool"
    if dtype.is_integer:
        if dtype.bits == 64 and not abilities.int64:
            return "signed_pair" if dtype.is_signed else "unsigned_pair"
        return f"{'i' if dtype.is_signed else 'u'}{64 if dtype.bits == 64 else 32}"
    if dtype is DType.float64:
        if not abilities.float64:
            raise InternalError("this adapter does not support float64")
        return "f64"
    if dtype.is_float:
        return "f32"
    raise InternalError(f"shaders have no type {dtype}")


def register_type(dtype: DType, abilities: Abilities) -> str:
    kind = kind_of(dtype, abilities)
    return PAIR if kind.endswith("pair") else kind


def storage_type(dtype: DType, abilities: Abilities) -> str:
    if dtype is DType.float16 and abilities.float16:
        return "f16"
    return "u32" if elements_in_word(dtype, abilities) > 1 else register_type(dtype, abilities)


def elements_in_word(dtype: DType, abilities: Abilities) -> int:
    """Return the elements packed in a u32 of a storage buffer; 1 for types that are not packed."""
    if dtype is DType.float16 and abilities.float16:
        return 1
    return max(4 // dtype.numpy.itemsize, 1)


def is_narrow(dtype: DType) -> bool:
    """Tell whether registers are wider than the type."""
    return dtype is not DType.bool and dtype.bits < 32
