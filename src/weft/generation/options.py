"""`GenerationOptions`: what a request asks of generation, checked when it is made.

`GenerationOptions.merge(defaults, **keywords)` puts a caller's keywords on top of a folder's defaults.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from operator import index
from typing import Any

from weft.errors import InputError, check_unicode, short_repr
from weft.runtime.suggestions import unknown_option

Processor = Callable[[Any, Any], Any]
LARGEST = 1e30  # the products of this with logits and counts are finite in float32
MAX_LOGPROBS = 100

HINTS = {
    "do_sample": "write temperature=0 for greedy decoding",
    "greedy": "write temperature=0",
    "max_tokens": "write max_new_tokens=",
    "max_completion_tokens": "write max_new_tokens=",
    "max_length": "write max_new_tokens=, which does not count the prompt; the context is max_length= of the Generator",
    "n_predict": "write max_new_tokens=",
    "num_predict": "write max_new_tokens=",
    "repeat_penalty": "write repetition_penalty=",
    "typical": "write typical_p=",
    "stop_strings": "write stop=",
    "stop_sequences": "write stop=",
    "top_logprobs": "write logprobs=, the number of likeliest tokens to report",
    "output_scores": "write logprobs=0 for the chosen tokens, logprobs=5 for the five likeliest",
    "logits_processor": "write processors=, functions of (tokens, logits) that return logits",
    "num_return_sequences": "write n=",
    "best_of": "write n= or num_beams=",
    "response_format": "write json_schema=",
    "schema": "write json_schema=",
    "guided_json": "write json_schema=",
    "guided_regex": "write regex=",
    "guided_grammar": "write grammar=",
    "random_seed": "write seed=",
    "beams": "write num_beams=",
}


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Options of one request.

    max_new_tokens: the most tokens to generate; None for as many as the context has room for.
    temperature: divides the logits; 0 always takes the likeliest token (greedy).
    top_k: sample from the k likeliest tokens; 0 for all.
    top_p: sample from the likeliest tokens whose probabilities reach this sum; 1 for all.
    min_p: sample from tokens at least this fraction as likely as the likeliest; 0 for all.
    typical_p: sample from the tokens whose information is nearest to the entropy, up to this probability; 1 for all.
    repetition_penalty: divides positive logits of tokens in prompt and answer, and multiplies negative ones; 1 is off.
    frequency_penalty: subtracted from a token's logit for each time that it occurs in the answer.
    presence_penalty: subtracted once from the logits of tokens that occur in the answer.
    no_repeat_ngram_size: no sequence of this many tokens occurs twice; 0 is off.
    logit_bias: token ids, and numbers to add to their logits; -inf excludes a token.
    seed: the same seed gives the same text on the same device; None draws one.
    stop: strings that end the answer, which does not contain them.
    logprobs: report the log probability of each token, and of this many of the likeliest in its place.
    json_schema: a JSON schema that the answer must match: a dict, its JSON text, or a pydantic class.
    regex: a regular expression that the answer must match; at most one of `json_schema`, `regex` and `grammar`.
    grammar: a Lark grammar that the answer must match.
    processors: functions of the tokens so far and the logits, both arrays, which return new logits.
    n: the number of answers.
    num_beams: the number of beams of a beam search; 1 is no search.
    length_penalty: the exponent of the length by which the scores of beams are divided.
    early_stopping: when a beam search ends: True with `num_beams` answers, False when better ones are unlikely, "never"
        when there cannot be better ones.
    priority: requests of higher priority run first.
    timeout: seconds after which the request fails with a `RunTimeoutError`.
    """

    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    grammar: str | None = None
    processors: tuple[Processor, ...] = ()
    n: int = 1
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    priority: int = 0
    timeout: float | None = None

    def __post_init__(self) -> None:
        integers: tuple[tuple[str, int | None, int | None, str], ...] = (
            ("max_new_tokens", 1, None, "None generates up to the context"),
            ("top_k", 0, None, "0 switches it off"),
            ("no_repeat_ngram_size", 0, None, "0 switches it off"),
            ("seed", None, None, "None draws one"),
            ("logprobs", 0, MAX_LOGPROBS, "0 reports the chosen tokens alone, None nothing"),
            ("n", 1, None, ""),
            ("num_beams", 1, None, "1 switches beam search off"),
            ("priority", None, None, ""),
        )
        for name, low, high, hint in integers:
            self._set(name, _check_integer(name, getattr(self, name), low, high, hint))
        for name, (accepts, expectation, hint) in _NUMBERS.items():
            self._set(name, _check_number(name, getattr(self, name), accepts, expectation, hint))
        self._set("logit_bias", _check_logit_bias(self.logit_bias))
        self._set("stop", _check_stop(self.stop))
        self._set("json_schema", _check_json_schema(self.json_schema))
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or not text):
                raise _error(name, text, "a string that is not empty")
        for name in ("regex", "grammar", "json_schema"):
            check_unicode(getattr(self, name) or "", name)
        constraints = [name for name in ("json_schema", "regex", "grammar") if getattr(self, name) is not None]
        if len(constraints) > 1:
            raise InputError(f"an answer has one constraint, not {' and '.join(constraints)}", hint="keep one of them")
        self._set("processors", _check_processors(self.processors))
        if self.early_stopping not in (True, False, "never"):
            raise _error("early_stopping", self.early_stopping, 'True, False or "never"')
        if self.num_beams > 1 and self.n > self.num_beams:
            hint = "increase num_beams, or drop it"
            raise InputError(f"n={self.n} answers cannot come from num_beams={self.num_beams}", hint=hint)

    @property
    def greedy(self) -> bool:
        """Whether every token is the likeliest one."""
        return self.temperature == 0

    @property
    def is_constrained(self) -> bool:
        """Whether the answer has to match a schema, a regular expression or a grammar."""
        return self.json_schema is not None or self.regex is not None or self.grammar is not None

    @classmethod
    def merge(
        cls, defaults: GenerationOptions | Mapping[str, Any] | None = None, /, **keywords: Any
    ) -> GenerationOptions:
        """Put keywords on top of defaults. None stands for the default of an option that cannot be None."""
        for names in (keywords, {} if isinstance(defaults, GenerationOptions) or defaults is None else defaults):
            if not _NAMES.issuperset(names):
                raise unknown_option("a generator", names, list(_DEFAULTS), HINTS)
        if isinstance(defaults, GenerationOptions):
            if not keywords:
                return defaults
            values = {name: getattr(defaults, name) for name in _DEFAULTS}
        else:
            values = dict(defaults or {})
        constraints = [name for name in _CONSTRAINTS if keywords.get(name) is not None]
        if constraints:  # a constraint of the defaults gives way to another kind
            values.update(dict.fromkeys(_CONSTRAINTS))
        values.update({name: value for name, value in keywords.items() if value is not None or name in _OPTIONAL})
        return cls(**{name: value for name, value in values.items() if value is not None or name in _OPTIONAL})

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def describe_options(options: GenerationOptions) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    default = GenerationOptions()
    return {name: value for name, value in asdict(options).items() if value != getattr(default, name)}


