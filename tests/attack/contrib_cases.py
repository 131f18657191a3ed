"""Random legal nodes of onnxruntime's domain: arrays, attributes and, where onnxruntime is wrong, a numpy statement.

`GENERATORS` has a function for each op that onnxruntime's CPU has a kernel for; `NOT_DRAWN` says why an op has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class NodeCase:
    """A node: None among `inputs` leaves one out, `expected` replaces onnxruntime's outputs.

    `defined` has a mask for each output that is defined in part, `constants` are inputs that must be initializers.
    `tolerance` is relative to the largest number of an output; integer outputs may differ by `steps`.
    """

    inputs: Sequence[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    expected: Sequence[Array | None] | None = None
    defined: dict[int, Array] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    tolerance: float | None = None
    steps: int = 0


class Draw:
    """Random sizes, choices and arrays."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def size(self, *, least: int = 0, most: int = 9) -> int:
        """Draw a size; 0 and 1 are frequent."""
        if self.random.random() < 0.2:
            return max(least, int(self.random.integers(0, 2)))
        return int(self.random.integers(max(least, 1), most + 1))

    def shape(self, rank: int | None = None, *, least: int = 0) -> tuple[int, ...]:
        rank = int(self.random.integers(1, 5)) if rank is None else rank
        return tuple(self.size(least=least, most=6) for _ in range(rank))

    def pick(self, *options: Any) -> Any:
        return options[int(self.random.integers(len(options)))]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.random.random() < share)

    def floats(self, shape: Sequence[int], dtype: Any = np.float32, low: float = -2, high: float = 2) -> Array:
        return np.asarray(self.random.uniform(low, high, tuple(shape))).astype(dtype)

    def ints(self, shape: Sequence[int], dtype: Any, low: int | None = None, high: int | None = None) -> Array:
        """Draw integers from `low` to `high`, both included; the range of a small dtype by default."""
        limits = ml_dtypes.iinfo(dtype)
        low = int(limits.min) if low is None else low
        high = int(limits.max) if high is None else high
        return np.asarray(self.random.integers(low, max(low, high) + 1, tuple(shape))).astype(dtype)

    def optional(self, array: Array, share: float = 0.5) -> Array | None:
        return array if self.chance(share) else None

    def scale(self, shape: Sequence[int] = ()) -> Array:
        return self.floats(shape, low=0.01, high=0.1)


Generator = Callable[[Draw], NodeCase]
EIGHT_BITS = (np.uint8, np.int8)


def pack(values: Array, bits: int) -> Array:
    """Pack numbers along the last axis, the first of each byte in the lowest bits."""
    per_byte = 8 // bits
    extra = -values.shape[-1] % per_byte
    values = np.concatenate([values, np.zeros((*values.shape[:-1], extra), np.uint8)], -1)
    parts = values.reshape(*values.shape[:-1], -1, per_byte).astype(np.uint8)
    shifted = parts << (np.arange(per_byte, dtype=np.uint8) * bits)
    return np.bitwise_or.reduce(shifted, axis=-1).astype(np.uint8)


def float_type(draw: Draw) -> Any:
    return draw.pick(np.float32, np.float32, np.float16)


# -- elementwise and normalisation -----------------------------------------------------------------------------------


def bias_gelu(draw: Draw) -> NodeCase:
    shape = draw.shape()
    return NodeCase([draw.floats(shape), draw.floats(shape[-1:])])


def fast_gelu(draw: Draw) -> NodeCase:
    shape, dtype = draw.shape(), float_type(draw)
    return NodeCase([draw.floats(shape, dtype), draw.optional(draw.floats(shape[-1:], dtype))])


def gelu(draw: Draw) -> NodeCase:
    return NodeCase([draw.floats(draw.shape(), low=-5, high=5)])


def quick_gelu(draw: Draw) -> NodeCase:
    attributes = {"alpha": draw.pick(1.702, 0.5, -1.0, 0.0)} if draw.chance() else {}
    return NodeCase([draw.floats(draw.shape(), low=-5, high=5)], attributes)


