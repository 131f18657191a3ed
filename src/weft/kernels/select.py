"""Which builder makes the kernels for a group of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.errors import InternalError
from weft.fuse.channel_order import channel_order
from weft.fuse.grouping import Group
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import row_major
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
    Reshape,
    Scatter,
    Sort,
    Step,
    Value,
)
from weft.ir.scalar import Index, Load, Scalar, rebuild
from weft.ir.target import Target
from weft.ir.types import TensorType
from weft.kernels.build.in_place import overwritable
from weft.kernels.build.loop_nest import computed_dtypes
from weft.kernels.common.concat import concat_work
from weft.kernels.common.random import random_work
from weft.kernels.common.sizes import sizes_work
from weft.kernels.lower.tensors import Epilogue, Reference, Tensor, Work
from weft.kernels.threads import contract as thread_contract
from weft.kernels.threads import convolve as thread_convolve
from weft.kernels.threads import cumulate as thread_cumulate
from weft.kernels.threads import maps as thread_maps
from weft.kernels.threads import pool as thread_pool
from weft.kernels.threads import reduce as thread_reduce
from weft.kernels.threads import scatter as thread_scatter
from weft.kernels.threads import sort as thread_sort
from weft.kernels.threads.depthwise import depthwise_applies, depthwise_work
from weft.kernels.vector import contract as vector_contract
from weft.kernels.vector import convolve as vector_convolve
from weft.kernels.vector import cumulate as vector_cumulate
from weft.kernels.vector import maps as vector_maps
from weft.kernels.vector import pool as vector_pool
from weft.kernels.vector import reduce as vector_reduce
from weft.kernels.vector import scatter as vector_scatter
from weft.kernels.vector import sort as vector_sort
from weft.kernels.vector.byte_products import byte_convolve_work, dot_product_work
from weft.kernels.vector.interleave import interleave_work
from weft.kernels.vector.winograd import winograd_work

Array = np.ndarray[Any, Any]
NATIVE_PRIMITIVES = (
    Map, Reshape, Concat, Dims, Reduce, ArgReduce, Contract, Convolve, Pool, Cumulate, Sort, Scatter,
    Random,
)  # fmt: skip
NATIVE_TYPES = frozenset(dtype for dtype in DType if dtype.is_integer or dtype.is_float or dtype is DType.bool)


def is_native(group: Group, target: Target) -> bool:
    """Whether there are kernels for a group; the host does the others."""
    values = [value for step in group.steps for value in (*step.operands, *step.results)]
    computed = frozenset().union(*map(computed_types, group.steps))
    if any(isinstance(step.primitive, Random) and step.primitive.seed is None for step in group.steps):
        return False
    if computed & target.missing_types or not computed <= NATIVE_TYPES:
        return False
    if isinstance(group.steps[0].primitive, Map) and len(group.operands) + 2 > target.most_buffers:
        return False
    return all(isinstance(step.primitive, NATIVE_PRIMITIVES) for step in group.steps) and all(
        isinstance(value.type, TensorType) and value.type.shape is not None for value in values
    )


def computed_types(step: Step) -> frozenset[DType]:
    """The types of what a step reads, writes and computes on the way."""
    found = {value.type.dtype for value in (*step.operands, *step.results) if isinstance(value.type, TensorType)}
    match step.primitive:
        case Map(expression):
            found.update(computed_dtypes(expression))
        case Random():
            found.add(DType.float64)
    return frozenset(found)


def build_work(
    group: Group,
    tensors: Mapping[Value, Tensor],
    target: Target,
    constants: Mapping[Value, Any],
    tiles: Mapping[Value, int],
) -> Work | None:
    """The kernels for a group; references count its operands and results. None: not as a whole.

    `tiles` are the sizes of transformed tiles for the results of convolutions that are to be computed on them.
    """
    if group.rows:
        operands = {value: tensors[value] for value in group.operands}
        rows_work = thread_reduce.rows_work if target.threads else vector_reduce.rows_work
        return rows_work(group.steps, operands, {value: tensors[value] for value in group.results}, target)
    before, heavy, after = _parts(group)
    epilogue, others = _epilogue(heavy, after, tensors)
    result = tensors[group.results[0]]
    match heavy.primitive:
        case Map(expression):
            map_work = thread_maps.map_work if target.threads else vector_maps.map_work
            work = map_work(expression, [tensors[value] for value in heavy.operands], result, target)
            return _renumber(work, heavy.operands, group)
        case Dims():
            return sizes_work(heavy.primitive, result, target)
        case Random():
            return random_work(heavy.primitive, result, target)
        case Concat():
            region_launch = thread_maps.region_launch if target.threads else vector_maps.region_launch
            given = [tensors[value] for value in heavy.operands]
            work = concat_work(heavy.primitive, given, result, target, region_launch)
            return _renumber(work, heavy.operands, group)
        case Pool():
            family = thread_pool if target.threads else vector_pool
            work = family.pool_work(heavy.primitive, tensors[heavy.operands[0]], result, target, epilogue)
            return _renumber(work, (*heavy.operands, *others), group)
        case Cumulate():
            running = thread_cumulate.cumulate_work if target.threads else vector_cumulate.cumulate_work
            return _renumber(
                running(heavy.primitive, tensors[heavy.operands[0]], result, target), heavy.operands, group
            )
        case Sort():
            values, positions = (tensors[value] for value in heavy.results)
            sort_work = thread_sort.sort_work if target.threads else vector_sort.sort_work
            work = sort_work(heavy.primitive, tensors[heavy.operands[0]], values, positions, target)
            return _renumber(work, heavy.operands, group)
        case Scatter():
            given = [tensors[value] for value in heavy.operands]
            scatter_work = thread_scatter.scatter_work if target.threads else vector_scatter.scatter_work
            return _renumber(scatter_work(heavy.primitive, given, result, target), heavy.operands, group)
        case Contract():
            left, right = heavy.operands
            build = vector_contract.contract_work if tensors[left].dtype is tensors[right].dtype else dot_product_work
            build = thread_contract.contract_work if target.threads else build
            work = build(
                heavy.primitive,
                tensors[left],
                tensors[right],
                result,
                epilogue,
                target,
                constant_left=constants.get(left),
                constant_right=constants.get(right),
            )
            return _renumber(_overwriting(work, epilogue, result), (left, right, *others), group)
        case Convolve():
            x, w = heavy.operands[0] if before is None else before.operands[0], heavy.operands[1]
            size = tiles.get(heavy.results[0])
            order = None if before is None else channel_order(before)
            ends = (result, epilogue, target)
            work = _convolve(heavy.primitive, tensors[x], tensors[w], *ends, constants.get(w), size, order)
            return _renumber(_overwriting(work, epilogue, result), (x, w, *others), group)
        case Reduce() | ArgReduce():
            element, sources = _reduced(before, heavy, tensors)
            domain = tensors[heavy.operands[0]].shape
            given = [tensors[value] for value in sources]
            reduce_work = thread_reduce.reduce_work if target.threads else vector_reduce.reduce_work
            work = reduce_work(heavy.primitive, element, domain, given, result, target, epilogue)
            return _renumber(work, (*sources, *others), group)
    raise InternalError(f"no kernels for {type(heavy.primitive).__name__}")


def _convolve(
    primitive: Convolve,
    x: Tensor,
    w: Tensor,
    result: Tensor,
    epilogue: Epilogue | None,
    target: Target,
    weights: Array | None,
    size: int | None,
    order: Dim | None,
) -> Work:
    """A convolution by bytes, on transformed tiles of a given size, as rectangles, or as sums of products."""
    if target.threads and x.dtype is w.dtype and order is None and depthwise_applies(primitive, x.shape, w.shape):
        return depthwise_work(primitive, x, w, result, epilogue, target, constant_w=weights)
    if target.threads:
        ends = (result, epilogue, target)
        return thread_convolve.convolve_work(primitive, x, w, *ends, constant_w=weights, order=order)
    if x.dtype is not w.dtype:
        return byte_convolve_work(primitive, x, w, result, epilogue, target, constant_w=weights)
    if size is not None and weights is not None:
        work = winograd_work(primitive, x, weights, result, epilogue, target, size)
        if work is not None:
            return work
    if weights is not None:
        work = interleave_work(primitive, x, weights, result, epilogue, target)
        if work is not None:
            return work
    return vector_convolve.convolve_work(primitive, x, w, result, epilogue, target, constant_w=weights, order=order)


def _parts(group: Group) -> tuple[Step | None, Step, Step | None]:
    """A map before, the step that matters, a map after."""
    if len(group.steps) == 1:
        return None, group.steps[0], None
    number = next(n for n, step in enumerate(group.steps) if not isinstance(step.primitive, Map))
    before = group.steps[0] if number == 1 else None
    after = group.steps[number + 1] if len(group.steps) > number + 1 else None
    return before, group.steps[number], after


def _reduced(before: Step | None, heavy: Step, tensors: Mapping[Value, Tensor]) -> tuple[Scalar, tuple[Value, ...]]:
    """The element that a reduction combines, and the values that it loads from."""
    if before is not None:
        assert isinstance(before.primitive, Map)
        return before.primitive.expression, before.operands
    source = tensors[heavy.operands[0]]
    plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(source.shape))
    return Load(0, plain, source.dtype), heavy.operands


def copy_work(source: Tensor, result: Tensor, target: Target, *, flat: bool) -> Work:
    """The same elements in another layout, or (flat) under another shape."""
    if flat:
        size = dims.product(source.shape)
        source, result = (Tensor(source.dtype, (size,), row_major(1)) for _ in range(2))
    plain = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(source.shape))
    map_work = thread_maps.map_work if target.threads else vector_maps.map_work
    return map_work(Load(0, plain, source.dtype), [source], result, target)


def _epilogue(
    heavy: Step, after: Step | None, tensors: Mapping[Value, Tensor]
) -> tuple[Epilogue | None, tuple[Value, ...]]:
    """The map after a heavy step, its operands numbered from 1, with 0 for the heavy result."""
    if after is None:
        return None, ()
    assert isinstance(after.primitive, Map)
    others = tuple(value for value in after.operands if value != heavy.results[0])

    def renumber(load: Load) -> Scalar:
        value = after.operands[load.operand]
        number = 0 if value == heavy.results[0] else 1 + others.index(value)
        return Load(number, load.indices, load.dtype, load.checked)

    expression = rebuild(after.primitive.expression, renumber)
    return Epilogue(expression, tuple(tensors[value] for value in others)), others


def _overwriting(work: Work, epilogue: Epilogue | None, result: Tensor) -> Work:
    """A product that may write where its epilogue reads: operands of that come after the two of the product."""
    if epilogue is None:
        return work
    found = overwritable(epilogue.expression, (result, *epilogue.operands), result)
    return replace(work, overwritable=tuple(1 + number for number in found if number))


def _renumber(work: Work, operands: Sequence[Value], group: Group) -> Work:
    """References to the given operands as references to the group's."""
    places = [group.operands.index(value) if value in group.operands else -1 for value in operands]

    def moved(reference: Reference) -> Reference:
        return Reference("operand", places[reference.number]) if reference.kind == "operand" else reference

    launches = tuple((launch, tuple(map(moved, references))) for launch, references in work.launches)
    kept = {place for number, place in enumerate(places) if number not in work.overwritable}
    free = tuple(sorted({places[number] for number in work.overwritable} - kept))
    copies = tuple(replace(copy, operand=places[copy.operand]) for copy in work.copies)
    return replace(work, launches=launches, overwritable=free, copies=copies)
