"""The templates for lanes that are elements of vectors."""

from __future__ import annotations

from collections.abc import Callable

from weft.ir.dtypes import DType
from weft.ir.groups import AttentionGroup, HeavyGroup, RowGroup
from weft.ir.program import Contract, Convolve, Cumulate, Map, Pool, Reduce, Scatter, Sort
from weft.ir.target import VectorTarget
from weft.ir.work import PAIR_PRODUCTS
from weft.kernels.build.contraction import Contraction, ContractOperand
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.templates import Request, Template, Templates, mark_overwritable
from weft.kernels.common.templates import adapt_contraction, adapt_convolution, build_shared_templates
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.vector.attention_parts import attention_parts
from weft.kernels.vector.block_products import build_block_product
from weft.kernels.vector.byte_products import build_byte_contraction, build_byte_convolution
from weft.kernels.vector.code_products import SOURCES, build_code_product
from weft.kernels.vector.contract import build_contraction
from weft.kernels.vector.convolve import build_convolution
from weft.kernels.vector.cumulate import build_cumulate
from weft.kernels.vector.interleave import build_interleave
from weft.kernels.vector.maps import build_map, build_map_launch
from weft.kernels.vector.pair_products import build_pair_contraction, build_pair_convolution, is_pair_product
from weft.kernels.vector.pool import build_pool
from weft.kernels.vector.reduce import build_sweep
from weft.kernels.vector.scatter import build_scatter
from weft.kernels.vector.sort import build_sort
from weft.kernels.vector.transposed_output import allow_transposed_output
from weft.kernels.vector.winograd import build_winograd


def _contract(contraction: Contraction, target: VectorTarget) -> Work:
    """Build a contraction; integers of different dtypes are uint8 and int8, floats of different ones are converted."""
    left, right = contraction.left.dtype, contraction.right.dtype
    build = build_contraction if left is right or left.is_float else build_byte_contraction
    return build(contraction, target)


def _contract_pairs(contraction: Contraction, target: VectorTarget) -> Work | None:
    """Build a contraction of bfloat16 and constant float32; constant bfloat16 is not rounded, and converted instead."""
    operands = contraction.operands()
    rounded = is_pair_product(*(operand.tensor.dtype for operand in operands)) and any(
        operand.constant is not None and operand.tensor.dtype is DType.float32 for operand in operands
    )
    return build_pair_contraction(contraction, target) if rounded else None


def _contract_codes(request: Request[HeavyGroup, VectorTarget]) -> Work | None:
    return None if request.group.block_rows is None else _build_block_work(request, build_code_product, SOURCES)


def _contract_blocks(request: Request[HeavyGroup, VectorTarget]) -> Work | None:
    return None if request.group.block_weights is None else _build_block_work(request, build_block_product, 2)


def _build_block_work(request: Request[HeavyGroup, VectorTarget], build: Callable[..., Work], sources: int) -> Work:
    group, weights = request.group, request.group.block_weights
    contract = group.heavy.primitive
    assert isinstance(contract, Contract) and weights is not None
    maker = next(step for step in group.steps if group.sources[-1] in step.operands)
    place = 1 - group.heavy.operands.index(maker.results[0])
    labels = (contract.left, contract.right) if place == 0 else (contract.right, contract.left)
    left = ContractOperand(0, request.tensors[group.sources[0]], labels[0], None)
    numbers = maker.operands[weights.numbers]
    others = [value for number, value in enumerate(maker.operands) if number != weights.numbers]
    constants = [request.constants[value] for value in (numbers, *others)]
    epilogue = request.epilogue(group.epilogue)
    column = labels[1][1 - weights.axis]
    work = build(left, contract.output, column, weights, constants, request.result, epilogue, request.target)
    return mark_overwritable(work, epilogue, request.result, sources)


def _convolve_pairs(convolution: Convolution, target: VectorTarget, _: int | None) -> Work | None:
    rounded = is_pair_product(convolution.x.dtype, convolution.w.dtype)
    return build_pair_convolution(convolution, target) if rounded else None


def _convolve_bytes(convolution: Convolution, target: VectorTarget, _: int | None) -> Work | None:
    return None if convolution.x.dtype is convolution.w.dtype else build_byte_convolution(convolution, target)


def _winograd(convolution: Convolution, target: VectorTarget, tile: int | None) -> Work | None:
    return None if tile is None else build_winograd(convolution, target, tile)


def _sort(primitive: Sort, operand: StoredTensor, values: StoredTensor, positions: StoredTensor, _: object) -> Work:
    return build_sort(primitive, operand, values, positions)


_INTERLEAVE = adapt_convolution(lambda convolution, target, _: build_interleave(convolution, target))
_CONVOLVE = adapt_convolution(
    allow_transposed_output(lambda convolution, target, _: build_convolution(convolution, target))
)
_REASONS = {
    Map: "lanes along the innermost axis",
    Scatter: "lanes along an axis on which no two points meet",
    Cumulate: "rows one after the other, lanes side by side",
    Sort: "a row at a time",
    Reduce: "rows are passed over by vectors, long ones split",
    Pool: "channels or positions as lanes",
    RowGroup: "each pass over a row feeds the next",
    AttentionGroup: "keys and values packed, then passed over once",
}

TEMPLATES: Templates = {
    **build_shared_templates(
        _REASONS,
        build_map=build_map,
        build_map_launch=build_map_launch,
        build_scatter=build_scatter,
        build_cumulate=build_cumulate,
        build_sort=_sort,
        build_sweep=build_sweep,
        build_pool=build_pool,
        build_attention=attention_parts,
        stores_full_values=True,
    ),
    Contract: (
        Template("code products", "rows and weights in blocks, multiplied as integers", _contract_codes),
        Template("block products", "weights of few bits become numbers in registers", _contract_blocks),
        Template(PAIR_PRODUCTS, "bfloat16, two products at a time", adapt_contraction(_contract_pairs)),
        Template("register tiles", "rows by columns in registers, sums in panels", adapt_contraction(_contract)),
    ),
    Convolve: (
        Template(
            PAIR_PRODUCTS,
            "bfloat16, two products at a time",
            adapt_convolution(allow_transposed_output(_convolve_pairs)),
        ),
        Template(
            "byte products",
            "uint8 by int8, four products at a time",
            adapt_convolution(allow_transposed_output(_convolve_bytes)),
        ),
        Template(
            "winograd",
            "transformed tiles are worth their memory",
            adapt_convolution(allow_transposed_output(_winograd)),
        ),
        Template("interleave", "a transposed convolution whose rectangles do not overlap", _INTERLEAVE),
        Template("register tiles", "pixels by channels in registers, the input padded once", _CONVOLVE),
    ),
}
