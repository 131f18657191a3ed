"""Weights quantized in blocks and packed into bytes: unpacking them, and the products and gathers that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.scalar import Index
from weft.opset.functions import absolute, bit_and, cast, round_half_even, shift_right, where, wide_dtype
from weft.opset.language import (
    Element,
    Tensor,
    build,
    constant,
    contract,
    elementwise,
    index,
    pad,
    reduce,
    reshape,
    wrap_index,
)
from weft.opset.microsoft.domain import op
from weft.opset.registry import REQUIRED, normalize_axis, require

_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_INT8_LEVEL = 4  # the accuracy level at which activations have 8 bits
_MOST_CODE = 127.0
_CODES = (_FP4 + tuple(-value for value in _FP4), _NF4)


def unpack_element(byte: Callable[[Element], Element], position: Element, bits: int) -> Element:
    """Unpack element `position` of a row of bytes that hold 8 / bits numbers each, the first in the lowest bits."""
    if bits == 8:
        return byte(position)
    per_byte = 8 // bits
    shift = cast((position % per_byte) * bits, DType.uint8)
    return bit_and(shift_right(byte(_divide_position(position, per_byte)), shift), 2**bits - 1)


def _divide_position(position: Element, divisor: Dim) -> Element:
    """Divide a position by a size; a position from data is not index arithmetic, and not negative."""
    if isinstance(position.scalar, Index):
        return position // divisor
    return position / index(divisor)


def dequantize_blocks(
    packed: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    *,
    rows: Dim,
    columns: Dim,
    block_size: Dim,
    bits: int,
    groups: Tensor | None = None,
) -> Tensor:
    """Dequantize weights that are packed along the columns to [rows, columns] of the scales' wide dtype.

    Zero points are packed like the weights, or have the scales' dtype; by default they are the middle of the range.
    `groups` maps each column to the block of its scale.
    """
    require(bits in (2, 4, 8), f"bits is {bits}", "weights have 2, 4 or 8 bits")
    require(not isinstance(block_size, int) or block_size > 0, f"block_size is {block_size}")
    blocks = dims.ceildiv(columns, block_size)
    wide = wide_dtype(scales.dtype)
    packed = reshape(packed, (rows, dims.floordiv(blocks * block_size * bits, 8)))
    scales = reshape(scales, (rows, blocks))
    if zero_points is not None:
        width = dims.ceildiv(blocks * bits, 8) if zero_points.dtype is DType.uint8 else blocks
        zero_points = reshape(zero_points, (rows, width))

    def zero(row: Element, block: Element) -> Any:
        if zero_points is None:
            return float(2 ** (bits - 1))
        points = zero_points
        if points.dtype is not DType.uint8:
            return cast(points.at(row, block), wide)
        return cast(unpack_element(lambda byte: points.at(row, byte), block, bits), wide)

    def element(row: Element, column: Element) -> Any:
        number = cast(unpack_element(lambda byte: packed.at(row, byte), column, bits), wide)
        block = column // block_size if groups is None else cast(groups.at(column), DType.int64)
        return (number - zero(row, block)) * cast(scales.at(row, block), wide)

    return build((rows, columns), element)


@op("MatMulNBits")
def matmul_n_bits(
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int = REQUIRED,
    N: int = REQUIRED,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int = REQUIRED,
    weight_prepacked: int = 0,
) -> Tensor:
    """Multiply by weights of few bits; at accuracy level 4, A is rounded to 8 bits in the same blocks."""
    require(not weight_prepacked, "weights packed for one GPU cannot be read", "export the model without prepacking")
    weights = dequantize_blocks(
        b, scales, zero_points, rows=N, columns=K, block_size=block_size, bits=bits, groups=g_idx
    )
    rounds = accuracy_level == _INT8_LEVEL and g_idx is None
    left = round_blocks(a, block_size) if rounds else a
    return multiply_by_rows(left, weights, bias, a.dtype)


def round_blocks(a: Tensor, block_size: int) -> Tensor:
    """Round a [..., K] to float32 products of int8 codes and a scale: each block's largest magnitude over 127.

    A product with weights of the same blocks is then a sum over blocks of exact integer sums, each times two scales.
    """
    *leading, depth = a.shape
    blocks = dims.ceildiv(depth, block_size)
    rest = blocks * block_size - depth
    padded = a if rest == 0 else pad(a, [*[(0, 0)] * len(leading), (0, rest)])
    rows = cast(reshape(padded, (*leading, blocks, block_size)), DType.float32)
    largest = reduce("maximum", elementwise(absolute, rows), [len(leading) + 1])
    scales = elementwise(lambda m: m / _MOST_CODE, largest)
    steps = elementwise(lambda m: where(m > 0.0, _MOST_CODE / m, 0.0), largest)
    codes = build(rows.shape, lambda *i: cast(round_half_even(rows.at(*i) * steps.at(*i[:-1])), DType.int8))
    flat = reshape(codes, (*leading, blocks * block_size))

    def element(*i: Element) -> Element:
        return cast(flat.at(*i), DType.float32) * scales.at(*i[:-1], i[-1] // block_size)

    return build(a.shape, element)


def multiply_by_rows(a: Tensor, weights: Tensor, bias: Tensor | None = None, dtype: DType | None = None) -> Tensor:
    """Multiply a [..., K] by the transpose of weights [N, K], in the weights' dtype; the result has A's by default."""
    labels, result = "abcdefghij"[: a.rank - 1], dtype or a.dtype
    product = contract(cast(a, weights.dtype), weights, labels + "k", "nk", labels + "n")
    if bias is None:
        return cast(product, result)
    return elementwise(lambda v, b: cast(v + cast(b, weights.dtype), result), product, bias)


@op("MatMulBnb4")
def matmul_bnb4(
    a: Tensor,
    b: Tensor,
    absmax: Tensor,
    *,
    K: int = REQUIRED,
    N: int = REQUIRED,
    block_size: int = REQUIRED,
    quant_type: int = REQUIRED,
    training_mode: int = 0,
    transB: int = 1,
) -> Tensor:
    """Multiply by weights [N, K] of 4-bit codes, the first of two in the high bits; blocks span the flat matrix."""
    require(quant_type in (0, 1), f"quant_type is {quant_type}", "0 is FP4, 1 is NF4")
    wide = wide_dtype(a.dtype)
    codes = constant(_CODES[quant_type], wide)
    packed, largest = reshape(b, (b.size,)), reshape(absmax, (absmax.size,))

    def element(row: Element, column: Element) -> Element:
        position = row * K + column
        shift = cast((1 - position % 2) * 4, DType.uint8)
        code = bit_and(shift_right(packed.at(position // 2), shift), 15)
        return codes.at(code) * cast(largest.at(position // block_size), wide)

    weights = build((N, K), element)
    if transB:
        return multiply_by_rows(a, weights)
    labels = "abcdefghij"[: a.rank - 1]
    return cast(contract(cast(a, wide), weights, labels + "n", "nk", labels + "k"), a.dtype)


@op("GatherBlockQuantized")
def gather_block_quantized(
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Tensor:
    """Gather from a table quantized in blocks along an axis; an index outside of it gives zeros."""
    require(data.rank == scales.rank, f"data {data.type} and scales {scales.type} must have the same rank")
    axis, blocked = normalize_axis(gather_axis, data.rank), normalize_axis(quantize_axis, data.rank)
    packing = 8 // bits if data.dtype is DType.uint8 else 1
    shape = (*data.shape[:-1], data.shape[-1] * packing)
    table = _make_lookup(data, scales, zero_points, shape, axis=blocked, block_size=block_size, bits=bits)
    size = shape[axis]

    def element(*i: Element) -> Element:
        position = wrap_index(indices.at(*i[axis : axis + indices.rank]), size)
        picked = table((*i[:axis], position, *i[axis + indices.rank :]))
        inside = (position >= 0) & (position < index(size))
        return cast(where(inside, picked, 0.0), scales.dtype)

    return build((*shape[:axis], *indices.shape, *shape[axis + 1 :]), element)


def _make_lookup(
    data: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    shape: Sequence[Dim],
    *,
    axis: int,
    block_size: int,
    bits: int,
) -> Callable[[Sequence[Element]], Any]:
    """Return a function from indices of the table to the dequantized float32 number there."""
    is_packed = data.dtype is DType.uint8
    length = block_size or shape[axis]

    def read(tensor: Tensor, indices: Sequence[Element]) -> Element:
        if not is_packed:
            return cast(tensor.at(*indices), DType.float32)
        return cast(unpack_element(lambda byte: tensor.at(*indices[:-1], byte), indices[-1], bits), DType.float32)

    def zero(block: Sequence[Element]) -> Any:
        if zero_points is None:
            return float(2 ** (bits - 1)) if is_packed else 0.0
        return read(zero_points, block)

    def element(indices: Sequence[Element]) -> Element:
        block = [_divide_position(p, length) if a == axis else p for a, p in enumerate(indices)]
        scale_place = [0 if size == 1 else p for size, p in zip(scales.shape, block)]
        number = read(data, indices)
        centred = number - zero(block) if data.dtype.is_integer else number
        return centred * cast(scales.at(*scale_place), DType.float32)

    return element
