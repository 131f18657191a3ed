"""Edits of single logits of one row: bias, penalties, and tokens that would repeat an n-gram.

`LogitEdits` follows the tokens of a request. A new token costs constant time, whatever the length of the text: it
changes one entry of arrays that the sampler copies as they are.

The logit of an edited token becomes `penalize(logit + bias) - charge`: the bias first, as in transformers and
llama.cpp, then the repetition penalty (over prompt and answer, as in transformers), then the charge of frequency and
presence (over the answer, as in OpenAI's API).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.generation.options import GenerationOptions


def needs_edits(options: GenerationOptions) -> bool:
    """Return whether options change single logits."""
    return bool(
        options.logit_bias
        or options.repetition_penalty != 1
        or options.frequency_penalty
        or options.presence_penalty
        or options.no_repeat_ngram_size
    )


class LogitEdits:
    """The edits of one row, as arrays that grow with the tokens."""

    def __init__(self, options: GenerationOptions, prompt_length: int) -> None:
        self._options = options
        self._prompt_length = prompt_length
        self._tokens: list[int] = []
        self._slots: dict[int, int] = {}  # the column of a token
        self._counts: dict[int, int] = {}  # in the answer
        self._occurrences: dict[int, int] = {}  # in all tokens
        self._followers: dict[tuple[int, ...], list[int]] = {}  # of all n-1 tokens that precede one
        self._bans: list[int] = []
        self.ids: NDArray[np.int64] = np.zeros(16, np.int64)
        self.values: NDArray[np.float32] = np.zeros((3, 16), np.float32)  # bias, penalty, charge
        self.values[1] = 1
        self._counts_answer = bool(options.frequency_penalty or options.presence_penalty)
        self._counts_all = options.repetition_penalty != 1 or options.no_repeat_ngram_size == 1
        for token, bias in options.logit_bias.items():
            self._set(0, token, bias)

    @property
    def size(self) -> int:
        """Number of edited tokens."""
        return len(self._slots)

    def follow(self, tokens: Sequence[int]) -> None:
        """Take the tokens since the last call. Fewer tokens than before drop the last ones."""
        length = len(tokens)
        if length < len(self._tokens):
            self.rollback(length)
        self._lift_bans()
        for position in range(len(self._tokens), length):
            self._append(int(tokens[position]))
        self._ban_repeats()

    def rollback(self, length: int) -> None:
        """Drop all tokens from position `length` on."""
        self._lift_bans()
        while len(self._tokens) > length:
            self._drop_last()

    def _append(self, token: int) -> None:
        position = len(self._tokens)
        size = self._options.no_repeat_ngram_size
        if size > 1 and position >= size - 1:
            self._followers.setdefault(tuple(self._tokens[position - size + 1 :]), []).append(token)
        self._tokens.append(token)
        if self._counts_all:
            count = self._occurrences.get(token, 0) + 1
            self._occurrences[token] = count
            if count == 1:
                self._set(1, token, self._options.repetition_penalty)
                if size == 1:
                    self._set(0, token, -np.inf)
        if self._counts_answer and position >= self._prompt_length:
            self._count_answer(token, 1)

    def _drop_last(self) -> None:
        token = self._tokens.pop()
        position = len(self._tokens)
        size = self._options.no_repeat_ngram_size
        if size > 1 and position >= size - 1:
            self._followers[tuple(self._tokens[position - size + 1 :])].pop()
        if self._counts_all:
            self._occurrences[token] -= 1
            if not self._occurrences[token]:
                self.values[:2, self._slots[token]] = self._options.logit_bias.get(token, 0.0), 1
        if self._counts_answer and position >= self._prompt_length:
            self._count_answer(token, -1)

    def _count_answer(self, token: int, change: int) -> None:
        count = self._counts.get(token, 0) + change
        self._counts[token] = count
        charge = self._options.presence_penalty + self._options.frequency_penalty * count if count else 0.0
        self._set(2, token, charge)

    def _ban_repeats(self) -> None:
        """Exclude the tokens that would complete an n-gram that the text has."""
        size = self._options.no_repeat_ngram_size
        if size < 2 or len(self._tokens) < size - 1:
            return
        context = tuple(self._tokens[len(self._tokens) - size + 1 :])
        self._bans = self._followers.get(context, [])[:]
        for token in self._bans:
            self._set(0, token, -np.inf)

    def _lift_bans(self) -> None:
        for token in self._bans:
            self.values[0, self._slots[token]] = self._options.logit_bias.get(token, 0.0)
        self._bans = []

    def _set(self, kind: int, token: int, value: float) -> None:
        slot = self._slots.get(token)
        if slot is None:
            slot = len(self._slots)
            if slot == len(self.ids):
                self.ids = np.concatenate([self.ids, np.zeros_like(self.ids)])
                room = np.zeros_like(self.values)
                room[1] = 1
                self.values = np.concatenate([self.values, room], axis=1)
            self._slots[token] = slot
            self.ids[slot] = token
        self.values[kind, slot] = value
