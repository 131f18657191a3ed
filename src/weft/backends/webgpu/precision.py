"""Constants of f32 and f64 for WGSL templates: names of types, masks, split constants.

A shader's compiler may contract a product and a sum, reorder sums, cancel their terms and merge products with a common
factor. So constants are split into parts that are short enough for exact products, and numbers by masks on their bits;
where the order of operations matters, an operation on bits separates them, which no compiler looks through.
"""

from __future__ import annotations

import struct
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

from weft.backends.numerics.coefficients import HALF_PI_PARTS

_FRACTION = {32: 23, 64: 52}
_EXPONENT_BITS = {32: 8, 64: 11}


@cache
def template_values(bits: int) -> dict[str, str]:
    """Return the values of the placeholders that templates share, for floats with this number of bits."""
    fraction = _FRACTION[bits]
    infinity = ((1 << _EXPONENT_BITS[bits]) - 1) << fraction
    half = (fraction + 1) // 2
    return {
        "kind": f"f{bits}",
        "bits": f"u{bits}",
        "int": f"i{bits}",
        "width": str(bits),
        "fraction": f"{fraction}u",
        "fraction_mask": hex((1 << fraction) - 1),
        "hidden": hex(1 << fraction),
        "bias": str((1 << (_EXPONENT_BITS[bits] - 1)) - 1),
        "one_bits": hex(_bits(1.0, bits)),
        "size_mask": hex((1 << (bits - 1)) - 1),
        "infinity": hex(infinity),
        "negative_infinity": _unsigned(infinity | 1 << (bits - 1), bits),
        "nan": hex(infinity | 1 << (fraction - 1)),
        "half_root_bits": hex(_bits(0.5**0.5, bits)),
        "high_mask": _unsigned((1 << bits) - (1 << (fraction + 1 - half)), bits),
        "short_mask": _unsigned((1 << bits) - (1 << (fraction + 3 - half)), bits),
        "sign": f"{bits - 1}u",
        "subnormal_exponent": str(2 - (1 << (_EXPONENT_BITS[bits] - 1)) - fraction),
    }


def _unsigned(value: int, bits: int) -> str:
    return f"{value:#x}{'lu' if bits == 64 else 'u'}"


def _bits(value: float, bits: int) -> int:
    form = {32: ("<f", "<I"), 64: ("<d", "<Q")}[bits]
    return int(struct.unpack(form[1], struct.pack(form[0], value))[0])


def opaque(name: str, copy: int, bits: int) -> str:
    """Write a copy of a float that is a short integer, which compilers cannot prove equal: they merge no products."""
    if not copy:
        return name
    return f"bitcast<f{bits}>(bitcast<u{bits}>({name}) & {_unsigned((1 << bits) - (1 << copy), bits)})"


def split(value: Fraction, *lengths: int) -> tuple[float, ...]:
    """Split a number into parts with these numbers of bits and a remainder."""
    parts = []
    for length in lengths:
        part = _truncate(value, length)
        parts.append(float(part))
        value -= part
    return (*parts, float(value))


def _truncate(value: Fraction, bits: int) -> Fraction:
    """The leading bits of a number."""
    unit = Fraction(1)
    size = abs(value)
    while size >= unit * 2:
        unit *= 2
    while size < unit:
        unit /= 2
    step = unit / (1 << (bits - 1))
    return (value / step).__trunc__() * step


@cache
def half_pi() -> Fraction:
    return sum((Fraction(part) for part in HALF_PI_PARTS[64]), Fraction(0))


@cache
def ln2() -> Fraction:
    with localcontext() as context:
        context.prec = 60
        return Fraction(Decimal(2).ln())
