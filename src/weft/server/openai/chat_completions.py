"""The endpoint of chat completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weft.generation.answers import AnswerStream, TokenLogprob
from weft.server.http import Request, Response, json_response
from weft.server.openai.answer_parser import CALL, CONTENT, REASONING, AnswerEvent
from weft.server.openai.answer_parts import AnswerDelta, count_usage, describe_logprob, merge, read_answer
from weft.server.openai.chat_format import ChatFormats
from weft.server.openai.chat_request import ChatRequest, StreamOptions, read_chat, read_stream_options
from weft.server.openai.fields import Fields
from weft.server.openai.models import TextModels
from weft.server.openai.start import AnswerLimits, open_answers
from weft.server.openai.tools import make_call_id


class ChatCompletions:
    """Answers chats."""

    def __init__(self, models: TextModels, formats: ChatFormats, limits: AnswerLimits) -> None:
        self._models = models
        self._formats = formats
        self._limits = limits

    async def create(self, request: Request) -> Response:
        """Answer a chat: whole, or as a stream of events."""
        fields = Fields(request.json_object())
        name = fields.required_text("model")
        generator = self._models.generator(name)
        options = read_stream_options(fields)
        end_request = self._models.begin_request(name)
        prepare = partial(read_chat, fields, generator, self._formats)
        async with open_answers(generator, prepare, "messages", self._limits, end_request) as answers:
            completion = _Completion(f"chatcmpl-{uuid.uuid4().hex}", name, answers.request, answers.streams[0])
            if options.is_stream:
                return answers.hand_over(completion.stream(options))
            return json_response(await completion.collect())


@dataclass(frozen=True, slots=True)
class _Completion:
    """The answers to one chat."""

    id: str
    model: str
    chat: ChatRequest
    streams: Sequence[AnswerStream]
    created: int = field(default_factory=lambda: int(time.time()))

    def _describe(self, kind: str, **content: Any) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, **content}

    async def collect(self) -> dict[str, Any]:
        """Wait for the answers, and return the response."""
        choices = [_Choice(index, self.chat) for index in range(len(self.streams))]
        async for index, delta in merge([read_answer(self.chat, stream) for stream in self.streams]):
            choices[index].add(delta)
        content = [choice.describe() for choice in choices]
        return self._describe("chat.completion", choices=content, usage=count_usage([self.streams]))

    async def stream(self, options: StreamOptions) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of the answers."""
        further = {"usage": None} if options.includes_usage else {}

        def describe(index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> Any:
            choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
            return self._describe("chat.completion.chunk", choices=[choice], **further)

        for index in range(len(self.streams)):
            yield describe(index, {"role": "assistant", "content": ""})
        async for index, delta in merge([read_answer(self.chat, stream) for stream in self.streams]):
            logprobs = _describe_logprobs(self.chat, delta.logprobs)
            for event in delta.events:
                yield describe(index, self._describe_event(event), logprobs)
                logprobs = None
            if delta.finish is not None:
                yield describe(index, {}, logprobs, delta.finish)
        if options.includes_usage:
            yield self._describe("chat.completion.chunk", choices=[], usage=count_usage([self.streams]))

    def _describe_event(self, event: AnswerEvent) -> dict[str, Any]:
        if event.kind in (CONTENT, REASONING):
            return {_FIELDS[event.kind]: event.text}
        call: dict[str, Any] = {"index": event.call}
        if event.kind == CALL:
            assert self.chat.chat_format.tool_format is not None
            identifier = make_call_id(self.chat.chat_format.tool_format)
            call |= {"id": identifier, "type": "function", "function": {"name": event.text, "arguments": ""}}
        else:
            call["function"] = {"arguments": event.text}
        return {"tool_calls": [call]}


_FIELDS = {CONTENT: "content", REASONING: "reasoning_content"}


class _Choice:
    """One answer while it is collected."""

    def __init__(self, index: int, chat: ChatRequest) -> None:
        self._index = index
        self._chat = chat
        self._texts: dict[str, list[str]] = {CONTENT: [], REASONING: []}
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[TokenLogprob] = []
        self._finish: str | None = None

    def add(self, delta: AnswerDelta) -> None:
        """Add what is new."""
        for event in delta.events:
            if event.kind in self._texts:
                self._texts[event.kind].append(event.text)
            elif event.kind == CALL:
                assert self._chat.chat_format.tool_format is not None
                identifier = make_call_id(self._chat.chat_format.tool_format)
                function = {"name": event.text, "arguments": ""}
                self._calls.append({"id": identifier, "type": "function", "function": function})
            else:
                self._calls[event.call]["function"]["arguments"] += event.text
        self._logprobs += delta.logprobs
        self._finish = delta.finish

    def describe(self) -> dict[str, Any]:
        """Return the choice of a response."""
        content = "".join(self._texts[CONTENT])
        reasoning = "".join(self._texts[REASONING])
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["content"] = content or None
            message["tool_calls"] = self._calls
        logprobs = _describe_logprobs(self._chat, self._logprobs)
        return {"index": self._index, "message": message, "logprobs": logprobs, "finish_reason": self._finish}


def _describe_logprobs(chat: ChatRequest, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    if not chat.has_logprobs:
        return None
    return {"content": [describe_logprob(entry, chat.chat_format.token_bytes) for entry in logprobs], "refusal": None}
