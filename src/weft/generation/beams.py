"""Beam search: the likeliest answers, by the sum of the log probabilities of their tokens.

A search runs on the engine's thread, one step in each of its iterations, beside all other sequences. Beams share the
blocks of their common tokens; a beam that continues another one copies the block that both would write to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import InputError, RunTimeoutError
from weft.generation.answers import AnswerStream
from weft.generation.blocks import Prefix
from weft.generation.decoder import Step
from weft.generation.options import MAX_LOGPROBS, GenerationOptions
from weft.generation.penalties import needs_edits
from weft.generation.sampler import SampledRow
from weft.generation.sequence import FinishReason, Sequence, TokenEvent

if TYPE_CHECKING:
    from weft.generation.engine import Engine


@dataclass(slots=True)
class Beam:
    """An unfinished answer: its tokens with the prompt, its score, and the blocks of its tokens.

    source: of the sequence of the prompt.
    """

    tokens: list[int]
    score: float
    blocks: list[int]
    source: Any = None


class BeamSearch:
    """The search for the best answers to one prompt; `streams` receive them at the end, the best first."""

    def __init__(self, prompt: Sequence, streams: Items[AnswerStream]) -> None:
        self.prompt = prompt
        self.streams = streams
        self._width = prompt.options.num_beams
        self._beams = [Beam(list(prompt.tokens), 0.0, [], prompt.source)]
        self._computed = 0  # tokens of the prompt
        self._finished: list[tuple[float, list[int]]] = []
        options = replace(GenerationOptions(), temperature=0, logprobs=2 * self._width)
        self._row = SampledRow(options, 0, [], 0)

    def step(self, engine: Engine) -> bool:
        """Compute a chunk of the prompt, or the next token of all beams; return whether the search has ended."""
        prompt = self.prompt
        if prompt.cancelled:
            return self._end(engine, FinishReason.CANCELLED)
        if prompt.deadline is not None and time.monotonic() > prompt.deadline:
            problem = f"the beam search took longer than its timeout of {prompt.options.timeout:g} seconds"
            return self._end(engine, FinishReason.ERROR, RunTimeoutError(problem, hint="raise timeout"))
        if self._computed < len(prompt.tokens):
            logits = self._compute_prompt(engine)
        elif len(self._beams[0].tokens) - 1 in engine.decoder.phase_ends:
            logits = self._recompute_beams(engine)
        else:
            for beam in self._beams:
                engine.extend_blocks(beam.blocks, len(beam.tokens))
            steps = [Step(beam.tokens[-1:], len(beam.tokens) - 1, beam.blocks, sequence=beam) for beam in self._beams]
            logits = engine.decoder.run(steps)
        if self._computed < len(prompt.tokens):
            return False
        self._continue_beams(engine, self._choose(engine, logits))
        return self._end(engine, FinishReason.STOP) if self._is_finished() else False

    def _compute_prompt(self, engine: Engine) -> Any:
        (beam,), tokens = self._beams, self.prompt.tokens
        if not self._computed and engine.decoder.shares_prefixes:
            prefix = engine.pool.find(tokens[:-1], Prefix((), engine.find_root(tokens)))
            engine.pool.share(prefix.blocks)
            beam.blocks, self._computed = list(prefix.blocks), len(prefix.blocks) * engine.pool.block_size
        logits, self._computed = self._compute_chunk(engine, beam, self._computed)
        return logits

    def _compute_chunk(self, engine: Engine, beam: Beam, start: int) -> tuple[Any, int]:
        """Compute the next tokens of a beam; return the logits of the last one, and the number of computed tokens."""
        end = len(beam.tokens)
        if engine.decoder.takes_chunks:
            end = min(end, start + engine.chunk)
        engine.extend_blocks(beam.blocks, end)
        step = Step(beam.tokens[start:end], start, beam.blocks, sequence=beam, length=len(beam.tokens))
        return engine.decoder.run([step]), end

    def _recompute_beams(self, engine: Engine) -> Any:
        """Compute all tokens of beams that have grown into the next phase, in blocks that they do not share."""
        for beam in self._beams:
            self._release(engine, beam)
            beam.blocks = []
        rows = []
        for beam in self._beams:
            logits, computed = self._compute_chunk(engine, beam, 0)
            while computed < len(beam.tokens):
                logits, computed = self._compute_chunk(engine, beam, computed)
            rows.append(np.asarray(logits)[:1])
        return np.concatenate(rows)

    def _choose(self, engine: Engine, logits: Any) -> list[tuple[int, int, float]]:
        """Choose the next beams among the likeliest tokens after each: parents, tokens and scores.

        An answer that ends is finished if it is among the best `num_beams` candidates.
        """
        choices = engine.sampler.choose(logits, [self._row] * logits.shape[0])
        assert choices.top_tokens is not None and choices.top_logprobs is not None
        candidates = [
            (beam.score + float(logprob), parent, int(token))
            for parent, beam in enumerate(self._beams)
            for token, logprob in zip(choices.top_tokens[parent], choices.top_logprobs[parent])
            if logprob > -inf  # an excluded token
        ]
        candidates.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
        chosen: list[tuple[int, int, float]] = []
        for rank, (score, parent, token) in enumerate(candidates[: 2 * self._width]):
            tokens = self._beams[parent].tokens
            if token in self.prompt.end_tokens:
                if rank < self._width:
                    self._add_finished(score, [*tokens, token])
            elif len(chosen) < self._width:
                chosen.append((parent, token, score))
        return chosen

    def _continue_beams(self, engine: Engine, chosen: list[tuple[int, int, float]]) -> None:
        """Make the chosen beams; the first child of a beam takes its blocks, others copy the one that is not full."""
        size = engine.pool.block_size
        beams: list[Beam] = []
        sources: list[int] = []
        targets: list[int] = []
        parents = {parent for parent, _, _ in chosen}
        for number, beam in enumerate(self._beams):
            if number not in parents:
                self._release(engine, beam)
        continued: set[int] = set()
        for parent_number, token, score in chosen:
            parent = self._beams[parent_number]
            blocks = parent.blocks
            if parent_number in continued:
                full = len(parent.tokens) // size
                blocks = blocks[:full]
                engine.pool.share(blocks)
                if len(parent.tokens) % size:
                    sources.append(parent.blocks[full])
                    engine.extend_blocks(blocks, len(parent.tokens))
                    targets.append(blocks[full])
            continued.add(parent_number)
            beams.append(Beam([*parent.tokens, token], score, blocks, parent.source))
        if sources:
            engine.decoder.copy_blocks(sources, targets)
        self._beams = beams
        if beams and len(beams[0].tokens) >= self.prompt.limit:
            for beam in beams:
                self._add_finished(beam.score, beam.tokens)
                self._release(engine, beam)
            self._beams = []

    def _is_finished(self) -> bool:
        """Whether no unfinished beam can become one of the best answers."""
        options = self.prompt.options
        if not self._beams:
            return True
        if len(self._finished) < self._width:
            return False
        if options.early_stopping is True:
            return True
        length = len(self._beams[0].tokens)
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = self.prompt.limit
        return self._score(self._beams[0].score, length) <= self._finished[-1][0]

    def _score(self, total: float, length: int) -> float:
        penalty: float = max(length - self.prompt.prompt_length, 1) ** self.prompt.options.length_penalty
        return total / penalty

    def _add_finished(self, total: float, tokens: list[int]) -> None:
        """Keep an answer if it is one of the best."""
        self._finished.append((self._score(total, len(tokens)), tokens))
        self._finished.sort(key=lambda entry: -entry[0])
        del self._finished[self._width :]

    def _end(self, engine: Engine, finish: FinishReason, error: BaseException | None = None) -> bool:
        self.abandon(engine)
        for number, stream in enumerate(self.streams):
            if finish is not FinishReason.STOP or number >= len(self._finished):
                stream.put(TokenEvent(None, finish=finish, error=error))
                continue
            tokens = self._finished[number][1]
            ends = tokens[-1] in self.prompt.end_tokens
            stopped = False
            for token in tokens[self.prompt.prompt_length :]:
                stopped = stream.put(TokenEvent(token)) or stopped
            reason = FinishReason.STOP if ends or stopped else FinishReason.LENGTH
            stream.put(TokenEvent(None, finish=reason))
        return True

    def abandon(self, engine: Engine) -> None:
        """Release the blocks of all beams."""
        for beam in self._beams:
            self._release(engine, beam)
        self._beams = []

    def _release(self, engine: Engine, beam: Beam) -> None:
        engine.pool.release(beam.blocks)
        engine.decoder.forget(beam)

    def fail(self, engine: Engine, error: BaseException) -> None:
        """End the search with an error."""
        self._end(engine, FinishReason.ERROR, error)


def check_beam_options(options: GenerationOptions) -> None:
    """Raise InputError for options that a beam search does not combine with."""
    if 2 * options.num_beams > MAX_LOGPROBS:
        raise InputError(f"num_beams must be at most {MAX_LOGPROBS // 2}, not {options.num_beams}")
    names = [name for name in ("json_schema", "regex", "grammar") if getattr(options, name) is not None]
    names += ["processors"] * bool(options.processors) + ["logprobs"] * (options.logprobs is not None)
    names += ["penalties, logit_bias or no_repeat_ngram_size"] * needs_edits(options)
    if names:
        problem = f"a beam search does not take {' or '.join(names)}"
        raise InputError(problem, hint="leave out num_beams, or the other options")
