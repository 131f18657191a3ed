"""Small models with a state: decoders in the forms of exporters, and recurrent nets."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from frontend.samples import node, tensor, value, wrap
from onnx import TensorProto, helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WORDS, WIDTH, HEADS, SHARED, SIZE = 40, 64, 4, 2, 16  # heads of queries, and of keys and values
PAST, BATCH = "past_sequence_length", "batch_size"


class Decoder:
    """Collects the nodes of a decoder with random weights."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, *shape: int) -> str:
        self.weights.append(tensor(name, (self.random.standard_normal(shape) * 0.3).astype(np.float32)))
        return name

    def constant(self, name: str, content: Any) -> str:
        self.weights.append(tensor(name, np.asarray(content)))
        return name

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(node(op, inputs, [output], name=f"{output}_node", **attributes))
        return output

    def embed(self) -> str:
        return self.add("Gather", [self.weight("words", WORDS, WIDTH), "input_ids"], "x0")

    def finish(self, x: str, caches: list[tuple[str, str]], shape: list[Any], extra: Any = ()) -> onnx.ModelProto:
        self.add("MatMul", [x, self.weight("head", WIDTH, WORDS)], "logits")
        inputs = [
            value("input_ids", [BATCH, "sequence_length"], INT64),
            value("attention_mask", [BATCH, "total_sequence_length"], INT64),
            *extra,
            *(value(past, shape) for past, _ in caches),
        ]
        grown = [*shape[:2], "total_sequence_length", *shape[3:]]
        outputs = [value("logits", [BATCH, "sequence_length", WORDS]), *(value(name, grown) for _, name in caches)]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.weights)
        return wrap(graph, opsets={"": 17, "com.microsoft": 1}, ir_version=8)


