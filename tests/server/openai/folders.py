"""Folders for servers: the demo model with other chat templates, and small embedding models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from generation.folders import write_tokenizer

import weft
from weft import ops

VOCABULARY, WIDTH, MOST_TOKENS = 300, 12, 64
DEMO = Path(weft.__file__).parent / "generation" / "demo_model"


def write_chat_folder(folder: Path, template: str, renamed: dict[str, str] | None = None) -> Path:
    """Copy the demo model with a chat template. `renamed` gives other texts to its special tokens."""
    folder.mkdir(parents=True)
    for name in ("genai_config.json", "model.onnx"):
        shutil.copyfile(DEMO / name, folder / name)
    tokenizer = (DEMO / "tokenizer.json").read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads((DEMO / "tokenizer_config.json").read_text(encoding="utf-8"))
    for old, new in (renamed or {}).items():
        tokenizer = tokenizer.replace(old, new)
    config["chat_template"] = template
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_embedding_folder(folder: Path, output: str = "last_hidden_state", **configs: Any) -> Path:
    """Write an encoder whose vectors depend on all tokens of a text, with its tokenizer.

    output: `last_hidden_state`, or `sentence_embedding` or `pooler_output` for one vector of each text.
    configs: contents of configuration files by name, with `__` for "." and `___` for "/".
    """
    (folder / "onnx").mkdir(parents=True)
    random = np.random.default_rng(5)
    graph = weft.Graph("encoder", opset=17)
    ids = graph.input("input_ids", ("batch", "sequence"), "int64")
    mask = graph.input("attention_mask", ("batch", "sequence"), "int64")
    types = graph.input("token_type_ids", ("batch", "sequence"), "int64")
    table = graph.parameter("table", random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32))
    kinds = graph.parameter("kinds", random.normal(size=(2, WIDTH)).astype(np.float32))
    mixing = graph.parameter("mixing", random.normal(size=(WIDTH, WIDTH)).astype(np.float32))
    vectors = ops.gather(table, ids, axis=0) + ops.gather(kinds, types, axis=0)
    weights = ops.softmax(ops.mat_mul(vectors, ops.transpose(vectors, perm=[0, 2, 1])) * 0.1, axis=-1)
    weights = weights * ops.unsqueeze(ops.cast(mask, to=1), [1])
    hidden = ops.tanh(ops.mat_mul(ops.mat_mul(weights, vectors), mixing) + vectors)
    if output == "last_hidden_state":
        graph.output(hidden, output)
    else:
        graph.output(ops.reduce_mean(hidden, axes=[1], keepdims=0), output)
    graph.to_onnx(str(folder / "onnx" / "model.onnx"))
    write_tokenizer(folder, "word-piece")
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": MOST_TOKENS}), encoding="utf-8")
    contents = {"config__json": {"architectures": ["BertModel"], "model_type": "bert"}, **configs}
    for name, content in contents.items():
        path = folder / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return folder
