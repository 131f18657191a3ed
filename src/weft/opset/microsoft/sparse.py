"""Attention in which a mask of blocks says which keys a query sees."""

from __future__ import annotations

from math import inf
from typing import Any

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.functions import cast, equal, maximum, where
from weft.opset.language import (
    Element,
    Tensor,
    assume_equal,
    build,
    check_range,
    full,
    reduce,
    reshape,
    scatter,
    slice_axis,
)
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.grouped import Lengths, extend_buffer, make_rotation, split_projections
from weft.opset.microsoft.heads import attend
from weft.opset.registry import REQUIRED, Sizes, require


@op("SparseAttention")
def sparse_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor,
    past_value: Tensor,
    block_row_indices: Tensor,
    block_col_indices: Tensor,
    total_sequence_length: Sizes,
    key_total_sequence_lengths: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    *,
    do_rotary: int = 0,
    kv_num_heads: int = REQUIRED,
    num_heads: int = REQUIRED,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    sparse_block_size: int = REQUIRED,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend to the keys in visible blocks up to the query; heads use the layouts of the mask in turn."""
    require(kv_num_heads > 0 and num_heads % kv_num_heads == 0, f"{num_heads} heads cannot share {kv_num_heads}")
    require(sparse_block_size > 0, f"sparse_block_size is {sparse_block_size}")
    q, k, v = split_projections(query, key, value, num_heads, kv_num_heads)
    total = total_sequence_length[0]
    counts = reshape(key_total_sequence_lengths, (key_total_sequence_lengths.size,))
    counts = check_range(counts, 1, total, "key_total_sequence_lengths")
    lengths = Lengths(q.shape[2], total, build(counts.shape, lambda b: counts.at(b) - 1))
    if do_rotary:
        require(cos_cache is not None and sin_cache is not None, "a rotation needs cos_cache and sin_cache")
        assert cos_cache is not None and sin_cache is not None
        rotate_tokens = make_rotation(cos_cache, sin_cache, None, lengths, bool(rotary_interleaved))
        q, k = rotate_tokens(q), rotate_tokens(k)
    present_key, present_value = extend_buffer(past_key, k, lengths), extend_buffer(past_value, v, lengths)
    visible = _build_block_mask(block_row_indices, block_col_indices)
    layouts = visible.shape[0]

    def adjust(score: Any, indices: tuple[Element, ...]) -> Any:
        batch, head, query, key = indices
        position = query + lengths.before(batch)
        row = maximum(position, 0) / sparse_block_size
        block = visible.at(head % layouts, row, key // sparse_block_size)
        return where((key <= position) & equal(block, 1), score, -inf)

    keys, values = (slice_axis(present, 2, 0, total) for present in (present_key, present_value))
    attended = attend(q, keys, values, scale, adjust)
    return attended.result, present_key, present_value


def _build_block_mask(rows: Tensor, columns: Tensor) -> Tensor:
    """Build a mask [layouts, blocks, blocks + 1] of 0 and 1 from rows and columns in CSR form.

    The last column is for padding.
    """
    require(
        rows.rank == 2 and columns.rank == 2, f"rows {rows.type} and columns {columns.type} must have two dimensions"
    )
    layouts, entries = columns.shape
    assume_equal(rows.shape[0], layouts, "rows and columns have the same layouts")
    blocks: Dim = rows.shape[1] - 1
    ended = build(
        (layouts, entries, blocks), lambda n, i, r: cast(cast(rows.at(n, r + 1), DType.int64) <= i, DType.int64)
    )
    owners = reduce("sum", ended, [2])

    def place(n: Element, i: Element) -> tuple[tuple[Any, ...], Any]:
        row, column = owners.at(n, i), cast(columns.at(n, i), DType.int64)
        is_padding = (column < 0) | (row >= blocks)
        return (n, where(is_padding, 0, row), where(is_padding, blocks, column)), cast(row >= 0, DType.int64)

    return scatter(full((layouts, blocks, blocks + 1), 0, DType.int64), (layouts, entries), place)
