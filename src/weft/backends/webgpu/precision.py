"""What the WGSL of elementary functions needs to know of f32 and f64: names of types, masks, limits, split constants.

A shader's compiler may contract a product and a sum, or may not; it may reorder sums, cancel their terms and merge
products with a common factor. So constants come in parts that are short enough for exact products, numbers are split
by masks on their bits, and where an order matters, an operation on bits stands between: no compiler looks through it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

from weft.backends.numerics.coefficients import HALF_PI_PARTS
from weft.backends.webgpu.helpers import number

_FRACTION = {32: 23, 64: 52}
_EXPONENT_BITS = {32: 8, 64: 11}


@cache
def common_values(bits: int) -> dict[str, str]:
    """The places of templates that all functions share, for floats of so many bits."""
    fraction = _FRACTION[bits]
    infinity = ((1 << _EXPONENT_BITS[bits]) - 1) << fraction
    kept = (fraction + 1) // 2  # of the bits in the upper half of a number
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
        "high_mask": _unsigned((1 << bits) - (1 << (fraction + 1 - kept)), bits),
        "short_mask": _unsigned((1 << bits) - (1 << (fraction + 3 - kept)), bits),
        "sign": f"{bits - 1}u",
        "subnormal_exponent": str(2 - (1 << (_EXPONENT_BITS[bits] - 1)) - fraction),
    }


def _unsigned(value: int, bits: int) -> str:
    return f"{value:#x}{'lu' if bits == 64 else 'u'}"


def _bits(value: float, bits: int) -> int:
    form = {32: ("<f", "<I"), 64: ("<d", "<Q")}[bits]
    return int(struct.unpack(form[1], struct.pack(form[0], value))[0])


def opaque(name: str, number_of: int, bits: int) -> str:
    """A float that is a short integer, once more: compilers do not see that it is the same, and merge no products."""
    if not number_of:
        return name
    return f"bitcast<f{bits}>(bitcast<u{bits}>({name}) & {_unsigned((1 << bits) - (1 << number_of), bits)})"


def shortened(value: Fraction, bits: int) -> Fraction:
    """The first so many bits of a number, towards 0."""
    unit = Fraction(1)
    size = abs(value)
    while size >= unit * 2:
        unit *= 2
    while size < unit:
        unit /= 2
    step = unit / (1 << (bits - 1))
    return (value / step).__trunc__() * step


def split(value: Fraction, lengths: Sequence[int]) -> list[str]:
    """Literals of numbers of so many bits, and one of what is left, that add up to a value."""
    texts = []
    for length in lengths:
        part = shortened(value, length)
        texts.append(number(float(part)))
        value -= part
    return [*texts, number(float(value))]


@cache
def half_pi() -> Fraction:
    return sum((Fraction(part) for part in HALF_PI_PARTS[64]), Fraction(0))


@cache
def ln2() -> Fraction:
    with localcontext() as context:
        context.prec = 60
        return Fraction(Decimal(2).ln())
