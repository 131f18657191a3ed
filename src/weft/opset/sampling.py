"""Sampling images at computed positions: grids, regions of interest, deformable convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from functools import reduce as combine
from itertools import product
from math import inf

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
    check_range,
    contract,
    elementwise,
    full,
    index,
    literal,
    observe,
    reduce,
    reshape,
    window_count,
)
from weft.opset.registry import REQUIRED, Sizes, op, require
from weft.opset.resize import choose_position_dtype, cubic_weights, linear_weights
from weft.records import dataclass

CUBIC = -0.75
_REACH = 4.0  # pixels beyond an image that a point inside it reads at most


def _wide_float(dtype: DType) -> DType:
    """Return the float type that values and coordinates of `dtype` are computed in."""
    return DType.float64 if dtype is DType.float64 else DType.float32


def _to_float(value: Element | Dim, dtype: DType) -> Element:
    return cast(value if isinstance(value, Element) else index(value), dtype)


def _sum(terms: Sequence[Element]) -> Element:
    return sum(terms[1:], terms[0])


# -- grids -----------------------------------------------------------------------------------------------------------


@op("GridSample", since=16)
def grid_sample(
    x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Tensor:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    rank = x.rank - 2
    require(mode in ("linear", "nearest", "cubic"), f"mode is {mode!r}, not linear, nearest or cubic")
    require(padding_mode in _PADDINGS, f"padding_mode is {padding_mode!r}, not one of {', '.join(_PADDINGS)}")
    require(rank >= 1 and grid.rank == x.rank, f"a grid of rank {grid.rank} for an input of rank {x.rank}")
    assume_equal(grid.shape[-1], rank, "the grid must hold one coordinate for each spatial axis")
    assume_equal(grid.shape[0], x.shape[0], "input and grid must have the same batch size")
    shape = (x.shape[0], x.shape[1], *grid.shape[1:-1])
    borders = [_Border(size, bool(align_corners), padding_mode) for size in x.shape[2:]]
    wide = _wide_float(x.dtype)

    def coordinate(axis: int, *i: Element) -> Element:
        border = borders[axis]
        unbounded = border.to_position(cast(grid.at(*i, rank - 1 - axis), _wide_float(grid.dtype)))
        if mode == "cubic":  # its taps are moved inside one by one
            return unbounded
        return border.move_inside(round_half_even(unbounded) if mode == "nearest" else unbounded)

    def first_pixel(axis: int, *i: Element) -> Element:
        near = borders[axis].move_near(floor(coordinate(axis, *i)))
        return cast(near, choose_position_dtype(borders[axis].period))

    def part_of_pixel(axis: int, *i: Element) -> Element:
        place = coordinate(axis, *i)
        return cast(place - floor(place), wide)

    firsts, parts = (
        [build(grid.shape[:-1], partial(number, axis)) for axis in range(rank)]
        for number in (first_pixel, part_of_pixel)
    )  # once for all channels

    def element(*i: Element) -> Element:
        pixels = [table.at(i[0], *i[2:]) for table in firsts]
        if mode == "nearest":
            return _load_pixel(x, i[:2], pixels, borders)
        shares = [table.at(i[0], *i[2:]) for table in parts]
        weights = [linear_weights(share) if mode == "linear" else cubic_weights(share, CUBIC) for share in shares]
        terms = []
        for taps in product(range(len(weights[0])), repeat=rank):
            neighbours = [pixel + (tap - len(weights[0]) // 2 + 1) for pixel, tap in zip(pixels, taps)]
            term = cast(_load_pixel(x, i[:2], neighbours, borders), wide)
            for tap, weight in zip(taps, weights):
                term = term * weight[tap]
            terms.append(term)
        return cast(_sum(terms), x.dtype)

    return build(shape, element)


@dataclass(frozen=True, slots=True)
class _Border:
    """One spatial axis of a sampled image, and its padding mode."""

    size: Dim
    aligned: bool
    padding: str

    def to_position(self, coordinate: Element) -> Element:
        """Convert a coordinate in [-1, 1] to a position."""
        if self.aligned:
            return (coordinate + 1.0) / 2.0 * _to_float(self.size - 1, coordinate.dtype)
        return ((coordinate + 1.0) * _to_float(self.size, coordinate.dtype) - 1.0) / 2.0

    @property
    def low(self) -> float:
        return 0.0 if self.aligned else -0.5

    @property
    def period(self) -> Dim:
        """How far apart equal pixels of a reflected image are."""
        return dims.maximum(2 * (self.size - (1 if self.aligned else 0)), 2)

    def move_inside(self, position: Element) -> Element:
        """Move a position beyond the ends inside, as the padding mode says."""
        if self.padding == "zeros":
            return position
        if self.padding == "border":
            return clamp(position, 0.0, _to_float(self.size - 1, position.dtype))
        period = _to_float(self.period, position.dtype)
        away = absolute(position - self.low)  # both sides of an edge are equal, and small numbers stay accurate
        away = away - floor(away / period) * period
        back = minimum(away, period - away) + self.low
        high = _to_float(self.size - 1, position.dtype) - self.low
        return where((position < self.low) | (position > high), back, position)

    def move_near(self, position: Element) -> Element:
        """Move an integral position into a period if pixels are reflected, else near the image: it fits 32 bits."""
        period = _to_float(self.period, position.dtype)
        if self.padding == "reflection":
            position = position - floor(position / period) * period
        return clamp(position, -_REACH, period + _REACH)

    def inside(self, position: Element) -> tuple[Element, Element | None]:
        """Return the position to read for an integer position, and the condition under which it counts."""
        return _PADDINGS[self.padding](position, self)


def _zeros(position: Element, border: _Border) -> tuple[Element, Element | None]:
    return position, (position >= 0) & (position < cast(index(border.size), position.dtype))


def _clamp_to_border(position: Element, border: _Border) -> tuple[Element, Element | None]:
    return clamp(position, 0, cast(index(border.size - 1), position.dtype)), None


def _reflect(position: Element, border: _Border) -> tuple[Element, Element | None]:
    """Reflect a position that is at most two beyond a period."""
    edge = 0 if border.aligned else -1
    last = cast(index(border.period + edge), position.dtype)
    position = maximum(position, edge - position)
    position = minimum(position, last - position)
    return maximum(position, edge - position), None


_PADDINGS: dict[str, Callable[[Element, _Border], tuple[Element, Element | None]]] = {
    "zeros": _zeros,
    "border": _clamp_to_border,
    "reflection": _reflect,
}


def _load_pixel(
    x: Tensor, outer: Sequence[Element], positions: Sequence[Element], borders: Sequence[_Border]
) -> Element:
    inside = [border.inside(position) for border, position in zip(borders, positions)]
    loaded = x.at(*outer, *(position for position, _ in inside))
    for _, counts in inside:
        if counts is not None:
            loaded = where(counts, loaded, literal("" if x.dtype is DType.string else 0, x.dtype))
    return loaded


@op("AffineGrid", since=20)
def affine_grid(theta: Tensor, size: Sizes, *, align_corners: int = 0) -> Tensor:
    rank = len(size) - 2
    require(rank in (2, 3), f"size must be [N, C, H, W] or [N, C, D, H, W], not of length {len(size)}")
    require(theta.rank == 3, f"theta must have three dimensions, not {theta.rank}")
    for axis, expected in enumerate((size[0], rank, rank + 1)):
        assume_equal(theta.shape[axis], expected, "theta must hold one matrix [D, D + 1] for each image")
    for length in size[2:]:
        assume_at_least(length, 1, "the sizes of a grid must be positive")

    def coordinate(position: Element, length: Dim) -> Element:
        if align_corners:
            last = _to_float(dims.maximum(length - 1, 1), theta.dtype)
            return _to_float(position * 2 - (length - 1), theta.dtype) / last
        return _to_float(position * 2 + 1 - length, theta.dtype) / _to_float(length, theta.dtype)

    def element(*i: Element) -> Element:
        batch, point, row = i[0], i[1:-1], i[-1]
        terms = [theta.at(batch, row, rank)]
        for axis, (position, length) in enumerate(zip(point, size[2:])):
            terms.append(theta.at(batch, row, rank - 1 - axis) * coordinate(position, length))
        return _sum(terms)

    return build((size[0], *size[2:], rank), element)


# -- regions of interest ---------------------------------------------------------------------------------------------


@op("RoiAlign", since=10)
def roi_align_10(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    regions = _Regions(cast(rois, _wide_float(x.dtype)), (output_height, output_width), spatial_scale, False)
    return _roi_align(x, regions, batch_indices, mode, sampling_ratio)


@op("RoiAlign", since=16)
def roi_align_16(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    kinds = ("half_pixel", "output_half_pixel")
    require(
        coordinate_transformation_mode in kinds,
        f"coordinate_transformation_mode is {coordinate_transformation_mode!r}, not one of {', '.join(kinds)}",
    )
    shift = coordinate_transformation_mode == "half_pixel"
    regions = _Regions(cast(rois, _wide_float(x.dtype)), (output_height, output_width), spatial_scale, shift)
    return _roi_align(x, regions, batch_indices, mode, sampling_ratio)


@dataclass(frozen=True, slots=True)
class _Regions:
    """Regions of interest, [x1, y1, x2, y2] each, divided into bins."""

    rois: Tensor
    bins: tuple[int, int]
    scale: float
    shift: bool  # by half a pixel; if not, regions are at least one pixel large

    def start(self, roi: Element, axis: int) -> Element:
        return self.rois.at(roi, 1 - axis) * self.scale - (0.5 if self.shift else 0.0)

    def bin_size(self, roi: Element, axis: int) -> Element:
        extent = self.rois.at(roi, 3 - axis) * self.scale - self.rois.at(roi, 1 - axis) * self.scale
        return (extent if self.shift else maximum(extent, 1.0)) / float(self.bins[axis])

    def grids(self, ratio: int) -> list[Tensor]:
        """Return the number of samples per bin of each region, for each axis."""
        count, dtype = self.rois.shape[0], self.rois.dtype
        if ratio > 0:
            return [full((count,), float(ratio), dtype)] * 2
        return [build((count,), lambda roi, axis=axis: ceil(self.bin_size(roi, axis))) for axis in range(2)]

    def positions(self, axis: int, grid: Tensor, taps: Dim) -> Tensor:
        """Compute the positions along an axis, [region, bin, tap]."""
        dtype = self.rois.dtype

        def position(roi: Element, number: Element, tap: Element) -> Element:
            inside = cast(number, dtype) + (cast(tap, dtype) + 0.5) / maximum(grid.at(roi), 1.0)
            return self.start(roi, axis) + inside * self.bin_size(roi, axis)

        return build((self.rois.shape[0], self.bins[axis], taps), position)


def _roi_align(x: Tensor, regions: _Regions, batch_indices: Tensor, mode: str, ratio: int) -> Tensor:
    """Average bilinear samples on a grid in every bin, or take their largest weighted corner."""
    require(mode in ("avg", "max"), f"mode is {mode!r}, not avg or max")
    require(x.rank == 4 and regions.rois.rank == 2, f"ranks must be 4 and 2, not {x.rank} and {regions.rois.rank}")
    assume_equal(regions.rois.shape[1], 4, "a region has four coordinates")
    assume_equal(batch_indices.shape[0], regions.rois.shape[0], "one image for each region")
    batch_indices = check_range(batch_indices, 0, x.shape[0] - 1, "batch_indices")
    wide = regions.rois.dtype
    grids = regions.grids(ratio)
    taps = [ratio if ratio > 0 else _observe_largest(grid, f"grid{axis}") for axis, grid in enumerate(grids)]
    positions = [regions.positions(axis, grids[axis], taps[axis]) for axis in range(2)]

    def sample(roi: Element, channel: Element, *indices: Element) -> Element:
        counts: list[Element] = []
        ends: list[list[tuple[Element, Element]]] = []
        for axis in range(2):
            size, position = x.shape[2 + axis], positions[axis].at(roi, indices[axis], indices[2 + axis])
            counts.append((position >= -1.0) & (position <= _to_float(size, wide)))
            position = clamp(position, 0.0, _to_float(size - 1, wide))
            part, first = position - floor(position), cast(floor(position), DType.int64)
            ends.append([(first, 1.0 - part), (minimum(first + 1, size - 1), part)])
        image = batch_indices.at(roi)
        corners = [
            cast(x.at(image, channel, row, column), wide) * (down * across)
            for (row, down), (column, across) in product(*ends)
        ]
        combined = _sum(corners) if mode == "avg" else combine(maximum, corners)
        combined = where(counts[0] & counts[1], combined, 0.0)
        is_used = (cast(indices[2], wide) < grids[0].at(roi)) & (cast(indices[3], wide) < grids[1].at(roi))
        return where(is_used, combined, 0.0 if mode == "avg" else -inf)

    samples = build((regions.rois.shape[0], x.shape[1], *regions.bins, *taps), sample)
    if mode == "max":
        return _clear_empty_bins(reduce("maximum", samples, [4, 5]), x.dtype)
    total = reduce("sum", samples, [4, 5])
    return build(
        total.shape,
        lambda *i: cast(total.at(*i) / maximum(grids[0].at(i[0]) * grids[1].at(i[0]), 1.0), x.dtype),
    )


def _clear_empty_bins(largest: Tensor, dtype: DType) -> Tensor:
    """Replace the maxima of empty bins by 0."""
    return elementwise(lambda v: cast(where(v > -inf, v, 0.0), dtype), largest)


def _observe_largest(counts: Tensor, hint: str) -> Dim:
    """Observe the largest number in a float vector, at least 1, as a size."""
    largest = reduce("maximum", counts, [0])
    return observe(elementwise(lambda v: cast(maximum(v, 1.0), DType.int64), largest), hint)[0]


@op("MaxRoiPool")
def max_roi_pool(
    x: Tensor, rois: Tensor, *, pooled_shape: tuple[int, ...] = REQUIRED, spatial_scale: float = 1.0
) -> Tensor:
    require(x.rank == 4 and rois.rank == 2, f"ranks must be 4 and 2, not {x.rank} and {rois.rank}")
    require(len(pooled_shape) == 2 and min(pooled_shape) > 0, f"pooled_shape is {pooled_shape}")
    wide = _wide_float(x.dtype)
    rois = cast(rois, wide)

    def corner(roi: Element, number: int) -> Element:
        return floor(rois.at(roi, number) * spatial_scale + 0.5)

    def bin_size(roi: Element, axis: int) -> Element:
        extent = corner(roi, 4 - axis) - corner(roi, 2 - axis) + 1.0
        return maximum(extent, 1.0) / float(pooled_shape[axis])

    count = rois.shape[0]
    reaches = [
        _observe_largest(build((count,), lambda roi, axis=axis: ceil(bin_size(roi, axis)) + 1.0), f"reach{axis}")
        for axis in range(2)
    ]

    def pixel(roi: Element, channel: Element, *indices: Element) -> Element:
        positions: list[Element] = []
        tests: list[Element] = []
        for axis in range(2):
            number, step, offset = cast(indices[axis], wide), bin_size(roi, axis), corner(roi, 2 - axis)
            limit = _to_float(x.shape[2 + axis], wide)
            first = clamp(floor(number * step) + offset, 0.0, limit)
            last = clamp(ceil((number + 1.0) * step) + offset, 0.0, limit)
            position = first + cast(indices[2 + axis], wide)
            tests.append(position < last)
            positions.append(cast(position, DType.int64))
        return where(tests[0] & tests[1], cast(x.at(images.at(roi), channel, *positions), wide), -inf)

    images = check_range(
        build((count,), lambda roi: cast(rois.at(roi, 0), DType.int64)), 0, x.shape[0] - 1, "images of rois"
    )
    windows = build((count, x.shape[1], *pooled_shape, *reaches), pixel)
    return _clear_empty_bins(reduce("maximum", windows, [4, 5]), x.dtype)


# -- deformable convolution -------------------------------------------------------------------------------------------


@op("DeformConv", since=19)
def deform_conv(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    offset_group: int = 1,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    rank = x.rank - 2
    require(rank >= 1 and w.rank == x.rank, f"weights of rank {w.rank} for an input of rank {x.rank}")
    dilations, strides = dilations or (1,) * rank, strides or (1,) * rank
    pads = pads or (0,) * (2 * rank)
    kernel = w.shape[2:] if kernel_shape is None else kernel_shape
    spatial = [
        window_count(x.shape[2 + axis], kernel[axis], strides[axis], dilations[axis], (pads[axis], pads[rank + axis]))
        for axis in range(rank)
    ]
    for size, expected in zip(offset.shape[2:], spatial):
        assume_equal(size, expected, "there must be offsets for every output position")
    batch, channels = x.shape[:2]
    wide = _wide_float(x.dtype)
    offset = reshape(offset, (batch, offset_group, *kernel, rank, *spatial))
    mask = None if mask is None else reshape(mask, (batch, offset_group, *kernel, *spatial))

    def position(axis: int, image: Element, part: Element, *i: Element) -> Element:
        base = i[rank + axis] * strides[axis] + i[axis] * dilations[axis] - pads[axis]
        return _to_float(base, wide) + cast(offset.at(image, part, *i[:rank], axis, *i[rank:]), wide)

    shape = (batch, offset_group, *kernel, *spatial)
    positions = [build(shape, partial(position, axis)) for axis in range(rank)]
    columns = _sample_columns(x, positions, mask)
    taps, output_count = dims.product(kernel), dims.product(spatial)
    columns = reshape(columns, (batch, group, dims.floordiv(channels, group), taps, output_count))
    weights = reshape(cast(w, wide), (group, dims.floordiv(w.shape[0], group), w.shape[1], taps))
    result = contract(columns, weights, "ngckp", "gmck", "ngmp")
    result = reshape(result, (batch, w.shape[0], *spatial))
    if b is None:
        return cast(result, x.dtype)
    return build(result.shape, lambda *i: cast(result.at(*i) + cast(b.at(i[1]), wide), x.dtype))


def _sample_columns(x: Tensor, positions: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """Sample every channel linearly at the positions of its offset group, with 0 outside, and apply the mask."""
    wide = positions[0].dtype
    per_offset = dims.floordiv(x.shape[1], positions[0].shape[1])

    def sample(image: Element, channel: Element, *i: Element) -> Element:
        ends: list[list[tuple[Element, Element]]] = []
        for size, position in zip(x.shape[2:], positions):
            coordinate = position.at(image, channel // per_offset, *i)
            part, first = coordinate - floor(coordinate), cast(floor(coordinate), DType.int64)
            neighbours = ((first, 1.0 - part), (first + 1, part))
            ends.append([(k, where((k >= 0) & (k < size), weight, 0.0)) for k, weight in neighbours])
        terms = []
        for corner in product(*ends):
            term = cast(x.at(image, channel, *(pixel for pixel, _ in corner)), wide)
            for _, weight in corner:
                term = term * weight
            terms.append(term)
        total = _sum(terms)
        if mask is not None:
            total = total * cast(mask.at(image, channel // per_offset, *i), wide)
        return total

    return build((*x.shape[:2], *positions[0].shape[2:]), sample)
