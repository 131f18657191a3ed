"""Rewrite convolutions and matrix products."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from models.wonnx_form.forms import dilations_of, explicit_pads
from models.wonnx_form.layouts import concatenate, extend_axis, gather_axis
from models.wonnx_form.network import Array, NoForm
from models.wonnx_form.writer import LARGEST_BUFFER, Form, Step, Writer

TILE = 4  # sizes of products must be multiples of this


# -- convolutions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """A window over height and width; `pads` are (top, left, bottom, right)."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int


def _convolution(w: Writer, step: Step) -> None:
    value = step.inputs[0]
    weights = w.require_constant(step.inputs[1], "a weight of Conv")
    bias = w.require_constant(step.inputs[2], "the bias of Conv") if step.input(2) else None
    shape, output = w.shapes[value], w.shapes[step.output]
    rank = len(shape) - 2
    if rank > 2:
        raise NoForm(f"Conv of rank {len(shape)}")
    pads = explicit_pads(step, shape[2:], list(weights.shape[2:]), output[2:])
    strides = list(step.attributes.get("strides", [1] * rank))
    dilations = dilations_of(step, rank)
    if rank == 1:  # wonnx needs a height
        value = w.reshape(value, (*shape[:2], 1, shape[2]))
        weights = weights[:, :, None]
        pads, strides, dilations = [0, pads[0], 0, pads[1]], [1, *strides], [1, *dilations]
    window = Window(tuple(strides), tuple(pads), tuple(dilations), step.attributes.get("group", 1))
    if rank == 1:
        w.reshape(convolve(w, value, weights, bias, window), output, step.output)
    else:
        convolve(w, value, weights, bias, window, step.output)


