"""Answers of a generator: whole, and as streams of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from weft.errors import RunCancelledError
from weft.generation.sequence import FinishReason, Listener, Sequence, TokenEvent
from weft.generation.stops import StopStrings
from weft.generation.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer with its log probability, and the likeliest tokens in its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Answer(str):
    """The text of an answer: a string with more attributes.

    tokens: its token ids, with the end token if the model generated one.
    finish_reason: "stop" (the answer is complete), "length" (a limit was reached) or "cancelled".
    logprobs: the log probability of each token, if the request has `logprobs`; otherwise None.
    prompt_tokens: the number of tokens of the prompt.
    """

    __slots__ = ("finish_reason", "logprobs", "prompt_tokens", "tokens")
    tokens: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...] | None
    prompt_tokens: int

    def __new__(
        cls,
        text: str,
        tokens: tuple[int, ...] = (),
        finish_reason: str = "stop",
        logprobs: tuple[TokenLogprob, ...] | None = None,
        prompt_tokens: int = 0,
    ) -> Answer:
        answer = super().__new__(cls, text)
        answer.tokens, answer.finish_reason = tokens, finish_reason
        answer.logprobs, answer.prompt_tokens = logprobs, prompt_tokens
        return answer

    @property
    def text(self) -> str:
        """The text as a plain string."""
        return str(self)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.tokens, self.finish_reason, self.logprobs, self.prompt_tokens


class AnswerStream:
    """An answer that is being generated: iterate over its pieces of text, with `for` or `async for`.

    Pieces are whole characters and never part of a stop string; without a tokenizer they are empty, one for each token.
    Leaving the loop cancels the answer.
    """

    def __init__(self, prompt_tokens: int, tokenizer: Tokenizer | None, stops: tuple[str, ...]) -> None:
        self.prompt_tokens = prompt_tokens
        self._text = None if tokenizer is None else tokenizer.stream()
        self._stops = StopStrings(stops)
        self._events: SimpleQueue[tuple[str, bool]] = SimpleQueue()
        self._notify: Callable[[], object] | None = None  # wakes an `async for`
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._finish: FinishReason | None = None
        self._error: BaseException | None = None
        self._ended = False  # the reader has seen the end
        self.sequence: Sequence | None = None
        self._wake: Callable[[], None] = lambda: None

    def bind(self, sequence: Sequence, wake: Callable[[], None]) -> None:
        """Connect the stream with its sequence; `wake` makes the engine look at it."""
        self.sequence, self._wake = sequence, wake

    # -- on the engine's thread --------------------------------------------------------------------------------------

    def put(self, event: TokenEvent) -> bool:
        """Take an event of the sequence; True if a stop string was found."""
        piece = ""
        if event.token is not None:
            self._tokens.append(event.token)
            if event.logprob is not None:
                self._logprobs.append(TokenLogprob(event.token, event.logprob, event.top))
            piece = "" if self._text is None else self._text.put(event.token)
        if event.finish is not None and self._text is not None:
            piece += self._text.finish()
        piece = self._stops.put(piece)
        stopped = self._stops.match is not None
        if event.finish is not None and not stopped:
            piece += self._stops.finish()
        self._finish, self._error = event.finish, event.error
        if piece or event.finish is not None or self._text is None:
            self._events.put((piece, event.finish is not None))
            notify = self._notify
            if notify is not None:
                notify()
        return stopped and event.finish is None

    # -- on the reader's thread --------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End the answer after the token that is being computed."""
        if self.sequence is not None:
            self.sequence.cancelled = True
            self._wake()

    def __iter__(self) -> Iterator[str]:
        try:
            while not self._ended:
                piece = self._take(*self._events.get())
                if piece or self._text is None:
                    yield piece
        finally:
            if not self._ended:
                self.cancel()

    async def __aiter__(self) -> AsyncIterator[str]:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with suppress(RuntimeError):  # a loop that was closed while the answer went on
                loop.call_soon_threadsafe(ready.set)

        self._notify = notify
        try:
            while not self._ended:
                while not self._events.empty() and not self._ended:
                    piece = self._take(*self._events.get())
                    if piece or self._text is None:
                        yield piece
                if not self._ended:
                    await ready.wait()
                    ready.clear()
        finally:
            self._notify = None
            if not self._ended:
                self.cancel()

    def _take(self, piece: str, is_last: bool) -> str:
        self._pieces.append(piece)
        self._ended = is_last
        if is_last and self._error is not None:
            raise self._error
        return piece

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens so far."""
        return tuple(self._tokens)

    def tokens_from(self, first: int) -> list[int]:
        """Return the tokens so far, without the first ones."""
        return self._tokens[first:]

    def logprobs_from(self, first: int) -> list[TokenLogprob]:
        """Return the log probabilities of the tokens so far, without the first ones, if the request has `logprobs`."""
        return self._logprobs[first:]

    @property
    def cached_tokens(self) -> int:
        """The number of tokens of the prompt that were found in the cache."""
        return 0 if self.sequence is None else min(self.sequence.cached, self.prompt_tokens)

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended; None while it goes on."""
        return None if self._finish is None else self._finish.value

    def answer(self) -> Answer:
        """Wait for the end, and return the complete answer."""
        for _ in self:
            pass
        return self._whole()

    async def answer_async(self) -> Answer:
        """Wait for the end without blocking the event loop, and return the complete answer."""
        async for _ in self:
            pass
        return self._whole()

    def _whole(self) -> Answer:
        if self._error is not None:
            raise self._error
        if self._finish is None:
            raise RunCancelledError("the answer was not finished")
        logprobs = tuple(self._logprobs) if self._logprobs else None
        return Answer("".join(self._pieces), self.tokens, self._finish.value, logprobs, self.prompt_tokens)


def skip_tokens(listen: Listener, count: int) -> Listener:
    """Return a listener that does not hear of the first tokens."""
    if not count:
        return listen
    left = count

    def listen_later(event: TokenEvent) -> bool:
        nonlocal left
        if event.token is None or not left:
            return listen(event)
        left -= 1
        return event.finish is not None and listen(replace(event, token=None))

    return listen_later
