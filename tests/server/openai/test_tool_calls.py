"""Calls of tools: formats read from templates, and a parser whose result does not depend on how text is divided.

A call that a template wrote must come back from the parser as it was, which needs no expected texts.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from server.openai.templates import END_TEXTS, FAMILIES, HERMES, THINKING

from weft.generation.chat import ChatTemplates
from weft.server.openai.answer_parser import (
    ARGUMENTS,
    CALL,
    CONTENT,
    REASONING,
    AnswerEvent,
    AnswerParser,
    ReasoningMarks,
)
from weft.server.openai.tool_formats import LONG_ID, SHORT_ID, ToolFormat, find_tool_format

SCHEMA = {
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "options": {"type": "object"},
        "sure": {"type": "boolean"},
        "code": {"type": "string"},
    }
}
TOOLS = {"weather": SCHEMA, "now": {"properties": {}}}
THINK = ReasoningMarks("<think>", "</think>")
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("weather", {"city": "Zürich", "days": 3}),
    ("weather", {"city": 'a "quoted" \\ {name}], </tool', "options": {"a": [1, {"b": None}], "c": "}"}}),
    ("now", {}),
    ("weather", {"city": "x", "code": "7"}),
]
Result = tuple[str, str, list[tuple[str, str]]]


def make_templates(source: str) -> ChatTemplates:
    return ChatTemplates({"default": source}, {}, Path("folder"))


def find_format(family: str) -> ToolFormat:
    tool_format = find_tool_format(make_templates(FAMILIES[family]), END_TEXTS)
    assert tool_format is not None
    return tool_format


def write_answer(family: str, tool_format: ToolFormat, calls: list[tuple[str, dict[str, Any]]], content: str) -> str:
    """Return what the template writes for an answer with calls."""
    identifiers = ["1" * tool_format.id_length for _ in calls]
    described = [
        {
            "id": identifier,
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(values) if tool_format.takes_text else values},
        }
        for identifier, (name, values) in zip(identifiers, calls, strict=True)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": described}
    prompt = make_templates(FAMILIES[family]).render([message], add_generation_prompt=False)
    return prompt.removeprefix("<|assistant|>").removesuffix("<|end|>")


def parse(tool_format: ToolFormat | None, text: str, cuts: list[int], **options: Any) -> Result:
    parser = AnswerParser(tool_format, TOOLS, THINK, **options)
    events: list[AnswerEvent] = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        events += parser.put(text[begin:end])
    events += parser.finish()
    calls: list[tuple[str, str]] = []
    for event in events:
        assert event.text
        if event.kind == CALL:
            assert event.call == len(calls)
            calls.append((event.text, ""))
        elif event.kind == ARGUMENTS:
            name, arguments = calls[event.call]
            calls[event.call] = name, arguments + event.text
    content = "".join(event.text for event in events if event.kind == CONTENT)
    return content, "".join(event.text for event in events if event.kind == REASONING), calls


def check_all_splits(tool_format: ToolFormat | None, text: str, rounds: int = 25, **options: Any) -> Result:
    """Return the result of a text, which must be the same for all ways to divide it."""
    whole = parse(tool_format, text, [], **options)
    assert parse(tool_format, text, list(range(1, len(text))), **options) == whole
    for middle in range(len(text) + 1):
        assert parse(tool_format, text, [middle], **options) == whole, middle
    for seed in range(rounds):
        print("seed", seed)
        generator = random.Random(seed)
        cuts = sorted(generator.randrange(len(text) + 1) for _ in range(generator.randrange(1, 9)))
        assert parse(tool_format, text, cuts, **options) == whole, cuts
    return whole


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "listed-only"])
def test_calls_of_templates_come_back(family: str) -> None:
    tool_format = find_format(family)
    sequences = [[call] for call in CALLS]
    if family != "llama":
        sequences += [[CALLS[0], CALLS[3]], CALLS]
    for calls in sequences:
        if family in ("xml", "pairs"):  # whose template writes mappings in Python's syntax
            calls = [
                (name, {key: value for key, value in values.items() if key != "options"}) for name, values in calls
            ]
            calls += [("weather", {"sure": True, "days": -2})]
        for content in ("", "Let me see.\n", "a < b [x"):
            if family == "llama" and content:
                continue  # has no mark behind content
            text = write_answer(family, tool_format, calls, content)
            parsed, reasoning, parsed_calls = check_all_splits(tool_format, text, rounds=4)
            assert [(name, json.loads(arguments)) for name, arguments in parsed_calls] == calls
            assert (parsed.strip(), reasoning) == (content.strip(), "")
            assert parse(tool_format, f"<think>\nhm <tool_call>\n</think>\n\n{text}", [])[1:] == (
                "hm <tool_call>",
                parsed_calls,
            )


def test_formats_follow_the_template() -> None:
    assert find_format("hermes").begin_marks == ("<tool_call>",)
    assert find_format("llama").begin_marks == ()
    assert find_format("llama").arguments_key == "parameters"
    assert (find_format("mistral").id_length, find_format("hermes").id_length) == (SHORT_ID, LONG_ID)
    assert (find_format("fenced").takes_text, find_format("named").takes_text) == (True, False)
    assert find_format("invoke").begin_marks == ('<calls>\n<invoke name="', '<invoke name="')
    assert find_format("invoke").end_marks == ("</invoke>\n</calls>", "</invoke>", "</calls>")
    assert find_tool_format(make_templates(FAMILIES["listed-only"]), END_TEXTS) is None
    thinking = find_tool_format(make_templates(THINKING), END_TEXTS)
    assert thinking == find_format("hermes")


@pytest.mark.parametrize(
    ("family", "text", "expected"),
    [
        ("hermes", "no call \n", ("no call \n", "", [])),
        ("hermes", "<tool_call> none", ("<tool_call> none", "", [])),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>', ("", "", [("now", "{}")])),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "now"}', ("", "", [("now", '{"a": 1}')])),
        ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}', ("", "", [("now", '{"a": 1}')])),
        ("hermes", '<tool_call>{"name": "now", "arguments": null}', ("", "", [("now", "{}")])),
        ("hermes", 'x<tool_call>{"name": "now", "arguments": {"a": "b', ("x", "", [("now", '{"a": "b')])),
        ("hermes", '<tool_call>{"name": "no', ('<tool_call>{"name": "no', "", [])),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}', ('<tool_call>{"name": 3, "arguments": {}}', "", [])),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}</tool_call>!', ("!", "", [("now", "{}")])),
        ("hermes", '<tool_call>[{"name": "now"}, {"name": "b"}]', ("", "", [("now", "{}"), ("b", "{}")])),
        ("hermes", "  <think>a</think>\n\nb", ("b", "a", [])),
        ("hermes", "<think>a", ("", "a", [])),
        ("hermes", "a<think>b</think>", ("a<think>b</think>", "", [])),
        ("llama", '{"name": "other", "parameters": {}}', ('{"name": "other", "parameters": {}}', "", [])),
        ("llama", '{"name": "now", "parameters": {}}; {"name": "now"}', ("", "", [("now", "{}"), ("now", "{}")])),
        ("llama", 'x {"name": "now", "parameters": {}}', ('x {"name": "now", "parameters": {}}', "", [])),
        ("llama", "{1", ("{1", "", [])),
        ("mistral", '[TOOL_CALLS]{"name": "now"}', ("", "", [("now", "{}")])),
        ("mistral", "[TOOL_CALLS] []", ("[TOOL_CALLS] []", "", [])),
        ("named", "[TOOL_CALLS]now", ("[TOOL_CALLS]now", "", [])),
        ("named", "[TOOL_CALLS]now[ARGS]x", ("[TOOL_CALLS]now[ARGS]x", "", [])),
        ("pairs", "<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>[1", ("", "", [("now", "{")])),
    ],
)  # fmt: skip
def test_irregular_answers(family: str, text: str, expected: Result) -> None:
    assert check_all_splits(find_format(family), text) == expected


def test_prompt_that_begins_the_reasoning() -> None:
    text = "so \n</think>\n\nyes"
    assert check_all_splits(find_format("hermes"), text, is_reasoning=True) == ("yes", "so", [])
    assert check_all_splits(None, text, is_reasoning=True) == ("yes", "so", [])
    assert check_all_splits(None, "<think>" + text, is_reasoning=True) == ("yes", "so", [])
    assert check_all_splits(None, "so", is_reasoning=True) == ("", "so", [])


def test_one_call_ends_an_answer_without_parallel_calls() -> None:
    tool_format = find_format("hermes")
    text = write_answer("hermes", tool_format, CALLS[:2], "")
    assert len(check_all_splits(tool_format, text, most_calls=1)[2]) == 1
    array = write_answer("mistral", find_format("mistral"), CALLS[:2], "")
    assert len(check_all_splits(find_format("mistral"), array, most_calls=1)[2]) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_random_texts(family: str) -> None:
    """Texts of broken calls never raise, and their result does not depend on how they are divided."""
    tool_format = find_tool_format(make_templates(FAMILIES[family]), END_TEXTS) or find_format("hermes")
    pieces = [
        *tool_format.begin_marks, *tool_format.end_marks, tool_format.middle, "<think>", "</think>", '{"name": ',
        '"now"', ', "arguments": ', "{", "}", "[", "]", '"', "\\", " ", "\n", "1", "x", ",", ":", "<", "é",
        "weather",
        *((tool_format.parameters.begin, tool_format.parameters.middle, tool_format.parameters.end)
          if tool_format.parameters else ()),
    ]  # fmt: skip
    for seed in range(60):
        print("seed", seed)
        generator = random.Random(seed)
        text = "".join(generator.choice(pieces) for _ in range(generator.randrange(1, 25)))
        whole = parse(tool_format, text, [])
        assert parse(tool_format, text, list(range(1, len(text)))) == whole, text
        for _ in range(5):
            cuts = sorted(generator.randrange(len(text) + 1) for _ in range(generator.randrange(1, 6)))
            assert parse(tool_format, text, cuts) == whole, (text, cuts)


def test_long_arguments_in_small_pieces() -> None:
    tool_format = find_tool_format(make_templates(HERMES), END_TEXTS)
    value = "x" * 200_000
    text = f'<tool_call>{{"name": "now", "arguments": {{"a": "{value}"}}}}</tool_call>'
    _, _, calls = parse(tool_format, text, list(range(50, len(text), 50)))
    assert json.loads(calls[0][1]) == {"a": value}
