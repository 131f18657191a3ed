"""Small encoder–decoders with random weights, as optimum lays them out, and the answers of onnxruntime to them.

A text model has relative positions (T5), a speech model learned ones and convolutions over log-mel features (Whisper).
Decoders come as one merged file, as two files, or as one file without a cache; or as onnxruntime-genai builds Whisper,
with an encoder that computes the keys and values of its states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from generation.folders import write_json, write_tokenizer
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]

WIDTH, HEADS, LAYERS, VOCABULARY, MELS, SECONDS = 32, 2, 2, 512, 80, 1
HEAD_SIZE = WIDTH // HEADS
POSITIONS = 64
DISTANCES = 8
START, END = 3, 511
FORMS = ("merged", "split", "whole")
KINDS = ("text", "speech")
LANGUAGES = {"<|en|>": 10, "<|de|>": 11}
TASKS = {"transcribe": 12, "translate": 13}
NO_TIMESTAMPS = 14


@dataclass
class Nodes:
    """The nodes of a graph. Weights are shared by name, so that all files of a model have the same."""

    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict)
    count: int = 0

    def op(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        self.count += 1
        output = output or f"{kind}_{id(self)}_{self.count}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        array = np.asarray(value, dtype)
        name = f"constant_{array.dtype}_{array.shape}_{array.tolist()}"
        self.weights[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, name: str, *shape: int, scale: float | None = None) -> str:
        random = np.random.default_rng([self.seed, *name.encode()])
        factor = shape[0] ** -0.5 if scale is None else scale
        array = (random.normal(size=shape) * factor).astype(np.float32)
        self.weights[name] = numpy_helper.from_array(array, name)
        return name

    def normalize(self, x: str) -> str:
        """Divide by the root of the mean square."""
        squares = self.op("ReduceMean", self.op("Mul", x, x), axes=[-1], keepdims=1)
        return self.op("Div", x, self.op("Sqrt", self.op("Add", squares, self.constant(1e-6, np.float32))))

    def split_heads(self, x: str, weight: str) -> str:
        product = self.op("MatMul", x, self.weight(weight, WIDTH, WIDTH))
        heads = self.op("Reshape", product, self.constant([0, 0, HEADS, HEAD_SIZE]))
        return self.op("Transpose", heads, perm=[0, 2, 1, 3])

    def attend(self, query: str, key: str, value: str, bias: str | None, weight: str) -> str:
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = scores if bias is None else self.op("Add", scores, bias)
        result = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        joined = self.op("Reshape", self.op("Transpose", result, perm=[0, 2, 1, 3]), self.constant([0, 0, WIDTH]))
        return self.op("MatMul", joined, self.weight(weight, WIDTH, WIDTH))

    def hide(self, mask: str) -> str:
        """Return what to add to scores where a mask is 0."""
        ones = self.op("Cast", mask, to=TensorProto.FLOAT)
        bias = self.op("Mul", self.op("Sub", ones, self.constant(1, np.float32)), self.constant(1e9, np.float32))
        return self.op("Unsqueeze", bias, self.constant([1, 2]))

    def size(self, x: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", x), self.constant(axis), axis=0)


def _add_decoder(graph: Nodes, kind: str, has_past: bool, prefix: str = "") -> dict[str, str]:
    """Add the nodes of a decoder; return its outputs by the names that optimum uses."""
    ids, states = "input_ids", "encoder_hidden_states"
    zero, one = graph.constant(0), graph.constant(1)
    past = graph.size("past_key_values.0.decoder.key", 2) if has_past else zero
    total = graph.op("Add", past, graph.size(ids, 1))
    queries, keys = graph.op("Range", past, total, one), graph.op("Range", zero, total, one)
    x = graph.op("Gather", graph.weight("words", VOCABULARY, WIDTH, scale=1.0), ids, axis=0)
    distance = graph.op("Sub", graph.op("Unsqueeze", queries, graph.constant([1])), keys)
    future = graph.op("Less", distance, zero)
    bias = graph.op("Where", future, graph.constant(-1e9, np.float32), graph.constant(0, np.float32))
    if kind == "speech":
        x = graph.op("Add", x, graph.op("Gather", graph.weight("positions", POSITIONS, WIDTH), queries, axis=0))
    else:
        buckets = graph.op("Clip", distance, zero, graph.constant(DISTANCES - 1))
        table = graph.op("Gather", graph.weight("distances", DISTANCES, HEADS, scale=2.0), buckets, axis=0)
        bias = graph.op("Add", graph.op("Transpose", table, perm=[2, 0, 1]), bias)
    outputs = {}
    for layer in range(LAYERS):
        y, name = graph.normalize(x), f"decoder.{layer}"
        own = {part: graph.split_heads(y, f"{name}.{part}") for part in ("key", "value")}
        if has_past:
            own = {
                part: graph.op("Concat", f"past_key_values.{layer}.decoder.{part}", new, axis=2)
                for part, new in own.items()
            }
        x = graph.op(
            "Add", x, graph.attend(graph.split_heads(y, f"{name}.query"), own["key"], own["value"], bias, f"{name}.out")
        )
        y, name = graph.normalize(x), f"cross.{layer}"
        if has_past:
            cross = {part: f"past_key_values.{layer}.encoder.{part}" for part in ("key", "value")}
        else:
            cross = {part: graph.split_heads(states, f"{name}.{part}") for part in ("key", "value")}
        mask = None
        if kind == "text":
            mask = graph.hide("encoder_attention_mask")
        x = graph.op(
            "Add",
            x,
            graph.attend(graph.split_heads(y, f"{name}.query"), cross["key"], cross["value"], mask, f"{name}.out"),
        )
        for part in ("key", "value"):
            outputs[f"present.{layer}.decoder.{part}"] = own[part]
            if not has_past:
                outputs[f"present.{layer}.encoder.{part}"] = cross[part]
    logits = graph.op("MatMul", graph.normalize(x), graph.weight("output", WIDTH, VOCABULARY, scale=0.7))
    return {
        f"{prefix}{name}": graph.op("Identity", value, output=f"{prefix}{name}")
        for name, value in {"logits": logits, **outputs}.items()
    }


def _add_encoder(graph: Nodes, kind: str, features: str = "input_features") -> None:
    if kind == "speech":
        weight = graph.weight("convolution", WIDTH, MELS, 3, scale=0.1)
        x = graph.op("Conv", features, weight, strides=[2], pads=[1, 1], kernel_shape=[3])
        x = graph.op("Transpose", graph.op("Tanh", x), perm=[0, 2, 1])
    else:
        x = graph.op("Gather", graph.weight("words", VOCABULARY, WIDTH, scale=1.0), "input_ids", axis=0)
    y = graph.normalize(x)
    query, key, value = (graph.split_heads(y, f"encoder.{part}") for part in ("query", "key", "value"))
    bias = None
    if kind == "text":
        bias = graph.hide("attention_mask")
    x = graph.op("Add", x, graph.attend(query, key, value, bias, "encoder.out"))
    graph.op("Identity", x, output="last_hidden_state")


def _float(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _integers(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


def _list_caches(prefix: str, sides: Sequence[str], decoder_length: str) -> list[onnx.ValueInfoProto]:
    lengths = {"decoder": decoder_length, "encoder": "encoder_sequence_length_out"}
    return [
        _float(f"{prefix}.{layer}.{side}.{part}", "batch_size", HEADS, lengths[side], HEAD_SIZE)
        for layer in range(LAYERS)
        for side in sides
        for part in ("key", "value")
    ]


def _save(file: Path, graph: Nodes, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    proto = helper.make_graph(graph.nodes, "graph", inputs, outputs, list(graph.weights.values()))
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, file)


def write_encoder_decoder(folder: Path, kind: str, form: str, seed: int = 0, **generation: Any) -> Path:
    """Write a folder as optimum does."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = Nodes(seed)
    _add_encoder(encoder, kind)
    source = _float("input_features", "batch_size", MELS, "frames")
    texts = [_integers(name, "batch_size", "encoder_length") for name in ("input_ids", "attention_mask")]
    states = ("batch_size", "encoder_sequence_length", WIDTH)
    _save(
        folder / "encoder_model.onnx",
        encoder,
        [source] if kind == "speech" else texts,
        [_float("last_hidden_state", *states)],
    )
    ids = _integers("input_ids", "batch_size", "decoder_sequence_length")
    masks = [_integers("encoder_attention_mask", "batch_size", "encoder_sequence_length")] * (kind == "text")
    hidden = _float("encoder_hidden_states", *states)
    logits = _float("logits", "batch_size", "decoder_sequence_length", VOCABULARY)
    both, past = ("decoder", "encoder"), "past_decoder_sequence_length"
    if form == "merged":
        main, flag = Nodes(seed), helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
        branches, names = [], ["logits", *(value.name for value in _list_caches("present", both, past))]
        for prefix, has_past in (("first_", False), ("later_", True)):
            branch = Nodes(seed)
            results = _add_decoder(branch, kind, has_past, prefix)
            for name in names:  # what the branch with a past does not compute is empty
                if f"{prefix}{name}" not in results:
                    empty = branch.constant(np.zeros((0, HEADS, 1, HEAD_SIZE)), np.float32)
                    branch.op("Identity", empty, output=f"{prefix}{name}")
            main.weights.update(branch.weights)
            ranks = {name: 3 if name == "logits" else 4 for name in names}
            outputs = [_float(prefix + name, *[f"{prefix}{name}_{n}" for n in range(ranks[name])]) for name in names]
            branches.append(helper.make_graph(branch.nodes, prefix, [], outputs))
        main.nodes.append(
            helper.make_node("If", ["use_cache_branch"], names, else_branch=branches[0], then_branch=branches[1])
        )
        inputs = [ids, *masks, hidden, *_list_caches("past_key_values", both, past), flag]
        _save(
            folder / "decoder_model_merged.onnx",
            main,
            inputs,
            [logits, *_list_caches("present", both, f"{past} + 1")],
        )
    else:
        first = Nodes(seed)
        _add_decoder(first, kind, has_past=False)
        presents = _list_caches("present", both, "decoder_sequence_length") if form == "split" else []
        _save(folder / "decoder_model.onnx", first, [ids, *masks, hidden], [logits, *presents])
    if form == "split":
        later = Nodes(seed)
        _add_decoder(later, kind, has_past=True)
        inputs = [ids, *masks, *_list_caches("past_key_values", both, past)]
        _save(
            folder / "decoder_with_past_model.onnx",
            later,
            inputs,
            [logits, *_list_caches("present", ("decoder",), f"{past} + 1")],
        )
    _write_configuration(folder, kind, generation)
    return folder


