"""Maps on vectors: any expression, any layouts.

Axes are ordered by the result's layout and merged where possible, with lanes along the innermost one. A short innermost
axis is joined with the next ones, so that vectors stay full; an operand that is contiguous along another axis is read
in squares that are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import gcd

from weft.cost.expressions import cost, relative_work
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Code, Statement, When, lane
from weft.ir.scalar import ELEMENT, Index, Load, Scalar, bind_placeholders, computed_dtypes, rebuild, walk
from weft.ir.target import VectorTarget
from weft.kernels.build.loop_nest import (
    Body,
    Span,
    build_lane_loop,
    build_loops,
    build_masked,
    choose_lanes,
    split_into_blocks,
)
from weft.kernels.common.maps import MapWriter, Region, build_map_work
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.merge_axes import MergedAxes
from weft.kernels.lower.operations import less
from weft.kernels.lower.tensors import LEFT, RESULT, Epilogue, Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.vector.transpose import build_transposing_map
from weft.kernels.vector.wide_copies import widen_copy

MAX_COPIES = 8  # of the expression in the code, for one period of a short innermost axis
CHEAP = 4


def build_map(
    expression: Scalar,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: VectorTarget,
    region: Region | None = None,
) -> Work:
    """Build result[...] = expression; with a region, the result is that part of a larger tensor."""
    return build_map_work(
        build_map_launch(expression, operands, result, target, region), expression, operands, result, region
    )


def build_map_launch(
    expression: Scalar,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: VectorTarget,
    region: Region | None = None,
) -> Launch:
    """Build the launch of a map with a suitable number of lanes."""
    if (wide := widen_copy(expression, operands, result, region)) is not None:
        expression, operands, result, region = wide.expression, [wide.operand], wide.result, wide.region
    lanes = choose_lanes(target, (*computed_dtypes(expression), result.dtype))
    if cost(expression) > CHEAP and not _gathers(expression):
        lanes *= 2  # a second vector hides the latency of the first
    return build_map_kernel(expression, operands, result, lanes, region)


def _gathers(expression: Scalar) -> bool:
    """Whether an expression loads at loaded indices: elements one by one, whose addresses need many registers."""
    loads = (node for node in walk(expression) if isinstance(node, Load))
    return any(not isinstance(index, Index) for load in loads for index in load.indices)


@memoize
def build_map_kernel(
    expression: Scalar, operands: Sequence[StoredTensor], result: StoredTensor, lanes: int, region: Region | None = None
) -> Launch:
    """Build the launch of a map with a number of lanes."""
    writer = MapWriter(expression, operands, result, region)
    writer.branches = True
    merged = writer.merged
    period = _find_period(merged, lanes)
    if not merged.axes:
        return writer.launch(writer.element((), None), 1, 1)
    if period is not None and period[1] // gcd(period[1], lanes) <= MAX_COPIES:
        return writer.launch(*_build_periodic(writer, lanes, *period), lanes)
    transposing = build_transposing_map(merged, writer.views, writer.builder, lanes, writer.write)
    if transposing is not None:
        return writer.launch(*transposing)
    if period is not None and lanes <= period[1] <= MAX_COPIES * lanes:
        return writer.launch(*_build_ragged(writer, lanes, *period), lanes)
    return writer.launch(*_build_plain(writer, lanes), lanes)


def append_map(
    work: Work,
    element: Scalar,
    output: StoredTensor,
    result: StoredTensor,
    epilogue: Epilogue | None,
    first: int,
    target: VectorTarget,
) -> Work:
    """Redirect the output of a work to a workspace, and append a map from there to the result.

    `element` loads from the output as operand 0; the epilogue's operands are those of the work from `first` on.
    """
    operands, moved = [output], {}
    if epilogue is not None:
        shifted = rebuild(epilogue.expression, lambda load: replace(load, operand=1 + load.operand))
        element = bind_placeholders(shifted, {ELEMENT: element})
        operands += epilogue.operands
        count = len(epilogue.operands)
        moved = {Reference("operand", 1 + n): Reference("operand", first + n) for n in range(count)}
    space = Reference("workspace", len(work.workspaces))
    lanes = choose_lanes(target, (*computed_dtypes(element), result.dtype))
    last = build_map_kernel(element, operands, result, lanes).rebound({**moved, LEFT: space})
    launches = (*(launch.rebound({RESULT: space}) for launch in work.launches), last)
    workspaces = (*work.workspaces, Workspace(output.dtype, dims.product(output.shape)))
    return replace(work, launches=launches, workspaces=workspaces)


def _build_plain(writer: MapWriter, lanes: int) -> tuple[Body, Dim]:
    """Build the map with lanes along the innermost axis."""
    merged = writer.merged
    length = merged.sizes[-1]
    exact = isinstance(length, int) and length % lanes == 0
    blocks, spans = split_into_blocks(merged.sizes, writer.builder, relative_work(merged.expressions[0]), lanes)
    unroll = 2 if cost(merged.expressions[0]) <= CHEAP and isinstance(length, int) and length >= 4 * lanes else 1

    def row(outer: list[Dim]) -> Body:
        def element(place: Dim, mask: Code | None) -> Body:
            return writer.element((*outer, place), mask)

        return build_lane_loop(writer.builder, "i", spans[-1], lanes, element, exact=exact, unroll=unroll)

    return build_loops(writer.builder, "o", spans[:-1], row), blocks


def _find_period(merged: MergedAxes, lanes: int) -> tuple[int, int] | None:
    """Return (number of innermost axes to join, elements after which positions repeat); None without a short axis."""
    sizes = merged.sizes
    if len(sizes) < 2 or not isinstance(sizes[-1], int) or sizes[-1] >= 2 * lanes or sizes[-1] % lanes == 0:
        return None
    joined, period, length = 1, 1, 1
    while joined < len(sizes) and length < 4 * lanes:
        inner = sizes[-joined]
        if not isinstance(inner, int) or inner == 0:
            break
        period *= inner
        joined += 1
        outer = sizes[-joined]
        length = period * outer if isinstance(outer, int) else 4 * lanes
    return (joined, period) if joined > 1 else None


def _build_periodic(writer: MapWriter, lanes: int, joined: int, period: int) -> tuple[Body, Dim]:
    """Build the map with lanes along joined axes, in units after which the pattern of positions repeats."""
    merged = writer.merged
    outer_sizes, inner_sizes = merged.sizes[:-joined], merged.sizes[-joined:]
    unit = period * lanes // gcd(period, lanes)
    total = dims.product(inner_sizes)
    writer.use_literal_strides()
    blocks, spans = split_into_blocks((*outer_sizes, dims.ceildiv(total, unit)), writer.builder, weight=unit)
    end = writer.builder.size(total)
    whole_units = dims.floordiv(total, unit)

    def build_cut_off(position: Dim, stop: Dim, groups: Sequence[Dim]) -> Body:
        first = position - lane(lanes)
        any_inside = less(first, stop)  # otherwise even uniform loads would be out of bounds
        body = build_masked(writer.builder, position, stop, lambda mask: writer.element(groups, mask))
        return (When(any_inside, body),)

    def units(outer: list[Dim], start: Dim, stop: Dim, cut: bool) -> Body:
        def build_unit(inner: list[Dim]) -> Body:
            statements: list[Statement] = []
            for copy in range(unit // lanes):
                position = inner[0] * unit + copy * lanes + lane(lanes)
                groups = (*outer, *_split_position(position, inner_sizes))
                statements += build_cut_off(position, end, groups) if cut else writer.element(groups, None)
            return tuple(statements)

        return build_loops(writer.builder, "u", [Span(start, stop)], build_unit)

    def row(outer: list[Dim]) -> Body:
        start, stop = spans[-1].start, spans[-1].stop
        assert stop is not None
        if isinstance(total, int) and total % unit == 0:
            return units(outer, start, stop, cut=False)
        middle = writer.builder.size(whole_units)
        return (
            *units(outer, start, dims.minimum(stop, middle), cut=False),
            *units(outer, dims.maximum(start, middle), stop, cut=True),
        )

    return build_loops(writer.builder, "o", spans[:-1], row), blocks


def _build_ragged(writer: MapWriter, lanes: int, joined: int, period: int) -> tuple[Body, Dim]:
    """Build the map with lanes along joined axes, in units of one period each, with a masked last vector."""
    outer_sizes, inner_sizes = writer.merged.sizes[:-joined], writer.merged.sizes[-joined:]
    writer.use_literal_strides()
    blocks, spans = split_into_blocks((*outer_sizes, inner_sizes[0]), writer.builder, weight=period)

    def build_unit(outer: list[Dim]) -> Body:
        statements: list[Statement] = []
        for first in range(0, period, lanes):
            within = first + lane(lanes)
            element = partial(writer.element, (*outer, *_split_position(within, inner_sizes[1:])))
            statements += (
                element(None) if first + lanes <= period else build_masked(writer.builder, within, period, element)
            )
        return tuple(statements)

    return build_loops(writer.builder, "o", spans, build_unit), blocks


def _split_position(position: Dim, sizes: Sequence[Dim]) -> list[Dim]:
    """Split a joined position; remainders are differences, which cancel where axes have proportional strides."""
    digits: list[Dim] = []
    remaining = position
    for size in reversed(sizes[1:]):
        quotient = dims.floordiv(remaining, size)
        digits.insert(0, remaining - quotient * size)
        remaining = quotient
    return [remaining, *digits]
