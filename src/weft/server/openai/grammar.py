"""Write Lark grammars for answers that must have a form: calls of tools, or content behind reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from weft.server.openai.chat_format import ChatFormat
from weft.server.openai.tool_formats import ARRAY, NAMED, PARAMETERS, ToolFormat
from weft.server.openai.tools import Tools

WRITTEN_AS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as in chat templates
ANY_TEXT = "/(.|\\n)*/"
SHARED_SCHEMAS = ("$defs", "definitions")  # which references in a part of a schema lead to


class GrammarWriter:
    """Collects the rules of a grammar for one model."""

    def __init__(self, chat_format: ChatFormat) -> None:
        self._reasoning = chat_format.reasoning
        self._tokens = chat_format.added_tokens
        self._rules: list[str] = []
        texts = sorted(filter(None, self._tokens), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def finish(self, alternatives: Sequence[str], is_reasoning: bool) -> str:
        """Return the grammar of answers with one of some rules, behind the reasoning of models that reason."""
        self._rules.append(f"body: {' | '.join(alternatives)}")
        start = "body"
        reasoning = self._reasoning
        if reasoning is not None:
            self._rules.append("SPACE: /[ \\n]*/")
            thought = self._write_until(reasoning.end, "thought")
            begun = f"{thought} SPACE"
            start = f"{begun} body" if is_reasoning else f"({self._quote(reasoning.begin)} {begun})? body"
        return "\n".join((f"start: {start}", *self._rules))

    def add_schema(self, schema: Any) -> str:
        """Add a rule for JSON that matches a schema, and return its name."""
        return self._add("%json " + json.dumps(schema))

    def add_regex(self, regex: str) -> str:
        """Add a rule for text that matches a regular expression, and return its name."""
        return self._add("/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", regex).replace("\n", "\\n") + "/")

    def add_calls(self, tool_format: ToolFormat, tools: Tools) -> str:
        """Add the rules for calls of tools, and return the name of the first."""
        names = tools.allowed or tuple(tools.schemas)
        call = self._add(" | ".join(self._write_call(tool_format, name, tools.schemas[name]) for name in names))
        is_single = tools.most_calls == 1
        head = tool_format.head if self._reasoning is None else tool_format.head.lstrip()  # behind SPACE
        if tool_format.kind == ARRAY:
            further = "" if is_single else f'(", " {call})*'
            return self._add(f'{self._quote(head)} "[" {call} {further} "]" {self._quote(tool_format.tail)}')
        has_several = bool(tool_format.between.strip()) and not is_single
        further = f"({self._quote(tool_format.between)} {call})*" if has_several else ""
        return self._add(f"{self._quote(head)} {call} {further} {self._quote(tool_format.tail)}")

    def _write_call(self, tool_format: ToolFormat, name: str, schema: Mapping[str, Any]) -> str:
        if tool_format.kind == PARAMETERS:
            return f"{self._quote(name + tool_format.middle)} {self._write_parameters(tool_format, schema)}"
        arguments = self.add_schema({**schema, "x-guidance": {**WRITTEN_AS, **_read_guidance(schema)}})
        if tool_format.kind == NAMED:
            return f"{self._quote(name + tool_format.middle)} {arguments}"
        begin = (
            "{" + f"{json.dumps(tool_format.name_key)}: {json.dumps(name)}, {json.dumps(tool_format.arguments_key)}: "
        )
        return f'{self._quote(begin)} {arguments} "}}"'

    def _write_parameters(self, tool_format: ToolFormat, schema: Mapping[str, Any]) -> str:
        marks = tool_format.parameters
        assert marks is not None
        properties = schema.get("properties")
        required = schema.get("required")
        shared = {key: schema[key] for key in SHARED_SCHEMAS if key in schema}
        parts = []
        for key, described in properties.items() if isinstance(properties, Mapping) else ():
            if isinstance(described, Mapping) and described.get("type") == "string" and "enum" not in described:
                value = self._write_until(marks.end.strip(), "value")
                after = marks.end.lstrip()[len(marks.end.strip()) :]
            else:
                choices = described.get("enum") if isinstance(described, Mapping) else None
                is_text = isinstance(choices, list) and all(isinstance(choice, str) for choice in choices)
                value = (
                    self._add(" | ".join(map(self._quote, choices)))
                    if is_text and choices
                    else self.add_schema({**described, **shared} if isinstance(described, Mapping) else described)
                )
                after = marks.end
            part = f"({self._quote(marks.begin + key + marks.middle)} {value} {self._quote(after)})"
            parts.append(part if isinstance(required, list) and key in required else part + "?")
        return " ".join(parts)

    def _write_until(self, mark: str, purpose: str) -> str:
        """Return what matches any text up to a mark, and the mark."""
        quoted = self._quote(mark)
        if quoted.startswith("<["):  # tokens are no part of texts
            return f"{self._add_named(purpose.upper(), ANY_TEXT)} {quoted}"
        name = f"{purpose}_{len(self._rules)}"
        self._rules.append(f"{name}[suffix={json.dumps(mark)}]: {ANY_TEXT}")
        return name

    def _add(self, body: str) -> str:
        return self._add_named("rule", body)

    def _add_named(self, prefix: str, body: str) -> str:
        name = f"{prefix}_{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _quote(self, text: str) -> str:
        """Return a text as Lark: strings, and added tokens by their ids."""
        parts, end = [], 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            parts += [json.dumps(text[end : match.start()]), f"<[{self._tokens[match[0]]}]>"]
            end = match.end()
        parts.append(json.dumps(text[end:]))
        return " ".join(part for part in parts if part != '""') or '""'


def _read_guidance(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    guidance = schema.get("x-guidance")
    return guidance if isinstance(guidance, Mapping) else {"lenient": True}
