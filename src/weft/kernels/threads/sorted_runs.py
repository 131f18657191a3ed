"""Rows of integer keys sorted by threads: a thread finds the place of its key, by counting, then by searching.

Chunks of a row are sorted first: a key's place in its chunk is the number of keys that come before it. Then several
neighbouring runs at a time become one: a key's place is the sum of its places in all of them, found by bisection.
Ties keep their order. How many times runs are merged may be known to a run alone: then there are launches for the
longest rows, most of them without blocks. Keys and positions go to and fro between two pairs of workspaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Assign,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    Integer,
    Kernel,
    Number,
    Put,
    Register,
    Repeat,
    Statement,
    variable,
)
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.expressions import both
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch, Reference, Workspace
from weft.kernels.threads.lane_groups import shares
from weft.kernels.threads.thread_points import divisor, each_point, lanes_for

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


def sorted_runs(
    given: Rows, target: ThreadTarget, spaces: Sequence[Reference]
) -> tuple[list[tuple[Launch, tuple[Reference, ...]]], Dim]:
    """(launches, which pair of workspaces has the sorted rows after them: 0 or 1); the keys are in spaces[2]."""
    chunk = CHUNK if shares(target) else SMALL_CHUNK
    first, second = tuple(spaces[:2]), tuple(spaces[2:])
    launches = [(_chunks_launch(given, chunk, target), (spaces[2], *first))]
    width = chunk
    merges: Dim = 0
    while width < (given.size if isinstance(given.size, int) else dims.LARGEST_SIZE):
        launches.append((_merge_launch(given, width, target), (*first, *second)))
        first, second = second, first
        merges = merges + _is_longer(given.size, width)
        width *= MERGED
    return launches, dims.mod(merges, 2)


def _is_longer(size: Dim, width: int) -> Dim:
    """1 where a row has more than one run of a width, otherwise 0."""
    return dims.minimum(dims.floordiv(dims.maximum(size - 1, 0), width), 1)


# -- chunks ----------------------------------------------------------------------------------------------------------


def _chunks_launch(given: Rows, chunk: int, target: ThreadTarget) -> Launch:
    """Every chunk of every row in order. Buffers: keys, and for those sorted out_keys, out_positions."""
    parameters = Parameters()
    size, count = parameters.size(given.size), parameters.size(given.count)
    total = given.rows * given.size
    lanes = lanes_for(total, target)

    def body(number: Dim, mask: Code | None) -> Body:
        position = dims.mod(number, divisor(given.size, parameters))
        start = number - position
        first = dims.floordiv(position, chunk) * chunk
        last = dims.minimum(size, chunk)
        statements: list[Statement] = [Define("own", Fetch("keys", number, given.dtype, mask=mask), True)]
        own = Register("own", given.dtype, True)

        def exists(at: Dim) -> Code:
            return _below(first + at, size)

        def key(at: Dim, *_: object) -> Code:
            return Fetch("keys", start + first + at, given.dtype, mask=both(mask, exists(at)))

        statements += ranked(own, position - first, last, key, exists)
        rank = Register("rank", INT32, True)
        wanted = both(mask, Call("less", (rank, _narrow(count)), BOOL))
        place, step = start + first, Call("cast", (rank,), INT64)
        statements.append(Put("out_keys", place, own, step, wanted))
        statements.append(Put("out_positions", place, _narrow(position), step, wanted))
        return tuple(statements)

    blocks, statements = each_point(total, lanes, parameters, body)
    buffers = (
        Buffer("keys", given.dtype, False),
        Buffer("out_keys", given.dtype, True),
        Buffer("out_positions", INT32, True),
    )
    kernel = Kernel("sort_chunks", buffers, tuple(parameters.values), lanes, statements)
    return Launch(kernel, blocks, tuple(parameters.values.values()))


def ranked(
    own: Code,
    position: Dim,
    last: Dim,
    key: Callable[[Dim, str, list[Statement]], Code],
    exists: Callable[[Dim], Code] | None = None,
) -> list[Statement]:
    """How many of the keys number 0..last-1 come before a lane's own, number `position`, in the register `rank`.

    `key` gives the key of a number, `exists` a test whether there is one; statements that it needs have names that
    start with one of their own.
    """
    rank = Register("rank", INT32, True)

    def several(name: str, count: int) -> Body:
        statements: list[Statement] = []
        for n in range(count):
            value = key(variable(name) + n, f"key{n}", statements)
            statements.append(Define(f"key{n}", value, True))
        for n in range(count):
            other = Register(f"key{n}", own.dtype, True)
            earlier = Call("less", (Integer(variable(name) + n), Integer(position)), BOOL)
            less, equal = (Call(relation, (other, own), BOOL) for relation in ("less", "equal"))
            before: Code | None = Call("logical_or", (less, Call("logical_and", (equal, earlier), BOOL)), BOOL)
            before = both(before, None if exists is None else exists(variable(name) + n))
            assert before is not None
            statements.append(Assign("rank", Call("add", (rank, Call("cast", (before,), INT32)), INT32)))
        return tuple(statements)

    whole = dims.floordiv(last, UNROLLED) * UNROLLED
    return [
        Define("rank", Number(0, INT32), True),
        Repeat("i", 0, whole, UNROLLED, several("i", UNROLLED)),
        Repeat("j", whole, last, 1, several("j", 1)),
    ]


# -- merging ---------------------------------------------------------------------------------------------------------


def _merge_launch(given: Rows, width: int, target: ThreadTarget) -> Launch:
    """Runs of a width, MERGED of them as one. Buffers: keys, positions, out_keys, out_positions."""
    parameters = Parameters()
    kept = dims.minimum(given.count, width)  # of each run
    runs = dims.ceildiv(given.size, width)
    total = given.rows * runs * kept
    merge = _Merge(
        given.dtype,
        parameters.named("size", given.size),
        parameters.named("count", given.count),
        parameters.named("width", width),
        parameters.named("kept", kept),
        parameters.named("runs", runs),
        parameters.named("halvings", width.bit_length()),
    )
    lanes = target.block_threads
    blocks, body = each_point(total, lanes, parameters, merge.body)
    buffers = tuple(
        Buffer(f"{prefix}{name}", dtype, bool(prefix))
        for prefix in ("", "out_")
        for name, dtype in (("keys", given.dtype), ("positions", INT32))
    )
    kernel = Kernel("merge_runs", buffers, tuple(parameters.values), lanes, body)
    return Launch(kernel, blocks * _is_longer(given.size, width), tuple(parameters.values.values()))


@dataclass(frozen=True, slots=True)
class _Merge:
    """The sizes that a merge takes, as the kernel sees them."""

    dtype: DType
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
        rank, own = Register("rank", INT32, True), Register("own", self.dtype, True)
        inside = Register("exists", BOOL, True)
        wanted = both(inside, Call("less", (rank, _narrow(self.count)), BOOL))
        step = Call("cast", (rank,), INT64)
        position = Fetch("positions", base + start + within, INT32, mask=inside)
        return (
            Define("exists", exists, True),
            Define("own", Fetch("keys", base + start + within, self.dtype, mask=inside), True),
            Define("rank", _narrow(within), True),
            Repeat("s", 0, MERGED, 1, self.search(base, start, group + variable("s") * self.width)),
            Put("out_keys", base + group, own, step, wanted),
            Put("out_positions", base + group, position, step, wanted),
        )

    def search(self, base: Dim, start: Dim, other: Dim) -> Body:
        """How many keys of the run that starts at `other` come before a lane's own."""
        own, inside = Register("own", self.dtype, True), Register("exists", BOOL, True)
        found, step, most = (Register(name, INT32, True) for name in ("found", "step", "most"))
        earlier, ahead = Register("earlier", BOOL, True), Register("ahead", INT32, True)
        length = dims.maximum(dims.minimum(self.kept, self.size - other), 0)
        same = Call("equal", (Integer(other), Integer(start)), BOOL)
        fits = both(inside, Call("less_equal", (ahead, most), BOOL))
        key = Register("key", self.dtype, True)
        less, equal = (Call(relation, (key, own), BOOL) for relation in ("less", "equal"))
        before = Call("logical_or", (less, Call("logical_and", (equal, earlier), BOOL)), BOOL)
        go = both(Register("fits", BOOL, True), before)
        assert fits is not None
        assert go is not None
        place = Call("cast", (ahead,), INT64)
        bisect: Body = (
            Define("ahead", Call("add", (found, step), INT32), True),
            Define("fits", fits, True),
            Define("key", Fetch("keys", base + other - 1, self.dtype, place, Register("fits", BOOL, True)), True),
            Assign("found", Call("select", (go, ahead, found), INT32)),
            Assign("step", Call("shift_right", (step, Number(1, INT32)), INT32)),
        )
        return (
            Define("most", Call("select", (same, Number(0, INT32), _narrow(length)), INT32), True),
            Define("earlier", Call("less", (Integer(other), Integer(start)), BOOL), True),
            Define("found", Number(0, INT32), True),
            Define("step", _narrow(self.width), True),
            Repeat("b", 0, self.halvings, 1, bisect),
            Assign("rank", Call("add", (Register("rank", INT32, True), found), INT32)),
        )


def _below(position: Dim, size: Dim) -> Code:
    return Call("less", (Integer(position), Integer(size)), BOOL)


def _narrow(value: Dim) -> Code:
    return Call("cast", (Integer(value),), INT32)
