"""Rewrite ops that are elementwise, reduce axes, or slide windows."""

from __future__ import annotations

import math

import numpy as np

from models.wonnx_form.layouts import axis_of, integers, normalize_axis
from models.wonnx_form.network import NoForm
from models.wonnx_form.writer import Form, Step, Writer

SINGLE = "Abs Ceil Cos Elu Exp Floor Log Neg Reciprocal Relu Sigmoid Sin Softplus Softsign Sqrt Tanh"
PAIRS = "Add Sub Mul Div PRelu"
REDUCTIONS = "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare"
LARGEST = float(np.finfo(np.float32).max)


# -- elementwise -------------------------------------------------------------------------------------------------------


def _single(w: Writer, step: Step) -> None:
    w.emit(step.op, step.inputs, w.shapes[step.output], step.output, **step.attributes)


def _pair(w: Writer, step: Step) -> None:
    w.pair(step.op, step.inputs[0], step.inputs[1], step.output)


def _same(w: Writer, step: Step) -> None:
    """Forward the input of Dropout, Identity, a Cast to the same type, or a reshaping op."""
    w.forward(step.inputs[0], step.outputs[0])


def _sum(w: Writer, step: Step) -> None:
    """wonnx lacks Sum."""
    total = step.inputs[0]
    for position, value in enumerate(step.inputs[1:], 2):
        total = w.pair("Add", total, value, step.output if position == len(step.inputs) else "")
    if len(step.inputs) == 1:
        w.forward(total, step.output)


def _power(w: Writer, step: Step) -> None:
    """WGSL's pow is undefined for a negative base."""
    base, exponent = step.inputs[:2]
    array = w.constant_of(exponent)
    number = float(array.flat[0]) if array is not None and array.size == 1 else None
    match number:
        case 1.0:
            w.forward(base, step.output)
        case 2.0:
            w.pair("Mul", base, base, step.output)
        case 3.0:
            w.pair("Mul", w.pair("Mul", base, base), base, step.output)
        case 0.5:
            w.emit("Sqrt", [base], w.shapes[base], step.output)
        case _:
            w.pair("Pow", base, exponent, step.output)


def _extreme(w: Writer, step: Step) -> None:
    """wonnx lacks Max and Min."""
    bound = upper_bound if step.op == "Min" else lower_bound
    bounded = step.inputs[0]
    for position, value in enumerate(step.inputs[1:], 2):
        bounded = bound(w, bounded, value, step.output if position == len(step.inputs) else "")
    if len(step.inputs) == 1:
        w.forward(bounded, step.output)


def lower_bound(w: Writer, value: str, bound: str, output: str = "") -> str:
    """Write max(value, bound)."""
    if w.constant_of(value) is not None:
        value, bound = bound, value
    array = w.constant_of(bound)
    if array is not None and array.size == 1 and len(array.shape) <= len(w.shapes[value]):
        number = float(array.flat[0])
        if number == 0:
            return w.emit("Relu", [value], w.shapes[value], output)
        if _has_one_decimal(number):
            return _clip_form(w, value, number, LARGEST, output)
    excess = w.pair("Sub", value, bound)
    return w.pair("Add", w.emit("Relu", [excess], w.shapes[excess]), bound, output)


def upper_bound(w: Writer, value: str, bound: str, output: str = "") -> str:
    """Write min(value, bound)."""
    missing = w.pair("Sub", bound, value)
    return w.pair("Sub", bound, w.emit("Relu", [missing], w.shapes[missing]), output)


def _has_one_decimal(number: float) -> bool:
    """Whether one decimal is exact: wonnx prints the bounds of Clip with one decimal into its shaders."""
    return bool(np.float32(f"{number:.1f}") == np.float32(number))


def _clip_form(w: Writer, value: str, low: float, high: float, output: str) -> str:
    """Write a Clip. wonnx needs both bounds, and cannot print infinity."""
    bounds = [w.constant(np.array(number, np.float32)) for number in (low, high)]
    return w.emit("Clip", [value, *bounds], w.shapes[value], output)


def _clip(w: Writer, step: Step) -> None:
    limits = [step.input(1), step.input(2)]
    if step.opset < 11:
        limits = [w.scalar(step.attributes[name]) if name in step.attributes else "" for name in ("min", "max")]
    low, high = (_bound(w, name, default) for name, default in zip(limits, (-LARGEST, LARGEST), strict=True))
    value = step.inputs[0]
    if low is not None and high is not None and _has_one_decimal(low) and _has_one_decimal(high):
        _clip_form(w, value, low, high, step.output)
    elif high == LARGEST:
        lower_bound(w, value, limits[0], step.output)
    else:
        upper_bound(w, lower_bound(w, value, limits[0]) if low != -LARGEST else value, limits[1], step.output)