_CONSTRAINTS = ("json_schema", "regex", "grammar")
_DEFAULTS = {entry.name: entry.default for entry in fields(GenerationOptions)}
_NAMES = frozenset(_DEFAULTS)
_OPTIONAL = frozenset(name for name, default in _DEFAULTS.items() if default is None)

_NUMBERS: dict[str, tuple[Callable[[float], bool], str, str]] = {
    "temperature": (
        lambda x: 0 <= x <= LARGEST,
        "a number from 0 to 1e30",
        "0 is greedy, 1 leaves probabilities as they are",
    ),
    "top_p": (lambda x: 0 < x <= 1, "above 0 and at most 1", "1 switches it off; temperature=0 is greedy"),
    "min_p": (lambda x: 0 <= x <= 1, "from 0 to 1", "0 switches it off"),
    "typical_p": (lambda x: 0 < x <= 1, "above 0 and at most 1", "1 switches it off"),
    "repetition_penalty": (lambda x: 0 < x <= LARGEST, "above 0 and at most 1e30", "1 switches it off, 1.1 is common"),
    "frequency_penalty": (lambda x: abs(x) <= LARGEST, "from -1e30 to 1e30", "0 switches it off, 2 is strong"),
    "presence_penalty": (lambda x: abs(x) <= LARGEST, "from -1e30 to 1e30", "0 switches it off, 2 is strong"),
    "length_penalty": (math.isfinite, "a finite number", "above 0 prefers long answers, below 0 short ones"),
    "timeout": (lambda x: 0 < x < math.inf, "seconds above 0", "None switches it off"),
}


