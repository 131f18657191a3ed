"""Fourier transforms as contractions.

A length radix * rest is split once: sums over the radix, then sums over the rest with matrices that include the twiddle
factors, so that these need no pass of their own. Real and imaginary parts are planes, [rows, part, place].
Of a real signal's first sums only half are computed: the others are their conjugates. A long rest is split again;
a prime or symbolic length is one contraction with the DFT matrix.
"""

from __future__ import annotations

from math import isqrt, pi

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.functions import cast, cos, equal, sin, where
from weft.opset.language import Element, Tensor, build, contract, index, pad, reshape, slice_axis, transpose

LARGEST_RADIX = 32
LARGEST_TABLE = 1 << 17  # elements of a matrix
LANES = 16  # elements of a vector
UNSPLIT_TERMS = 16  # sums up to this long gain nothing from splitting
SHORT = 16  # up to this length twiddle factors are a separate step, as the expected values of the onnx suite assume


def transform(x: Tensor, count: Dim, *, inverse: bool, bins: Dim | None = None) -> Tensor:
    """Transform [rows, count, 1 or 2] along the middle axis to [rows, bins or count, 2]."""
    x = x if x.shape[2] == 1 else fit(x, 2, 2)
    wide = cast(x, DType.float32) if x.dtype in (DType.float16, DType.bfloat16) else x
    sign = 1 if inverse else -1
    radix = _choose_radix(count, 1 if x.shape[2] == 1 else 2) if isinstance(count, int) else None
    if radix is None:
        result = contract(wide, _build_dft_matrix(count, wide.shape[2], count, sign, wide.dtype), "bjd", "jdkc", "bkc")
    else:
        planes = reshape(wide, (x.shape[0], 1, count)) if x.shape[2] == 1 else transpose(wide, [0, 2, 1])
        result = _reorder_bins(_split_transform(planes, radix, sign), radix, bins)
    result = result if bins is None else slice_axis(result, 1, 0, bins)
    return cast(result * (1.0 / cast(index(count), wide.dtype)) if inverse else result, x.dtype)


def fit(x: Tensor, axis: int, size: Dim) -> Tensor:
    """Crop or pad x with zeros to `size` along an axis."""
    if x.shape[axis] == size:
        return x
    return pad(x, [(0, size - x.shape[a] if a == axis else 0) for a in range(x.rank)])


