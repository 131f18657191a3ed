"""Options of generation: what is accepted, and what errors say."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest

from weft.errors import InputError, UnknownOptionError
from weft.generation.options import GenerationOptions, describe_options


def test_defaults() -> None:
    options = GenerationOptions()
    assert not options.greedy
    assert not options.is_constrained
    assert describe_options(options) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", 1.5),
        ("max_new_tokens", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_k", -1),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", -0.01),
        ("min_p", 2),
        ("typical_p", 0),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("frequency_penalty", math.nan),
        ("presence_penalty", math.inf),
        ("no_repeat_ngram_size", -2),
        ("logit_bias", [1]),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {"x": 1}),
        ("seed", "7"),
        ("seed", 0.5),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 5),
        ("logprobs", -1),
        ("logprobs", True),
        ("logprobs", 1000),
        ("json_schema", "{"),
        ("json_schema", "[]"),
        ("json_schema", 3),
        ("json_schema", {"a": {1, 2}}),
        ("regex", ""),
        ("grammar", 3),
        ("processors", 3),
        ("processors", [3]),
        ("n", 0),
        ("num_beams", 0),
        ("length_penalty", math.inf),
        ("early_stopping", "soon"),
        ("priority", 0.5),
        ("timeout", 0),
        ("timeout", -1),
    ],
)
def test_wrong_values(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name):
        GenerationOptions(**{name: value})


def test_conversions() -> None:
    options = GenerationOptions.merge(
        max_new_tokens=np.int64(5),
        temperature=np.float32(0.5),
        stop="\n",
        logit_bias={"7": -1, 8: -math.inf},
        json_schema={"type": "object"},
        processors=max,
        seed=-3,
    )
    assert options.max_new_tokens == 5
    assert type(options.max_new_tokens) is int
    assert options.temperature == 0.5
    assert options.stop == ("\n",)
    assert options.logit_bias == {7: -1.0, 8: -math.inf}
    assert options.json_schema == '{"type": "object"}'
    assert options.processors == (max,)
    assert pickle.loads(pickle.dumps(options)) == copy.deepcopy(options) == options


def test_pydantic_classes() -> None:
    class Model:
        @staticmethod
        def model_json_schema() -> dict[str, str]:
            return {"type": "string"}

    assert GenerationOptions.merge(json_schema=Model).json_schema == '{"type": "string"}'


def test_merge() -> None:
    defaults = GenerationOptions.merge({"temperature": 0.6, "top_k": 20, "regex": "a+"})
    assert GenerationOptions.merge(defaults) is defaults
    merged = GenerationOptions.merge(defaults, top_k=5, temperature=None, max_new_tokens=None)
    assert (merged.temperature, merged.top_k, merged.regex) == (0.6, 5, "a+")
    merged = GenerationOptions.merge(defaults, json_schema={})
    assert (merged.regex, merged.json_schema) == (None, "{}")
    assert GenerationOptions.merge(defaults, regex=None).regex is None
    assert GenerationOptions.merge(None, temperature=0).greedy
    assert describe_options(defaults) == {"temperature": 0.6, "top_k": 20, "regex": "a+"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", "temperature"),
        ("max_tokens", "max_new_tokens"),
        ("do_sample", "temperature=0"),
        ("repeat_penalty", "repetition_penalty"),
        ("top_logprobs", "logprobs"),
        ("xyz", "max_new_tokens"),
    ],
)
def test_unknown_keywords(name: str, hint: str) -> None:
    with pytest.raises(UnknownOptionError, match=hint) as caught:
        GenerationOptions.merge(**{name: 1})
    assert name in str(caught.value)
    with pytest.raises(UnknownOptionError, match=hint):
        GenerationOptions.merge({name: 1})


def test_one_constraint() -> None:
    with pytest.raises(InputError, match="regex and grammar"):
        GenerationOptions(regex="a", grammar="start: /a/")


def test_answers_of_beams() -> None:
    with pytest.raises(InputError, match="num_beams=2"):
        GenerationOptions(n=3, num_beams=2)


@pytest.mark.parametrize("name", ["temperature", "repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_numbers_fit_into_float32(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be .* 1e30, not 1e\\+300"):
        GenerationOptions(**{name: 1e300})
    with pytest.raises(InputError, match="numbers up to 1e30"):
        GenerationOptions(logit_bias={1: -1e300})
    assert GenerationOptions(**{name: 1e30}, logit_bias={1: -math.inf}).logit_bias == {1: -math.inf}


@pytest.mark.parametrize("name", ["regex", "grammar", "stop", "json_schema"])
def test_texts_are_unicode(name: str) -> None:
    with pytest.raises(InputError, match="lone surrogate at character"):
        GenerationOptions(**{name: '{"title": "\ud800"}'})  # type: ignore[arg-type]
