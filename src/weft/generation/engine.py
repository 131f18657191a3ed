"""`Engine`: continuous batching of sequences over one decoder.

Each iteration decodes the next token of all running sequences in one step, then computes a chunk of the prompts that
have joined. Sequences join and leave between steps. If blocks run out, the sequence that is served last gives its
blocks back and is computed again later: bits do not depend on who computed a prefix, when, or beside whom.

Where the device allows it, a step is submitted before the tokens of the step before have arrived: it takes them on the
device, so that the device does not wait for the host.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Sequence as Items
from typing import Any

import numpy as np

from weft.errors import ExecutionError, OutOfMemoryError, RunTimeoutError
from weft.generation.beams import BeamSearch
from weft.generation.blocks import ROOT, BlockPool, Prefix
from weft.generation.chunks import Chunk, group_chunks
from weft.generation.decoder import Decoder, Step
from weft.generation.draft import DraftModel
from weft.generation.lookup import find_continuation
from weft.generation.sampler import Choices, PendingTokens, SampledRow, Sampler
from weft.generation.sampling_graph import INCOMPLETE
from weft.generation.sequence import FinishReason, Sequence, TokenEvent
from weft.quantities import format_bytes
from weft.records import dataclass
from weft.threads import make_lock

MAX_ROWS = 64
CHUNK = 512  # tokens of prompts in one iteration
CHUNK_BESIDE_DECODING = 128  # on CPUs, so that running answers do not wait long
SMALLEST_CHUNK = 32
SPECULATION = 8  # tokens that a continuation proposes at most
DRAFTED = 4  # tokens that a draft model proposes at most
IDLE_SECONDS = 5.0  # after which the thread ends


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counts since the engine started.

    generated: tokens of answers. computed: tokens that went through the decoder. shared: tokens of prompts whose
    blocks were found. proposed, accepted: tokens of speculation. preempted: sequences that gave their blocks back.
    running, waiting: sequences now.
    """

    steps: int = 0
    generated: int = 0
    computed: int = 0
    shared: int = 0
    proposed: int = 0
    accepted: int = 0
    preempted: int = 0
    running: int = 0
    waiting: int = 0


@dataclass(slots=True, eq=False)
class SubmittedStep:
    """A step of one token for each sequence, whose tokens the device has yet to choose.

    current: the sequences whose tokens will count. The others have ended or lost their blocks since.
    """

    sequences: list[Sequence]
    logits: Any
    tokens: PendingTokens
    current: set[Sequence]