def skip_layer_normalization(draw: Draw, *, simplified: bool = False) -> NodeCase:
    shape, dtype = draw.shape(draw.pick(2, 3), least=draw.pick(0, 1)), float_type(draw)
    width = shape[-1:]
    skip = draw.pick(shape, shape, (1, *shape[1:]), shape[1:]) if len(shape) == 3 else shape
    extras = [draw.optional(draw.floats(width, dtype)) for _ in range(1 if simplified else 2)]
    inputs = [draw.floats(shape, dtype), draw.floats(skip, dtype), draw.floats(width, dtype), *extras]
    return NodeCase(inputs, {"epsilon": draw.pick(1e-5, 0.1)}, outputs=draw.pick(1, 4))


def skip_simplified(draw: Draw) -> NodeCase:
    return skip_layer_normalization(draw, simplified=True)


def embed_layer_normalization(draw: Draw) -> NodeCase:
    batch, length, width = draw.size(), draw.size(most=6), draw.size(least=1)
    has_segments, has_mask = draw.chance(), draw.chance()
    ids = lambda high: draw.ints((batch, length), np.int32, 0, high - 1)  # noqa: E731
    inputs = [
        ids(7),
        ids(2) if has_segments else None,
        draw.floats((7, width)),
        draw.floats((8, width)),
        draw.floats((2, width)) if has_segments else None,
        draw.floats((width,)),
        draw.floats((width,)),
        (np.arange(length) < draw.ints((batch, 1), np.int64, 0, length)).astype(np.int32) if has_mask else None,
        draw.optional(ids(8)),
    ]
    return NodeCase(inputs, {"epsilon": 1e-5}, draw.pick(2, 3))


def quantized_embed_layer_normalization(draw: Draw) -> NodeCase:
    batch, length, width, dtype = (
        draw.size(least=1),
        draw.size(least=1, most=6),
        draw.size(least=1),
        draw.pick(*EIGHT_BITS),
    )
    ids = lambda high: draw.ints((batch, length), np.int32, 0, high - 1)  # noqa: E731
    tables = [draw.ints(shape, dtype) for shape in ((7, width), (8, width), (2, width), (width,), (width,))]
    mask = (np.arange(length) < draw.ints((batch, 1), np.int64, 0, length)).astype(np.int32)
    scales, zeros = [draw.scale() for _ in range(5)], [draw.ints((), dtype) for _ in range(5)]
    inputs = [ids(7), ids(2), *tables, draw.optional(mask), *scales, *zeros]
    return NodeCase(inputs, {"epsilon": 1e-5}, 2, tolerance=1e-3)


# -- products --------------------------------------------------------------------------------------------------------


def fused_matmul(draw: Draw) -> NodeCase:
    """State the product in float64: onnxruntime leaves its output uninitialized where the inner size is 0."""
    rows, inner, columns = draw.size(), draw.size(), draw.size()
    batch = draw.shape(draw.pick(0, 1, 2))
    trans_a, trans_b = draw.chance(), draw.chance()
    left = (inner, rows) if trans_a else (rows, inner)
    right = (columns, inner) if trans_b else (inner, columns)
    second = draw.pick(batch, (), (1,) * len(batch))
    attributes = {"alpha": draw.pick(1.0, 0.5, -2.0), "transA": int(trans_a), "transB": int(trans_b)}
    dtype = draw.pick(np.float32, np.float32, np.float64)
    inputs = [draw.floats((*batch, *left), dtype), draw.floats((*second, *right), dtype)]
    a, b = (x.swapaxes(-1, -2) if t else x for x, t in zip(inputs, (trans_a, trans_b)))
    result = attributes["alpha"] * (a.astype(np.float64) @ b.astype(np.float64))
    return NodeCase(inputs, attributes, expected=[result.astype(dtype)])


def fused_matmul_of_batches(draw: Draw) -> NodeCase:
    if draw.chance():
        return fused_matmul(draw)
    batch, rows, inner, columns = (draw.size(least=1) for _ in range(4))
    swap_a, swap_b, trans_a, trans_b = (draw.chance() for _ in range(4))

    def operand(matrix: tuple[int, int], swapped: bool, transposed: bool) -> Array:
        """Draw an operand whose batch is its second axis if swapped, with the matrix transposed around it."""
        first, second = matrix[::-1] if transposed else matrix
        return draw.floats((first, batch, second) if swapped else (batch, first, second))

    inputs = [operand((rows, inner), swap_a, trans_a), operand((inner, columns), swap_b, trans_b)]
    flags = {"transA": trans_a, "transB": trans_b, "transBatchA": swap_a, "transBatchB": swap_b}
    return NodeCase(inputs, {name: int(flag) for name, flag in flags.items()})


