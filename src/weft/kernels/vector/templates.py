"""The templates for lanes that are elements of vectors."""

from __future__ import annotations

from weft.ir.groups import AttentionGroup, HeavyGroup, RowGroup
from weft.ir.program import ArgReduce, Concat, Contract, Convolve, Cumulate, Map, Pool, Reduce, Scatter, Sort
from weft.ir.target import VectorTarget
from weft.kernels.build.templates import Request, Template, Templates
from weft.kernels.common import templates as common
from weft.kernels.common.templates import (
    building_attention,
    building_concats,
    building_heavy,
    building_maps,
    building_pools,
    building_reductions,
    building_rows,
    building_steps,
)
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

Heavy = Request[HeavyGroup, VectorTarget]


def _contract(request: Heavy) -> Work:
    left, right = request.take(request.group.sources)
    constant_left, constant_right = request.constants_of(request.group.sources)
    assert isinstance(request.group.heavy.primitive, Contract)
    build = contract_work if left.dtype is right.dtype else dot_product_work
    return build(
        request.group.heavy.primitive,
        left,
        right,
        request.result,
        request.epilogue(request.group.epilogue),
        request.target,
        constant_left=constant_left,
        constant_right=constant_right,
    )


def _convolve_bytes(request: Heavy) -> Work | None:
    assert isinstance(request.group.heavy.primitive, Convolve)
    x, w = request.take(request.group.sources)
    if x.dtype is w.dtype:
        return None
    ends = request.result, request.epilogue(request.group.epilogue), request.target
    _, weights = request.constants_of(request.group.sources)
    return byte_convolve_work(request.group.heavy.primitive, x, w, *ends, constant_w=weights)


def _winograd(request: Heavy) -> Work | None:
    assert isinstance(request.group.heavy.primitive, Convolve)
    _, weights = request.constants_of(request.group.sources)
    if request.tile is None or weights is None:
        return None
    ends = request.result, request.epilogue(request.group.epilogue), request.target
    x = request.tensors[request.group.sources[0]]
    return winograd_work(request.group.heavy.primitive, x, weights, *ends, request.tile)


def _interleave(request: Heavy) -> Work | None:
    assert isinstance(request.group.heavy.primitive, Convolve)
    _, weights = request.constants_of(request.group.sources)
    if weights is None:
        return None
    ends = request.result, request.epilogue(request.group.epilogue), request.target
    return interleave_work(request.group.heavy.primitive, request.tensors[request.group.sources[0]], weights, *ends)


def _convolve(request: Heavy) -> Work:
    assert isinstance(request.group.heavy.primitive, Convolve)
    x, w = request.take(request.group.sources)
    _, weights = request.constants_of(request.group.sources)
    ends = request.result, request.epilogue(request.group.epilogue), request.target
    order = request.group.channel_order
    return convolve_work(request.group.heavy.primitive, x, w, *ends, constant_w=weights, order=order)


_SCATTER = building_steps(lambda primitive, given, made, target: scatter_work(primitive, given, made[0], target))
_CUMULATE = building_steps(lambda primitive, given, made, target: cumulate_work(primitive, given[0], made[0], target))
_SORT = building_steps(lambda primitive, given, made, _: sort_work(primitive, *given, *made))
_REDUCE = building_reductions(sweep_work)
_ROWS = building_rows(sweep_work, keeps=True)
_ATTENTION = building_attention(attention_parts)
_SWEEP = (Template("row passes", "rows are passed over by vectors, long ones cut into pieces", _REDUCE),)

TEMPLATES: Templates = {
    **common.TEMPLATES,
    Map: (Template("map", "lanes along the innermost axis", building_maps(map_work)),),
    Concat: (Template("concat", "each operand is copied to its place", building_concats(region_launch)),),
    Scatter: (Template("scatter", "lanes along an axis on which no two points meet", _SCATTER),),
    Cumulate: (Template("cumulate", "rows one after the other, lanes side by side", _CUMULATE),),
    Sort: (Template("sort", "a row at a time", _SORT),),
    Reduce: _SWEEP,
    ArgReduce: _SWEEP,
    Pool: (Template("pool", "channels or positions as lanes", building_pools(pool_work)),),
    Contract: (Template("register tiles", "rows by columns in registers, sums in panels", building_heavy(_contract)),),
    Convolve: (
        Template("byte products", "uint8 by int8, four products at a time", building_heavy(_convolve_bytes)),
        Template("winograd", "transformed tiles are worth their memory", building_heavy(_winograd)),
        Template("interleave", "a transposed convolution whose rectangles do not overlap", building_heavy(_interleave)),
        Template("register tiles", "pixels by channels in registers, the input padded once", building_heavy(_convolve)),
    ),
    RowGroup: (Template("row passes", "each pass over a row feeds the next", _ROWS),),
    AttentionGroup: (Template("streaming attention", "keys and values packed, then passed over once", _ATTENTION),),
}
