"""Small decoders with random weights, in the forms of onnxruntime-genai's model builder and of optimum."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
LAYERS, WIDTH, HEADS, CACHE_HEADS, HEAD, HIDDEN, VOCABULARY, POSITIONS = 2, 64, 4, 2, 16, 96, 101, 256
BLOCK = 32
SHORT_LENGTH = 45
EPSILON = 1e-6
LOWEST = -3.0e38


@dataclass(frozen=True)
class Variant:
    """What differs between families of decoders."""

    form: str = "genai"  # or "optimum"
    weights: str = "float32"  # or "int4", "int8"; "dynamic": 8 bits, with activations quantized by their range
    zero_points: bool = False
    joint: bool = True  # one product for queries, keys and values
    bias: bool = False
    qk_norm: bool = False
    rotary: str = "fused"  # in GroupQueryAttention, or "node"
    position_kinds: int = 1  # 3: of time, height and width, as M-RoPE has them
    interleaved: bool = False
    rotary_size: int = HEAD
    softcap: float = 0.0
    windows: tuple[int, ...] = (-1, -1)  # of the layers; -1: all tokens
    sandwich: bool = False  # norms behind attention and products, too
    tied: bool = False  # the embedding is the output layer
    sink: bool = False
    alibi: bool = False  # biases that are 0 for the last key of a step, as MPT has them
    cache: str = ""  # or "PER_TENSOR", "PER_CHANNEL": the scales of a quantized cache
    cache_bits: int = 8
    experts: int = 0  # of a mixture, of which each token chooses two
    short_length: int = 0  # LongRoPE: all tokens of longer sequences have other angles


VARIANTS = {
    "llama": Variant(),
    "llama-int4": Variant(weights="int4"),
    "llama-int8": Variant(weights="int8", joint=False),
    "llama-zero-points": Variant(weights="int4", zero_points=True),
    "llama-tied-int4": Variant(weights="int4", tied=True),
    "qwen2": Variant(bias=True),
    "qwen2-int4": Variant(weights="int4", bias=True, joint=False),
    "qwen3": Variant(qk_norm=True, joint=False),
    "qwen3-rotary-node": Variant(qk_norm=True, joint=False, rotary="node"),
    "gemma2": Variant(softcap=5.0, windows=(6, -1), sandwich=True),
    "gemma3-int4": Variant(weights="int4", qk_norm=True, joint=False, windows=(6, -1), sandwich=True, tied=True),
    "gpt-oss-attention": Variant(bias=True, sink=True, windows=(7, -1)),
    "mixture": Variant(experts=7),
    "phi3-long": Variant(short_length=SHORT_LENGTH),
    "glm-rotary": Variant(joint=False, rotary="node", interleaved=True, rotary_size=HEAD // 2),
    "llama-int8-cache": Variant(cache="PER_TENSOR"),
    "qwen3-int4-cache": Variant(qk_norm=True, joint=False, cache="PER_CHANNEL", cache_bits=4),
    "optimum": Variant("optimum"),
    "optimum-qk-norm": Variant("optimum", qk_norm=True),
    "optimum-window": Variant("optimum", windows=(6, -1), bias=True),
    "optimum-alibi": Variant("optimum", alibi=True),
    "optimum-dynamic": Variant("optimum", weights="dynamic"),
    "optimum-softcap": Variant("optimum", softcap=5.0, sandwich=True),
}


def write_decoder(variant: Variant, file: Path) -> Path:
    """Write a decoder into one file."""
    onnx.save(_Writer(variant).build(), file)
    return file


class _Writer:
    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.random = np.random.default_rng(5)

    def build(self) -> onnx.ModelProto:
        variant = self.variant
        self.declare("input_ids", TensorProto.INT64, "batch_size", "sequence_length")
        self.declare("attention_mask", TensorProto.INT64, "batch_size", "total_sequence_length")
        if variant.form == "optimum" or variant.rotary == "node":
            self.declare_positions()
        logits: list[str | int | None] = ["batch_size", "sequence_length", VOCABULARY]
        self.outputs.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, logits))
        if variant.form == "genai":
            self.add_lengths()
        self.tables = self.add_tables()
        state, head = self.add_embedding()
        branch = ""
        for layer in range(LAYERS):
            normal, state = self.add_skip_norm(state, branch)
            attend = self.add_grouped_attention if variant.form == "genai" else self.add_plain_attention
            branch = self.linear(attend(normal, layer), HEADS * HEAD, WIDTH)
            if variant.sandwich:
                branch = self.norm(branch, WIDTH)
            normal, state = self.add_skip_norm(state, branch)
            branch = self.add_experts(normal) if variant.experts else self.add_feed_forward(normal)
            if variant.sandwich:
                branch = self.norm(branch, WIDTH)
        normal, _ = self.add_skip_norm(state, branch)
        if head:
            self.quantized_product(normal, head, WIDTH, VOCABULARY, ["logits"])
        else:
            self.add("Identity", self.linear(normal, WIDTH, VOCABULARY), results=["logits"])
        graph = helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def add_tables(self) -> list[str]:
        """Return the tables of cosines and sines."""
        size, short_length = self.variant.rotary_size, self.variant.short_length
        angles = np.outer(np.arange(POSITIONS), 1e4 ** (-np.arange(0, size, 2) / size))
        if not short_length:
            return [self.constant(function(angles).astype(np.float32)) for function in (np.cos, np.sin)]
        names = ["cos_cache", "sin_cache"]
        branches = []
        for part, factor, length in (("large", 1.5, POSITIONS), ("small", 1.0, short_length)):
            tables = [1.1 * function(angles[:length] / factor) for function in (np.cos, np.sin)]
            constants = [
                helper.make_node("Constant", [], [f"{name}_{part}"], value=numpy_helper.from_array(np.float32(table)))
                for name, table in zip(names, tables, strict=True)
            ]
            outputs = [
                helper.make_tensor_value_info(f"{name}_{part}", TensorProto.FLOAT, [length, size // 2])
                for name in names
            ]
            branches.append(helper.make_graph(constants, part, [], outputs))
        total = self.add("Gather", self.add("Shape", "attention_mask"), self.constant(1, np.int64))
        is_long = self.add("Greater", total, self.constant(short_length, np.int64))
        self.add("If", is_long, results=names, then_branch=branches[0], else_branch=branches[1])
        return names

    def declare(self, name: str, kind: int, *shape: int | str) -> None:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))

    def declare_positions(self) -> None:
        name = self.positions = "position_ids"
        sizes = ("batch_size", "sequence_length")
        if self.variant.position_kinds == 1:
            self.declare(name, TensorProto.INT64, *sizes)
            return
        self.declare(name, TensorProto.INT64, self.variant.position_kinds, *sizes)
        last = self.constant(self.variant.position_kinds - 1, np.int64)
        self.positions = self.add("Gather", name, last, axis=0)

    def declare_cache(self, layer: int) -> tuple[list[str], list[str]]:
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        present = [f"present.{layer}.{part}" for part in ("key", "value")]
        variant = self.variant
        kind = TensorProto.FLOAT
        if variant.cache:
            kind = TensorProto.UINT8 if variant.cache_bits == 4 else TensorProto.INT8
        size = HEAD * variant.cache_bits // 8 if variant.cache else HEAD
        for name in past:
            self.declare(name, kind, "batch_size", CACHE_HEADS, "past_sequence_length", size)
        sizes: list[str | int | None] = ["batch_size", CACHE_HEADS, "total_sequence_length", size]
        self.outputs += [helper.make_tensor_value_info(name, kind, sizes) for name in present]
        return past, present

    def add(self, op: str, *inputs: str, results: list[str] | None = None, domain: str = "", **attributes: Any) -> str:
        outputs = results or [f"{op}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, inputs, outputs, f"{op}_{len(self.nodes)}", domain=domain, **attributes))
        return outputs[0]

    def constant(self, content: Any, dtype: Any = None) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(content, dtype), name))
        return name

    def weight(self, *shape: int, mean: float = 0.0, std: float = 0.1) -> str:
        return self.constant((mean + std * self.random.standard_normal(shape)).astype(np.float32))

    def add_lengths(self) -> None:
        one = self.constant([1], np.int64)
        lengths = self.add("Sub", self.add("ReduceSum", "attention_mask", one, keepdims=0), one)
        total = self.add("Gather", self.add("Shape", "attention_mask"), self.constant(1, np.int64))
        self.lengths = [self.add("Cast", value, to=TensorProto.INT32) for value in (lengths, total)]

    def add_embedding(self) -> tuple[str, list[str]]:
        """Return the embedded tokens, and the weights of the output layer if both share them."""
        if not self.variant.tied:
            return self.add("Gather", self.weight(VOCABULARY, WIDTH, std=1.0), "input_ids"), []
        weights = self.quantized_weights(WIDTH, VOCABULARY)
        table = self.add("Reshape", weights[0], self.constant([VOCABULARY, WIDTH // 2], np.int64))
        sizes: dict[str, Any] = {"bits": 4, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
        embedded = self.add("GatherBlockQuantized", table, "input_ids", weights[1], domain=MICROSOFT, **sizes)
        return embedded, weights

    def quantized_weights(self, depth: int, width: int) -> list[str]:
        bits = 8 if self.variant.weights == "int8" else 4
        packed = self.random.integers(0, 256, (width, depth // BLOCK, BLOCK * bits // 8), np.uint8)
        step = 2.0 / (2**bits * depth**0.5)
        scales = np.abs(step * (1 + 0.2 * self.random.standard_normal((width, depth // BLOCK))))
        names = [self.constant(packed), self.constant(scales.astype(np.float32))]
        if self.variant.zero_points:
            count = -(-depth // BLOCK * bits // 8)
            names.append(self.constant(self.random.integers(0, 256, (width, count), np.uint8)))
        return names

    def quantized_product(
        self, x: str, weights: list[str], depth: int, width: int, results: list[str] | None = None
    ) -> str:
        bits = 8 if self.variant.weights == "int8" else 4
        sizes: dict[str, Any] = {"K": depth, "N": width, "bits": bits, "block_size": BLOCK}
        return self.add("MatMulNBits", x, *weights, results=results, domain=MICROSOFT, **sizes)

    def dynamic_product(self, x: str, depth: int, width: int) -> str:
        codes = self.constant(self.random.integers(-127, 128, (depth, width)), np.int8)
        number = len(self.nodes)
        rounded, scale, zero = (f"{part}_{number}" for part in ("rounded", "scale", "zero"))
        self.add("DynamicQuantizeLinear", x, results=[rounded, scale, zero])
        sums = self.add("Cast", self.add("MatMulInteger", rounded, codes, zero), to=TensorProto.FLOAT)
        step = self.constant(depth**-0.5 / 73, np.float32)
        return self.add("Mul", sums, self.add("Mul", scale, step))

    def linear(self, x: str, depth: int, width: int, bias: bool = False) -> str:
        if self.variant.weights == "float32":
            y = self.add("MatMul", x, self.weight(depth, width, std=depth**-0.5))
        elif self.variant.weights == "dynamic":
            y = self.dynamic_product(x, depth, width)
        else:
            y = self.quantized_product(x, self.quantized_weights(depth, width), depth, width)
        return self.add("Add", y, self.weight(width)) if bias else y

    def norm(self, x: str, size: int) -> str:
        scale = self.weight(size, mean=1.0)
        if self.variant.form == "genai":
            return self.add("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=EPSILON, stash_type=1)
        square = self.add("Pow", x, self.constant(2.0, np.float32))
        mean = self.add("ReduceMean", square, self.constant([-1], np.int64))
        root = self.add("Sqrt", self.add("Add", mean, self.constant(EPSILON, np.float32)))
        return self.add("Mul", scale, self.add("Div", x, root))

    def add_skip_norm(self, state: str, branch: str) -> tuple[str, str]:
        """Add a branch to the state; return the normalised sum and the sum."""
        if not branch:
            return self.norm(state, WIDTH), state
        if self.variant.form == "optimum":
            total = self.add("Add", state, branch)
            return self.norm(total, WIDTH), total
        number = len(self.nodes)
        names = [f"normal_{number}", "", "", f"sum_{number}"]
        scale = self.weight(WIDTH, mean=1.0)
        op = "SkipSimplifiedLayerNormalization"
        self.add(op, state, branch, scale, results=names, domain=MICROSOFT, epsilon=EPSILON)
        return names[0], names[3]

    def add_feed_forward(self, x: str) -> str:
        gate, up = (self.linear(x, WIDTH, HIDDEN) for _ in range(2))
        gated = self.add("Mul", self.add("Mul", gate, self.add("Sigmoid", gate)), up)
        return self.linear(gated, HIDDEN, WIDTH)

    def add_experts(self, x: str) -> str:
        count = self.variant.experts
        router = self.add("Reshape", self.linear(x, WIDTH, count), self.constant([-1, count], np.int64))
        first = self.weight(count, HIDDEN, WIDTH, std=WIDTH**-0.5), self.weight(count, HIDDEN)
        second = self.weight(count, WIDTH, HIDDEN, std=HIDDEN**-0.5), self.weight(count, WIDTH)
        settings: dict[str, Any] = {"k": 2, "activation_type": "silu", "normalize_routing_weights": 1}
        return self.add("MoE", x, router, *first, *second, domain=MICROSOFT, **settings)

    def norm_heads(self, x: str, heads: int) -> str:
        """Normalise each head of [batch, length, heads * size]."""
        rows = self.add("Reshape", x, self.constant([0, -1, heads, HEAD], np.int64))
        return self.add("Reshape", self.norm(rows, HEAD), self.constant([0, -1, heads * HEAD], np.int64))

    def project(self, x: str) -> list[str]:
        """Return queries, keys and values, or one tensor that joins them."""
        counts = (HEADS, CACHE_HEADS, CACHE_HEADS)
        if self.variant.joint and self.variant.form == "genai":
            return [self.linear(x, WIDTH, sum(counts) * HEAD, self.variant.bias), "", ""]
        parts = [self.linear(x, WIDTH, count * HEAD, self.variant.bias) for count in counts]
        if self.variant.qk_norm:
            parts[:2] = [self.norm_heads(part, count) for part, count in zip(parts[:2], counts[:2], strict=True)]
        return parts

    def add_grouped_attention(self, x: str, layer: int) -> str:
        variant = self.variant
        query, key, value = self.project(x)
        fused = variant.rotary == "fused"
        if not fused:
            settings: dict[str, Any] = {
                "interleaved": int(variant.interleaved),
                "rotary_embedding_dim": variant.rotary_size,
            }
            query, key = (
                self.add(
                    "RotaryEmbedding",
                    part,
                    self.positions,
                    *self.tables,
                    domain=MICROSOFT,
                    num_heads=heads,
                    **settings,
                )
                for part, heads in ((query, HEADS), (key, CACHE_HEADS))
            )
        past, present = self.declare_cache(layer)
        inputs = [query, key, value, *past, *self.lengths, *(self.tables if fused else ["", ""])]
        if variant.sink:
            inputs += ["", "", self.weight(HEADS, std=1.0)]
        quantization: dict[str, Any] = {}
        if variant.cache:
            count = 1 if variant.cache == "PER_TENSOR" else CACHE_HEADS * HEAD
            step = 4.0 / 2**variant.cache_bits
            scales = [self.constant(step * (1 + self.random.random(count)), np.float32) for _ in range(2)]
            inputs += [""] * (12 - len(inputs)) + scales
            quantization = {"k_quant_type": variant.cache, "v_quant_type": variant.cache}
            quantization["kv_cache_bit_width"] = variant.cache_bits
        return self.add(
            "GroupQueryAttention",
            *inputs,
            results=[f"attention_{layer}", *present],
            domain=MICROSOFT,
            num_heads=HEADS,
            kv_num_heads=CACHE_HEADS,
            scale=HEAD**-0.5,
            do_rotary=int(fused),
            rotary_interleaved=int(variant.interleaved and fused),
            softcap=variant.softcap,
            local_window_size=variant.windows[layer],
            **quantization,
        )

    def add_plain_attention(self, x: str, layer: int) -> str:
        """Add attention in plain ops, with caches that Concat extends."""
        past, present = self.declare_cache(layer)
        query, key, value = (
            self.add(
                "Transpose", self.add("Reshape", part, self.constant([0, 0, heads, HEAD], np.int64)), perm=[0, 2, 1, 3]
            )
            for part, heads in zip(self.project(x), (HEADS, CACHE_HEADS, CACHE_HEADS), strict=True)
        )
        query, key = self.rotate(query), self.rotate(key)
        key, value = (
            self.add("Concat", old, new, results=[name], axis=2)
            for old, new, name in zip(past, (key, value), present, strict=True)
        )
        key, value = (self.repeat_heads(part) for part in (key, value))
        scores = self.add("MatMul", query, self.add("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.add("Mul", scores, self.constant(HEAD**-0.5, np.float32))
        if self.variant.softcap:
            cap = self.constant(self.variant.softcap, np.float32)
            scores = self.add("Mul", self.add("Tanh", self.add("Div", scores, cap)), cap)
        if self.variant.alibi:
            scores = self.add("Add", scores, self.add_distances())
        scores = self.add("Add", scores, self.add_mask(self.variant.windows[layer]))
        attended = self.add("MatMul", self.add("Softmax", scores, axis=-1), value)
        attended = self.add("Transpose", attended, perm=[0, 2, 1, 3])
        return self.add("Reshape", attended, self.constant([0, 0, HEADS * HEAD], np.int64))

    def rotate(self, x: str) -> str:
        axis = self.constant([1], np.int64)
        cosine, sine = (self.add("Unsqueeze", self.add("Gather", table, self.positions), axis) for table in self.tables)
        halves = [f"{x}_first", f"{x}_second"]
        self.add("Split", x, results=halves, axis=-1, num_outputs=2)
        first, second = halves
        left = self.add("Sub", self.add("Mul", first, cosine), self.add("Mul", second, sine))
        right = self.add("Add", self.add("Mul", second, cosine), self.add("Mul", first, sine))
        return self.add("Concat", left, right, axis=-1)

    def repeat_heads(self, x: str) -> str:
        wide = self.add("Unsqueeze", x, self.constant([2], np.int64))
        wide = self.add("Expand", wide, self.constant([1, 1, HEADS // CACHE_HEADS, 1, 1], np.int64))
        return self.add("Reshape", wide, self.constant([0, HEADS, -1, HEAD], np.int64))

    def add_distances(self) -> str:
        """Return biases [heads, 1, keys] that fall with the distance from the last key."""
        one = self.constant(1, np.int64)
        total = self.add("Gather", self.add("Shape", "attention_mask"), one)
        distances = self.add("Range", self.add("Sub", one, total), one, one)
        slopes = self.constant(np.reshape(0.3 ** np.arange(1, HEADS + 1), (HEADS, 1, 1)), np.float32)
        return self.add("Mul", self.add("Cast", distances, to=TensorProto.FLOAT), slopes)

    def add_mask(self, window: int) -> str:
        """Mask padding, later tokens, and tokens before the window."""
        zero, one = self.constant(0, np.int64), self.constant(1, np.int64)
        total = self.add("Gather", self.add("Shape", "attention_mask"), one)
        length = self.add("Gather", self.add("Shape", "input_ids"), one)
        keys = self.add("Range", zero, total, one)
        queries = self.add("Range", self.add("Sub", total, length), total, one)
        queries = self.add("Unsqueeze", queries, self.constant([1], np.int64))
        visible = self.add("LessOrEqual", keys, queries)
        if window > 0:
            first = self.add("Sub", queries, self.constant(window, np.int64))
            visible = self.add("And", visible, self.add("Greater", keys, first))
        present = self.add("Cast", "attention_mask", to=TensorProto.BOOL)
        present = self.add("Unsqueeze", present, self.constant([1, 2], np.int64))
        numbers = [self.constant(value, np.float32) for value in (0.0, LOWEST)]
        return self.add("Where", self.add("And", visible, present), *numbers)


def merge_branches(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a decoder as optimum merges it: a flag chooses between branches with and without a past."""
    graph = model.graph
    branches = []
    for has_past in (True, False):
        prefix = "with_past/" if has_past else "first/"
        renamed = {name: prefix + name for node in graph.node for name in node.output if name}
        nodes = []
        if not has_past:
            for value in graph.input:
                if value.name.startswith("past"):
                    shape = [1 if axis.dim_param else axis.dim_value for axis in value.type.tensor_type.shape.dim]
                    shape[2] = 0
                    renamed[value.name] = prefix + value.name
                    empty = numpy_helper.from_array(np.zeros(shape, np.float32))
                    nodes.append(helper.make_node("Constant", [], [renamed[value.name]], value=empty))
        for node in graph.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [renamed.get(name, name) for name in node.input]
            copy.output[:] = [renamed.get(name, name) for name in node.output]
            copy.name = prefix + node.name
            nodes.append(copy)
        outputs = [
            helper.make_tensor_value_info(renamed[v.name], v.type.tensor_type.elem_type, None) for v in graph.output
        ]
        branches.append(helper.make_graph(nodes, prefix, [], outputs))
    names = [value.name for value in graph.output]
    choice = helper.make_node("If", ["use_cache_branch"], names, then_branch=branches[0], else_branch=branches[1])
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    merged = helper.make_graph([choice], "merged", [*graph.input, flag], list(graph.output), list(graph.initializer))
    return helper.make_model(merged, opset_imports=list(model.opset_import), ir_version=model.ir_version)
