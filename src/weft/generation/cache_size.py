"""Choose the number of blocks of a KV cache: by the memory limit, or by the longest sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.errors import OutOfMemoryError
from weft.generation.chunks import list_largest_steps
from weft.generation.decoder import BLOCK_SIZE, DecoderInputs, PagedPrograms
from weft.quantities import format_bytes
from weft.runtime.memory import summarize

if TYPE_CHECKING:
    from weft.backends.device import Executable

SEQUENCES = 4  # of the longest length, for which the cache has room if memory is not limited


def choose_blocks(
    inputs: DecoderInputs, programs: PagedPrograms, max_length: int, limit: int | None, max_batch: int, chunk: int
) -> int:
    """Return the number of blocks; OutOfMemoryError if the longest sequence does not fit into the limit."""
    least = -(-max_length // BLOCK_SIZE)
    usual_count = least * min(SEQUENCES, max_batch)
    if limit is None:
        return usual_count
    size = block_bytes(programs)
    others = max(
        plan_run(inputs, programs, rows, tokens, max_length - tokens, usual_count)
        for rows, tokens in list_largest_steps(max_batch, chunk, max_length, takes_chunks=programs.takes_chunks)
    )
    blocks = (limit - others) // size
    if blocks < least:
        problem = (
            f"a sequence of {max_length:,} tokens needs {format_bytes(least * size)} of cache beside "
            f"{format_bytes(others)} for weights and steps, more than the memory_limit of {format_bytes(limit)}"
        )
        raise OutOfMemoryError(problem, file=inputs.model.file, hint="lower max_length, or raise memory_limit")
    return min(blocks, least * max_batch)


def block_bytes(programs: PagedPrograms) -> int:
    """Return the bytes of one block in all layers."""
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in programs.pool_shapes(1).values())


def plan_run(inputs: DecoderInputs, programs: PagedPrograms, rows: int, tokens: int, past: int, blocks: int) -> int:
    """Return the peak bytes of a step, with the weights, without the cache."""
    tokens = min(tokens, tokens + past)
    past = max(past, 0)
    past = past if programs.takes_chunks or tokens == 1 else 0
    return _peak(programs.choose(tokens, past), programs.run_sizes(inputs, rows, tokens, past, blocks))


def _peak(executable: Executable, sizes: dict[str, int]) -> int:
    plan = executable.plan(sizes)
    return 0 if plan is None else summarize(plan, sizes, ()).peak
