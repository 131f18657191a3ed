"""Loops over a domain, cut into blocks of about the same work.

Which part a block does follows from its number and the sizes alone, never from the number of threads, so results are
the same however blocks are spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from weft.cost.blocks import BLOCK_ELEMENTS
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Statement, block, lane
from weft.ir.target import VectorTarget
from weft.kernels.lower.kernel_builder import KernelBuilder, let, repeat
from weft.records import dataclass

LARGE = 4  # pieces in one, where only a run will tell whether that is many

Body = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """What a block does along one axis: the positions start..stop-1, or `start` alone where there is no stop."""

    start: Dim
    stop: Dim | None = None


def spread(
    sizes: Sequence[Dim], builder: KernelBuilder, weight: int = 1, step: int = 1, piece: int = BLOCK_ELEMENTS
) -> tuple[Dim, list[Span]]:
    """(number of blocks, what each does along every axis), for axes from the outermost in.

    A point of the domain is `weight` elements of work; pieces of the innermost axis start at multiples of `step`.
    """
    if not sizes or 0 in sizes:
        return int(not sizes), [Span(0)] * len(sizes[:-1]) + [Span(0, 0)] * len(sizes[-1:])
    split = _where_to_split(sizes, max(weight, 1), piece)
    factor = step if split == len(sizes) - 1 else 1
    size = sizes[split]
    inner = dims.maximum(dims.product(sizes[split + 1 :]) * max(weight, 1), 1)
    wanted = piece if isinstance(size * inner, int) else LARGE * piece
    units = dims.maximum(dims.ceildiv(dims.floordiv(wanted, inner), factor), 1)
    pieces = dims.maximum(dims.ceildiv(size, units * factor), 1)
    units = dims.maximum(dims.ceildiv(dims.ceildiv(size, pieces), factor), 1)  # as many for each block as possible
    count = dims.ceildiv(size, units * factor)
    rest: Dim = block()
    own = Span(0, builder.size(size))
    if count != 1:
        number_of = builder.size(count)
        length = builder.size(units) * factor  # in the open, so that starts are seen to be multiples of it
        start = (dims.mod(rest, number_of) if split else rest) * length
        own = Span(start, dims.minimum(start + length, builder.size(size)))
        rest = dims.floordiv(rest, number_of)
    spans = [own, *(Span(0, builder.size(size)) for size in sizes[split + 1 :])]
    for number in reversed(range(split)):
        whole = builder.size(sizes[number])
        spans.insert(0, Span(dims.mod(rest, whole) if number else rest))
        rest = dims.floordiv(rest, whole)
    return dims.product(sizes[:split]) * count, spans


def _where_to_split(sizes: Sequence[Dim], weight: int, piece: int) -> int:
    """The axis of which a block does a part: as far in as a block has work enough."""
    inner = weight
    for number in reversed(range(1, len(sizes))):
        inner *= max(estimate(sizes[number]), 1)
        if inner >= piece:
            return number
    lone = len(sizes) > 2 and not isinstance(sizes[0], int) and not isinstance(sizes[1], int)
    return 1 if lone else 0  # of two unknown sizes the first one, a batch mostly, may well be 1


def loops(builder: KernelBuilder, hint: str, spans: Sequence[Span], body: Callable[[list[Dim]], Body]) -> Body:
    """Nested loops over the spans around a body, which is given the positions."""
    single = [span.stop is None and isinstance(span.start, int) for span in spans]
    positions = [
        span.start if alone else builder.variable(f"{hint}{number}")
        for number, (span, alone) in enumerate(zip(spans, single))
    ]
    inner = body(positions)
    for number, span in reversed(list(enumerate(spans))):
        if span.stop is not None:
            inner = (repeat(positions[number], span.start, span.stop, 1, inner),)
        elif not single[number]:
            inner = (let(positions[number], span.start), *inner)
    return inner


def lane_loop(
    builder: KernelBuilder,
    hint: str,
    span: Span,
    lanes: int,
    body: Callable[[Dim, Code | None], Body],
    *,
    exact: bool = False,
    unroll: int = 1,
) -> Body:
    """Vectors along a span: whole ones, then one that a mask cuts off, unless the length is `exact`ly whole.

    Where the span starts at a multiple of the lanes, positions are seen to be one plus the lane, so that quotients of
    them simplify.
    """
    assert span.stop is not None
    start, stop = span.start, span.stop
    unit = lanes if dims.mod(start, lanes) == 0 else 1
    first, step = dims.floordiv(start, unit), lanes // unit
    counter = builder.variable(hint)
    position = counter * unit + lane(lanes)
    whole = first + dims.floordiv(stop - start, lanes) * step
    loop = repeat(counter, first, whole, step, body(position, None), unroll)
    if exact:
        return (loop,)
    rest = masked(builder, position, stop, lambda mask: body(position, mask))
    return loop, repeat(counter, whole, first + dims.ceildiv(stop - start, lanes) * step, step, rest)


def masked(builder: KernelBuilder, position: Dim, stop: Dim, body: Callable[[Code], Body]) -> Body:
    """The body for those lanes whose position is below `stop`."""
    test = Call("less", (Integer(position), Integer(stop)), DType.bool)
    defined, inside = builder.keep("inside", test, varying=True)
    return defined, *body(inside)


def choose_lanes(target: VectorTarget, dtypes: Iterable[DType], widest: int = 4) -> int:
    """As many lanes as fill a vector with elements of the widest type, though at most `widest` bytes count."""
    size = max((dtype.numpy.itemsize for dtype in dtypes), default=4)
    return max(target.vector_bytes // min(size, widest), 1)
