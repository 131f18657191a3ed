"""The work of an attention: one kernel, or one for splits of the keys and one that merges them."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attention import Attention
from weft.ir.target import ThreadTarget
from weft.kernels.build.templates import Part
from weft.kernels.lower.tensors import Launch, StoredTensor, Work
from weft.kernels.threads.attention import list_epilogue_operands, list_streamed_operands
from weft.kernels.threads.attention_products import build_product_attention
from weft.kernels.threads.attention_shapes import ProductShape, choose_product_shape, plan_key_split
from weft.kernels.threads.attention_split import build_merge_launch, split_workspaces
from weft.kernels.threads.attention_tiles import build_tile_attention
from weft.kernels.threads.size_ranges import run_where


def build_attention(
    attention: Attention, operands: Sequence[StoredTensor], result: StoredTensor, target: ThreadTarget
) -> tuple[Part, ...]:
    """Build an attention as a single part."""
    shape = choose_product_shape(attention, target)
    if shape is None:
        work = Work((build_tile_attention(attention, tuple(operands), result, target),))
    else:
        work = _build_product_work(attention, tuple(operands), result, target, shape)
    return (Part(work, (*list_streamed_operands(attention), *list_epilogue_operands(attention)), result),)


def _build_product_work(
    attention: Attention,
    operands: tuple[StoredTensor, ...],
    result: StoredTensor,
    target: ThreadTarget,
    shape: ProductShape,
) -> Work:
    """With dynamic sizes both variants are launched, with and without split keys; one of them has no blocks."""
    split, is_split = plan_key_split(attention, target, shape.rows, shape.keys)
    launches: list[Launch] = []
    if is_split != 1:
        unsplit = build_product_attention(attention, operands, result, target, shape, None)
        launches.append(run_where(1 - is_split, unsplit))
    if is_split == 0:
        return Work(tuple(launches))
    streaming = build_product_attention(attention, operands, result, target, shape, split)
    merging = build_merge_launch(attention, operands, result, target, split)
    launches += [run_where(is_split, streaming), run_where(is_split, merging)]
    return Work(tuple(launches), split_workspaces(attention, is_split * split.splits))
