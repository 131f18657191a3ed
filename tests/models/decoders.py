"""Decoders with a key-value cache and random weights, in the forms that exporters write.

`optimum` is the form of Hugging Face's exporter: attention in plain ops, and `Concat` of `past_key_values.*` with new
keys and values. `genai` is that of onnxruntime-genai: `GroupQueryAttention`, and `MatMulNBits` for int4 weights. The
weights of a model are in an external data file beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
REVISION = 1  # raise it when graphs or weights change, so that files are built again
POSITIONS = 4096  # of the rotary tables and of GPT-2's position embedding
BLOCK = 32  # elements of a quantized block
STD = 0.02  # of random weights
EPSILON = 1e-6
ROTARY_BASE = 1e6
ALIGNMENT = 4096  # bytes; external data is mapped by some engines
LOWEST = {"float32": -3.0e38, "float16": -65504.0}  # masks attention scores


@dataclass(frozen=True)
class DecoderShape:
    """The sizes of a decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    head_size: int = 64


GPT2 = DecoderShape(layers=12, hidden=768, heads=12, kv_heads=12, intermediate=3072, vocabulary=50257)
QWEN = DecoderShape(layers=24, hidden=896, heads=14, kv_heads=2, intermediate=4864, vocabulary=151936)


@dataclass(frozen=True)
class DecoderForm:
    """An architecture in an exporter's form."""

    shape: DecoderShape
    weights: str  # int4, or float: the dtype of activations
    build: Callable[[DecoderWriter, DecoderForm], None]

    @property
    def past_names(self) -> list[str]:
        """The inputs that hold the cache; `present_name` names their outputs."""
        return [f"past_key_values.{layer}.{kind}" for layer in range(self.shape.layers) for kind in ("key", "value")]


def present_name(past: str) -> str:
    return past.replace("past_key_values", "present")


