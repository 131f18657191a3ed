"""Block-quantized weights as words of codes whose bits at the same place of all four bytes are neighbours in a sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from weft.ir.arrays import Array
from weft.ir.block_weights import BlockWeights, pack_block_weights
from weft.records import dataclass

WORD = 4  # bytes


@dataclass(frozen=True, slots=True)
class CodePacking:
    """The layout of packed weights: panels of blocks, each with header rows and words."""

    columns: int
    depth: int
    block: int
    bits: int
    has_zeros: bool
    lanes: int
    vectors: int

    @property
    def step(self) -> int:
        """Columns of a panel."""
        return self.lanes * self.vectors

    @property
    def panels(self) -> int:
        return -(-self.columns // self.step)

    @property
    def blocks(self) -> int:
        return self.depth // self.block

    @property
    def fields(self) -> int:
        """Codes in a byte."""
        return 8 // self.bits

    @property
    def words(self) -> int:
        """Words of a column and block."""
        return self.block // (WORD * self.fields)

    @property
    def header_rows(self) -> int:
        return 2 if self.has_zeros else 1

    @property
    def block_rows(self) -> int:
        return self.header_rows + self.words

    @property
    def panel_size(self) -> int:
        return self.blocks * self.block_rows * self.step

    @property
    def middle(self) -> int:
        """The zero point of weights without zero points."""
        return 1 << (self.bits - 1)


def pack_codes(weights: BlockWeights, packing: CodePacking, constants: Sequence[Array]) -> Iterator[Array]:
    """Yield panels as int32 [blocks, header rows and words, columns of a panel]."""
    words, scales, zeros = pack_block_weights(weights, constants)  # [columns, words], [columns, blocks] twice
    words = words.reshape(packing.columns, packing.blocks, packing.words)
    for first in range(0, packing.panels * packing.step, packing.step):
        columns = slice(first, min(first + packing.step, packing.columns))
        panel = np.zeros((packing.blocks, packing.block_rows, packing.step), np.int32)
        place = panel[:, :, : columns.stop - first]
        place[:, 0] = scales[columns].astype(np.float32).view(np.int32).T
        if zeros is not None:
            place[:, 1] = zeros[columns].astype(np.float32).view(np.int32).T
        place[:, packing.header_rows :] = _order_codes(words[columns], packing.bits).view(np.int32).transpose(1, 2, 0)
        yield panel


def _order_codes(words: Array, bits: int) -> Array:
    """Move code 4 j + i of each word to field j of byte i."""
    ordered = np.zeros_like(words)
    for field in range(8 // bits):
        for byte in range(WORD):
            code = words >> np.uint32((WORD * field + byte) * bits) & np.uint32(2**bits - 1)
            ordered |= code << np.uint32(8 * byte + bits * field)
    return ordered
