"""Copy blocks of a paged cache on a device with its own memory: one program gathers them, another one scatters them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.ir import dims
from weft.ir.dtypes import DType, from_numpy
from weft.ir.program import Map, Scatter, Step, TensorProgram, Value
from weft.ir.scalar import Load, Scalar, identity_indices
from weft.ir.types import TensorType
from weft.passes.page_state import BLOCKS

if TYPE_CHECKING:
    from weft.backends.device import Executable
    from weft.compiler import Pipeline

Shapes = Mapping[str, tuple[tuple[int, ...], "np.dtype[Any]"]]


class BlockCopier:
    """Copies blocks in all pools of a cache; no block is a target twice."""

    def __init__(self, pipeline: Pipeline, pools: Shapes) -> None:
        self._gather: Executable = pipeline.prepare(_build_gather(pools))
        self._scatter: Executable = pipeline.prepare(_build_scatter(pools))

    def copy(self, pools: Sequence[Any], sources: Sequence[int], targets: Sequence[int]) -> None:
        contents = self._gather.run([*pools, np.array(sources, np.int64)], range(len(pools)))
        self._scatter.run([*pools, *contents, np.array(targets, np.int64)])


def _build_gather(pools: Shapes) -> TensorProgram:
    inputs = _pool_values(pools)
    chosen = Value(len(inputs), TensorType(DType.int64, (dims.symbol("count"),)), "sources")
    steps = []
    for number, pool in enumerate(inputs):
        result = Value(len(inputs) + 1 + number, TensorType(pool.dtype, (dims.symbol("count"), *pool.shape[1:])))
        block, *place = identity_indices(result.shape)
        element = Load(0, (Load(1, (block,), DType.int64), *place), pool.dtype)
        steps.append(Step(Map(element), (pool, chosen), (result,), "copy blocks"))
    outputs = tuple(step.results[0] for step in steps)
    return TensorProgram(inputs=(*inputs, chosen), outputs=outputs, steps=tuple(steps))


def _build_scatter(pools: Shapes) -> TensorProgram:
    inputs = _pool_values(pools)
    count = len(inputs)
    contents = tuple(
        Value(count + number, TensorType(pool.dtype, (dims.symbol("count"), *pool.shape[1:])), f"content{number}")
        for number, pool in enumerate(inputs)
    )
    chosen = Value(2 * count, TensorType(DType.int64, (dims.symbol("count"),)), "targets")
    steps = []
    for number, (pool, content) in enumerate(zip(inputs, contents)):
        own = identity_indices(content.shape)
        indices: tuple[Scalar, ...] = (Load(2, own[:1], DType.int64), *own[1:])
        update = Load(1, own, pool.dtype)
        primitive = Scatter(content.shape, indices, update, "none", checked=False, in_place=True, distinct=True)
        result = Value(2 * count + 1 + number, pool.type)
        steps.append(Step(primitive, (pool, content, chosen), (result,), "copy blocks"))
    return TensorProgram(inputs=(*inputs, *contents, chosen), outputs=(), steps=tuple(steps))


def _pool_values(pools: Shapes) -> tuple[Value, ...]:
    return tuple(
        Value(number, TensorType(from_numpy(dtype), (dims.symbol(BLOCKS), *shape[1:])), name)
        for number, (name, (shape, dtype)) in enumerate(pools.items())
    )
