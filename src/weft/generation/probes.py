"""Find out how a decoder's steps may be combined such that the bits of their logits stay the same.

Models differ: some place a token by the length of the longest sequence in a batch, some compute numbers that depend on
how many tokens a step has. Each fact is tested on small steps of the model itself, before it generates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ExecutionError, InputError
from weft.generation.decoder import BLOCK_SIZE, Decoder, DecoderInputs, PagedDecoder, PagedPrograms, Step

PAST = 5  # tokens before those that are compared
CHUNK = 3
MOST_PHASES = 3
LEAST_PHASE = 32  # no model changes its angles for shorter sequences


def probe_programs(inputs: DecoderInputs, programs: PagedPrograms, max_length: int) -> PagedPrograms:
    """Return the programs with what their steps allow, for sequences of at most `max_length` tokens."""
    decoder = PagedDecoder(inputs, programs, 2)
    if programs.takes_chunks and not takes_chunks(decoder, keeps_bits=inputs.is_strict):
        programs = replace(programs, takes_chunks=False)
    is_short = max_length <= PAST + CHUNK
    if is_short or (inputs.is_strict and not _takes_rows(decoder)):
        return replace(programs, takes_rows=is_short, takes_padding=False, pads_chunks=False)
    ends = find_phase_ends(decoder, max_length)
    longest = ends[0] if ends else max_length
    takes_padding = _takes_padding(decoder, longest)
    if not takes_padding:
        ends = ()
    pads_chunks = takes_padding and programs.takes_chunks and not ends and _pads_chunks(decoder, longest)
    return replace(programs, takes_padding=takes_padding, pads_chunks=pads_chunks, phase_ends=ends)


def check_length(inputs: DecoderInputs, programs: PagedPrograms, max_length: int, *, is_default: bool) -> int:
    """Return the most tokens of a sequence, for which the model's tables of positions have rows.

    A configuration may not state their size. A length that the caller asked for raises InputError if it is too large.
    """
    decoder = PagedDecoder(inputs, programs, 1)
    least, excess = 0, max_length + 1  # lengths that the tables have room for, and have no room for
    length = max_length
    while least + 1 < excess:
        try:
            _read(decoder.run([Step(_tokens(decoder, 1), length - 1, [0] * -(-length // BLOCK_SIZE))]))
            least = length
        except ExecutionError:
            if length == 1:
                raise
            excess = length
        length = (least + excess) // 2
    if least < max_length and not is_default:
        problem = f"max_length is {max_length:,}, and the model has positions for {least:,} tokens"
        raise InputError(problem, file=inputs.model.file, hint=f"pass at most max_length={least}")
    return least


def takes_chunks(decoder: Decoder, *, keeps_bits: bool) -> bool:
    """Whether several tokens can follow others; with `keeps_bits`, only if their logits are those of single tokens."""
    if decoder.block_size * decoder.blocks < PAST + CHUNK:
        return True  # there are no such chunks
    past, chunk = _tokens(decoder, PAST + CHUNK)[:PAST], _tokens(decoder, PAST + CHUNK)[PAST:]
    first = Step(past, 0, [0])
    decoder.run([first])
    try:
        whole = _read(decoder.run([Step(chunk, PAST, [0], selected=CHUNK)]))
    except InputError:  # its mask fits whole prompts and single tokens only
        decoder.forget(first)
        return False
    decoder.forget(first)
    if not keeps_bits:
        return True
    decoder.run([first])
    singles = [_read(decoder.run([Step([token], PAST + index, [0])])) for index, token in enumerate(chunk)]
    decoder.forget(first)
    return np.array_equal(whole[:CHUNK], np.concatenate([single[:1] for single in singles]), equal_nan=True)


def _takes_rows(decoder: PagedDecoder) -> bool:
    """Whether the logits of two sequences stay the same if they run together."""
    steps = [Step([token], PAST, [block]) for block, token in enumerate(_tokens(decoder, 2))]
    alone = [_read(decoder.run_rows([step], 1))[:1] for step in steps]
    together = _read(decoder.run_rows(steps, 2))
    return np.array_equal(np.concatenate(alone), together[:2], equal_nan=True)


def find_phase_ends(decoder: PagedDecoder, max_length: int) -> tuple[int, ...]:
    """Find the lengths of sequences at which the logits of a token change, if they are constant in between.

    A token is computed with more and more room for others, and the changes are found by bisection.
    """
    (token,) = _tokens(decoder, 1)
    step = Step([token], PAST, [0])

    def compute(total: int) -> bytes:
        return _read(decoder.run_rows([step], 1, total - 1)).tobytes()

    ends: list[int] = []
    first, last = PAST + 1, compute(max_length)
    while (logits := compute(first)) != last:
        if len(ends) == MOST_PHASES - 1:
            return ()
        end, beyond = first, max_length
        while end + 1 < beyond:
            middle = (end + beyond) // 2
            end, beyond = (middle, beyond) if compute(middle) == logits else (end, middle)
        if end < LEAST_PHASE:  # the model places tokens by the length
            return ()
        ends.append(end)
        first = beyond
    return tuple(ends)


def _takes_padding(decoder: PagedDecoder, max_length: int) -> bool:
    """Whether the logits of a step stay the same beside a longer sequence.

    They do if the model places a token by its positions and its mask alone. Some exporters build the masks of sliding
    windows from the number of past tokens instead, which is then that of the longest sequence.
    """
    (token,) = _tokens(decoder, 1)
    step = Step([token], PAST, [0])
    longest = Step([token], max_length - 1, [1] * -(-max_length // BLOCK_SIZE))
    alone, together = _read(decoder.run_rows([step], 1)), _read(decoder.run_rows([step, longest], 2))
    return np.array_equal(alone[:1], together[:1], equal_nan=True)


def _pads_chunks(decoder: PagedDecoder, max_length: int) -> bool:
    """Whether the logits of a chunk stay the same if another one in its batch is longer and has a longer past."""
    tokens = _tokens(decoder, CHUNK + 2)
    chunk = Step(tokens[:CHUNK], PAST, [0], selected=CHUNK)
    longer = Step(tokens, min(PAST + 4, max_length - len(tokens)), [1, 1], selected=CHUNK)
    if longer.past <= chunk.past:
        return False
    alone, together = _read(decoder.run_rows([chunk], 1)), _read(decoder.run_rows([chunk, longer], 2))
    return np.array_equal(alone[:CHUNK], together[:CHUNK], equal_nan=True)


def _tokens(decoder: Decoder, count: int) -> list[int]:
    """Return different tokens, as far as the vocabulary has them."""
    return [(1 + 7 * number) % decoder.vocabulary for number in range(count)]


def _read(logits: Any) -> NDArray[Any]:
    return np.array(np.asarray(logits))
