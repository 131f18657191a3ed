"""Damaged models load and run, or raise a WeftError that names the file, within limited memory and time.

Bytes are truncated and flipped, and fields of the message (numbers, names, types, ops) mutated, which gets further into
the compiler. A failure prints the seed and number that reproduce it.
"""

from __future__ import annotations

import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import branching, calling, model, node, tensor, value
from onnx import TensorProto, helper

import weft
from weft.errors import InternalError, WeftError
from weft.ir.types import OptionalType, SequenceType, TensorType

SEED = 20240613
SECONDS = 20  # of CPU time, after which a case is interrupted
MEMORY = 2 << 30  # bytes that a test may allocate
MAX_INPUT = 1 << 20  # elements; models with larger inputs are loaded, not run
OUTCOMES = ("ran", "loaded", "endless", "rejected")
INT64 = TensorProto.INT64

rng = np.random.default_rng(5)


def weights(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


# -- models with many kinds of ops -----------------------------------------------------------------------------------


def convolutional() -> onnx.ModelProto:
    return model(
        [
            node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
            node("BatchNormalization", ["c", "one", "one", "one", "one"], ["n"], epsilon=1e-3),
            node("Relu", ["n"], ["r"]),
            node("MaxPool", ["r"], ["p"], kernel_shape=[2, 1]),
            node("ConvTranspose", ["p", "t"], ["u"], strides=[2, 2]),
            node("GlobalAveragePool", ["u"], ["g"]),
            node("Flatten", ["g"], ["f"]),
            node("Gemm", ["f", "m", "one"], ["h"], transB=1, alpha=0.5),
            node("Softmax", ["h"], ["y"], axis=-1),
        ],
        [value("x", ["batch", 2, 8, "width"])],
        [value("y", None)],
        [tensor("w", weights(4, 2, 3, 3)), tensor("b", weights(4)), tensor("one", np.ones(4, np.float32)),
         tensor("t", weights(4, 4, 2, 2)), tensor("m", weights(4, 4))],
    )  # fmt: skip


def quantized() -> onnx.ModelProto:
    scale, zero, number = tensor("s", np.float32(0.1)), tensor("z", np.uint8(3)), tensor("zi", np.int8(0))
    return model(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("QLinearConv", ["q", "s", "z", "w", "s", "zi", "s", "z"], ["c"], pads=[1, 1, 1, 1]),
            node("DequantizeLinear", ["c", "s", "z"], ["d"]),
            node("DynamicQuantizeLinear", ["d"], ["e", "es", "ez"]),
            node("ConvInteger", ["e", "w", "ez", "zi"], ["i"], pads=[1, 1, 1, 1]),
            node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            node("Mul", ["f", "es"], ["y"]),
            node("DequantizeLinear", ["k", "ks"], ["kd"], axis=1),
        ],
        [value("x", [1, 2, 4, "n"])],
        [value("y", None), value("kd", None)],
        [scale, zero, number, tensor("w", rng.integers(-5, 5, (2, 2, 3, 3)).astype(np.int8)),
         tensor("k", rng.integers(-9, 9, (3, 2)).astype(np.int8)), tensor("ks", np.float32([1, 2]))],
    )  # fmt: skip


def reshaping() -> onnx.ModelProto:
    """Shape arithmetic as exporters write it."""
    return model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["b"], axis=0),
            node("Unsqueeze", ["b", "axis"], ["bu"]),
            node("Concat", ["bu", "rest"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["r"]),
            node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
            node("Slice", ["t", "starts", "ends", "axes", "steps"], ["p"]),
            node("Pad", ["p", "pads"], ["a"], mode="reflect"),
            node("Expand", ["one", "s"], ["e"]),
            node("Range", ["zero", "b", "step"], ["g"]),
            node("ReduceSum", ["a", "axis"], ["h"], keepdims=0),
            node("Tile", ["h", "twice"], ["y"]),
            node("TopK", ["y", "count"], ["v", "i"]),
            node("Split", ["v"], ["left", "right"], axis=-1, num_outputs=2),
            node("ConstantOfShape", ["s"], ["filled"], value=helper.make_tensor("", INT64, [1], [7])),
            node("Resize", ["image", "", "scales"], ["resized"], mode="linear"),
        ],
        [value("x", ["n", 6]), value("image", [1, 1, 3, 3])],
        [value("left", None), value("e", None), value("g", None, INT64), value("filled", None, INT64),
         value("resized", None)],
        [tensor("zero", np.int64(0)), tensor("axis", [0]), tensor("rest", [3, -1]), tensor("starts", [-1]),
         tensor("ends", [-9]), tensor("axes", [2]), tensor("steps", [-1]), tensor("pads", [0, 1, 0, 0, 1, 0]),
         tensor("one", np.float32(1)), tensor("step", np.int64(1)), tensor("twice", [1, 2]), tensor("count", [2]),
         tensor("scales", np.float32([1, 1, 2, 1.5]))],
    )  # fmt: skip


