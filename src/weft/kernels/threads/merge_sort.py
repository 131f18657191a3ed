"""Merge sort of rows of integer keys: a thread finds the place of its key, by counting and then by bisection.

Chunks of a row are sorted first: a key's place is the number of keys before it in the chunk. Then several neighbouring
runs at a time are merged: a key's place is the sum of its places in all of them, found by bisection. The sort is
stable. With dynamic sizes there are launches for the longest rows, most of which have no blocks in a run. Keys and
positions alternate between two pairs of workspaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Integer, Number, Register, Statement
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, fetch, put, repeat
from weft.kernels.lower.operations import and_masks
from weft.kernels.lower.tensors import Launch, Reference, Workspace
from weft.kernels.threads.lane_groups import shares
from weft.kernels.threads.points import build_point_body, choose_lanes, divisor
from weft.records import dataclass

BOOL, INT32, INT64 = DType.bool, DType.int32, DType.int64
CHUNK = 512  # elements, a power of two
SMALL_CHUNK = 256  # where threads are few
MERGE_WIDTH = 4  # runs that are merged into one
UNROLL = 4


@dataclass(frozen=True, slots=True)
class SortRows:
    """`rows` rows of `size` keys each, of which the first `count` in order are results."""

    rows: Dim
    size: Dim
    count: Dim
    dtype: DType  # of the keys: int32 or int64


def sort_workspaces(rows: SortRows) -> tuple[Workspace, ...]:
    """Return two pairs of workspaces for keys and positions; the keys to sort are in workspace 2."""
    total = rows.rows * rows.size
    return tuple(Workspace(dtype, total) for _ in range(2) for dtype in (rows.dtype, INT32))


def build_sort_launches(
    rows: SortRows, target: ThreadTarget, workspaces: Sequence[Reference]
) -> tuple[list[Launch], Dim]:
    """Build the launches that sort the keys in workspace 2; also return the pair with the sorted rows, 0 or 1."""
    chunk = CHUNK if shares(target) else SMALL_CHUNK
    first, second = tuple(workspaces[:2]), tuple(workspaces[2:])
    launches = [_build_chunk_launch(rows, chunk, target, workspaces[2], first)]
    width = chunk
    merges: Dim = 0
    while width < (rows.size if isinstance(rows.size, int) else dims.LARGEST_SIZE):
        launches.append(_build_merge_launch(rows, width, target, first, second))
        first, second = second, first
        merges = merges + _has_several_runs(rows.size, width)
        width *= MERGE_WIDTH
    return launches, dims.mod(merges, 2)


def _has_several_runs(size: Dim, width: int) -> Dim:
    """Return an indicator that is 1 where a row has more than one run of a width."""
    return dims.minimum(dims.floordiv(dims.maximum(size - 1, 0), width), 1)


# -- chunks ----------------------------------------------------------------------------------------------------------


def _build_chunk_launch(
    rows: SortRows, chunk: int, target: ThreadTarget, source: Reference, results: Sequence[Reference]
) -> Launch:
    """Sort every chunk of every row; the results are sorted keys and their positions."""
    builder = KernelBuilder("sort_chunks")
    keys = builder.input("keys", rows.dtype, source)
    out_keys = builder.output("out_keys", rows.dtype, results[0])
    out_positions = builder.output("out_positions", INT32, results[1])
    size, count = builder.size(rows.size), builder.size(rows.count)
    total = rows.rows * rows.size
    lanes = choose_lanes(total, target)

    def body(number: Dim, mask: Code | None) -> Body:
        position = dims.mod(number, divisor(rows.size, builder))
        start = number - position
        first = dims.floordiv(position, chunk) * chunk
        last = dims.minimum(size, chunk)
        definition, lane_key = builder.keep("own", fetch(keys, number, mask=mask), varying=True)

        def exists(at: Dim) -> Code:
            return _below(first + at, size)

        def key(at: Dim, _: list[Statement]) -> Code:
            return fetch(keys, start + first + at, mask=and_masks(mask, exists(at)))

        counting, rank = count_before(builder, lane_key, position - first, last, key, exists)
        is_result = and_masks(mask, Call("less", (rank, _narrow(count)), BOOL))
        place, step = start + first, Call("cast", (rank,), INT64)
        return (
            definition,
            *counting,
            put(out_keys, place, lane_key, step, is_result),
            put(out_positions, place, _narrow(position), step, is_result),
        )

    blocks, statements = build_point_body(total, lanes, builder, body)
    return builder.launch(lanes, statements, blocks)


def count_before(
    builder: KernelBuilder,
    lane_key: Code,
    position: Dim,
    last: Dim,
    key: Callable[[Dim, list[Statement]], Code],
    exists: Callable[[Dim], Code] | None = None,
) -> tuple[list[Statement], Register]:
    """Count the keys 0..last-1 that come before `lane_key`, which is number `position` of them.

    `key` returns the key with a number, and appends the statements that it needs; `exists` tests whether there is one.
    """
    begin, rank = builder.keep("rank", Number(0, INT32), varying=True)

    def loop(hint: str, start: Dim, stop: Dim, count: int) -> Statement:
        first = builder.variable(hint)
        statements: list[Statement] = []
        others: list[Register] = []
        for n in range(count):
            definition, other = builder.keep("key", key(first + n, statements), varying=True)
            statements.append(definition)
            others.append(other)
        for n, other in enumerate(others):
            earlier = Call("less", (Integer(first + n), Integer(position)), BOOL)
            less, equal = (Call(relation, (other, lane_key), BOOL) for relation in ("less", "equal"))
            before: Code | None = Call("logical_or", (less, Call("logical_and", (equal, earlier), BOOL)), BOOL)
            before = and_masks(before, None if exists is None else exists(first + n))
            assert before is not None
            statements.append(assign(rank, Call("add", (rank, Call("cast", (before,), INT32)), INT32)))
        return repeat(first, start, stop, count, statements)

    unrolled_stop = dims.floordiv(last, UNROLL) * UNROLL
    return [begin, loop("i", 0, unrolled_stop, UNROLL), loop("j", unrolled_stop, last, 1)], rank


# -- merging ---------------------------------------------------------------------------------------------------------


def _build_merge_launch(
    rows: SortRows, width: int, target: ThreadTarget, sources: Sequence[Reference], results: Sequence[Reference]
) -> Launch:
    """Merge runs of a width, MERGE_WIDTH at a time; sources and results are keys and positions."""
    builder = KernelBuilder("merge_runs")
    run_results = dims.minimum(rows.count, width)  # of each run
    runs = dims.ceildiv(rows.size, width)
    total = rows.rows * runs * run_results
    merge = _Merge(
        builder,
        builder.input("keys", rows.dtype, sources[0]),
        builder.input("positions", INT32, sources[1]),
        builder.output("out_keys", rows.dtype, results[0]),
        builder.output("out_positions", INT32, results[1]),
        builder.parameter("size", rows.size),
        builder.parameter("count", rows.count),
        builder.parameter("width", width),
        builder.parameter("kept", run_results),
        builder.parameter("runs", runs),
        builder.parameter("halvings", width.bit_length()),
    )
    lanes = target.block_threads
    blocks, body = build_point_body(total, lanes, builder, merge.body)
    return builder.launch(lanes, body, blocks * _has_several_runs(rows.size, width))


@dataclass(frozen=True, slots=True)
class _Merge:
    """The buffers and the sizes of a merge, as parameters of the kernel."""

    builder: KernelBuilder
    keys: Buffer
    positions: Buffer
    out_keys: Buffer
    out_positions: Buffer
    size: Dim
    count: Dim
    width: Dim
    run_results: Dim
    runs: Dim
    halvings: Dim

    def body(self, number: Dim, mask: Code | None) -> Body:
        """Write a key of a run to its place in the merged run."""
        within, rest = dims.mod(number, self.run_results), dims.floordiv(number, self.run_results)
        run, row = dims.mod(rest, self.runs), dims.floordiv(rest, self.runs)
        start, base = run * self.width, row * self.size
        group = dims.floordiv(run, MERGE_WIDTH) * MERGE_WIDTH * self.width
        exists = and_masks(mask, _below(start + within, self.size))
        assert exists is not None
        first, inside = self.builder.keep("exists", exists, varying=True)
        second, key = self.builder.keep("own", fetch(self.keys, base + start + within, mask=inside), varying=True)
        third, rank = self.builder.keep("rank", _narrow(within), varying=True)
        neighbour = self.builder.variable("s")
        statements, before = self.search(base, start, group + neighbour * self.width, key, inside)
        is_result = and_masks(inside, Call("less", (rank, _narrow(self.count)), BOOL))
        step = Call("cast", (rank,), INT64)
        position = fetch(self.positions, base + start + within, mask=inside)
        add = assign(rank, Call("add", (rank, before), INT32))
        return (
            first,
            second,
            third,
            repeat(neighbour, 0, MERGE_WIDTH, 1, (*statements, add)),
            put(self.out_keys, base + group, key, step, is_result),
            put(self.out_positions, base + group, position, step, is_result),
        )

    def search(self, base: Dim, start: Dim, other: Dim, lane_key: Code, inside: Code) -> tuple[Body, Register]:
        """Count by bisection the keys before `lane_key` in the run that starts at `other`."""
        keep = self.builder.keep
        length = dims.maximum(dims.minimum(self.run_results, self.size - other), 0)
        same = Call("equal", (Integer(other), Integer(start)), BOOL)
        with_high, high = keep("most", Call("select", (same, Number(0, INT32), _narrow(length)), INT32), varying=True)
        with_earlier, earlier = keep("earlier", Call("less", (Integer(other), Integer(start)), BOOL), varying=True)
        with_found, before_count = keep("found", Number(0, INT32), varying=True)
        with_step, step = keep("step", _narrow(self.width), varying=True)
        with_ahead, ahead = keep("ahead", Call("add", (before_count, step), INT32))
        within = and_masks(inside, Call("less_equal", (ahead, high), BOOL))
        assert within is not None
        with_fits, fits = keep("fits", within)
        with_key, key = keep("key", fetch(self.keys, base + other - 1, Call("cast", (ahead,), INT64), fits))
        less, equal = (Call(relation, (key, lane_key), BOOL) for relation in ("less", "equal"))
        before = Call("logical_or", (less, Call("logical_and", (equal, earlier), BOOL)), BOOL)
        go = and_masks(fits, before)
        assert go is not None
        bisect: Body = (
            with_ahead,
            with_fits,
            with_key,
            assign(before_count, Call("select", (go, ahead, before_count), INT32)),
            assign(step, Call("shift_right", (step, Number(1, INT32)), INT32)),
        )
        halving = repeat(self.builder.variable("b"), 0, self.halvings, 1, bisect)
        return (with_high, with_earlier, with_found, with_step, halving), before_count


def _below(position: Dim, size: Dim) -> Code:
    return Call("less", (Integer(position), Integer(size)), BOOL)


def _narrow(value: Dim) -> Code:
    return Call("cast", (Integer(value),), INT32)
