"""Weights of float32, float16 and bfloat16 in the order of block-quantized ones, for products in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Union

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Register, Statement
from weft.ir.packing import Packing
from weft.kernels.lower.kernel_builder import KernelBuilder, fetch_run
from weft.kernels.lower.operations import cast
from weft.kernels.threads.block_format import GROUP, WORDS, BlockFormat, Values
from weft.kernels.threads.product_operands import RUN
from weft.records import dataclass

_CHUNK = 8  # values: 16 bytes of narrow ones


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """The packed form of weights [columns, depth]; `ranges` is the most ranges that sums are cut into."""

    columns: int
    depth: int
    dtype: DType
    ranges: int

    @property
    def chunk(self) -> int:
        """Values of a chunk."""
        return _CHUNK

    @property
    def chunks(self) -> int:
        """Chunks of a column: an even number, since tiles take two at a time."""
        return 2 * -(-self.depth // (2 * _CHUNK))

    @property
    def range_chunks(self) -> int:
        """Chunks of a range; the last range may have fewer."""
        return 2 * -(-self.chunks // (2 * self.ranges))

    @property
    def groups(self) -> int:
        return -(-self.columns // GROUP)

    def open_reader(self, builder: KernelBuilder) -> FloatReader:
        return FloatReader(self, builder)


WeightFormat = Union[BlockFormat, FloatFormat]


class FloatReader:
    """Reads weights of floats."""

    def __init__(self, float_format: FloatFormat, builder: KernelBuilder) -> None:
        self.format, self.builder = float_format, builder
        self.words = builder.input("words", float_format.dtype, WORDS)

    def open_values(
        self, group: Dim, column: Dim, chunk: Dim, first: Dim, count: int, statements: list[Statement]
    ) -> Values:
        """Read `count` values, from a multiple of four on in a chunk, of a column of a group."""
        chunks = self.builder.parameter("chunks", self.format.chunks)
        registers: list[Register] = []
        for start in range(0, count, RUN):
            far, near = divmod(start, _CHUNK)
            place = ((group * chunks + chunk + far) * GROUP + column) * _CHUNK + near + first
            registers += self.builder.registers("weight", RUN, self.format.dtype)
            statements.append(fetch_run(registers[-RUN:], self.words, place))

        def decode(position: int, body: list[Statement]) -> Register:
            register = registers[position]
            if register.dtype is DType.float32:
                return register
            definition, wide = self.builder.keep("wide", cast(register, DType.float32), varying=True)
            body.append(definition)
            return wide

        return decode


def pack_floats(float_format: FloatFormat, constant: Array, *, is_deep: bool) -> Packing:
    """Pack a matrix [depth, columns] or, if `is_deep`, [columns, depth]."""
    groups, chunks = float_format.groups, float_format.chunks

    def pack(array: Array) -> Iterator[Array]:
        weights = array if is_deep else array.T
        for group in range(groups):
            part = weights[group * GROUP : (group + 1) * GROUP]
            lines = np.zeros((GROUP, chunks * _CHUNK), weights.dtype)
            lines[: part.shape[0], : part.shape[1]] = part
            yield lines.reshape(GROUP, chunks, _CHUNK).transpose(1, 0, 2)

    return Packing(constant, pack, (groups * chunks, GROUP * _CHUNK), float_format.dtype.numpy)
