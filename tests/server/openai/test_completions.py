"""Completions through the `openai` client: the same tokens as the generator gives alone."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from server.openai.conftest import Served

PROMPTS = ["A list is", "Return True if", "The function"]


def create(served: Served, prompt: Any, **options: Any) -> Any:
    return served.client.completions.create(model="demo", prompt=prompt, **options)


def join_stream(chunks: Any) -> tuple[list[Any], Any]:
    """Return text, reason of the end and tokens of each answer, in order, and the usage."""
    texts: dict[int, list[Any]] = {}
    usage = None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            entry = texts.setdefault(choice.index, ["", None, []])
            entry[0] += choice.text
            entry[1] = choice.finish_reason
            entry[2] += choice.logprobs.tokens if choice.logprobs else []
    return [texts[index] for index in sorted(texts)], usage


@pytest.mark.parametrize("options", [{}, {"temperature": 1, "seed": 4, "top_p": 0.9}, {"stop": [" o", "."]}], ids=str)
def test_answers_are_those_of_the_generator(served: Served, options: dict[str, Any]) -> None:
    generator = served.generators["demo"]
    tokens = [generator.tokenizer.encode(prompt) for prompt in PROMPTS]
    expected = generator(PROMPTS, max_new_tokens=20, **options)
    for prompt in (PROMPTS, tokens):
        completion = create(served, prompt, max_tokens=20, **options)
        assert [choice.text for choice in completion.choices] == expected
        assert [choice.finish_reason for choice in completion.choices] == [each.finish_reason for each in expected]
        assert completion.usage.completion_tokens == sum(len(each.tokens) for each in expected)
        assert completion.usage.prompt_tokens == sum(map(len, tokens))
        stream = create(served, prompt, max_tokens=20, stream=True, stream_options={"include_usage": True}, **options)
        answers, usage = join_stream(stream)
        assert [(text, reason) for text, reason, _ in answers] == [(each, each.finish_reason) for each in expected]
        assert usage.total_tokens == completion.usage.total_tokens
    assert create(served, tokens[0], max_tokens=20, **options).choices[0].text == expected[0]


def test_defaults_and_several_answers(served: Served) -> None:
    generator = served.generators["demo"]
    assert create(served, PROMPTS[0]).choices[0].text == generator(PROMPTS[0], max_new_tokens=16)
    expected = generator(PROMPTS[:2], n=2, temperature=1, seed=9, max_new_tokens=12)
    completion = create(served, PROMPTS[:2], n=2, temperature=1, seed=9, max_tokens=12)
    assert [choice.text for choice in completion.choices] == [answer for group in expected for answer in group]
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]


def test_echo(served: Served) -> None:
    generator = served.generators["demo"]
    tokens = generator.tokenizer.encode("<|user|>hi<|end|>", special=False)
    expected = generator(tokens, max_new_tokens=8)
    assert create(served, tokens, echo=True, max_tokens=8).choices[0].text == "<|user|>hi<|end|>" + expected
    answers, _ = join_stream(create(served, PROMPTS, echo=True, max_tokens=8, stream=True))
    assert [text for text, _, _ in answers] == [
        prompt + answer for prompt, answer in zip(PROMPTS, generator(PROMPTS, max_new_tokens=8), strict=True)
    ]


@pytest.mark.parametrize("options", [{}, {"stop": "ue"}], ids=str)
def test_logprobs(served: Served, options: dict[str, Any]) -> None:
    generator = served.generators["demo"]
    expected = generator(PROMPTS[1], logprobs=2, max_new_tokens=20, **options)
    completion = create(served, PROMPTS[1], logprobs=2, max_tokens=20, **options)
    (choice,) = completion.choices
    logprobs = choice.logprobs
    assert choice.text == expected
    assert (
        len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset)
    )
    assert logprobs.token_logprobs == [entry.logprob for entry in expected.logprobs[: len(logprobs.tokens)]]
    for token, offset, following in zip(
        logprobs.tokens, logprobs.text_offset, [*logprobs.text_offset[1:], len(choice.text)], strict=True
    ):
        assert choice.text[offset:following] in (token, token[: following - offset])
    for tops, entry in zip(logprobs.top_logprobs, expected.logprobs, strict=False):
        texts = [generator.tokenizer.decode([token], skip_special=False) for token, _ in entry.top]
        assert tops == dict(zip(texts, [logprob for _, logprob in entry.top], strict=True))
    if not options:
        assert "".join(logprobs.tokens) == choice.text
    answers, _ = join_stream(create(served, PROMPTS[1], logprobs=2, max_tokens=20, stream=True, **options))
    assert answers == [[choice.text, choice.finish_reason, logprobs.tokens]]


def test_constraints(served: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for extra in ({"response_format": response_format}, {"guided_json": schema}, {"guided_json": json.dumps(schema)}):
        text = create(served, PROMPTS[0], max_tokens=200, seed=1, temperature=1, extra_body=extra).choices[0].text
        assert json.loads(text)["a"] in (1, 2)
    text = create(served, PROMPTS[0], extra_body={"ignore_eos": True}, max_tokens=300).usage.completion_tokens
    assert text == 300


@pytest.mark.parametrize(
    ("options", "parameter", "message"),
    [
        ({"prompt": ""}, "prompt", "none of them empty"),
        ({"prompt": []}, "prompt", "none of them empty"),
        ({"prompt": None}, "prompt", "none of them empty"),
        ({"prompt": [[1], []]}, "prompt", "none of them empty"),
        ({"prompt": [1, "a"]}, "prompt", "none of them empty"),
        ({"prompt": [True]}, "prompt", "none of them empty"),
        ({"prompt": [99999]}, "prompt", "vocabulary"),
        ({"prompt": [-1]}, "prompt", "vocabulary"),
        ({"prompt": [1 << 80]}, "prompt", "vocabulary"),
        ({"prompt": "\udfff"}, "prompt", "surrogate"),
        ({"prompt": [5] * 512}, "prompt", "context has 512"),
        ({"prompt": ["x"] * 2049}, "prompt", "the most are 2,048"),
        ({"suffix": "x"}, "suffix", "fill in the middle"),
        ({"best_of": 2}, "best_of", "not offered"),
        ({"echo": True, "logprobs": 1}, "echo", "does not combine"),
        ({"logprobs": 99}, "logprobs", "to 20"),
        ({"model": "mean"}, "model", "makes embeddings"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)  # fmt: skip
def test_wrong_requests(served: Served, options: dict[str, Any], parameter: str, message: str) -> None:
    body = json.dumps({"model": "demo", "prompt": "x", **options}).encode()
    with pytest.raises(openai.BadRequestError) as caught:
        served.client.post("/completions", content=body, cast_to=object)
    assert message in caught.value.message
    assert caught.value.param == parameter
