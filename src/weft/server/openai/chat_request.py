"""Read a chat completion's request: the prompt with its options, and how its answers are to be parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.server.openai.answer_parser import AnswerParser
from weft.server.openai.chat_format import ChatFormat, ChatFormats
from weft.server.openai.fields import Fields
from weft.server.openai.grammar import GrammarWriter
from weft.server.openai.messages import read_messages
from weft.server.openai.sampling import read_guide, read_sampling, read_schema
from weft.server.openai.start import PromptRequest
from weft.server.openai.tools import AUTO, NONE, REQUIRED, Tools, read_tools

if TYPE_CHECKING:
    from weft.generation.generator import Generator

MOST_TOP_LOGPROBS = 20
RESERVED = ("messages", "tools", "documents", "add_generation_prompt")  # variables of templates


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Whether an answer is streamed, and whether its last event has the usage."""

    is_stream: bool
    includes_usage: bool


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat whose prompt is ready.

    has_logprobs: whether the answer reports log probabilities.
    is_reasoning: whether the prompt begins the reasoning of the answer.
    """

    prompt: PromptRequest
    chat_format: ChatFormat
    tools: Tools
    has_logprobs: bool
    is_reasoning: bool
    end_tokens: Sequence[int]

    @property
    def prompts(self) -> list[PromptRequest]:
        """The prompts to submit."""
        return [self.prompt]

    @property
    def shown_tokens(self) -> frozenset[int]:
        """The special tokens that the parser of an answer needs to see."""
        tokens = self.chat_format.reasoning_tokens
        return tokens if self.tools.mode == NONE else tokens | self.chat_format.tool_tokens

    def make_parser(self) -> AnswerParser | None:
        """Return the parser of an answer; None for one that is content as it is."""
        tool_format = None if self.tools.mode == NONE else self.chat_format.tool_format
        if tool_format is None and self.chat_format.reasoning is None:
            return None
        return AnswerParser(
            tool_format,
            self.tools.schemas,
            self.chat_format.reasoning,
            is_reasoning=self.is_reasoning,
            most_calls=self.tools.most_calls,
        )


def read_stream_options(fields: Fields) -> StreamOptions:
    """Read `stream` and `stream_options`."""
    is_stream = fields.flag("stream")
    section = fields.section("stream_options")
    if section is not None and not is_stream:
        raise fields.error("stream_options", "stream_options needs stream: true")
    return StreamOptions(is_stream, section is not None and section.flag("include_usage"))


def read_chat(fields: Fields, generator: Generator, formats: ChatFormats) -> ChatRequest:
    """Read a request, and format its prompt."""
    if generator.folder.encoder is not None:
        problem = "this model is an encoder–decoder, which does not chat: use /v1/completions"
        raise fields.error("model", problem, code="model_kind_mismatch")
    chat_format = formats.get(generator)
    options = read_sampling(fields, generator)
    options["max_new_tokens"] = fields.integer("max_completion_tokens", 1, 1 << 31) or fields.integer(
        "max_tokens", 1, 1 << 31
    )
    options["logprobs"] = _read_logprobs(fields)
    tools = read_tools(fields, chat_format)
    text = _format_prompt(fields, chat_format, tools)
    reasoning = chat_format.reasoning
    is_reasoning = reasoning is not None and text.rstrip().endswith(reasoning.begin)
    constraint, constraint_options = _read_constraint(fields, chat_format, tools, is_reasoning)
    options |= constraint_options
    tokens = chat_format.tokenizer.encode(text, special=False)
    prompt = PromptRequest(tokens, {name: value for name, value in options.items() if value is not None}, constraint)
    has_logprobs = options["logprobs"] is not None
    return ChatRequest(prompt, chat_format, tools, has_logprobs, is_reasoning, generator.folder.end_tokens)


def _read_logprobs(fields: Fields) -> int | None:
    count = fields.integer("top_logprobs", 0, MOST_TOP_LOGPROBS)
    if not fields.flag("logprobs"):
        if count:
            raise fields.error("top_logprobs", "top_logprobs needs logprobs: true")
        return None
    return count or 0


def _format_prompt(fields: Fields, chat_format: ChatFormat, tools: Tools) -> str:
    messages = read_messages(fields, chat_format)
    section = fields.section("chat_template_kwargs")
    variables: dict[str, Any] = {} if section is None else dict(section.content)
    wrong = next((name for name in RESERVED if name in variables), None)
    if wrong is not None:
        raise fields.error(
            "chat_template_kwargs", f"chat_template_kwargs has {wrong!r}: pass it as a field of the request"
        )
    effort = fields.text("reasoning_effort")
    if effort is not None:
        variables.setdefault("reasoning_effort", effort)
    templates = chat_format.tokenizer.chat_templates
    return templates.render(messages, tools=list(tools.listed) or None, variables=variables)


# -- constraints -----------------------------------------------------------------------------------------------------


def _read_constraint(
    fields: Fields, chat_format: ChatFormat, tools: Tools, is_reasoning: bool
) -> tuple[str, Mapping[str, Any]]:
    """Return the option that constrains the answer, if anything does, and the field that it comes from."""
    response = read_response_format(fields)
    guide = read_guide(fields)
    if response is not None and guide is not None:
        raise fields.error(guide[0], f"an answer has one constraint: keep response_format or {guide[0]}")
    content = response if guide is None else guide[1]
    field = "tools" if tools.mode == REQUIRED else guide[0] if guide is not None else "response_format"
    tool_format = chat_format.tool_format
    if content is None and tools.mode != REQUIRED:
        return field, {}
    is_plain = chat_format.reasoning is None and tools.mode == NONE
    if content is not None and (is_plain or "grammar" in content):
        if not is_plain and tools.mode != NONE:
            raise fields.error("tools", "tools do not combine with a grammar: leave out one of them")
        if is_reasoning:
            problem = "a grammar does not combine with reasoning: switch it off with chat_template_kwargs"
            raise fields.error("guided_grammar", problem)
        return field, content
    writer = GrammarWriter(chat_format)
    alternatives = []
    if content is not None and tools.mode != REQUIRED:
        alternatives.append(
            writer.add_schema(content["json_schema"])
            if "json_schema" in content
            else writer.add_regex(content["regex"])
        )
    if tools.mode in (AUTO, REQUIRED) and tool_format is not None:
        alternatives.append(writer.add_calls(tool_format, tools))
    return field, {"grammar": writer.finish(alternatives, is_reasoning)}


def read_response_format(fields: Fields) -> dict[str, Any] | None:
    """Return the constraint of `response_format`."""
    section = fields.section("response_format")
    if section is None:
        return None
    kind = section.choice("type", ("text", "json_object", "json_schema"))
    if kind is None:
        raise section.error(
            "type", 'response_format.type is missing: it must be "text", "json_object" or "json_schema"'
        )
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    described = section.section("json_schema")
    if described is None:
        raise section.error("json_schema", "response_format.json_schema is missing: it must have a name and a schema")
    described.required_text("name")
    if "schema" not in described:
        return {"json_schema": {"type": "object"}}
    schema = read_schema(described, "schema")
    if isinstance(schema, dict) and not described.flag("strict"):
        guidance = schema.get("x-guidance")
        schema = {**schema, "x-guidance": {"lenient": True, **(guidance if isinstance(guidance, dict) else {})}}
    return {"json_schema": schema}
