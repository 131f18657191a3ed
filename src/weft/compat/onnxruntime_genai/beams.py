"""Beam searches of a generator, driven step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.generation.answers import AnswerStream
from weft.generation.beams import BeamSearch, check_beam_options
from weft.generation.decoder import Decoder
from weft.generation.engine import Engine
from weft.generation.options import GenerationOptions
from weft.generation.sampler import Sampler
from weft.generation.sequence import Sequence as TokenSequence


class BeamSearches:
    """The searches for the answers to the prompts of a batch.

    prompts: their tokens. limits: the most tokens of prompt and answer, for each.
    """

    def __init__(
        self,
        decoder: Decoder,
        sampler: Sampler,
        options: GenerationOptions,
        prompts: Sequence[list[int]],
        limits: Sequence[int],
        end_tokens: frozenset[int],
    ) -> None:
        check_beam_options(options)
        self._engine = Engine(decoder, sampler, chunk=max(limits), speculate=False)
        self._prompts = prompts
        self._answers = options.n
        self._end_tokens = end_tokens
        self._searches: list[BeamSearch] = []
        for prompt, limit in zip(prompts, limits):
            sequence = TokenSequence(prompt, len(prompt), options, 0, limit, end_tokens, lambda _: False)
            streams = [AnswerStream(len(prompt), None, ()) for _ in range(options.n)]
            self._searches.append(BeamSearch(sequence, streams))
        self._unfinished = list(self._searches)

    def step(self) -> bool:
        """Compute the next token of all beams; return whether all searches have ended."""
        self._unfinished = [search for search in self._unfinished if not search.step(self._engine)]
        return not self._unfinished

    def answer(self, index: int) -> list[int]:
        """Return the tokens of an answer without the end token; those of a prompt are next to each other."""
        stream: Any = self._searches[index // self._answers].streams[index % self._answers]
        return [token for token in stream.tokens if token not in self._end_tokens]

    @property
    def count(self) -> int:
        """The number of answers."""
        return len(self._searches) * self._answers
