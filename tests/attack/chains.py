"""Chains of the ops that optimisers rewrite, in opsets from 7 on: constants of all magnitudes, axes of both signs.

Each node is written in the form of its opset. Shapes are tracked, so that most chains are valid models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from attack.composer import Composer, Random
from attack.edits import pick
from attack.regions import Case
from onnx import helper

OPSETS = (7, 8, 9, 10, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 22)
FLOATS = ("float32", "float32", "float16", "float64")
NUMBERS = (
    1e-4,
    1e-3,
    0.1,
    0.5,
    1.0,
    2.0,
    3.0,
    255.0,
    1e4,
    65504.0,
    6.1035e-5,
    1e30,
    1e-30,
    3e38,
    1.2e-38,
    0.0,
    12582912.0,
)
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare", "ReduceProd")
EXTREMES = {
    "float16": (1e-4, 1e-3, 300.0, 2048.0),
    "float32": (1e-30, 1e30, 1e30),
    "float64": (1e-200, 1e200, 1e30),
}
"""Numbers whose products leave the range of a type, or that absorb what they are added to."""
LARGEST = 4096  # elements of a value


class Chain(Composer):
    """A model that grows at its last value."""

    def __init__(self, random: Random, dtype: str = "") -> None:
        super().__init__(random, int(pick(random, OPSETS)))
        self.dtype = dtype or str(pick(random, FLOATS))
        rank = int(pick(random, (2, 2, 3, 4, 4)))
        sizes = [int(random.integers(1, 7)) for _ in range(rank)]
        sizes[2:] = [int(random.integers(1, 10)) for _ in sizes[2:]]
        spread = float(pick(random, (1.0, 1.0, 30.0, {"float16": 1e4, "float32": 1e30, "float64": 1e200}[self.dtype])))
        spreads = {"std": spread, "low": -4 * spread, "high": 4 * spread}
        self.last = self.input(self.dtype, [(size, None) for size in sizes], **spreads)

    @property
    def sizes(self) -> list[int]:
        return self.shape(self.last)

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def then(self, op: str, others: Sequence[str], shape: Sequence[int], **attributes: Any) -> None:
        self.last = self.emit(op, [self.last, *others], shape, self.dtype, **attributes)

    def number(self) -> float:
        """A constant that the type holds, as a float."""
        sign = -1.0 if self.chance(0.2) else 1.0
        fitting = [each for each in NUMBERS if each <= float(np.finfo(self.dtype).max)]
        return sign * float(self.pick(fitting if self.chance(0.5) else [0.5, 1.0, 2.0, 3.0, 255.0, 0.1, 1e-3]))

    def array(self, *shape: int) -> str:
        spread = float(self.pick((1.0, 1.0, 1e-3, 30.0)))
        return self.constant((self.random.standard_normal(shape) * spread).astype(self.dtype))

    def signed(self, axis: int, rank: int) -> int:
        return axis - rank if self.opset >= 11 and self.chance(0.4) else axis

    def operand(self) -> str:
        """A constant that broadcasts to the last value."""
        shape: list[int] = list(self.pick(([], [], [1], self.sizes[-1:], [1] * self.rank, self.sizes)))
        if self.rank > 1 and self.chance(0.3):
            shape = [self.sizes[1], *[1] * (self.rank - 2)]
        if self.chance(0.7) or not shape:
            return self.constant(np.full(shape, self.number(), self.dtype))
        return self.array(*shape)

    def axes(self, op: str, axes: Sequence[int], since: int, **attributes: Any) -> tuple[list[str], dict[str, Any]]:
        """Axes as an attribute or an input, whichever the opset has."""
        del op
        if self.opset < since:
            return [], {"axes": list(axes), **attributes}
        return [self.ints(*axes)], attributes


def arithmetic(c: Chain) -> None:
    op = c.pick(("Mul", "Mul", "Div", "Add", "Sub"))
    other = c.operand()
    if c.chance(0.25):
        c.last = c.emit(op, [other, c.last], c.sizes, c.dtype)
    else:
        c.then(op, [other], c.sizes)


def constants(c: Chain) -> None:
    """Two constants one after the other, which may be put together or cancel."""
    first, second = c.pick(
        (("Mul", "Mul"), ("Mul", "Mul"), ("Mul", "Div"), ("Add", "Add"), ("Add", "Add"), ("Add", "Sub"))
    )
    number = float(c.pick(EXTREMES[c.dtype])) if c.chance(0.9) else c.number()
    other = number if c.chance(0.8) else c.number()
    c.then(first, [c.constant(np.array(number, c.dtype))], c.sizes)
    c.then(second, [c.constant(np.array(-other if first == second == "Add" else other, c.dtype))], c.sizes)


def scaled_layer(c: Chain) -> None:
    """A layer with constants before and behind it."""
    if c.chance(0.5):
        (shrunk if c.chance(0.6) else arithmetic)(c)
    (convolution if c.rank in (3, 4) and c.chance(0.7) else product)(c)
    if c.chance(0.3):
        (transpose if c.chance(0.5) else reshape)(c)
    for _ in range(int(c.random.integers(0, 3))):
        c.pick((shrunk, arithmetic, constants))(c)


def shrunk(c: Chain) -> None:
    op, number = c.pick((("Div", 255.0), ("Div", 1e4), ("Mul", 1e-3), ("Mul", 1e-4)))
    c.then(op, [c.constant(np.array(number, c.dtype))], c.sizes)


def scaled_matrix(c: Chain) -> None:
    """The same of matrices."""
    if c.rank != 2:
        axis = int(c.random.integers(1, max(2, c.rank)))
        c.then("Flatten", [], [int(np.prod(c.sizes[:axis])), int(np.prod(c.sizes[axis:]))], axis=axis)
    product(c)
    (normalisation if c.chance(0.2) else arithmetic)(c)


def unary(c: Chain) -> None:
    c.then(c.pick(("Relu", "Relu", "Abs", "Neg", "Sigmoid", "Floor", "Identity")), [], c.sizes)


def limits(c: Chain) -> None:
    if c.opset >= 8 and c.chance(0.3):
        return c.then(c.pick(("Min", "Max")), [c.operand()], c.sizes)
    told = {name: float(c.pick((-1.0, 0.0, 0.5, 1.0, 6.0, 1e5))) for name in ("min", "max") if c.chance(0.8)}
    if c.opset < 11:
        low, high = told.get("min", -np.inf), told.get("max", np.inf)
        return c.then("Clip", [], c.sizes, **(told if low <= high else {"min": 0.0}))
    with np.errstate(all="ignore"):
        names = [c.constant(np.array(told[name]).astype(c.dtype)) if name in told else "" for name in ("min", "max")]
    return c.then("Clip", names, c.sizes)


def cast(c: Chain) -> None:
    wide = c.pick(("float32", "float64"))
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(each)) for each in (wide, c.dtype)]
    middle = c.emit("Cast", [c.last], c.sizes, wide, to=kinds[0])
    c.last = c.emit("Cast", [middle], c.sizes, c.dtype, to=kinds[1])


def transpose(c: Chain) -> None:
    order = [int(axis) for axis in c.random.permutation(c.rank)]
    c.then("Transpose", [], [c.sizes[axis] for axis in order], perm=order)


def reshape(c: Chain) -> None:
    sizes = c.sizes
    if c.chance(0.4):
        axis = int(c.random.integers(0, c.rank + 1))
        shape = [int(np.prod(sizes[:axis])), int(np.prod(sizes[axis:]))]
        return c.then("Flatten", [], shape, axis=axis)
    if c.rank > 1 and c.chance(0.6):
        axis = int(c.random.integers(c.rank - 1))
        sizes = [*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]]
    else:
        sizes = [int(size) for size in c.random.permutation(sizes)]
    told = list(sizes)
    if told and c.chance(0.4):
        told[int(c.random.integers(len(told)))] = -1
    return c.then("Reshape", [c.ints(*told)], sizes)


def unsqueeze(c: Chain) -> None:
    count = 1 if c.chance(0.7) else 2
    rank = c.rank + count
    if rank > 5:
        return
    places = sorted(int(axis) for axis in c.random.choice(rank, count, replace=False))
    shape = list(c.sizes)
    for place in places:
        shape.insert(place, 1)
    others, attributes = c.axes("Unsqueeze", [c.signed(place, rank) for place in places], 13)
    c.then("Unsqueeze", others, shape, **attributes)


def squeeze(c: Chain) -> None:
    ones = [axis for axis, size in enumerate(c.sizes) if size == 1]
    if not ones or len(ones) == c.rank:
        return
    chosen = [axis for axis in ones if c.chance(0.7)] or ones[:1]
    shape = [size for axis, size in enumerate(c.sizes) if axis not in chosen]
    others, attributes = c.axes("Squeeze", [c.signed(axis, c.rank) for axis in chosen], 13)
    c.then("Squeeze", others, shape, **attributes)


def reduction(c: Chain) -> None:
    """Often with a node behind it that undoes what became of the axes."""
    op = c.pick(REDUCTIONS)
    keeps = c.chance(0.5)
    chosen = sorted(int(axis) for axis in c.random.choice(c.rank, 1 + (c.rank > 1 and c.chance(0.3)), replace=False))
    kept = [1 if axis in chosen else size for axis, size in enumerate(c.sizes)]
    dropped = [size for axis, size in enumerate(c.sizes) if axis not in chosen]
    axes = [c.signed(axis, c.rank) for axis in chosen]
    others, attributes = c.axes(op, axes, 13 if op == "ReduceSum" else 18, keepdims=int(keeps))
    if not keeps and not dropped:
        return
    c.then(op, others, kept if keeps else dropped, **attributes)
    if c.chance(0.6):
        squeeze(c) if keeps else unsqueeze(c)


def pad(c: Chain) -> None:
    if int(np.prod(c.sizes)) > LARGEST // 8:
        return None
    pads = [int(c.random.integers(0, 2)) if axis % c.rank > 1 or c.chance(0.2) else 0 for axis in range(2 * c.rank)]
    shape = [size + pads[axis] + pads[axis + c.rank] for axis, size in enumerate(c.sizes)]
    number = float(c.pick((0.0, 0.0, 0.25, 1e5 if c.dtype != "float16" else 1e4)))
    if c.opset < 11:
        return c.then("Pad", [], shape, pads=pads, value=number)
    others = [c.ints(*pads), *([c.constant(np.array(number, c.dtype))] if c.chance(0.6) else [])]
    return c.then("Pad", others, shape)


def resize(c: Chain) -> None:
    """Nearest along the last axes: of Upsample, of Resize 10, and of Resize with its roi."""
    if c.rank != 4:
        return None
    grow, both = (1.0, 1.3, 1.7, 2.0), (0.3, 0.5, 0.6, 1.0, 1.3, 1.7, 2.0)
    scales = [1.0, 1.0, *(float(np.float32(c.pick(grow if c.opset < 10 else both))) for _ in range(2))]
    shape = [int(np.floor(size * np.float32(scale))) for size, scale in zip(c.sizes, scales)]
    if min(shape) < 1 or int(np.prod(shape)) > LARGEST:
        return None
    if c.opset < 9:
        return c.then("Upsample", [], shape, mode="nearest", scales=scales)
    factors = c.constant(np.array(scales, np.float32))
    if c.opset < 11:
        return c.then("Upsample" if c.opset < 10 else "Resize", [factors], shape, mode="nearest")
    modes = {"coordinate_transformation_mode": c.pick(("asymmetric", "half_pixel")), "nearest_mode": "floor"}
    return c.then("Resize", [c.constant(np.zeros(0, np.float32)), factors], shape, mode="nearest", **modes)


def convolution(c: Chain) -> None:
    if c.rank not in (3, 4):
        return
    channels, outputs = c.sizes[1], int(c.random.integers(1, 5))
    spread = float(c.pick((1.0, 1.0, 1e-3, 1e-4)))
    window = [1 + int(size > 2 and c.chance(0.4)) for size in c.sizes[2:]]
    inner = [size - edge + 1 for size, edge in zip(c.sizes[2:], window)]
    shape = [outputs, channels, *window]
    if c.chance(0.3):
        shape, inner = [channels, outputs, *window], [size + edge - 1 for size, edge in zip(c.sizes[2:], window)]
        op = "ConvTranspose"
    else:
        op = "Conv"
    others = [c.constant((c.random.standard_normal(shape) * spread).astype(c.dtype))]
    others += [c.array(outputs)] if c.chance(0.5) else []
    c.then(op, others, [c.sizes[0], outputs, *inner])
    if c.chance(0.4):
        normalisation(c)


def normalisation(c: Chain) -> None:
    if c.rank < 2:
        return
    size = c.sizes[1]
    gain, offset, mean, variance = (c.random.standard_normal(size) for _ in range(4))
    arrays = (
        gain,
        offset,
        mean * float(c.pick((1.0, 100.0))),
        np.abs(variance) * float(c.pick((1.0, 1e-4, 1e3))) + 1e-3,
    )
    c.then("BatchNormalization", [c.constant(each.astype(c.dtype)) for each in arrays], c.sizes, epsilon=1e-5)


def product(c: Chain) -> None:
    width = int(c.random.integers(1, 6))
    depth = c.sizes[-1] if c.rank else 0
    if not depth:
        return None
    spread = float(c.pick((1.0, 1.0, 1e-3)))
    if c.rank == 2 and c.chance(0.6):
        turned = c.chance(0.5)
        weights = c.random.standard_normal((width, depth) if turned else (depth, width)) * spread
        rows = c.sizes[0]
        bias = c.pick((None, (), (1,), (width,), (1, width), (rows, 1), (1, 1), (rows, width)))
        others = [c.constant(weights.astype(c.dtype)), *([c.array(*bias)] if bias is not None else [])]
        if bias is None and c.opset < 11:
            others.append(c.array(width))
        return c.then("Gemm", others, [rows, width], transB=int(turned))
    weights = (c.random.standard_normal((depth, width)) * spread).astype(c.dtype)
    return c.then("MatMul", [c.constant(weights)], [*c.sizes[:-1], width])


def softmax(c: Chain) -> None:
    axis = c.signed(int(c.random.integers(c.rank)), c.rank)
    c.then(c.pick(("Softmax", "LogSoftmax")), [], c.sizes, axis=axis)


def cut(c: Chain) -> None:
    axis = int(c.random.integers(c.rank))
    size = c.sizes[axis]
    start = int(c.random.integers(-size, size))
    end = start + 1 if start != -1 and c.chance(0.6) else int(np.iinfo(np.int64).max)
    length = len(range(size)[start : min(end, size) if end >= 0 or start >= 0 else end])
    shape = [length if place == axis else each for place, each in enumerate(c.sizes)]
    if length < 1:
        return None
    if c.opset < 10:
        return c.then("Slice", [], shape, starts=[start], ends=[end], axes=[axis])
    return c.then("Slice", [c.ints(start), c.ints(end), c.ints(c.signed(axis, c.rank))], shape)


def joined(c: Chain) -> None:
    axis = int(c.random.integers(c.rank))
    shape = [2 * size if place == axis else size for place, size in enumerate(c.sizes)]
    if int(np.prod(shape)) <= LARGEST:
        c.then("Concat", [c.last], shape, axis=c.signed(axis, c.rank))


def dropout(c: Chain) -> None:
    c.then("Dropout", [], c.sizes)


PIECES: tuple[Callable[[Chain], None], ...] = (
    arithmetic, arithmetic, arithmetic, arithmetic, unary, unary, limits, limits, cast, transpose, transpose, reshape,
    unsqueeze, squeeze, reduction, reduction, pad, resize, resize, convolution, convolution, normalisation, product,
    product, softmax, cut, joined, dropout, constants, constants, scaled_layer, scaled_layer, scaled_matrix,
    scaled_matrix, resize,
)  # fmt: skip


MOTIFS = (constants, constants, scaled_layer, scaled_layer, scaled_matrix, limits, reduction, resize)


def chained(random: Random, count: int) -> Case:
    """A chain of `count` pieces, or of one alone that is sure to be rewritten; its last value is its output."""
    names = []
    pieces: tuple[Callable[[Chain], None], ...] = PIECES
    dtype = ""
    if random.random() < 0.5:
        pieces, count, dtype = (pick(random, MOTIFS),), 1, "float16" if random.random() < 0.3 else ""
    chain = Chain(random, dtype)
    for _ in range(4 * count):
        before = len(chain.nodes)
        piece = pick(random, pieces)
        if chain.rank or piece in (arithmetic, unary, limits):
            piece(chain)
        if len(chain.nodes) > before:
            names.append(chain.nodes[-1].op_type)
        if len(names) == count:
            break
    if not chain.nodes:
        unary(chain)
    case = chain.case(f"opset {chain.opset} {chain.dtype}: {' '.join(names)}")
    outputs = [each.name for each in case.model.graph.output]
    del case.model.graph.output[:]
    for name in outputs:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(chain.draws[name]["dtype"]))
        case.model.graph.output.append(helper.make_tensor_value_info(name, kind, chain.shape(name)))
    assert isinstance(case.model, onnx.ModelProto)
    return case
