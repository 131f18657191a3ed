"""Adapters from requests to the builders of a family, and the templates that both families have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.ir.dtypes import DType
from weft.ir.groups import AttentionGroup, HeavyGroup, MapGroup, ReduceGroup, RowGroup, StepGroup
from weft.ir.program import (
    ArgReduce,
    Concat,
    Contract,
    Convolve,
    Cumulate,
    Dims,
    Map,
    Pool,
    Random,
    Reduce,
    Scatter,
    Sort,
    Step,
)
from weft.kernels.build.contraction import Contraction
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.row_passes import Sweep
from weft.kernels.build.templates import Built, Part, Request, Template, Templates, mark_overwritable
from weft.kernels.common.concat import MapLaunch, build_concat
from weft.kernels.common.random import build_random
from weft.kernels.common.reduce import plan_reduce_group
from weft.kernels.common.rows import plan_row_group
from weft.kernels.common.sizes import build_sizes
from weft.kernels.lower.tensors import StoredTensor, Work

TemplateBuilder = Callable[[Request[Any, Any]], Built | None]


def build_shared_templates(
    reasons: Mapping[type, str],
    *,
    build_map: Callable[..., Work],
    build_map_launch: MapLaunch[Any],
    build_scatter: Callable[..., Work],
    build_cumulate: Callable[..., Work],
    build_sort: Callable[..., Work],
    build_sweep: Callable[[Sweep, Any], Work],
    build_pool: Callable[..., Work],
    build_attention: Callable[..., tuple[Part, ...]],
    stores_full_values: bool,
) -> Templates:
    """Build the templates that both families have, from the builders of one; `reasons` say how its kernels work.

    `stores_full_values`: row groups store costly full values for later passes.
    """

    def map_work(request: Request[MapGroup, Any]) -> Work:
        (step,) = request.group.steps
        assert isinstance(step.primitive, Map)
        return build_map(step.primitive.expression, request.take(step.operands), request.result, request.target)

    def reduce_work(request: Request[ReduceGroup, Any]) -> Work:
        return build_sweep(plan_reduce_group(request), request.target)

    def row_work(request: Request[RowGroup, Any]) -> Work:
        return build_sweep(plan_row_group(request, stores=stores_full_values), request.target)

    def pool_work(request: Request[HeavyGroup, Any]) -> Work:
        group = request.group
        source, epilogue = request.tensors[group.sources[0]], request.epilogue(group.epilogue)
        return build_pool(group.heavy.primitive, source, request.result, request.target, epilogue)

    def attention_work(request: Request[AttentionGroup, Any]) -> tuple[Part, ...]:
        group = request.group
        return build_attention(group.attention, request.take(group.operands), request.result, request.target)

    concat_work = _adapt_step(
        lambda primitive, operands, results, target: build_concat(
            primitive, operands, results[0], target, build_map_launch
        )
    )
    scatter_work = _adapt_step(
        lambda primitive, operands, results, target: build_scatter(primitive, operands, results[0], target)
    )
    cumulate_work = _adapt_step(
        lambda primitive, operands, results, target: build_cumulate(primitive, operands[0], results[0], target)
    )
    sort_work = _adapt_step(
        lambda primitive, operands, results, target: build_sort(primitive, *operands, *results, target)
    )
    sizes_work = _adapt_step(lambda primitive, _, results, target: build_sizes(primitive, results[0], target))
    random_work = _adapt_step(lambda primitive, _, results, target: build_random(primitive, results[0], target))
    return {
        Dims: (Template("sizes", "each element is a parameter of the kernel", sizes_work),),
        Random: (Template("random", "a lane for each counter", random_work),),
        Map: (Template("map", reasons[Map], map_work),),
        Concat: (Template("concat", "each operand is copied to its place", concat_work),),
        Scatter: (Template("scatter", reasons[Scatter], scatter_work),),
        Cumulate: (Template("cumulate", reasons[Cumulate], cumulate_work),),
        Sort: (Template("sort", reasons[Sort], sort_work),),
        Reduce: (Template("row passes", reasons[Reduce], reduce_work),),
        ArgReduce: (Template("row passes", reasons[Reduce], reduce_work),),
        Pool: (Template("pool", reasons[Pool], pool_work),),
        RowGroup: (Template("row passes", reasons[RowGroup], row_work),),
        AttentionGroup: (Template("streaming attention", reasons[AttentionGroup], attention_work),),
    }


def _has_wide_result(step: Step) -> bool:
    """Whether a product of narrower floats has a result of float32."""
    return step.results[0].dtype is DType.float32 and all(value.dtype.bits < 32 for value in step.operands)


def _adapt_step(build: Callable[[Any, list[StoredTensor], list[StoredTensor], Any], Work]) -> TemplateBuilder:
    """Adapt `build`, which takes the primitive of the group's only step, its operands and its results."""

    def build_work(request: Request[StepGroup, Any]) -> Work:
        (step,) = request.group.steps
        return build(step.primitive, request.take(step.operands), request.take(step.results), request.target)

    return build_work


def adapt_contraction(build: Callable[[Contraction, Any], Work | None]) -> TemplateBuilder:
    def build_work(request: Request[HeavyGroup, Any]) -> Work | None:
        group = request.group
        assert isinstance(group.heavy.primitive, Contract)
        left, right = request.take(group.sources)
        epilogue = request.epilogue(group.epilogue)
        constant_left, constant_right = (request.constants.get(value) for value in group.sources)
        contraction = Contraction(
            group.heavy.primitive,
            left,
            right,
            request.result,
            epilogue,
            constant_left,
            constant_right,
            has_wide_result=_has_wide_result(group.heavy),
        )
        work = build(contraction, request.target)
        return None if work is None else mark_overwritable(work, epilogue, request.result)

    return build_work


def adapt_convolution(build: Callable[[Convolution, Any, int | None], Work | None]) -> TemplateBuilder:
    """Adapt `build`, which also takes the size of Winograd tiles, or None for a direct convolution."""

    def build_work(request: Request[HeavyGroup, Any]) -> Work | None:
        group = request.group
        assert isinstance(group.heavy.primitive, Convolve)
        x, w = request.take(group.sources)
        epilogue, weights = request.epilogue(group.epilogue), request.constants.get(group.sources[1])
        convolution = Convolution(
            group.heavy.primitive,
            x,
            w,
            request.result,
            epilogue,
            weights,
            group.channel_order,
            has_wide_result=_has_wide_result(group.heavy),
        )
        work = build(convolution, request.target, request.tile)
        return None if work is None else mark_overwritable(work, epilogue, request.result)

    return build_work
