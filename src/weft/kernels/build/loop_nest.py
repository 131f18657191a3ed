"""Loops over a domain, split into blocks of about the same work.

The share of a block follows from its number and the sizes alone, never from the number of threads, so results do not
depend on how blocks are scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from weft.cost.blocks import BLOCK_ELEMENTS
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Code, Statement, block, lane
from weft.ir.target import VectorTarget
from weft.kernels.lower.kernel_builder import KernelBuilder, let, repeat
from weft.kernels.lower.operations import less
from weft.records import dataclass

DYNAMIC_FACTOR = 4  # blocks have this many times the elements if sizes are known only at run time

Body = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The positions of a block along one axis: start..stop-1, or `start` alone if there is no stop."""

    start: Dim
    stop: Dim | None = None


def split_into_blocks(
    sizes: Sequence[Dim], builder: KernelBuilder, weight: int = 1, step: int = 1
) -> tuple[Dim, list[Span]]:
    """Return the number of blocks, and the span of each along every axis, outermost axis first.

    A point of the domain is `weight` elements of work; blocks start at multiples of `step` along the innermost axis.
    """
    if not sizes or 0 in sizes:
        return int(not sizes), [Span(0)] * len(sizes[:-1]) + [Span(0, 0)] * len(sizes[-1:])
    split = _choose_split_axis(sizes, max(weight, 1))
    factor = step if split == len(sizes) - 1 else 1
    size = sizes[split]
    inner_work = dims.maximum(dims.product(sizes[split + 1 :]) * max(weight, 1), 1)
    elements = BLOCK_ELEMENTS if isinstance(size * inner_work, int) else DYNAMIC_FACTOR * BLOCK_ELEMENTS
    units = dims.maximum(dims.ceildiv(dims.floordiv(elements, inner_work), factor), 1)
    chunks = dims.maximum(dims.ceildiv(size, units * factor), 1)
    units = dims.maximum(dims.ceildiv(dims.ceildiv(size, chunks), factor), 1)  # even chunks
    count = dims.ceildiv(size, units * factor)
    remaining: Dim = block()
    span = Span(0, builder.size(size))
    if count != 1:
        number_of = builder.size(count)
        length = builder.size(units) * factor  # the factor stays explicit: starts are provably multiples of it
        start = (dims.mod(remaining, number_of) if split else remaining) * length
        span = Span(start, dims.minimum(start + length, builder.size(size)))
        remaining = dims.floordiv(remaining, number_of)
    spans = [span, *(Span(0, builder.size(size)) for size in sizes[split + 1 :])]
    for number in reversed(range(split)):
        axis_size = builder.size(sizes[number])
        spans.insert(0, Span(dims.mod(remaining, axis_size) if number else remaining))
        remaining = dims.floordiv(remaining, axis_size)
    return dims.product(sizes[:split]) * count, spans


def _choose_split_axis(sizes: Sequence[Dim], weight: int) -> int:
    """Choose the innermost axis that can be split between blocks with enough work left for each."""
    inner_work = weight
    for number in reversed(range(1, len(sizes))):
        inner_work *= max(estimate(sizes[number]), 1)
        if inner_work >= BLOCK_ELEMENTS:
            return number
    two_unknown = len(sizes) > 2 and not isinstance(sizes[0], int) and not isinstance(sizes[1], int)
    return 1 if two_unknown else 0  # the first of two unknown sizes is usually the batch, which is often 1


def build_loops(builder: KernelBuilder, hint: str, spans: Sequence[Span], body: Callable[[list[Dim]], Body]) -> Body:
    """Build nested loops over the spans; `body` takes the positions."""
    single = [span.stop is None and isinstance(span.start, int) for span in spans]
    positions = [
        span.start if alone else builder.variable(f"{hint}{number}")
        for number, (span, alone) in enumerate(zip(spans, single))
    ]
    statements = body(positions)
    for number, span in reversed(list(enumerate(spans))):
        if span.stop is not None:
            statements = (repeat(positions[number], span.start, span.stop, 1, statements),)
        elif not single[number]:
            statements = (let(positions[number], span.start), *statements)
    return statements


def build_lane_loop(
    builder: KernelBuilder,
    hint: str,
    span: Span,
    lanes: int,
    body: Callable[[Dim, Code | None], Body],
    *,
    exact: bool = False,
    unroll: int = 1,
) -> Body:
    """Build a loop over whole vectors of a span, then a masked one for the remainder, unless the length is `exact`.

    If the span starts at a multiple of the lanes, positions have the form multiple + lane, so that their quotients
    simplify.
    """
    assert span.stop is not None
    start, stop = span.start, span.stop
    unit = lanes if dims.mod(start, lanes) == 0 else 1
    first, step = dims.floordiv(start, unit), lanes // unit
    counter = builder.variable(hint)
    position = counter * unit + lane(lanes)
    whole_stop = first + dims.floordiv(stop - start, lanes) * step
    loop = repeat(counter, first, whole_stop, step, body(position, None), unroll)
    if exact:
        return (loop,)
    masked = build_masked(builder, position, stop, lambda mask: body(position, mask))
    return loop, repeat(counter, whole_stop, first + dims.ceildiv(stop - start, lanes) * step, step, masked)


def build_masked(builder: KernelBuilder, position: Dim, stop: Dim, body: Callable[[Code], Body]) -> Body:
    """Build the body for the lanes whose position is below `stop`."""
    defined, inside = builder.keep("inside", less(position, stop), varying=True)
    return defined, *body(inside)


def choose_lanes(target: VectorTarget, dtypes: Iterable[DType], widest: int = 4) -> int:
    """Return how many elements of the widest dtype, capped at `widest` bytes, fill a vector."""
    size = max((dtype.numpy.itemsize for dtype in dtypes), default=4)
    return max(target.vector_bytes // min(size, widest), 1)