class Engine:
    """Generates answers to prompts, many at once. Several threads may use it."""

    def __init__(
        self,
        decoder: Decoder,
        sampler: Sampler,
        *,
        max_rows: int = MAX_ROWS,
        chunk: int = CHUNK,
        speculate: bool = True,
        draft: DraftModel | None = None,
    ) -> None:
        self.decoder = decoder
        self.sampler = sampler
        self.pool = BlockPool(decoder.blocks, decoder.block_size)
        self.max_rows = max_rows
        self.chunk = chunk
        self.speculate = speculate and decoder.takes_chunks and decoder.goes_back
        self.draft = draft
        self.counts = dict.fromkeys(EngineStatistics.__slots__, 0)
        self._lock = make_lock()
        self._wake = threading.Condition(self._lock)
        self._arrivals: list[Sequence] = []
        self._waiting: list[Sequence] = []  # by rank
        self._running: list[Sequence] = []  # by rank
        self._searches: list[BeamSearch] = []
        self._submitted: SubmittedStep | None = None
        self._thread: threading.Thread | None = None
        self._last_number = 0
        self._closed = False

    # -- for all threads ---------------------------------------------------------------------------------------------

    def submit(self, sequences: Items[Sequence], search: BeamSearch | None = None) -> None:
        """Add sequences, or a beam search; OutOfMemoryError at once if one can never fit."""
        for sequence in sequences:
            self.check_fit(sequence)
        if search is not None:
            self.check_fit(search.prompt, search.prompt.options.num_beams)
        with self._wake:
            if self._closed:
                raise ExecutionError("this generator is closed", hint="make a new one")
            for sequence in sequences:
                self._last_number += 1
                sequence.number = self._last_number
            self._arrivals += sequences
            self._searches += [] if search is None else [search]
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name="weft-generation", daemon=True)
                self._thread.start()
            self._wake.notify()

    def check_fit(self, sequence: Sequence, count: int = 1) -> None:
        """Raise OutOfMemoryError if the cache is too small for a sequence, or for some beams, at its longest."""
        needed = self.pool.count_blocks(sequence.limit) * count
        if needed > self.pool.blocks:
            size = self.decoder.cache_bytes // self.pool.blocks
            room = self.pool.blocks * self.pool.block_size
            problem = (
                f"a prompt of {sequence.prompt_length:,} tokens and up to {sequence.limit - sequence.prompt_length:,} "
                f"new ones need {format_bytes(needed * size)} of cache; it has "
                f"{format_bytes(self.decoder.cache_bytes)}, for {room:,} tokens"
            )
            raise OutOfMemoryError(problem, hint="shorten the prompt, lower max_new_tokens, or raise memory_limit")

    def statistics(self) -> EngineStatistics:
        waiting = len(self._arrivals) + len(self._waiting)
        return EngineStatistics(**{**self.counts, "running": len(self._running), "waiting": waiting})

    def wake(self) -> None:
        """Look for cancelled sequences now."""
        with self._wake:
            self._wake.notify()

    def close(self) -> None:
        """End all sequences and refuse new ones."""
        with self._wake:
            self._closed = True
            thread = self._thread
            self._wake.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- the engine's thread -----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._take_arrivals():
            try:
                self._iterate()
            except BaseException as error:
                for sequence in (*self._running, *self._waiting):
                    self._end(sequence, FinishReason.ERROR, error)
                for search in self._searches:
                    search.fail(self, error)
                self._running, self._waiting, self._searches, self._submitted = [], [], [], None

    def _take_arrivals(self) -> bool:
        """Wait for work; False if the thread shall end."""
        with self._wake:
            while not (self._arrivals or self._waiting or self._running or self._searches or self._closed):
                if not self._wake.wait(IDLE_SECONDS) and not (self._arrivals or self._searches):
                    self._thread = None
                    return False
            for sequence in self._arrivals:
                insort(self._waiting, sequence, key=lambda other: other.rank)
            self._arrivals = []
            closed = self._closed
        if closed:
            for sequence in (*self._running, *self._waiting):
                self._end(sequence, FinishReason.CANCELLED)
            for search in self._searches:
                search.prompt.cancelled = True
                search.step(self)
            self._running, self._waiting, self._searches, self._submitted = [], [], [], None
        return not closed

    def _iterate(self) -> None:
        self._drop_ended()
        self._admit()
        decoding = [sequence for sequence in self._running if sequence.remaining == 1 and sequence.computed]
        if self._submitted is not None:
            self._continue(self._submitted, decoding)
        elif decoding:
            self._decode(decoding)
        # On a GPU, a whole chunk takes little longer than a part of it.
        is_short = bool(decoding) and not self.decoder.runs_ahead
        self._compute_prompts(min(CHUNK_BESIDE_DECODING, self.chunk) if is_short else self.chunk)
        for search in list(self._searches):
            if search.step(self):
                self._searches.remove(search)

    def _drop_ended(self) -> None:
        now = time.monotonic()
        for sequences in (self._running, self._waiting):
            for sequence in list(sequences):
                if sequence.cancelled:
                    self._leave(sequence, FinishReason.CANCELLED)
                elif sequence.deadline is not None and now > sequence.deadline:
                    timeout = sequence.options.timeout
                    problem = f"generation took longer than its timeout of {timeout:g} seconds"
                    error = RunTimeoutError(problem, hint="raise timeout, or lower max_new_tokens")
                    self._leave(sequence, FinishReason.ERROR, error)

    def _admit(self) -> None:
        """Let waiting sequences run, in order, while the cache has room for their prompts."""
        while self._waiting and len(self._running) < self.max_rows:
            sequence = self._waiting[0]
            sequence.node = self.find_root(sequence.tokens)
            prefix = self._find_prefix(sequence)
            idle = sum(not self.pool.is_used(block) for block in prefix.blocks)
            missing = self.pool.count_blocks(len(sequence.tokens) + 1) - len(prefix.blocks)
            if self._running and missing + idle + self._count_promised_blocks() > self.pool.available:
                return
            self._waiting.pop(0)
            insort(self._running, sequence, key=lambda other: other.rank)

    def _count_promised_blocks(self) -> int:
        """Count the blocks that running sequences have yet to allocate for their prompts and next tokens."""
        needs = (self.pool.count_blocks(len(s.tokens) + 1) - len(s.blocks) for s in self._running)
        return sum(max(need, 1) for need in needs)

    def find_root(self, tokens: Items[int]) -> int:
        """Return the root of the prefixes that a sequence of these tokens can share: one for each phase."""
        return ROOT - self.decoder.find_phase(len(tokens))

    def _find_prefix(self, sequence: Sequence) -> Prefix:
        """Find published blocks of all tokens but the last, whose logits are needed."""
        if not self.decoder.shares_prefixes:
            return Prefix((), 0)
        return self.pool.find(sequence.tokens[:-1], Prefix(tuple(sequence.blocks[: sequence.published]), sequence.node))

    def _share_prefix(self, sequence: Sequence) -> None:
        """Take published blocks instead of computing them, at the end of those that are complete."""
        if sequence.computed % self.pool.block_size or not self.decoder.shares_prefixes:
            return
        prefix = self._find_prefix(sequence)
        first = sequence.published
        if len(prefix.blocks) == first:
            return
        new = prefix.blocks[first:]
        self.pool.share(new)
        self.pool.release(sequence.blocks[first:])
        sequence.blocks[first:] = new
        sequence.published, sequence.node = len(prefix.blocks), prefix.node
        self.counts["shared"] += len(new) * self.pool.block_size
        if len(sequence.tokens) == sequence.prompt_length:
            sequence.cached += len(new) * self.pool.block_size
        sequence.computed = len(prefix.blocks) * self.pool.block_size

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Allocate blocks for a number of tokens; others may lose theirs, False if the sequence lost its own."""
        while len(sequence.blocks) < self.pool.count_blocks(tokens):
            block = self.pool.allocate()
            if block is not None:
                sequence.blocks.append(block)
                continue
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def extend_blocks(self, blocks: list[int], tokens: int) -> None:
        """Append blocks until they hold a number of tokens of a beam; running sequences may lose theirs."""
        while len(blocks) < self.pool.count_blocks(tokens):
            block = self.pool.allocate()
            if block is not None:
                blocks.append(block)
            elif self._running:
                self._preempt(self._running[-1])
            else:
                problem = "the cache has no room for a further beam beside other beam searches"
                raise OutOfMemoryError(
                    problem, hint="lower num_beams, run fewer searches at once, or raise memory_limit"
                )

    def _preempt(self, sequence: Sequence) -> None:
        """Give the blocks of a running sequence back; it is computed again when there is room."""
        self._restart(sequence)
        self.counts["preempted"] += 1

    def _restart(self, sequence: Sequence) -> None:
        self._release(sequence)
        self._running.remove(sequence)
        insort(self._waiting, sequence, key=lambda other: other.rank)

    def _release(self, sequence: Sequence) -> None:
        if self._submitted is not None:
            self._submitted.current.discard(sequence)
        self.decoder.forget(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks, sequence.published, sequence.node, sequence.computed = [], 0, 0, 0

    # -- steps -------------------------------------------------------------------------------------------------------

    def _decode(self, sequences: list[Sequence]) -> None:
        """Compute the last token of each sequence and choose the next."""
        proposal = self._propose(sequences)
        for sequence in sequences:
            if sequence in self._running:
                self._reserve(sequence, len(sequence.tokens) + len(proposal))
        running = [sequence for sequence in sequences if sequence in self._running]
        if len(running) < len(sequences):
            proposal = []
        if proposal:
            self._verify(running[0], proposal)
        elif running:
            steps = [Step(s.tokens[-1:], s.computed, s.blocks, sequence=s) for s in running]
            logits = self.decoder.run(steps)
            self._submitted = self._submit_choice(running, logits, 0) if self.decoder.runs_ahead else None
            if self._submitted is None:
                self._finish_step([(sequence, 1) for sequence in running], logits)

    def _submit_choice(self, sequences: list[Sequence], logits: Any, ahead: int) -> SubmittedStep | None:
        """Let the device choose tokens; None where a constraint or an option needs the host."""
        if any(sequence.constraint is not None for sequence in sequences):
            return None
        tokens = self.sampler.submit(logits, _pad_rows([sequence.row for sequence in sequences], logits), ahead)
        return None if tokens is None else SubmittedStep(sequences, logits, tokens, set(sequences))

    def _continue(self, step: SubmittedStep, sequences: list[Sequence]) -> None:
        """Submit the step after a submitted one if it has the same sequences, then account for the tokens of that."""
        self._submitted = None
        if step.sequences == sequences and step.current.issuperset(sequences) and self._can_follow(sequences):
            steps = [Step([0], s.computed + 1, s.blocks, sequence=s) for s in sequences]
            logits = self.decoder.run(steps, step.tokens.tensor)
            self._submitted = self._submit_choice(sequences, logits, 1)
        tokens = step.tokens.read()
        if tokens[: len(step.sequences)].min() == INCOMPLETE:
            self._discard_submitted()  # it goes on from tokens that are not the ones to choose
            tokens = self._choose(step.logits, [sequence.row for sequence in step.sequences]).tokens
        self.counts["steps"] += 1
        for sequence, token in zip(step.sequences, tokens.tolist()):
            if sequence in step.current:
                sequence.computed += 1
                self.counts["computed"] += 1
                self._publish(sequence)
                self._append(sequence, token, (None, ()))
        if self._submitted is not None and not self._submitted.current:
            self._discard_submitted()

    def _discard_submitted(self) -> None:
        """Wait for a submitted step that no sequence needs, and release its memory."""
        if self._submitted is not None:
            self._submitted.tokens.read()
            self._submitted = None

    def _can_follow(self, sequences: list[Sequence]) -> bool:
        """Whether these sequences go on after the tokens that are being chosen, unless one of these ends them."""
        if any(len(sequence.tokens) + 1 >= sequence.limit for sequence in sequences):
            return False
        if len(sequences) == 1 and (self.draft is not None or self._propose(sequences)):
            return False
        needed = [self.pool.count_blocks(len(s.tokens) + 1) - len(s.blocks) for s in sequences]
        if sum(needed) > self.pool.available:
            return False
        return all(self._reserve(sequence, len(sequence.tokens) + 1) for sequence in sequences)

    def _compute_prompts(self, budget: int) -> None:
        """Compute chunks of prompts, up to a number of tokens that they share evenly.

        A prompt waits while an earlier one computes a block that both begin with.
        """
        prompts: list[Sequence] = []
        for sequence in self._running:
            if sequence.remaining > 1 or not sequence.computed:
                self._share_prefix(sequence)
                if not any(self._computes_for(earlier, sequence) for earlier in prompts):
                    prompts.append(sequence)
        chunks: list[Chunk] = []
        for number, sequence in enumerate(prompts):
            if budget <= 0:
                break
            share = max(budget // (len(prompts) - number), SMALLEST_CHUNK)
            count = min(sequence.remaining, min(share, budget))
            if not self.decoder.takes_chunks:  # the prompt whole, then tokens one by one, as at first
                count = 1 if sequence.computed else sequence.prompt_length
            if sequence in self._running and self._reserve(sequence, sequence.computed + count):
                chunks.append((sequence, count))
                budget -= count
        chunks = [chunk for chunk in chunks if chunk[0] in self._running]  # a later one may have taken its blocks
        for group in group_chunks(chunks, pads=self.decoder.pads_chunks):
            self._compute_chunks(group)

    def _computes_for(self, earlier: Sequence, sequence: Sequence) -> bool:
        """Whether a sequence needs a block next that an earlier one has yet to finish."""
        end = (sequence.published + 1) * self.pool.block_size
        if not self.decoder.shares_prefixes or min(len(sequence.tokens), len(earlier.tokens)) <= end:
            return False
        if self.find_root(sequence.tokens) != self.find_root(earlier.tokens):
            return False
        return earlier.published <= sequence.published and earlier.tokens[:end] == sequence.tokens[:end]

    def _compute_chunks(self, chunks: Items[Chunk]) -> None:
        """Compute the next tokens of prompts."""
        steps = [
            Step(s.tokens[s.computed : s.computed + n], s.computed, s.blocks, sequence=s, length=len(s.tokens))
            for s, n in chunks
        ]
        self._finish_step(chunks, self.decoder.run(steps))

    def _finish_step(self, chunks: Items[Chunk], logits: Any) -> None:
        """Account for computed tokens, and choose the next token of the sequences if these are complete."""
        self.counts["steps"] += 1
        for sequence, count in chunks:
            self.counts["computed"] += count
            sequence.computed += count
            self._publish(sequence)
        if not chunks[0][0].remaining:
            self._choose_next([sequence for sequence, _ in chunks], logits)

    def _choose_next(self, sequences: list[Sequence], logits: Any) -> None:
        """Choose the next token of sequences; an error ends only the sequence that it belongs to."""
        try:
            for sequence in sequences:
                if sequence.constraint is not None:
                    sequence.row.allowed = sequence.constraint.mask()
            choices = self._choose(logits, [sequence.row for sequence in sequences])
        except Exception as error:  # a processor or a constraint of one of them failed
            if len(sequences) == 1:
                self._leave(sequences[0], FinishReason.ERROR, error)
                return
            array = np.asarray(logits)
            for index, sequence in enumerate(sequences):
                self._choose_next([sequence], array[index : index + 1])
            return
        for index, sequence in enumerate(sequences):
            self._append(sequence, int(choices.tokens[index]), _logprobs(choices, index, sequence))

    def _choose(self, logits: Any, rows: list[SampledRow]) -> Choices:
        return self.sampler.choose(logits, _pad_rows(rows, logits))

    def _publish(self, sequence: Sequence) -> None:
        """Publish blocks that are complete."""
        size = self.pool.block_size
        if not self.decoder.shares_prefixes:
            return
        while (sequence.published + 1) * size <= sequence.computed:
            at = sequence.published
            tokens = sequence.tokens[at * size : (at + 1) * size]
            sequence.blocks[at], sequence.node = self.pool.publish(sequence.blocks[at], sequence.node, tokens)
            sequence.published += 1

    def _append(
        self, sequence: Sequence, token: int, logprobs: tuple[float | None, tuple[tuple[int, float], ...]]
    ) -> bool:
        """Add a chosen token to a sequence; return whether the sequence goes on."""
        if token < 0:
            problem = "no token can be chosen: all are excluded, or the logits are not numbers"
            self._leave(sequence, FinishReason.ERROR, ExecutionError(problem, hint="check logit_bias and processors"))
            return False
        sequence.tokens.append(token)
        self.counts["generated"] += 1
        finish = self._find_finish(sequence, token)
        if finish is not None:
            self._close(sequence, finish)  # before the caller learns of the end
        try:
            stops = sequence.listen(TokenEvent(token, *logprobs, finish=finish))
        except BaseException as error:
            self._leave(sequence, FinishReason.ERROR, error)
            return False
        if finish is None and stops:
            self._leave(sequence, FinishReason.STOP)
            return False
        if finish is None and len(sequence.tokens) - 1 in self.decoder.phase_ends:
            self._restart(sequence)
        return finish is None

    def _find_finish(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Return why a sequence ends with its new token; None if it goes on."""
        if token in sequence.end_tokens:
            return FinishReason.STOP
        if sequence.constraint is not None:
            sequence.constraint.accept(token)
            if sequence.constraint.is_finished:
                return FinishReason.STOP
        return FinishReason.LENGTH if len(sequence.tokens) >= sequence.limit else None

    def _close(self, sequence: Sequence, finish: FinishReason) -> None:
        """Take a sequence out without a further event."""
        sequence.finish = finish
        for sequences in (self._running, self._waiting):
            if sequence in sequences:
                sequences.remove(sequence)
        self._release(sequence)

    def _leave(self, sequence: Sequence, finish: FinishReason, error: BaseException | None = None) -> None:
        self._close(sequence, finish)
        self._end(sequence, finish, error)

    def _end(self, sequence: Sequence, finish: FinishReason, error: BaseException | None = None) -> None:
        sequence.finish = finish
        if sequence.blocks:
            self._release(sequence)
        sequence.listen(TokenEvent(None, finish=finish, error=error))

    # -- speculation -------------------------------------------------------------------------------------------------

    def _propose(self, sequences: list[Sequence]) -> list[int]:
        """Propose the tokens after the last one, if one sequence runs alone and its text repeats."""
        if not self.speculate or len(sequences) > 1 or len(self._running) > 1 or self._waiting:
            return []
        (sequence,) = sequences
        if sequence.constraint is not None or sequence.row.edits is not None or sequence.options.processors:
            return []
        length = len(sequence.tokens)
        room = min(SPECULATION, sequence.limit - length - 1)
        room = min([room, *(end - length for end in self.decoder.phase_ends if end >= length)])
        proposal = find_continuation(sequence.tokens, room)
        if not proposal and self.draft is not None:
            return self.draft.propose(sequence.tokens, min(room, DRAFTED))
        return proposal

    def _verify(self, sequence: Sequence, proposal: list[int]) -> None:
        """Compute proposed tokens in one step, and keep those that would have been chosen anyway."""
        tokens = [sequence.tokens[-1], *proposal]
        step = Step(tokens, sequence.computed, sequence.blocks, selected=len(tokens), sequence=sequence)
        logits = self.decoder.run([step])
        history = sequence.tokens
        row = sequence.row
        rows = [row if row.is_plain else self._hypothetical_row(sequence, proposal[:n]) for n in range(len(tokens))]
        choices = self._choose(logits, rows)
        self.counts["steps"] += 1
        self.counts["computed"] += len(tokens)
        self.counts["proposed"] += len(proposal)
        for index in range(len(tokens)):
            sequence.computed += 1
            self._publish(sequence)
            goes_on = self._append(sequence, int(choices.tokens[index]), _logprobs(choices, index, sequence))
            if not goes_on or index == len(proposal) or history[-1] != proposal[index]:
                break
            self.counts["accepted"] += 1

    def _hypothetical_row(self, sequence: Sequence, proposal: list[int]) -> SampledRow:
        tokens = [*sequence.tokens, *proposal]
        return SampledRow(sequence.options, sequence.seed, tokens, sequence.prompt_length)


def _pad_rows(rows: list[SampledRow], logits: Any) -> list[SampledRow]:
    """Return as many rows as there are rows of logits."""
    padding: int = logits.shape[0] - len(rows)
    return rows + rows[-1:] * padding


def _logprobs(choices: Choices, index: int, sequence: Sequence) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    count = sequence.options.logprobs
    if count is None or choices.logprobs is None:
        return None, ()
    top: tuple[tuple[int, float], ...] = ()
    if count and choices.top_tokens is not None and choices.top_logprobs is not None:
        pairs = zip(choices.top_tokens[index, :count], choices.top_logprobs[index, :count])
        top = tuple((int(token), float(logprob)) for token, logprob in pairs)
    return float(choices.logprobs[index]), top
