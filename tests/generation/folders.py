"""Write folders of language models for tests: configurations as exporters write them, with ONNX files of no content.

`open_folder` opens no ONNX file. Tests that run a decoder pass their own with `files`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

GENAI_INPUTS = {
    "input_ids": "input_ids",
    "attention_mask": "attention_mask",
    "position_ids": "position_ids",
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
}
GENAI_OUTPUTS = {
    "logits": "logits",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
}
CORPUS = (
    "The quick brown fox jumps over the lazy dog. 0123456789\n",
    "Grüße aus Zürich: naïve façade, coöperate, e\u0301te\u0301.\n",
    "你好，世界。日本語のテキスト。\n",
    "👩‍🚀 🎉 🇨🇭 \t{ 'json': [1, 2, 3] }\n",
)
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def write_json(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_files(folder: Path, names: Iterable[str], content: bytes = b"") -> None:
    """Write files of one content; names can have folders."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def genai_config(**changes: Any) -> dict[str, Any]:
    """Return a genai_config.json; keys like `model.decoder.head_size` (dots as `__`) replace fields, None removes."""
    config: dict[str, Any] = {
        "model": {
            "bos_token_id": 1,
            "context_length": 512,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": 16,
                "hidden_size": 64,
                "inputs": dict(GENAI_INPUTS),
                "outputs": dict(GENAI_OUTPUTS),
                "num_attention_heads": 4,
                "num_hidden_layers": 2,
                "num_key_value_heads": 2,
            },
            "eos_token_id": [5, 6],
            "pad_token_id": 0,
            "type": "qwen3",
            "vocab_size": 300,
        },
        "search": {
            "do_sample": True,
            "early_stopping": True,
            "length_penalty": 1.0,
            "max_length": 512,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": True,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
        },
    }
    for key, value in changes.items():
        *sections, field = key.split("__")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        if value is None:
            place.pop(field, None)
        else:
            place[field] = value
    return config


def write_genai_folder(
    folder: Path, config: Mapping[str, Any] | None = None, files: Iterable[str] = ("model.onnx",)
) -> Path:
    """Write a folder of onnxruntime-genai."""
    write_files(folder, files)
    write_json(folder / "genai_config.json", genai_config() if config is None else config)
    return folder


def write_optimum_folder(
    folder: Path,
    files: Iterable[str] = ("model.onnx",),
    config: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
) -> Path:
    """Write a folder of optimum or transformers.js."""
    write_files(folder, files)
    default = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "vocab_size": 300,
        "eos_token_id": 5,
        "bos_token_id": 1,
    }
    write_json(folder / "config.json", default if config is None else config)
    if generation is not None:
        write_json(folder / "generation_config.json", generation)
    return folder


def write_tokenizer(folder: Path, kind: str = "byte-level", **config: Any) -> Path:
    """Train a small tokenizer, and write it with a chat template.

    kind: `byte-level` (GPT-2, Qwen), `byte-fallback` (Llama 2, Gemma), `metaspace` (T5), `word-piece` (BERT) or `none`.
    """
    tokenizer = train_tokenizer(kind)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    fields = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": CHAT_TEMPLATE, **config}
    write_json(folder / "tokenizer_config.json", fields)
    return folder


def train_tokenizer(kind: str) -> Tokenizer:
    """Train a tokenizer of some hundred tokens whose decoder is of a kind."""
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    elif kind == "word-piece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special)
    elif kind == "none":
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordLevelTrainer(vocab_size=300, special_tokens=special)
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        if kind == "byte-fallback":
            rules = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
            tokenizer.decoder = decoders.Sequence(rules)
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special + byte_tokens, limit_alphabet=40)
    tokenizer.train_from_iterator(CORPUS, trainer)
    start = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    if kind in ("byte-fallback", "metaspace"):
        return without_special_bytes(tokenizer, byte_tokens)
    return tokenizer


def without_special_bytes(tokenizer: Tokenizer, byte_tokens: list[str]) -> Tokenizer:
    """Return the tokenizer with its byte tokens as tokens of the model only, as in real files."""
    fields = json.loads(tokenizer.to_str())
    fields["added_tokens"] = [token for token in fields["added_tokens"] if token["content"] not in byte_tokens]
    return Tokenizer.from_str(json.dumps(fields))
