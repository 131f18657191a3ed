"""How requests become calls of builders, for both families, and the templates whose kernels suit both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.ir.groups import AttentionGroup, HeavyGroup, MapGroup, ReduceGroup, RowGroup, StepGroup
from weft.ir.program import Contract, Convolve, Dims, Map, Random
from weft.ir.target import ThreadTarget, VectorTarget
from weft.kernels.build.contraction import Contraction
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.row_passes import Sweep
from weft.kernels.build.templates import Built, Part, Request, Template, Templates, overwriting
from weft.kernels.common.concat import MapLaunch, concat_work
from weft.kernels.common.random import random_work
from weft.kernels.common.reduce import reduce_sweep
from weft.kernels.common.rows import rows_sweep
from weft.kernels.common.sizes import sizes_work
from weft.kernels.lower.tensors import StoredTensor, Work

Building = Callable[[Request[Any, Any]], Built | None]


def building_maps(build: Callable[..., Work]) -> Building:
    def work(request: Request[MapGroup, Any]) -> Work:
        (step,) = request.group.steps
        assert isinstance(step.primitive, Map)
        return build(step.primitive.expression, request.take(step.operands), request.result, request.target)

    return work


def building_steps(build: Callable[[Any, list[StoredTensor], list[StoredTensor], Any], Work]) -> Building:
    """`build` takes the primitive of the group's only step, its operands and its results."""

    def work(request: Request[StepGroup, Any]) -> Work:
        (step,) = request.group.steps
        return build(step.primitive, request.take(step.operands), request.take(step.results), request.target)

    return work


def building_concats(build: MapLaunch[Any]) -> Building:
    return building_steps(lambda primitive, given, made, target: concat_work(primitive, given, made[0], target, build))


def building_reductions(build: Callable[[Sweep, Any], Work]) -> Building:
    def work(request: Request[ReduceGroup, Any]) -> Work:
        return build(reduce_sweep(request), request.target)

    return work


def building_rows(build: Callable[[Sweep, Any], Work], *, keeps: bool) -> Building:
    """`keeps`: costly full values stay in memory for later passes."""

    def work(request: Request[RowGroup, Any]) -> Work:
        return build(rows_sweep(request, keeps=keeps), request.target)

    return work


def building_contractions(build: Callable[[Contraction, Any], Work | None]) -> Building:
    def work(request: Request[HeavyGroup, Any]) -> Work | None:
        group = request.group
        assert isinstance(group.heavy.primitive, Contract)
        left, right = request.take(group.sources)
        epilogue = request.epilogue(group.epilogue)
        constants = [request.constants.get(value) for value in group.sources]
        contraction = Contraction(group.heavy.primitive, left, right, request.result, epilogue, *constants)
        made = build(contraction, request.target)
        return None if made is None else overwriting(made, epilogue, request.result)

    return work


def building_convolutions(build: Callable[[Convolution, Any, int | None], Work | None]) -> Building:
    """`build` is also given the size of transformed tiles, if there are to be any."""

    def work(request: Request[HeavyGroup, Any]) -> Work | None:
        group = request.group
        assert isinstance(group.heavy.primitive, Convolve)
        x, w = request.take(group.sources)
        epilogue, weights = request.epilogue(group.epilogue), request.constants.get(group.sources[1])
        convolution = Convolution(group.heavy.primitive, x, w, request.result, epilogue, weights, group.channel_order)
        made = build(convolution, request.target, request.tile)
        return None if made is None else overwriting(made, epilogue, request.result)

    return work


def building_pools(build: Callable[..., Work]) -> Building:
    def work(request: Request[HeavyGroup, Any]) -> Work:
        group = request.group
        source, epilogue = request.tensors[group.sources[0]], request.epilogue(group.epilogue)
        return build(group.heavy.primitive, source, request.result, request.target, epilogue)

    return work


def building_attention(build: Callable[..., tuple[Part, ...]]) -> Building:
    def parts(request: Request[AttentionGroup, Any]) -> tuple[Part, ...]:
        group = request.group
        return build(group.attention, request.take(group.operands), request.result, request.target)

    return parts


def _random(primitive: Any, _: object, results: Sequence[StoredTensor], target: VectorTarget | ThreadTarget) -> Work:
    return random_work(primitive, results[0], target)


def _sizes(primitive: Any, _: object, results: Sequence[StoredTensor], target: VectorTarget | ThreadTarget) -> Work:
    return sizes_work(primitive, results[0], target)


TEMPLATES: Templates = {
    Dims: (Template("sizes", "each element is a parameter of the kernel", building_steps(_sizes)),),
    Random: (Template("random", "a lane for each counter", building_steps(_random)),),
}
