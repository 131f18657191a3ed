"""Pieces of random models that networks are made of: convolutions, attention, recurrent and quantized layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from attack.composer import Composer
from onnx import TensorProto


def activation(c: Composer, x: str) -> str:
    shape = c.shape(x)
    match int(c.random.integers(9)):
        case 0:
            return c.emit("Relu", [x], shape)
        case 1:
            return c.emit("Mul", [x, c.emit("Sigmoid", [x], shape)], shape)
        case 2:
            return c.emit("Clip", [x, c.constant(np.float32(0)), c.constant(np.float32(6))], shape)
        case 3:
            return c.emit("LeakyRelu", [x], shape, alpha=0.1)
        case 4:  # gelu as exporters write it
            inner = c.emit("Erf", [c.emit("Div", [x, c.constant(np.float32(2**0.5))], shape)], shape)
            grown = c.emit("Mul", [x, c.emit("Add", [inner, c.constant(np.float32(1))], shape)], shape)
            return c.emit("Mul", [grown, c.constant(np.float32(0.5))], shape)
        case 5:
            return c.emit("HardSwish", [x], shape) if c.opset >= 14 else x
        case 6:
            return c.emit(
                "PRelu", [x, c.weights(*([shape[1]] + [1] * (len(shape) - 2) if len(shape) > 2 else [1]))], shape
            )
        case 7:
            return c.emit("Tanh", [x], shape)
    return x


def convolution(c: Composer) -> None:
    x = c.some(4)
    if x is None:
        return
    n, channels, height, width = c.shape(x)
    groups = int(c.pick([1, 1, 1, channels, *(number for number in (2, 4) if channels % number == 0)]))
    out = groups * int(c.random.integers(1, max(2, 24 // groups)))
    kernel = [int(c.pick((1, 1, 3, 3, 3, 5, 2))) for _ in range(2)]
    stride = [int(c.pick((1, 1, 1, 2, 3)))] * 2
    dilation = [int(c.pick((1, 1, 1, 2)))] * 2
    pads = [int(c.random.integers(0, 3)) for _ in range(4)] if c.chance(0.3) else [k // 2 for k in kernel] * 2
    sizes = [(size + pads[k] + pads[k + 2] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1
             for k, size in enumerate((height, width))]  # fmt: skip
    if min(sizes) < 1:
        return
    inputs = [x, c.weights(out, channels // groups, *kernel)]
    if c.chance(0.6):
        inputs.append(c.weights(out, std=1.0))
    y = c.emit("Conv", inputs, [n, out, *sizes], group=groups, strides=stride, dilations=dilation, pads=pads)
    if c.chance(0.4):
        vectors = [c.weights(out, std=1.0) for _ in range(3)]
        variance = c.constant(c.random.uniform(0.5, 2, out).astype(np.float32))
        y = c.emit("BatchNormalization", [y, *vectors, variance], c.shape(y))
    y = activation(c, y)
    if c.shape(y) == c.shape(x) and c.chance(0.6):
        c.emit("Add", [y, x] if c.chance(0.5) else [x, y], c.shape(y))


def transposed(c: Composer) -> None:
    x = c.some(4)
    if x is None:
        return
    n, channels, height, width = c.shape(x)
    stride, kernel = int(c.pick((1, 2, 2, 3))), int(c.pick((2, 3, 4)))
    pad = int(c.random.integers(0, min(2, kernel)))
    more = int(c.random.integers(0, stride)) if c.chance(0.3) else 0
    sizes = [(size - 1) * stride - 2 * pad + kernel + more for size in (height, width)]
    if min(sizes) < 1 or np.prod(sizes) > 2500:
        return
    out = int(c.random.integers(1, 9))
    y = c.emit("ConvTranspose", [x, c.weights(channels, out, kernel, kernel)], [n, out, *sizes],
               strides=[stride] * 2, pads=[pad] * 4, output_padding=[more] * 2)  # fmt: skip
    activation(c, y)


def pool(c: Composer) -> None:
    x = c.some(4)
    if x is None:
        return
    n, channels, height, width = c.shape(x)
    kernel, stride = int(c.pick((2, 3))), int(c.pick((1, 2, 2, 3)))
    pad = int(c.random.integers(0, 2))
    ceil = int(c.random.integers(2))
    sizes = []
    for size in (height, width):
        steps = (size + 2 * pad - kernel) / stride
        sizes.append(int((np.ceil if ceil else np.floor)(steps)) + 1)
        if ceil and (sizes[-1] - 1) * stride >= size + pad:
            sizes[-1] -= 1
    if min(sizes) < 1 or min(height, width) + 2 * pad < kernel:
        return
    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "ceil_mode": ceil}
    op = c.pick(("MaxPool", "AveragePool"))
    if op == "AveragePool":
        attributes["count_include_pad"] = int(c.random.integers(2))
        if ceil and c.opset < 19:
            return
    c.emit(op, [x], [n, channels, *sizes], **attributes)


def squeeze_excite(c: Composer) -> None:
    x = c.some(4)
    if x is None:
        return
    n, channels, *_ = c.shape(x)
    if c.chance(0.5):
        y = c.emit("GlobalAveragePool", [x], [n, channels, 1, 1])
    else:
        y = reduced(c, "ReduceMean", x, [2, 3], True)
    hidden = max(1, channels // 2)
    y = c.emit("Conv", [y, c.weights(hidden, channels, 1, 1), c.weights(hidden, std=1.0)], [n, hidden, 1, 1])
    y = c.emit("Relu", [y], [n, hidden, 1, 1])
    y = c.emit("Conv", [y, c.weights(channels, hidden, 1, 1)], [n, channels, 1, 1])
    y = c.emit(c.pick(("HardSigmoid", "Sigmoid")), [y], [n, channels, 1, 1])
    c.emit("Mul", [x, y] if c.chance(0.5) else [y, x], c.shape(x))


def resize(c: Composer) -> None:
    x = c.some(4)
    if x is None or np.prod(c.shape(x)) > 8000:
        return
    mode = c.pick(("nearest", "linear", "cubic"))
    style = c.pick(("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"))
    n, channels, height, width = c.shape(x)
    if c.chance(0.5):
        scale = float(c.pick((2.0, 0.5, 1.5, 3.0)))
        sizes = [int(np.floor(size * scale)) for size in (height, width)]
        inputs = [x, "", c.constant(np.float32([1, 1, scale, scale]))]
    else:
        sizes = [int(c.random.integers(1, 25)) for _ in range(2)]
        inputs = [x, "", "", c.ints(n, channels, *sizes)]
    if min(sizes) >= 1:
        rounding = {"nearest_mode": c.pick(("round_prefer_floor", "floor", "ceil"))} if mode == "nearest" else {}
        c.emit("Resize", inputs, [n, channels, *sizes], mode=mode, coordinate_transformation_mode=style, **rounding)


def normalized(c: Composer) -> None:
    x = c.some(None, least=3)
    if x is None:
        return
    shape = c.shape(x)
    match c.pick(("instance", "layer", "plain", "rms", "group", "lrn")):
        case "instance":
            c.emit("InstanceNormalization", [x, c.weights(shape[1], std=1.0), c.weights(shape[1], std=1.0)], shape)
        case "layer" if c.opset >= 17:
            c.emit(
                "LayerNormalization", [x, c.weights(shape[-1], std=1.0), c.weights(shape[-1], std=1.0)], shape, axis=-1
            )
        case "plain":
            centred = c.emit("Sub", [x, reduced(c, "ReduceMean", x, [-1], True)], shape)
            squares = c.emit("Pow", [centred, c.constant(np.float32(2))], shape)
            spread = reduced(c, "ReduceMean", squares, [-1], True)
            root = c.emit(
                "Sqrt", [c.emit("Add", [spread, c.constant(np.float32(1e-5))], c.shape(spread))], c.shape(spread)
            )
            y = c.emit("Div", [centred, root], shape)
            y = c.emit("Mul", [y, c.weights(shape[-1], std=1.0)], shape)
            c.emit("Add", [y, c.weights(shape[-1], std=1.0)], shape)
        case "rms":
            mean = reduced(c, "ReduceMean", c.emit("Mul", [x, x], shape), [-1], True)
            root = c.emit("Sqrt", [c.emit("Add", [mean, c.constant(np.float32(1e-6))], c.shape(mean))], c.shape(mean))
            c.emit("Mul", [c.emit("Div", [x, root], shape), c.weights(shape[-1], std=1.0)], shape)
        case "group" if c.opset >= 21 and shape[1] % 2 == 0:
            c.emit(
                "GroupNormalization",
                [x, c.weights(shape[1], std=1.0), c.weights(shape[1], std=1.0)],
                shape,
                num_groups=2,
            )
        case "lrn" if len(shape) == 4:
            c.emit("LRN", [x], shape, size=int(c.pick((3, 5))))


def reduced(c: Composer, op: str, x: str, axes: list[int], keep: bool) -> str:
    shape = c.shape(x)
    at = {axis % len(shape) for axis in axes}
    result = [1 if axis in at else size for axis, size in enumerate(shape) if keep or axis not in at]
    if c.opset >= 18 or op == "ReduceSum":
        return c.emit(op, [x, c.ints(*axes)], result, keepdims=int(keep))
    return c.emit(op, [x], result, axes=axes, keepdims=int(keep))


def linear(c: Composer) -> None:
    x = c.some(None, least=2)
    if x is None:
        return
    shape = c.shape(x)
    out = int(c.pick((1, 3, 8, 16, 33)))
    if len(shape) == 2 and c.chance(0.6):
        turned = int(c.random.integers(2))
        w = c.weights(*((out, shape[1]) if turned else (shape[1], out)))
        inputs = [x, w, c.weights(out, std=1.0)] if c.chance(0.7) else [x, w]
        y = c.emit("Gemm", inputs, [shape[0], out], transB=turned, alpha=float(c.pick((1.0, 0.5))))
    else:
        y = c.emit("MatMul", [x, c.weights(shape[-1], out)], [*shape[:-1], out])
        if c.chance(0.6):
            bias = c.weights(out, std=1.0)
            y = c.emit("Add", [y, bias] if c.chance(0.5) else [bias, y], c.shape(y))
    y = activation(c, y)
    if c.shape(y) == shape and c.chance(0.5):
        c.emit("Add", [y, x], shape)


def attention(c: Composer) -> None:
    x = c.some(3)
    if x is None or c.shape(x)[2] % 2 or c.shape(x)[0] == 0:
        return
    batch, length, width = c.shape(x)
    heads = int(c.pick([number for number in (1, 2, 4) if width % number == 0]))
    part = width // heads
    if c.opset >= 23 and c.chance(0.4):
        c.emit("Attention", [x, x, x], [batch, length, width], q_num_heads=heads, kv_num_heads=heads,
               is_causal=int(c.random.integers(2)))  # fmt: skip
        return
    sides = []
    for turn in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        y = c.emit("MatMul", [x, c.weights(width, width)], [batch, length, width])
        if c.chance(0.5):
            y = c.emit("Add", [y, c.weights(width, std=0.5)], [batch, length, width])
        y = c.emit("Reshape", [y, c.ints(0, 0, heads, part)], [batch, length, heads, part])
        sides.append(c.emit("Transpose", [y], [[batch, length, heads, part][axis] for axis in turn], perm=turn))
    q, k, v = sides
    scores = c.emit("MatMul", [q, k], [batch, heads, length, length])
    scale = c.constant(np.float32(part**0.5))
    scores = c.emit("Div", [scores, scale], c.shape(scores)) if c.chance(0.8) else scores
    if c.chance(0.4):
        mask = np.where(np.tri(length, dtype=bool), 0, -1e4).astype(np.float32)
        scores = c.emit("Add", [scores, c.constant(mask)], c.shape(scores))
    weights = c.emit("Softmax", [scores], c.shape(scores), axis=-1)
    y = c.emit("MatMul", [weights, v], [batch, heads, length, part])
    y = c.emit("Transpose", [y], [batch, length, heads, part], perm=[0, 2, 1, 3])
    y = c.emit("Reshape", [y, c.ints(0, 0, width)], [batch, length, width])
    if c.chance(0.6):
        y = c.emit("MatMul", [y, c.weights(width, width)], [batch, length, width])
        c.emit("Add", [x, y], [batch, length, width])


def recurrent(c: Composer) -> None:
    x = c.some(3)
    if x is None:
        return
    op, gates = c.pick((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    direction = c.pick(("forward", "forward", "reverse", "bidirectional"))
    sides = 2 if direction == "bidirectional" else 1
    hidden = int(c.pick((1, 3, 4, 8, 17)))
    if c.chance(0.6):
        b, s, width = c.shape(x)
        x = c.emit("Transpose", [x], [s, b, width], perm=[1, 0, 2])
    steps, batch, width = c.shape(x)
    inputs = [x, c.weights(sides, gates * hidden, width), c.weights(sides, gates * hidden, hidden)]
    inputs.append(c.weights(sides, 2 * gates * hidden, std=0.5) if c.chance(0.7) else "")
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attributes["linear_before_reset"] = int(c.random.integers(2))
    results = [([steps, sides, batch, hidden], "float32"), ([sides, batch, hidden], "float32")]
    if op == "LSTM":
        results.append(([sides, batch, hidden], "float32"))
    while inputs and not inputs[-1]:
        inputs.pop()
    y = c.emit_many(op, inputs, results, **attributes)[0]
    if sides == 1 and c.chance(0.7):
        c.emit("Squeeze", [y, c.ints(1)], [steps, batch, hidden])
    elif c.chance(0.7):
        y = c.emit("Transpose", [y], [steps, batch, sides, hidden], perm=[0, 2, 1, 3])
        c.emit("Reshape", [y, c.ints(0, 0, -1)], [steps, batch, sides * hidden])


def quantized(c: Composer) -> None:
    """A product between quantize and dequantize, or on integers."""
    x = c.some(None, least=2)
    if x is None:
        return None
    shape = c.shape(x)
    if c.chance(0.4) and len(shape) == 4:
        return _quantized_convolution(c, x)
    out = int(c.pick((1, 4, 8, 16)))
    if c.chance(0.4):
        whole, scale, zero = c.emit_many(
            "DynamicQuantizeLinear", [x], [(shape, "uint8"), ([], "float32"), ([], "uint8")]
        )
        w = c.constant(c.random.integers(-127, 128, (shape[-1], out)).astype(np.int8))
        y = c.emit("MatMulInteger", [whole, w, zero], [*shape[:-1], out], "int32")
        y = c.emit("Cast", [y], c.shape(y), to=TensorProto.FLOAT)
        both = c.emit("Mul", [scale, c.constant(np.float32(0.01))], [])
        c.emit("Mul", [y, both], c.shape(y))
        return None
    dtype = c.pick((np.int8, np.uint8))
    y = _through(c, x, 0.05, dtype)
    scale = c.constant(c.random.uniform(0.005, 0.02, out).astype(np.float32))
    w = c.constant(c.random.integers(-127, 128, (shape[-1], out)).astype(np.int8))
    zeros = c.constant(np.zeros(out, np.int8))
    plain = c.emit("DequantizeLinear", [w, scale, zeros], [shape[-1], out], axis=1)
    y = c.emit("MatMul", [y, plain], [*shape[:-1], out])
    y = activation(c, y) if c.chance(0.5) else y
    _through(c, y, 0.1, dtype)
    return None


def _through(c: Composer, x: str, step: float, dtype: Any) -> str:
    scale, zero = c.constant(np.float32(step)), c.constant(np.array(c.pick((0, 3, 100)), dtype))
    whole = c.emit("QuantizeLinear", [x, scale, zero], c.shape(x), np.dtype(dtype).name)
    return c.emit("DequantizeLinear", [whole, scale, zero], c.shape(x))


def _quantized_convolution(c: Composer, x: str) -> None:
    n, channels, height, width = c.shape(x)
    out = int(c.pick((1, 4, 8)))
    y = _through(c, x, 0.05, c.pick((np.int8, np.uint8)))
    w = c.constant(c.random.integers(-127, 128, (out, channels, 3, 3)).astype(np.int8))
    scale = c.constant(c.random.uniform(0.002, 0.01, out).astype(np.float32))
    plain = c.emit("DequantizeLinear", [w, scale, c.constant(np.zeros(out, np.int8))], [out, channels, 3, 3], axis=0)
    y = c.emit("Conv", [y, plain], [n, out, height, width], pads=[1, 1, 1, 1])
    _through(c, c.emit("Relu", [y], c.shape(y)) if c.chance(0.5) else y, 0.1, np.uint8)