def _error(name: str, value: object, expectation: str, hint: str = "") -> InputError:
    return InputError(f"{name} must be {expectation}, not {short_repr(value)}", hint=hint or None)


def _check_integer(name: str, value: Any, low: int | None, high: int | None, hint: str) -> int | None:
    if value is None and name in _OPTIONAL:
        return None
    expectation = "an integer"
    if low is not None:
        expectation += f" from {low} to {high}" if high is not None else f" from {low} on"
    if isinstance(value, bool):
        raise _error(name, value, expectation, hint)
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else index(value)
    except TypeError:
        raise _error(name, value, expectation, hint) from None
    if (low is not None and number < low) or (high is not None and number > high):
        raise _error(name, value, expectation, hint)
    return number


def _check_number(name: str, value: Any, accepts: Callable[[float], bool], expectation: str, hint: str) -> float | None:
    if value is None and name in _OPTIONAL:
        return None
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise _error(name, value, expectation, hint) from None
    if not accepts(number):
        raise _error(name, value, expectation, hint)
    return number


def _check_logit_bias(value: Any) -> dict[int, float]:
    hint = "map the id of a token to a number, as in {42: -5.0}"
    if not isinstance(value, Mapping):
        raise _error("logit_bias", value, "a mapping from ids to numbers", hint)
    checked: dict[int, float] = {}
    for key, bias in value.items():
        try:
            token = int(key) if isinstance(key, str) else index(key)  # keys of JSON are strings
            number = float(bias)
        except (TypeError, ValueError):
            raise _error("logit_bias", {key: bias}, "a mapping from ids to numbers", hint) from None
        if token < 0 or not (number == -math.inf or abs(number) <= LARGEST):
            raise _error("logit_bias", {key: bias}, "a mapping from ids to numbers up to 1e30, or -inf", hint)
        checked[token] = number
    return checked


def _check_stop(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Sequence) or not all(isinstance(text, str) and text for text in value):
        raise _error("stop", value, "a string, or a list of strings, none of them empty")
    for text in value:
        check_unicode(text, "a stop string")
    return tuple(dict.fromkeys(value))


def _check_json_schema(value: Any) -> str | None:
    if value is None:
        return None
    describe = getattr(value, "model_json_schema", None)  # a pydantic class
    if describe is not None:
        value = describe()
    if isinstance(value, (Mapping, bool)):
        try:
            return json.dumps(value)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"json_schema is not JSON: {error}", hint="use dicts, lists, strings and numbers"
            ) from None
    if not isinstance(value, str):
        raise _error("json_schema", value, "a dict, JSON text or a pydantic class")
    try:
        schema = json.loads(value)
    except ValueError as error:
        raise InputError(f"json_schema is not JSON: {error}", hint="pass a dict, or the text of one") from None
    if not isinstance(schema, (dict, bool)):
        raise _error("json_schema", value, "a JSON object", "for instance {'type': 'object'}")
    return value


def _check_processors(value: Any) -> tuple[Processor, ...]:
    if callable(value):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(map(callable, value)):
        raise _error("processors", value, "a function of (tokens, logits), or a list of them")
    return tuple(value)
