"""The work of an attention: one kernel, or one for splits of the keys and one that merges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.target import ThreadTarget
from weft.kernels.build.attention_rows import find_row_axes
from weft.kernels.build.templates import Part
from weft.kernels.lower.tensors import Launch, StoredTensor, Work
from weft.kernels.threads.attention import KeySplit, list_epilogue_operands, list_streamed_operands
from weft.kernels.threads.attention_frame import CHUNK
from weft.kernels.threads.attention_page_merge import build_page_merge
from weft.kernels.threads.attention_pages import build_paged_attention, choose_page_tiles
from weft.kernels.threads.attention_products import build_product_attention
from weft.kernels.threads.attention_rows import build_row_attention
from weft.kernels.threads.attention_shapes import choose_product_shape, plan_key_split
from weft.kernels.threads.attention_split import build_merge_launch, split_workspaces
from weft.kernels.threads.attention_tiles import build_tile_attention, choose_attention_tile
from weft.kernels.threads.size_ranges import indicator, run_where

FEW_ROWS = 64  # of a head
BLOCK_SHARE = 2  # fewer blocks than the units divided by this are few


def build_attention(
    attention: Attention, operands: Sequence[StoredTensor], result: StoredTensor, target: ThreadTarget
) -> tuple[Part, ...]:
    """Build an attention as a single part."""
    if attention.block_size is not None:
        work = _build_paged_work(attention, tuple(operands), result, target)
        return (Part(work, (*list_streamed_operands(attention), *list_epilogue_operands(attention)), result),)
    product_shape, own_operands = choose_product_shape(attention, target), tuple(operands)
    if product_shape is None:
        tile = choose_attention_tile(attention, target)
        split, is_split = plan_key_split(attention, target, tile.height, tile.keys)
        is_split = is_split if target.fixed_order else 0
        build = partial(build_tile_attention, attention, own_operands, result, target, tile)
    else:
        split, is_split = plan_key_split(attention, target, product_shape.rows, product_shape.keys)
        build_launch = build_row_attention if product_shape.keeps_scores else build_product_attention
        build = partial(build_launch, attention, own_operands, result, target, product_shape)
    work = _build_split_work(attention, own_operands, result, target, build, split, is_split)
    return (Part(work, (*list_streamed_operands(attention), *list_epilogue_operands(attention)), result),)


def _build_split_work(
    attention: Attention,
    operands: tuple[StoredTensor, ...],
    result: StoredTensor,
    target: ThreadTarget,
    build: Callable[[KeySplit | None], Launch],
    split: KeySplit,
    is_split: Dim,
) -> Work:
    """With dynamic sizes both variants are launched, with and without split keys; one of them has no blocks."""
    launches: list[Launch] = []
    if is_split != 1:
        launches.append(run_where(1 - is_split, build(None)))
    if is_split == 0:
        return Work(tuple(launches))
    merging = build_merge_launch(attention, operands, result, target, split)
    launches += [run_where(is_split, build(split)), run_where(is_split, merging)]
    return Work(tuple(launches), split_workspaces(attention, is_split * split.splits))


def _build_paged_work(
    attention: Attention, operands: tuple[StoredTensor, ...], result: StoredTensor, target: ThreadTarget
) -> Work:
    """Build the kernels for few and for many rows of a head; one merges chunks of keys that blocks computed apart.

    Few rows, and many in few blocks, have a block for each chunk.
    """
    axes = find_row_axes(attention, in_place=True)
    chunks = dims.maximum(dims.ceildiv(attention.shape[-1], CHUNK), 1)
    few, many = choose_page_tiles(attention, target)
    blocks = dims.ceildiv(axes.count, many.rows) * dims.product(size for _, size in axes.grid)
    has_few_rows = indicator(axes.count, None, FEW_ROWS + 1)
    has_few_blocks = indicator(blocks, None, target.rates.compute_units // BLOCK_SHARE + 1)
    is_apart = dims.maximum(has_few_rows, has_few_blocks)
    split = KeySplit(chunks, 1)
    variants = [
        (has_few_rows, few, split),
        ((1 - has_few_rows) * has_few_blocks, many, split),
        (1 - is_apart, many, None),
    ]
    launches = [
        run_where(active, build_paged_attention(attention, operands, result, target, tile, splits))
        for active, tile, splits in variants
        if active != 0
    ]
    if is_apart == 0:
        return Work(tuple(launches))
    launches.append(run_where(is_apart, build_page_merge(attention, operands, result, target, split)))
    return Work(tuple(launches), split_workspaces(attention, is_apart * chunks))
