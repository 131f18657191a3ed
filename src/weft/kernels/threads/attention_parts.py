"""The work of an attention by threads: one kernel."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attention import Attention
from weft.ir.target import ThreadTarget
from weft.kernels.build.templates import Part
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.threads.attention import ending_operands, streamed_operands
from weft.kernels.threads.attention_tiles import attention_on_tiles


def attention_parts(
    attention: Attention, operands: Sequence[StoredTensor], result: StoredTensor, target: ThreadTarget
) -> tuple[Part, ...]:
    """The attention alone."""
    launch = attention_on_tiles(attention, tuple(operands), result, target)
    every = (*streamed_operands(attention), *ending_operands(attention))
    return (Part(Work((launch,)), every, result),)