def _bound(w: Writer, name: str, default: float) -> float | None:
    """Return a bound of Clip, None if it depends on data."""
    array = w.constant_of(name) if name else np.array(default, np.float32)
    return None if array is None else float(np.clip(array, -LARGEST, LARGEST).flat[0])


def _leaky(w: Writer, step: Step) -> None:
    """wonnx fuses LeakyRelu into a preceding convolution, whose general kernel ignores it."""
    value = step.inputs[0]
    slope = step.attributes.get("alpha", 0.01)
    if value in w.plain_convolutions:
        w.pair("PRelu", value, w.scalar(slope), step.output)
    else:
        w.emit("LeakyRelu", [value], w.shapes[value], step.output, alpha=slope)


def _hard_sigmoid(w: Writer, step: Step) -> None:
    slope, offset = step.attributes.get("alpha", 0.2), step.attributes.get("beta", 0.5)
    hard_sigmoid(w, step.inputs[0], slope, offset, step.output)


def hard_sigmoid(w: Writer, value: str, slope: float, offset: float, output: str = "") -> str:
    scaled = w.pair("Add", w.pair("Mul", value, w.scalar(slope)), w.scalar(offset))
    return _clip_form(w, scaled, 0.0, 1.0, output)


def _hard_swish(w: Writer, step: Step) -> None:
    w.pair("Mul", step.inputs[0], hard_sigmoid(w, step.inputs[0], 1 / 6, 0.5), step.output)


# -- along axes --------------------------------------------------------------------------------------------------------


def _softmax(w: Writer, step: Step) -> None:
    """Before opset 13, Softmax normalizes over all axes from `axis` on."""
    value = step.inputs[0]
    shape = w.shapes[value]
    if step.opset >= 13:
        w.emit(step.op, [value], shape, step.output, axis=axis_of(step, shape, -1))
        return
    axis = axis_of(step, shape, 1)
    flat = w.reshape(value, (math.prod(shape[:axis]), math.prod(shape[axis:])))
    w.reshape(w.emit(step.op, [flat], w.shapes[flat], axis=1), shape, step.output)


def _reduction(w: Writer, step: Step) -> None:
    """Write a reduction of opset 13, where axes are attributes except in ReduceSum."""
    value = step.inputs[0]
    shape = w.shapes[value]
    declared_axes = step.attributes.get("axes") or integers(w, step.input(1), "an axis")
    if not declared_axes and step.attributes.get("noop_with_empty_axes"):
        w.forward(value, step.output)
        return
    axes = sorted(normalize_axis(axis, shape) for axis in declared_axes) or list(range(len(shape)))
    keep = step.attributes.get("keepdims", 1)
    if step.op == "ReduceSum":
        inputs = [value, w.constant(np.array(axes, np.int64))]
        w.emit(step.op, inputs, w.shapes[step.output], step.output, keepdims=keep)
    else:
        w.emit(step.op, [value], w.shapes[step.output], step.output, axes=axes, keepdims=keep)


def _batch_normalization(w: Writer, step: Step) -> None:
    value, *parameters = step.inputs
    epsilon = step.attributes.get("epsilon", 1e-5)
    shape = w.shapes[value]
    if len(shape) == 4:
        w.emit(step.op, [value, *parameters], shape, step.outputs[0], epsilon=epsilon)
        return
    arrays = [w.require_constant(name, f"a parameter of {step.op}").astype(np.float64) for name in parameters]
    scale, bias, mean, variance = (array.reshape([-1] + [1] * (len(shape) - 2)) for array in arrays)
    factor = scale / np.sqrt(variance + epsilon)
    scaled = w.pair("Mul", value, w.constant(factor.astype(np.float32)))
    w.pair("Add", scaled, w.constant((bias - mean * factor).astype(np.float32)), step.outputs[0])


def _layer_normalization(w: Writer, step: Step) -> None:
    """wonnx lacks LayerNormalization."""
    value = step.inputs[0]
    shape = w.shapes[value]
    axes = list(range(axis_of(step, shape, -1), len(shape)))
    rows = [1 if axis in axes else size for axis, size in enumerate(shape)]
    centered = w.pair("Sub", value, w.emit("ReduceMean", [value], rows, axes=axes, keepdims=1))
    variance = w.emit("ReduceMean", [w.pair("Mul", centered, centered)], rows, axes=axes, keepdims=1)
    shifted = w.pair("Add", variance, w.scalar(step.attributes.get("epsilon", 1e-5)))
    result = w.pair("Div", centered, w.emit("Sqrt", [shifted], rows))
    if step.input(2):
        w.pair("Add", w.pair("Mul", result, step.inputs[1]), step.inputs[2], step.outputs[0])
    else:
        w.pair("Mul", result, step.inputs[1], step.outputs[0])


