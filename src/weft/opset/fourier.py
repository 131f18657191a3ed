"""Fourier transforms as contractions.

A length radix * rest is split once: sums over the radix, then sums over the rest whose matrices turn by the places in
between as well, so that no pass over the data only rotates. Inside, real and imaginary parts are planes, [rows, part,
place], and places are neighbours. Of a real signal's first sums only half are computed: the others are their mirror
images. A long rest is split again; a prime or symbolic length is one contraction with the matrix of rotations.
"""

from __future__ import annotations

from math import isqrt, pi

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.functions import cast, cos, equal, sin, where
from weft.opset.language import Element, Tensor, build, contract, index, pad, reshape, slice_axis, transpose

LARGEST_RADIX = 32
LARGEST_TABLE = 1 << 17  # numbers
TOGETHER = 16  # numbers that fill a vector
UNSPLIT_TERMS = 16  # sums up to this long gain nothing from splitting
SHORT = 16  # lengths whose rotations are a step of their own: expected values of the suite of onnx carry its rounding


def transform(x: Tensor, count: Dim, *, inverse: bool, bins: Dim | None = None) -> Tensor:
    """The transform of [rows, count, 1 or 2] along the middle: [rows, bins or count, 2]."""
    x = x if x.shape[2] == 1 else fit(x, 2, 2)
    wide = cast(x, DType.float32) if x.dtype in (DType.float16, DType.bfloat16) else x
    sign = 1 if inverse else -1
    radix = _radix(count, 1 if x.shape[2] == 1 else 2) if isinstance(count, int) else None
    if radix is None:
        result = contract(wide, _matrix(count, wide.shape[2], count, sign, wide.dtype), "bjd", "jdkc", "bkc")
    else:
        planes = reshape(wide, (x.shape[0], 1, count)) if x.shape[2] == 1 else transpose(wide, [0, 2, 1])
        result = _in_order(_split_transform(planes, radix, sign), radix, bins)
    result = result if bins is None else slice_axis(result, 1, 0, bins)
    return cast(result * (1.0 / cast(index(count), wide.dtype)) if inverse else result, x.dtype)  # type: ignore[no-any-return]


def fit(x: Tensor, axis: int, size: Dim) -> Tensor:
    """x cropped or padded with zeros to `size` along an axis."""
    if x.shape[axis] == size:
        return x
    return pad(x, [(0, size - x.shape[a] if a == axis else 0) for a in range(x.rank)])