def convolve(w: Writer, value: str, weights: Array, bias: Array | None, window: Window, output: str = "") -> str:
    """Write a convolution.

    wonnx has a kernel for 3×3 windows that needs its weights in another layout. Without a bias it reads them wrongly,
    and with dilations another kernel does.
    """
    count, _, *kernel = weights.shape
    relaid = kernel == [3, 3] and window.strides == (1, 1) and window.group == 1 and count % 4 == 0
    dilated = window.dilations != (1, 1)
    if relaid and not dilated and bias is None:
        bias = np.zeros(count, np.float32)
    late = bias if relaid and dilated else None
    inputs = [value, w.constant(weights)]
    if bias is not None and late is None:
        inputs.append(w.constant(bias))
    shape = [w.shapes[value][0], count]
    for axis in range(2):
        reach = (kernel[axis] - 1) * window.dilations[axis] + 1
        padded = w.shapes[value][2 + axis] + window.pads[axis] + window.pads[2 + axis]
        shape.append((padded - reach) // window.strides[axis] + 1)
    result = w.emit(
        "Conv",
        inputs,
        shape,
        output if late is None else "",
        kernel_shape=kernel,
        strides=list(window.strides),
        pads=list(window.pads),
        dilations=list(window.dilations),
        group=window.group,
    )
    if not _has_vector_kernel(w, value, window, kernel, count):
        w.plain_convolutions.add(result)
    return result if late is None else w.pair("Add", result, w.constant(late.reshape(1, -1, 1, 1)), output)


def _has_vector_kernel(w: Writer, value: str, window: Window, kernel: list[int], count: int) -> bool:
    if window.strides != (1, 1) or window.dilations != (1, 1) or window.group != 1 or count % 4:
        return False
    pointwise = kernel == [1, 1] and not any(window.pads) and w.shapes[value][1] % 16 == 0
    return pointwise or kernel == [3, 3]


def _transposed_convolution(w: Writer, step: Step) -> None:
    """wonnx lacks ConvTranspose: convolve with a channel for each phase of the output, and interleave them."""
    value = step.inputs[0]
    weights = w.require_constant(step.inputs[1], "a weight of ConvTranspose")
    bias = w.require_constant(step.inputs[2], "the bias of ConvTranspose") if step.input(2) else None
    shape, result = w.shapes[value], w.shapes[step.output]
    if len(shape) != 4 or dilations_of(step, 2) != [1, 1] or step.attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise NoForm("ConvTranspose of another rank, with dilations or automatic pads")
    strides = step.attributes.get("strides", [1, 1])
    pads = step.attributes.get("pads", [0, 0, 0, 0])
    group = step.attributes.get("group", 1)
    if any(size % stride for size, stride in zip(result[2:], strides, strict=True)):
        raise NoForm("ConvTranspose to a size that its stride does not divide")
    heights, widths = (list(_taps(weights.shape[2 + axis], strides[axis], pads[axis])) for axis in range(2))
    first = [min(tap[2] for tap in taps) for taps in (heights, widths)]
    last = [max(tap[2] for tap in taps) for taps in (heights, widths)]
    kernel = [high - low + 1 for low, high in zip(first, last, strict=True)]
    channels, per_group = weights.shape[:2]
    grouped = weights.reshape(group, channels // group, *weights.shape[1:])
    phases = np.zeros((group, per_group, strides[0], strides[1], channels // group, *kernel), np.float32)
    for row, phase_row, shift_row in heights:
        for column, phase_column, shift_column in widths:
            y, x = shift_row - first[0], shift_column - first[1]
            phases[:, :, phase_row, phase_column, :, y, x] = grouped[:, :, :, row, column].swapaxes(1, 2)
    counts = [size // stride for size, stride in zip(result[2:], strides, strict=True)]
    after = [last[axis] + counts[axis] - shape[2 + axis] for axis in range(2)]
    if min(*after, -first[0], -first[1]) < 0:
        raise NoForm("ConvTranspose that cuts more than its kernel reaches")
    window = Window((1, 1), (-first[0], -first[1], after[0], after[1]), (1, 1), group)
    many = None if bias is None else np.repeat(bias, strides[0] * strides[1])
    computed = convolve(w, value, phases.reshape(-1, channels // group, *kernel), many, window)
    parts = w.reshape(computed, (shape[0], result[1], strides[0], strides[1], counts[0], counts[1]))
    w.reshape(w.transpose(parts, (0, 1, 4, 2, 5, 3)), result, step.output)


def _taps(size: int, stride: int, pad: int) -> Iterator[tuple[int, int, int]]:
    """Yield each kernel index along an axis, its phase of the output, and the offset of its source."""
    for index in range(size):
        phase = (index - pad) % stride
        yield index, phase, (phase + pad - index) // stride


# -- matrix products ---------------------------------------------------------------------------------------------------


def _gemm(w: Writer, step: Step) -> None:
    """wonnx ignores transA and transB, and the shape of C if it has one row."""
    left, right = step.inputs[:2]
    if step.attributes.get("transA"):
        left = w.transpose(left, (1, 0))
    if step.attributes.get("transB"):
        right = w.transpose(right, (1, 0))
    alpha = step.attributes.get("alpha", 1.0)
    if alpha != 1:
        left = w.pair("Mul", left, w.scalar(alpha))
    bias = step.input(2)
    if not bias:
        product(w, left, right, step.output)
        return
    beta = step.attributes.get("beta", 1.0)
    constant = w.constant_of(bias)
    columns = w.shapes[right][1]
    if constant is not None and constant.size in (1, columns) and constant.shape[-1:] in ((), (1,), (columns,)):
        row = np.broadcast_to(constant.reshape(-1), (columns,)) * np.float32(beta)
        product(w, left, right, step.output, row.astype(np.float32))
        return
    added = bias if beta == 1 else w.pair("Mul", bias, w.scalar(beta))
    w.pair("Add", product(w, left, right), added, step.output)


def _matmul(w: Writer, step: Step) -> None:
    left, right = step.inputs[:2]
    if min(len(w.shapes[left]), len(w.shapes[right])) < 2:
        raise NoForm("MatMul of a vector")
    *outer, columns = w.shapes[step.output]
    if len(w.shapes[right]) == 2 or math.prod(w.shapes[right][:-2]) == 1:
        flat = w.reshape(left, (math.prod(outer), w.shapes[left][-1]))
        matrix = w.reshape(right, w.shapes[right][-2:])
        if len(outer) == 1:
            product(w, flat, matrix, step.output)
        else:
            w.reshape(product(w, flat, matrix), (*outer, columns), step.output)
    else:
        _batched_product(w, left, right, step.output)


def product(w: Writer, left: str, right: str, output: str = "", bias: Array | None = None) -> str:
    """Write the product of two matrices.

    wonnx computes tiles of 4×4, or of 2×2 if 2 is the greatest common divisor of the sizes, and ignores the remainder.
    It computes a single row 4 elements at a time.
    """
    (rows, depth), columns = w.shapes[left], w.shapes[right][1]
    if rows == 1:
        return _row_times(
            w, extend_axis(w, left, 1, _round_up(depth)), extend_axis(w, right, 0, _round_up(depth)), output, bias
        )
    op, inputs = ("MatMul", [left, right]) if bias is None else ("Gemm", [left, right, w.constant(bias)])
    if _fits(rows, depth, columns):
        return w.emit(op, inputs, (rows, columns), output)
    left = extend_axis(w, extend_axis(w, left, 1, _round_up(depth)), 0, _round_up(rows))
    right = extend_axis(w, extend_axis(w, right, 0, _round_up(depth)), 1, _round_up(columns))
    inputs = [left, right]
    if bias is not None:
        inputs.append(w.constant(np.pad(bias, (0, _round_up(columns) - columns))))
    whole = w.emit(op, inputs, (_round_up(rows), _round_up(columns)))
    return _crop(w, whole, (rows, columns), output)


def _row_times(w: Writer, left: str, right: str, output: str, bias: Array | None) -> str:
    """Multiply a row by a matrix, in blocks of columns if it is too large for a buffer."""
    depth, columns = w.shapes[right]
    parts = -(-depth * columns * 4 // LARGEST_BUFFER)
    width = -(-columns // parts)
    matrix = w.constant_of(right) if parts > 1 else None
    if parts > 1 and matrix is None:
        raise NoForm("a product with a computed matrix that is larger than wonnx's buffers")
    results = []
    for start in range(0, columns, width):
        part = right if matrix is None else w.constant(matrix[:, start : start + width])
        inputs = [left, part] if bias is None else [left, part, w.constant(bias[start : start + width])]
        op = "MatMul" if bias is None else "Gemm"
        results.append(w.emit(op, inputs, (1, w.shapes[part][1]), output if parts == 1 else ""))
    return results[0] if parts == 1 else concatenate(w, results, 1, output)


def _batched_product(w: Writer, left: str, right: str, output: str) -> None:
    """Write a batched product; both operands must have the same batch dims."""
    *outer, rows, depth = w.shapes[left]
    *others, _, columns = w.shapes[right]
    if outer != others:
        raise NoForm(f"MatMul of {w.shapes[left]} and {w.shapes[right]}, whose batch dims differ")
    count = math.prod(outer)
    left, right = w.reshape(left, (count, rows, depth)), w.reshape(right, (count, depth, columns))
    if rows > 1 and _fits(rows, depth, columns):
        whole = w.emit("MatMul", [left, right], (count, rows, columns))
    else:
        left = extend_axis(w, extend_axis(w, left, 2, _round_up(depth)), 1, _round_up(rows))
        right = extend_axis(w, extend_axis(w, right, 2, _round_up(columns)), 1, _round_up(depth))
        whole = _crop(
            w, w.emit("MatMul", [left, right], (count, _round_up(rows), _round_up(columns))), (count, rows, columns)
        )
    w.reshape(whole, w.shapes[output], output)


def _crop(w: Writer, value: str, shape: Sequence[int], output: str = "") -> str:
    """Cut a value to a smaller shape."""
    axes = [axis for axis, size in enumerate(shape) if size != w.shapes[value][axis]]
    for number, axis in enumerate(axes, 1):
        value = gather_axis(w, value, axis, range(shape[axis]), output if number == len(axes) else "")
    return value if axes or not output else w.reshape(value, shape, output)


def _round_up(size: int) -> int:
    return -(-size // TILE) * TILE


def _fits(*sizes: int) -> bool:
    shared = math.gcd(*sizes)
    return shared % TILE == 0 or shared == 2


FORMS: dict[str, Form] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