def looping() -> onnx.ModelProto:
    """A loop, a scan, a recurrent layer, a sequence and sizes that depend on data."""
    body = helper.make_graph(
        [node("Add", ["v", "step"], ["w"]), node("ReduceSum", ["w"], ["t"], keepdims=0),
         node("Less", ["t", "limit"], ["still"])],
        "body",
        [value("i", [], INT64), value("going", [], TensorProto.BOOL), value("v", None)],
        [value("still", [], TensorProto.BOOL), value("w", None), value("t", None)],
    )  # fmt: skip
    scan = helper.make_graph(
        [node("Add", ["state", "row"], ["next"]), node("Identity", ["next"], ["seen"])],
        "scan", [value("state", [3]), value("row", [3])], [value("next", [3]), value("seen", [3])],
    )  # fmt: skip
    return model(
        [
            node("Loop", ["trips", "", "x"], ["grown", "sums"], body=body),
            node("Scan", ["begin", "grown"], ["last", "all"], body=scan, num_scan_inputs=1),
            node("Unsqueeze", ["all", "one"], ["sequence"]),
            node("GRU", ["sequence", "W", "R"], ["", "hidden"], hidden_size=2),
            node("NonZero", ["hidden"], ["places"]),
            node("SplitToSequence", ["all"], ["parts"], axis=0),
            node("ConcatFromSequence", ["parts"], ["joined"], axis=0),
            node("CumSum", ["joined", "zero"], ["y"]),
        ],
        [value("x", ["n", 3])],
        [value("y", None), value("places", None, INT64), value("sums", None)],
        [tensor("trips", np.int64(3)), tensor("step", np.float32(1)), tensor("limit", np.float32(50)),
         tensor("begin", np.zeros(3, np.float32)), tensor("one", [1]), tensor("zero", np.int64(0)),
         tensor("W", weights(1, 6, 3)), tensor("R", weights(1, 6, 2))],
    )  # fmt: skip


def attending() -> onnx.ModelProto:
    """A small transformer block."""
    return model(
        [
            node("Gather", ["table", "ids"], ["x"]),
            node("LayerNormalization", ["x", "g", "g"], ["l"]),
            node("MatMul", ["l", "wq"], ["q"]),
            node("Reshape", ["q", "heads"], ["qh"]),
            node("Transpose", ["qh"], ["qt"], perm=[0, 2, 1, 3]),
            node("Transpose", ["qh"], ["kt"], perm=[0, 2, 3, 1]),
            node("MatMul", ["qt", "kt"], ["a"]),
            node("Softmax", ["a"], ["p"]),
            node("Einsum", ["p", "qt"], ["o"], equation="bhij,bhjd->bihd"),
            node("Reshape", ["o", "flat"], ["f"]),
            node("Add", ["x", "f"], ["r"]),
            node("Gelu", ["r"], ["u"]),
            node("ArgMax", ["u"], ["best"], axis=-1, keepdims=0),
            node("Where", ["mask", "r", "u"], ["y"]),
        ],
        [value("ids", ["batch", "length"], INT64), value("mask", [1], TensorProto.BOOL)],
        [value("y", None), value("best", None, INT64)],
        [tensor("table", weights(6, 4)), tensor("g", np.ones(4, np.float32)), tensor("wq", weights(4, 4)),
         tensor("heads", [0, 0, 2, 2]), tensor("flat", [0, 0, 4])],
    )  # fmt: skip


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "branching": branching,
    "calling": calling,
    "convolutional": convolutional,
    "quantized": quantized,
    "reshaping": reshaping,
    "looping": looping,
    "attending": attending,
}


