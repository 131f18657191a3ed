"""Fields of requests that become options of generation. The model's folder has the defaults of missing ones."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.server.openai.fields import Fields

if TYPE_CHECKING:
    from weft.generation.generator import Generator

MOST_ANSWERS = 128
LARGEST_SEED = (1 << 63) - 1
SMALLEST_TOP_P = 1e-6  # 0 means the same: the likeliest token alone
REFUSED = {  # fields that change the answer and that generation does not have, with what to do instead
    "audio": "this server generates text",
    "beam_width": "beam search is not offered",
    "chat_template": "the model's own template is used; pass variables for it in chat_template_kwargs",
    "documents": "pass documents in a message",
    "ebnf": "use guided_grammar, a Lark grammar",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "grammar": "use guided_grammar, a Lark grammar",
    "include_stop_str_in_output": "add the stop string to the answer yourself",
    "logits_processors": "use logit_bias",
    "min_tokens": "use ignore_eos with max_tokens for an answer of a fixed length",
    "mirostat": "use top_p or min_p",
    "prompt_logprobs": "log probabilities of prompts are not offered",
    "stop_token_ids": "use stop, with the texts of these tokens",
    "suffix": "this model does not fill in the middle; format the prompt with its own tokens for that",
    "use_beam_search": "beam search is not offered",
    "web_search_options": "this server does not search the web",
}
GUIDES = ("json", "regex", "choice", "grammar")


def read_sampling(fields: Fields, generator: Generator) -> dict[str, Any]:
    """Return the options that chat completions and completions have in common."""
    refuse_fields(fields)
    options: dict[str, Any] = {
        "n": fields.integer("n", 1, MOST_ANSWERS) or 1,
        "temperature": fields.number("temperature", 0, 100),
        "top_p": fields.number("top_p", 0, 1),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "seed": fields.integer("seed", -LARGEST_SEED, LARGEST_SEED),
        "stop": _read_stop(fields),
        "top_k": fields.integer("top_k", -1, 1 << 31),
        "min_p": fields.number("min_p", 0, 1),
        "typical_p": fields.number("typical_p", SMALLEST_TOP_P, 1),
        "repetition_penalty": fields.number("repetition_penalty", 1e-6, 1e6),
        "no_repeat_ngram_size": fields.integer("no_repeat_ngram_size", 0, 1 << 31),
        "logit_bias": _read_logit_bias(fields, generator.vocabulary),
    }
    if options["top_p"] is not None:
        options["top_p"] = max(options["top_p"], SMALLEST_TOP_P)
    if options["top_k"] == -1:
        options["top_k"] = 0
    best_of = fields.integer("best_of", 1, MOST_ANSWERS)
    if best_of not in (None, options["n"]):
        raise fields.error("best_of", "best_of is not offered: leave it out, and choose among n answers by logprobs")
    if fields.flag("ignore_eos"):
        options["logit_bias"] = {**(options["logit_bias"] or {}), **dict.fromkeys(_end_tokens(generator), -math.inf)}
    return {name: value for name, value in options.items() if value is not None}


def refuse_fields(fields: Fields) -> None:
    """Raise the error for fields that would change the answer, and that are not offered."""
    for name, advice in REFUSED.items():
        if fields.get(name):  # 0, false and an empty list leave the answer as it is
            raise fields.error(name, f"{name} is not offered: {advice}", code="unsupported_parameter")
    modalities = fields.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise fields.error("modalities", 'modalities must be ["text"]: this server generates text')


def read_guide(fields: Fields) -> tuple[str, dict[str, Any]] | None:
    """Return the constraint that a request states in the fields of other servers, and the name of its field.

    These are `guided_json`, `guided_regex`, `guided_choice` and `guided_grammar`, or the same in `structured_outputs`.
    """
    section = fields.section("structured_outputs")
    stated = [(fields, f"guided_{kind}", kind) for kind in GUIDES if f"guided_{kind}" in fields]
    if section is not None:
        stated += [(section, kind, kind) for kind in GUIDES if kind in section]
    if not stated:
        return None
    source, name, kind = stated[0]
    if len(stated) > 1:
        raise source.error(name, "an answer has one constraint: keep one of them")
    parameter = source.place + name
    if kind == "json":
        return parameter, {"json_schema": read_schema(source, name)}
    if kind == "choice":
        choices = source.get(name)
        if not isinstance(choices, list) or not choices or not all(isinstance(text, str) and text for text in choices):
            raise source.mismatch(name, "a list of strings that are not empty")
        return parameter, {"regex": "|".join(map(_escape, choices))}
    return parameter, {kind: source.required_text(name)}


def read_schema(fields: Fields, name: str) -> dict[str, Any] | bool:
    """Return a JSON schema: an object, or the JSON text of one."""
    content = fields.get(name)
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError as error:
            raise fields.error(name, f"{fields.place}{name} is not JSON: {error}") from None
    if not isinstance(content, (dict, bool)):
        raise fields.mismatch(name, "a JSON schema")
    return content


def _escape(text: str) -> str:
    """Escape a text for the regular expressions of Rust, which take no escapes that mean nothing."""
    return re.sub(r"([\\.+*?()|\[\]{}^$#&\-~/])", r"\\\1", text)


def _read_stop(fields: Fields) -> list[str] | None:
    content = fields.get("stop")
    if content is None:
        return None
    texts = [content] if isinstance(content, str) else content
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise fields.mismatch("stop", "a string, or a list of strings, none of them empty")
    return texts


def _read_logit_bias(fields: Fields, vocabulary: int) -> dict[int, float] | None:
    section = fields.section("logit_bias")
    if section is None:
        return None
    biases = {}
    for key in section.content:
        if not (isinstance(key, str) and key.isascii() and key.isdecimal() and int(key) < vocabulary):
            raise fields.error(
                "logit_bias", f"logit_bias has {key[:30]!r}, which is no token id from 0 to {vocabulary - 1}"
            )
        bias = section.number(key, -100, 100)
        if bias is not None:
            biases[int(key)] = bias
    return biases


def _end_tokens(generator: Generator) -> Mapping[int, None]:
    return dict.fromkeys(generator.folder.end_tokens)
