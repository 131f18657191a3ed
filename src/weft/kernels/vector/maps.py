"""Maps on vectors: any expression, any layouts.

Axes are taken in the order of the result's layout and merged where possible, with lanes along the innermost one. A
short innermost axis is joined with the next ones, so that vectors stay full; an operand whose neighbours lie along
another axis is read in squares that are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import gcd

from weft.cost.expressions import cost, weight_of
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Statement, When, lane
from weft.ir.scalar import Scalar, computed_dtypes
from weft.ir.target import VectorTarget
from weft.kernels.build.loop_nest import Body, Span, choose_lanes, lane_loop, loops, masked, spread
from weft.kernels.common.maps import MapWriter, Region, single_map
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.merge_axes import Merged
from weft.kernels.lower.tensors import Launch, StoredTensor, Work
from weft.kernels.vector.transpose import transposing_map

MOST_COPIES = 8  # of the expression, for a period of a short innermost axis
CHEAP = 4


def map_work(
    expression: Scalar,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: VectorTarget,
    region: Region | None = None,
) -> Work:
    """result[...] = expression; with a region, the result (of the same order of axes) is that part of it."""
    return single_map(region_launch(expression, operands, result, target, region), expression, operands, result, region)


def region_launch(
    expression: Scalar,
    operands: Sequence[StoredTensor],
    result: StoredTensor,
    target: VectorTarget,
    region: Region | None = None,
) -> Launch:
    """The kernel of a map alone, with as many lanes as are best for its expression."""
    lanes = choose_lanes(target, (*computed_dtypes(expression), result.dtype))
    if cost(expression) > CHEAP:
        lanes *= 2  # a second vector to compute while the first one waits for its last result
    return map_launch(expression, operands, result, lanes, region)


@memoized
def map_launch(
    expression: Scalar, operands: Sequence[StoredTensor], result: StoredTensor, lanes: int, region: Region | None = None
) -> Launch:
    """The kernel of a map alone, with so many lanes."""
    writer = MapWriter(expression, operands, result, region)
    writer.asks = True
    merged = writer.merged
    period = _period(merged, lanes)
    if not merged.axes:
        return writer.launch(writer.element((), None), 1, 1)
    if period is not None and period[1] // gcd(period[1], lanes) <= MOST_COPIES:
        return writer.launch(*_periodic(writer, lanes, *period), lanes)
    turning = transposing_map(merged, writer.views, writer.builder, lanes, writer.write)
    if turning is not None:
        return writer.launch(*turning)
    if period is not None and lanes <= period[1] <= MOST_COPIES * lanes:
        return writer.launch(*_ragged(writer, lanes, *period), lanes)
    return writer.launch(*_plain(writer, lanes), lanes)


def _plain(writer: MapWriter, lanes: int) -> tuple[Body, Dim]:
    """Lanes along the innermost axis."""
    merged = writer.merged
    length = merged.sizes[-1]
    exact = isinstance(length, int) and length % lanes == 0
    blocks, spans = spread(merged.sizes, writer.builder, weight_of(merged.expressions[0]), lanes)
    unroll = 2 if cost(merged.expressions[0]) <= CHEAP and isinstance(length, int) and length >= 4 * lanes else 1

    def row(outer: list[Dim]) -> Body:
        def element(place: Dim, mask: Code | None) -> Body:
            return writer.element((*outer, place), mask)

        return lane_loop(writer.builder, "i", spans[-1], lanes, element, exact=exact, unroll=unroll)

    return loops(writer.builder, "o", spans[:-1], row), blocks


def _period(merged: Merged, lanes: int) -> tuple[int, int] | None:
    """(number of innermost axes to join, elements after which their places repeat); None without a short axis."""
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


def _periodic(writer: MapWriter, lanes: int, joined: int, period: int) -> tuple[Body, Dim]:
    """Lanes along the joined innermost axes, in units after which the pattern of places is the same again."""
    merged = writer.merged
    outer_sizes, inner_sizes = merged.sizes[:-joined], merged.sizes[-joined:]
    unit = period * lanes // gcd(period, lanes)
    total = dims.product(inner_sizes)
    writer.write_strides()
    blocks, spans = spread((*outer_sizes, dims.ceildiv(total, unit)), writer.builder, weight=unit)
    end = writer.builder.size(total)
    whole = dims.floordiv(total, unit)

    def cut_off(position: Dim, stop: Dim, groups: Sequence[Dim]) -> Body:
        first = position - lane(lanes)
        some = Call("less", (Integer(first), Integer(stop)), DType.bool)  # else even uniform loads are outside
        return (When(some, masked(writer.builder, position, stop, lambda mask: writer.element(groups, mask))),)

    def units(outer: list[Dim], start: Dim, stop: Dim, cut: bool) -> Body:
        def one(inner: list[Dim]) -> Body:
            statements: list[Statement] = []
            for copy in range(unit // lanes):
                position = inner[0] * unit + copy * lanes + lane(lanes)
                groups = (*outer, *_digits(position, inner_sizes))
                statements += cut_off(position, end, groups) if cut else writer.element(groups, None)
            return tuple(statements)

        return loops(writer.builder, "u", [Span(start, stop)], one)

    def row(outer: list[Dim]) -> Body:
        start, stop = spans[-1].start, spans[-1].stop
        assert stop is not None
        if isinstance(total, int) and total % unit == 0:
            return units(outer, start, stop, cut=False)
        middle = writer.builder.size(whole)
        return (
            *units(outer, start, dims.minimum(stop, middle), cut=False),
            *units(outer, dims.maximum(start, middle), stop, cut=True),
        )

    return loops(writer.builder, "o", spans[:-1], row), blocks


def _ragged(writer: MapWriter, lanes: int, joined: int, period: int) -> tuple[Body, Dim]:
    """The same in units of one period each, whose last vector a mask cuts off."""
    outer_sizes, inner_sizes = writer.merged.sizes[:-joined], writer.merged.sizes[-joined:]
    writer.write_strides()
    blocks, spans = spread((*outer_sizes, inner_sizes[0]), writer.builder, weight=period)

    def one(outer: list[Dim]) -> Body:
        statements: list[Statement] = []
        for first in range(0, period, lanes):
            within = first + lane(lanes)
            element = partial(writer.element, (*outer, *_digits(within, inner_sizes[1:])))
            statements += element(None) if first + lanes <= period else masked(writer.builder, within, period, element)
        return tuple(statements)

    return loops(writer.builder, "o", spans, one), blocks


def _digits(position: Dim, sizes: Sequence[Dim]) -> list[Dim]:
    """A joined position as positions along its axes; remainders as differences, which cancel where axes are alike."""
    digits: list[Dim] = []
    rest = position
    for size in reversed(sizes[1:]):
        quotient = dims.floordiv(rest, size)
        digits.insert(0, rest - quotient * size)
        rest = quotient
    return [rest, *digits]