# -- damage ----------------------------------------------------------------------------------------------------------


def truncate(proto: onnx.ModelProto, random: np.random.Generator) -> Iterator[bytes]:
    content = proto.SerializeToString()
    for end in random.choice(len(content), min(150, len(content)), replace=False):
        yield content[:end]


def flip_bits(proto: onnx.ModelProto, random: np.random.Generator) -> Iterator[bytes]:
    content = proto.SerializeToString()
    for _ in range(250):
        damaged = bytearray(content)
        for place in random.integers(0, len(content), random.integers(1, 4)):
            damaged[place] ^= 1 << random.integers(0, 8)
        yield bytes(damaged)


NUMBERS = [0, 1, -1, 2, 3, -2, 7, 100, 4096, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63)]
FRACTIONS = [0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, float("inf"), float("nan")]


def mutate_fields(proto: onnx.ModelProto, random: np.random.Generator) -> Iterator[bytes]:
    """Set random fields of the message to other values of their type."""
    ops = sorted({entry.op_type for maker in MODELS.values() for entry in maker().graph.node} | {"Add", "Squeeze"})
    for _ in range(400):
        damaged = onnx.ModelProto()
        damaged.CopyFrom(proto)
        for _ in range(random.integers(1, 3)):
            mutate(damaged, ops, random)
        yield damaged.SerializeToString()


def mutate(damaged: onnx.ModelProto, ops: list[str], random: np.random.Generator) -> None:
    graph = damaged.graph
    match random.integers(0, 8):
        case 0:
            mutate_tensor(pick(graph.initializer, random), random)
        case 1 | 2:
            attribute = pick(pick(graph.node, random).attribute, random)
            if attribute is not None:
                mutate_attribute(attribute, random)
        case 3:
            entry = pick(graph.node, random)
            if entry.input:
                names = [name for other in graph.node for name in (*other.input, *other.output)]
                entry.input[random.integers(len(entry.input))] = names[random.integers(len(names))]
        case 4:
            pick(graph.node, random).op_type = ops[random.integers(len(ops))]
        case 5:
            declared = pick(pick([*graph.input, *graph.output], random).type.tensor_type.shape.dim, random)
            if declared is not None:
                declared.dim_value = int(random.choice(NUMBERS))
        case 6:
            pick([*graph.input, *graph.output], random).type.tensor_type.elem_type = int(random.integers(0, 24))
        case 7:
            entry = pick(graph.node, random)
            if len(entry.input) > 1:
                del entry.input[-1]


def pick(items: Any, random: np.random.Generator) -> Any:
    return items[random.integers(len(items))] if len(items) else None


def mutate_tensor(proto: TensorProto | None, random: np.random.Generator) -> None:
    if proto is None:
        return
    match random.integers(0, 4):
        case 0 if proto.dims:
            proto.dims[random.integers(len(proto.dims))] = int(random.choice(NUMBERS))
        case 1:
            proto.data_type = int(random.integers(0, 24))
        case 2 if proto.raw_data and proto.data_type == INT64:
            numbers = np.frombuffer(proto.raw_data, np.int64).copy()
            if numbers.size:
                numbers[random.integers(numbers.size)] = random.choice(np.array(NUMBERS))
            proto.raw_data = numbers.tobytes()
        case _:
            proto.raw_data = bytes(random.permutation(np.frombuffer(proto.raw_data, np.uint8).copy()))