def concat_decoder(layers: int = 2) -> onnx.ModelProto:
    """A decoder whose caches are concatenations, as optimum exports it."""
    build = Decoder()
    x = build.embed()
    bias = _mask_bias(build)
    caches: list[tuple[str, str]] = []
    for layer in range(layers):
        caches += [(f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}") for kind in ("key", "value")]
        x = _attend(build, x, layer, bias, caches[-2:])
    return build.finish(x, caches, [BATCH, HEADS, PAST, SIZE])


def _mask_bias(build: Decoder) -> str:
    build.constant("one", np.float32(1))
    build.constant("far", np.float32(-1e9))
    build.constant("middle", np.array([1, 2]))
    build.constant("split", np.array([0, 0, HEADS, SIZE]))
    build.constant("join", np.array([0, 0, WIDTH]))
    build.constant("scale", np.float32(SIZE**-0.5))
    build.add("Cast", ["attention_mask"], "visible", to=FLOAT)
    build.add("Sub", ["one", "visible"], "hidden")
    build.add("Mul", ["hidden", "far"], "bias2")
    return build.add("Unsqueeze", ["bias2", "middle"], "bias")


def _attend(build: Decoder, x: str, layer: int, bias: str, caches: list[tuple[str, str]], prefix: str = "") -> str:
    """Add a layer; caches with an empty past are only written."""
    parts = {}
    for kind in "qkv":
        weight = f"w{kind}{layer}"
        if not any(entry.name == weight for entry in build.weights):
            build.weight(weight, WIDTH, WIDTH)
        product = build.add("MatMul", [x, weight], f"{prefix}{kind}{layer}")
        split = build.add("Reshape", [product, "split"], f"{prefix}{kind}split{layer}")
        parts[kind] = build.add("Transpose", [split], f"{prefix}{kind}heads{layer}", perm=[0, 2, 1, 3])
    for kind, (past, present) in zip("kv", caches):
        if past:
            parts[kind] = build.add("Concat", [past, parts[kind]], present, axis=2)
        else:
            parts[kind] = build.add("Identity", [parts[kind]], present)
    turned = build.add("Transpose", [parts["k"]], f"{prefix}turned{layer}", perm=[0, 1, 3, 2])
    scores = build.add("MatMul", [parts["q"], turned], f"{prefix}scores{layer}")
    scaled = build.add("Mul", [scores, "scale"], f"{prefix}scaled{layer}")
    masked = build.add("Add", [scaled, bias], f"{prefix}masked{layer}")
    chances = build.add("Softmax", [masked], f"{prefix}chances{layer}", axis=-1)
    mixed = build.add("MatMul", [chances, parts["v"]], f"{prefix}mixed{layer}")
    back = build.add("Transpose", [mixed], f"{prefix}back{layer}", perm=[0, 2, 1, 3])
    joined = build.add("Reshape", [back, "join"], f"{prefix}joined{layer}")
    if not any(entry.name == f"wo{layer}" for entry in build.weights):
        build.weight(f"wo{layer}", WIDTH, WIDTH)
    product = build.add("MatMul", [joined, f"wo{layer}"], f"{prefix}o{layer}")
    return build.add("Add", [x, product], f"{prefix}x{layer + 1}")


def grouped_decoder(layers: int = 2) -> onnx.ModelProto:
    """A decoder with GroupQueryAttention, as onnxruntime-genai exports it."""
    build = Decoder()
    x = build.embed()
    build.constant("last", np.array([1]))
    build.constant("number", np.int64(1))
    build.add("ReduceSum", ["attention_mask", "last"], "lengths")
    build.add("Sub", ["lengths", "last"], "ends")
    build.add("Cast", ["ends"], "seqlens", to=TensorProto.INT32)
    build.add("Shape", ["attention_mask"], "mask_shape")
    build.add("Gather", ["mask_shape", "number"], "count")
    build.add("Cast", ["count"], "total", to=TensorProto.INT32)
    angles = np.arange(128)[:, None] / 10000 ** (np.arange(SIZE // 2) / (SIZE // 2))
    build.constant("cos", np.cos(angles).astype(np.float32))
    build.constant("sin", np.sin(angles).astype(np.float32))
    caches = []
    for layer in range(layers):
        for kind, width in (("q", WIDTH), ("k", SHARED * SIZE), ("v", SHARED * SIZE)):
            build.add("MatMul", [x, build.weight(f"w{kind}{layer}", WIDTH, width)], f"{kind}{layer}")
        pairs = [(f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}") for kind in ("key", "value")]
        caches += pairs
        inputs = [*(f"{kind}{layer}" for kind in "qkv"), *(past for past, _ in pairs), "seqlens", "total", "cos", "sin"]
        outputs = [f"mixed{layer}", *(present for _, present in pairs)]
        attributes = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": 1, "domain": "com.microsoft"}
        build.nodes.append(node("GroupQueryAttention", inputs, outputs, name=f"attention{layer}", **attributes))
        product = build.add("MatMul", [f"mixed{layer}", build.weight(f"wo{layer}", WIDTH, WIDTH)], f"o{layer}")
        x = build.add("Add", [x, product], f"x{layer + 1}")
    return build.finish(x, caches, [BATCH, SHARED, PAST, SIZE])


def merged_decoder(layers: int = 2) -> onnx.ModelProto:
    """A decoder with and without a past in the branches of an If, as optimum merges them."""
    outer = Decoder()
    caches = [
        (f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}")
        for layer in range(layers)
        for kind in ("key", "value")
    ]
    branches = {}
    for name, prefix in (("then_branch", "with_"), ("else_branch", "first_")):
        inner = Decoder()
        inner.weights = outer.weights
        if name == "then_branch":
            x = inner.embed()
            bias = _mask_bias(inner)
        else:
            x = inner.add("Gather", ["words", "input_ids"], "first_x0")
            for op, inputs, output in (
                ("Cast", ["attention_mask"], "first_visible"),
                ("Sub", ["one", "first_visible"], "first_hidden"),
                ("Mul", ["first_hidden", "far"], "first_bias2"),
                ("Unsqueeze", ["first_bias2", "middle"], "first_bias"),
            ):
                inner.add(op, inputs, output, **({"to": FLOAT} if op == "Cast" else {}))
            bias = "first_bias"
        renamed = [(past if prefix == "with_" else "", f"{prefix}{present}") for past, present in caches]
        for layer in range(layers):
            x = _attend(inner, x, layer, bias, renamed[2 * layer : 2 * layer + 2], prefix)
        if name == "then_branch":
            inner.weight("head", WIDTH, WORDS)
        inner.add("MatMul", [x, "head"], f"{prefix}logits")
        results = [f"{prefix}logits", *(present for _, present in renamed)]
        outer.weights = inner.weights
        branches[name] = helper.make_graph(inner.nodes, name, [], [value(result, None) for result in results])
    outputs = ["logits", *(present for _, present in caches)]
    merged = node("If", ["use_cache_branch"], outputs, name="merged", **branches)
    inputs = [
        value("input_ids", [BATCH, "sequence_length"], INT64),
        value("attention_mask", [BATCH, "total_sequence_length"], INT64),
        value("use_cache_branch", [1], BOOL),
        *(value(past, [BATCH, HEADS, PAST, SIZE]) for past, _ in caches),
    ]
    grown = [BATCH, HEADS, "total_sequence_length", SIZE]
    results = [value("logits", [BATCH, "sequence_length", WORDS]), *(value(name, grown) for _, name in caches)]
    graph = helper.make_graph([merged], "merged", inputs, results, outer.weights)
    return wrap(graph, opsets={"": 17}, ir_version=8)


def recurrent_model() -> onnx.ModelProto:
    """A GRU whose state has a fixed size."""
    random = np.random.default_rng(3)
    weights = [
        tensor(name, (random.standard_normal(shape) * 0.3).astype(np.float32))
        for name, shape in (("w", (1, 24, 5)), ("r", (1, 24, 8)), ("b", (1, 48)))
    ]
    nodes = [node("GRU", ["x", "w", "r", "b", "", "h"], ["y", "hn"], hidden_size=8, name="gru")]
    inputs = [value("x", ["steps", "batch", 5]), value("h", [1, "batch", 8])]
    graph = helper.make_graph(nodes, "gru", inputs, [value("y", None), value("hn", None)], weights)
    return wrap(graph, opsets={"": 17}, ir_version=8)
