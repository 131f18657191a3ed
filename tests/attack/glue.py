"""Pieces of random models that stand between layers: elementwise ops, integers, and what moves elements."""

from __future__ import annotations

import numpy as np
from attack.composer import INTS, MOST_ELEMENTS, Composer, Shape
from attack.insertions import BINARY, UNARY
from attack.layers import reduced
from onnx import TensorProto, helper


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
