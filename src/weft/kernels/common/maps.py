"""Kernels for a map: any expression, any layouts.

Axes are taken in the order of the result's layout and merged where possible, with lanes along the innermost one. A
short innermost axis is joined with the next ones, so that vectors stay full; an operand whose neighbours lie along
another axis is read in squares that are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd

from weft.cost.expressions import cost, weight_of
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Buffer,
    Call,
    Code,
    Integer,
    Kernel,
    Put,
    Statement,
    When,
    block,
    lane,
)
from weft.ir.layout import offset
from weft.ir.scalar import Scalar
from weft.ir.target import Target
from weft.kernels.build.checks import gather_errors, is_checked, report_errors
from weft.kernels.build.in_place import overwritable, stretch
from weft.kernels.build.loop_nest import Body, Span, choose_lanes, computed_dtypes, lane_loop, loops, masked, spread
from weft.kernels.build.memoize import memoized
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.merge_axes import Merged, merge_axes, operand_views
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch, Reference, Tensor, Work
from weft.kernels.vector.transpose import transposing_map

MOST_COPIES = 8  # of the expression, for a period of a short innermost axis
CHEAP = 4


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a larger tensor, from `start` on."""

    whole: Tensor
    start: tuple[Dim, ...]


def map_work(
    expression: Scalar, operands: Sequence[Tensor], result: Tensor, target: Target, region: Region | None = None
) -> Work:
    """result[...] = expression; with a region, the result (of the same order of axes) is that part of it.

    Buffers: the operands, the result, and the errors where the expression checks its indices.
    """
    launch = map_launch(expression, operands, result, *map_lanes(expression, result, target), region)
    references = [*(Reference("operand", number) for number in range(len(operands))), Reference("result", 0)]
    if is_checked(expression):
        references.append(Reference("errors", 0))
    if region is not None:
        return Work(((launch, tuple(references)),))
    copy = stretch(expression, operands, result)
    return Work(
        ((launch, tuple(references)),),
        overwritable=overwritable(expression, operands, result),
        copies=() if copy is None else (copy,),
    )


def map_lanes(expression: Scalar, result: Tensor, target: Target) -> tuple[int, bool]:
    """How many lanes, and whether they are threads."""
    if target.threads:
        return target.threads, True
    lanes = choose_lanes(target, (*computed_dtypes(expression), result.dtype))
    if cost(expression) > CHEAP:
        lanes *= 2  # a second vector to compute while the first one waits for its last result
    return lanes, False


@memoized
def map_launch(
    expression: Scalar,
    operands: Sequence[Tensor],
    result: Tensor,
    lanes: int,
    threads: bool = False,
    region: Region | None = None,
) -> Launch:
    """The kernel alone: operands in buffers in0, in1, ..., the result in out.

    `threads`: lanes are threads, each with elements of its own; otherwise they are the elements of vectors.
    """
    whole = result if region is None else region.whole
    merged = merge_axes([expression], operands, result.shape, whole.layout.order, [whole.strides])
    parameters = Parameters()
    base = 0 if region is None else parameters.size(offset(whole.strides, region.start))
    writer = _Writer(merged, operands, parameters, merged.strides(whole.strides), base)
    body: Body
    blocks: Dim
    local: tuple[Buffer, ...] = ()
    period = _period(merged, lanes)
    if not merged.axes:
        body, blocks, lanes = writer.element((), None), 1, 1
    elif threads:
        body, blocks = _scattered(writer, lanes)
    elif period is not None and period[1] // gcd(period[1], lanes) <= MOST_COPIES:
        body, blocks = _periodic(writer, lanes, *period)
    else:
        turning = transposing_map(merged, operands, parameters, lanes, writer.write)
        if turning is not None:
            body, blocks, lanes, local = turning
        elif period is not None and lanes <= period[1] <= MOST_COPIES * lanes:
            body, blocks = _ragged(writer, lanes, *period)
        else:
            body, blocks = _plain(writer, lanes)
    buffers = [*(Buffer(f"in{n}", t.dtype, False) for n, t in enumerate(operands)), Buffer("out", result.dtype, True)]
    if is_checked(expression):
        buffers.append(Buffer("errors", DType.int32, True))
        body = report_errors(body)
    kernel = Kernel("map", (*buffers, *local), tuple(parameters.values), lanes, body)
    return Launch(kernel, blocks, tuple(parameters.values.values()))


class _Writer:
    """Statements that compute and write one vector of elements."""

    def __init__(
        self,
        merged: Merged,
        operands: Sequence[Tensor],
        parameters: Parameters,
        strides: Sequence[Dim],
        base: Dim,
    ) -> None:
        self.merged = merged
        self.parameters = parameters
        self.views = operand_views(operands, parameters)
        self.strides = strides
        self.base = base
        self.literal = False  # strides as numbers in the kernel, where they simplify with the positions

    def element(self, groups: Sequence[Dim], mask: Code | None, place: Dim | None = None) -> Body:
        return self.write(self.merged.expressions[0], groups, mask, {}, place)

    def write(
        self,
        expression: Scalar,
        groups: Sequence[Dim],
        mask: Code | None,
        known: dict[int, Code],
        place: Dim | None = None,
    ) -> Body:
        """The expression at the groups' positions, or written to a `place`; `known` are elements at hand."""
        statements: list[Statement] = []
        lowering = Lowering(
            self.views, self.merged.places(groups), self.parameters, known, mask, statements, literal=self.literal
        )
        value = lowering.code(expression)
        if place is None:
            place = self.base
            for stride, position in zip(self.strides, groups, strict=True):
                factor = self.parameters.symbols(stride) if self.literal else self.parameters.size(stride)
                place = place + factor * position
        return (*statements, *gather_errors(lowering.checks), Put("out", place, value, mask=mask))


