"""How a model writes calls of tools: found in its chat template, by rendering a conversation with such calls.

Templates differ in marks (`<tool_call>`, `[TOOL_CALLS]`, none), in whether a call is a JSON object, an element of an
array, a name with JSON behind it, or a name with marked parameters, and in what they accept in messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError

if TYPE_CHECKING:
    from weft.generation.chat import ChatTemplates

OBJECT, ARRAY, NAMED, PARAMETERS = "object", "array", "named", "parameters"
LONG_ID, SHORT_ID = 24, 9  # letters of the ids of calls; templates of Mistral accept nine alone
CONTENT = "probe answer"
NAMES = ("probe_one", "probe_two")
KEYS = ("probe_key", "second_key")
VALUES = ("probe value", "second value")
ARGUMENTS = dict(zip(KEYS, VALUES, strict=True))
THINKING = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParameterMarks:
    """The texts around the parameters of a call: before a name, between name and value, and behind the value."""

    begin: str
    middle: str
    end: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls.

    kind: OBJECT, ARRAY, NAMED or PARAMETERS.
    head: the text before the first call. between: the text between two calls. tail: the text behind the last.
    call_begin, call_end: the texts around each call, parts of these.
    name_key, arguments_key: of a call that is a JSON object.
    middle: between the name and the JSON or parameters of other calls.
    takes_text: whether the template wants the arguments of earlier calls as JSON text.
    id_length: the number of letters of the ids of calls.
    """

    kind: str
    head: str
    tail: str
    between: str = ""
    call_begin: str = ""
    call_end: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    middle: str = ""
    parameters: ParameterMarks | None = None
    takes_text: bool = False
    id_length: int = LONG_ID

    @property
    def begin_marks(self) -> tuple[str, ...]:
        """The texts that begin a call anywhere in an answer; none if calls are recognised by their JSON alone."""
        return tuple({mark: None for mark in (self.head.strip(), self.call_begin.strip()) if mark})

    @property
    def end_marks(self) -> tuple[str, ...]:
        """The texts that may follow a call, the longest first."""
        between = self.between.strip().removesuffix(self.call_begin.strip()).strip()
        parts = (self.tail, self.call_end, self.tail.removeprefix(self.call_end), between or ";")
        return tuple(sorted({part.strip() for part in parts if part.strip()}, key=len, reverse=True))

    @property
    def literals(self) -> str:
        """All text of the format, to find the special tokens in it."""
        marks = self.parameters
        further = (marks.begin, marks.middle, marks.end) if marks else ()
        return "\0".join((self.head, self.between, self.tail, self.middle, *further))


def find_tool_format(templates: ChatTemplates, end_texts: Sequence[str]) -> ToolFormat | None:
    """Return the format of a model's calls; None if its chat template has no tools.

    end_texts: the texts of the tokens that end an answer.
    """
    for takes_text in (False, True):
        for id_length in (LONG_ID, SHORT_ID):
            probe = _Probe(templates, end_texts, takes_text, id_length)
            single = probe.render_calls(1)
            if single is not None:
                tool_format = _read_calls(single, probe)
                if tool_format is not None:
                    return tool_format
    return None


class _Probe:
    """Renders conversations whose answers have calls."""

    def __init__(self, templates: ChatTemplates, end_texts: Sequence[str], takes_text: bool, id_length: int) -> None:
        self.takes_text = takes_text
        self.id_length = id_length
        self._templates = templates
        self._end_texts = end_texts
        prompt = self._render([], add_generation_prompt=True) or ""
        plain = self._render([{"role": "assistant", "content": CONTENT}]) or ""
        before, _, self._after = plain.partition(CONTENT)
        self._starts = sorted({prompt, before, before.rstrip()}, key=len, reverse=True)

    def render_calls(self, count: int) -> str | None:
        """Return an answer with calls; None if the template rejects or omits them."""
        calls = [self._make_call(number) for number in range(count)]
        whole = self._render([{"role": "assistant", "content": "", "tool_calls": calls}])
        if whole is None or any(name not in whole for name in NAMES[:count]):
            return None
        start = next((start for start in self._starts if start and whole.startswith(start)), None)
        answer = whole[len(start) :] if start is not None else whole[self._common_length(whole) :]
        if NAMES[0] not in answer:
            return None
        first = answer.rindex(NAMES[count - 1])
        ends = [end for text in self._end_texts if text and (end := answer.find(text, first)) >= 0]
        if ends:
            return THINKING.sub("", answer[: min(ends)])
        return THINKING.sub("", answer.removesuffix(self._after))

    def _common_length(self, whole: str) -> int:
        """Return where an answer begins that no other conversation shares the beginning of."""
        length = max(len(_find_common_start(whole, start)) for start in self._starts)
        opened = whole.rfind("<", 0, length)
        return opened if opened > whole.rfind(">", 0, length) else length

    def _make_call(self, number: int) -> Mapping[str, Any]:
        arguments = json.dumps(ARGUMENTS) if self.takes_text else ARGUMENTS
        name = str(number) * self.id_length
        identifier = f"call_{name}" if self.id_length == LONG_ID else name
        return {"id": identifier, "type": "function", "function": {"name": NAMES[number], "arguments": arguments}}

    def _render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False) -> str | None:
        parameters = {"type": "object", "properties": {key: {"type": "string"} for key in KEYS}}
        tools = [{"type": "function", "function": {"name": "listed", "description": "", "parameters": parameters}}]
        user = {"role": "user", "content": "probe question"}
        try:
            return self._templates.render([user, *messages], tools=tools, add_generation_prompt=add_generation_prompt)
        except WeftError:  # the template does not accept this form
            return None


