"""What the configuration of sentence-transformers says about an embedding model: pooling, length, normalisation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InvalidModelError, UnsupportedModelError
from weft.generation.config_files import Config, read_optional_config, read_text_file

Array = np.ndarray[Any, Any]

MODULES, PROMPTS, TRANSFORMER = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
POOLING = "1_Pooling"
MODEL_FILES = ("model.onnx", "onnx/model.onnx")
LARGEST_LENGTH = 1 << 20  # tokenizers write larger ones for none
OFFSET_TYPES = (
    "roberta",
    "xlm-roberta",
    "camembert",
    "mpnet",
    "xlm-roberta-xl",
)  # whose first positions are for padding
OFFSET = 2


def _pool_weighted(row: Array) -> Array:
    weights = np.arange(1, len(row) + 1, dtype=np.float64)[:, None]
    pooled: Array = (row * weights).sum(axis=0) / weights.sum()
    return pooled


POOLINGS: Mapping[
    str, Callable[[Array], Array]
] = {  # of the tokens of one text [tokens, size], in the order of results
    "cls": lambda row: row[0],
    "max": lambda row: row.max(axis=0),
    "mean": lambda row: row.sum(axis=0) / len(row),
    "mean_sqrt_len_tokens": lambda row: row.sum(axis=0) / np.sqrt(len(row)),
    "weightedmean": _pool_weighted,
    "lasttoken": lambda row: row[-1],
}
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class EmbeddingFolder:
    """The configuration of an embedding model.

    poolings: how the vectors of tokens become one; several are concatenated.
    is_normalized: whether embeddings have the length 1.
    max_tokens: of a text, with special tokens; None if there is no limit.
    prompt: what stands before each text. is_lower_case: whether texts are lower-cased.
    unsupported_module: a further module that the ONNX file must have.
    """

    path: Path
    poolings: tuple[str, ...] = ("mean",)
    is_normalized: bool = True
    max_tokens: int | None = None
    prompt: str = ""
    is_lower_case: bool = False
    unsupported_module: str | None = None

    def pool(self, row: Array) -> Array:
        """Return the vector of a text, of those of its tokens, in float64."""
        tokens = row.astype(np.float64)
        return np.concatenate([POOLINGS[name](tokens) for name in self.poolings])


def read_embedding_folder(path: Path) -> EmbeddingFolder:
    """Read the configuration of a folder."""
    modules = _read_modules(path / MODULES)
    pooling_folder, is_normalized, unsupported = POOLING, not modules, None
    for kind, place in modules:
        if kind == "Pooling":
            pooling_folder = place or "."
        elif kind == "Normalize":
            is_normalized = True
        elif kind != "Transformer":
            unsupported = kind
    transformer = read_optional_config(path / TRANSFORMER)
    return EmbeddingFolder(
        path,
        _read_poolings(read_optional_config(path / pooling_folder / "config.json")),
        is_normalized,
        _read_max_tokens(path, transformer),
        _read_prompt(read_optional_config(path / PROMPTS)),
        bool(transformer.flag("do_lower_case")),
        unsupported,
    )


def find_model_file(path: Path) -> Path | None:
    """Return the encoder of a folder."""
    return next((path / name for name in MODEL_FILES if (path / name).is_file()), None)


def has_embedding_files(path: Path) -> bool:
    """Whether a folder has files of sentence-transformers."""
    return any((path / name).is_file() for name in (MODULES, PROMPTS, TRANSFORMER, f"{POOLING}/config.json"))


def is_encoder_config(path: Path) -> bool:
    """Whether config.json names a model without a head, such as BertModel."""
    names = read_optional_config(path / "config.json").texts("architectures")
    return bool(names) and all(name.endswith("Model") for name in names)


def _read_modules(path: Path) -> list[tuple[str, str]]:
    """Return the kinds of the modules, and their folders."""
    if not path.is_file():
        return []
    problem = "it is not a list of modules with type and path"
    try:
        entries = json.loads(read_text_file(path))
    except (ValueError, RecursionError) as error:
        raise InvalidModelError(problem, file=str(path), hint="fetch the folder again") from error
    modules = []
    for entry in entries if isinstance(entries, list) else (entries,):
        kind, place = (entry.get("type"), entry.get("path", "")) if isinstance(entry, dict) else (None, "")
        if (
            not isinstance(kind, str)
            or not isinstance(place, str)
            or ".." in Path(place).parts
            or Path(place).is_absolute()
        ):
            raise InvalidModelError(problem, file=str(path), hint="fetch the folder again")
        modules.append((kind.rsplit(".", 1)[-1], place))
    return modules


def _read_poolings(config: Config) -> tuple[str, ...]:
    if config.flag("include_prompt") is False:
        problem = "its pooling leaves out the tokens of prompts, which weft does not"
        raise UnsupportedModelError(problem, file=str(config.path))
    stated = config.text("pooling_mode")
    if stated is not None:
        if stated not in POOLINGS:
            raise config.field_error("pooling_mode", f"one of {', '.join(POOLINGS)}")
        return (stated,)
    names = tuple(name for flag, name in FLAGS.items() if config.flag(flag))
    return names or ("mean",)


def _read_max_tokens(path: Path, transformer: Config) -> int | None:
    config = read_optional_config(path / "config.json")
    positions = config.integer("max_position_embeddings")
    if positions is not None and config.text("model_type") in OFFSET_TYPES:
        positions -= OFFSET
    length = read_optional_config(path / "tokenizer_config.json").fields.get("model_max_length")
    limit = int(length) if isinstance(length, (int, float)) and 0 < length <= LARGEST_LENGTH else None
    lengths = (transformer.integer("max_seq_length"), positions, limit)
    return min((length for length in lengths if length is not None and length > 0), default=None)


def _read_prompt(config: Config) -> str:
    name = config.text("default_prompt_name")
    return "" if name is None else config.section("prompts").text(name) or ""
