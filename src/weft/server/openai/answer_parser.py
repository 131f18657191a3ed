"""Parse answers as they come: reasoning, content, and calls of tools in the format of the model.

`AnswerParser` is a parser that waits inside of a rule until more text comes. What it yields in all does not depend on
where the text was divided.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.server.openai.tool_formats import NAMED, PARAMETERS, ToolFormat

CONTENT, REASONING, CALL, ARGUMENTS = "content", "reasoning", "call", "arguments"
LONGEST_NAME = 256
NAME_KEYS, ARGUMENT_KEYS = ("name",), ("arguments", "parameters")
PYTHON_VALUES = {"True": "true", "False": "false", "None": "null"}  # as templates write values that are no text
STRING_PART = re.compile(r'["\\]')
VALUE_PART = re.compile(r'["{}\[\],\s]')
NAME_CHARACTERS = re.compile(r"[\w.\-]*")

Wait = Generator[None, None, Any]


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """A part of an answer.

    kind: CONTENT, REASONING, CALL (text is the name of the function) or ARGUMENTS. call: the number of the call.
    """

    kind: str
    text: str
    call: int = 0


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The texts around the reasoning at the beginning of an answer."""

    begin: str
    end: str


class AnswerParser:
    """Parses one answer."""

    def __init__(
        self,
        tool_format: ToolFormat | None,
        tools: Mapping[str, Mapping[str, Any]],
        reasoning: ReasoningMarks | None = None,
        *,
        is_reasoning: bool = False,
        most_calls: int | None = None,
    ) -> None:
        """Parse an answer with these tools.

        tool_format: None for an answer without calls. tools: the schemas of their arguments by name.
        is_reasoning: whether the prompt has begun the reasoning. most_calls: where the answer ends.
        """
        self.calls = 0
        self.is_finished = False  # no further text matters
        self._format = tool_format
        self._tools = tools
        self._reasoning = reasoning
        self._is_reasoning = is_reasoning
        self._most_calls = most_calls
        self._text = ""
        self._at = 0  # where the text begins that was not parsed
        self._is_closed = False
        self._events: list[AnswerEvent] = []
        self._machine = self._parse()
        self._advance()

    def put(self, text: str) -> list[AnswerEvent]:
        """Take the next text of the answer."""
        self._text += text
        return self._advance()

    def finish(self) -> list[AnswerEvent]:
        """Take the end of the answer."""
        self._is_closed = True
        return self._advance()

    def _advance(self) -> list[AnswerEvent]:
        if not self.is_finished:
            try:
                next(self._machine)
            except StopIteration:
                self.is_finished = True
        events, self._events = self._events, []
        return events

    def _emit(self, kind: str, text: str) -> None:
        if text:
            self._events.append(AnswerEvent(kind, text, max(self.calls - 1, 0)))

    # -- rules -------------------------------------------------------------------------------------------------------

    def _parse(self) -> Wait:
        if self._reasoning is not None:
            yield from self._parse_reasoning(self._reasoning)
        tool_format = self._format
        if tool_format is None:
            while True:
                self._emit(CONTENT, self._take(len(self._text)))
                if not (yield from self._more()):
                    return
        if not tool_format.begin_marks:
            while not self._has_all_calls() and (yield from self._parse_calls(tool_format, is_known_only=True)):
                pass
        while not self._has_all_calls():
            mark = yield from self._take_until(CONTENT, tool_format.begin_marks)
            if not mark:
                return
            if (yield from self._parse_calls(tool_format)):
                continue
            if self.calls and self._is_closed:  # the answer was cut off
                return
            self._emit(CONTENT, mark)

    def _has_all_calls(self) -> bool:
        return self._most_calls is not None and self.calls >= self._most_calls

    def _parse_reasoning(self, marks: ReasoningMarks) -> Wait:
        if not self._is_reasoning:
            space = yield from self._count_space(0)
            if not (yield from self._has(marks.begin, space)):
                return
            self._at += space + len(marks.begin)
        else:
            space = yield from self._count_space(0)
            if (yield from self._has(marks.begin, space)):  # begun again by the model
                self._at += space + len(marks.begin)
        yield from self._skip_space()
        if (yield from self._take_until(REASONING, (marks.end,))):
            yield from self._skip_space()

    def _parse_calls(self, tool_format: ToolFormat, is_known_only: bool = False) -> Wait:
        """Parse the calls behind a mark; False if there is none, and the text behind the mark is content."""
        first = self.calls
        space = yield from self._count_space(0)
        if tool_format.kind in (NAMED, PARAMETERS):
            yield from self._parse_named_call(tool_format)
        elif (yield from self._has("[", space)):
            yield from self._parse_array(space + 1, is_known_only)
        else:
            yield from self._parse_object(space, is_known_only)
        if self.calls > first:
            yield from self._skip_ends(tool_format)
        return self.calls > first

    def _parse_array(self, offset: int, is_known_only: bool) -> Wait:
        if not (yield from self._parse_object((yield from self._count_space(offset)), is_known_only)):
            return
        while not self._has_all_calls():
            space = yield from self._count_space(0)
            if (yield from self._has("]", space)):
                self._at += space + 1
                return
            if (yield from self._has(",", space)):
                space = yield from self._count_space(space + 1)
            if not (yield from self._parse_object(space, is_known_only)):
                if self._is_closed:  # the answer was cut off
                    self._take(len(self._text))
                return

    def _parse_object(self, offset: int, is_known_only: bool) -> Wait:
        """Parse a call that is a JSON object; False, with no text taken, if it is none."""
        if not (yield from self._has("{", offset)):
            return False
        offset += 1
        name: str | None = None
        arguments: str | None = None
        while True:
            offset = yield from self._count_space(offset)
            if (yield from self._has(",", offset)):
                offset += 1
                continue
            has_key = yield from self._has('"', offset)
            end = (yield from self._find_value_end(offset)) if has_key else -1
            key = _load_text(self._slice(offset, end)) if end > 0 else None
            colon = (yield from self._count_space(end)) if key is not None else offset
            if key is None or not (yield from self._has(":", colon)):
                break
            offset = yield from self._count_space(colon + 1)
            streams = name is not None and arguments is None and key in ARGUMENT_KEYS
            is_object = streams and (yield from self._has("{", offset))
            end = yield from self._find_value_end(offset, streams=is_object)
            value = self._slice(offset, end)
            offset = end
            if key in NAME_KEYS and name is None:
                name = _load_text(value)
                if name is None or (is_known_only and name not in self._tools):
                    return False
                self._begin_call(name)
                self._emit(ARGUMENTS, arguments or "")
            elif key in ARGUMENT_KEYS and arguments is None:
                arguments = value if is_object else _read_arguments(value)
                if streams and not is_object:
                    self._emit(ARGUMENTS, arguments)
        if name is None:
            return False
        if arguments is None:
            self._emit(ARGUMENTS, "{}")
        if (yield from self._has("}", offset)):
            offset += 1
        self._at += offset
        return True

    def _parse_named_call(self, tool_format: ToolFormat) -> Wait:
        """Parse a name and what follows it; no text is taken if that is no call."""
        begin = yield from self._count_space(0)
        mark = tool_format.middle.strip()
        marks = tool_format.parameters
        name_end = yield from self._find_name_end(begin, mark)
        name = self._slice(begin, name_end).strip() if name_end >= 0 else ""
        if not name:
            return
        offset = yield from self._count_space(name_end + len(mark))
        if marks is None:
            if not (yield from self._has("{", offset)):
                return
            self._begin_call(name)
            end = yield from self._find_value_end(offset, streams=True)
            self._at += end  # which waiting for text changes
            return
        self._begin_call(name)
        self._at += offset
        yield from self._parse_parameters(tool_format, self._tools.get(name, {}))

    def _find_name_end(self, offset: int, mark: str) -> Wait:
        """Return where a name ends: before a mark, or with its last character; -1 if it does not end."""
        while True:
            text = self._slice(offset, offset + LONGEST_NAME + len(mark))
            if mark:
                end = text.find(mark)
                if end >= 0:
                    return offset + end
            else:
                end = len(NAME_CHARACTERS.match(text)[0])  # type: ignore[index]
                if end < len(text):
                    return offset + end
            if len(text) > LONGEST_NAME or not (yield from self._more()):
                return -1

    def _parse_parameters(self, tool_format: ToolFormat, schema: Mapping[str, Any]) -> Wait:
        """Parse parameters between marks, and emit them as the members of a JSON object."""
        marks = tool_format.parameters
        assert marks is not None
        begin, middle, end = marks.begin.strip(), marks.middle.strip(), marks.end.strip()
        separator = "{"
        while True:
            yield from self._skip_space()
            if not (yield from self._has(begin, 0)):
                break
            key_end = yield from self._find(middle, len(begin))
            value_end = -1 if key_end < 0 else (yield from self._find(end, key_end + len(middle)))
            if value_end < 0:  # the answer was cut off
                self._take(len(self._text))
                self._emit(ARGUMENTS, separator)
                return
            key = self._slice(len(begin), key_end).strip()
            value = self._slice(key_end + len(middle), value_end)
            if marks.middle.endswith("\n"):
                value = value.removeprefix("\n").removesuffix("\n")
            self._emit(ARGUMENTS, separator + json.dumps(key) + ": " + _write_value(value, key, schema))
            separator = ", "
            self._at += value_end + len(end)
        self._emit(ARGUMENTS, "}" if separator != "{" else "{}")

    def _begin_call(self, name: str) -> None:
        self.calls += 1
        self._emit(CALL, name)

    def _skip_ends(self, tool_format: ToolFormat) -> Wait:
        """Skip the texts that close calls."""
        marks = tool_format.end_marks
        while True:
            space = yield from self._count_space(0)
            for mark in marks:
                if (yield from self._has(mark, space)):
                    self._at += space + len(mark)
                    break
            else:
                return

    # -- text --------------------------------------------------------------------------------------------------------

    def _more(self) -> Wait:
        """Wait for more text; False at the end of the answer."""
        self._text, self._at = self._text[self._at :], 0
        size = len(self._text)
        while len(self._text) == size:
            if self._is_closed:
                return False
            yield
        return True

    def _slice(self, begin: int, end: int) -> str:
        """Return text by its place behind what was parsed."""
        return self._text[self._at + begin : self._at + end]

    def _take(self, size: int) -> str:
        text = self._slice(0, size)
        self._at += len(text)
        return text

    def _has(self, literal: str, offset: int) -> Wait:
        """Return whether a text follows."""
        while True:
            text = self._slice(offset, offset + len(literal))
            if text == literal:
                return True
            if not literal.startswith(text) or not (yield from self._more()):
                return False

    def _count_space(self, offset: int) -> Wait:
        """Return where the text goes on behind white space."""
        while True:
            text = self._text
            position = self._at + offset
            while position < len(text) and text[position].isspace():
                position += 1
            offset = position - self._at
            if position < len(text) or not (yield from self._more()):
                return offset

    def _skip_space(self) -> Wait:
        space = yield from self._count_space(0)
        self._at += space  # which waiting for text changes

    def _find(self, literal: str, offset: int) -> Wait:
        """Return where a text begins; -1 if it does not come."""
        while True:
            place = self._text.find(literal, self._at + offset)
            if place >= 0:
                return place - self._at
            offset = max(offset, len(self._text) - self._at - len(literal) + 1)
            if not (yield from self._more()):
                return -1

    def _take_until(self, kind: str, marks: Sequence[str]) -> Wait:
        """Emit text up to the first of some marks, without white space before it; return the mark, or ""."""
        while True:
            text = self._text[self._at :]
            places = [(place + len(mark), place, mark) for mark in marks if (place := text.find(mark)) >= 0]
            if places:
                end, place, mark = min(places)
                self._emit(kind, text[:place].rstrip())
                self._at += end
                return mark
            self._emit(kind, self._take(len(text[: len(text) - _count_partial(text, marks)].rstrip())))
            if not (yield from self._more()):
                rest = self._take(len(self._text))
                if kind == CONTENT and not (self.calls and rest.isspace()):
                    self._emit(kind, rest)
                elif kind == REASONING:
                    self._emit(kind, rest.rstrip())
                return ""

    def _find_value_end(self, offset: int, streams: bool = False) -> Wait:
        """Return where a JSON value ends, or as much of it as has come; `streams` emits it as arguments."""
        depth, is_string, emitted = 0, False, offset
        while True:
            size = len(self._text) - self._at
            while offset < size:
                match = (STRING_PART if is_string else VALUE_PART).search(self._text, self._at + offset)
                if match is None:
                    offset = size
                    break
                place, character = match.start() - self._at, match[0]
                if character == "\\":
                    if place + 2 > size:
                        offset = place
                        break
                    offset = place + 2
                    continue
                ends = not depth and (character in ",}]" or character.isspace())
                offset = place + (not ends)
                if character == '"':
                    is_string = not is_string
                depth += (character in "{[") - (character in "}]")
                if ends or (not depth and not is_string and character in '"}]'):
                    if streams:
                        self._emit(ARGUMENTS, self._slice(emitted, offset))
                    return offset
            if streams:
                self._emit(ARGUMENTS, self._slice(emitted, offset))
                emitted = offset
            if not (yield from self._more()):
                return offset


def _count_partial(text: str, marks: Collection[str]) -> int:
    """Return the length of the longest end of a text that is the beginning of a mark."""
    longest = max(map(len, marks), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(mark.startswith(text[len(text) - length :]) for mark in marks):
            return length
    return 0


def _load_text(value: str) -> str | None:
    """Return the string of a JSON string; None for other values."""
    try:
        content = json.loads(value, strict=False)
    except ValueError:
        return None
    return content if isinstance(content, str) else None


def _read_arguments(value: str) -> str:
    """Return the JSON text of arguments, which may be a string with that text, or null."""
    text = _load_text(value)
    return "{}" if value == "null" else value if text is None else text


def _write_value(text: str, key: str, schema: Mapping[str, Any]) -> str:
    """Return the JSON of a parameter that a model wrote as text: a string, unless its schema has another type."""
    properties = schema.get("properties")
    described = properties.get(key) if isinstance(properties, Mapping) else None
    kind = described.get("type") if isinstance(described, Mapping) else None
    if kind != "string":
        text = PYTHON_VALUES.get(text, text)
        try:
            return json.dumps(json.loads(text), ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)
