"""Resizing: sampling a tensor along its axes at other positions.

Coordinates are exact ratios of indices and sizes where scales (or sizes) and regions are static, so that the nearest
element is found by integer arithmetic. With scales that are known only at run time they are float32 numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.functions import absolute, cast, ceil, clamp, floor, maximum, minimum, round_half_even, where
from weft.opset.language import (
    Element,
    Tensor,
    assume_at_least,
    assume_equal,
    build,
    full,
    index,
    literal,
    observe,
    reduce,
)
from weft.opset.ratio import Ratio, find_simple_ratio
from weft.opset.registry import REQUIRED, Sizes, normalize_axes, op, require
from weft.opset.tensor import NotStaticError
from weft.opset.trace import is_symbolic
from weft.records import dataclass

HALF = Fraction(1, 2)
_MOST_TERMS = 16  # of one map
_MOST_POSITIONS = 2**31 - 64  # that fit 32 bits, with room for neighbours


@dataclass(frozen=True, slots=True)
class AxisResize:
    """How one axis is resized. Numbers are `Ratio`s or, if not `exact`, float32 elements."""

    axis: int
    size: Dim
    target: Dim
    scale: Any
    width: Any  # the target size before rounding
    start: Any  # the region to sample, as fractions of the axis
    end: Any
    exact: bool

    def lift(self, value: Any) -> Any:
        """Convert an index or a size to the type of the coordinates."""
        if self.exact:
            return Ratio(value)
        return cast(value if isinstance(value, Element) else index(value), DType.float32)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How values between elements are interpolated."""

    mode: str
    transformation: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0
    antialias: bool = False

    def __post_init__(self) -> None:
        require(self.mode in MODES, f"mode is {self.mode!r}, not one of {', '.join(MODES)}")
        names = ", ".join(TRANSFORMATIONS)
        require(
            self.transformation in TRANSFORMATIONS,
            f"coordinate_transformation_mode is {self.transformation!r}, not one of {names}",
        )
        require(self.nearest in ROUNDINGS, f"nearest_mode is {self.nearest!r}, not one of {', '.join(ROUNDINGS)}")


MODES = ("nearest", "linear", "cubic")


# -- the ops ---------------------------------------------------------------------------------------------------------


@op("Upsample", since=7)
def upsample_7(x: Tensor, *, scales: tuple[float, ...] = REQUIRED, mode: str = "nearest") -> Tensor:
    return _resize(
        x, _resize_axes_by_scales(x, range(x.rank), list(map(find_simple_ratio, scales)), None), _legacy_sampling(mode)
    )


