"""Folders of onnxruntime-genai: genai_config.json states files, names, sizes and defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from weft.errors import InvalidModelError, UnsupportedModelError
from weft.generation.config_files import Config, read_config
from weft.generation.defaults import read_defaults
from weft.generation.model_folder import DecoderNames, EncoderNames, ModelFolder, name_folder

GENAI_CONFIG = "genai_config.json"

MEDIA_SECTIONS = ("vision", "speech")
JOINER, OLD_ENCODER = "joiner", "encoder_decoder_init"
INPUT_FIELDS = {
    "ids": "input_ids",
    "embeddings": "inputs_embeds",
    "mask": "attention_mask",
    "positions": "position_ids",
    "past_key": "past_key_names",
    "past_value": "past_value_names",
    "cross_past_key": "cross_past_key_names",
    "cross_past_value": "cross_past_value_names",
    "encoder_states": "encoder_hidden_states",
    "encoder_mask": "encoder_attention_mask",
}
OUTPUT_FIELDS = {
    "present_key": "present_key_names",
    "present_value": "present_value_names",
    "cross_present_key": "cross_present_key_names",
    "cross_present_value": "cross_present_value_names",
}


def open_genai_folder(path: Path) -> ModelFolder:
    """Read a folder with genai_config.json."""
    config = read_config(path / GENAI_CONFIG)
    model = config.section("model")
    decoder = model.section("decoder")
    _reject_other_models(model)
    stage = _decoder_stage(decoder)
    file = stage.file("filename")
    if file is None:
        problem = f"it names no decoder ({stage.place}filename is missing)"
        raise InvalidModelError(problem, file=str(config.path), hint="build the folder again")
    encoder = model.section("encoder")
    encoder_file = encoder.file("filename")
    search = config.section("search")
    window = decoder.section("sliding_window")
    window_size = window.integer("window_size", low=-1)
    return ModelFolder(
        path=path,
        name=name_folder(path),
        kind="decoder" if encoder_file is None else "encoder-decoder",
        origin="onnxruntime-genai",
        decoder=file,
        model_type=model.text("type"),
        encoder=encoder_file,
        embedding=model.section("embedding").file("filename"),
        names=_read_names(stage if "inputs" in stage else decoder),
        encoder_names=_read_encoder_names(encoder),
        layers=decoder.integer("num_hidden_layers", low=1, high=1 << 16),
        kv_heads=decoder.integer("num_key_value_heads", low=1, high=1 << 16),
        head_size=decoder.integer("head_size", low=1, high=1 << 16),
        hidden_size=decoder.integer("hidden_size", low=1),
        sliding_window=window_size if window_size != -1 else None,
        sliding_layers=window.integers("layers") if "layers" in window else None,
        shares_cache=bool(search.flag("past_present_share_buffer")),
        context_length=model.integer("context_length", low=1),
        max_length=search.integer("max_length", low=1),
        vocabulary=model.integer("vocab_size", low=1),
        end_tokens=model.tokens("eos_token_id"),
        start_token=next(iter(model.tokens("bos_token_id")), None),
        pad_token=next(iter(model.tokens("pad_token_id")), None),
        decoder_start_token=next(iter(model.tokens("decoder_start_token_id")), None),
        defaults=read_defaults(search),
    )


def _reject_other_models(model: Config) -> None:
    if JOINER in model:
        problem = "its model is a transducer, which weft does not run as a generator"
        raise UnsupportedModelError(problem, file=str(model.path), hint="run its ONNX files with weft.load")
    if OLD_ENCODER in model:
        problem = f"it was built by an old onnxruntime-genai, with encoder and decoder in one file ({OLD_ENCODER})"
        raise UnsupportedModelError(problem, file=str(model.path), hint="build it again with a new onnxruntime-genai")
    sections = [name for name in MEDIA_SECTIONS if "filename" in model.section(name)]
    if sections:
        problem = f"it has a model for {' and '.join(sections)}, and weft generates text from text only"
        hint = "build a text model: python -m onnxruntime_genai.models.builder -m MODEL -o FOLDER -p int4 -e cpu"
        raise UnsupportedModelError(problem, file=str(model.path), hint=hint)


def _decoder_stage(decoder: Config) -> Config:
    """Return the section with the decoder's file: that of the decoder, or the only stage of its pipeline."""
    stages = [stage.section(name) for stage in decoder.sections("pipeline") for name in stage.fields]
    if not stages:
        return decoder
    if len(stages) > 1:
        names = ", ".join(stage.place.split(".")[-2] for stage in stages)
        problem = f"its decoder is a pipeline of {len(stages)} models ({names}), which weft does not run"
        hint = "build it as one model: python -m onnxruntime_genai.models.builder -m MODEL -o FOLDER -p int4 -e cpu"
        raise UnsupportedModelError(problem, file=str(decoder.path), hint=hint)
    return stages[0]


def _read_names(decoder: Config) -> DecoderNames:
    """Return the stated names, and the default names of onnxruntime-genai for all others."""
    inputs, outputs = decoder.section("inputs"), decoder.section("outputs")
    known_inputs = {name: _read_name(inputs, field) for name, field in INPUT_FIELDS.items()}
    known_outputs = {name: _read_name(outputs, field) for name, field in OUTPUT_FIELDS.items()}
    stated_names = {name: text for name, text in (known_inputs | known_outputs).items() if text is not None}
    return replace(
        DecoderNames(),
        **stated_names,
        logits=outputs.text("logits") or "logits",
        further_inputs=_read_further_names(inputs, INPUT_FIELDS.values()),
        further_outputs=_read_further_names(outputs, (*OUTPUT_FIELDS.values(), "logits")),
    )


def _read_name(section: Config, field: str) -> str | None:
    name = section.text(field)
    if name is not None and field.endswith("_names") and (name.count("%") != 1 or "%d" not in name):
        raise section.field_error(field, "a name with one %d for the layer")
    return name


def _read_further_names(section: Config, known_fields: Iterable[str]) -> dict[str, str]:
    further_fields = [field for field in section.fields if field not in set(known_fields)]
    return {field: name for field in further_fields if (name := section.text(field))}


def _read_encoder_names(encoder: Config) -> EncoderNames:
    inputs, outputs = encoder.section("inputs"), encoder.section("outputs")
    return EncoderNames(
        features=inputs.text("audio_features") or inputs.text("input_ids"),
        mask=inputs.text("attention_mask"),
        states=outputs.text("encoder_hidden_states") or outputs.text("encoder_outputs"),
        cross_present_key=_read_name(outputs, "cross_present_key_names"),
        cross_present_value=_read_name(outputs, "cross_present_value_names"),
    )
