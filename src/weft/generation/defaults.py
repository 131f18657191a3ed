"""Default options of a model: the fields of generation_config.json, or of `search` in genai_config.json."""

from __future__ import annotations

from typing import Any

from weft.generation.config_files import Config

TOP_K = 50
"""The `top_k` of transformers and of onnxruntime-genai, where the file has none."""


def read_defaults(config: Config) -> dict[str, Any]:
    """Return fields of GenerationOptions.

    Without `do_sample` the temperature is 0. The other fields remain, for callers who set a temperature.
    """
    top_k = config.integer("top_k", low=-1, high=1 << 31)
    options: dict[str, Any] = {
        "temperature": 0.0,
        "top_k": TOP_K if top_k is None else max(top_k, 0),
        "top_p": config.number("top_p", 0, 1),
        "min_p": config.number("min_p", 0, 1),
        "typical_p": config.number("typical_p", 0, 1),
        "repetition_penalty": config.number("repetition_penalty", 0),
        "frequency_penalty": config.number("frequency_penalty"),
        "presence_penalty": config.number("presence_penalty"),
        "no_repeat_ngram_size": config.integer("no_repeat_ngram_size"),
        "max_new_tokens": config.integer("max_new_tokens", low=1),
        "num_beams": config.integer("num_beams", low=1, high=1 << 20),
        "length_penalty": config.number("length_penalty"),
        "n": config.integer("num_return_sequences", low=1, high=1 << 20),
        "stop": tuple(text for text in config.texts("stop_strings") if text) or None,
    }
    if config.flag("do_sample"):
        temperature = config.number("temperature", 0)
        options["temperature"] = 1.0 if temperature is None else temperature
    if not options["repetition_penalty"]:  # 0 would divide by zero
        options["repetition_penalty"] = None
    for name in ("top_p", "typical_p"):
        if options[name] == 0:  # onnxruntime-genai writes 0 for no limit
            options[name] = None
    if options["num_beams"] not in (None, 1):
        early_stopping = config.fields.get("early_stopping")
        if early_stopping is not None and not isinstance(early_stopping, bool) and early_stopping != "never":
            raise config.field_error("early_stopping", 'true, false or "never"')
        options["early_stopping"] = early_stopping
    return {name: value for name, value in options.items() if value is not None}
