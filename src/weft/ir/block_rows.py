"""Rows rounded in blocks: recognise maps that multiply int8 codes by the scale of their block."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Map, Step, Value
from weft.ir.scalar import Apply, Index, Load, identity_indices
from weft.records import dataclass

LONGEST_BLOCK = 512  # elements; float32 cannot hold all sums of longer blocks of 8-bit codes
WORD = 4  # codes that are multiplied at a time


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Rows [..., depth] as int8 codes of the same shape times scales [..., depth / block]."""

    codes: Value
    scales: Value
    block: int


def match_block_rows(maker: Step) -> BlockRows | None:
    """Match a map that multiplies codes by scales; return None if it does not match."""
    if not isinstance(maker.primitive, Map) or not maker.results[0].has_shape:
        return None
    shape = maker.results[0].shape
    match maker.primitive.expression:
        case Apply(
            "multiply",
            (Apply("cast", (Load(code_operand, code_indices, DType.int8),)), Load(scale_operand, scale_indices)),
            DType.float32,
        ) if shape and isinstance(shape[-1], int):
            codes, scales = maker.operands[code_operand], maker.operands[scale_operand]
        case _:
            return None
    own_indices, depth = identity_indices(shape), shape[-1]
    if codes.known_shape != shape or code_indices != own_indices or scale_indices[:-1] != own_indices[:-1]:
        return None
    blocks = scales.shape[-1]
    if not isinstance(blocks, int) or not blocks or depth % blocks:
        return None
    block = depth // blocks
    is_blocked = scale_indices[-1] == Index(dims.floordiv(dims.axis(len(shape) - 1, depth), block))
    fits = block % WORD == 0 and block <= LONGEST_BLOCK
    return BlockRows(codes, scales, block) if is_blocked and fits else None
