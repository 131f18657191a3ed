"""Random models out of pieces that real ones have: convolution blocks, attention, recurrent layers, quantized products,
integer arithmetic, and glue between them, with sizes that may be symbolic.

Shapes are tracked for one choice of the symbolic sizes; constants that hold a size are computed by the model where the
size is symbolic, most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from attack.drawn import Draw, as_initializer, described, dtype_of
from attack.mutate import BINARY, UNARY, pick
from attack.regions import Case
from onnx import TensorProto, helper

Random = np.random.Generator
Shape = list[int]
OPSET = 21
MOST_ELEMENTS = 60_000
INTS = ("int64", "int32", "int8", "uint8")


class Composer:
    """A model as it grows."""

    def __init__(self, random: Random, opset: int = OPSET) -> None:
        self.random, self.opset = random, opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self.draws: dict[str, Draw] = {}
        self.feeds: dict[str, Draw] = {}
        self.declared: dict[str, list[int | str]] = {}
        self.values: list[str] = []

    def pick(self, items: Sequence[Any]) -> Any:
        return pick(self.random, items)

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def shape(self, name: str) -> Shape:
        return list(self.draws[name]["shape"])

    def input(self, dtype: str, dims: Sequence[tuple[int, str | None]], **range_: float) -> str:
        name = f"in{len(self.feeds)}"
        seed = int(self.random.integers(1 << 30))
        given = {"dtype": dtype, "shape": [size for size, _ in dims], "seed": seed, "mean": 0.0, "std": 1.0, **range_}
        self.feeds[name] = self.draws[name] = given
        self.declared[name] = [symbol or size for size, symbol in dims]
        self.values.append(name)
        return name

    def constant(self, array: Any) -> str:
        name = f"k{len(self.constants)}"
        self.draws[name] = described(np.asarray(array), int(self.random.integers(1 << 30)))
        self.constants.append(as_initializer(name, self.draws[name]))
        return name

    def weights(self, *shape: int, std: float | None = None, dtype: str = "float32") -> str:
        deviation = std if std is not None else float(np.prod(shape[1:]) or 1) ** -0.5
        return self.constant(self.random.normal(0, deviation, shape).astype(dtype_of(dtype)))

    def ints(self, *numbers: int) -> str:
        return self.constant(np.int64(numbers))

    def emit(
        self, op: str, inputs: Sequence[str], shape: Sequence[int], dtype: str = "float32", **attributes: Any
    ) -> str:
        return self.emit_many(op, inputs, [(shape, dtype)], **attributes)[0]

    def emit_many(
        self, op: str, inputs: Sequence[str], results: Sequence[tuple[Sequence[int], str]], **attributes: Any
    ) -> list[str]:
        names = [f"v{len(self.draws) + number}" for number in range(len(results))]
        for name, (shape, dtype) in zip(names, results, strict=True):
            seed = {"seed": 0, "mean": 0.0, "std": 1.0}
            self.draws[name] = {"dtype": dtype, "shape": [int(size) for size in shape], **seed}
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        self.values += names
        return names

    def some(self, rank: int | None = None, dtype: str = "float32", least: int = 1) -> str | None:
        """A value of this rank and type, the newer the likelier."""
        fitting = [name for name in self.values if self.draws[name]["dtype"] == dtype
                   and (rank is None or len(self.shape(name)) == rank) and len(self.shape(name)) >= least
                   and np.prod(self.shape(name)) <= MOST_ELEMENTS]  # fmt: skip
        if not fitting:
            return None
        if self.chance(0.6):
            fitting = fitting[-3:]
        return str(self.pick(fitting))

    def case(self, name: str) -> Case:
        read = {used for node in self.nodes for used in node.input}
        outputs = [made for made in self.values if made not in read and made not in self.feeds] or self.values[-1:]
        model = onnx.ModelProto(ir_version=10)
        model.opset_import.append(helper.make_opsetid("", self.opset))
        model.graph.name = "composed"
        model.graph.node.extend(self.nodes)
        model.graph.initializer.extend(self.constants)
        for entry, shape in self.declared.items():
            kind = helper.np_dtype_to_tensor_dtype(dtype_of(self.feeds[entry]["dtype"]))
            model.graph.input.append(helper.make_tensor_value_info(entry, kind, shape))
        model.graph.output.extend(onnx.ValueInfoProto(name=entry) for entry in outputs)
        return Case(name, model, dict(self.feeds), dict(self.draws))


def composed(random: Random, count: int) -> tuple[Case, dict[str, list[int | str]]]:
    """A model of about so many pieces, and how its inputs are declared."""
    composer = Composer(random, int(pick(random, (13, 17, 18, 20, 21, 21, 22, 23))))
    kind = pick(random, ("image", "image", "sequence", "sequence", "recurrent", "vector", "integers", "mixed"))
    symbolic = random.random() < 0.6

    def dim(size: int, name: str) -> tuple[int, str | None]:
        return size, name if symbolic and random.random() < 0.7 else None

    if kind in ("image", "mixed"):
        side = int(random.integers(4, 20))
        channels = int(pick(random, (1, 3, 4, 8, 16, 17, 32)))
        width = side if random.random() < 0.5 else int(random.integers(3, 24))
        composer.input(
            "float32", [dim(int(random.integers(1, 4)), "n"), (channels, None), dim(side, "h"), dim(width, "w")]
        )
    if kind in ("sequence", "recurrent", "mixed"):
        width = int(pick(random, (4, 6, 8, 16, 24, 32)))
        composer.input(
            "float32", [dim(int(random.integers(1, 4)), "b"), dim(int(random.integers(1, 13)), "s"), (width, None)]
        )
    if kind == "vector":
        composer.input("float32", [dim(int(random.integers(1, 9)), "n"), (int(random.integers(1, 33)), None)])
        composer.input("float32", [dim(int(random.integers(1, 9)), "m")])
    if kind == "integers":
        dtype = str(pick(random, INTS))
        composer.input(
            dtype, [dim(int(random.integers(1, 6)), "n"), dim(int(random.integers(1, 9)), "m")], low=0, high=20
        )
        composer.input("float32", [dim(int(random.integers(1, 6)), "n"), (int(random.integers(1, 9)), None)])
    pieces = PIECES[kind]
    done = []
    for _ in range(6 * count):
        piece = pick(random, pieces if random.random() < 0.7 else GLUE)
        before = len(composer.nodes)
        piece(composer)
        if len(composer.nodes) > before:
            done.append(piece.__name__)
        if len(done) == count:
            break
    if not composer.nodes:
        unary(composer)
    return composer.case(f"{kind} {' '.join(done)}"), composer.declared


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
        return
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


def integers(c: Composer) -> None:
    dtype = str(c.pick(INTS))
    x = c.some(None, dtype)
    if x is None:
        source = c.some()
        if source is None:
            return
        scaled = c.emit("Mul", [source, c.constant(np.float32(5))], c.shape(source))
        if dtype == "uint8":
            scaled = c.emit("Abs", [scaled], c.shape(source))
        c.emit("Cast", [scaled], c.shape(source), dtype, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        return
    shape = c.shape(x)
    few = c.constant(c.random.integers(1, 6, shape[-1:]).astype(dtype))
    match c.pick(
        ("arithmetic", "mod", "compare", "cast", "onehot", "cumsum", "max", "where", "bits", "div", "embed", "sum")
    ):
        case "arithmetic":
            c.emit(c.pick(("Add", "Sub", "Mul")), [x, few], shape, dtype)
        case "mod":
            c.emit("Mod", [x, few], shape, dtype, fmod=int(c.random.integers(2)))
        case "div":
            c.emit("Div", [x, few], shape, dtype)
        case "compare":
            condition = c.emit(c.pick(("Less", "Equal", "Greater")), [x, few], shape, "bool")
            c.emit("Cast", [condition], shape, to=TensorProto.FLOAT)
        case "cast":
            other = str(c.pick((*INTS, "float32")))
            c.emit("Cast", [x], shape, other, to=helper.np_dtype_to_tensor_dtype(np.dtype(other)))
        case "onehot" if dtype in ("int64", "int32"):
            depth = c.constant(np.int64(7))
            c.emit("OneHot", [x, depth, c.constant(np.float32([0, 1]))], [*shape, 7])
        case "cumsum" if dtype in ("int64", "int32") and shape:
            c.emit("CumSum", [x, c.constant(np.int64(len(shape) - 1))], shape, dtype)
        case "max" if dtype != "int8" and shape:
            c.emit(c.pick(("Max", "Min")), [x, few], shape, dtype)
        case "where":
            condition = c.emit("Less", [x, few], shape, "bool")
            c.emit("Where", [condition, x, few], shape, dtype)
        case "bits" if dtype == "uint8":
            c.emit("BitShift", [x, few], shape, dtype, direction=c.pick(("LEFT", "RIGHT")))
        case "embed" if dtype in ("int64", "int32") and len(shape) <= 2:
            bounded = c.emit("Mod", [x, c.constant(np.array(9, dtype))], shape, dtype)
            c.emit("Gather", [c.weights(9, 8, std=1.0), bounded], [*shape, 8])
        case "sum" if dtype in ("int64", "int32") and shape:
            c.emit("ReduceSum", [x, c.ints(-1)], [*shape[:-1], 1], dtype)


def unary(c: Composer) -> None:
    x = c.some()
    op = c.pick(UNARY)
    late = {"HardSwish": 14, "Gelu": 20, "Mish": 18}
    if x is not None and c.opset >= late.get(op, 0):
        c.emit(op, [x], c.shape(x))


def binary(c: Composer) -> None:
    x = c.some()
    if x is None:
        return
    shape = c.shape(x)
    fitting = [name for name in c.values if c.draws[name]["dtype"] == "float32" and _broadcasts(c.shape(name), shape)]
    y = c.pick(fitting) if c.chance(0.7) else c.constant(c.random.normal(1, 0.3, shape[-1:]).astype(np.float32))
    result = list(np.broadcast_shapes(tuple(shape), tuple(c.shape(y))))
    if np.prod(result) <= MOST_ELEMENTS:
        c.emit(c.pick(BINARY[:-2]), [x, y] if c.chance(0.5) else [y, x], result)


def _broadcasts(first: Shape, second: Shape) -> bool:
    return all(one == other or 1 in (one, other) for one, other in zip(reversed(first), reversed(second)))


def transpose(c: Composer) -> None:
    x = c.some(None, least=2)
    if x is not None:
        order = [int(axis) for axis in c.random.permutation(len(c.shape(x)))]
        c.emit("Transpose", [x], [c.shape(x)[axis] for axis in order], perm=order)


def reshape(c: Composer) -> None:
    x = c.some(None, least=2)
    if x is None or 0 in c.shape(x):
        return
    shape = c.shape(x)
    match int(c.random.integers(4)):
        case 0:  # flat behind the first axis
            c.emit("Reshape", [x, c.ints(0, -1)], [shape[0], int(np.prod(shape[1:]))])
        case 1:
            axis = int(c.random.integers(len(shape) + 1))
            c.emit("Flatten", [x], [int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))], axis=axis)
        case 2:  # the first two axes are one
            c.emit("Reshape", [x, c.ints(-1, *shape[2:])], [shape[0] * shape[1], *shape[2:]])
        case 3:  # to sizes that the model computes
            sizes = c.emit("Shape", [x], [len(shape)], "int64")
            first = c.emit("Slice", [sizes, c.ints(0), c.ints(1), c.ints(0)], [1], "int64")
            target = c.emit("Concat", [first, c.ints(-1)], [2], "int64", axis=0)
            c.emit("Reshape", [x, target], [shape[0], int(np.prod(shape[1:]))])


def unit(c: Composer) -> None:
    x = c.some()
    if x is None or len(c.shape(x)) > 4:
        return
    shape = c.shape(x)
    axis = int(c.random.integers(len(shape) + 1))
    c.emit("Unsqueeze", [x, c.ints(axis)], [*shape[:axis], 1, *shape[axis:]])


def cut(c: Composer) -> None:
    x = c.some()
    if x is None:
        return
    shape = c.shape(x)
    axis = int(c.random.integers(len(shape)))
    step = int(c.pick((1, 1, 2, -1, -2)))
    start, end = (int(c.random.integers(-shape[axis] - 1, shape[axis] + 2)) for _ in range(2))
    count = len(range(shape[axis])[start:end:step])
    if count:
        numbers = [c.ints(number) for number in (start, end, axis, step)]
        c.emit("Slice", [x, *numbers], [*shape[:axis], count, *shape[axis + 1 :]])


def pad(c: Composer) -> None:
    x = c.some()
    if x is None or 0 in c.shape(x):
        return
    shape = c.shape(x)
    mode = c.pick(("constant", "edge", "reflect"))
    pads = [[int(c.random.integers(0, 3 if mode != "reflect" else min(size, 3))) for size in shape] for _ in range(2)]
    c.emit("Pad", [x, c.ints(*pads[0], *pads[1])], [size + a + b for size, a, b in zip(shape, *pads)], mode=mode)


def concat(c: Composer) -> None:
    x = c.some()
    if x is None:
        return
    shape = c.shape(x)
    axis = int(c.random.integers(len(shape)))
    rest = [size for at, size in enumerate(shape) if at != axis]
    fitting = [name for name in c.values if c.draws[name]["dtype"] == "float32" and len(c.shape(name)) == len(shape)
               and [size for at, size in enumerate(c.shape(name)) if at != axis] == rest]  # fmt: skip
    parts = [x, *(str(c.pick(fitting)) for _ in range(int(c.random.integers(1, 3))))]
    total = sum(c.shape(part)[axis] for part in parts)
    c.emit("Concat", parts, [*shape[:axis], total, *shape[axis + 1 :]], axis=axis)


def split(c: Composer) -> None:
    x = c.some()
    if x is None:
        return
    shape = c.shape(x)
    axis = int(c.random.integers(len(shape)))
    if shape[axis] < 2:
        return
    first = int(c.random.integers(1, shape[axis]))
    sizes = [first, shape[axis] - first]
    results = [([*shape[:axis], size, *shape[axis + 1 :]], "float32") for size in sizes]
    c.emit_many("Split", [x, c.ints(*sizes)], results, axis=axis)


def reduction(c: Composer) -> None:
    x = c.some()
    if x is None:
        return
    axes = sorted({int(axis) for axis in c.random.integers(0, len(c.shape(x)), int(c.random.integers(1, 3)))})
    op = c.pick(
        ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceL2", "ReduceL1", "ReduceLogSumExp", "ReduceProd")
    )
    reduced(c, op, x, axes, c.chance(0.6))


def softmax(c: Composer) -> None:
    x = c.some()
    if x is not None:
        axis = int(c.random.integers(-1, len(c.shape(x))))
        c.emit(c.pick(("Softmax", "LogSoftmax", "Hardmax")), [x], c.shape(x), axis=axis)


def gather(c: Composer) -> None:
    x = c.some()
    if x is None:
        return
    shape = c.shape(x)
    axis = int(c.random.integers(len(shape)))
    if shape[axis] == 0:
        return
    count = [int(size) for size in c.random.integers(1, 4, int(c.random.integers(0, 3)))]
    indices = np.asarray(c.random.integers(-shape[axis], shape[axis], count)).astype(np.int64)
    c.emit("Gather", [x, c.constant(indices)], [*shape[:axis], *count, *shape[axis + 1 :]], axis=axis)


def selection(c: Composer) -> None:
    x = c.some()
    if x is None:
        return
    shape = c.shape(x)
    axis = int(c.random.integers(len(shape)))
    if shape[axis] == 0:
        return
    if c.chance(0.5):
        keep = c.chance(0.5)
        result = [*shape[:axis], *([1] if keep else []), *shape[axis + 1 :]]
        c.emit(c.pick(("ArgMax", "ArgMin")), [x], result, "int64", axis=axis, keepdims=int(keep))
        return
    k = int(c.random.integers(1, shape[axis] + 1))
    result = [*shape[:axis], k, *shape[axis + 1 :]]
    c.emit_many(
        "TopK", [x, c.ints(k)], [(result, "float32"), (result, "int64")], axis=axis, largest=int(c.random.integers(2))
    )


def scatter(c: Composer) -> None:
    x = c.some()
    if x is None or 0 in c.shape(x) or c.opset < 16:
        return
    shape = c.shape(x)
    axis = int(c.random.integers(len(shape)))
    few = [int(c.random.integers(1, size + 1)) for size in shape]
    if np.prod(few) > 2000:
        return
    indices = c.random.integers(0, shape[axis], few)
    how = c.pick(("none", "add", "mul"))
    if how == "none":  # each place once
        order = [c.random.permutation(shape[axis])[: few[axis]] for _ in range(int(np.prod(few) // few[axis]))]
        rest = [size for at, size in enumerate(few) if at != axis]
        indices = np.moveaxis(np.array(order).reshape(*rest, few[axis]), -1, axis)
    updates = c.weights(*few, std=1.0)
    c.emit("ScatterElements", [x, c.constant(np.int64(indices)), updates], shape, axis=axis, reduction=how)


def where(c: Composer) -> None:
    x = c.some()
    if x is None:
        return
    shape = c.shape(x)
    condition = c.emit("Greater", [x, c.constant(np.float32(0.1))], shape, "bool")
    c.emit("Where", [condition, x, c.constant(np.float32(c.pick((0.25, -np.inf))))], shape)


def cumulated(c: Composer) -> None:
    x = c.some()
    if x is not None:
        axis = c.constant(np.int64(c.random.integers(len(c.shape(x)))))
        c.emit("CumSum", [x, axis], c.shape(x), reverse=int(c.random.integers(2)), exclusive=int(c.random.integers(2)))


def product_of_two(c: Composer) -> None:
    """Two values of the model multiplied, one turned over."""
    x = c.some(None, least=2)
    if x is None or len(c.shape(x)) > 4:
        return
    shape = c.shape(x)
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    y = c.emit("Transpose", [x], [shape[axis] for axis in order], perm=order)
    c.emit("MatMul", [x, y], [*shape[:-1], shape[-2]])


def shuffled(c: Composer) -> None:
    x = c.some(4)
    if x is None:
        return
    n, channels, height, width = c.shape(x)
    if channels % 4 == 0 and c.chance(0.5):
        c.emit("DepthToSpace", [x], [n, channels // 4, 2 * height, 2 * width], blocksize=2, mode=c.pick(("DCR", "CRD")))
    elif height % 2 == 0 and width % 2 == 0 and c.chance(0.5):
        c.emit("SpaceToDepth", [x], [n, channels * 4, height // 2, width // 2], blocksize=2)
    elif channels % 2 == 0:
        y = c.emit("Reshape", [x, c.ints(0, 2, channels // 2, height, width)], [n, 2, channels // 2, height, width])
        y = c.emit("Transpose", [y], [n, channels // 2, 2, height, width], perm=[0, 2, 1, 3, 4])
        c.emit("Reshape", [y, c.ints(0, channels, height, width)], [n, channels, height, width])


Piece = Callable[[Composer], None]
GLUE: tuple[Piece, ...] = (
    unary, unary, binary, binary, transpose, reshape, unit, cut, pad, concat, split, reduction, softmax, gather, selection,
    scatter, where, cumulated, product_of_two, integers, normalized,
)  # fmt: skip
IMAGE: tuple[Piece, ...] = (
    convolution, convolution, convolution, transposed, pool, squeeze_excite, resize, normalized, concat, quantized,
    shuffled, binary,
)  # fmt: skip
SEQUENCE: tuple[Piece, ...] = (attention, attention, linear, normalized, linear, quantized, binary)
PIECES: dict[str, tuple[Piece, ...]] = {
    "image": IMAGE,
    "sequence": SEQUENCE,
    "recurrent": (recurrent, recurrent, linear, normalized),
    "vector": (linear, quantized, unary, reduction, binary),
    "integers": (integers, integers, integers, linear),
    "mixed": (*IMAGE, *SEQUENCE, recurrent),
}
