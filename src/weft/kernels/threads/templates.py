"""The templates of the family whose lanes are threads."""

from __future__ import annotations

from weft.ir.groups import AttentionGroup, HeavyGroup, RowGroup
from weft.ir.program import Contract, Convolve, Cumulate, Map, Pool, Reduce, Scatter, Sort
from weft.ir.target import ThreadTarget
from weft.kernels.build.contraction import ContractOperand
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.templates import Request, Template, Templates, mark_overwritable
from weft.kernels.common.templates import adapt_contraction, adapt_convolution, build_shared_templates
from weft.kernels.lower.tensors import Work
from weft.kernels.threads.attention_work import build_attention
from weft.kernels.threads.block_products import build_block_product, build_fixed_product
from weft.kernels.threads.contract import build_contraction
from weft.kernels.threads.convolve import build_convolution
from weft.kernels.threads.cumulate import build_cumulate
from weft.kernels.threads.depthwise import build_depthwise, is_depthwise
from weft.kernels.threads.maps import build_map, build_map_launch
from weft.kernels.threads.pool import build_pool
from weft.kernels.threads.reduce import build_sweep
from weft.kernels.threads.scatter import build_scatter
from weft.kernels.threads.sort import build_sort


def _depthwise(convolution: Convolution, target: ThreadTarget, _: int | None) -> Work | None:
    return build_depthwise(convolution, target) if is_depthwise(convolution) else None


def _tile_product(convolution: Convolution, target: ThreadTarget, _: int | None) -> Work:
    return build_convolution(convolution, target)


def _contract_blocks(request: Request[HeavyGroup, ThreadTarget]) -> Work | None:
    group, weights = request.group, request.group.block_weights
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
    work = build_block_product(
        left, contract.output, column, weights, constants, request.result, epilogue, request.target
    )
    return mark_overwritable(work, epilogue, request.result)


_REASONS = {
    Map: "a thread for each element",
    Scatter: "a thread for each point if none collide, otherwise points are sorted first",
    Cumulate: "a row for a thread, or for a block",
    Sort: "elements as keys, counted or merged in runs",
    Reduce: "rows by lanes or groups of lanes, long ones split",
    Pool: "a thread for each element, or four channels",
    RowGroup: "a row for a lane, or for a group of them",
    AttentionGroup: "tiles of keys in shared memory",
}

TEMPLATES: Templates = {
    **build_shared_templates(
        _REASONS,
        build_map=build_map,
        build_map_launch=build_map_launch,
        build_scatter=build_scatter,
        build_cumulate=build_cumulate,
        build_sort=build_sort,
        build_sweep=build_sweep,
        build_pool=build_pool,
        build_attention=build_attention,
        stores_full_values=False,
    ),
    Contract: (
        Template("block products", "weights of few bits become numbers in registers", _contract_blocks),
        Template(
            "fixed order",
            "rows have the same bits whatever other rows there are",
            adapt_contraction(build_fixed_product),
        ),
        Template(
            "tile product",
            "tiles of rows by columns, the fastest predicted tiling",
            adapt_contraction(build_contraction),
        ),
    ),
    Convolve: (
        Template("depthwise", "few channels in a group: a thread for some pixels", adapt_convolution(_depthwise)),
        Template(
            "tile product", "positions by channels, the fastest predicted tiling", adapt_convolution(_tile_product)
        ),
    ),
}
