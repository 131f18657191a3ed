"""`AnswerChain`: the answers to the chunks of long audio, one after the other, as one stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from weft.errors import RunCancelledError
from weft.generation.answers import Answer, AnswerStream, TokenLogprob

Start = Callable[[], Sequence[AnswerStream]]


@dataclass(slots=True)
class Chunk:
    """A chunk whose answers are started when they are first needed, for all chains at once."""

    start: Start | None
    streams: Sequence[AnswerStream] = ()

    def open(self, number: int) -> AnswerStream:
        if self.start is not None:
            self.streams, self.start = self.start(), None
        return self.streams[number]


class AnswerChain(AnswerStream):
    """The answers of the same number to several chunks."""

    def __init__(self, chunks: Sequence[Chunk], number: int) -> None:
        super().__init__(0, None, ())
        self._chunks = chunks
        self._number = number
        self._streams: list[AnswerStream] = []
        self._cancelled = False
        self._open_next()

    def cancel(self) -> None:
        """End the answer after the token that is being computed."""
        self._cancelled = True
        self._streams[-1].cancel()

    def __iter__(self) -> Iterator[str]:
        while True:
            yield from self._streams[-1]
            if not self._open_next():
                return

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            async for piece in self._streams[-1]:
                yield piece
            if not self._open_next():
                return

    def _open_next(self) -> bool:
        """Open the stream of the next chunk; False after the last one, and if the answer was cancelled.

        The source of the last chunk is dropped, and with it the states of the encoder once no sequence has it.
        """
        for stream in self._streams[-1:]:
            if stream.sequence is not None:
                stream.sequence.source = None
        if self._cancelled or len(self._streams) == len(self._chunks):
            return False
        self._streams.append(self._chunks[len(self._streams)].open(self._number))
        self.prompt_tokens += self._streams[-1].prompt_tokens
        return True

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens so far."""
        return tuple(token for stream in self._streams for token in stream.tokens)

    def tokens_from(self, first: int) -> list[int]:
        """Return the tokens so far, without the first ones."""
        return list(self.tokens[first:])

    def logprobs_from(self, first: int) -> list[TokenLogprob]:
        """Return the log probabilities of the tokens so far, without the first ones, if the request has `logprobs`."""
        return [entry for stream in self._streams for entry in stream.logprobs_from(0)][first:]

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended; None while it goes on."""
        is_last = self._cancelled or len(self._streams) == len(self._chunks)
        return self._streams[-1].finish_reason if is_last else None

    def answer(self) -> Answer:
        """Wait for the end, and return the whole answer."""
        for _ in self:
            pass
        return self._join([stream.answer() for stream in self._streams])

    async def answer_async(self) -> Answer:
        """Wait for the end without blocking the event loop, and return the whole answer."""
        async for _ in self:
            pass
        return self._join([await stream.answer_async() for stream in self._streams])

    def _join(self, answers: Sequence[Answer]) -> Answer:
        if not self._cancelled and len(answers) < len(self._chunks):
            raise RunCancelledError("the answer was not finished")
        logprobs = tuple(entry for answer in answers for entry in answer.logprobs or ())
        return Answer("".join(answers), self.tokens, answers[-1].finish_reason, logprobs or None, self.prompt_tokens)