def _radix(count: int, parts: int) -> int | None:
    """The factor to split off, with a rest that need not be split again if there is one; None for no factor."""
    if count * parts <= UNSPLIT_TERMS:
        return None
    small = [radix for radix in range(2, min(count // 2, LARGEST_RADIX) + 1) if count % radix == 0]
    if count <= SHORT:
        return max((radix for radix in small if radix * radix <= count), default=None)
    balanced = [radix for radix in small if count // radix <= LARGEST_RADIX]
    if balanced:
        return min(balanced, key=lambda radix: _multiplications(radix, count // radix, parts))
    return max(small) if small else next((d for d in range(LARGEST_RADIX, isqrt(count) + 1) if count % d == 0), None)


def _multiplications(radix: int, rest: int, parts: int) -> int:
    """Those of one row, with neighbours taken `TOGETHER` at a time."""
    kept = radix // 2 + 1 if parts == 1 else radix
    whole = -(-rest // TOGETHER) * TOGETHER, -(-2 * rest // TOGETHER) * TOGETHER
    return kept * 2 * (parts * radix * whole[0] + rest * whole[1])


def _split_transform(x: Tensor, radix: int, sign: int) -> Tensor:
    """[rows, part, place] -> [rows, k, part, m], where k + radix * m is the bin; of a real x only half of the k."""
    rows, parts, count = x.shape
    rest = dims.floordiv(count, radix)
    kept = radix // 2 + 1 if parts == 1 else radix
    columns = reshape(x, (rows, parts, radix, rest))
    first = contract(columns, _matrix(radix, parts, kept, sign, x.dtype), "bdjr", "jdkc", "bkcr")
    if dims.is_at_least(count, SHORT + 1) and dims.is_at_least(LARGEST_TABLE, 4 * radix * rest * rest):
        return contract(first, _turning_matrix(kept, radix, rest, sign, x.dtype), "bkcr", "kcrdm", "bkdm")
    turned = reshape(_turn(first, count, sign), (rows * kept, 2, rest))
    return reshape(_planes(turned, sign), (rows, kept, 2, rest))


def _planes(x: Tensor, sign: int) -> Tensor:
    """The transform of [rows, 2, place] in the same form."""
    rows, parts, count = x.shape
    radix = _radix(count, 2) if isinstance(count, int) else None
    if radix is None:
        return contract(x, _matrix(count, parts, count, sign, x.dtype), "bdj", "jdkc", "bck")
    return reshape(transpose(_split_transform(x, radix, sign), [0, 2, 3, 1]), (rows, 2, count))


def _in_order(split: Tensor, radix: int, bins: Dim | None) -> Tensor:
    """[rows, k, part, m] -> [rows, bin, part] for all bins, or somewhat more than are asked for."""
    rows, kept, _, rest = split.shape
    needed = rest if bins is None else dims.minimum(dims.ceildiv(bins, radix), rest)

    def element(b: Element, m: Element, k: Element, part: Element) -> Element:
        if kept == radix:
            return split.at(b, k, part, m)
        mirrored = (k + (radix - kept)) // radix  # 1 for a k that is left out: bin n is the conjugate of bin count - n
        value = split.at(b, k + mirrored * (radix - 2 * k), part, m + mirrored * (rest - 1 - 2 * m))
        return where(equal(mirrored * part, 1), -value, value)  # type: ignore[no-any-return]

    return reshape(build((rows, needed, radix, 2), element), (rows, needed * radix, 2))


def _matrix(count: Dim, parts: Dim, bins: Dim, sign: int, dtype: DType) -> Tensor:
    """[j, d, k, c]: what part d of element j adds to part c of bin k."""
    return build((count, parts, bins, 2), lambda j, d, k, c: _rotation(_angle(j * k, count, sign), d, c), dtype)


def _turning_matrix(kept: Dim, radix: int, rest: Dim, sign: int, dtype: DType) -> Tensor:
    """[k, c, j, d, m]: what part c of element j of the first sums k adds to part d of bin k + radix * m."""

    def element(k: Element, c: Element, j: Element, d: Element, m: Element) -> Element:
        return _rotation(_angle(j * (k + m * radix), radix * rest, sign), c, d)

    return build((kept, 2, rest, 2, rest), element, dtype)


def _rotation(angle: Element, before: Element, after: Element) -> Element:
    """What a part of a number adds to a part of that number turned by an angle."""
    return where(equal(before, after), cos(angle), where(before < after, sin(angle), -sin(angle)))  # type: ignore[no-any-return]


def _turn(x: Tensor, count: Dim, sign: int) -> Tensor:
    """x [rows, k, part, j] times the rotations by j * k steps out of `count`."""
    _, bins, _, rest = x.shape
    cosines = build((bins, rest), lambda k, j: cos(_angle(j * k, count, sign)), x.dtype)
    sines = build((bins, rest), lambda k, j: sin(_angle(j * k, count, sign)), x.dtype)

    def element(row: Element, k: Element, part: Element, j: Element) -> Element:
        crossed = x.at(row, k, 1 - part, j) * sines.at(k, j)
        return x.at(row, k, part, j) * cosines.at(k, j) + where(equal(part, 0), -crossed, crossed)  # type: ignore[no-any-return]

    return build(x.shape, element)


def _angle(steps: Element, count: Dim, sign: int) -> Element:
    """The angle of that many steps around the circle, reduced in integers so that long transforms stay exact."""
    return cast(steps % count, DType.float64) * (sign * 2.0 * pi) / cast(index(count), DType.float64)  # type: ignore[no-any-return]
