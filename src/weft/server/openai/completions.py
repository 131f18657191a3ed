"""The endpoint of completions: prompts as texts or tokens, continued as they are."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.generation.answers import AnswerStream, TokenLogprob
from weft.server.http import Request, Response, json_response
from weft.server.openai.answer_parts import clip_logprob, count_usage, merge, name_finish
from weft.server.openai.answer_text import TextDelta, read_text, read_tokens
from weft.server.openai.chat_request import (
    MOST_TOP_LOGPROBS,
    StreamOptions,
    read_response_format,
    read_stream_options,
)
from weft.server.openai.fields import Fields, read_texts
from weft.server.openai.models import TextModels
from weft.server.openai.sampling import read_guide, read_sampling
from weft.server.openai.start import AnswerLimits, PromptRequest, open_answers
from weft.server.openai.token_bytes import TokenBytes

if TYPE_CHECKING:
    from weft.generation.generator import Generator
    from weft.generation.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16  # as OpenAI's
MOST_PROMPTS = 2048


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Prompts that are ready.

    echo: the texts of the prompts, if the answers begin with them.
    """

    prompts: Sequence[PromptRequest]
    echo: Sequence[str]
    tokenizer: Tokenizer
    end_tokens: Sequence[int]
    has_logprobs: bool


class Completions:
    """Continues prompts."""

    def __init__(self, models: TextModels, limits: AnswerLimits) -> None:
        self._models = models
        self._limits = limits

    async def create(self, request: Request) -> Response:
        """Continue prompts: whole, or as a stream of events."""
        fields = Fields(request.json_object())
        name = fields.required_text("model")
        generator = self._models.generator(name)
        options = read_stream_options(fields)
        prepare = partial(_read_completion, fields, generator)
        end_request = self._models.begin_request(name)
        async with open_answers(generator, prepare, "prompt", self._limits, end_request) as answers:
            completion = _Completion(f"cmpl-{uuid.uuid4().hex}", name, answers.request, answers.streams)
            if options.is_stream:
                return answers.hand_over(completion.stream(options))
            return json_response(await completion.collect())


# -- requests --------------------------------------------------------------------------------------------------------


def _read_completion(fields: Fields, generator: Generator) -> CompletionRequest:
    options = read_sampling(fields, generator)
    options["max_new_tokens"] = fields.integer("max_tokens", 1, 1 << 31) or DEFAULT_MAX_TOKENS
    logprobs = fields.integer("logprobs", 0, MOST_TOP_LOGPROBS)
    guide = read_guide(fields)
    response_format = read_response_format(fields)
    if guide is not None and response_format is not None:
        raise fields.error(guide[0], f"an answer has one constraint: keep response_format or {guide[0]}")
    options |= response_format or (guide[1] if guide is not None else {})
    if logprobs is not None:
        options["logprobs"] = logprobs
    prompts = read_texts(fields, "prompt", MOST_PROMPTS)
    is_echo = fields.flag("echo")
    if is_echo and logprobs is not None:
        raise fields.error("echo", "echo does not combine with logprobs: log probabilities of prompts are not offered")
    tokenizer = generator.tokenizer
    encoded: Sequence[Any]
    if generator.folder.encoder is None:
        encoded = [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    elif generator.takes_text and all(isinstance(prompt, str) for prompt in prompts):
        encoded = prompts
    else:
        problem = "this model takes the texts of prompts" if generator.takes_text else "this model takes no text"
        raise fields.error("prompt", f"{problem}: pass {'a string' if generator.takes_text else 'another model'}")
    echo: list[str] = []
    if is_echo:
        echo = [text if isinstance(text, str) else tokenizer.decode(text, skip_special=False) for text in prompts]
    requests = [PromptRequest(tokens, options, guide[0] if guide else "response_format") for tokens in encoded]
    return CompletionRequest(requests, echo, tokenizer, generator.folder.end_tokens, logprobs is not None)


# -- answers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Completion:
    """The answers to prompts."""

    id: str
    model: str
    request: CompletionRequest
    streams: Sequence[Sequence[AnswerStream]]
    created: int = field(default_factory=lambda: int(time.time()))

    def _describe(self, choices: list[dict[str, Any]], **further: Any) -> dict[str, Any]:
        described = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return {**described, "choices": choices, **further}

    async def collect(self) -> dict[str, Any]:
        """Wait for the answers, and return the response."""
        readers = self._open()
        choices = [_Choice(index) for index in range(len(readers))]
        async for index, (delta, finish) in merge(readers):
            choices[index].add(delta, finish)
        token_bytes = TokenBytes(self.request.tokenizer) if self.request.has_logprobs else None
        return self._describe([choice.describe(token_bytes) for choice in choices], usage=count_usage(self.streams))

    async def stream(self, options: StreamOptions) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of the answers."""
        further = {"usage": None} if options.includes_usage else {}
        token_bytes = TokenBytes(self.request.tokenizer) if self.request.has_logprobs else None
        async for index, (delta, finish) in merge(self._open()):
            choice = _Choice(index)
            choice.add(delta, finish)
            yield self._describe([choice.describe(token_bytes)], **further)
        if options.includes_usage:
            yield self._describe([], usage=count_usage(self.streams))

    def _open(self) -> list[AsyncGenerator[tuple[TextDelta, str | None], None]]:
        readers = []
        for prompt, group in enumerate(self.streams):
            echo = self.request.echo[prompt] if self.request.echo else ""
            readers += [self._read(stream, prompt, echo) for stream in group]
        return readers

    async def _read(
        self, stream: AnswerStream, prompt: int, echo: str
    ) -> AsyncGenerator[tuple[TextDelta, str | None], None]:
        """Yield the text of one answer; the last delta has the reason why it ended."""
        request = self.request
        if echo:
            yield TextDelta(echo), None
        if request.has_logprobs:
            stops = request.prompts[prompt].options.get("stop", ())
            pieces = read_tokens(stream, request.tokenizer, stops, request.end_tokens)
        else:
            pieces = read_text(stream)
        async for delta in pieces:
            yield delta, None
        yield TextDelta(""), name_finish(stream)


class _Choice:
    """One answer, or a part of it."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._texts: list[str] = []
        self._tokens: list[tuple[int, TokenLogprob]] = []
        self._finish: str | None = None

    def add(self, delta: TextDelta, finish: str | None) -> None:
        """Add what is new."""
        self._texts.append(delta.text)
        self._tokens += delta.tokens
        self._finish = finish

    def describe(self, token_bytes: TokenBytes | None) -> dict[str, Any]:
        """Return the choice of a response."""
        text = "".join(self._texts)
        logprobs = None if token_bytes is None else self._describe_logprobs(token_bytes)
        return {"text": text, "index": self._index, "logprobs": logprobs, "finish_reason": self._finish}

    def _describe_logprobs(self, token_bytes: TokenBytes) -> dict[str, Any]:
        def show(token: int) -> str:
            return token_bytes.find(token).decode("utf-8", "replace")

        entries = [entry for _, entry in self._tokens]
        return {
            "tokens": [show(entry.token) for entry in entries],
            "token_logprobs": [clip_logprob(entry.logprob) for entry in entries],
            "top_logprobs": [_merge_texts((show(token), logprob) for token, logprob in entry.top) for entry in entries],
            "text_offset": [start for start, _ in self._tokens],
        }


def _merge_texts(top: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return log probabilities by text; the likelier of two tokens with one text stays."""
    merged: dict[str, float] = {}
    for text, logprob in top:
        merged.setdefault(text, clip_logprob(logprob))
    return merged
