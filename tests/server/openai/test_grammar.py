"""Grammars of required calls: they accept what templates write, and nothing that a schema excludes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from server.openai import templates
from server.openai.folders import write_chat_folder
from server.openai.test_tool_calls import write_answer
from server.openai.test_tools import NAMED, TOOLS

from weft.generation.constraints import ConstraintCompiler
from weft.generation.options import GenerationOptions
from weft.generation.tokenizer import Tokenizer
from weft.server.openai.chat_format import ChatFormat, find_chat_format
from weft.server.openai.fields import Fields
from weft.server.openai.grammar import GrammarWriter
from weft.server.openai.tools import read_tools

ENDS = (3, 0)
FAMILIES = {name: source for name, source in templates.FAMILIES.items() if name != "listed-only"}
GOOD: list[tuple[str, dict[str, Any]]] = [("weather", {"city": "Bern", "days": 3}), ("now", {}),
                                          ("weather", {"city": "Zug", "days": 9, "parts": [True, False]})]  # fmt: skip
BAD: list[tuple[str, dict[str, Any]]] = [
    ("weather", {"city": "Basel", "days": 3}),
    ("weather", {"city": "Bern", "days": 1}),
    ("weather", {"city": "Bern"}),
    ("other", {}),
    ("now", {"a": 1}),
]


class Checker:
    """Says which texts a grammar accepts."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.open(folder)
        self._compiler = ConstraintCompiler((folder / "tokenizer.json").read_text(encoding="utf-8"), 2048, ENDS)

    def accepts(self, grammar: str, text: str) -> bool:
        """Return whether a whole answer has the form."""
        constraint = self._compiler.compile(GenerationOptions(grammar=grammar))
        assert constraint is not None
        tokens = self.tokenizer.encode(text, special=False)
        if constraint.count_accepted(tokens) < len(tokens):
            return False
        for token in tokens:
            constraint.accept(token)
        return constraint.can_end


def open_format(folder: Path) -> tuple[Checker, ChatFormat]:
    checker = Checker(folder)
    return checker, find_chat_format(checker.tokenizer, ENDS)


def write_grammar(chat_format: ChatFormat, is_reasoning: bool = False, **options: Any) -> str:
    tools = read_tools(Fields({"tools": TOOLS, "tool_choice": "required", **options}), chat_format)
    writer = GrammarWriter(chat_format)
    assert chat_format.tool_format is not None
    return writer.finish([writer.add_calls(chat_format.tool_format, tools)], is_reasoning)


def write_call(family: str, chat_format: ChatFormat, calls: list[tuple[str, dict[str, Any]]]) -> str:
    assert chat_format.tool_format is not None
    if family == "xml":  # whose template writes lists in Python's syntax
        calls = [
            (name, {key: json.dumps(v) if isinstance(v, list) else v for key, v in a.items()}) for name, a in calls
        ]
    text = write_answer(family, chat_format.tool_format, calls, "")
    return re.sub(r', "id": "\d{9}"', "", text)


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_templates_are_accepted(tmp_path: Path, family: str) -> None:
    checker, chat_format = open_format(write_chat_folder(tmp_path / "m", FAMILIES[family]))
    any_call, named = write_grammar(chat_format), write_grammar(chat_format, tool_choice=NAMED)
    single = write_grammar(chat_format, parallel_tool_calls=False)
    for call in GOOD:
        text = write_call(family, chat_format, [call])
        assert checker.accepts(any_call, text), text
        assert checker.accepts(single, text), text
        assert checker.accepts(named, text) == (call[0] == "weather")
        assert not checker.accepts(any_call, text[:-1])
        assert not checker.accepts(any_call, "x" + text)
    for call in BAD:
        assert not checker.accepts(any_call, write_call(family, chat_format, [call])), call
    if family != "llama":
        several = write_call(family, chat_format, GOOD)
        assert checker.accepts(any_call, several), several
        assert not checker.accepts(single, several)


@pytest.mark.parametrize("family", ["hermes", "invoke", "llama"])
def test_reasoning_stands_before_calls(tmp_path: Path, family: str) -> None:
    """Marks are texts, or special tokens, which the grammar names by their ids."""
    template = FAMILIES[family] + "{# </think> #}"
    for renamed in ({}, {"<|user|>": "</think>"}):
        folder = write_chat_folder(tmp_path / f"m{len(renamed)}", template, renamed)
        checker, chat_format = open_format(folder)
        call = write_call(family, chat_format, GOOD[:1])
        optional, begun = write_grammar(chat_format), write_grammar(chat_format, is_reasoning=True)
        thought = "hm <tool_call> {\n\n</think>"
        assert checker.accepts(optional, call.lstrip())
        assert not checker.accepts(begun, call)
        for space in ("", "\n\n"):
            assert checker.accepts(optional, f"<think>{thought}{space}{call.lstrip()}")
            assert checker.accepts(begun, f"{thought}{space}{call.lstrip()}")
        assert not checker.accepts(optional, f"{thought}{call}")
        assert not checker.accepts(begun, f"{thought}\n\nyes")


def test_marks_that_are_tokens(tmp_path: Path) -> None:
    """A mark that is one token must be written as that token."""
    template = templates.LIST.replace("<|user|>", "<|system|>").replace("<|tool_call|>", "[CALL]")
    checker, chat_format = open_format(write_chat_folder(tmp_path / "m", template, {"<|user|>": "[CALL]"}))
    assert chat_format.tool_tokens == {1}
    text = write_call("list", chat_format, GOOD[:2]).replace("<|tool_call|>", "[CALL]")
    grammar = write_grammar(chat_format)
    assert "<[1]>" in grammar
    assert checker.tokenizer.encode(text, special=False)[0] == 1
    assert checker.accepts(grammar, text)


def test_regular_expressions(tmp_path: Path) -> None:
    checker, chat_format = open_format(write_chat_folder(tmp_path / "m", templates.REASONER))
    for regex, good, bad in (
        (r"a/b", "a/b", "a\\/b"),
        (r"a\/b", "a/b", "ab"),
        (r"a\\/b", "a\\/b", "a/b"),
        ("a\nb", "a\nb", "ab"),
    ):
        writer = GrammarWriter(chat_format)
        grammar = writer.finish([writer.add_regex(regex)], is_reasoning=True)
        assert checker.accepts(grammar, f"so</think>{good}"), regex
        assert not checker.accepts(grammar, f"so</think>{bad}"), regex
