"""The works of an attention on vectors: keys and values packed, each by one, so that what they are packed from can go
before the streaming kernel runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attention import Attention
from weft.ir.target import VectorTarget
from weft.kernels.build.attention import used_operands, with_operands
from weft.kernels.build.templates import Part
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.vector.attention import FLOAT, VECTORS, attention_launch
from weft.kernels.vector.key_panels import key_panels, pack_keys, pack_values, value_panels


def attention_parts(
    attention: Attention, operands: Sequence[StoredTensor], result: StoredTensor, target: VectorTarget
) -> tuple[Part, ...]:
    """Keys packed, values packed, and the attention, whose operands are followed by both of these."""
    lanes = VECTORS * target.vector_bytes // FLOAT.numpy.itemsize
    shape = attention.shape
    key_operands, value_operands = used_operands(attention.key), used_operands(attention.value)
    key, value = with_operands(attention.key, key_operands), with_operands(attention.value, value_operands)
    pairs = target.narrow_products and target.dot_product_16 and target.dot_16_rate > 1 and attention.depth % 2 == 0
    keys = key_panels(key, shape, attention.depth, lanes, pairs=pairs)
    values = value_panels(value, shape, attention.width, lanes, pairs=pairs)
    pack = pack_keys(key, shape, tuple(operands[n] for n in key_operands), keys, target)
    first = Part(Work((pack,)), key_operands, keys)
    pack = pack_values(value, shape, attention.width, tuple(operands[n] for n in value_operands), values)
    second = Part(Work((pack,)), value_operands, values)
    others = used_operands(attention.query, attention.score)
    ended = () if attention.epilogue is None else used_operands(attention.epilogue)
    launch = attention_launch(attention, tuple(operands), keys, values, result, target)
    every = (*others, *ended)
    return first, second, Part(Work((launch,)), every, result)