def mutate_attribute(attribute: onnx.AttributeProto, random: np.random.Generator) -> None:
    match attribute.type:
        case onnx.AttributeProto.INT:
            attribute.i = int(random.choice(NUMBERS))
        case onnx.AttributeProto.FLOAT:
            attribute.f = float(np.float32(random.choice(FRACTIONS)))
        case onnx.AttributeProto.STRING:
            attribute.s = bytes(random.choice([b"", b"NOTSET", b"SAME_UPPER", b"nearest", b"ij,jk", b"\xff"]))
        case onnx.AttributeProto.INTS:
            if attribute.ints and random.random() < 0.7:
                attribute.ints[random.integers(len(attribute.ints))] = int(random.choice(NUMBERS))
            elif attribute.ints:
                del attribute.ints[-1]
        case onnx.AttributeProto.TENSOR:
            mutate_tensor(attribute.t, random)
        case onnx.AttributeProto.GRAPH:
            for entry in attribute.g.node:
                if entry.attribute and random.random() < 0.5:
                    mutate_attribute(pick(entry.attribute, random), random)


# -- checks ----------------------------------------------------------------------------------------------------------


class TookTooLongError(BaseException):
    """Not an Exception, so that no handler catches it."""


def stop(*_: Any) -> None:
    raise TookTooLongError


@pytest.fixture
def limits() -> Iterator[None]:
    """Limit memory, and interrupt a case that takes too long."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def check(path: Path, content: bytes, random: np.random.Generator) -> str:
    """Load and run a damaged model and return the outcome."""
    path.write_bytes(content)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        loaded = weft.load(path)
        feeds = make_feeds(loaded, random)
        if feeds is None:
            return "loaded"
        try:
            loaded.run(feeds)
        except TookTooLongError as error:  # the model may contain an endless loop
            names = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
            assert names & {"_loop", "_loop_eagerly"}, "took too long to run"
            return "endless"
        return "ran"
    except InternalError:
        raise
    except WeftError as error:
        return "rejected" if str(path) in str(error) else f"rejected without naming the file: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def make_feeds(loaded: weft.Model, random: np.random.Generator) -> dict[str, Any] | None:
    sizes: dict[str, int] = {}
    feeds = {spec.name: make_content(spec.type, sizes, random) for spec in loaded.inputs}
    return None if any(isinstance(content, Unmakeable) for content in feeds.values()) else feeds


class Unmakeable:
    """Stands for an input that is too large or of an unsupported kind."""


def make_content(declared: Any, sizes: dict[str, int], random: np.random.Generator) -> Any:
    match declared:
        case TensorType(dtype, shape):
            if shape is None:
                shape = tuple(random.integers(1, 4, random.integers(0, 4)))
            concrete = [
                dim if isinstance(dim, (int, np.integer)) else sizes.setdefault(str(dim), int(random.integers(1, 5)))
                for dim in shape
            ]
            if np.prod([float(size) for size in concrete]) > MAX_INPUT or min(concrete, default=0) < 0:
                return Unmakeable()
            if dtype.value == "string":
                return np.full(concrete, "text", object)
            return np.asarray(random.integers(0, 3, concrete)).astype(dtype.numpy)
        case SequenceType(element):
            content = make_content(element, sizes, random)
            return content if isinstance(content, Unmakeable) else [content]
        case OptionalType():
            return None
        case _:
            return Unmakeable()


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("damage", [truncate, flip_bits, mutate_fields])
@pytest.mark.parametrize("name", MODELS)
def test_damaged(tmp_path: Path, name: str, damage: Callable[..., Iterator[bytes]]) -> None:
    path = tmp_path / "damaged.onnx"
    proto = MODELS[name]()
    print(f"seed {SEED}")
    assert check(path, proto.SerializeToString(), np.random.default_rng(SEED)) == "ran"
    outcomes: dict[str, int] = {}
    problems: list[str] = []
    for number, content in enumerate(damage(proto, np.random.default_rng(SEED))):
        try:
            outcome = check(path, content, np.random.default_rng(number))
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if outcome not in OUTCOMES:
                problems.append(f"number {number}: {outcome}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            last = traceback.extract_tb(error.__traceback__)[-1]
            problems.append(f"number {number}: {type(error).__name__}: {error!s:.200} ({last.filename}:{last.lineno})")
    print(outcomes)
    assert not problems, "\n".join([f"{name} {damage.__name__}, seed {SEED}:", *problems])
