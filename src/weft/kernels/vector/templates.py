"""The templates for lanes that are elements of vectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from weft.ir.groups import AttentionGroup, HeavyGroup, MapGroup, ReduceGroup, RowGroup, StepGroup
from weft.ir.program import (
    ArgReduce,
    Concat,
    Contract,
    Convolve,
    Cumulate,
    Map,
    Pool,
    Reduce,
    Scatter,
    Sort,
)
from weft.ir.target import VectorTarget
from weft.kernels.build.templates import Part, Request, Template, Templates, overwriting
from weft.kernels.common import templates as common
from weft.kernels.common.concat import concat_work
from weft.kernels.common.reduce import reduce_sweep
from weft.kernels.common.rows import rows_sweep
from weft.kernels.lower.tensors import Work
from weft.kernels.vector.attention_parts import attention_parts
from weft.kernels.vector.byte_products import byte_convolve_work, dot_product_work
from weft.kernels.vector.contract import contract_work
from weft.kernels.vector.convolve import convolve_work
from weft.kernels.vector.cumulate import cumulate_work
from weft.kernels.vector.interleave import interleave_work
from weft.kernels.vector.maps import map_work, region_launch
from weft.kernels.vector.pool import pool_work
from weft.kernels.vector.reduce import sweep_work
from weft.kernels.vector.scatter import scatter_work
from weft.kernels.vector.sort import sort_work
from weft.kernels.vector.winograd import winograd_work


def _map(request: Request[MapGroup, VectorTarget]) -> Work:
    step = request.step
    assert isinstance(step.primitive, Map)
    return map_work(step.primitive.expression, request.take(step.operands), request.result, request.target)


def _concat(request: Request[StepGroup, VectorTarget]) -> Work:
    step = request.step
    assert isinstance(step.primitive, Concat)
    return concat_work(step.primitive, request.take(step.operands), request.result, request.target, region_launch)


def _scatter(request: Request[StepGroup, VectorTarget]) -> Work:
    step = request.step
    assert isinstance(step.primitive, Scatter)
    return scatter_work(step.primitive, request.take(step.operands), request.result, request.target)


def _cumulate(request: Request[StepGroup, VectorTarget]) -> Work:
    step = request.step
    assert isinstance(step.primitive, Cumulate)
    return cumulate_work(step.primitive, request.tensors[step.operands[0]], request.result, request.target)


def _sort(request: Request[StepGroup, VectorTarget]) -> Work:
    step = request.step
    assert isinstance(step.primitive, Sort)
    values, positions = request.take(step.results)
    return sort_work(step.primitive, request.tensors[step.operands[0]], values, positions)


def _reduce(request: Request[ReduceGroup, VectorTarget]) -> Work:
    return sweep_work(reduce_sweep(request), request.target)


def _rows(request: Request[RowGroup, VectorTarget]) -> Work:
    return sweep_work(rows_sweep(request, keeps=True), request.target)


def _pool(request: Request[HeavyGroup, VectorTarget]) -> Work:
    group = request.group
    assert isinstance(group.heavy.primitive, Pool)
    source = request.tensors[group.sources[0]]
    epilogue = request.epilogue(group.epilogue)
    return pool_work(group.heavy.primitive, source, request.result, request.target, epilogue)


def _contract(request: Request[HeavyGroup, VectorTarget]) -> Work:
    group = request.group
    assert isinstance(group.heavy.primitive, Contract)
    left, right = request.take(group.sources)
    epilogue = request.epilogue(group.epilogue)
    constants = [request.constants.get(value) for value in group.sources]
    build = contract_work if left.dtype is right.dtype else dot_product_work
    work = build(
        group.heavy.primitive,
        left,
        right,
        request.result,
        epilogue,
        request.target,
        constant_left=constants[0],
        constant_right=constants[1],
    )
    return overwriting(work, epilogue, request.result)


def _convolve_bytes(request: Request[HeavyGroup, VectorTarget]) -> Work | None:
    x, w = request.take(request.group.sources)
    if x.dtype is w.dtype:
        return None
    return _convolved(request, byte_convolve_work)


def _winograd(request: Request[HeavyGroup, VectorTarget]) -> Work | None:
    group = request.group
    assert isinstance(group.heavy.primitive, Convolve)
    weights = request.constants.get(group.sources[1])
    if request.tile is None or weights is None:
        return None
    x, epilogue = request.tensors[group.sources[0]], request.epilogue(group.epilogue)
    work = winograd_work(group.heavy.primitive, x, weights, request.result, epilogue, request.target, request.tile)
    return None if work is None else overwriting(work, epilogue, request.result)


def _interleave(request: Request[HeavyGroup, VectorTarget]) -> Work | None:
    group = request.group
    assert isinstance(group.heavy.primitive, Convolve)
    weights = request.constants.get(group.sources[1])
    if weights is None:
        return None
    x, epilogue = request.tensors[group.sources[0]], request.epilogue(group.epilogue)
    work = interleave_work(group.heavy.primitive, x, weights, request.result, epilogue, request.target)
    return None if work is None else overwriting(work, epilogue, request.result)


def _convolve(request: Request[HeavyGroup, VectorTarget]) -> Work:
    return _convolved(request, partial(convolve_work, order=request.group.channel_order))


def _convolved(request: Request[HeavyGroup, VectorTarget], build: Callable[..., Work]) -> Work:
    group = request.group
    x, w = request.take(group.sources)
    epilogue = request.epilogue(group.epilogue)
    weights = request.constants.get(group.sources[1])
    work = build(group.heavy.primitive, x, w, request.result, epilogue, request.target, constant_w=weights)
    return overwriting(work, epilogue, request.result)


def _attention(request: Request[AttentionGroup, VectorTarget]) -> tuple[Part, ...]:
    group = request.group
    return attention_parts(group.attention, request.take(group.operands), request.result, request.target)


_SWEEP = (Template("row passes", "rows are passed over by vectors, long ones cut into pieces", _reduce),)

TEMPLATES: Templates = {
    **common.TEMPLATES,
    Map: (Template("map", "lanes along the innermost axis", _map),),
    Concat: (Template("concat", "each operand is copied to its place", _concat),),
    Scatter: (Template("scatter", "lanes along an axis on which no two points meet", _scatter),),
    Cumulate: (Template("cumulate", "rows one after the other, lanes side by side", _cumulate),),
    Sort: (Template("sort", "a row at a time", _sort),),
    Reduce: _SWEEP,
    ArgReduce: _SWEEP,
    Pool: (Template("pool", "channels or positions as lanes", _pool),),
    Contract: (Template("register tiles", "rows by columns in registers, sums in panels", _contract),),
    Convolve: (
        Template("byte products", "uint8 by int8: four products in one instruction, or one by one", _convolve_bytes),
        Template("winograd", "transformed tiles save more time than their weights cost memory", _winograd),
        Template("interleave", "a transposed convolution whose rectangles do not overlap", _interleave),
        Template("register tiles", "pixels by channels in registers, the input padded once", _convolve),
    ),
    RowGroup: (Template("row passes", "each pass over a row feeds the next", _rows),),
    AttentionGroup: (Template("streaming attention", "keys and values packed, then passed over once", _attention),),
}