@op("Upsample", since=9)
@op("Resize", since=10)
def upsample_9(x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    return _resize(
        x, _resize_axes_by_scales(x, range(x.rank), _read_numbers(scales, x.rank), None), _legacy_sampling(mode)
    )


def _legacy_sampling(mode: str) -> Sampling:
    return Sampling({"bilinear": "linear"}.get(mode, mode), "asymmetric", "away_from_scale")


@op("Resize", since=11)
def resize(
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Sizes | None = None,
    *,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    resized_axes = normalize_axes(range(x.rank) if axes is None else axes, x.rank)
    crops = coordinate_transformation_mode == "tf_crop_and_resize"
    require(roi is not None or not crops, "tf_crop_and_resize needs the input 'roi'")
    region = _read_numbers(roi, 2 * len(resized_axes)) if crops and roi is not None else None
    if sizes:
        lines = _resize_axes_by_sizes(x, resized_axes, sizes, region, keep_aspect_ratio_policy)
    else:
        require(scales is not None, "one of 'scales' and 'sizes' must be given")
        assert scales is not None
        lines = _resize_axes_by_scales(x, resized_axes, _read_numbers(scales, len(resized_axes)), region)
    sampling = Sampling(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        extrapolation_value,
        bool(antialias),
    )
    return _resize(x, lines, sampling)


# -- scales and sizes of axes -----------------------------------------------------------------------------------------


def _read_numbers(x: Tensor, count: int) -> list[Ratio] | list[Element]:
    """Return the elements of a float vector: ratios where it is static, else loads."""
    assume_equal(x.size, count, f"{count} numbers are needed, one for each axis")
    if x.static_value is not None and not is_symbolic(x):
        return [find_simple_ratio(float(number)) for number in x.static_value.reshape(-1)]
    return [cast(x.at(number), DType.float32) for number in range(count)]


def _resize_axes_by_scales(
    x: Tensor, axes: Sequence[int], scales: Sequence[Any], region: Sequence[Any] | None
) -> list[AxisResize]:
    require(len(scales) == len(axes), f"{len(scales)} scales for {len(axes)} axes")
    lines = []
    for number, (axis, scale) in enumerate(zip(axes, scales)):
        size = x.shape[axis]
        if isinstance(scale, Ratio):
            require(scale.numerator > 0, f"the scale of axis {axis} is {scale.numerator}/{scale.denominator}")
            width: Any = scale * Ratio(size)
            target = width.floor()
        else:
            width = cast(index(size), DType.float32) * scale
            (target,) = observe(build((), lambda width=width: cast(floor(width), DType.int64)), f"size{axis}")
        lines.append(_make_line(axis, size, target, scale, width, _select_region(region, number, len(axes))))
    return lines


def _resize_axes_by_sizes(
    x: Tensor, axes: Sequence[int], sizes: Sequence[Dim], region: Sequence[Any] | None, policy: str
) -> list[AxisResize]:
    require(len(sizes) == len(axes), f"{len(sizes)} sizes for {len(axes)} axes")
    policies = ("stretch", "not_larger", "not_smaller")
    require(policy in policies, f"keep_aspect_ratio_policy is {policy!r}, not one of {', '.join(policies)}")
    lines = []
    for number, (axis, target) in enumerate(zip(axes, sizes)):
        size, scale = x.shape[axis], Ratio(target) / Ratio(x.shape[axis])
        width = Ratio(target)
        if policy != "stretch":
            scale = _common_scale([x.shape[other] for other in axes], sizes, policy == "not_larger")
            width = scale * Ratio(size)
            target = (width + HALF).floor()
        lines.append(_make_line(axis, size, target, scale, width, _select_region(region, number, len(axes))))
    return lines


def _common_scale(sizes: Sequence[Dim], targets: Sequence[Dim], smallest: bool) -> Ratio:
    """Return the smallest or largest of target / size, over the product of all sizes so that sizes may be symbolic."""
    total = dims.product(sizes)
    choose = dims.minimum if smallest else dims.maximum
    best: Dim | None = None
    for number, target in enumerate(targets):
        scaled = target * dims.product(size for other, size in enumerate(sizes) if other != number)
        best = scaled if best is None else choose(best, scaled)
    require(best is not None, "there is no axis to resize")
    return Ratio(best) * 1 / Ratio(total)


def _select_region(region: Sequence[Any] | None, number: int, count: int) -> tuple[Any, Any] | None:
    if region is None:
        return None
    return region[number], region[count + number]


def _make_line(axis: int, size: Dim, target: Dim, scale: Any, width: Any, region: tuple[Any, Any] | None) -> AxisResize:
    start, end = region or (Ratio(0), Ratio(1))
    if all(isinstance(number, Ratio) for number in (scale, start, end)):
        return AxisResize(axis, size, target, scale, width, start, end, True)
    scale, width, start, end = (_approximate(number) for number in (scale, width, start, end))
    return AxisResize(axis, size, target, scale, width, start, end, False)


def _approximate(number: Ratio | Element) -> Element:
    if isinstance(number, Element):
        return number
    parts = [cast(index(part), DType.float32) for part in (number.numerator, number.denominator)]
    return parts[0] / parts[1]


# -- coordinates -----------------------------------------------------------------------------------------------------


def _half_pixel(line: AxisResize, x: Any) -> Any:
    return (x + HALF) / line.scale - HALF if line.exact else (x + 0.5) / line.scale - 0.5


def _half_pixel_symmetric(line: AxisResize, x: Any) -> Any:
    half = HALF if line.exact else 0.5
    adjustment = line.lift(line.target) / line.width
    return line.lift(line.size) * half * (1 - adjustment) + _half_pixel(line, x)


def _pytorch_half_pixel(line: AxisResize, x: Any) -> Any:
    return line.lift(_is_many(line.target)) * _half_pixel(line, x)


def _align_corners(line: AxisResize, x: Any) -> Any:
    if line.exact:
        last = Ratio(dims.maximum(line.width.numerator - line.width.denominator, 1), line.width.denominator)
    else:
        last = maximum(line.width - 1.0, 1e-6)
    return x * line.lift(line.size - 1) / last


def _asymmetric(line: AxisResize, x: Any) -> Any:
    return x / line.scale


def _tf_half_pixel_for_nn(line: AxisResize, x: Any) -> Any:
    return (x + (HALF if line.exact else 0.5)) / line.scale


def _tf_crop_and_resize(line: AxisResize, x: Any) -> Any:
    many = _is_many(line.target)
    along = x / line.lift(dims.maximum(line.target - 1, 1)) + line.lift(1 - many) * (HALF if line.exact else 0.5)
    return (line.start + along * (line.end - line.start)) * line.lift(line.size - 1)


def _is_many(size: Dim) -> Dim:
    """Return 0 for a size of 1, 1 for larger ones."""
    return dims.minimum(size - 1, 1)


TRANSFORMATIONS: dict[str, Callable[[AxisResize, Any], Any]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "tf_half_pixel_for_nn": _tf_half_pixel_for_nn,
    "tf_crop_and_resize": _tf_crop_and_resize,
}


def _floor(x: Any) -> Element:
    return _as_element(x.floor()) if isinstance(x, Ratio) else cast(floor(x), DType.int64)


def _ceil(x: Any) -> Element:
    return _as_element(x.ceil()) if isinstance(x, Ratio) else cast(ceil(x), DType.int64)


def _as_element(value: Element | Dim) -> Element:
    return value if isinstance(value, Element) else index(value)


def _away_from_scale(line: AxisResize, x: Any) -> Element:
    """Round up when shrinking, down when growing, as `nearest` did before opset 11."""
    if line.exact:
        return _ceil(x) if line.scale.numerator < line.scale.denominator else _floor(x)
    return where(line.scale < 1.0, _ceil(x), _floor(x))  # type: ignore[no-any-return]


def _one_half(line: AxisResize) -> Any:
    return HALF if line.exact else 0.5


ROUNDINGS: dict[str, Callable[[AxisResize, Any], Element]] = {
    "round_prefer_floor": lambda line, x: _ceil(x - _one_half(line)),
    "round_prefer_ceil": lambda line, x: _floor(x + _one_half(line)),
    "floor": lambda _, x: _floor(x),
    "ceil": lambda _, x: _ceil(x),
    "away_from_scale": _away_from_scale,
}


# -- sampling --------------------------------------------------------------------------------------------------------


def _resize(x: Tensor, lines: Sequence[AxisResize], sampling: Sampling) -> Tensor:
    if any(line.target == 0 for line in lines):
        target = {line.axis: line.target for line in lines}
        return full([target.get(axis, size) for axis, size in enumerate(x.shape)], 0, x.dtype)
    crops = sampling.transformation == "tf_crop_and_resize"
    lines = [line for line in lines if crops or not _is_identity(line)]
    if not lines:
        return x
    if sampling.mode == "nearest":
        return _resize_nearest(x, lines, sampling)
    dtype = x.dtype
    wide = DType.float64 if dtype is DType.float64 else DType.float32
    x = cast(x, wide)
    for line in lines:
        x = _resize_antialiased(x, line, sampling) if sampling.antialias else _resize_axis(x, line, sampling)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        x = clamp(round_half_even(x), float(limits.min), float(limits.max))
    return cast(x, dtype)


def _is_identity(line: AxisResize) -> bool:
    return line.exact and line.target == line.size and line.scale.numerator == line.scale.denominator


def _resize_nearest(x: Tensor, lines: Sequence[AxisResize], sampling: Sampling) -> Tensor:
    shape = list(x.shape)
    for line in lines:
        shape[line.axis] = line.target

    def source_position(line: AxisResize, position: Element) -> Element:
        nearest = ROUNDINGS[sampling.nearest](line, _coordinate(line, sampling, position))
        return clamp(nearest, 0, line.size - 1)

    tables = {
        line.axis: _build_position_table(line, partial(source_position, line))
        for line in lines
        if _needs_division(line, sampling)
    }

    def element(*i: Element) -> Element:
        positions: list[Element] = list(i)
        for line in lines:
            table = tables.get(line.axis)
            positions[line.axis] = source_position(line, i[line.axis]) if table is None else table.at(i[line.axis])
        sample_value = x.at(*positions)
        if sampling.transformation != "tf_crop_and_resize":
            return sample_value
        coordinates = [_coordinate(line, sampling, i[line.axis]) for line in lines]
        for line, coordinate in zip(lines, coordinates):
            sample_value = _extrapolate(sample_value, line, coordinate, sampling)
        return sample_value

    return build(shape, element)


def _coordinate(line: AxisResize, sampling: Sampling, position: Element) -> Any:
    return TRANSFORMATIONS[sampling.transformation](line, line.lift(position))


def _extrapolate(sample_value: Element, line: AxisResize, coordinate: Any, sampling: Sampling) -> Element:
    """Return the sample, or the extrapolation value where a cropped region reaches beyond the tensor."""
    if sampling.transformation != "tf_crop_and_resize":
        return sample_value
    beyond = coordinate - line.lift(line.size - 1)
    if line.exact:
        coordinate, beyond = _as_element(coordinate.numerator), _as_element(beyond.numerator)
        outside = (coordinate < 0) | (beyond > 0)
    else:
        outside = (coordinate < 0.0) | (beyond > 0.0)
    return where(outside, literal(sampling.extrapolation, sample_value.dtype), sample_value)  # type: ignore[no-any-return]


def _resize_axis(x: Tensor, line: AxisResize, sampling: Sampling) -> Tensor:
    """Interpolate between two or four neighbours."""
    axis, count = line.axis, 2 if sampling.mode == "linear" else 4
    shape = (*x.shape[:axis], line.target, *x.shape[axis + 1 :])

    def source_position(number: int, position: Element) -> Element:
        first = _floor(_coordinate(line, sampling, position))
        return clamp(first + (number - count // 2 + 1), 0, line.size - 1)

    def weigh(position: Element) -> list[Element]:
        coordinate = _coordinate(line, sampling, position)
        first, part = _floor(coordinate), _fraction(coordinate, x.dtype)
        weights = linear_weights(part) if sampling.mode == "linear" else cubic_weights(part, sampling.cubic)
        if not sampling.exclude_outside:
            return weights
        neighbours = [first + (number - count // 2 + 1) for number in range(count)]
        weights = [
            where(_is_inside(neighbour, line.size), weight, 0.0) for neighbour, weight in zip(neighbours, weights)
        ]
        total = sum(weights[1:], weights[0])
        return [weight / total for weight in weights]

    def sample(i: Sequence[Element], positions: Sequence[Element], weights: Sequence[Element]) -> Element:
        loads = [x.at(*i[:axis], position, *i[axis + 1 :]) for position in positions]
        terms = [load * weight for load, weight in zip(loads, weights)]
        sample_value = sum(terms[1:], terms[0])
        if sampling.transformation != "tf_crop_and_resize":
            return sample_value
        return _extrapolate(sample_value, line, _coordinate(line, sampling, i[axis]), sampling)

    if not _needs_division(line, sampling):
        return build(
            shape, lambda *i: sample(i, [source_position(number, i[axis]) for number in range(count)], weigh(i[axis]))
        )
    position_tables = [_build_position_table(line, partial(source_position, number)) for number in range(count)]
    if sampling.mode == "linear" and not sampling.exclude_outside:
        parts = build((line.target,), lambda i: _fraction(_coordinate(line, sampling, i), x.dtype))
        return build(
            shape, lambda *i: sample(i, [t.at(i[axis]) for t in position_tables], linear_weights(parts.at(i[axis])))
        )
    weights = [build((line.target,), lambda i, number=number: weigh(i)[number]) for number in range(count)]
    return build(
        shape, lambda *i: sample(i, *([t.at(i[axis]) for t in tables] for tables in (position_tables, weights)))
    )


def _build_position_table(line: AxisResize, locate: Callable[[Element], Element]) -> Tensor:
    """Compute the positions of an axis's samples once for all elements."""
    dtype = choose_position_dtype(line.size)
    return build((line.target,), lambda i: cast(locate(i), dtype))


def choose_position_dtype(size: Dim) -> DType:
    """Choose the dtype of positions up to `size`, and a few beyond: small, for more of them in a vector."""
    if dims.is_at_least(size, _MOST_POSITIONS):
        return DType.int64
    assume_at_least(_MOST_POSITIONS, size, "positions along an axis must fit 32 bits")
    return DType.int32


def _needs_division(line: AxisResize, sampling: Sampling) -> bool:
    """Return whether coordinates need divisions that are not shifts: then a table of positions is faster."""
    if not line.exact:
        return True
    divisor = _coordinate(line, sampling, index(0)).denominator
    return not isinstance(divisor, int) or divisor & (divisor - 1) != 0


def _fraction(coordinate: Any, dtype: DType) -> Element:
    if isinstance(coordinate, Ratio):
        return coordinate.fraction(dtype)
    return cast(coordinate - floor(coordinate), dtype)  # type: ignore[no-any-return]


def _is_inside(position: Element, size: Dim) -> Element:
    return (position >= 0) & (position < size)


def linear_weights(part: Element) -> list[Element]:
    return [1.0 - part, part]


def cubic_weights(part: Element, a: float) -> list[Element]:
    """Return the weights of four neighbours of a sample, which lies at the second one + `part`."""
    return [_cubic_kernel(distance, a) for distance in (part + 1.0, part, 1.0 - part, 2.0 - part)]


def _cubic_kernel(distance: Element, a: float) -> Element:
    """Evaluate Keys' cubic kernel at a distance in [0, 2]."""
    near = ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0
    far = ((a * distance - 5.0 * a) * distance + 8.0 * a) * distance - 4.0 * a
    return where(distance <= 1.0, near, far)


def _resize_antialiased(x: Tensor, line: AxisResize, sampling: Sampling) -> Tensor:
    """Resize with a kernel that is stretched by the scale: a sum over all neighbours under it."""
    if not line.exact:
        raise NotStaticError("antialiasing needs constant scales")
    axis, radius = line.axis, 1 if sampling.mode == "linear" else 2
    stretch = Ratio(dims.maximum(line.scale.numerator, line.scale.denominator), line.scale.numerator)
    before = (stretch * -radius).floor() + 1
    count = 2 - 2 * before

    def first_position(i: Element) -> Element:
        return _floor(_coordinate(line, sampling, i)) + before  # type: ignore[no-any-return]

    def weight(tap: Element, i: Element) -> Element:
        part = _fraction(_coordinate(line, sampling, i), x.dtype)
        across = cast(index(stretch.denominator), x.dtype) / cast(index(stretch.numerator), x.dtype)
        distance = absolute(cast(tap + before, x.dtype) - part) * across
        if sampling.mode == "linear":
            sample_value = maximum(1.0 - distance, 0.0)
        else:
            sample_value = where(distance < 2.0, _cubic_kernel(minimum(distance, 2.0), sampling.cubic), 0.0)
        if sampling.exclude_outside:
            sample_value = where(_is_inside(first_position(i) + tap, line.size), sample_value, 0.0)
        return sample_value  # type: ignore[no-any-return]

    firsts = _build_position_table(line, first_position)
    weights = build((count, line.target), weight)
    totals = reduce("sum", weights, [0])
    shares = build(weights.shape, lambda tap, i: weights.at(tap, i) / totals.at(i))

    def term(i: Sequence[Element], tap: Element | int) -> Element:
        first = firsts.at(i[axis])
        position = clamp(first + cast(index(0) + tap, first.dtype), 0, cast(index(line.size - 1), first.dtype))
        return x.at(*i[:axis], position, *i[axis + 1 :]) * shares.at(tap, i[axis])

    shape = (*x.shape[:axis], line.target, *x.shape[axis + 1 :])
    if isinstance(count, int) and count <= _MOST_TERMS:
        taps = range(count)
        summed = build(shape, lambda *i: sum((term(i, tap) for tap in taps[1:]), term(i, 0)))
    else:
        split = axis + 1
        weighted = build(
            (*shape[:split], count, *shape[split:]), lambda *i: term((*i[:split], *i[split + 1 :]), i[split])
        )
        summed = reduce("sum", weighted, [split])
    if sampling.transformation != "tf_crop_and_resize":
        return summed
    return build(
        summed.shape,
        lambda *i: _extrapolate(summed.at(*i), line, _coordinate(line, sampling, i[axis]), sampling),
    )
