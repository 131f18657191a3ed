"""Rows of integer keys sorted by threads: a thread finds the place of its key, by counting, then by searching.

Chunks of a row are sorted first: a key's place in its chunk is the number of keys that come before it. Then several
neighbouring runs at a time become one: a key's place is the sum of its places in all of them, found by bisection.
Ties keep their order. How many times runs are merged may be known to a run alone: then there are launches for the
longest rows, most of them without blocks. Keys and positions go to and fro between two pairs of workspaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Integer, Number, Register, Statement
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.expressions import both
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, fetch, put, repeat
from weft.kernels.lower.tensors import Launch, Reference, Workspace
from weft.kernels.threads.lane_groups import shares
from weft.kernels.threads.points import divisor, each_point, lanes_for
from weft.records import dataclass

BOOL, INT32, INT64 = DType.bool, DType.int32, DType.int64
CHUNK = 512  # elements, a power of two
SMALL_CHUNK = 256  # where threads are few
MERGED = 4  # runs that become one
UNROLLED = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """So many rows of `size` keys each, of which the first `count` in order are wanted."""

    rows: Dim
    size: Dim
    count: Dim
    dtype: DType  # of the keys: int32 or int64


def workspaces(given: Rows) -> tuple[Workspace, ...]:
    """Keys and positions, twice; the keys to sort are in the third."""
    total = given.rows * given.size
    return tuple(Workspace(dtype, total) for _ in range(2) for dtype in (given.dtype, INT32))


def sorted_runs(given: Rows, target: ThreadTarget, spaces: Sequence[Reference]) -> tuple[list[Launch], Dim]:
    """(launches, which pair of workspaces has the sorted rows after them: 0 or 1); the keys are in spaces[2]."""
    chunk = CHUNK if shares(target) else SMALL_CHUNK
    first, second = tuple(spaces[:2]), tuple(spaces[2:])
    launches = [_chunks_launch(given, chunk, target, spaces[2], first)]
    width = chunk
    merges: Dim = 0
    while width < (given.size if isinstance(given.size, int) else dims.LARGEST_SIZE):
        launches.append(_merge_launch(given, width, target, first, second))
        first, second = second, first
        merges = merges + _is_longer(given.size, width)
        width *= MERGED
    return launches, dims.mod(merges, 2)


def _is_longer(size: Dim, width: int) -> Dim:
    """1 where a row has more than one run of a width, otherwise 0."""
    return dims.minimum(dims.floordiv(dims.maximum(size - 1, 0), width), 1)


# -- chunks ----------------------------------------------------------------------------------------------------------


def _chunks_launch(
    given: Rows, chunk: int, target: ThreadTarget, source: Reference, results: Sequence[Reference]
) -> Launch:
    """Every chunk of every row in order; the results are sorted keys, and where they stood."""
    builder = KernelBuilder("sort_chunks")
    keys = builder.input("keys", given.dtype, source)
    out_keys = builder.output("out_keys", given.dtype, results[0])
    out_positions = builder.output("out_positions", INT32, results[1])
    size, count = builder.size(given.size), builder.size(given.count)
    total = given.rows * given.size
    lanes = lanes_for(total, target)

    def body(number: Dim, mask: Code | None) -> Body:
        position = dims.mod(number, divisor(given.size, builder))
        start = number - position
        first = dims.floordiv(position, chunk) * chunk
        last = dims.minimum(size, chunk)
        defined, own = builder.keep("own", fetch(keys, number, mask=mask), varying=True)

        def exists(at: Dim) -> Code:
            return _below(first + at, size)

        def key(at: Dim, _: list[Statement]) -> Code:
            return fetch(keys, start + first + at, mask=both(mask, exists(at)))

        counted, rank = ranked(builder, own, position - first, last, key, exists)
        wanted = both(mask, Call("less", (rank, _narrow(count)), BOOL))
        place, step = start + first, Call("cast", (rank,), INT64)
        return (
            defined,
            *counted,
            put(out_keys, place, own, step, wanted),
            put(out_positions, place, _narrow(position), step, wanted),
        )

    blocks, statements = each_point(total, lanes, builder, body)
    return builder.launch(lanes, statements, blocks)


def ranked(
    builder: KernelBuilder,
    own: Code,
    position: Dim,
    last: Dim,
    key: Callable[[Dim, list[Statement]], Code],
    exists: Callable[[Dim], Code] | None = None,
) -> tuple[list[Statement], Register]:
    """How many of the keys number 0..last-1 come before a lane's own, number `position`.

    `key` gives the key of a number, with statements that it needs; `exists` is a test whether there is one.
    """
    begin, rank = builder.keep("rank", Number(0, INT32), varying=True)

    def several(hint: str, start: Dim, stop: Dim, count: int) -> Statement:
        first = builder.variable(hint)
        statements: list[Statement] = []
        others: list[Register] = []
        for n in range(count):
            defined, other = builder.keep("key", key(first + n, statements), varying=True)
            statements.append(defined)
            others.append(other)
        for n, other in enumerate(others):
            earlier = Call("less", (Integer(first + n), Integer(position)), BOOL)
            less, equal = (Call(relation, (other, own), BOOL) for relation in ("less", "equal"))
            before: Code | None = Call("logical_or", (less, Call("logical_and", (equal, earlier), BOOL)), BOOL)
            before = both(before, None if exists is None else exists(first + n))
            assert before is not None
            statements.append(assign(rank, Call("add", (rank, Call("cast", (before,), INT32)), INT32)))
        return repeat(first, start, stop, count, statements)

    whole = dims.floordiv(last, UNROLLED) * UNROLLED
    return [begin, several("i", 0, whole, UNROLLED), several("j", whole, last, 1)], rank


# -- merging ---------------------------------------------------------------------------------------------------------


def _merge_launch(
    given: Rows, width: int, target: ThreadTarget, sources: Sequence[Reference], results: Sequence[Reference]
) -> Launch:
    """Runs of a width, MERGED of them as one; sources and results are keys and positions."""
    builder = KernelBuilder("merge_runs")
    kept = dims.minimum(given.count, width)  # of each run
    runs = dims.ceildiv(given.size, width)
    total = given.rows * runs * kept
    merge = _Merge(
        builder,
        builder.input("keys", given.dtype, sources[0]),
        builder.input("positions", INT32, sources[1]),
        builder.output("out_keys", given.dtype, results[0]),
        builder.output("out_positions", INT32, results[1]),
        builder.named("size", given.size),
        builder.named("count", given.count),
        builder.named("width", width),
        builder.named("kept", kept),
        builder.named("runs", runs),
        builder.named("halvings", width.bit_length()),
    )
    lanes = target.block_threads
    blocks, body = each_point(total, lanes, builder, merge.body)
    return builder.launch(lanes, body, blocks * _is_longer(given.size, width))


@dataclass(frozen=True, slots=True)
class _Merge:
    """The buffers and sizes that a merge takes, as the kernel sees them."""

    builder: KernelBuilder
    keys: Buffer
    positions: Buffer
    out_keys: Buffer
    out_positions: Buffer
    size: Dim
    count: Dim
    width: Dim
    kept: Dim
    runs: Dim
    halvings: Dim

    def body(self, number: Dim, mask: Code | None) -> Body:
        """A key of a run: its place among those of its neighbours."""
        within, rest = dims.mod(number, self.kept), dims.floordiv(number, self.kept)
        run, row = dims.mod(rest, self.runs), dims.floordiv(rest, self.runs)
        start, base = run * self.width, row * self.size
        group = dims.floordiv(run, MERGED) * MERGED * self.width
        exists = both(mask, _below(start + within, self.size))
        assert exists is not None
        first, inside = self.builder.keep("exists", exists, varying=True)
        second, own = self.builder.keep("own", fetch(self.keys, base + start + within, mask=inside), varying=True)
        third, rank = self.builder.keep("rank", _narrow(within), varying=True)
        neighbour = self.builder.variable("s")
        taken = self.search(base, start, group + neighbour * self.width, own, inside)
        wanted = both(inside, Call("less", (rank, _narrow(self.count)), BOOL))
        step = Call("cast", (rank,), INT64)
        position = fetch(self.positions, base + start + within, mask=inside)
        statements, found = taken
        added = assign(rank, Call("add", (rank, found), INT32))
        return (
            first,
            second,
            third,
            repeat(neighbour, 0, MERGED, 1, (*statements, added)),
            put(self.out_keys, base + group, own, step, wanted),
            put(self.out_positions, base + group, position, step, wanted),
        )

    def search(self, base: Dim, start: Dim, other: Dim, own: Code, inside: Code) -> tuple[Body, Register]:
        """How many keys of the run that starts at `other` come before a lane's own."""
        keep = self.builder.keep
        length = dims.maximum(dims.minimum(self.kept, self.size - other), 0)
        same = Call("equal", (Integer(other), Integer(start)), BOOL)
        with_most, most = keep("most", Call("select", (same, Number(0, INT32), _narrow(length)), INT32), varying=True)
        with_earlier, earlier = keep("earlier", Call("less", (Integer(other), Integer(start)), BOOL), varying=True)
        with_found, found = keep("found", Number(0, INT32), varying=True)
        with_step, step = keep("step", _narrow(self.width), varying=True)
        with_ahead, ahead = keep("ahead", Call("add", (found, step), INT32))
        within = both(inside, Call("less_equal", (ahead, most), BOOL))
        assert within is not None
        with_fits, fits = keep("fits", within)
        with_key, key = keep("key", fetch(self.keys, base + other - 1, Call("cast", (ahead,), INT64), fits))
        less, equal = (Call(relation, (key, own), BOOL) for relation in ("less", "equal"))
        before = Call("logical_or", (less, Call("logical_and", (equal, earlier), BOOL)), BOOL)
        go = both(fits, before)
        assert go is not None
        bisect: Body = (
            with_ahead,
            with_fits,
            with_key,
            assign(found, Call("select", (go, ahead, found), INT32)),
            assign(step, Call("shift_right", (step, Number(1, INT32)), INT32)),
        )
        halving = repeat(self.builder.variable("b"), 0, self.halvings, 1, bisect)
        return (with_most, with_earlier, with_found, with_step, halving), found


def _below(position: Dim, size: Dim) -> Code:
    return Call("less", (Integer(position), Integer(size)), BOOL)


def _narrow(value: Dim) -> Code:
    return Call("cast", (Integer(value),), INT32)
