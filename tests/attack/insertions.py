"""Mutations that put ops on an edge and keep its shape, or after an output and need not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from attack.drawn import dtype_of
from attack.edits import FLOATS, NodeList, Random, constant, emit, exists, fresh, pick, put_nodes
from attack.regions import Case

UNARY = (
    "Neg", "Abs", "Relu", "Tanh", "Sigmoid", "Erf", "Floor", "Exp", "Sqrt", "HardSwish", "Gelu", "Softplus", "Mish",
    "LeakyRelu", "Elu", "Round", "Sin", "Identity", "Ceil", "Sign", "Reciprocal", "Log", "Selu", "HardSigmoid",
    "Softsign", "Celu", "ThresholdedRelu", "Cos", "Atan", "Asinh", "Sinh",
)  # fmt: skip


BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu")


def insert(case: Case, random: Random) -> bool:
    """Ops on an edge that keep its shape, or ops after an output that need not."""
    if random.random() < 0.35:
        return _append(case, random)
    edges = [(place, at) for place, node in enumerate(case.graph.node) for at, name in enumerate(node.input)
             if name in case.draws and case.draws[name]["dtype"] in FLOATS and case.draws[name]["shape"]]  # fmt: skip
    if not edges:
        return False
    place, at = pick(random, edges)
    node = case.graph.node[place]
    source = node.input[at]
    added: list[onnx.NodeProto] = []
    result = pick(random, INSERTIONS)(case, random, source, added)
    if result is None or not all(exists(case, entry) for entry in added):
        return False
    case.draws[result] = case.draws[source]
    node.input[at] = result
    put_nodes(case, place, added)
    return True


def _unary(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    return emit(case, added, pick(random, UNARY), [x])


def _binary(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    """With a constant of a shape that broadcasts, or with a value of the same shape."""
    drawn = case.draws[x]
    others = [name for name in case.feeds if case.draws.get(name) == drawn and name != x]
    if others and random.random() < 0.5:
        other = pick(random, others)
    else:
        shape = [size if random.random() < 0.5 else 1 for size in drawn["shape"]]
        shape = shape[int(random.integers(len(shape) + 1)) :]
        if int(np.prod(shape)) > 4096:
            shape = []
        other = constant(case, random.normal(1, 0.5, shape).astype(dtype_of(drawn["dtype"])))
    pair = [x, other] if random.random() < 0.7 else [other, x]
    return emit(case, added, pick(random, BINARY), pair)


def _turn(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    shape = case.draws[x]["shape"]
    order = [int(axis) for axis in random.permutation(len(shape))]
    there = emit(case, added, "Transpose", [x], perm=order)
    if random.random() < 0.7:
        there = emit(case, added, pick(random, UNARY), [there])
    return emit(case, added, "Transpose", [there], perm=[int(axis) for axis in np.argsort(order)])


def _reshape(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    shape = case.draws[x]["shape"]
    size = int(np.prod(shape))
    factors = [number for number in range(1, min(size, 64) + 1) if size % number == 0] or [1]
    first = pick(random, factors)
    target = pick(random, ([-1], [first, -1], [-1, first], [1, first, -1], [0, -1] if len(shape) > 1 else [-1]))
    there = emit(case, added, "Reshape", [x, constant(case, np.int64(target))])
    if random.random() < 0.6:
        there = emit(case, added, pick(random, UNARY), [there])
    elif random.random() < 0.5:
        there = emit(case, added, "Softmax", [there], axis=-1)
    if random.random() < 0.4:
        back = emit(case, added, "Shape", [x])
    else:
        back = constant(case, np.int64(shape))
    return emit(case, added, "Reshape", [there, back])


def _pad(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    """Pad, then slice the padding off again, or pad with negative numbers."""
    shape = case.draws[x]["shape"]
    rank = len(shape)
    before, after = ([int(random.integers(0, 3)) for _ in shape] for _ in range(2))
    mode = str(pick(random, ("constant", "constant", "edge", "reflect")))
    wide = emit(case, added, "Pad", [x, constant(case, np.int64([*before, *after]))], mode=mode)
    if random.random() < 0.5:
        wide = emit(case, added, pick(random, UNARY), [wide])
    if random.random() < 0.3:
        back = [-number for number in (*before, *after)]
        return emit(case, added, "Pad", [wide, constant(case, np.int64(back))])
    starts, ends = before, [start + size for start, size in zip(before, shape)]
    inputs = [wide, constant(case, np.int64(starts)), constant(case, np.int64(ends)), constant(case, np.arange(rank))]
    return emit(case, added, "Slice", inputs)


def _concat(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    shape = case.draws[x]["shape"]
    axis = int(random.integers(len(shape)))
    other = emit(case, added, pick(random, UNARY), [x])
    both = emit(case, added, "Concat", [x, other] if random.random() < 0.5 else [other, x], axis=axis)
    if random.random() < 0.5:
        both = emit(case, added, pick(random, UNARY), [both])
    start = int(random.integers(0, shape[axis] + 1))
    numbers = [constant(case, np.int64([number])) for number in (start, start + shape[axis], axis)]
    return emit(case, added, "Slice", [both, *numbers])


def _flip(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    axis = int(random.integers(len(case.draws[x]["shape"])))
    numbers = [constant(case, np.int64([number])) for number in (-1, -(2**60), axis, -1)]
    return emit(case, added, "Slice", [x, *numbers])


def _gather(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    shape = case.draws[x]["shape"]
    axis = int(random.integers(len(shape)))
    if shape[axis] == 0 or shape[axis] > 4096:
        return None
    indices = random.integers(-shape[axis], shape[axis], shape[axis]).astype(pick(random, (np.int64, np.int32)))
    return emit(case, added, "Gather", [x, constant(case, indices)], axis=axis)


def _softmax(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    axis = int(random.integers(-1, len(case.draws[x]["shape"])))
    return emit(case, added, pick(random, ("Softmax", "Softmax", "LogSoftmax")), [x], axis=axis)


def _centred(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    """Minus or over a reduction of its own, as normalisations have it."""
    op = pick(random, ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2", "ReduceMin", "ReduceLogSumExp"))
    axis = int(random.integers(len(case.draws[x]["shape"])))
    opset = next((entry.version for entry in case.model.opset_import if not entry.domain), 13)
    late = opset >= 18 or (op == "ReduceSum" and opset >= 13)
    if late:
        mean = emit(case, added, op, [x, constant(case, np.int64([axis]))], keepdims=1)
    else:
        mean = emit(case, added, op, [x], axes=[axis], keepdims=1)
    return emit(case, added, pick(random, ("Sub", "Div", "Mul")), [x, mean])


def _where(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    zero = constant(case, np.array(pick(random, (0.0, 0.5, -1.0)), dtype_of(case.draws[x]["dtype"])))
    condition = emit(case, added, pick(random, ("Less", "Greater")), [x, zero])
    return emit(case, added, "Where", [condition, x, emit(case, added, pick(random, UNARY), [x])])


def _cumsum(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    axis = constant(case, np.int64(random.integers(len(case.draws[x]["shape"]))))
    return emit(case, added, "CumSum", [x, axis], reverse=int(random.integers(2)), exclusive=int(random.integers(2)))


def _clip(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    low, high = (constant(case, np.array(end, dtype_of(case.draws[x]["dtype"]))) for end in (-0.5, 0.75))
    return emit(case, added, "Clip", pick(random, ([x, low, high], [x, "", high], [x, low])))


def _quantized(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    scale = constant(case, np.float32(pick(random, (0.05, 0.01, 0.25))))
    zero = constant(case, np.array(pick(random, (0, 3)), pick(random, (np.int8, np.uint8))))
    return emit(case, added, "DequantizeLinear", [emit(case, added, "QuantizeLinear", [x, scale, zero]), scale, zero])


def _expand(case: Case, random: Random, x: str, added: NodeList) -> str | None:
    """A unit axis, grown and summed or sliced away."""
    shape = case.draws[x]["shape"]
    axis = int(random.integers(len(shape) + 1))
    unit = emit(case, added, "Reshape", [x, constant(case, np.int64([*shape[:axis], 1, *shape[axis:]]))])
    grown = emit(case, added, "Expand", [unit, constant(case, np.int64([*shape[:axis], 3, *shape[axis:]]))])
    if random.random() < 0.5:
        grown = emit(case, added, pick(random, UNARY), [grown])
    return emit(case, added, "Gather", [grown, constant(case, np.int64(pick(random, (0, 1, -1))))], axis=axis)


INSERTIONS: tuple[Callable[[Case, Random, str, NodeList], str | None], ...] = (
    _unary, _unary, _binary, _binary, _turn, _reshape, _pad, _concat, _flip, _gather, _softmax, _centred, _where,
    _cumsum, _clip, _quantized, _expand,
)  # fmt: skip


def _append(case: Case, random: Random) -> bool:
    """Something after an output that changes its shape."""
    outputs = [entry for entry in case.graph.output if case.draws.get(entry.name, {"dtype": ""})["dtype"] in FLOATS
               and case.draws[entry.name]["shape"]]  # fmt: skip
    if not outputs:
        return False
    entry = pick(random, outputs)
    x = entry.name
    shape = case.draws[x]["shape"]
    axis = int(random.integers(len(shape)))
    added: NodeList = []

    def weights() -> str:
        return constant(case, random.normal(size=(shape[-1], 5)).astype(dtype_of(case.draws[x]["dtype"])))

    nodes: tuple[Callable[[], str], ...] = (
        lambda: emit(case, added, pick(random, ("ArgMax", "ArgMin")), [x], axis=axis, keepdims=int(random.integers(2))),
        lambda: emit(case, added, "Transpose", [x], perm=[int(at) for at in random.permutation(len(shape))]),
        lambda: emit(case, added, "Flatten", [x], axis=int(random.integers(len(shape) + 1))),
        lambda: emit(case, added, "MatMul", [x, weights()]),
        lambda: emit(case, added, "Concat", [x, x, x], axis=axis),
        lambda: emit(case, added, "Slice", [x, *(constant(case, np.int64([end])) for end in (0, 2**62, axis, 2))]),
        lambda: emit(case, added, "Tile", [x, constant(case, np.int64([1] * (len(shape) - 1) + [2]))]),
        lambda: emit(case, added, "Unsqueeze", [x, constant(case, np.int64([axis]))]),
        lambda: emit(case, added, "Shape", [x]),
        lambda: emit(case, added, "Pad", [x, constant(case, np.int64(random.integers(-1, 3, 2 * len(shape))))]),
        lambda: emit(case, added, "TopK", [x, constant(case, np.int64([min(2, shape[axis])]))], axis=axis),
    )  # fmt: skip
    name = pick(random, nodes)()
    if added[-1].op_type == "TopK":
        added[-1].output.append(fresh(case))
    if not exists(case, added[-1]):
        return False
    case.graph.node.extend(added)
    if random.random() < 0.5:
        entry.CopyFrom(onnx.ValueInfoProto(name=name))
    else:
        case.graph.output.append(onnx.ValueInfoProto(name=name))
    return True
