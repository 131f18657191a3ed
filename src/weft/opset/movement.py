"""Data movement: concatenating, splitting, slicing, padding, repeating and rearranging elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType, from_number
from weft.opset.functions import cast, ceil, equal, maximum, minimum, where
from weft.opset.language import (
    Element,
    Tensor,
    assume_at_least,
    assume_equal,
    broadcast_shapes,
    build,
    check_range,
    concat,
    dims_tensor,
    expand,
    literal,
    observe,
    pad,
    reshape,
    slice_axis,
    split,
    transpose,
    wrap_index,
)
from weft.opset.registry import REQUIRED, ElementType, Sizes, Static, normalize_axes, normalize_axis, op, require

LARGEST_SHAPE = 8  # elements of a vector that may be a shape
FAR = 2**31 - 1  # a start or end of at least this means the end of the axis
FARTHEST = 2**63 - 1


@op("Transpose")
def transpose_(x: Tensor, *, perm: tuple[int, ...] | None = None) -> Tensor:
    return transpose(x, tuple(reversed(range(x.rank))) if perm is None else perm)


@op("Concat", since=4)
def concat_(*inputs: Tensor, axis: int = REQUIRED) -> Tensor:
    require(len(inputs) > 0, "there is nothing to concatenate")
    return concat([_observe_sizes(x) for x in inputs] if _looks_like_sizes(inputs) else inputs, axis)


def _looks_like_sizes(parts: Sequence[Tensor]) -> bool:
    """Return whether a few integers are concatenated, some static and some not: probably a shape."""
    total = sum((part.size for part in parts), 0)
    if not isinstance(total, int) or total > LARGEST_SHAPE:
        return False
    if any(part.dtype is not DType.int64 or part.rank != 1 for part in parts):
        return False
    return len({part.static_value is None for part in parts}) == 2


def _observe_sizes(x: Tensor) -> Tensor:
    """Observe the elements of an integer vector as sizes, so that the concatenated vector is static."""
    return x if x.static_value is not None else dims_tensor(observe(x, "size"))


# -- splitting and slicing -------------------------------------------------------------------------------------------


@op("Split", since=2)
def split_2(x: Tensor, *, axis: int = 0, split: tuple[int, ...] | None = None, output_count: int) -> list[Tensor]:
    return _split(x, axis, split, output_count)


@op("Split", since=13)
def split_13(x: Tensor, split: Sizes | None = None, *, axis: int = 0, output_count: int) -> list[Tensor]:
    return _split(x, axis, split, output_count)


@op("Split", since=18)
def split_18(
    x: Tensor, split: Sizes | None = None, *, axis: int = 0, num_outputs: int | None = None, output_count: int
) -> list[Tensor]:
    if split is not None or num_outputs is None:
        return _split(x, axis, split, output_count)
    require(num_outputs > 0, f"num_outputs is {num_outputs}")
    size = x.shape[normalize_axis(axis, x.rank)]
    part = dims.ceildiv(size, num_outputs)
    sizes = [part] * (num_outputs - 1) + [size - part * (num_outputs - 1)]
    require(not isinstance(sizes[-1], int) or sizes[-1] >= 0, f"a size of {size} does not give {num_outputs} parts")
    return _split(x, axis, sizes, output_count)


def _split(x: Tensor, axis: int, sizes: Sequence[Dim] | None, count: int) -> list[Tensor]:
    """Split into parts of `sizes`, by default equal ones."""
    if sizes is None:
        size = x.shape[normalize_axis(axis, x.rank)]
        sizes = [dims.floordiv(size, count)] * count
    require(all(not isinstance(size, int) or size >= 0 for size in sizes), f"split sizes {tuple(sizes)}")
    return split(x, axis, sizes)


@op("Slice")
def slice_1(
    x: Tensor,
    *,
    starts: tuple[int, ...] = REQUIRED,
    ends: tuple[int, ...] = REQUIRED,
    axes: tuple[int, ...] | None = None,
) -> Tensor:
    return _slice(x, starts, ends, axes, None)


@op("Slice", since=10)
def slice_10(x: Tensor, starts: Sizes, ends: Sizes, axes: Static | None = None, steps: Sizes | None = None) -> Tensor:
    return _slice(x, starts, ends, None if axes is None else axes.reshape(-1).tolist(), steps)


def _slice(
    x: Tensor, starts: Sequence[Dim], ends: Sequence[Dim], axes: Sequence[int] | None, steps: Sequence[Dim] | None
) -> Tensor:
    axes = normalize_axes(range(len(starts)) if axes is None else axes, x.rank)
    steps = [1] * len(starts) if steps is None else steps
    require(
        len(starts) == len(ends) == len(axes) == len(steps),
        f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps must be equally many",
    )
    for axis, start, end, step in zip(axes, starts, ends, steps):
        x = slice_axis(x, axis, *slice_bounds(x.shape[axis], start, end, step), step)
    return x


def slice_bounds(size: Dim, start: Dim, end: Dim, step: Dim) -> tuple[Dim, Dim]:
    """Return (first, count) of a slice over `size` elements; the signs of starts and ends may depend on the run.

    As in Python, except that a start before the front is the front, and the largest integers stand for no end.
    """
    require(step != 0, "the step of a slice is 0")
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first = _clamp_position(_count_from_front(start, size), 0, high)
    last = _clamp_position(_count_from_front(end, size), low, high)
    if step < 0:
        last = last - _has_no_end(end) * (last + 1)
    return first, dims.maximum(dims.ceildiv(last - first, step), 0)


def _has_no_end(end: Dim) -> Dim:
    """Return 1 if an end is one of the two largest integers, which stand for no end, else 0."""
    if isinstance(end, int):
        return int(end in (FAR, FARTHEST))

    def reaches(limit: int) -> Dim:
        return dims.minimum(dims.maximum(end - (limit - 1), 0), 1)

    return reaches(FAR) - reaches(FAR + 1) + reaches(FARTHEST)


def _count_from_front(position: Dim, size: Dim) -> Dim:
    """Count a position that may be negative from the front."""
    if _is_far(position):
        return position
    if dims.is_at_least(position, 0):
        return position
    if dims.is_at_least(-1, position):
        return position + size
    is_negative = dims.minimum(dims.maximum(-position, 0), 1)
    return position + is_negative * size


def _clamp_position(position: Dim, low: Dim, high: Dim) -> Dim:
    if _is_far(position):
        return high if position > 0 else dims.minimum(low, high)  # high < low for an empty axis
    undecided = not dims.is_at_least(position, high) and dims.is_at_least(position, low)
    if undecided and isinstance(high, int) and _is_input_size(position):
        assume_at_least(high, position, "a slice of a fixed size by one of the inputs' sizes")
        return position
    return dims.minimum(dims.maximum(position, low), high)


def _is_input_size(position: Dim) -> bool:
    """Return whether a position depends on sizes of inputs only: guards on these are checked before a run starts."""
    return not isinstance(position, int) and all(
        symbol.low is not None and symbol.low > 0 for symbol in dims.symbols(position)
    )


def _is_far(position: Dim) -> bool:
    return isinstance(position, int) and abs(position) >= FAR


# -- padding and repeating -------------------------------------------------------------------------------------------


@op("Pad", since=2)
def pad_2(x: Tensor, *, pads: tuple[int, ...] = REQUIRED, mode: str = "constant", value: float = 0.0) -> Tensor:
    return _pad(x, pads, None, mode, literal(value, x.dtype))


@op("Pad", since=11)
def pad_11(
    x: Tensor, pads: Sizes, constant_value: Tensor | None = None, axes: Static | None = None, *, mode: str = "constant"
) -> Tensor:
    if constant_value is None:
        value: Element = literal("" if x.dtype is DType.string else 0, x.dtype)
    else:
        value = reshape(constant_value, ()).at()
    return _pad(x, pads, None if axes is None else axes.reshape(-1).tolist(), mode, value)


def _pad(x: Tensor, pads: Sequence[Dim], axes: Sequence[int] | None, mode: str, value: Element) -> Tensor:
    axes = normalize_axes(range(x.rank) if axes is None else axes, x.rank)
    require(len(pads) == 2 * len(axes), f"{len(pads)} pads for {len(axes)} axes")
    require(
        mode == "constant" or mode in _REPEAT_MODES,
        f"mode is {mode!r}, not one of constant, {', '.join(_REPEAT_MODES)}",
    )
    amounts: list[tuple[Dim, Dim]] = [(0, 0)] * x.rank
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :]):
        amounts[axis] = (before, after)
    if mode == "constant":
        return pad(x, amounts, value)
    repeat = _REPEAT_MODES[mode]
    for axis, (before, after) in enumerate(amounts):
        first, last = dims.maximum(-before, 0), dims.maximum(-after, 0)
        x = slice_axis(x, axis, first, x.shape[axis] - first - last)
        more = dims.maximum(before, 0) + dims.maximum(after, 0)
        assume_at_least(x.shape[axis], dims.minimum(more, 1), f"axis {axis} has no elements that {mode!r} could repeat")
    shape = [size + dims.maximum(before, 0) + dims.maximum(after, 0) for size, (before, after) in zip(x.shape, amounts)]

    def element(*i: Element) -> Element:
        sources = [k - dims.maximum(before, 0) for k, (before, _) in zip(i, amounts)]
        return x.at(*(k if new == size else repeat(k, size) for k, size, new in zip(sources, x.shape, shape)))

    return build(shape, element)


def _reflect(position: Element, size: Dim) -> Element:
    phase = position % dims.maximum(2 * size - 2, 1)
    return minimum(phase, 2 * size - 2 - phase)


def _edge(position: Element, size: Dim) -> Element:
    return minimum(maximum(position, 0), size - 1)


def _wrap(position: Element, size: Dim) -> Element:
    return position % dims.maximum(size, 1)


_REPEAT_MODES: dict[str, Callable[[Element, Dim], Element]] = {"reflect": _reflect, "edge": _edge, "wrap": _wrap}


@op("Tile", since=6)
def tile(x: Tensor, repeats: Sizes) -> Tensor:
    require(len(repeats) == x.rank, f"{len(repeats)} repeats for rank {x.rank}")
    shape = [size * times for size, times in zip(x.shape, repeats)]
    return build(shape, lambda *i: x.at(*(k % dims.maximum(size, 1) for k, size in zip(i, x.shape))))


@op("Expand", since=8)
def expand_(x: Tensor, shape: Sizes) -> Tensor:
    return expand(x, broadcast_shapes(x.shape, shape))


@op("CenterCropPad", since=18)
def center_crop_pad(x: Tensor, shape: Sizes, *, axes: tuple[int, ...] | None = None) -> Tensor:
    cropped_axes = normalize_axes(range(x.rank) if axes is None else axes, x.rank)
    require(len(shape) == len(cropped_axes), f"{len(shape)} sizes for {len(cropped_axes)} axes")
    amounts: list[tuple[Dim, Dim]] = [(0, 0)] * x.rank
    for axis, target in zip(cropped_axes, shape):
        more, less = dims.maximum(target - x.shape[axis], 0), dims.maximum(x.shape[axis] - target, 0)
        before = dims.floordiv(more, 2) - dims.floordiv(less, 2)
        amounts[axis] = (before, target - x.shape[axis] - before)
    return pad(x, amounts, literal("" if x.dtype is DType.string else 0, x.dtype))


# -- rearranging -----------------------------------------------------------------------------------------------------


@op("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int = REQUIRED, mode: str = "DCR") -> Tensor:
    batch, depth, height, width = _image_shape(x)
    require(blocksize > 0, f"blocksize is {blocksize}")
    channels = dims.floordiv(depth, blocksize * blocksize)
    if _is_depth_first(mode):
        blocks = reshape(x, [batch, blocksize, blocksize, channels, height, width])
        blocks = transpose(blocks, [0, 3, 4, 1, 5, 2])
    else:
        blocks = reshape(x, [batch, channels, blocksize, blocksize, height, width])
        blocks = transpose(blocks, [0, 1, 4, 2, 5, 3])
    return reshape(blocks, [batch, channels, height * blocksize, width * blocksize])


@op("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int = REQUIRED, mode: str = "DCR") -> Tensor:
    batch, channels, height, width = _image_shape(x)
    require(blocksize > 0, f"blocksize is {blocksize}")
    rows, columns = dims.floordiv(height, blocksize), dims.floordiv(width, blocksize)
    blocks = reshape(x, [batch, channels, rows, blocksize, columns, blocksize])
    blocks = transpose(blocks, [0, 3, 5, 1, 2, 4] if _is_depth_first(mode) else [0, 1, 3, 5, 2, 4])
    return reshape(blocks, [batch, channels * blocksize * blocksize, rows, columns])


def _image_shape(x: Tensor) -> tuple[Dim, ...]:
    require(x.rank == 4, f"the input must be [N, C, H, W], not of rank {x.rank}")
    return x.shape


def _is_depth_first(mode: str) -> bool:
    require(mode in ("DCR", "CRD"), f"mode is {mode!r}, not DCR or CRD")
    return mode == "DCR"


@op("ReverseSequence", since=10)
def reverse_sequence(x: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    batch_axis, time_axis = normalize_axes((batch_axis, time_axis), x.rank)
    require(sequence_lens.rank == 1, f"sequence_lens must have one dimension, not {sequence_lens.rank}")
    assume_equal(sequence_lens.shape[0], x.shape[batch_axis], "one length for each sequence")
    sequence_lens = check_range(sequence_lens, 0, x.shape[time_axis], "sequence_lens")

    def element(*i: Element) -> Element:
        length, time = sequence_lens.at(i[batch_axis]), i[time_axis]
        source = where(time < length, length - 1 - time, time)
        return x.at(*i[:time_axis], source, *i[time_axis + 1 :])

    return build(x.shape, element)


@op("Trilu", since=14)
def trilu(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    require(x.rank >= 2, f"the input must have at least two dimensions, not {x.rank}")
    number = None if k is None or k.size == 0 else reshape(k, ())  # any int64, not a size

    def element(*i: Element) -> Element:
        distance = i[-1] - i[-2]
        diagonal = 0 if number is None else number.at()
        return where(distance >= diagonal if upper else distance <= diagonal, x.at(*i), 0)

    return build(x.shape, element)


# -- creating --------------------------------------------------------------------------------------------------------


@op("EyeLike", since=9)
def eye_like(x: Tensor, *, dtype: ElementType | None = None, k: int = 0) -> Tensor:
    require(x.rank == 2, f"the input must have two dimensions, not {x.rank}")
    kind = x.dtype if dtype is None else from_number(dtype)
    return build(x.shape, lambda row, column: cast(equal(column - row, k), kind))


@op("Range", since=11)
def range_(start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: ElementType = 1) -> Tensor:
    start, limit, delta = (reshape(bound, ()) for bound in (start, limit, delta))
    dtype = start.dtype
    if dtype.is_integer:
        (first,), (end,), (step,) = observe(start, "start"), observe(limit, "limit"), observe(delta, "delta")
        require(step != 0, "the delta of a range is 0")
        count = dims.maximum(dims.ceildiv(end - first, step), 0)
        return build((count,), lambda i: cast(i * step + first, dtype))
    wide = from_number(stash_type) if dtype in (DType.float16, DType.bfloat16) else dtype
    start, limit, delta = (cast(bound, wide) for bound in (start, limit, delta))
    spans = cast(limit - start, DType.float64) / cast(delta, DType.float64)
    (count,) = observe(cast(maximum(ceil(spans), 0.0), DType.int64), "count")
    return build((count,), lambda i: cast(start.at() + cast(i, wide) * delta.at(), dtype))


@op("OneHot", since=9)
def one_hot(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    (count,) = observe(reshape(cast(depth, DType.int64), (1,)), "depth")
    require(values.rank == 1, f"values must have one dimension, not {values.rank}")
    assume_equal(values.shape[0], 2, "values are the off value and the on value")
    axis = normalize_axis(axis, indices.rank + 1)
    shape = (*indices.shape[:axis], count, *indices.shape[axis:])

    def element(*i: Element) -> Element:
        hot = wrap_index(indices.at(*i[:axis], *i[axis + 1 :]), count)
        return where(equal(hot, i[axis]), values.at(1), values.at(0))

    return build(shape, element)
