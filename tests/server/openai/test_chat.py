"""Chat completions through the `openai` client: the same tokens as the generator gives alone, streamed or not."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import openai
import pytest
from server.openai.conftest import Served

QUESTION: Any = [{"role": "user", "content": "What does math.sqrt do?"}]
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 11}
PROPERTIES = {
    "name": {"type": "string", "maxLength": 12},
    "count": {"type": "integer", "minimum": 3, "maximum": 9},
}
SCHEMA = {
    "type": "object",
    "properties": PROPERTIES,
    "required": ["name", "count"],
    "additionalProperties": False,
}


def create(served: Served, model: str = "demo", messages: Any = QUESTION, **options: Any) -> Any:
    return served.client.chat.completions.create(model=model, messages=messages, **options)


def join_stream(chunks: Any) -> tuple[dict[int, dict[str, Any]], Any]:
    """Return the messages of a stream as a client adds them up, and the usage."""
    messages: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in chunks:
        if not chunk.choices:
            usage = chunk.usage
            continue
        assert chunk.usage is None
        (choice,) = chunk.choices
        message = messages.setdefault(
            choice.index, {"content": "", "reasoning": "", "calls": [], "finish": None, "logprobs": [], "role": None}
        )
        assert message["finish"] is None
        message["finish"] = choice.finish_reason
        message["role"] = choice.delta.role or message["role"]
        message["content"] += choice.delta.content or ""
        message["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
        message["logprobs"] += choice.logprobs.content if choice.logprobs else []
        for call in choice.delta.tool_calls or []:
            if call.id:
                assert call.index == len(message["calls"])
                message["calls"].append([call.id, call.function.name, ""])
            message["calls"][call.index][2] += call.function.arguments
    return messages, usage


def test_models(served: Served) -> None:
    models = {model.id: model for model in served.client.models.list().data}
    assert models.keys() == {*served.generators, *served.folders}
    assert served.client.models.retrieve("demo") == models["demo"]
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        served.client.models.retrieve("other")


@pytest.mark.parametrize("options", [{}, SAMPLED, {"max_tokens": 4}, {"stop": [" root", "zzz"]}], ids=str)
def test_answers_are_those_of_the_generator(served: Served, options: dict[str, Any]) -> None:
    arguments = {"max_new_tokens" if name == "max_tokens" else name: value for name, value in options.items()}
    expected = served.generators["demo"].chat(QUESTION, **arguments)
    completion = create(served, **options)
    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == (expected, expected.finish_reason)
    assert expected
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (expected.prompt_tokens, len(expected.tokens))
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    messages, usage = join_stream(create(served, **options, stream=True, stream_options={"include_usage": True}))
    assert messages[0]["content"] == expected
    assert (messages[0]["role"], messages[0]["finish"]) == ("assistant", expected.finish_reason)
    assert usage == completion.usage or usage.prompt_tokens_details.cached_tokens


def test_messages_of_all_roles(served: Served) -> None:
    """Parts are joined, developers are the system of templates without them, and unknown fields are ignored."""
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What does"}, {"type": "text", "text": "map do?"}]},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "user", "content": "Why?", "name": "someone"},
    ]
    plain = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What does\nmap do?"},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": "Why?"},
    ]
    expected = served.generators["demo"].chat(plain, max_new_tokens=12)
    extra = {"metadata": {"a": "b"}, "user": "u", "store": True, "some_field": 3, "max_completion_tokens": 12}
    assert create(served, messages=messages, extra_body=extra).choices[0].message.content == expected


def test_several_answers(served: Served) -> None:
    generator = served.generators["demo"]
    prompt = generator.tokenizer.encode(generator.tokenizer.chat(QUESTION), special=False)
    expected = generator(prompt, n=3, max_new_tokens=25, **SAMPLED)
    assert len(set(expected)) == 3
    completion = create(served, n=3, max_tokens=25, **SAMPLED)
    assert [choice.message.content for choice in completion.choices] == expected
    assert completion.usage.completion_tokens == sum(len(answer.tokens) for answer in expected)
    assert completion.usage.prompt_tokens == len(prompt)
    messages, _ = join_stream(create(served, n=3, max_tokens=25, stream=True, **SAMPLED))
    assert [messages[index]["content"] for index in range(3)] == expected


def test_cached_tokens(served: Served) -> None:
    messages = [{"role": "user", "content": "Repeat this question about caches of keys and values. " * 4}]
    details = [create(served, messages=messages, max_tokens=2).usage for _ in range(2)]
    assert details[0].prompt_tokens_details.cached_tokens < 16
    blocks = (details[1].prompt_tokens - 1) // 16
    assert details[1].prompt_tokens_details.cached_tokens == blocks * 16 > 0


@pytest.mark.parametrize("stop", [[], [" root"]], ids=str)
def test_logprobs(served: Served, stop: list[str]) -> None:
    generator = served.generators["demo"]
    expected = generator.chat(QUESTION, logprobs=3, stop=stop)
    assert expected.logprobs
    options: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, **({"stop": stop} if stop else {})}
    (choice,) = create(served, **options).choices
    assert choice.message.content == expected
    entries = choice.logprobs.content
    assert bytes(value for entry in entries for value in entry.bytes).decode() == expected
    for entry, token in zip(entries, expected.logprobs, strict=False):
        assert entry.logprob == token.logprob
        assert [(top.token, top.logprob) for top in entry.top_logprobs] == [
            (generator.tokenizer.decode([number]), logprob) for number, logprob in token.top
        ]
    streamed, _ = join_stream(create(served, **options, stream=True))
    assert streamed[0]["logprobs"] == entries
    chosen = create(served, **{**options, "top_logprobs": 0}).choices[0].logprobs.content
    assert [entry.logprob for entry in chosen] == [entry.logprob for entry in entries]
    assert not any(entry.top_logprobs for entry in chosen)
    assert (streamed[0]["content"], streamed[0]["finish"]) == (expected, "stop")


def test_penalties_and_biases(served: Served) -> None:
    generator = served.generators["demo"]
    number = generator.tokenizer.encode("Return", special=False)[0]
    options: dict[str, Any] = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {str(number): -100}}
    expected = generator.chat(QUESTION, max_new_tokens=20, **options)
    assert not expected.startswith("Return")
    assert create(served, max_tokens=20, **options).choices[0].message.content == expected


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("model", ["demo", "reasoner"])
def test_json_schema(served: Served, model: str, strict: bool) -> None:
    schema = SCHEMA if strict else {**SCHEMA, "properties": {**PROPERTIES, "more": {"type": "string", "format": "odd"}}}
    response_format = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": strict}}
    for seed in range(3):
        completion = create(served, model, response_format=response_format, temperature=1, seed=seed)
        message = completion.choices[0].message
        content = json.loads(message.content)
        assert {"name", "count"} <= content.keys() <= {"name", "count", "more"}
        assert isinstance(content["name"], str)
        assert len(content["name"]) <= 12
        assert content["count"] in range(3, 10)
        assert completion.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(create(served, response_format={"type": "json_object"}, max_tokens=400,
                                        extra_body={"seed": 3}).choices[0].message.content), dict)  # fmt: skip


def test_guides_of_other_servers(served: Served) -> None:
    answer = create(served, extra_body={"guided_choice": ["yes.", "(no)"]}).choices[0].message.content
    assert answer in ("yes.", "(no)")
    answer = create(served, extra_body={"structured_outputs": {"regex": "[ab]{3}"}}).choices[0].message.content
    assert len(answer) == 3
    assert set(answer) <= {"a", "b"}


def test_reasoning(served: Served) -> None:
    """The template of "thinking" begins the reasoning, and a special token of "reasoner" ends it."""
    generator = served.generators["thinking"]
    expected = generator.chat(QUESTION, max_new_tokens=20, **SAMPLED)
    message = create(served, "thinking", max_tokens=20, **SAMPLED).choices[0].message
    assert message.reasoning_content == expected.strip()
    assert message.content == ""
    assert "reasoning_content" not in create(served, max_tokens=5).choices[0].message.model_extra
    options: dict[str, Any] = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [17]}}},
        "seed": 5,
        "temperature": 2,
    }
    choice = create(served, "reasoner", **options, logit_bias={"1": -100}).choices[0]
    assert choice.message.content == "17"
    first = served.generators["reasoner"].tokenizer.encode("<think>", special=False)
    biases = {**{str(number): 60 for number in first}, "1": 66}
    options |= {"logit_bias": biases, "max_tokens": 60}
    choices = [create(served, "reasoner", **{**options, "seed": seed}).choices[0] for seed in range(6)]
    thoughts = [choice.message for choice in choices if choice.finish_reason == "stop"]
    assert any(getattr(message, "reasoning_content", None) for message in thoughts)
    assert all(message.content == "17" for message in thoughts)


@pytest.mark.parametrize(
    ("options", "parameter", "message"),
    [
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": "hi"}, "messages", "must be a list of objects"),
        ({"messages": ["hi"]}, "messages[0]", "must be an object"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "role is missing"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", 'must be "system"'),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "content is missing"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "must be a string"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "surrogate"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content[0].type", "reads text alone"),
        ({"messages": [{"role": "user", "content": "word " * 600}]}, "messages", "context has 512"),
        ({"n": 0}, "n", "integer from 1"),
        ({"n": 1.5}, "n", "integer from 1"),
        ({"temperature": "hot"}, "temperature", "number from 0"),
        ({"temperature": math.inf}, "temperature", "number from 0"),
        ({"top_p": 2}, "top_p", "number from 0 to 1"),
        ({"max_tokens": 0}, "max_tokens", "integer from 1"),
        ({"stop": [""]}, "stop", "none of them empty"),
        ({"logit_bias": {"9999": 1}}, "logit_bias", "no token id"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "no token id"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "to 20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "must be"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}},
         "response_format", "json_schema cannot be used"),
        ({"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "string", "format": "odd"}, "strict": True}}},
         "response_format", "Unknown format: odd"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "one constraint"),
        ({"guided_regex": "("}, "guided_regex", "regex cannot be used"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "takes no tools"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"functions": [{"name": "f"}]}, "functions", "use tools"),
        ({"modalities": ["audio"]}, "modalities", "generates text"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "as a field of the request"),
        ({"model": 3}, "model", "must be a string"),
        ({"model": "mean"}, "model", "makes embeddings"),
        ({"model": "plain"}, "model", "Open Inference Protocol"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_requests(served: Served, options: dict[str, Any], parameter: str, message: str, stream: bool) -> None:
    body = json.dumps({"model": "demo", "messages": QUESTION, "stream": stream, **options})
    if "stream_options" in options:
        body = body.replace('"stream": true', '"stream": false')
    with pytest.raises(openai.BadRequestError) as caught:
        served.client.post("/chat/completions", content=body.encode(), cast_to=object)
    error = caught.value
    assert error.param == parameter
    assert message in error.message
    assert error.type == "invalid_request_error"


def test_async_client_and_many_requests(served: Served) -> None:
    """Requests that run together get what each gets alone."""
    questions = [f"What does list.{name} do?" for name in ("append", "pop", "sort", "index", "clear", "copy")]
    generator = served.generators["demo"]
    alone = [
        generator.chat([{"role": "user", "content": question}], max_new_tokens=20, temperature=0.8, seed=number)
        for number, question in enumerate(questions)
    ]

    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": questions[number]}],
            max_tokens=20,
            temperature=0.8,
            seed=number,
            stream=True,
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number % 6) for number in range(18)))

    assert asyncio.run(ask_all()) == alone * 3
