"""Submit requests to a generator: without blocking the event loop, within the limit of the queue, and cancellably."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from weft.generation.answers import AnswerStream
from weft.server.errors import overload_error
from weft.server.http import HttpError, Response
from weft.server.openai.errors import CONTEXT_EXCEEDED, convert_error
from weft.server.openai.events import EventStream
from weft.server.openai.models import EndRequest

if TYPE_CHECKING:
    from weft.generation.generator import Generator

Streams = Sequence[AnswerStream]


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What a server grants.

    max_waiting: the most answers that wait for one generator. timeout: seconds for an answer; None for no limit.
    """

    max_waiting: int
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A prompt with the options of its answers.

    tokens: the prompt; a text for encoder–decoders. constraint: the field of the request that constrains answers.
    """

    tokens: list[int] | str
    options: dict[str, Any] = field(default_factory=dict)
    constraint: str = ""


class PreparedRequest(Protocol):
    """A request whose prompts are ready."""

    @property
    def prompts(self) -> Sequence[PromptRequest]:
        """The prompts to submit."""
        ...


Prepared = TypeVar("Prepared", bound=PreparedRequest)


class Answers(Generic[Prepared]):
    """The answers to a request: a list of streams for each of its prompts."""

    def __init__(self, request: Prepared, streams: list[Streams], end_request: EndRequest) -> None:
        self.request = request
        self.streams = streams
        self._end_request = end_request
        self.is_handed_over = False

    def hand_over(self, events: AsyncGenerator[Any, None]) -> Response:
        """Return a response with events that close the answers when they end."""
        self.is_handed_over = True
        return EventStream(events, self.close).response

    def close(self) -> None:
        """Cancel what is not finished, and count the tokens."""
        cancel_streams(self.streams)
        end_request, self._end_request = self._end_request, _ignore
        prompt = sum(group[0].prompt_tokens for group in self.streams)
        end_request(prompt, sum(len(stream.tokens) for group in self.streams for stream in group))


def _ignore(prompt_tokens: int, answer_tokens: int) -> None:
    """Count nothing: the request has ended."""


@asynccontextmanager
async def open_answers(
    generator: Generator, prepare: Callable[[], Prepared], parameter: str, limits: AnswerLimits, end_request: EndRequest
) -> AsyncIterator[Answers[Prepared]]:
    """Submit prompts; their answers are closed with the context, unless these were handed over to a response.

    prepare: makes the prompts, on a helper thread, since long ones take time to format and to encode.
    parameter: the field of the request that has the prompt, for errors.
    """
    try:
        request, streams = await _start(generator, prepare, parameter, limits)
    except BaseException:
        end_request(0, 0)
        raise
    answers = Answers(request, streams, end_request)
    try:
        yield answers
    except Exception as error:
        raise convert_error(error, parameter) from error
    finally:
        if not answers.is_handed_over:
            answers.close()


async def _start(
    generator: Generator, prepare: Callable[[], Prepared], parameter: str, limits: AnswerLimits
) -> tuple[Prepared, list[Streams]]:
    check_queue(generator, 1, limits.max_waiting)  # before any work
    future = asyncio.get_running_loop().run_in_executor(None, _submit, generator, prepare, parameter, limits)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(_cancel_results)
        raise


def check_queue(generator: Generator, count: int, max_waiting: int) -> None:
    """Raise the error for an overloaded server if further sequences are too many.

    `max_batch` sequences are always accepted; beyond these, `max_waiting` may wait.
    """
    most = generator.max_batch + max_waiting
    if count > most:
        raise HttpError(400, f"the request has {count:,} answers, and this server takes {most:,} at a time: send fewer")
    statistics = generator.statistics
    waiting = statistics.waiting + count
    if waiting > max_waiting and statistics.running + waiting > most:
        raise overload_error(f"{statistics.waiting:,} answers are waiting already; try again later")


def cancel_streams(streams: Iterable[Streams]) -> None:
    """Cancel all answers; those that have ended stay as they are."""
    for group in streams:
        for stream in group:
            if stream.finish_reason is None:
                stream.cancel()


def _submit(
    generator: Generator, prepare: Callable[[], Prepared], parameter: str, limits: AnswerLimits
) -> tuple[Prepared, list[Streams]]:
    started: list[Streams] = []
    constraint = ""
    try:
        request = prepare()
        check_queue(generator, sum(prompt.options.get("n", 1) for prompt in request.prompts), limits.max_waiting)
        for prompt in request.prompts:
            constraint = prompt.constraint
            if not isinstance(prompt.tokens, str):
                _check_length(prompt.tokens, generator.max_length, parameter)
            started.append(generator.streams(prompt.tokens, **{"timeout": limits.timeout, **prompt.options}))
    except BaseException as error:
        cancel_streams(started)
        if isinstance(error, Exception):
            raise convert_error(error, parameter, constraint) from error
        raise
    return request, started


def _check_length(tokens: list[int], limit: int, parameter: str) -> None:
    if not tokens:
        raise HttpError(400, f"{parameter} has no tokens: it must not be empty", parameter=parameter)
    if len(tokens) >= limit:
        problem = (
            f"the prompt has {len(tokens):,} tokens, and this model's context has {limit:,} for prompt and answer: "
            "shorten the prompt"
        )
        raise HttpError(400, problem, parameter=parameter, code=CONTEXT_EXCEEDED)


def _cancel_results(future: asyncio.Future[tuple[Any, list[Streams]]]) -> None:
    if not future.cancelled() and future.exception() is None:
        cancel_streams(future.result()[1])
