"""What a model's chat template and tokenizer say about chats: tools, reasoning, roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from weft.errors import WeftError
from weft.server.openai.answer_parser import ReasoningMarks
from weft.server.openai.token_bytes import TokenBytes
from weft.server.openai.tool_formats import OBJECT, ToolFormat, find_tool_format

if TYPE_CHECKING:
    from weft.generation.generator import Generator
    from weft.generation.tokenizer import Tokenizer

REASONING_MARKS = (
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
)
HERMES = ToolFormat(
    OBJECT,
    "<tool_call>\n",
    "\n</tool_call>",
    "\n</tool_call>\n<tool_call>\n",
    call_begin="<tool_call>\n",
    call_end="\n</tool_call>",
)
PLAIN = ToolFormat(OBJECT, "", "", arguments_key="parameters")


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a model chats.

    tool_format: how it writes calls; None if its template takes no tools.
    reasoning: the marks around its reasoning; None if it does not reason.
    has_developer: whether its template knows the role "developer".
    added_tokens: the ids of tokens that stand for a fixed text, by that text.
    tool_tokens, reasoning_tokens: the special tokens that a parser of answers needs to see.
    """

    tokenizer: Tokenizer
    token_bytes: TokenBytes
    tool_format: ToolFormat | None
    reasoning: ReasoningMarks | None
    has_developer: bool
    added_tokens: Mapping[str, int]
    tool_tokens: frozenset[int]
    reasoning_tokens: frozenset[int]


class ChatFormats:
    """The formats of generators that are in use."""

    def __init__(self) -> None:
        self._formats: WeakKeyDictionary[Generator, ChatFormat] = WeakKeyDictionary()

    def get(self, generator: Generator) -> ChatFormat:
        """Return the format of a generator; several threads may find it at the same time."""
        chat_format = self._formats.get(generator)
        if chat_format is None:
            chat_format = self._formats[generator] = find_chat_format(generator.tokenizer, generator.folder.end_tokens)
        return chat_format


def find_chat_format(tokenizer: Tokenizer, end_tokens: tuple[int, ...]) -> ChatFormat:
    """Find how a model chats."""
    source = "\0".join(tokenizer.chat_templates.sources.values())
    added = {token.content: number for number, token in tokenizer.backend.get_added_tokens_decoder().items()}
    end_texts = [text for token in end_tokens if (text := tokenizer.text_of(token))]
    tool_format = None
    if _takes_tools(tokenizer):
        tool_format = find_tool_format(tokenizer.chat_templates, end_texts)
        if tool_format is None:  # the template shows tools, but no calls
            tool_format = HERMES if "<tool_call>" in source else PLAIN
    reasoning = next((marks for marks in REASONING_MARKS if marks.end in source or marks.end in added), None)
    special = {text: number for text, number in added.items() if text and number in tokenizer.special_ids}
    literals = "" if tool_format is None else tool_format.literals
    marks = () if reasoning is None else (reasoning.begin, reasoning.end)
    return ChatFormat(
        tokenizer,
        TokenBytes(tokenizer),
        tool_format,
        reasoning,
        '"developer"' in source.replace("'", '"'),
        added,
        frozenset(number for text, number in special.items() if text in literals),
        frozenset(number for text, number in special.items() if text in marks),
    )


def _takes_tools(tokenizer: Tokenizer) -> bool:
    """Whether the chat template writes tools into the prompt."""
    function = {"name": "probe_tool", "description": "", "parameters": {"type": "object", "properties": {}}}
    messages = [{"role": "user", "content": "probe question"}]
    try:
        return "probe_tool" in tokenizer.chat(messages, tools=[{"type": "function", "function": function}])
    except WeftError:
        return False