def _read_calls(answer: str, probe: _Probe) -> ToolFormat | None:
    """Return the format of an answer with one call."""
    tool_format = _read_json_call(answer) or _read_parameters(answer)
    if tool_format is None:
        return None
    double = probe.render_calls(2)
    changes: dict[str, Any] = {"takes_text": probe.takes_text, "id_length": probe.id_length}
    if double is None:  # one call in each answer
        changes |= {"call_begin": tool_format.head, "call_end": tool_format.tail}
    elif tool_format.kind != ARRAY:
        first_end = _find_call_end(double, tool_format)
        second = double.find(NAMES[1])
        if tool_format.kind == OBJECT:
            second = double.find("{", first_end)
        between = double[first_end:second]
        begin = _find_common_end(tool_format.head, between)
        rest = between[: len(between) - len(begin)]
        changes |= {
            "between": between,
            "call_begin": begin,
            "call_end": _find_common_start(rest, tool_format.tail),
        }
    return replace(tool_format, **changes)


def _read_json_call(answer: str) -> ToolFormat | None:
    for start, end, content in _find_json(answer):
        if content == ARGUMENTS:
            head, name, middle = answer[:start].rpartition(NAMES[0])
            return ToolFormat(NAMED, head, answer[end:], middle=middle) if name else None
        call = content[0] if isinstance(content, list) and content else content
        keys = _find_keys(call)
        if keys is not None:
            kind = ARRAY if isinstance(content, list) else OBJECT
            return ToolFormat(kind, answer[:start], answer[end:], name_key=keys[0], arguments_key=keys[1])
    return None


def _find_json(text: str) -> Iterator[tuple[int, int, Any]]:
    """Yield the JSON objects and arrays of a text, with where they begin and end; those inside of others follow."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"[{\[]", text):
        try:
            content, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        yield match.start(), end, content


def _find_keys(call: Any) -> tuple[str, str] | None:
    """Return the keys of name and arguments of a call that is a JSON object."""
    if not isinstance(call, dict):
        return None
    names = [key for key, content in call.items() if content == NAMES[0]]
    texts = (ARGUMENTS, json.dumps(ARGUMENTS))
    arguments = [key for key, content in call.items() if content in texts]
    return (names[0], arguments[0]) if names and arguments else None


def _read_parameters(answer: str) -> ToolFormat | None:
    """Return the format of a call with a mark around each parameter."""
    pieces = []
    rest = answer
    for text in (NAMES[0], KEYS[0], VALUES[0], KEYS[1], VALUES[1]):
        piece, separator, rest = rest.partition(text)
        if not separator:
            return None
        pieces.append(piece)
    head, name_end, middle, between, _ = pieces
    begin = _find_common_end(name_end, between)
    end = _find_common_start(between[: len(between) - len(begin)], rest)
    if not (begin.strip() and middle.strip() and end.strip()):
        return None
    marks = ParameterMarks(begin, middle, end)
    name_end = name_end.removesuffix(begin)
    return ToolFormat(PARAMETERS, head, rest.removeprefix(end), middle=name_end, parameters=marks)


def _find_call_end(answer: str, tool_format: ToolFormat) -> int:
    """Return where the first call of an answer ends, without the texts behind it."""
    if tool_format.parameters is not None:
        return answer.index(VALUES[1]) + len(VALUES[1]) + len(tool_format.parameters.end)
    return next(end for _, end, content in _find_json(answer) if content == ARGUMENTS or _find_keys(content))


def _find_common_start(first: str, second: str) -> str:
    """Return the longest text that both texts begin with."""
    pairs = zip(first, second, strict=False)
    length = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
    return first[:length]


def _find_common_end(first: str, second: str) -> str:
    """Return the longest text that both texts end with, without the rest of a mark such as `</a>` at its beginning."""
    common = _find_common_start(first[::-1], second[::-1])[::-1]
    opening = min((place for mark in "<[" if (place := common.find(mark)) >= 0), default=len(common))
    return common[max(common.rfind(mark, 0, opening) for mark in ">]") + 1 :]