def _choose_radix(count: int, parts: int) -> int | None:
    """Choose the factor to split off, if possible with a rest that is not split again; None if there is no factor."""
    if count * parts <= UNSPLIT_TERMS:
        return None
    small = [radix for radix in range(2, min(count // 2, LARGEST_RADIX) + 1) if count % radix == 0]
    if count <= SHORT:
        return max((radix for radix in small if radix * radix <= count), default=None)
    balanced = [radix for radix in small if count // radix <= LARGEST_RADIX]
    if balanced:
        return min(balanced, key=lambda radix: _count_multiplications(radix, count // radix, parts))
    return max(small) if small else next((d for d in range(LARGEST_RADIX, isqrt(count) + 1) if count % d == 0), None)


def _count_multiplications(radix: int, rest: int, parts: int) -> int:
    """Count the multiplications of one row, in vectors of `LANES` elements."""
    outputs = radix // 2 + 1 if parts == 1 else radix
    whole = -(-rest // LANES) * LANES, -(-2 * rest // LANES) * LANES
    return outputs * 2 * (parts * radix * whole[0] + rest * whole[1])


def _split_transform(x: Tensor, radix: int, sign: int) -> Tensor:
    """[rows, part, place] -> [rows, k, part, m], where k + radix * m is the bin; of a real x only half of the k."""
    rows, parts, count = x.shape
    rest = dims.floordiv(count, radix)
    computed = radix // 2 + 1 if parts == 1 else radix
    columns = reshape(x, (rows, parts, radix, rest))
    first = contract(columns, _build_dft_matrix(radix, parts, computed, sign, x.dtype), "bdjr", "jdkc", "bkcr")
    if dims.is_at_least(count, SHORT + 1) and dims.is_at_least(LARGEST_TABLE, 4 * radix * rest * rest):
        return contract(first, _build_twiddled_matrix(computed, radix, rest, sign, x.dtype), "bkcr", "kcrdm", "bkdm")
    twiddled = reshape(_apply_twiddles(first, count, sign), (rows * computed, 2, rest))
    return reshape(_transform_planes(twiddled, sign), (rows, computed, 2, rest))


def _transform_planes(x: Tensor, sign: int) -> Tensor:
    """Transform [rows, 2, place] to the same layout."""
    rows, parts, count = x.shape
    radix = _choose_radix(count, 2) if isinstance(count, int) else None
    if radix is None:
        return contract(x, _build_dft_matrix(count, parts, count, sign, x.dtype), "bdj", "jdkc", "bck")
    return reshape(transpose(_split_transform(x, radix, sign), [0, 2, 3, 1]), (rows, 2, count))


def _reorder_bins(split: Tensor, radix: int, bins: Dim | None) -> Tensor:
    """Reorder [rows, k, part, m] to [rows, bin, part], for all bins or at least `bins` of them."""
    rows, computed, _, rest = split.shape
    needed = rest if bins is None else dims.minimum(dims.ceildiv(bins, radix), rest)

    def element(b: Element, m: Element, k: Element, part: Element) -> Element:
        if computed == radix:
            return split.at(b, k, part, m)
        mirrored = (
            k + (radix - computed)
        ) // radix  # 1 for a k that was not computed: bin n is the conjugate of bin count - n
        value = split.at(b, k + mirrored * (radix - 2 * k), part, m + mirrored * (rest - 1 - 2 * m))
        return where(equal(mirrored * part, 1), -value, value)

    return reshape(build((rows, needed, radix, 2), element), (rows, needed * radix, 2))


def _build_dft_matrix(count: Dim, parts: Dim, bins: Dim, sign: int, dtype: DType) -> Tensor:
    """Build [j, d, k, c]: the factor of part d of element j in part c of bin k."""
    return build(
        (count, parts, bins, 2), lambda j, d, k, c: _rotation_factor(_compute_angle(j * k, count, sign), d, c), dtype
    )


def _build_twiddled_matrix(computed: Dim, radix: int, rest: Dim, sign: int, dtype: DType) -> Tensor:
    """Build [k, c, j, d, m]: the factor of part c of element j of the first sums k in part d of bin k + radix * m."""

    def element(k: Element, c: Element, j: Element, d: Element, m: Element) -> Element:
        return _rotation_factor(_compute_angle(j * (k + m * radix), radix * rest, sign), c, d)

    return build((computed, 2, rest, 2, rest), element, dtype)


def _rotation_factor(angle: Element, before: Element, after: Element) -> Element:
    """Return the factor of a part of a complex number in a part of that number rotated by an angle."""
    return where(equal(before, after), cos(angle), where(before < after, sin(angle), -sin(angle)))


def _apply_twiddles(x: Tensor, count: Dim, sign: int) -> Tensor:
    """Multiply x [rows, k, part, j] by the twiddle factors of j * k steps out of `count`."""
    _, bins, _, rest = x.shape
    cosines = build((bins, rest), lambda k, j: cos(_compute_angle(j * k, count, sign)), x.dtype)
    sines = build((bins, rest), lambda k, j: sin(_compute_angle(j * k, count, sign)), x.dtype)

    def element(row: Element, k: Element, part: Element, j: Element) -> Element:
        crossed = x.at(row, k, 1 - part, j) * sines.at(k, j)
        return x.at(row, k, part, j) * cosines.at(k, j) + where(equal(part, 0), -crossed, crossed)

    return build(x.shape, element)


def _compute_angle(steps: Element, count: Dim, sign: int) -> Element:
    """Return the angle of `steps` out of `count` steps around the circle; integers keep long transforms exact."""
    return cast(steps % count, DType.float64) * (sign * 2.0 * pi) / cast(index(count), DType.float64)