# -- over windows ------------------------------------------------------------------------------------------------------


def explicit_pads(step: Step, sizes: tuple[int, ...], kernel: list[int], outputs: tuple[int, ...]) -> list[int]:
    """Compute the pads of `auto_pad`, for which wonnx confuses width and height."""
    axes = range(len(kernel))
    automatic = step.attributes.get("auto_pad", b"NOTSET").decode()
    if automatic in ("NOTSET", ""):
        return list(step.attributes.get("pads", [0] * 2 * len(kernel)))
    if automatic == "VALID":
        return [0] * 2 * len(kernel)
    strides = step.attributes.get("strides", [1] * len(kernel))
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations_of(step, len(kernel)), strict=True)]
    total = [max(0, (outputs[axis] - 1) * strides[axis] + reach[axis] - sizes[axis]) for axis in axes]
    small, large = [extra // 2 for extra in total], [extra - extra // 2 for extra in total]
    return small + large if automatic == "SAME_UPPER" else large + small


def dilations_of(step: Step, rank: int) -> list[int]:
    return list(step.attributes.get("dilations", [1] * rank))


def _pool(w: Writer, step: Step) -> None:
    value = step.inputs[0]
    shape, output = w.shapes[value], w.shapes[step.output]
    if len(shape) != 4:
        raise NoForm(f"{step.op} of rank {len(shape)}")
    kernel = list(step.attributes["kernel_shape"])
    names = ("strides", "ceil_mode", "count_include_pad")
    attributes = {name: step.attributes[name] for name in names if name in step.attributes}
    if any(dilation != 1 for dilation in dilations_of(step, 2)):
        attributes["dilations"] = dilations_of(step, 2)
    pads = explicit_pads(step, shape[2:], kernel, output[2:])
    w.emit(step.op, [value], output, step.output, kernel_shape=kernel, pads=pads, **attributes)


def _global_pool(w: Writer, step: Step) -> None:
    """wonnx only supports GlobalAveragePool of rank 4."""
    value = step.inputs[0]
    shape, output = w.shapes[value], w.shapes[step.output]
    if step.op == "GlobalAveragePool" and len(shape) == 4:
        w.emit(step.op, [value], output, step.output)
        return
    op = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}[step.op]
    w.emit(op, [value], output, step.output, axes=list(range(2, len(shape))), keepdims=1)


def _local_response(w: Writer, step: Step) -> None:
    """wonnx lacks LRN: pool the squares over neighbouring channels, with channels as height."""
    value = step.inputs[0]
    shape = w.shapes[value]
    size = step.attributes["size"]
    below = (size - 1) // 2
    squares = w.reshape(w.pair("Mul", value, value), (shape[0], 1, shape[1], math.prod(shape[2:])))
    mean = w.emit(
        "AveragePool",
        [squares],
        w.shapes[squares],
        kernel_shape=[size, 1],
        pads=[below, 0, size - 1 - below, 0],
        strides=[1, 1],
        count_include_pad=1,
    )
    scaled = w.pair("Mul", w.reshape(mean, shape), w.scalar(step.attributes.get("alpha", 1e-4)))
    base = w.pair("Add", scaled, w.scalar(step.attributes.get("bias", 1.0)))
    w.pair("Div", value, w.pair("Pow", base, w.scalar(step.attributes.get("beta", 0.75))), step.output)


FORMS: dict[str, Form] = {
    **dict.fromkeys(SINGLE.split(), _single),
    **dict.fromkeys(PAIRS.split(), _pair),
    **dict.fromkeys([*REDUCTIONS.split(), "ReduceSum"], _reduction),
    **dict.fromkeys("Cast Dropout Flatten Identity Reshape Squeeze Unsqueeze".split(), _same),
    "AveragePool": _pool,
    "BatchNormalization": _batch_normalization,
    "Clip": _clip,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LRN": _local_response,
    "LayerNormalization": _layer_normalization,
    "LeakyRelu": _leaky,
    "Max": _extreme,
    "MaxPool": _pool,
    "Min": _extreme,
    "Pow": _power,
    "Softmax": _softmax,
    "Sum": _sum,
}
