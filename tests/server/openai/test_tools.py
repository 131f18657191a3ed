"""Tools through the `openai` client, with the templates of all families."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest
from server.openai.conftest import Served
from server.openai.templates import FAMILIES
from server.openai.test_chat import QUESTION, create, join_stream

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Bern", "Zug"]},
        "days": {"$ref": "#/$defs/days"},
        "parts": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 2, "maximum": 9}},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "It's <the> weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "strict": True}},
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
MODELS = [*FAMILIES, "special"]


def check_calls(calls: list[tuple[str, str]], allowed: tuple[str, ...]) -> None:
    """Check that calls match the schemas of their tools."""
    assert calls
    for name, text in calls:
        assert name in allowed
        arguments = json.loads(text)
        if name == "now":
            assert arguments == {}
            continue
        assert {"city", "days"} <= arguments.keys() <= {"city", "days", "parts"}
        assert arguments["city"] in ("Bern", "Zug")
        assert arguments["days"] in range(2, 10)
        assert all(type(part) is bool for part in arguments.get("parts", []))


@pytest.mark.parametrize("model", MODELS)
def test_required_and_named_calls(served: Served, model: str) -> None:
    for choice, allowed in (("required", ("weather", "now")), (NAMED, ("weather",))):
        for seed in range(2):
            options: dict[str, Any] = {"tools": TOOLS, "tool_choice": choice, "temperature": 1.2, "seed": seed}
            options |= {"max_tokens": 250, "parallel_tool_calls": seed == 0}
            completion = create(served, model, **options)
            message = completion.choices[0].message
            calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
            if completion.choices[0].finish_reason == "length":  # the last of endless calls can be incomplete
                calls.pop()
            else:
                assert completion.choices[0].finish_reason == "tool_calls"
            check_calls(calls, allowed)
            assert message.content is None
            assert seed == 0 or len(message.tool_calls) == 1
            pattern = "[A-Za-z0-9]{9}" if model == "mistral" else "call_[A-Za-z0-9]{24}"
            identifiers = [call.id for call in message.tool_calls]
            assert all(re.fullmatch(pattern, identifier) for identifier in identifiers)
            assert len(set(identifiers)) == len(identifiers)
            streamed, _ = join_stream(create(served, model, stream=True, **options))
            assert [(name, text) for _, name, text in streamed[0]["calls"]] == [
                (call.function.name, call.function.arguments) for call in message.tool_calls
            ]
            assert (streamed[0]["content"], streamed[0]["finish"]) == ("", completion.choices[0].finish_reason)


def test_arguments_are_streamed_as_they_grow(served: Served) -> None:
    options: dict[str, Any] = {"tools": TOOLS, "tool_choice": NAMED, "stream": True, "seed": 1, "temperature": 1}
    deltas = [
        call.function.arguments
        for chunk in create(served, "hermes", **options)
        if chunk.choices
        for call in chunk.choices[0].delta.tool_calls or []
    ]
    assert len(deltas) > 5
    json.loads("".join(deltas))


@pytest.mark.parametrize("model", ["hermes", "llama", "special"])
def test_auto(served: Served, model: str) -> None:
    """An answer without calls is that of the generator; one with a call, which a regex forces here, is parsed."""
    generator = served.generators[model]
    expected = generator.chat(QUESTION, tools=TOOLS[:1], max_new_tokens=30)
    for choice in (None, "auto"):
        chosen = {} if choice is None else {"tool_choice": choice}
        completion = create(served, model, tools=TOOLS[:1], max_tokens=30, **chosen)
        assert completion.choices[0].message.content == expected
        assert completion.choices[0].message.tool_calls is None
        assert completion.usage.prompt_tokens == expected.prompt_tokens
    plain = generator.chat(QUESTION, max_new_tokens=30)
    completion = create(served, model, tools=TOOLS, tool_choice="none", max_tokens=30)
    assert (completion.choices[0].message.content, completion.usage.prompt_tokens) == (plain, plain.prompt_tokens)


def test_content_beside_a_call(served: Served) -> None:
    call = r'Let me see\. <tool_call>\n\{"name": "now", "arguments": \{\}\}\n</tool_call>'
    for stream in (False, True):
        answer = create(
            served, "hermes", tools=TOOLS, extra_body={"guided_regex": call}, stream=stream, logit_bias={"31": -100}
        )
        messages = join_stream(answer)[0][0] if stream else None
        if messages is None:
            message = answer.choices[0].message
            messages = {"content": message.content, "finish": answer.choices[0].finish_reason, "calls": [
                [each.id, each.function.name, each.function.arguments] for each in message.tool_calls]}  # fmt: skip
        assert (messages["content"], messages["finish"]) == ("Let me see.", "tool_calls")
        assert [each[1:] for each in messages["calls"]] == [["now", "{}"]]


def test_schema_or_call(served: Served) -> None:
    """An answer with tools and a response format is one or the other."""
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": {"a": 1}}}}
    has_calls = set()
    for seed in range(6):
        completion = create(
            served, "hermes", tools=TOOLS, response_format=response_format, temperature=3, seed=seed, max_tokens=200
        )
        message = completion.choices[0].message
        if message.tool_calls:
            check_calls(
                [(call.function.name, call.function.arguments) for call in message.tool_calls][:1], ("weather", "now")
            )
        else:
            assert json.loads(message.content) == {"a": 1}
        has_calls.add(bool(message.tool_calls))
    assert has_calls == {False, True}


@pytest.mark.parametrize("model", ["hermes", "mistral", "fenced", "xml"])
def test_results_of_calls_go_back(served: Served, model: str) -> None:
    """Arguments of earlier calls reach the template in its form, and results have the names of their tools."""
    first = create(served, model, tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=False, seed=2, max_tokens=100)
    message = first.choices[0].message
    (call,) = message.tool_calls
    messages: Any = [*QUESTION, message.model_dump(exclude_none=True),
                     {"role": "tool", "tool_call_id": call.id, "content": "rain"}]  # fmt: skip
    arguments = call.function.arguments if model == "fenced" else json.loads(call.function.arguments)
    plain = [
        *QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": "weather", "arguments": arguments}}]},
        {"role": "tool", "content": "rain", "name": "weather"},
    ]  # fmt: skip
    expected = served.generators[model].chat(plain, max_new_tokens=10)
    completion = create(served, model, messages=messages, max_tokens=10)
    assert completion.choices[0].message.content == expected
    assert completion.usage.prompt_tokens == expected.prompt_tokens


@pytest.mark.parametrize(
    ("options", "parameter", "message"),
    [
        ({"tools": "x"}, "tools", "list of objects"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", 'must be "function"'),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "must have a name"),
        ({"tools": [{"type": "function", "function": {"name": 'a", "b'}}]}, "tools[0].function.name", "letters"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name", "another tool"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
         "tools[0].function.parameters", "an object"),
        ({"tool_choice": "maybe"}, "tool_choice", "must be"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice.function.name", "not one"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls", "true or false"),
        ({"tool_choice": "required", "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "no"}}}]}, "tools", "cannot be used"),
        ({"guided_grammar": 'start: "x"'}, "tools", "do not combine"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
         "messages[0].tool_calls[0].function.arguments", "is not JSON"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]},
         "messages[0].tool_calls[0].function.arguments", "JSON object"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_wrong_requests(served: Served, options: dict[str, Any], parameter: str, message: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        served.post("chat/completions", **{"model": "hermes", "messages": QUESTION, "tools": TOOLS, **options})
    assert message in caught.value.message
    assert caught.value.param == parameter
