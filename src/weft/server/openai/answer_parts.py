"""Read answers as deltas of content, reasoning and calls, one answer or several at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from weft.errors import RunCancelledError
from weft.generation.answers import AnswerStream, TokenLogprob
from weft.server.openai.answer_parser import CONTENT, AnswerEvent
from weft.server.openai.answer_text import TextDelta, read_text, read_tokens
from weft.server.openai.chat_request import ChatRequest
from weft.server.openai.token_bytes import TokenBytes

LOWEST_LOGPROB = -9999.0  # JSON has no infinity
Item = TypeVar("Item")


@dataclass(slots=True)
class AnswerDelta:
    """What is new of an answer: events, and the log probabilities of tokens. finish: why it ended."""

    events: list[AnswerEvent] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None


async def read_answer(chat: ChatRequest, stream: AnswerStream) -> AsyncGenerator[AnswerDelta, None]:
    """Yield the deltas of one answer of a chat; the last one says why it ended."""
    parser = chat.make_parser()
    logprobs: list[TokenLogprob] = []
    async for piece in _read_pieces(chat, stream):
        if parser is None:
            events = [AnswerEvent(CONTENT, piece.text)] if piece.text else []
        else:
            events = parser.put(piece.text)
        logprobs += [entry for _, entry in piece.tokens]
        if events:
            yield AnswerDelta(events, logprobs)
            logprobs = []
        if parser is not None and parser.is_finished:
            stream.cancel()
            break
    if parser is None:
        yield AnswerDelta([], logprobs, name_finish(stream))
        return
    finish = "stop" if parser.is_finished else name_finish(stream)
    events = parser.finish()
    yield AnswerDelta(events, logprobs, "tool_calls" if parser.calls and finish == "stop" else finish)


def _read_pieces(chat: ChatRequest, stream: AnswerStream) -> AsyncIterator[TextDelta]:
    if not chat.has_logprobs and not chat.shown_tokens:
        return read_text(stream)
    stops = chat.prompt.options.get("stop", ())
    return read_tokens(stream, chat.chat_format.tokenizer, stops, chat.end_tokens, chat.shown_tokens)


def name_finish(stream: AnswerStream) -> str:
    """Return why an answer ended: "stop" or "length"; RunCancelledError if the generator was closed."""
    if stream.finish_reason == "cancelled":
        raise RunCancelledError("the answer was not finished")
    return "length" if stream.finish_reason == "length" else "stop"


async def merge(readers: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """Yield what several readers yield, as it comes, with their numbers."""
    if len(readers) == 1:
        async for item in readers[0]:
            yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Item] | BaseException | None] = asyncio.Queue()

    async def read(number: int) -> None:
        try:
            async for item in readers[number]:
                queue.put_nowait((number, item))
        except Exception as error:
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(read(number)) for number in range(len(readers))]
    left = len(tasks)
    try:
        while left:
            entry = await queue.get()
            if entry is None:
                left -= 1
            elif isinstance(entry, BaseException):
                raise entry
            else:
                yield entry
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def describe_logprob(entry: TokenLogprob, token_bytes: TokenBytes) -> dict[str, Any]:
    """Describe a token with its log probability, as chat completions do."""
    top = [_describe_token(token, logprob, token_bytes) for token, logprob in entry.top]
    return {**_describe_token(entry.token, entry.logprob, token_bytes), "top_logprobs": top}


def clip_logprob(logprob: float) -> float:
    """Return a log probability that JSON can write."""
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB


def _describe_token(token: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    content = token_bytes.find(token)
    return {"token": content.decode("utf-8", "replace"), "logprob": clip_logprob(logprob), "bytes": list(content)}


def count_usage(streams: Sequence[Sequence[AnswerStream]]) -> dict[str, Any]:
    """Count the tokens of prompts and answers; a prompt with several answers counts once."""
    prompt = sum(group[0].prompt_tokens for group in streams)
    answers = sum(len(stream.tokens) for group in streams for stream in group)
    cached = sum(min(group[0].cached_tokens, group[0].prompt_tokens) for group in streams)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answers,
        "total_tokens": prompt + answers,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
