"""The work of an attention by threads: one kernel, or one for parts of the keys and one that joins these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.target import ThreadTarget
from weft.kernels.build.templates import Part
from weft.kernels.lower.tensors import Launch, StoredTensor, Work
from weft.kernels.threads.attention import ending_operands, streamed_operands
from weft.kernels.threads.attention_products import attention_on_products
from weft.kernels.threads.attention_shapes import ProductShape, key_split, product_shape
from weft.kernels.threads.attention_split import joining_launch, workspaces
from weft.kernels.threads.attention_tiles import attention_on_tiles


def attention_parts(
    attention: Attention, operands: Sequence[StoredTensor], result: StoredTensor, target: ThreadTarget
) -> tuple[Part, ...]:
    """The attention alone."""
    shape = product_shape(attention, target)
    if shape is None:
        work = Work((attention_on_tiles(attention, tuple(operands), result, target),))
    else:
        work = _product_work(attention, tuple(operands), result, target, shape)
    every = (*streamed_operands(attention), *ending_operands(attention))
    return (Part(work, every, result),)


def _product_work(
    attention: Attention,
    operands: tuple[StoredTensor, ...],
    result: StoredTensor,
    target: ThreadTarget,
    shape: ProductShape,
) -> Work:
    """Where only a run tells whether keys are split, both ways: one of them has no blocks then."""
    split, splits = key_split(attention, target, shape.rows, shape.keys)
    launches: list[Launch] = []
    if splits != 1:
        whole = attention_on_products(attention, operands, result, target, shape, None)
        launches.append(_only(whole, 1 - splits))
    if splits == 0:
        return Work(tuple(launches))
    streaming = attention_on_products(attention, operands, result, target, shape, split)
    joining = joining_launch(attention, operands, result, target, split)
    launches += [_only(streaming, splits), _only(joining, splits)]
    return Work(tuple(launches), workspaces(attention, splits * split.parts))


def _only(launch: Launch, active: Dim) -> Launch:
    return launch if active == 1 else replace(launch, blocks=active * launch.blocks)
