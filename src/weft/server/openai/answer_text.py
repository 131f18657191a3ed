"""The text of an answer as it comes, with the tokens that it was made of where these are needed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft.generation.answers import AnswerStream, TokenLogprob
from weft.generation.stops import StopStrings

if TYPE_CHECKING:
    from weft.generation.tokenizer import Tokenizer


@dataclass(slots=True)
class TextDelta:
    """A piece of text, and the log probabilities of its tokens with the places in the text where they begin."""

    text: str
    tokens: list[tuple[int, TokenLogprob]] = field(default_factory=list)


async def read_text(stream: AnswerStream) -> AsyncIterator[TextDelta]:
    """Yield the text of an answer."""
    async for piece in stream:
        yield TextDelta(piece)


async def read_tokens(
    stream: AnswerStream,
    tokenizer: Tokenizer,
    stops: Collection[str],
    end_tokens: Collection[int],
    shown: Collection[int] = (),
) -> AsyncIterator[TextDelta]:
    """Yield the text of an answer with its tokens, decoded from these.

    shown: special tokens that the text shall have. A token comes with the last of its characters, and those of a stop
    string do not come at all.
    """
    reader = _TokenReader(tokenizer, stops, end_tokens, shown)
    async for _ in stream:
        delta = reader.take(stream)
        if delta.text or delta.tokens:
            yield delta
    delta = reader.take(stream, is_last=True)
    if delta.text or delta.tokens:
        yield delta


class _TokenReader:
    def __init__(
        self, tokenizer: Tokenizer, stops: Collection[str], end_tokens: Collection[int], shown: Collection[int]
    ) -> None:
        self._text = tokenizer.stream(skip_special=False)
        self._stops = StopStrings(list(stops))
        self._hidden = (tokenizer.special_ids - frozenset(shown)) | frozenset(end_tokens)
        self._end_tokens = frozenset(end_tokens)
        self._count = 0  # tokens that were decoded
        self._decoded = self._emitted = 0  # characters
        self._waiting: list[tuple[int, int, TokenLogprob]] = []  # where a token begins and ends

    def take(self, stream: AnswerStream, is_last: bool = False) -> TextDelta:
        """Decode the new tokens of a stream, and return what is certain."""
        logprobs = stream.logprobs_from(self._count)
        tokens = stream.tokens_from(self._count)
        if logprobs and not is_last:  # the engine adds a token first, and its log probability then
            tokens = tokens[: len(logprobs)]
        pieces = []
        for index, token in enumerate(tokens):
            start = self._decoded
            piece = "" if token in self._hidden else self._text.put(token)
            self._decoded += len(piece)
            pieces.append(self._stops.put(piece))
            if index < len(logprobs) and token not in self._end_tokens:
                self._waiting.append((start, self._decoded, logprobs[index]))
            self._count += 1
        if is_last:
            pieces.append(self._stops.put(self._text.finish()))
            if self._stops.match is None:
                pieces.append(self._stops.finish())
        text = "".join(pieces)
        self._emitted += len(text)
        certain = [entry for entry in self._waiting if self._is_certain(entry, is_last)]
        self._waiting = [] if is_last else self._waiting[len(certain) :]
        return TextDelta(text, [(start, logprob) for start, _, logprob in certain])

    def _is_certain(self, entry: tuple[int, int, TokenLogprob], is_last: bool) -> bool:
        start, end, _ = entry
        if is_last and self._stops.match is not None:
            return start < self._emitted
        return is_last or end <= self._emitted
