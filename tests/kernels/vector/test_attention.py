"""Attention as one kernel: recognised however it is written, and close to softmax(q k) v in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from attack.devices import DEVICES, missing
from frontend.samples import model, node, tensor, value
from kernels.vector.works import TARGET, run_work
from peers import onnxruntime_run

import weft
from weft.fuse.attention import find_attention, number_loads
from weft.fuse.inline import inline_maps
from weft.ir import dims
from weft.ir.layout import row_major
from weft.ir.program import TensorProgram
from weft.ir.target import VectorTarget
from weft.ir.types import TensorType
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.vector.attention_parts import attention_parts

Array = np.ndarray[Any, Any]
WITHIN = 4e-6  # of the largest magnitude; scores are rounded products themselves
SIZES = [
    # batch, heads, queries, keys, depth, width
    (1, 2, 64, 64, 64, 64),
    (2, 3, 197, 197, 32, 32),
    (1, 1, 5, 1, 8, 8),
    (1, 2, 13, 31, 15, 15),
    (1, 1, 12, 33, 17, 40),
    (2, 1, 24, 256, 16, 64),
    (1, 2, 100, 257, 64, 80),
    (1, 1, 7, 513, 1, 1),
    (1, 1, 300, 700, 40, 96),
]


def heads_first(name: str, result: str) -> onnx.NodeProto:
    return node("Transpose", [name], [result], perm=[0, 2, 1, 3])


def attention_model(
    shapes: Mapping[str, Sequence[Any]],
    score: Sequence[onnx.NodeProto] = (),
    weight: Sequence[onnx.NodeProto] = (),
    more: Sequence[Any] = (),
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Any] | None = None,
    softmax: Sequence[onnx.NodeProto] = (),
) -> onnx.ModelProto:
    """Build a model of q, k, v as [batch, sequence, heads, size]; `score` computes s from qk, `weight` w from p."""
    nodes = [
        heads_first("q", "queries"),
        node("Transpose", ["k"], ["keys"], perm=[0, 2, 3, 1]),
        heads_first("v", "values"),
        node("MatMul", ["queries", "keys"], ["qk"]),
        *(score or [node("Mul", ["qk", "scale"], ["s"])]),
        *(softmax or [node("Softmax", ["s"], ["p"], axis=-1)]),
        *(weight or [node("Identity", ["p"], ["w"])]),
        node("MatMul", ["w", "values"], ["o"]),
        heads_first("o", "y"),
    ]
    inputs = [value(name, shape) for name, shape in shapes.items()]
    initial_values = {"scale": np.float32(0.125), **(constants or {})}
    initializers = [tensor(name, array) for name, array in initial_values.items()]
    return model(nodes, [*inputs, *more], [value(name, None) for name in outputs], initializers)


def qkv(
    rng: np.random.Generator, batch: int, heads: int, queries: int, keys: int, depth: int, width: int
) -> dict[str, Array]:
    shapes = {"q": (batch, queries, heads, depth), "k": (batch, keys, heads, depth), "v": (batch, keys, heads, width)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def sink_model(shapes: Mapping[str, Sequence[Any]]) -> onnx.ModelProto:
    """Build a model whose softmax has one more score for each head, without a value; `mask` is added to the scores."""
    score = [node("Mul", ["qk", "scale"], ["scaled"]), node("Add", ["scaled", "mask"], ["s"])]
    softmax = [
        node("ReduceMax", ["s", "last_axis"], ["highest"]),
        node("Max", ["highest", "sinks"], ["largest"]),
        node("Sub", ["s", "largest"], ["shifted"]),
        node("Exp", ["shifted"], ["powers"]),
        node("ReduceSum", ["powers", "last_axis"], ["total"]),
        node("Sub", ["sinks", "largest"], ["sinks_shifted"]),
        node("Exp", ["sinks_shifted"], ["sink_powers"]),
        node("Add", ["total", "sink_powers"], ["whole"]),
        node("Div", ["powers", "whole"], ["p"]),
    ]
    return attention_model(shapes, score, softmax=softmax, constants={"last_axis": np.array([-1])})


def sink_inputs(*sizes: int) -> tuple[dict[str, Array], Array]:
    """Return inputs with sinks of all magnitudes, and the result in float64; no row before the last two sees key 0."""
    rng = np.random.default_rng(11)
    inputs, (_, heads, queries, keys, *_) = qkv(rng, *sizes), sizes
    mask = np.zeros((queries, keys), np.float32)
    mask[:-2, 0] = mask[0] = -np.inf  # the first row sees nothing
    inputs["mask"] = mask
    inputs["sinks"] = np.linspace(-9, 9, heads).astype(np.float32).reshape(1, heads, 1, 1)
    return inputs, exact(inputs, mask, sinks=inputs["sinks"])


def exact(
    inputs: Mapping[str, Array], bias: Array | float = 0.0, scale: float = 0.125, sinks: Array | None = None
) -> Array:
    """Compute attention in float64 as [batch, queries, heads, width]."""
    q, k, v = (inputs[name].astype(np.float64).transpose(0, 2, 1, 3) for name in "qkv")
    scores = q @ k.swapaxes(2, 3) * scale + bias
    if sinks is not None:
        last = np.broadcast_to(sinks.astype(np.float64), (*scores.shape[:3], 1))
        scores, v = np.concatenate([scores, last], 3), np.concatenate([v, 0 * v[:, :, :1]], 2)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray((powers / powers.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3))


def close(actual: Array, expected: Array, within: float = WITHIN) -> None:
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    numbers = ~np.isnan(expected)
    if numbers.any():
        assert np.abs(actual[numbers] - expected[numbers]).max() <= within * max(np.abs(expected[numbers]).max(), 1e-30)


def program_of(built: onnx.ModelProto) -> TensorProgram:
    return inline_maps(weft.load(built, device="reference").program)


def run(built: onnx.ModelProto, inputs: Mapping[str, Array], *, attentions: int = 1, threads: int = 1) -> Array:
    """Return output y on the CPU; the model must have this number of attentions."""
    assert len(find_attention(program_of(built))) == attentions
    return weft.load(built, device="cpu", threads=threads, cache=False).run(dict(inputs))["y"]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes: tuple[int, ...]) -> None:
    inputs = qkv(np.random.default_rng(1), *sizes)
    built = attention_model({name: array.shape for name, array in inputs.items()})
    close(run(built, inputs, attentions=int(sizes[3] > 1)), exact(inputs))


def test_one_program_for_all_sizes() -> None:
    rng = np.random.default_rng(2)
    symbolic = {"q": ["b", "n", 2, 24], "k": ["b", "m", 2, 24], "v": ["b", "m", 2, 40]}
    built = attention_model(symbolic)
    assert len(find_attention(program_of(built))) == 1
    loaded = weft.load(built, device="cpu", threads=1, cache=False)
    for batch, queries, keys in [(1, 1, 1), (2, 3, 5), (1, 12, 32), (3, 13, 33), (1, 64, 300), (1, 59, 1000)]:
        inputs = qkv(rng, batch, 2, queries, keys, 24, 40)
        close(loaded.run(inputs)["y"], exact(inputs))


@pytest.mark.parametrize("shape", [(2, 1, 70, 600), (1, 1, 70, 600), (70, 600), (600,), (2, 3, 70, 600), (2, 3, 70, 1)])
def test_additive_mask(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    inputs = qkv(rng, 2, 3, 70, 600, 16, 16)
    mask = rng.standard_normal(shape).astype(np.float32)
    if shape[-1] > 1:
        mask[..., rng.random(shape[-1]) < 0.3] = -np.inf
    score = [node("Mul", ["qk", "scale"], ["scaled"]), node("Add", ["scaled", "mask"], ["s"])]
    shapes = {name: array.shape for name, array in {**inputs, "mask": mask}.items()}
    close(run(attention_model(shapes, score), {**inputs, "mask": mask}), exact(inputs, mask))


def boolean_mask(shapes: Mapping[str, Sequence[int]], mask: Array, *, guarded: bool) -> onnx.ModelProto:
    score = [node("Mul", ["qk", "scale"], ["scaled"]), node("Where", ["mask", "scaled", "low"], ["s"])]
    weight = [node("IsNaN", ["p"], ["lost"]), node("Where", ["lost", "zero", "p"], ["w"])] if guarded else []
    more = [value("mask", mask.shape, onnx.TensorProto.BOOL)]
    constants = {"low": np.float32(-np.inf), "zero": np.float32(0)}
    return attention_model(shapes, score, weight, more, constants=constants)


@pytest.mark.parametrize("guarded", [False, True])
def test_rows_without_a_visible_key(guarded: bool) -> None:
    rng = np.random.default_rng(4)
    inputs = qkv(rng, 2, 2, 30, 600, 16, 16)
    mask = rng.random((2, 1, 30, 600)) < 0.5
    mask[0, 0, 3] = mask[1, 0, 29] = False
    mask[0, 0, 5, :300] = False  # nothing in the first chunk of keys
    mask[0, 0, 6, 256:] = False  # nothing in later chunks
    shapes = {name: array.shape for name, array in inputs.items()}
    expected = exact(inputs, np.where(mask, 0.0, -np.inf))
    if guarded:
        expected = np.nan_to_num(expected)
    else:
        assert np.isnan(expected[0, 3]).all()
    close(run(boolean_mask(shapes, mask, guarded=guarded), {**inputs, "mask": mask}), expected)


@pytest.mark.parametrize("sizes", [(2, 3, 30, 600, 16, 16), (1, 5, 7, 33, 20, 12)], ids=str)
def test_sinks(sizes: tuple[int, ...]) -> None:
    inputs, expected = sink_inputs(*sizes)
    assert not expected[0, 0].any()
    close(run(sink_model({name: array.shape for name, array in inputs.items()}), inputs), expected)


def test_scores_that_grow_fall_and_overflow() -> None:
    rng = np.random.default_rng(5)
    inputs = qkv(rng, 1, 2, 25, 1100, 8, 8)
    shapes = {name: array.shape for name, array in inputs.items()}
    score = [node("Add", ["qk", "mask"], ["s"])]
    steps = np.linspace(-1, 1, 1100, dtype=np.float32)
    for scale in (300.0, -300.0, 1e30):
        mask = steps * np.float32(scale)
        built = attention_model({**shapes, "mask": mask.shape}, score)
        close(run(built, {**inputs, "mask": mask}), exact(inputs, mask, scale=1.0), 1e-4)


def test_nan_and_infinite_queries() -> None:
    inputs = qkv(np.random.default_rng(6), 1, 1, 20, 300, 8, 8)
    inputs["q"][0, 3, 0, 2] = np.nan
    inputs["q"][0, 7, 0, 2] = np.inf
    built = attention_model({name: array.shape for name, array in inputs.items()})
    actual = run(built, inputs)
    assert np.isnan(actual[0, [3, 7]]).all()
    others = [row for row in range(20) if row not in (3, 7)]
    close(actual[:, others], exact({**inputs, "q": inputs["q"][:, others]}))


def test_softcap_and_causal_comparison() -> None:
    inputs = qkv(np.random.default_rng(7), 1, 2, 40, 40, 16, 16)
    score = [
        node("Mul", ["qk", "scale"], ["a"]),
        node("Tanh", ["a"], ["t"]),
        node("Mul", ["t", "cap"], ["c"]),
        node("Shape", ["c"], ["size"], start=3),
        node("Squeeze", ["size"], ["length"]),
        node("Range", ["zero", "length", "one"], ["places"]),
        node("Unsqueeze", ["places", "one_axis"], ["rows"]),
        node("GreaterOrEqual", ["rows", "places"], ["seen"]),
        node("Where", ["seen", "c", "low"], ["s"]),
    ]
    constants = {"cap": np.float32(3), "zero": np.int64(0), "one": np.int64(1), "one_axis": np.array([1])}
    constants["low"] = np.float32(-np.inf)
    built = attention_model({name: array.shape for name, array in inputs.items()}, score, constants=constants)
    q, k, v = (inputs[name].astype(np.float64).transpose(0, 2, 1, 3) for name in "qkv")
    scores = np.where(np.tri(40, dtype=bool), 3 * np.tanh(q @ k.swapaxes(2, 3) * 0.125), -np.inf)
    powers = np.exp(scores)
    close(run(built, inputs), (powers / powers.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3))


@pytest.mark.parametrize("low", [-np.inf, np.finfo(np.float32).min])
@pytest.mark.parametrize("symbolic", [False, True])
def test_hidden_keys_are_skipped(symbolic: bool, low: float) -> None:
    """A causal mask in memory, shared by two attentions, with padding that hides all keys of some rows."""
    rng = np.random.default_rng(14)
    inputs = qkv(rng, 2, 2, 700, 700, 16, 16)
    padding = rng.random((2, 1, 1, 700)) < 0.8
    padding[1, ..., :400] = False
    length = "n" if symbolic else 700
    nodes = [
        node("Shape", ["q"], ["size"], start=1, end=2),
        node("Squeeze", ["size"], ["length"]),
        node("Range", ["zero", "length", "one"], ["places"]),
        node("Unsqueeze", ["places", "one_axis"], ["rows"]),
        node("LessOrEqual", ["places", "rows"], ["before"]),
        node("And", ["before", "padding"], ["seen"]),
        node("Where", ["seen", "nothing", "low"], ["mask"]),
    ]
    for part, query in (("a", "q"), ("b", "y_a")):
        nodes += [
            heads_first(query, f"queries_{part}"),
            node("Transpose", ["k"], [f"keys_{part}"], perm=[0, 2, 3, 1]),
            heads_first("v", f"values_{part}"),
            node("MatMul", [f"queries_{part}", f"keys_{part}"], [f"qk_{part}"]),
            node("Add", [f"qk_{part}", "mask"], [f"s_{part}"]),
            node("Softmax", [f"s_{part}"], [f"p_{part}"], axis=-1),
            node("MatMul", [f"p_{part}", f"values_{part}"], [f"o_{part}"]),
            heads_first(f"o_{part}", f"y_{part}"),
        ]
    nodes.append(node("Identity", ["y_b"], ["y"]))
    constants = {"zero": np.int64(0), "one": np.int64(1), "one_axis": np.array([1]), "nothing": np.float32(0)}
    constants["low"] = np.float32(low)
    model_inputs = [value(name, (2, length, 2, 16)) for name in "qkv"]
    model_inputs.append(value("padding", (2, 1, 1, length), onnx.TensorProto.BOOL))
    built = model(nodes, model_inputs, [value("y", None)], [tensor(name, array) for name, array in constants.items()])
    if symbolic:  # else the mask is a constant
        assert all(attention.causal_bounds for _, attention in find_attention(program_of(built)))
    mask = np.where(np.tri(700, dtype=bool) & padding, 0.0, low)
    first = exact(inputs, mask, scale=1.0)
    expected = exact({**inputs, "q": first}, mask, scale=1.0)
    close(run(built, {**inputs, "padding": padding}, attentions=2), expected)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("rank", [3, 4])
def test_the_operator(rank: int, mask: str | None, causal: int) -> None:
    """Four query heads share two key heads; against the same program on the reference."""
    rng = np.random.default_rng(8)
    shapes = {"q": (2, 4, 37, 24), "k": (2, 2, 50, 24), "v": (2, 2, 50, 40)}
    if rank == 3:
        shapes = {name: (b, length, heads * size) for name, (b, heads, length, size) in shapes.items()}
    inputs: dict[str, Array] = {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    model_inputs = [value(name, shape) for name, shape in shapes.items()]
    if mask is not None:
        hidden = rng.random((37, 50)) < 0.4
        hidden[5] = True
        inputs["m"] = ~hidden if mask == "bool" else np.where(hidden, -np.inf, 0).astype(np.float32)
        model_inputs.append(
            value("m", hidden.shape, onnx.TensorProto.BOOL if mask == "bool" else onnx.TensorProto.FLOAT)
        )
    attributes = {"q_num_heads": 4, "kv_num_heads": 2} if rank == 3 else {}
    nodes = [node("Attention", list(inputs), ["y"], is_causal=causal, **attributes)]
    built = model(nodes, model_inputs, [value("y", None)], opsets={"": 23})
    close(run(built, inputs), weft.load(built, device="reference").run(inputs)["y"].astype(np.float64))


def test_transposed_scores() -> None:
    """The product of keys and queries is transposed before the softmax."""
    inputs = qkv(np.random.default_rng(9), 2, 2, 33, 45, 16, 16)
    nodes = [
        heads_first("k", "keys"),
        node("Transpose", ["q"], ["queries"], perm=[0, 2, 3, 1]),
        heads_first("v", "values"),
        node("MatMul", ["keys", "queries"], ["kq"]),
        node("Mul", ["kq", "scale"], ["scaled"]),
        node("Transpose", ["scaled"], ["s"], perm=[0, 1, 3, 2]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "values"], ["o"]),
        node("Transpose", ["o"], ["turned"], perm=[0, 2, 1, 3]),
        node("Relu", ["turned"], ["y"]),
    ]
    shapes = [value(name, array.shape) for name, array in inputs.items()]
    built = model(nodes, shapes, [value("y", None)], [tensor("scale", np.float32(0.125))])
    close(run(built, inputs), np.maximum(exact(inputs), 0))


def test_outputs_are_not_fused_away() -> None:
    inputs = qkv(np.random.default_rng(10), 1, 2, 20, 30, 16, 16)
    shapes = {name: array.shape for name, array in inputs.items()}
    for name in ("p", "s", "qk"):
        close(run(attention_model(shapes, outputs=("y", name)), inputs, attentions=0), exact(inputs))


def test_against_onnxruntime() -> None:
    rng = np.random.default_rng(11)
    inputs = qkv(rng, 2, 4, 150, 150, 64, 64)
    mask = rng.random((2, 1, 150, 150)) < 0.7
    built = boolean_mask({name: array.shape for name, array in inputs.items()}, mask, guarded=False)
    session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {**inputs, "mask": mask})
    close(run(built, {**inputs, "mask": mask}), expected.astype(np.float64), 1e-5)


def test_same_bits_for_any_number_of_threads() -> None:
    inputs = qkv(np.random.default_rng(12), 2, 3, 200, 300, 32, 32)
    built = attention_model({name: array.shape for name, array in inputs.items()})
    first, *others = (run(built, inputs, threads=threads) for threads in (1, 2, 4))
    assert all(np.array_equal(first, other) for other in others)


NARROW = replace(TARGET, vector_bytes=32, vector_registers=16, fused_multiply_add=False)
SHORT = replace(TARGET, vector_bytes=16, vector_registers=32)  # fewer lanes than there are registers for rows


@pytest.mark.parametrize(("target", "at_start"), [(TARGET, False), (TARGET, True), (NARROW, False), (SHORT, False)])
@pytest.mark.parametrize(("queries", "keys", "depth", "width"), [(13, 37, 20, 36), (4, 300, 33, 7), (25, 256, 16, 32)])
@pytest.mark.parametrize("symbolic", [False, True])
def test_stays_inside_its_memory(
    symbolic: bool, queries: int, keys: int, depth: int, width: int, target: VectorTarget, at_start: bool
) -> None:
    """Every operand ends, or starts, at a page without access."""
    inputs = qkv(np.random.default_rng(13), 1, 2, queries, keys, depth, width)
    shapes: dict[str, Sequence[Any]] = {name: array.shape for name, array in inputs.items()}
    if symbolic:
        shapes = {"q": [1, "n", 2, depth], "k": [1, "m", 2, depth], "v": [1, "m", 2, width]}
    program = program_of(attention_model(shapes))
    ((steps, unnumbered),) = find_attention(program)
    results = {result for step in steps for result in step.results}
    operands = list(dict.fromkeys(v for step in steps for v in step.operands if v not in results))
    attention = number_loads(unnumbered, operands)
    tensors = []
    for operand in (*operands, steps[-1].results[0]):
        assert isinstance(operand.type, TensorType)
        assert operand.type.shape is not None
        tensors.append(StoredTensor(operand.type.dtype, operand.type.shape, row_major(len(operand.type.shape))))
    arrays = dict(zip(program.inputs, inputs.values()))
    sizes = {"n": queries, "m": keys}
    packed: list[Array] = []
    for part in attention_parts(attention, tensors[:-1], tensors[-1], target):
        model_inputs = [
            arrays.get(operands[number], program.constants.get(operands[number])) for number in part.operands
        ]
        last = part.result is tensors[-1]
        memory = [(array, row_major(array.ndim)) for array in (*model_inputs, *(packed if last else ()))]
        (result,), _ = run_work(part.work, memory, [part.result], sizes, at_start=at_start)
        assert result.shape == tuple(dims.evaluate(size, sizes) for size in part.result.shape)
        packed.append(result)
    close(packed[-1], exact(inputs))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [np.nan, 3e38])
def test_nan_weights_that_are_dropped(bad: float, device: str) -> None:
    """A row whose scores are NaN, or infinite with both signs, is 0 if the model replaces NaN weights."""
    reason = missing(device)
    if reason:
        pytest.skip(reason)
    shapes = {"q": (2, 16, 8), "k": (2, 8, 16), "v": (2, 16, 8)}
    nodes = [
        node("MatMul", ["q", "k"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("IsNaN", ["p"], ["lost"]),
        node("Where", ["lost", "zero", "p"], ["w"]),
        node("MatMul", ["w", "v"], ["y"]),
    ]
    declared = [value(name, shape) for name, shape in shapes.items()]
    built = model(nodes, declared, [value("y", (2, 16, 8))], [tensor("zero", np.float32(0))])
    random = np.random.default_rng(0)
    feeds = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    feeds["q"][0, 3] = bad
    actual = weft.load(built, device=device, cache=False).run(feeds)["y"]
    expected = onnxruntime_run(built, feeds)[0]
    assert not expected[0, 3].any()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
