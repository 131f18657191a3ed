"""`GeneratorParams`: the search options of a generator."""

from __future__ import annotations

import secrets
from typing import Any

from weft.compat.onnxruntime_genai.errors import convert_errors, unsupported_error
from weft.compat.onnxruntime_genai.model import Model
from weft.generation.options import GenerationOptions

_DEFAULTS: dict[str, float | bool] = {
    "batch_size": 1.0,
    "chunk_size": 0.0,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "early_stopping": True,
    "length_penalty": 1.0,
    "max_length": 0.0,
    "min_length": 0.0,
    "no_repeat_ngram_size": 0.0,
    "num_beams": 1.0,
    "num_return_sequences": 1.0,
    "past_present_share_buffer": False,
    "random_seed": -1.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 50.0,
    "top_p": 0.0,
}
_GUIDANCE = {"json_schema": "json_schema", "regex": "regex", "lark_grammar": "grammar"}


class GeneratorParams:
    """Options of a generator; those that a program does not set come from the model's folder."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._options = dict(_DEFAULTS)
        self._options["max_length"] = float(model.folder.context_length or 0)
        self.guidance: dict[str, str] = {}
        search = model.config.search_options()
        self.set_search_options(**{name: value for name, value in search.items() if name in _DEFAULTS})

    def set_search_options(self, **options: Any) -> None:
        for name, value in options.items():
            if name not in _DEFAULTS:
                raise RuntimeError(f' Unknown value "{name}"')
            if isinstance(value, str) or not hasattr(value, "__float__"):
                raise RuntimeError(f"Unknown search option type, can be float/bool/int:{name}")
            is_flag = isinstance(_DEFAULTS[name], bool)
            self._options[name] = bool(value) if is_flag else float(value)

    def get_search_options(self) -> dict[str, float | bool]:
        return dict(self._options)

    def set_guidance(self, type: str, data: str, enable_ff_tokens: bool = False) -> None:  # noqa: ARG002
        """Constrain answers: type is json_schema, regex or lark_grammar. Forced tokens come one by one."""
        if type not in _GUIDANCE:
            raise RuntimeError(f"Unsupported guidance type: {type}; write one of {', '.join(_GUIDANCE)}")
        self.guidance = {_GUIDANCE[type]: data}

    def try_graph_capture_with_max_batch_size(self, max_batch_size: int) -> None:
        """Do nothing: weft captures the graphs of a device by itself."""

    def set_speculative_options(self, **options: Any) -> None:
        raise unsupported_error("GeneratorParams.set_speculative_options", f"leave out {', '.join(options)}")

    def get_speculative_options(self) -> dict[str, Any]:
        return {}

    # -- for weft ----------------------------------------------------------------------------------------------------

    def integer(self, name: str) -> int:
        """Return an option as an integer."""
        return int(self._options[name])

    def check(self) -> None:
        """Raise an error if options exceed the model, or each other."""
        length, context = self.integer("max_length"), self.model.folder.context_length
        if length < 1:
            raise RuntimeError(f"max_length must be greater than 0, is {length}")
        if context is not None and length > context:
            raise RuntimeError(f"max_length ({length}) cannot be greater than model context_length ({context})")
        if self.integer("batch_size") < 1:
            raise RuntimeError(f"batch_size must be 1 or greater, is {self.integer('batch_size')}")
        beams, answers = self.integer("num_beams"), self.integer("num_return_sequences")
        if beams < 1:
            raise RuntimeError(f"num_beams must be 1 or greater, is {beams}")
        if not 1 <= answers <= beams:
            raise RuntimeError(f"num_return_sequences ({answers}) must be in [1, {beams}]")
        if not 0 <= self._options["top_p"] <= 1:
            raise RuntimeError("top_p must be between 0.0 and 1.0")

    def make_options(self) -> GenerationOptions:
        """Return the options of weft's sampler."""
        options = self._options
        is_greedy = not options["do_sample"] or options["top_k"] == 1 or options["temperature"] == 0
        with convert_errors():
            return GenerationOptions(
                temperature=0.0 if is_greedy else options["temperature"],
                top_k=max(self.integer("top_k"), 0),
                top_p=options["top_p"] or 1.0,  # 0 is off
                repetition_penalty=options["repetition_penalty"],
                no_repeat_ngram_size=self.integer("no_repeat_ngram_size"),
                num_beams=self.integer("num_beams"),
                n=self.integer("num_return_sequences"),
                length_penalty=options["length_penalty"],
                early_stopping=bool(options["early_stopping"]),
                json_schema=self.guidance.get("json_schema"),
                regex=self.guidance.get("regex"),
                grammar=self.guidance.get("grammar"),
            )

    def make_seed(self) -> int:
        """Return the seed, a random one for -1."""
        seed = self.integer("random_seed")
        return secrets.randbits(62) if seed < 0 else seed
