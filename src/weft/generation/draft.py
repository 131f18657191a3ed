"""`DraftModel`: a smaller model that proposes tokens, which the larger one verifies several at a time."""

from __future__ import annotations

from collections.abc import Sequence

from weft.generation.decoder import Decoder, Step
from weft.generation.options import GenerationOptions
from weft.generation.sampler import SampledRow, Sampler


class DraftModel:
    """Proposes the likeliest continuation of one sequence at a time, whose tokens its cache holds."""

    def __init__(self, decoder: Decoder, sampler: Sampler) -> None:
        self._decoder = decoder
        self._sampler = sampler
        self._blocks = range(decoder.blocks)
        self._room = decoder.blocks * decoder.block_size
        self._tokens: list[int] = []  # whose keys and values are in the cache
        self._row = SampledRow(GenerationOptions(temperature=0), 0, [], 0)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return up to `count` tokens that may follow."""
        count = min(count, self._room - len(tokens))
        if count < 1:
            return []
        start = 0
        for cached, token in zip(self._tokens, tokens[:-1]):
            if cached != token:
                break
            start += 1
        del self._tokens[start:]
        new = list(tokens[start:])
        proposal: list[int] = []
        while len(proposal) < count:
            step = Step(new, len(self._tokens), self._blocks, sequence=self)
            logits = self._decoder.run([step])
            choice = self._sampler.choose(logits, [self._row] * logits.shape[0])
            self._tokens += new
            new = [int(choice.tokens[0])]
            if new[0] < 0:
                break
            proposal += new
        return proposal
