"""Attention on vectors: three works that pack keys, pack values and stream; or one that reads a paged cache in place.

Unpacked operands are freed before the last work.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attention import Attention
from weft.ir.target import VectorTarget
from weft.kernels.build.attention import find_operands, renumber_operands
from weft.kernels.build.templates import Part
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.vector.attention import FLOAT, VECTORS, streamed_expressions
from weft.kernels.vector.attention_merge import build_merge
from weft.kernels.vector.attention_operands import build_packed_attention, build_paged_attention
from weft.kernels.vector.key_panels import key_panels, pack_keys, pack_values, value_panels


def attention_parts(
    attention: Attention, operands: Sequence[StoredTensor], result: StoredTensor, target: VectorTarget
) -> tuple[Part, ...]:
    """Build the packing of keys and of values, and the attention, whose operands are followed by both results."""
    is_paged = attention.block_size is not None
    used = find_operands(*streamed_expressions(attention, in_place=is_paged))
    used += () if attention.epilogue is None else find_operands(attention.epilogue)
    if is_paged:
        launch = build_paged_attention(attention, tuple(operands), result, target)
        merge, workspaces = build_merge(attention, tuple(operands), result, target)
        return (Part(Work((launch, merge), workspaces), used, result),)
    lanes = VECTORS * target.vector_bytes // FLOAT.numpy.itemsize
    shape = attention.shape
    key_operands, value_operands = find_operands(attention.key), find_operands(attention.value)
    key, value = renumber_operands(attention.key, key_operands), renumber_operands(attention.value, value_operands)
    pairs = target.narrow_products and target.dot_product_16 and target.dot_16_rate > 1 and attention.depth % 2 == 0
    keys = key_panels(key, shape, attention.depth, lanes, pairs=pairs)
    values = value_panels(value, shape, attention.width, lanes, pairs=pairs)
    pack = pack_keys(key, shape, tuple(operands[n] for n in key_operands), keys, target)
    first = Part(Work((pack,)), key_operands, keys)
    pack = pack_values(value, shape, attention.width, tuple(operands[n] for n in value_operands), values)
    second = Part(Work((pack,)), value_operands, values)
    launch = build_packed_attention(attention, tuple(operands), keys, values, result, target)
    return first, second, Part(Work((launch,)), used, result)
