"""The templates for lanes that are elements of vectors."""

from __future__ import annotations

from weft.ir.groups import AttentionGroup, HeavyGroup, RowGroup
from weft.ir.program import ArgReduce, Concat, Contract, Convolve, Cumulate, Map, Pool, Reduce, Scatter, Sort
from weft.ir.target import VectorTarget
from weft.ir.work import PAIR_PRODUCTS
from weft.kernels.build.contraction import Contraction, ContractOperand
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.templates import Request, Template, Templates, overwriting
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
from weft.kernels.vector.attention_parts import attention_parts
from weft.kernels.vector.block_products import block_product_work
from weft.kernels.vector.byte_products import byte_convolve_work, dot_product_work
from weft.kernels.vector.contract import contract_work
from weft.kernels.vector.convolve import convolve_work
from weft.kernels.vector.cumulate import cumulate_work
from weft.kernels.vector.interleave import interleave_work
from weft.kernels.vector.maps import map_work, region_launch
from weft.kernels.vector.pair_products import is_pair_product, pair_contract_work, pair_convolve_work
from weft.kernels.vector.pool import pool_work
from weft.kernels.vector.reduce import sweep_work
from weft.kernels.vector.scatter import scatter_work
from weft.kernels.vector.sort import sort_work
from weft.kernels.vector.turned_results import turning
from weft.kernels.vector.winograd import winograd_work


def _contract(contraction: Contraction, target: VectorTarget) -> Work:
    """Elements of two types are bytes."""
    build = contract_work if contraction.left.dtype is contraction.right.dtype else dot_product_work
    return build(contraction, target)


def _contract_pairs(contraction: Contraction, target: VectorTarget) -> Work | None:
    rounded = is_pair_product(contraction.left.dtype, contraction.right.dtype)
    return pair_contract_work(contraction, target) if rounded else None


def _contract_blocks(request: Request[HeavyGroup, VectorTarget]) -> Work | None:
    group, weights = request.group, request.group.unpacked
    if weights is None:
        return None
    contract, maker = group.heavy.primitive, group.steps[0]
    assert isinstance(contract, Contract)
    place = group.heavy.operands.index(group.sources[0])
    labels = (contract.left, contract.right) if place == 0 else (contract.right, contract.left)
    left = ContractOperand(0, request.tensors[group.sources[0]], labels[0], None)
    numbers = maker.operands[weights.numbers]
    others = [value for number, value in enumerate(maker.operands) if number != weights.numbers]
    constants = [request.constants[value] for value in (numbers, *others)]
    epilogue = request.epilogue(group.epilogue)
    column = labels[1][1 - weights.axis]
    work = block_product_work(
        left, contract.output, column, weights, constants, request.result, epilogue, request.target
    )
    return overwriting(work, epilogue, request.result)


def _convolve_pairs(convolution: Convolution, target: VectorTarget, _: int | None) -> Work | None:
    rounded = is_pair_product(convolution.x.dtype, convolution.w.dtype)
    return pair_convolve_work(convolution, target) if rounded else None


def _convolve_bytes(convolution: Convolution, target: VectorTarget, _: int | None) -> Work | None:
    return None if convolution.x.dtype is convolution.w.dtype else byte_convolve_work(convolution, target)


def _winograd(convolution: Convolution, target: VectorTarget, tile: int | None) -> Work | None:
    return None if tile is None else winograd_work(convolution, target, tile)


_INTERLEAVE = building_convolutions(lambda convolution, target, _: interleave_work(convolution, target))
_CONVOLVE = building_convolutions(turning(lambda convolution, target, _: convolve_work(convolution, target)))
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
    Contract: (
        Template("block products", "weights of few bits become numbers in registers", _contract_blocks),
        Template(PAIR_PRODUCTS, "bfloat16, two products at a time", building_contractions(_contract_pairs)),
        Template("register tiles", "rows by columns in registers, sums in panels", building_contractions(_contract)),
    ),
    Convolve: (
        Template(PAIR_PRODUCTS, "bfloat16, two products at a time", building_convolutions(turning(_convolve_pairs))),
        Template(
            "byte products", "uint8 by int8, four products at a time", building_convolutions(turning(_convolve_bytes))
        ),
        Template("winograd", "transformed tiles are worth their memory", building_convolutions(turning(_winograd))),
        Template("interleave", "a transposed convolution whose rectangles do not overlap", _INTERLEAVE),
        Template("register tiles", "pixels by channels in registers, the input padded once", _CONVOLVE),
    ),
    RowGroup: (Template("row passes", "each pass over a row feeds the next", _ROWS),),
    AttentionGroup: (Template("streaming attention", "keys and values packed, then passed over once", _ATTENTION),),
}
