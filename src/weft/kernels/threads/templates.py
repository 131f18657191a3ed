"""The templates for lanes that are threads."""

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
from weft.ir.target import ThreadTarget
from weft.kernels.build.templates import Part, Request, Template, Templates, overwriting
from weft.kernels.common import templates as common
from weft.kernels.common.concat import concat_work
from weft.kernels.common.reduce import reduce_sweep
from weft.kernels.common.rows import rows_sweep
from weft.kernels.lower.tensors import Work
from weft.kernels.threads.attention_parts import attention_parts
from weft.kernels.threads.contract import contract_work
from weft.kernels.threads.convolve import convolve_work
from weft.kernels.threads.cumulate import cumulate_work
from weft.kernels.threads.depthwise import depthwise_applies, depthwise_work
from weft.kernels.threads.maps import map_work, region_launch
from weft.kernels.threads.pool import pool_work
from weft.kernels.threads.reduce import sweep_work
from weft.kernels.threads.scatter import scatter_work
from weft.kernels.threads.sort import sort_work


def _map(request: Request[MapGroup, ThreadTarget]) -> Work:
    step = request.step
    assert isinstance(step.primitive, Map)
    return map_work(step.primitive.expression, request.take(step.operands), request.result, request.target)


def _concat(request: Request[StepGroup, ThreadTarget]) -> Work:
    step = request.step
    assert isinstance(step.primitive, Concat)
    return concat_work(step.primitive, request.take(step.operands), request.result, request.target, region_launch)


def _scatter(request: Request[StepGroup, ThreadTarget]) -> Work:
    step = request.step
    assert isinstance(step.primitive, Scatter)
    return scatter_work(step.primitive, request.take(step.operands), request.result, request.target)


def _cumulate(request: Request[StepGroup, ThreadTarget]) -> Work:
    step = request.step
    assert isinstance(step.primitive, Cumulate)
    return cumulate_work(step.primitive, request.tensors[step.operands[0]], request.result, request.target)


def _sort(request: Request[StepGroup, ThreadTarget]) -> Work:
    step = request.step
    assert isinstance(step.primitive, Sort)
    values, positions = request.take(step.results)
    return sort_work(step.primitive, request.tensors[step.operands[0]], values, positions, request.target)


def _reduce(request: Request[ReduceGroup, ThreadTarget]) -> Work:
    return sweep_work(reduce_sweep(request), request.target)


def _rows(request: Request[RowGroup, ThreadTarget]) -> Work:
    return sweep_work(rows_sweep(request, keeps=False), request.target)


def _pool(request: Request[HeavyGroup, ThreadTarget]) -> Work:
    group = request.group
    assert isinstance(group.heavy.primitive, Pool)
    source = request.tensors[group.sources[0]]
    epilogue = request.epilogue(group.epilogue)
    return pool_work(group.heavy.primitive, source, request.result, request.target, epilogue)


def _contract(request: Request[HeavyGroup, ThreadTarget]) -> Work:
    group = request.group
    assert isinstance(group.heavy.primitive, Contract)
    left, right = request.take(group.sources)
    epilogue = request.epilogue(group.epilogue)
    constants = [request.constants.get(value) for value in group.sources]
    work = contract_work(
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


def _depthwise(request: Request[HeavyGroup, ThreadTarget]) -> Work | None:
    group = request.group
    assert isinstance(group.heavy.primitive, Convolve)
    x, w = request.take(group.sources)
    one_type = x.dtype is w.dtype and group.channel_order is None
    if not one_type or not depthwise_applies(group.heavy.primitive, x.shape, w.shape):
        return None
    return _convolved(request, depthwise_work)


def _convolve(request: Request[HeavyGroup, ThreadTarget]) -> Work:
    return _convolved(request, partial(convolve_work, order=request.group.channel_order))


def _convolved(request: Request[HeavyGroup, ThreadTarget], build: Callable[..., Work]) -> Work:
    group = request.group
    x, w = request.take(group.sources)
    epilogue = request.epilogue(group.epilogue)
    weights = request.constants.get(group.sources[1])
    work = build(group.heavy.primitive, x, w, request.result, epilogue, request.target, constant_w=weights)
    return overwriting(work, epilogue, request.result)


def _attention(request: Request[AttentionGroup, ThreadTarget]) -> tuple[Part, ...]:
    group = request.group
    return attention_parts(group.attention, request.take(group.operands), request.result, request.target)


_SWEEP = (Template("row passes", "rows by lanes or groups of lanes, long ones cut into pieces", _reduce),)

TEMPLATES: Templates = {
    **common.TEMPLATES,
    Map: (Template("map", "a thread for each element", _map),),
    Concat: (Template("concat", "each operand is copied to its place", _concat),),
    Scatter: (Template("scatter", "a thread for points that no other meets, or points sorted first", _scatter),),
    Cumulate: (Template("cumulate", "a row for a thread, or for a block", _cumulate),),
    Sort: (Template("sort", "elements as keys, counted or merged in runs", _sort),),
    Reduce: _SWEEP,
    ArgReduce: _SWEEP,
    Pool: (Template("pool", "a thread for each element, or four channels", _pool),),
    Contract: (Template("tile product", "tiles of rows by columns, chosen by their time", _contract),),
    Convolve: (
        Template("depthwise", "few channels in a group: a thread for some pixels and features", _depthwise),
        Template("tile product", "positions by channels, tiles chosen by their time", _convolve),
    ),
    RowGroup: (Template("row passes", "a row for a lane, or for a group of them", _rows),),
    AttentionGroup: (Template("streaming attention", "tiles of keys in shared memory", _attention),),
}