def _plain(writer: _Writer, lanes: int) -> tuple[Body, Dim]:
    """Lanes along the innermost axis."""
    merged = writer.merged
    length = merged.sizes[-1]
    exact = isinstance(length, int) and length % lanes == 0
    blocks, spans = spread(merged.sizes, writer.parameters, weight_of(merged.expressions[0]), lanes)
    unroll = 2 if cost(merged.expressions[0]) <= CHEAP and isinstance(length, int) and length >= 4 * lanes else 1

    def row(outer: list[Dim]) -> Body:
        return lane_loop(
            "i", spans[-1], lanes, lambda place, mask: writer.element((*outer, place), mask), exact=exact, unroll=unroll
        )

    return loops(spans[:-1], "o", row), blocks


def _scattered(writer: _Writer, lanes: int) -> tuple[Body, Dim]:
    """An element for each lane, all axes joined."""
    merged = writer.merged
    if 0 in merged.sizes:
        return (), 0
    total = dims.product(merged.sizes)
    position = block() * lanes + lane(lanes)
    digits: list[Dim] = []
    rest: Dim = position
    step: Dim = 1
    in_order = True  # whether the result's elements follow each other
    for size, stride in zip(reversed(merged.sizes), reversed(writer.strides)):
        in_order, step = in_order and stride == step, step * size
        divisor = writer.parameters.size(dims.maximum(size, 1))  # a block has no work where it would be 0
        digits.insert(0, dims.mod(rest, divisor) if len(digits) < len(merged.sizes) - 1 else rest)
        rest = dims.floordiv(rest, divisor)
    place = writer.base + position if in_order else None
    blocks = dims.ceildiv(total, lanes)
    if isinstance(total, int) and total % lanes == 0:
        return writer.element(digits, None, place), blocks
    end = writer.parameters.size(total)
    return masked(position, end, lambda mask: writer.element(digits, mask, place)), blocks


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


def _periodic(writer: _Writer, lanes: int, joined: int, period: int) -> tuple[Body, Dim]:
    """Lanes along the joined innermost axes, in units after which the pattern of places is the same again."""
    merged = writer.merged
    outer_sizes, inner_sizes = merged.sizes[:-joined], merged.sizes[-joined:]
    unit = period * lanes // gcd(period, lanes)
    total = dims.product(inner_sizes)
    writer.literal = True
    blocks, spans = spread((*outer_sizes, dims.ceildiv(total, unit)), writer.parameters, weight=unit)
    end = writer.parameters.size(total)
    whole = dims.floordiv(total, unit)

    def cut_off(position: Dim, stop: Dim, groups: Sequence[Dim]) -> Body:
        first = position - lane(lanes)
        some = Call("less", (Integer(first), Integer(stop)), DType.bool)  # else even uniform loads are outside
        return (When(some, masked(position, stop, lambda mask: writer.element(groups, mask))),)

    def units(outer: list[Dim], start: Dim, stop: Dim, cut: bool) -> Body:
        def one(inner: list[Dim]) -> Body:
            statements: list[Statement] = []
            for copy in range(unit // lanes):
                position = inner[0] * unit + copy * lanes + lane(lanes)
                groups = (*outer, *_digits(position, inner_sizes))
                statements += cut_off(position, end, groups) if cut else writer.element(groups, None)
            return tuple(statements)

        return loops([Span(start, stop)], "u", one)

    def row(outer: list[Dim]) -> Body:
        start, stop = spans[-1].start, spans[-1].stop
        assert stop is not None
        if isinstance(total, int) and total % unit == 0:
            return units(outer, start, stop, cut=False)
        middle = writer.parameters.size(whole)
        return (
            *units(outer, start, dims.minimum(stop, middle), cut=False),
            *units(outer, dims.maximum(start, middle), stop, cut=True),
        )

    return loops(spans[:-1], "o", row), blocks


def _ragged(writer: _Writer, lanes: int, joined: int, period: int) -> tuple[Body, Dim]:
    """The same in units of one period each, whose last vector a mask cuts off."""
    outer_sizes, inner_sizes = writer.merged.sizes[:-joined], writer.merged.sizes[-joined:]
    writer.literal = True
    blocks, spans = spread((*outer_sizes, inner_sizes[0]), writer.parameters, weight=period)

    def one(outer: list[Dim]) -> Body:
        statements: list[Statement] = []
        for first in range(0, period, lanes):
            within = first + lane(lanes)
            element = partial(writer.element, (*outer, *_digits(within, inner_sizes[1:])))
            statements += element(None) if first + lanes <= period else masked(within, period, element)
        return tuple(statements)

    return loops(spans, "o", one), blocks


def _digits(position: Dim, sizes: Sequence[Dim]) -> list[Dim]:
    """A joined position as positions along its axes; remainders as differences, which cancel where axes are alike."""
    digits: list[Dim] = []
    rest = position
    for size in reversed(sizes[1:]):
        quotient = dims.floordiv(rest, size)
        digits.insert(0, rest - quotient * size)
        rest = quotient
    return [rest, *digits]
