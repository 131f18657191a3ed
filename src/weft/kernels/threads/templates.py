"""The templates for lanes that are threads."""

from __future__ import annotations

from weft.ir.groups import AttentionGroup, RowGroup
from weft.ir.program import ArgReduce, Concat, Contract, Convolve, Cumulate, Map, Pool, Reduce, Scatter, Sort
from weft.ir.target import ThreadTarget
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.templates import Template, Templates
from weft.kernels.common import templates as common
from weft.kernels.common.templates import (
    building_attention,
    building_concats,
    building_contractions,
    building_convolutions,
    building_maps,
    building_pools,
    building_reductions,
    building_rows,
    building_steps,
)
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


def _depthwise(convolution: Convolution, target: ThreadTarget, _: int | None) -> Work | None:
    return depthwise_work(convolution, target) if depthwise_applies(convolution) else None


_CONVOLVE = building_convolutions(lambda convolution, target, _: convolve_work(convolution, target))
_SCATTER = building_steps(lambda primitive, given, made, target: scatter_work(primitive, given, made[0], target))
_CUMULATE = building_steps(lambda primitive, given, made, target: cumulate_work(primitive, given[0], made[0], target))
_SORT = building_steps(lambda primitive, given, made, target: sort_work(primitive, given[0], made[0], made[1], target))
_REDUCE = building_reductions(sweep_work)
_ROWS = building_rows(sweep_work, keeps=False)
_ATTENTION = building_attention(attention_parts)
_SWEEP = (Template("row passes", "rows by lanes or groups of lanes, long ones cut into pieces", _REDUCE),)

TEMPLATES: Templates = {
    **common.TEMPLATES,
    Map: (Template("map", "a thread for each element", building_maps(map_work)),),
    Concat: (Template("concat", "each operand is copied to its place", building_concats(region_launch)),),
    Scatter: (Template("scatter", "a thread for points that no other meets, or points sorted first", _SCATTER),),
    Cumulate: (Template("cumulate", "a row for a thread, or for a block", _CUMULATE),),
    Sort: (Template("sort", "elements as keys, counted or merged in runs", _SORT),),
    Reduce: _SWEEP,
    ArgReduce: _SWEEP,
    Pool: (Template("pool", "a thread for each element, or four channels", building_pools(pool_work)),),
    Contract: (
        Template(
            "tile product", "tiles of rows by columns, chosen by their time", building_contractions(contract_work)
        ),
    ),
    Convolve: (
        Template("depthwise", "few channels in a group: a thread for some pixels", building_convolutions(_depthwise)),
        Template("tile product", "positions by channels, tiles chosen by their time", _CONVOLVE),
    ),
    RowGroup: (Template("row passes", "a row for a lane, or for a group of them", _ROWS),),
    AttentionGroup: (Template("streaming attention", "tiles of keys in shared memory", _ATTENTION),),
}
