"""`Rows`: the sequences of a batch, their tokens, and their runs through a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.generation.constraints import Constraint
from weft.generation.decoder import Decoder, Step
from weft.generation.sampler import SampledRow
from weft.ir.tensors import DeviceTensor

CHUNK = 512  # tokens of a prompt in one step


@dataclass(slots=True, eq=False)
class Row:
    """A sequence of a batch.

    tokens: what the model sees, without padding.
    shown: what `get_sequence` returns.
    computed: the number of tokens whose keys and values are in the cache.
    phase: of the sequence when they were computed, see `Decoder.find_phase`.
    """

    blocks: list[int]
    tokens: list[int] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    computed: int = 0
    phase: int = 0
    last: tuple[int, int] = (0, 0)  # the tokens of the last run: start and end
    is_done: bool = False
    sampled: SampledRow | None = None
    constraint: Constraint | None = None


def compute(decoder: Decoder, rows: Sequence[Row]) -> Any:
    """Compute all tokens of rows that are not in the cache; return logits of the last ones, one row each.

    There may be more rows of logits, as padding.
    """
    for row in rows:
        phase = decoder.find_phase(len(row.tokens))
        if phase != row.phase:
            row.phase, row.computed = phase, 0
        row.last = row.computed, len(row.tokens)
    if all(row.computed and len(row.tokens) - row.computed == 1 for row in rows):
        logits = decoder.run([Step(row.tokens[-1:], row.computed, row.blocks, sequence=row) for row in rows])
        for row in rows:
            row.computed += 1
        return logits
    results = [_compute_row(decoder, row) for row in rows]
    return results[0] if len(results) == 1 else np.concatenate([to_array(logits)[:1] for logits in results])


def compute_all_logits(decoder: Decoder, row: Row) -> NDArray[Any]:
    """Return the logits of all tokens of a row's last run, [tokens, vocabulary], by computing them again."""
    start, end = row.last
    row.computed = start
    parts = []
    while row.computed < end:
        count = _step_size(decoder, row, end)
        tokens = row.tokens[row.computed : row.computed + count]
        step = Step(tokens, row.computed, row.blocks, selected=count, sequence=row, length=end)
        parts.append(to_array(decoder.run([step]))[:count])
        row.computed += count
    return np.concatenate(parts)


def _compute_row(decoder: Decoder, row: Row) -> Any:
    logits = None
    while row.computed < len(row.tokens):
        count = _step_size(decoder, row, len(row.tokens))
        tokens = row.tokens[row.computed : row.computed + count]
        step = Step(tokens, row.computed, row.blocks, sequence=row, length=len(row.tokens))
        logits = decoder.run([step])
        row.computed += count
    return logits


def _step_size(decoder: Decoder, row: Row, end: int) -> int:
    """Return how many tokens the next step takes."""
    if decoder.takes_chunks:
        return min(end - row.computed, CHUNK)
    return 1 if row.computed else end


def to_array(logits: Any) -> NDArray[Any]:
    """Return logits on the host."""
    return logits.numpy() if isinstance(logits, DeviceTensor) else np.asarray(logits)
