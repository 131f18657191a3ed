"""Folders of optimum and transformers.js, and single decoder files: what config.json and its neighbours say.

Files are in the folder or in `onnx/`, one for each part of the model and each variant: `decoder_model_merged_q4.onnx`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import InputError, InvalidModelError, MissingFileError, UnsupportedModelError
from weft.generation.config_files import Config, read_config, read_optional_config
from weft.generation.defaults import read_defaults
from weft.generation.model_folder import DecoderNames, EncoderNames, ModelFolder, name_folder

FULL_PRECISION = "fp32"
VARIANT_ORDER = (FULL_PRECISION, "bf16", "fp16", "q8", "quantized", "int8", "uint8", "q4f16", "q4", "bnb4")
"""Which variant is the default: the first that exists. Other names come last, in alphabetical order."""
VARIANT_FILES = {"q8": "quantized"}  # names of transformers.js that differ from those of its files

MERGED, FIRST_STEP, WITH_PAST, WHOLE = "decoder_model_merged", "decoder_model", "decoder_with_past_model", "model"
DECODERS = (MERGED, FIRST_STEP, WITH_PAST, WHOLE)
ENCODER, EMBEDDING = "encoder_model", "embed_tokens"
PART = re.compile(rf"({MERGED}|{WITH_PAST}|{FIRST_STEP}|{ENCODER}|{EMBEDDING}|{WHOLE})(?:_(\w+))?\.onnx")

NESTED = ("text_config", "decoder", "llm_config")  # sections of the language model in config.json
NO_GENERATOR = re.compile(
    r"Classification|MaskedLM|QuestionAnswering|Detection|Segmentation|DepthEstimation|ForCTC|TextModel$"
)
LENGTH_FIELDS = ("max_position_embeddings", "max_target_positions", "n_positions", "n_ctx", "max_seq_len", "seq_length")
LAYER_FIELDS = (
    "decoder_layers",
    "num_decoder_layers",
    "decoder_num_hidden_layers",
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
)
HEAD_FIELDS = (
    "decoder_attention_heads",
    "decoder_num_attention_heads",
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
)
KV_HEAD_FIELDS = ("decoder_num_key_value_heads", "num_key_value_heads", "num_kv_heads", "n_kv_heads")

Parts = Mapping[str, Mapping[str, Path]]


def open_optimum_folder(path: Path, variant: str | None) -> ModelFolder:
    """Read a folder with config.json, or with the file names of optimum."""
    parts = find_parts(path)
    has_encoder = bool(parts.get(ENCODER))
    decoder, chosen = choose_decoder(parts, path, variant)
    files = parts[decoder]
    second = parts.get(WITH_PAST, {}).get(chosen) if decoder == FIRST_STEP else None
    names = DecoderNames(cache_branch="use_cache_branch" if decoder == MERGED else None)
    if has_encoder:
        names = replace(
            names,
            past_key="past_key_values.%d.decoder.key",
            past_value="past_key_values.%d.decoder.value",
            present_key="present.%d.decoder.key",
            present_value="present.%d.decoder.value",
            cross_past_key="past_key_values.%d.encoder.key",
            cross_past_value="past_key_values.%d.encoder.value",
            cross_present_key="present.%d.encoder.key",
            cross_present_value="present.%d.encoder.value",
            encoder_states="encoder_hidden_states",
            encoder_mask="encoder_attention_mask",
        )
    return _describe(
        path,
        name=name_folder(path),
        kind="encoder-decoder" if has_encoder else "decoder",
        origin="optimum",
        decoder=files[chosen],
        variant=chosen,
        decoder_with_past=second,
        encoder=_same_variant(parts.get(ENCODER, {}), chosen),
        embedding=_same_variant(parts.get(EMBEDDING, {}), chosen),
        names=names,
        encoder_names=EncoderNames(mask="attention_mask"),
    )


def open_decoder_file(file: Path) -> ModelFolder:
    """Describe a single decoder file by the configuration files beside it, of which none is necessary."""
    return _describe(file.parent, name=file.stem, kind="decoder", origin="file", decoder=file)


def find_parts(path: Path) -> Parts:
    """Return the ONNX files of the folder and of `onnx/` by part and variant; the folder wins."""
    parts: dict[str, dict[str, Path]] = {}
    for folder in (path / "onnx", path):
        for file in sorted(folder.glob("*.onnx")):
            match = PART.fullmatch(file.name)
            if match and file.is_file():
                parts.setdefault(match[1], {})[match[2] or FULL_PRECISION] = file
    return parts


def choose_decoder(parts: Parts, path: Path, variant: str | None) -> tuple[str, str]:
    """Return the part that is the decoder, and its variant."""
    decoders = [name for name in DECODERS if name in parts]
    if WITH_PAST in decoders and FIRST_STEP not in decoders and ENCODER in parts:
        decoders.remove(WITH_PAST)  # it has no input for the encoder's states
    if not decoders:
        missing = "the decoder of its encoder" if ENCODER in parts else "a decoder"
        problem = f"{path} has no file of {missing} ({MERGED}.onnx or {WHOLE}.onnx, in the folder or in onnx/)"
        raise MissingFileError(problem, hint="fetch the folder again, with all of its ONNX files")
    existing = sorted({name for decoder in decoders for name in parts[decoder]}, key=_variant_rank)
    chosen = existing[0] if variant is None else VARIANT_FILES.get(variant, variant)
    for decoder in decoders:
        if chosen in parts[decoder]:
            return decoder, chosen
    problem = f"{path} has no variant {variant!r} of its decoder; it has {', '.join(existing)}"
    raise InputError(problem, hint=f"choose one of them: variant={existing[0]!r}")


def _same_variant(files: Mapping[str, Path], variant: str) -> Path | None:
    """Return the file of the variant, or else of the first variant in the default order."""
    if not files:
        return None
    return files.get(variant) or files[min(files, key=_variant_rank)]


def _variant_rank(variant: str) -> tuple[int, str]:
    return VARIANT_ORDER.index(variant) if variant in VARIANT_ORDER else len(VARIANT_ORDER), variant


# -- configuration ---------------------------------------------------------------------------------------------------


def _describe(path: Path, **facts: Any) -> ModelFolder:
    """Build a ModelFolder from files and names, and from the configuration files of the folder."""
    config = read_optional_config(path / "config.json")
    _reject_other_models(config)
    generation = read_optional_config(path / "generation_config.json")
    sources = [config, *(config.section(name) for name in NESTED if isinstance(config.fields.get(name), dict))]
    tokens = [generation, *sources]
    heads = _first_integer(sources, *HEAD_FIELDS)
    hidden_size = _first_integer(sources, "hidden_size", "n_embd", "d_model")
    head_size = _first_integer(sources, "head_dim", "d_kv")
    if head_size is None and heads and hidden_size and hidden_size % heads == 0:
        head_size = hidden_size // heads
    is_multi_query = any(
        source.flag("multi_query") and not source.flag("new_decoder_architecture") for source in sources
    )
    window, window_layers = _read_window(sources)
    end_tokens = next((ids for source in tokens if (ids := source.tokens("eos_token_id"))), ())
    return ModelFolder(
        path=path,
        model_type=config.text("model_type"),
        layers=_first_integer(sources, *LAYER_FIELDS),
        kv_heads=1 if is_multi_query else _first_integer(sources, *KV_HEAD_FIELDS) or heads,
        head_size=head_size,
        hidden_size=hidden_size,
        sliding_window=window,
        sliding_layers=window_layers,
        context_length=_read_context_length(sources),
        max_length=generation.integer("max_length", low=1),
        vocabulary=_first_integer(sources, "vocab_size"),
        end_tokens=end_tokens or _tokenizer_token(path, "eos_token"),
        start_token=_first_token(tokens, "bos_token_id"),
        pad_token=_first_token(tokens, "pad_token_id"),
        decoder_start_token=_first_token(tokens, "decoder_start_token_id"),
        forced_tokens=_read_forced_tokens(generation if "forced_decoder_ids" in generation else config),
        suppress_tokens=_read_tokens(tokens, "suppress_tokens"),
        begin_suppress_tokens=_read_tokens(tokens, "begin_suppress_tokens"),
        defaults=read_defaults(generation),
        **facts,
    )


def _reject_other_models(config: Config) -> None:
    architectures = config.texts("architectures")
    if architectures and all(NO_GENERATOR.search(name) for name in architectures):
        problem = f"its architecture is {', '.join(architectures)}, which does not generate text"
        raise UnsupportedModelError(problem, file=str(config.path), hint="run its ONNX file with weft.load")


def _first_integer(sources: Sequence[Config], *names: str) -> int | None:
    for source in sources:
        for name in names:
            if isinstance(source.fields.get(name), list):
                continue  # one number for each layer
            number = source.integer(name)
            if number:
                return number
    return None


def _first_token(sources: Sequence[Config], name: str) -> int | None:
    return next((ids[0] for source in sources if (ids := source.tokens(name))), None)


def _read_tokens(sources: Sequence[Config], name: str) -> tuple[int, ...]:
    """Return the first list that is stated, even if it is empty."""
    return next((source.tokens(name) for source in sources if name in source), ())


def _read_forced_tokens(config: Config) -> dict[int, int]:
    """Return the token of each forced position; a position without a token (Whisper's language) is open."""
    pairs = config.fields.get("forced_decoder_ids")
    if pairs is None:
        return {}
    expected = "a list of pairs of a position and a token"
    if not isinstance(pairs, list):
        raise config.field_error("forced_decoder_ids", expected)
    forced = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int or pair[0] < 0:
            raise config.field_error("forced_decoder_ids", expected)
        position, token = pair
        if token is not None:
            if type(token) is not int or token < 0:
                raise config.field_error("forced_decoder_ids", expected)
            forced[position] = token
    return forced


def _read_window(sources: Sequence[Config]) -> tuple[int | None, tuple[int, ...] | None]:
    """Return the sliding window and its layers."""
    for source in sources:
        window = source.integer("sliding_window", low=-1)
        if window is None or window < 1 or source.flag("use_sliding_window") is False:
            continue
        kinds = source.texts("layer_types")
        if not kinds:
            return window, None
        layers = tuple(index for index, kind in enumerate(kinds) if kind == "sliding_attention")
        return (window, layers) if layers else (None, None)
    return None, None


def _read_context_length(sources: Sequence[Config]) -> int | None:
    if any("relative_attention_num_buckets" in source for source in sources):
        return None  # T5 states the length of its training data; its relative positions have no limit
    return _first_integer(sources, *LENGTH_FIELDS)


def _tokenizer_token(path: Path, name: str) -> tuple[int, ...]:
    """Return the id of a special token of tokenizer_config.json, or none."""
    config = read_optional_config(path / "tokenizer_config.json")
    content = config.fields.get(name)
    if isinstance(content, dict):
        content = content.get("content")
    if content is None:
        return ()
    if not isinstance(content, str):
        raise config.field_error(name, "a text or an object with the field content")
    added = config.section("added_tokens_decoder")
    for number in added.fields:
        if added.section(number).text("content") == content and number.isdecimal():
            return (int(number),)
    tokenizer = path / "tokenizer.json"
    return _vocabulary_token(read_config(tokenizer), content) if tokenizer.is_file() else ()


def _vocabulary_token(tokenizer: Config, content: str) -> tuple[int, ...]:
    for token in tokenizer.sections("added_tokens"):
        if token.text("content") == content:
            number = token.integer("id")
            if number is None:
                raise InvalidModelError(f"the token {content!r} has no id", file=str(tokenizer.path))
            return (number,)
    vocabulary = tokenizer.section("model").fields.get("vocab")
    number = vocabulary.get(content) if isinstance(vocabulary, dict) else None
    return (number,) if type(number) is int else ()
