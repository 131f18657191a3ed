"""The memory that generation needs, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.generation.chunks import list_largest_steps
from weft.generation.decoder import Decoder
from weft.ir.compiled import CompiledProgram
from weft.plan.program import weight_bytes
from weft.quantities import format_bytes
from weft.records import dataclass
from weft.tables import ShownAsTables, Table

if TYPE_CHECKING:
    from weft.runtime.model import Model


@dataclass(frozen=True, slots=True)
class GenerationMemory(ShownAsTables):
    """The memory that generation needs, in bytes.

    weights: constants, in the layout that the device reads.
    cache: keys and values of all requests.
    step: intermediate values and logits of the largest step.
    peak: the sum of these.
    tokens: the number of tokens that the cache has room for.
    token_bytes: the memory of one token in the cache.
    """

    weights: int
    cache: int
    step: int
    peak: int
    tokens: int
    token_bytes: int

    def _tables(self) -> list[Table]:
        rows = [
            ("weights", format_bytes(self.weights), ""),
            ("cache", format_bytes(self.cache), f"{self.tokens:,} tokens of {format_bytes(self.token_bytes)}"),
            ("largest step", format_bytes(self.step), ""),
            ("peak", format_bytes(self.peak), ""),
        ]
        return [Table(rows, ("memory", "size", "for"))]


def model_weights(model: Model) -> int:
    """Return the bytes of a model's weights, in the layout that its device reads; 0 if the device compiles nothing."""
    program = model.session().whole.program
    return weight_bytes(program) if isinstance(program, CompiledProgram) else 0


def compute_memory(model: Model, decoder: Decoder, rows: int, chunk: int, max_length: int) -> GenerationMemory:
    """Compute the memory of the largest steps: of a full batch, and of prompts at the end of the longest length."""
    plans = [
        decoder.memory(count, tokens, max_length - tokens if decoder.takes_chunks or tokens == 1 else 0)
        for count, tokens in list_largest_steps(rows, chunk, max_length, takes_chunks=decoder.takes_chunks)
    ]
    largest = max((plan for plan in plans if plan is not None), key=lambda plan: plan.peak, default=None)
    weights = largest.weights if largest is not None else model_weights(model)
    step = 0 if largest is None else largest.peak - weights
    tokens = decoder.blocks * decoder.block_size
    cache = decoder.cache_bytes
    return GenerationMemory(weights, cache, step, weights + cache + step, tokens, cache // tokens)