def fused_gemm(draw: Draw) -> NodeCase:
    rows, inner, columns = draw.size(), draw.size(least=1), draw.size()  # of no products, onnxruntime forgets beta
    trans_a, trans_b = draw.chance(), draw.chance()
    bias = draw.pick((rows, columns), (columns,), (1, columns), (rows, 1), (1, 1), (1,), ())
    activation = draw.pick("Relu", "Sigmoid", "Tanh", "LeakyRelu")
    attributes: dict[str, Any] = {
        "alpha": draw.pick(1.0, 0.5),
        "beta": draw.pick(1.0, 0.5),
        "transA": int(trans_a),
        "transB": int(trans_b),
        "activation": activation,
    }
    if activation == "LeakyRelu":
        attributes["activation_alpha"] = 0.2
    inputs = [
        draw.floats((inner, rows) if trans_a else (rows, inner)),
        draw.floats((columns, inner) if trans_b else (inner, columns)),
        draw.optional(draw.floats(bias)),
    ]
    return NodeCase(inputs, attributes)


def matmul_integer_16(draw: Draw) -> NodeCase:
    rows, inner, columns = draw.size(), draw.size(), draw.size()
    return NodeCase([draw.ints((rows, inner), np.int16, -300, 300), draw.ints((inner, columns), np.int16, -300, 300)])


def _quantized_matrices(draw: Draw) -> tuple[int, int, Any, Any, tuple[int, ...]]:
    inner, columns = draw.size(least=1), draw.size(least=1)
    return inner, columns, draw.pick(*EIGHT_BITS), draw.pick(*EIGHT_BITS), draw.pick((), (columns,), (1,))


def matmul_integer_to_float(draw: Draw) -> NodeCase:
    inner, columns, left, right, per = _quantized_matrices(draw)
    batch = draw.shape(draw.pick(1, 2))
    inputs = [
        draw.ints((*batch, inner), left),
        draw.ints((inner, columns), right),
        draw.scale(),
        draw.scale(per),
        draw.optional(draw.ints((), left)),
        draw.optional(draw.ints(per, right)),
        draw.optional(draw.floats((columns,))),
    ]
    return NodeCase(inputs)


def dynamic_quantize_matmul(draw: Draw) -> NodeCase:
    inner, columns, _, right, per = _quantized_matrices(draw)
    batch = draw.shape(draw.pick(1, 2), least=1)
    inputs = [
        draw.floats((*batch, inner)),
        draw.ints((inner, columns), right),
        draw.scale(per),
        draw.optional(draw.ints(per, right)),
        draw.optional(draw.floats((columns,))),
    ]
    return NodeCase(inputs, tolerance=2e-2)  # a step of the quantized input


def quantized_gemm(draw: Draw) -> NodeCase:
    inner, columns, left, right, per = _quantized_matrices(draw)
    rows, result = draw.size(least=1), draw.pick(None, left)
    trans_a, trans_b = draw.chance(), draw.chance()
    inputs = [
        draw.ints((inner, rows) if trans_a else (rows, inner), left),
        draw.scale(),
        draw.ints((), left),
        draw.ints((columns, inner) if trans_b else (inner, columns), right),
        draw.scale(per),
        draw.ints(per, right),
        draw.optional(draw.ints(draw.pick((columns,), (rows, columns), (1, columns)), np.int32, -500, 500)),
        None if result is None else draw.scale(),
        None if result is None else draw.ints((), left),
    ]
    return NodeCase(inputs, {"alpha": 1.0, "transA": int(trans_a), "transB": int(trans_b)}, steps=1)