def write_genai_whisper(folder: Path, seed: int = 0) -> Path:
    """Write the speech model as onnxruntime-genai's builder does."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = Nodes(seed)
    _add_encoder(encoder, "speech", "audio_features")
    for layer in range(LAYERS):
        for part in ("key", "value"):
            heads = encoder.split_heads("last_hidden_state", f"cross.{layer}.{part}")
            encoder.op("Identity", heads, output=f"present.{layer}.encoder.{part}")
    states = _float("last_hidden_state", "batch_size", "encoder_sequence_length", WIDTH)
    source = _float("audio_features", "batch_size", MELS, "frames")
    _save(folder / "encoder.onnx", encoder, [source], [states, *_list_caches("present", ("encoder",), "")])
    decoder, past = Nodes(seed), "past_sequence_length"
    _add_decoder(decoder, "speech", has_past=True)
    inputs = [_integers("input_ids", "batch_size", "sequence_length")]
    inputs += _list_caches("past_key_values", ("decoder", "encoder"), past)
    logits = _float("logits", "batch_size", "sequence_length", VOCABULARY)
    _save(folder / "decoder.onnx", decoder, inputs, [logits, *_list_caches("present", ("decoder",), f"{past} + 1")])
    pasts = {"past_%s_names": "decoder", "cross_past_%s_names": "encoder"}
    presents = {"present_%s_names": "decoder"}
    crosses = {"cross_present_%s_names": "encoder"}

    def names(fields: Mapping[str, str], prefix: str) -> dict[str, str]:
        parts = ("key", "value")
        return {field % part: f"{prefix}.%d.{side}.{part}" for field, side in fields.items() for part in parts}

    decoder_section = {
        "filename": "decoder.onnx",
        "inputs": {"input_ids": "input_ids", **names(pasts, "past_key_values")},
        "outputs": {"logits": "logits", **names(presents, "present")},
    }
    encoder_section = {
        "filename": "encoder.onnx",
        "inputs": {"audio_features": "audio_features"},
        "outputs": {"encoder_hidden_states": "last_hidden_state", **names(crosses, "present")},
    }
    model = {"type": "whisper", "context_length": POSITIONS, "vocab_size": VOCABULARY, "eos_token_id": END}
    model |= {"bos_token_id": START, "decoder": decoder_section, "encoder": encoder_section}
    write_json(folder / "genai_config.json", {"model": model, "search": {}})
    write_json(folder / "preprocessor_config.json", {"chunk_length": SECONDS})
    write_tokenizer(folder, "metaspace")
    return folder


def _write_configuration(folder: Path, kind: str, generation: Mapping[str, Any]) -> None:
    config = {
        "model_type": "t5" if kind == "text" else "whisper",
        "vocab_size": VOCABULARY,
        "d_model": WIDTH,
        "decoder_start_token_id": START,
        "eos_token_id": END,
    }
    length = {"relative_attention_num_buckets": DISTANCES} if kind == "text" else {"max_target_positions": POSITIONS}
    write_json(folder / "config.json", {**config, **length})
    write_json(folder / "generation_config.json", {"decoder_start_token_id": START, "eos_token_id": END, **generation})
    if kind == "speech":
        fields = {
            "feature_size": MELS,
            "sampling_rate": 16000,
            "chunk_length": SECONDS,
            "n_fft": 400,
            "hop_length": 160,
        }
        write_json(folder / "preprocessor_config.json", {**fields, "nb_max_frames": 100 * SECONDS})
    write_tokenizer(folder, "metaspace")


class Oracle:
    """A folder in onnxruntime, in the loop that users write by hand."""

    def __init__(self, folder: Path) -> None:
        self._sessions = {file.stem: _open_session(file) for file in folder.glob("*.onnx")}

    def list_logits(
        self, inputs: Mapping[str, Array], tokens: list[int], choose: Callable[[Array, int], int | None]
    ) -> Iterator[Array]:
        """Yield the logits of each step; `choose` returns the next token from them and the position, or None."""
        sessions = self._sessions
        (states,) = sessions["encoder_model"].run(None, dict(inputs))
        merged = sessions.get("decoder_model_merged")
        first, later = (
            (merged, merged) if merged else (sessions["decoder_model"], sessions.get("decoder_with_past_model"))
        )
        cache: dict[str, Array] = {}
        tokens, new = list(tokens), list(tokens)
        while True:
            session = later if cache and later is not None else first
            feeds: dict[str, Array] = {"input_ids": np.array([new]), "encoder_hidden_states": states}
            feeds["encoder_attention_mask"] = np.ones(states.shape[:2], np.int64)
            feeds["use_cache_branch"] = np.array([bool(cache)])
            for value in session.get_inputs():
                if value.name.startswith("past"):
                    shape = [1 if isinstance(size, str) else size for size in value.shape]
                    feeds[value.name] = cache.get(value.name, np.zeros(shape, np.float32))
            names = [value.name for value in session.get_outputs()]
            results = dict(zip(names, session.run(names, {v.name: feeds[v.name] for v in session.get_inputs()})))
            yield results["logits"][0, -1]
            token = choose(results["logits"][0, -1], len(tokens))
            if token is None:
                return
            tokens.append(token)
            new = tokens if later is None else [token]
            presents = [name for name in names if name.startswith("present") and later is not None]
            new_cache = {name.replace("present", "past_key_values"): results[name] for name in presents}
            cache |= {name: value for name, value in new_cache.items() if not cache or ".decoder." in name}


def _open_session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