class DecoderWriter:
    """Collects nodes; writes random weights to a file at once, so that they need not fit into memory."""

    def __init__(self, data: BinaryIO, location: str, dtype: str) -> None:
        """`dtype` is that of activations, `location` the final name of the data file."""
        self.data = data
        self.location = location
        self.dtype = np.dtype(dtype)
        self.kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._random = np.random.default_rng(0)
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def add(self, op: str, *inputs: str, results: Sequence[str] = (), domain: str = "", **attributes: Any) -> str:
        """Add a node and return its first output, which gets a name unless `results` names the outputs."""
        number = len(self.nodes)
        outputs = list(results) or [f"{op.lower()}_{number}"]
        self.nodes.append(helper.make_node(op, list(inputs), outputs, f"{op}_{number}", domain=domain, **attributes))
        return outputs[0]

    def constant(self, content: Any, dtype: Any = np.int64) -> str:
        """Return the name of a small constant."""
        array = np.asarray(content, dtype)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = name = f"constant_{len(self._constants)}"
            self.initializers.append(numpy_helper.from_array(array, name))
        return self._constants[key]

    def number(self, content: float) -> str:
        """Return the name of a scalar with the dtype of activations."""
        return self.constant(content, self.dtype)

    def weight(self, *shape: int, mean: float = 0.0, std: float = STD) -> str:
        """Draw a weight from a normal distribution."""
        drawn = self._random.standard_normal(shape, np.float32)
        drawn *= np.float32(std)
        drawn += np.float32(mean)
        return self.store(drawn.astype(self.dtype, copy=False))

    def int4_weight(self, *shape: int) -> str:
        """Draw pairs of 4-bit integers from 1 to 15: those are symmetric around the zero point of 8."""
        low, high = (self._random.integers(1, 16, shape, np.uint8) for _ in range(2))
        return self.store(low | high << 4)

    def store(self, array: Array) -> str:
        """Write an array to the data file and return the name of its initializer."""
        self.data.write(bytes(-self.data.tell() % ALIGNMENT))
        tensor = TensorProto(
            name=f"weight_{len(self.initializers)}",
            dims=array.shape,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            data_location=TensorProto.EXTERNAL,
        )
        places = {"location": self.location, "offset": str(self.data.tell()), "length": str(array.nbytes)}
        for key, content in places.items():
            tensor.external_data.add(key=key, value=content)
        self.data.write(np.ascontiguousarray(array).data)
        self.initializers.append(tensor)
        return tensor.name

    def linear(self, x: str, depth: int, width: int, weights: str, bias: bool = False) -> str:
        """Multiply by a random matrix: `MatMulNBits` for int4, else `MatMul`."""
        if weights == "int4":
            blocks = depth // BLOCK
            packed = self.int4_weight(width, blocks, BLOCK // 2)
            scales = self.weight(width * blocks, mean=STD / 4.3, std=STD / 50)  # 4.3: the deviation of -7 to 7
            sizes = {"K": depth, "N": width, "bits": 4, "block_size": BLOCK}
            level = 4 if self.dtype == np.float32 else 0
            y = self.add("MatMulNBits", x, packed, scales, domain=MICROSOFT, accuracy_level=level, **sizes)
        else:
            y = self.add("MatMul", x, self.weight(depth, width))
        return self.add("Add", y, self.weight(width)) if bias else y

    def reshape(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.constant(shape))

    def cast(self, x: str, dtype: Any) -> str:
        return self.add("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def add_ports(self, form: DecoderForm, total: str, integers: Sequence[str]) -> None:
        """Declare the inputs and outputs that all forms share; `integers` have a token's shape."""
        shape, past = form.shape, "past_sequence_length"
        for name in integers:
            self.inputs.append(_port(name, TensorProto.INT64, "batch_size", "sequence_length"))
        self.inputs.append(_port("attention_mask", TensorProto.INT64, "batch_size", total))
        logits = ("batch_size", "sequence_length", shape.vocabulary)
        self.outputs.append(_port("logits", self.kind, *logits))
        for name in form.past_names:
            sizes = ("batch_size", shape.kv_heads, past, shape.head_size)
            self.inputs.append(_port(name, self.kind, *sizes))
            sizes = ("batch_size", shape.kv_heads, total, shape.head_size)
            self.outputs.append(_port(present_name(name), self.kind, *sizes))


def _port(name: str, kind: int, *dims: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def decoder_inputs(name: str, tokens: Array, past_length: int) -> dict[str, Array]:
    """Return the inputs of a step besides the cache, for tokens of one sequence."""
    total = past_length + tokens.shape[1]
    inputs = {"input_ids": tokens, "attention_mask": np.ones((1, total), np.int64)}
    if "optimum" in name:
        inputs["position_ids"] = np.arange(past_length, total)[None]
    return inputs


def build_decoder(name: str, form: DecoderForm, folder: Path, dtype: str = "float32") -> Path:
    """Return the file of a decoder, built on first use; `dtype` is that of activations."""
    shape = form.shape
    stem = f"{name}-{dtype}-{shape.layers}x{shape.hidden}-{shape.vocabulary}-r{REVISION}"
    path, data = folder / f"{stem}.onnx", folder / f"{stem}.data"
    if path.is_file() and data.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    print(f"building {path.name}: {shape.layers} layers of random weights", file=sys.stderr, flush=True)
    partial = data.with_suffix(".partial")
    with partial.open("wb") as file:
        writer = DecoderWriter(file, data.name, dtype)
        form.build(writer, form)
    partial.replace(data)
    graph = helper.make_graph(writer.nodes, stem, writer.inputs, writer.outputs, writer.initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


# -- genai -----------------------------------------------------------------------------------------------------------


def _build_genai(writer: DecoderWriter, form: DecoderForm) -> None:
    """Write the graph of onnxruntime-genai's model builder."""
    shape, weights = form.shape, form.weights
    writer.add_ports(form, "total_sequence_length", ["input_ids"])
    lengths = writer.add("ReduceSum", "attention_mask", writer.constant([1]), keepdims=0)
    last = writer.cast(writer.add("Sub", lengths, writer.constant(1)), np.int32)
    sizes = writer.add("Shape", "attention_mask")
    total = writer.cast(writer.add("Gather", sizes, writer.constant(1)), np.int32)
    angles = np.outer(np.arange(POSITIONS), _frequencies(shape.head_size))
    tables = [writer.store(function(angles).astype(writer.dtype)) for function in (np.cos, np.sin)]
    embedding = writer.weight(shape.vocabulary, shape.hidden)
    residual = writer.add("Gather", embedding, "input_ids")
    normal = {"axis": -1, "epsilon": EPSILON, "stash_type": 1}
    x = writer.add("SimplifiedLayerNormalization", residual, writer.weight(shape.hidden, mean=1.0), **normal)
    for layer in range(shape.layers):
        attended = _add_grouped_attention(writer, form, x, layer, (last, total, *tables))
        x, residual = _add_skip_norm(writer, attended, residual, shape.hidden)
        x, residual = _add_skip_norm(writer, _add_gated_mlp(writer, form, x), residual, shape.hidden)
    logits = writer.linear(x, shape.hidden, shape.vocabulary, weights)
    writer.add("Identity", logits, results=["logits"])


def _add_grouped_attention(
    writer: DecoderWriter, form: DecoderForm, x: str, layer: int, shared: tuple[str, str, str, str]
) -> str:
    shape, weights = form.shape, form.weights
    projections = [
        writer.linear(x, shape.hidden, heads * shape.head_size, weights, bias=True)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    ]
    pasts = form.past_names[2 * layer : 2 * layer + 2]
    attended = writer.add(
        "GroupQueryAttention",
        *projections,
        *pasts,
        *shared,
        results=[f"attended_{layer}", *map(present_name, pasts)],
        domain=MICROSOFT,
        num_heads=shape.heads,
        kv_num_heads=shape.kv_heads,
        scale=shape.head_size**-0.5,
        do_rotary=1,
        rotary_interleaved=0,
        local_window_size=-1,
    )
    return writer.linear(attended, shape.heads * shape.head_size, shape.hidden, weights)


def _add_skip_norm(writer: DecoderWriter, x: str, residual: str, hidden: int) -> tuple[str, str]:
    names = [f"norm_{len(writer.nodes)}", "", "", f"sum_{len(writer.nodes)}"]
    gain = writer.weight(hidden, mean=1.0)
    op = "SkipSimplifiedLayerNormalization"
    writer.add(op, x, residual, gain, results=names, domain=MICROSOFT, epsilon=EPSILON)
    return names[0], names[3]


def _add_gated_mlp(writer: DecoderWriter, form: DecoderForm, x: str) -> str:
    shape, weights = form.shape, form.weights
    gate, up = (writer.linear(x, shape.hidden, shape.intermediate, weights) for _ in range(2))
    active = writer.add("Mul", writer.add("Mul", gate, writer.add("Sigmoid", gate)), up)
    return writer.linear(active, shape.intermediate, shape.hidden, weights)


def _frequencies(head_size: int) -> Array:
    return ROTARY_BASE ** (-np.arange(0, head_size, 2) / head_size)


# -- optimum ---------------------------------------------------------------------------------------------------------


def _build_optimum(writer: DecoderWriter, form: DecoderForm) -> None:
    """Write the graph of Hugging Face's exporter for an architecture with rotary embedding and grouped heads."""
    shape = form.shape
    writer.add_ports(form, "past_sequence_length + sequence_length", ["input_ids", "position_ids"])
    mask, rotary = _add_causal_mask(writer), _add_rotary_tables(writer, shape.head_size)
    x = writer.add("Gather", writer.weight(shape.vocabulary, shape.hidden), "input_ids")
    for layer in range(shape.layers):
        normal = _add_rms_norm(writer, x, shape.hidden)
        x = writer.add("Add", x, _add_rotary_attention(writer, form, normal, layer, mask, rotary))
        x = writer.add("Add", x, _add_gated_mlp(writer, form, _add_rms_norm(writer, x, shape.hidden)))
    x = _add_rms_norm(writer, x, shape.hidden)
    writer.add("Identity", writer.linear(x, shape.hidden, shape.vocabulary, form.weights), results=["logits"])


def _add_causal_mask(writer: DecoderWriter) -> str:
    """Add a mask that is added to scores: a query sees keys up to its own position that are not padding."""
    total = writer.add("Gather", writer.add("Shape", "attention_mask"), writer.constant(1))
    keys = writer.add("Range", writer.constant(0), total, writer.constant(1))
    visible = writer.add("LessOrEqual", keys, writer.add("Unsqueeze", "position_ids", writer.constant([2])))
    present = writer.add("Unsqueeze", writer.cast("attention_mask", np.bool_), writer.constant([1]))
    chosen = writer.add("Unsqueeze", writer.add("And", visible, present), writer.constant([1]))
    return writer.add("Where", chosen, writer.number(0.0), writer.number(LOWEST[writer.dtype.name]))


def _add_rotary_tables(writer: DecoderWriter, head_size: int) -> tuple[str, str]:
    frequencies = writer.constant(_frequencies(head_size)[None, :, None], np.float32)
    positions = writer.cast(writer.add("Unsqueeze", "position_ids", writer.constant([1])), np.float32)
    angles = writer.add("Transpose", writer.add("MatMul", frequencies, positions), perm=[0, 2, 1])
    angles = writer.add("Concat", angles, angles, axis=-1)
    axis = writer.constant([1])
    cosine, sine = (
        writer.add("Unsqueeze", writer.cast(writer.add(op, angles), writer.dtype), axis) for op in ("Cos", "Sin")
    )
    return cosine, sine


def _add_rms_norm(writer: DecoderWriter, x: str, hidden: int) -> str:
    wide = writer.cast(x, np.float32) if writer.dtype != np.float32 else x
    square = writer.add("Pow", wide, writer.constant(2.0, np.float32))
    mean = writer.add("Add", writer.add("ReduceMean", square, axes=[-1]), writer.constant(EPSILON, np.float32))
    scale = writer.add("Div", writer.constant(1.0, np.float32), writer.add("Sqrt", mean))
    normal = writer.add("Mul", wide, scale)
    if writer.dtype != np.float32:
        normal = writer.cast(normal, writer.dtype)
    return writer.add("Mul", writer.weight(hidden, mean=1.0), normal)


def _add_rotary_attention(
    writer: DecoderWriter, form: DecoderForm, x: str, layer: int, mask: str, rotary: tuple[str, str]
) -> str:
    shape, size = form.shape, form.shape.head_size

    def project(heads: int) -> str:
        y = writer.linear(x, shape.hidden, heads * size, form.weights, bias=True)
        return writer.add("Transpose", writer.reshape(y, 0, 0, heads, size), perm=[0, 2, 1, 3])

    query, key = (_add_rotation(writer, project(heads), rotary, size) for heads in (shape.heads, shape.kv_heads))
    key, value = _add_cache(writer, form, layer, key, project(shape.kv_heads))
    key, value = (_repeat_heads(writer, form, y) for y in (key, value))
    return writer.linear(
        _add_attention(writer, form, query, key, value, mask), shape.heads * size, shape.hidden, form.weights
    )


def _add_rotation(writer: DecoderWriter, x: str, rotary: tuple[str, str], size: int) -> str:
    axis, half = writer.constant([3]), writer.constant([size // 2])
    first = writer.add("Slice", x, writer.constant([0]), half, axis)
    second = writer.add("Slice", x, half, writer.constant([2**63 - 1]), axis)
    turned = writer.add("Concat", writer.add("Neg", second), first, axis=-1)
    return writer.add("Add", writer.add("Mul", x, rotary[0]), writer.add("Mul", turned, rotary[1]))


def _add_cache(writer: DecoderWriter, form: DecoderForm, layer: int, key: str, value: str) -> tuple[str, str]:
    key_past, value_past = form.past_names[2 * layer : 2 * layer + 2]
    return (
        writer.add("Concat", key_past, key, results=[present_name(key_past)], axis=2),
        writer.add("Concat", value_past, value, results=[present_name(value_past)], axis=2),
    )


def _repeat_heads(writer: DecoderWriter, form: DecoderForm, x: str) -> str:
    """Give each query head its keys or values."""
    shape = form.shape
    wide = writer.add("Unsqueeze", x, writer.constant([2]))
    wide = writer.add("Expand", wide, writer.constant([1, 1, shape.heads // shape.kv_heads, 1, 1]))
    return writer.reshape(wide, 0, shape.heads, -1, shape.head_size)


def _add_attention(writer: DecoderWriter, form: DecoderForm, query: str, key: str, value: str, mask: str) -> str:
    shape = form.shape
    scores = writer.add("MatMul", query, writer.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = writer.add("Add", writer.add("Mul", scores, writer.number(shape.head_size**-0.5)), mask)
    attended = writer.add("MatMul", writer.add("Softmax", scores, axis=-1), value)
    attended = writer.add("Transpose", attended, perm=[0, 2, 1, 3])
    return writer.reshape(attended, 0, 0, shape.heads * shape.head_size)


def _build_gpt2(writer: DecoderWriter, form: DecoderForm) -> None:
    """Write the graph of Hugging Face's exporter for GPT-2, whose linear layers are `Gemm` on rows."""
    shape = form.shape
    writer.add_ports(form, "past_sequence_length + sequence_length", ["input_ids", "position_ids"])
    mask, tokens = _add_causal_mask(writer), writer.add("Shape", "input_ids")
    words = writer.add("Gather", writer.weight(shape.vocabulary, shape.hidden), "input_ids")
    x = writer.add("Add", words, writer.add("Gather", writer.weight(POSITIONS, shape.hidden), "position_ids"))

    def norm(y: str) -> str:
        weights = writer.weight(shape.hidden, mean=1.0), writer.weight(shape.hidden)
        return writer.add("LayerNormalization", y, *weights, axis=-1, epsilon=1e-5)

    def linear(y: str, depth: int, width: int) -> str:
        rows = writer.add("Gemm", writer.reshape(y, -1, depth), writer.weight(depth, width), writer.weight(width))
        return writer.add("Reshape", rows, writer.add("Concat", tokens, writer.constant([width]), axis=0))

    for layer in range(shape.layers):
        parts = [f"{kind}_{layer}" for kind in ("query", "key", "value")]
        writer.add("Split", linear(norm(x), shape.hidden, 3 * shape.hidden), results=parts, axis=2)
        query, key, value = (
            writer.add("Transpose", writer.reshape(part, 0, 0, shape.heads, shape.head_size), perm=[0, 2, 1, 3])
            for part in parts
        )
        key, value = _add_cache(writer, form, layer, key, value)
        attended = _add_attention(writer, form, query, key, value, mask)
        x = writer.add("Add", linear(attended, shape.hidden, shape.hidden), x)
        wide = _add_gelu(writer, linear(norm(x), shape.hidden, shape.intermediate))
        x = writer.add("Add", x, linear(wide, shape.intermediate, shape.hidden))
    writer.add("Identity", writer.linear(norm(x), shape.hidden, shape.vocabulary, form.weights), results=["logits"])


def _add_gelu(writer: DecoderWriter, x: str) -> str:
    """Add GELU with tanh, as GPT-2 writes it."""
    cube = writer.add("Mul", writer.add("Pow", x, writer.number(3.0)), writer.number(0.044715))
    inner = writer.add("Mul", writer.add("Add", x, cube), writer.number(sqrt(2 / pi)))
    half = writer.add("Mul", x, writer.number(0.5))
    return writer.add("Mul", half, writer.add("Add", writer.add("Tanh", inner), writer.number(1.0)))


DECODERS = {
    "gpt2-optimum": DecoderForm(GPT2, "float", _build_gpt2),
    "qwen-optimum": DecoderForm(QWEN, "float", _build_optimum),
    "qwen-genai": DecoderForm(QWEN, "float", _build_genai),
    "qwen-genai-int4": DecoderForm(QWEN, "int4", _build_genai),
}
"""By architecture, exporter and weights; float weights have the dtype of activations."""