def matmul_n_bits(draw: Draw) -> NodeCase:
    """State the product in float64: onnxruntime refuses some of the zero points that its schema allows."""
    bits, block = draw.pick(2, 4, 8), draw.pick(16, 32)
    rows, columns, dtype = draw.size(least=1), draw.size(least=1, most=70), float_type(draw)
    blocks = -(-columns // block)
    codes = draw.ints((rows, blocks, block), np.uint8, 0, 2**bits - 1)
    scales, points = draw.scale((rows, blocks)).astype(dtype), draw.ints((rows, blocks), np.uint8, 0, 2**bits - 1)
    zero = draw.pick(None, pack(points, bits), points.astype(dtype))
    used = np.full((rows, blocks), 2 ** (bits - 1)) if zero is None else points
    weights = (codes.astype(np.float64) - used[..., None]) * scales.astype(np.float64)[..., None]
    a, bias = draw.floats((*draw.shape(draw.pick(1, 2)), columns), dtype), draw.optional(draw.floats((rows,), dtype))
    result = a.astype(np.float64) @ weights.reshape(rows, -1)[:, :columns].T
    result = result + (0 if bias is None else bias.astype(np.float64))
    attributes = {"K": columns, "N": rows, "bits": bits, "block_size": block, "accuracy_level": draw.pick(0, 1)}
    return NodeCase([a, pack(codes, bits), scales, zero, None, bias], attributes, expected=[result.astype(dtype)])


def matmul_bnb4(draw: Draw) -> NodeCase:
    rows, columns, block = draw.size(least=1), draw.pick(2, 16, 24, 64), draw.pick(16, 32)
    packed = draw.ints(((rows * columns + 1) // 2,), np.uint8)
    largest = draw.floats((-(-rows * columns // block),), low=0.1, high=2)
    inputs = [draw.floats((*draw.shape(draw.pick(1, 2)), columns)), packed, largest]
    return NodeCase(inputs, {"K": columns, "N": rows, "block_size": block, "quant_type": draw.pick(0, 1)})


def gather_block_quantized(draw: Draw) -> NodeCase:
    bits, block = draw.pick(4, 8), 16
    rows, blocks = draw.size(least=1), draw.size(least=1, most=3)
    data = pack(draw.ints((rows, blocks * block), np.uint8, 0, 2**bits - 1), bits)
    zero = pack(draw.ints((rows, blocks), np.uint8, 0, 2**bits - 1), bits)
    indices = draw.ints(draw.shape(draw.pick(0, 1, 2)), draw.pick(np.int32, np.int64), -rows, rows - 1)
    inputs = [data, indices, draw.scale((rows, blocks)), draw.optional(zero)]
    constants = (0, 2) if inputs[3] is None else (0, 2, 3)
    return NodeCase(inputs, {"bits": bits, "block_size": block}, constants=constants)


# -- quantized elementwise -------------------------------------------------------------------------------------------


def quantized_binary(draw: Draw) -> NodeCase:
    dtype, shape = draw.pick(*EIGHT_BITS), draw.shape()
    other = tuple(1 if draw.chance(0.3) else size for size in shape)[draw.pick(0, 0, 1) :]
    shapes = draw.pick((shape, other), (other, shape))
    inputs: list[Array | None] = []
    for operand in shapes:
        inputs += [draw.ints(operand, dtype), draw.scale(), draw.optional(draw.ints((), dtype), 0.95)]
    return NodeCase([*inputs, draw.scale(), draw.optional(draw.ints((), dtype), 0.95)], steps=1)


def _quantized_unary(draw: Draw, shape: Sequence[int], dtype: Any) -> list[Array | None]:
    zeros = [draw.optional(draw.ints((), dtype), 0.95) for _ in range(2)]
    return [draw.ints(shape, dtype), draw.scale(), zeros[0], draw.scale(), zeros[1]]


def quantized_sigmoid(draw: Draw) -> NodeCase:
    inputs = _quantized_unary(draw, draw.shape(), draw.pick(*EIGHT_BITS))
    return NodeCase(inputs, constants=tuple(n for n in range(1, 5) if inputs[n] is not None), steps=1)


def quantized_leaky_relu(draw: Draw) -> NodeCase:
    case = quantized_sigmoid(draw)
    return NodeCase(case.inputs, {"alpha": draw.pick(0.01, 0.3)}, constants=case.constants, steps=1)


def quantized_softmax(draw: Draw) -> NodeCase:
    shape, dtype = draw.shape(least=1), draw.pick(*EIGHT_BITS)
    inputs = _quantized_unary(draw, shape, dtype)
    inputs[4] = draw.ints((), dtype)
    attributes = {"axis": int(draw.random.integers(-len(shape), len(shape))), "opset": draw.pick(11, 13)}
    return NodeCase(inputs, attributes, constants=tuple(n for n in range(1, 5) if inputs[n] is not None), steps=1)


def quantized_global_average_pool(draw: Draw) -> NodeCase:
    inputs = _quantized_unary(draw, draw.shape(draw.pick(3, 4), least=1), draw.pick(*EIGHT_BITS))
    return NodeCase(inputs, {"channels_last": draw.pick(0, 1)}, steps=1)


def quantized_average_pool(draw: Draw) -> NodeCase:
    spatial = draw.pick(1, 2)
    shape = (draw.size(least=1, most=3), draw.size(least=1, most=4), *(draw.size(least=3) for _ in range(spatial)))
    kernel = [draw.pick(1, 2, 3) for _ in range(spatial)]
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [draw.pick(1, 2) for _ in range(spatial)],
        "pads": [draw.pick(0, min(1, k - 1)) for k in kernel] * 2,
        "count_include_pad": draw.pick(0, 1),
    }
    return NodeCase(_quantized_unary(draw, shape, draw.pick(*EIGHT_BITS)), attributes, steps=1)


def quantized_where(draw: Draw) -> NodeCase:
    dtype, shape = draw.pick(*EIGHT_BITS), draw.shape()
    parts: list[Array | None] = [draw.ints(shape, np.int64, 0, 1).astype(bool)]
    for _ in range(2):
        operand = tuple(1 if draw.chance(0.3) else size for size in shape)
        parts += [draw.ints(operand, dtype), draw.scale(), draw.ints((), dtype)]
    return NodeCase([*parts, draw.scale(), draw.ints((), dtype)], steps=1)


def quantized_concat(draw: Draw) -> NodeCase:
    dtype, shape = draw.pick(*EIGHT_BITS), list(draw.shape())
    axis = int(draw.random.integers(len(shape)))
    inputs: list[Array | None] = [draw.scale(), draw.ints((), dtype)]
    for _ in range(draw.pick(1, 2, 3)):
        shape[axis] = draw.size()
        inputs += [draw.ints(shape, dtype), draw.scale(), draw.ints((), dtype)]
    constants = tuple(number for number in range(len(inputs)) if number < 2 or number % 3 != 2)
    return NodeCase(inputs, {"axis": draw.pick(axis, axis - len(shape))}, constants=constants, steps=1)


def quantize_linear(draw: Draw) -> NodeCase:
    shape, dtype = draw.shape(), draw.pick(np.uint8, np.int8, np.uint16, np.int16)
    axis = draw.pick(None, *range(-len(shape), len(shape)))
    size = () if axis is None else (shape[axis],)
    inputs = [draw.floats(shape), draw.scale(size), draw.ints(size, dtype, 0, 9)]
    return NodeCase(inputs, {} if axis is None else {"axis": axis}, steps=1)


def dequantize_linear(draw: Draw) -> NodeCase:
    case = quantize_linear(draw)
    x, scale, zero = case.inputs
    assert x is not None
    assert zero is not None
    return NodeCase([draw.ints(x.shape, zero.dtype), scale, zero], case.attributes)


# -- convolution and pooling -----------------------------------------------------------------------------------------


def _window(draw: Draw, spatial: int) -> dict[str, Any]:
    kernel = [draw.pick(1, 2, 3) for _ in range(spatial)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw.pick(1, 2) for _ in range(spatial)]}
    if draw.chance():
        attributes["pads"] = [draw.pick(0, k - 1) for k in kernel * 2]
    elif draw.chance(0.3):
        attributes["auto_pad"] = draw.pick("SAME_UPPER", "SAME_LOWER", "VALID")
    return attributes


def fused_conv(draw: Draw) -> NodeCase:
    spatial, group = draw.pick(1, 2), draw.pick(1, 1, 2)
    attributes = {**_window(draw, spatial), "group": group}
    attributes["activation"] = draw.pick("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid")
    match attributes["activation"]:
        case "LeakyRelu":
            attributes["activation_params"] = [0.1]
        case "Clip":
            attributes["activation_params"] = [-0.5, 0.5]
        case "HardSigmoid":
            attributes["activation_params"] = [0.2, 0.5]
    channels, features = group * draw.size(least=1, most=3), group * draw.size(least=1, most=3)
    x = draw.floats((draw.size(most=3), channels, *(draw.size(least=4) for _ in range(spatial))))
    w = draw.floats((features, channels // group, *attributes["kernel_shape"]))
    return NodeCase([x, w, draw.optional(draw.floats((features,)))], attributes)


def nhwc_max_pool(draw: Draw) -> NodeCase:
    shape = (draw.size(least=1, most=3), draw.size(least=4), draw.size(least=4), draw.size(least=1))
    return NodeCase([draw.ints(shape, draw.pick(*EIGHT_BITS))], _window(draw, 2))


def quantized_conv(draw: Draw) -> NodeCase:
    spatial, group, dtype = draw.pick(1, 2), draw.pick(1, 1, 2), draw.pick(*EIGHT_BITS)
    attributes = {**_window(draw, spatial), "group": group, "channels_last": int(draw.chance(0.3))}
    channels, features = group * draw.size(least=1, most=3), group * draw.size(least=1, most=3)
    sizes = [draw.size(least=4) for _ in range(spatial)]
    x = (1, *sizes, channels) if attributes["channels_last"] else (1, channels, *sizes)
    per = draw.pick((), (features,))
    inputs = [
        draw.ints(x, dtype),
        draw.scale(),
        draw.ints((), dtype),
        draw.ints((features, channels // group, *attributes["kernel_shape"]), np.int8),
        draw.scale(per),
        np.zeros(per, np.int8),
        draw.scale(),
        draw.ints((), dtype),
        draw.optional(draw.ints((features,), np.int32, -500, 500)),
    ]
    return NodeCase(inputs, attributes, constants=(1, 2, 3, 4, 5, 6, 7), steps=1)


def conv_transpose_with_dynamic_pads(draw: Draw) -> NodeCase:
    x = draw.floats((draw.size(least=1, most=2), 2, draw.size(least=3), draw.size(least=3)))
    kernel = [draw.pick(2, 3), draw.pick(2, 3)]
    pads = np.array([draw.pick(0, 1) for _ in range(4)], np.int64)
    w = draw.floats((2, draw.size(least=1, most=3), *kernel))
    bias = draw.optional(draw.floats((w.shape[1],)))
    attributes = {"kernel_shape": kernel, "strides": [draw.pick(1, 2), draw.pick(1, 2)]}
    return NodeCase([x, w, pads, bias], attributes)


def causal_conv_with_state(draw: Draw) -> NodeCase:
    batch, channels, length, kernel = draw.size(), draw.size(least=1), draw.size(least=1), draw.size(least=1, most=4)
    inputs = [
        draw.floats((batch, channels, length)),
        draw.floats((channels, 1, kernel)),
        draw.optional(draw.floats((channels,))),
        draw.optional(draw.floats((batch, channels, kernel - 1))),
    ]
    return NodeCase(inputs, {"activation": draw.pick("none", "silu", "swish")}, 2)


# -- movement and the rest -------------------------------------------------------------------------------------------


def trilu(draw: Draw) -> NodeCase:
    k = draw.optional(np.array(draw.pick(-9, -2, -1, 0, 1, 2, 9), np.int64))
    dtype = draw.pick(np.float32, np.int64, np.float64)
    x = draw.floats(draw.shape(draw.pick(2, 3)), low=-9, high=9).astype(dtype)
    return NodeCase([x, k], {"upper": draw.pick(0, 1)})


def inverse(draw: Draw) -> NodeCase:
    size, dtype = draw.size(least=1, most=6), draw.pick(np.float32, np.float64)
    shape = (*draw.shape(draw.pick(0, 1, 2)), size, size)
    x = draw.floats(shape, dtype) + 4 * np.eye(size, dtype=dtype)
    return NodeCase([x.astype(dtype)])


def cdist(draw: Draw) -> NodeCase:
    width, dtype = draw.size(least=1), draw.pick(np.float32, np.float64)
    a, b = (draw.floats((draw.size(least=1), width), dtype) for _ in range(2))
    metric = draw.pick("euclidean", "sqeuclidean")
    # distances near 0 lose half of their digits in the expansion that both engines use
    return NodeCase([a, b], {"metric": metric}, tolerance=1e-3)


def expand_dims(draw: Draw) -> NodeCase:
    shape = draw.shape()
    axis = int(draw.random.integers(-len(shape) - 1, len(shape) + 1))
    return NodeCase([draw.floats(shape), np.array(axis, np.int32)], constants=(1,))


def gather_nd(draw: Draw) -> NodeCase:
    shape = draw.shape(draw.pick(1, 2, 3), least=1)
    depth = int(draw.random.integers(1, len(shape) + 1))
    batch, dtype = draw.shape(draw.pick(1, 2)), draw.pick(np.int32, np.int64)
    columns = [draw.ints(batch, dtype, 0, size - 1) for size in shape[:depth]]
    return NodeCase([draw.floats(shape), np.stack(columns, -1)])


def pad(draw: Draw) -> NodeCase:
    shape, mode = draw.shape(draw.pick(1, 2, 3), least=2), draw.pick("constant", "reflect", "edge")
    pads = draw.ints((2 * len(shape),), np.int64, -1 if mode == "constant" else 0, 1)
    value = draw.optional(np.array([1.5], np.float32))
    return NodeCase([draw.floats(shape), pads, value], {"mode": mode})


def range_(draw: Draw) -> NodeCase:
    dtype = draw.pick(np.float32, np.float64, np.int16, np.int32, np.int64)
    start, limit = (np.array(draw.pick(-3, 0, 1, 5, 9), dtype) for _ in range(2))
    return NodeCase([start, limit, draw.optional(np.array(draw.pick(-2, 1, 3), dtype))])


def unique(draw: Draw) -> NodeCase:
    return NodeCase([draw.ints((draw.size(),), np.int64, 0, 4).astype(np.float32)], outputs=3)


def unfold(draw: Draw) -> NodeCase:
    shape = draw.shape(least=1)
    dim = int(draw.random.integers(-len(shape), len(shape)))
    size = int(draw.random.integers(1, shape[dim] + 1))
    return NodeCase([draw.floats(shape)], {"dim": dim, "size": size, "step": draw.pick(1, 2, 3)})


def grid_sample(draw: Draw) -> NodeCase:
    batch = draw.size(least=1, most=3)
    x = draw.floats((batch, draw.size(least=1, most=3), draw.size(least=1), draw.size(least=1)))
    grid = draw.floats((batch, draw.size(), draw.size(), 2), low=-1.3, high=1.3)
    attributes = {
        "mode": draw.pick("bilinear", "nearest", "bicubic"),
        "padding_mode": draw.pick("zeros", "border", "reflection"),
        "align_corners": draw.pick(0, 1),
    }
    return NodeCase([x, grid], attributes, tolerance=1e-3)


def crop_and_resize(draw: Draw) -> NodeCase:
    batch, count = draw.size(least=1, most=3), draw.size()
    x = draw.floats((batch, draw.size(least=1, most=3), draw.size(least=2), draw.size(least=2)))
    rois = draw.floats((count, 4), low=-0.2, high=1.2)
    crop = draw.ints((2,), np.int32, 1, 5)
    attributes = {"mode": draw.pick("bilinear", "nearest"), "extrapolation_value": draw.pick(0.0, 0.5)}
    return NodeCase([x, rois, draw.ints((count,), np.int32, 0, batch - 1), crop], attributes, tolerance=1e-3)


def maxpool_with_mask(draw: Draw) -> NodeCase:
    spatial = draw.pick(1, 2)
    shape = (draw.size(least=1, most=2), draw.size(least=1, most=3), *(draw.size(least=4) for _ in range(spatial)))
    attributes = _window(draw, spatial)
    attributes.pop("auto_pad", None)
    return NodeCase([draw.floats(shape), np.ones((1, 1, *shape[2:]), np.int32)], attributes)


def murmur_hash(draw: Draw) -> NodeCase:
    shape, dtype = draw.shape(), draw.pick(np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64, object)
    if dtype is object:
        texts = [draw.pick("", "a", "ab", "abc", "abcd", "naïve café") for _ in range(int(np.prod(shape)))]
        x = np.array(texts, object).reshape(shape)
    else:
        x = draw.ints(shape, np.int64, 0, 1000).astype(dtype)
    return NodeCase([x], {"positive": draw.pick(0, 1), "seed": draw.pick(0, 42)})


def n_gram_repeat_block(draw: Draw) -> NodeCase:
    batch, length, size = draw.size(least=1), draw.size(least=1), draw.pick(1, 2, 3)
    return NodeCase([draw.ints((batch, length), np.int64, 0, 4), draw.floats((batch, 6))], {"ngram_size": size})


NOT_DRAWN = {
    **dict.fromkeys(
        (
            "BiasAdd", "BiasDropout", "BiasSoftmax", "BiasSplitGelu", "ComplexMul", "ComplexMulConj",
            "FusedMatMulActivation", "GatedRelativePositionBias", "GemmFastGelu", "GemmaRotaryEmbedding", "GroupNorm",
            "Irfft", "IsAllFinite", "MulInteger", "NhwcConv", "NhwcFusedConv", "PackedAttention",
            "PackedMultiHeadAttention", "QLinearReduceMean", "ReduceSumInteger", "RelativePositionBias",
            "RemovePadding", "RestorePadding", "Rfft", "SkipGroupNorm", "Solve", "TorchEmbedding",
        ),
        "onnxruntime's CPU has no kernel; tests/opset compares with numpy",
    ),
    **dict.fromkeys(
        ("GatedDeltaNet", "PagedAttention", "VarlenCausalConvWithState"),
        "onnxruntime's CPU has no kernel for these forms; tests/opset compares with numpy in float64",
    ),
    **dict.fromkeys(
        ("DecoderMaskedSelfAttention", "MatMulNBitsMlp", "MatMulNBitsQkv"),
        "tests/opset compares with the ops that it joins",
    ),
    **dict.fromkeys(
        (
            "BranchwiseRMSNorm", "EngramGate", "GatedAdd", "GatedRMSNorm", "HyperConnectionPostMix",
            "HyperConnectionPreMix", "LinearAttentionGate", "ScaledSiLU", "SparseAttention",
        ),
        "tests/opset draws its cases and compares with onnxruntime",
    ),
    "DynamicQuantizeLSTM": "rounds states to 8 bits in every step, where a last bit of difference grows",
    "Tokenizer": "its regular expressions are compared in tests/opset",
    "WordConvEmbedding": "onnxruntime reads out of bounds where words are shorter than the window",
}  # fmt: skip
GENERATORS: dict[str, Generator] = {
    "BiasGelu": bias_gelu,
    "CDist": cdist,
    "CausalConvWithState": causal_conv_with_state,
    "ConvTransposeWithDynamicPads": conv_transpose_with_dynamic_pads,
    "CropAndResize": crop_and_resize,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "EmbedLayerNormalization": embed_layer_normalization,
    "ExpandDims": expand_dims,
    "FastGelu": fast_gelu,
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_matmul_of_batches,
    "GatherBlockQuantized": gather_block_quantized,
    "GatherND": gather_nd,
    "Gelu": gelu,
    "GridSample": grid_sample,
    "Inverse": inverse,
    "MatMulBnb4": matmul_bnb4,
    "MatMulInteger16": matmul_integer_16,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "MatMulNBits": matmul_n_bits,
    "MaxpoolWithMask": maxpool_with_mask,
    "MurmurHash3": murmur_hash,
    "NGramRepeatBlock": n_gram_repeat_block,
    "NhwcMaxPool": nhwc_max_pool,
    "Pad": pad,
    "QEmbedLayerNormalization": quantized_embed_layer_normalization,
    "QGemm": quantized_gemm,
    "QLinearAdd": quantized_binary,
    "QLinearAveragePool": quantized_average_pool,
    "QLinearConcat": quantized_concat,
    "QLinearConv": quantized_conv,
    "QLinearGlobalAveragePool": quantized_global_average_pool,
    "QLinearLeakyRelu": quantized_leaky_relu,
    "QLinearMul": quantized_binary,
    "QLinearSigmoid": quantized_sigmoid,
    "QLinearSoftmax": quantized_softmax,
    "QLinearWhere": quantized_where,
    "QuantizeLinear": quantize_linear,
    "QuickGelu": quick_gelu,
    "Range": range_,
    "SkipLayerNormalization": skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": skip_simplified,
    "TransposeMatMul": fused_matmul,
    "Trilu": trilu,
    "UnfoldTensor": unfold,
    "Unique": unique,
}
