"""Rewrite ops that move elements: wonnx gathers along the first axis, and concatenates whole tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from models.wonnx_form.network import Array, NoForm, Shape
from models.wonnx_form.writer import Form, Step, Writer

MAX_SPLIT_OUTPUTS = 14  # the number of buffers that wonnx can bind


def normalize_axis(axis: int, shape: Shape) -> int:
    return axis + len(shape) if axis < 0 else axis


def axis_of(step: Step, shape: Shape, default: int) -> int:
    return normalize_axis(step.attributes.get("axis", default), shape)


def integers(w: Writer, value: str, what: str) -> list[int]:
    """Return the elements of a constant input, empty if it is omitted."""
    return [int(number) for number in w.require_constant(value, what).ravel()] if value else []


# -- helpers -----------------------------------------------------------------------------------------------------------


def gather_axis(w: Writer, value: str, axis: int, indices: Sequence[int], output: str = "") -> str:
    """Gather along an axis. wonnx only supports the first axis and 32-bit indices."""
    shape = w.shapes[value]
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    result = (*shape[:axis], len(indices), *shape[axis + 1 :])
    places = w.constant(np.array(indices, np.int32))
    if before == 1:
        rows = w.emit("Gather", [w.reshape(value, (shape[axis], after)), places], (len(indices), after), axis=0)
    else:
        first = w.transpose(w.reshape(value, (before, shape[axis], after)), (1, 0, 2))
        rows = w.transpose(w.emit("Gather", [first, places], (len(indices), before, after), axis=0), (1, 0, 2))
    return w.reshape(rows, result, output or "")


def concatenate(w: Writer, values: Sequence[str], axis: int, output: str = "") -> str:
    """Concatenate along an axis. wonnx appends whole tensors, whatever the axis."""
    shapes = [w.shapes[value] for value in values]
    result = list(shapes[0])
    result[axis] = sum(shape[axis] for shape in shapes)
    before = math.prod(result[:axis])
    if before == 1:
        return w.emit("Concat", values, result, output, axis=axis)
    flat = [w.reshape(value, (before, math.prod(w.shapes[value][axis:]))) for value in values]
    columns = [w.transpose(value, (1, 0)) for value in flat]
    height = sum(w.shapes[value][0] for value in columns)
    rows = w.transpose(w.emit("Concat", columns, (height, before), axis=0), (1, 0))
    return w.reshape(rows, result, output)


def extend_axis(w: Writer, value: str, axis: int, size: int) -> str:
    """Append zeros along an axis, up to a size."""
    shape = list(w.shapes[value])
    missing = size - shape[axis]
    if not missing:
        return value
    array = w.constant_of(value)
    if array is not None:
        return w.constant(np.pad(array, [(0, missing if number == axis else 0) for number in range(len(shape))]))
    shape[axis] = missing
    return concatenate(w, [value, w.constant(np.zeros(shape, np.float32))], axis)


def gather_per_axis(w: Writer, value: str, indices: Mapping[int, Sequence[int]], output: str) -> None:
    """Gather along several axes, except those that do not change."""
    shape = w.shapes[value]
    changing = {
        axis: axis_indices for axis, axis_indices in indices.items() if list(axis_indices) != list(range(shape[axis]))
    }
    for number, (axis, axis_indices) in enumerate(changing.items(), 1):
        value = gather_axis(w, value, axis, axis_indices, output if number == len(changing) else "")
    if not changing:
        w.forward(value, output)


# -- forms -------------------------------------------------------------------------------------------------------------


def _transpose(w: Writer, step: Step) -> None:
    rank = len(w.shapes[step.inputs[0]])
    w.transpose(step.inputs[0], step.attributes.get("perm", list(range(rank))[::-1]), step.output)


def _concat(w: Writer, step: Step) -> None:
    values = [value for value in step.inputs if 0 not in w.shapes[value]]
    if len(values) == 1:
        w.forward(values[0], step.output)
    else:
        concatenate(w, values, axis_of(step, w.shapes[step.output], 0), step.output)


def _split(w: Writer, step: Step) -> None:
    """Write a Split of equal parts; wonnx takes the lengths of unequal parts for their ends.

    Parts after the first get a Reshape, which is free: if another node combines them with other values, wonnx would
    compute everything before them again, and wrongly.
    """
    value = step.inputs[0]
    axis = axis_of(step, w.shapes[value], 0)
    lengths = [w.shapes[output][axis] for output in step.outputs]
    if len(set(lengths)) == 1 and len(lengths) <= MAX_SPLIT_OUTPUTS:
        first, *others = step.outputs
        parts = w.emit_several("Split", [value], first, [w.shapes[output] for output in others], axis=axis)
        for part, output in zip(parts, others, strict=True):
            w.reshape(part, w.shapes[output], output)
        return
    start = 0
    for output, length in zip(step.outputs, lengths, strict=True):
        gather_axis(w, value, axis, range(start, start + length), output)
        start += length


def _slice(w: Writer, step: Step) -> None:
    """wonnx lacks Slice."""
    value = step.inputs[0]
    shape = w.shapes[value]
    if step.opset < 10:
        starts, ends = list(step.attributes["starts"]), list(step.attributes["ends"])
        axes, steps = list(step.attributes.get("axes", [])), []
    else:
        starts, ends, axes, steps = (integers(w, step.input(position), "a bound of Slice") for position in range(1, 5))
    axes = [normalize_axis(axis, shape) for axis in axes] or list(range(len(starts)))
    steps = steps or [1] * len(starts)
    indices = {
        axis: range(shape[axis])[start:end:stride]
        for axis, start, end, stride in zip(axes, starts, ends, steps, strict=True)
    }
    gather_per_axis(w, value, indices, step.output)


def _gather(w: Writer, step: Step) -> None:
    value = step.inputs[0]
    shape = w.shapes[value]
    axis = axis_of(step, shape, 0)
    constants = integers(w, step.inputs[1], "an index of Gather")
    indices = [index + shape[axis] if index < 0 else index for index in constants]
    w.reshape(gather_axis(w, value, axis, indices), w.shapes[step.output], step.output)


def _expand(w: Writer, step: Step) -> None:
    """wonnx lacks Expand."""
    value, shape = step.inputs[0], w.shapes[step.output]
    if w.shapes[value] == shape:
        w.forward(value, step.output)
    else:
        w.pair("Mul", value, w.constant(np.ones(shape, np.float32)), step.output)


def _tile(w: Writer, step: Step) -> None:
    """wonnx lacks Tile."""
    shape = w.shapes[step.inputs[0]]
    counts = integers(w, step.inputs[1], "a count of Tile")
    indices = {axis: list(range(size)) * count for axis, (size, count) in enumerate(zip(shape, counts, strict=True))}
    gather_per_axis(w, step.inputs[0], indices, step.output)


def _pad(w: Writer, step: Step) -> None:
    """wonnx pads correctly with zeros only, and with at most one at the end of an axis."""
    value = step.inputs[0]
    shape = w.shapes[value]
    pads = list(step.attributes.get("pads", [])) or integers(w, step.input(1), "a width of Pad")
    if step.input(3) or min(pads) < 0:
        raise NoForm("Pad that cuts, or with axes")
    before, after = pads[: len(shape)], pads[len(shape) :]
    mode = step.attributes.get("mode", b"constant").decode()
    if mode != "constant":
        indices = {
            axis: np.pad(np.arange(size), (before[axis], after[axis]), mode=mode).tolist()
            for axis, size in enumerate(shape)
        }
        gather_per_axis(w, value, indices, step.output)
        return
    if step.attributes.get("value") or (step.input(2) and w.require_constant(step.inputs[2], "a value").any()):
        raise NoForm("Pad with values other than zero")
    _pad_with_zeros(w, value, before, after, step.output)


def _pad_with_zeros(w: Writer, value: str, before: list[int], after: list[int], output: str) -> None:
    for axis, width in enumerate(after):
        if width > 1:
            value = extend_axis(w, value, axis, w.shapes[value][axis] + width)
    ends = [1 if width == 1 else 0 for width in after]
    if any(before) or any(ends):
        widths = w.constant(np.array([*before, *ends], np.int64))
        w.emit("Pad", [value, widths], w.shapes[output], output)
    else:
        w.forward(value, output)


def _resize(w: Writer, step: Step) -> None:
    """wonnx only repeats elements by integer factors; write other nearest modes as gathers."""
    value = step.inputs[0]
    shape, result = w.shapes[value], w.shapes[step.output]
    if step.attributes.get("mode", b"nearest") != b"nearest":
        raise NoForm(f"Resize by {step.attributes['mode'].decode()} interpolation")
    factors = [size // old for size, old in zip(result, shape, strict=True)]
    indices = {axis: _nearest(step, shape[axis], result[axis]) for axis in range(len(shape))}
    repeats = all(
        indices[axis] == [place // factor for place in range(result[axis])] if factor else False
        for axis, factor in enumerate(factors)
    )
    if not repeats:
        gather_per_axis(w, value, indices, step.output)
        return
    w.emit(
        "Resize",
        [value, "", w.constant(np.array(factors, np.float32))],
        result,
        step.output,
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )


def _nearest(step: Step, old: int, new: int) -> list[int]:
    """Return the source index of every element along an axis."""
    older = step.op == "Upsample" or step.opset < 11
    mode = "asymmetric" if older else step.attributes.get("coordinate_transformation_mode", b"half_pixel").decode()
    rounding = "floor" if older else step.attributes.get("nearest_mode", b"round_prefer_floor").decode()
    places = np.arange(new, dtype=np.float64)
    match mode:
        case "asymmetric":
            sources = places * old / new
        case "half_pixel" | "pytorch_half_pixel":
            sources = (places + 0.5) * old / new - 0.5
        case "align_corners":
            sources = places * (old - 1) / max(new - 1, 1)
        case _:
            raise NoForm(f"Resize with {mode}")
    return [int(source) for source in np.clip(_round(sources, rounding), 0, old - 1)]


def _round(numbers: Array, mode: str) -> Array:
    match mode:
        case "floor":
            return np.floor(numbers)
        case "ceil":
            return np.ceil(numbers)
        case "round_prefer_floor":
            return np.ceil(numbers - 0.5)
        case _:
            return np.floor(numbers + 0.5)


def _depth_to_space(w: Writer, step: Step) -> None:
    """wonnx lacks DepthToSpace."""
    value = step.inputs[0]
    batch, channels, height, width = w.shapes[value]
    block = step.attributes["blocksize"]
    depth = channels // block**2
    if step.attributes.get("mode", b"DCR") == b"DCR":
        parts = w.reshape(value, (batch, block, block, depth, height, width))
        moved = w.transpose(parts, (0, 3, 4, 1, 5, 2))
    else:
        parts = w.reshape(value, (batch, depth, block, block, height, width))
        moved = w.transpose(parts, (0, 1, 4, 2, 5, 3))
    w.reshape(moved, w.shapes[step.output], step.output)


FORMS: dict[str, Form] = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Gather": _gather,
    "Pad": _pad,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
    "Transpose": _transpose,
    "Upsample": _resize,
}
