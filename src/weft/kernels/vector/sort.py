"""Sorting along an axis: a few elements by insertion into a short list, more by a heap, all by merge sort.

One lane sorts a row. Ties keep their order; NaN counts as greater than every number.
"""

from __future__ import annotations

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Integer, Number, Register, Statement, When
from weft.ir.layout import offset
from weft.ir.program import Sort
from weft.kernels.build.loop_nest import Body, build_loops, split_into_blocks
from weft.kernels.build.positions import as_position, position_dtype
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, put, repeat
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.operations import cast, logical_and, logical_not, logical_or
from weft.kernels.lower.tensors import Reference, StoredTensor, Work, Workspace

MAX_LIST = 32
MAX_HEAP = 2048  # elements in local memory
MAX_DOUBLINGS = {DType.int32: 31, DType.int64: 62}  # of the length of a run, by the dtype of positions

INT64, BOOL = DType.int64, DType.bool


@memoize
def build_sort(primitive: Sort, operand: StoredTensor, values: StoredTensor, positions: StoredTensor) -> Work:
    """Build a sort with two results: the sorted values, and their positions before."""
    return _SortBuilder(primitive, operand, values, positions).build()


class _SortBuilder:
    def __init__(self, primitive: Sort, operand: StoredTensor, values: StoredTensor, positions: StoredTensor) -> None:
        self.primitive = primitive
        self.operand = operand
        self.builder = KernelBuilder("sort")
        self.row_axes = [axis for axis in values.layout.order if axis != primitive.axis]
        size = operand.shape[primitive.axis]
        self.size = size
        self.runs = position_dtype(size)
        self.length = self.builder.size(size)
        self.count = self.builder.size(primitive.count)
        self.source = self.builder.input("in0", operand.dtype, Reference("operand", 0))
        self.values = self.builder.output("values", operand.dtype, Reference("result", 0))
        self.positions = self.builder.output("positions", INT64, Reference("result", 1))
        self.strides = {
            buffer: tuple(self.builder.size(stride) for stride in tensor.strides)
            for buffer, tensor in ((self.source, operand), (self.values, values), (self.positions, positions))
        }
        self.sizes = [operand.shape[axis] for axis in self.row_axes]
        count = primitive.count
        selects = isinstance(count, int) and not (isinstance(size, int) and size <= 2 * count)
        self.uses_list = selects and estimate(count) <= MAX_LIST
        self.uses_heap = selects and MAX_LIST < estimate(count) <= MAX_HEAP

    def build(self) -> Work:
        weight = estimate(self.size) * (16 if not (self.uses_list or self.uses_heap) else 4)
        blocks, spans = split_into_blocks(self.sizes, self.builder, weight)
        spaces: tuple[Workspace, ...] = ()
        if self.uses_list or self.uses_heap:
            length = max(estimate(self.primitive.count), 1)
            self.best = self.builder.local("best", self.operand.dtype, length)
            self.where = self.builder.local("where", INT64, length)
            body = build_loops(self.builder, "o", spans, self.build_list if self.uses_list else self.build_heap)
        else:
            self.run_positions = self.builder.output("runs", self.runs, Reference("workspace", 0))
            spaces = (Workspace(self.runs, 2 * self.size * dims.product(self.sizes)),)
            body = build_loops(self.builder, "o", spans, self.build_merge_sort)
        return Work((self.builder.launch(1, body, blocks),), spaces)

    # -- memory ------------------------------------------------------------------------------------------------------

    def place(self, buffer: Buffer, places: list[Dim], along: Dim) -> Dim:
        indices: list[Dim] = [0] * (len(self.row_axes) + 1)
        for axis, position in zip(self.row_axes, places, strict=True):
            indices[axis] = position
        indices[self.primitive.axis] = along
        return offset(self.strides[buffer], indices)

    def fetch_key(self, places: list[Dim], position: Code) -> Code:
        """Fetch the element at a position that depends on data."""
        stride = self.strides[self.source][self.primitive.axis]
        scaled = position if stride == 1 else Call("multiply", (position, Integer(stride)), INT64)
        return fetch(self.source, self.place(self.source, places, 0), scaled)

    def precedes(self, a: Code, b: Code) -> Code:
        """Test whether a comes strictly before b."""
        dtype = self.operand.dtype
        if dtype is BOOL:
            a, b = (Call("cast", (value,), DType.uint8) for value in (a, b))
        test = Call("greater" if self.primitive.descending else "less", (a, b), BOOL)
        if not dtype.is_float:
            return test
        first, second = (a, b) if self.primitive.descending else (b, a)
        second_is_number = logical_not(Call("is_nan", (second,), BOOL))
        return logical_or(test, logical_and(Call("is_nan", (first,), BOOL), second_is_number))

    # -- a short list ------------------------------------------------------------------------------------------------

    def build_list(self, places: list[Dim]) -> Body:
        """Keep the best so far in a sorted list; insert a new one, and move those after it by one."""
        last = self.primitive.count - 1
        if not isinstance(last, int) or last < 0:
            return ()
        i, k = self.builder.variable("i"), self.builder.variable("k")
        read_new, new = self.builder.keep("new", fetch(self.source, self.place(self.source, places, i)))
        unfilled = Call("less_equal", (Integer(i), Integer(last)), BOOL)
        earlier = logical_or(unfilled, self.precedes(new, fetch(self.best, last)))
        insert = (read_new, When(earlier, self.build_insert(i, last + 1, new)))
        copy = (
            put(self.values, self.place(self.values, places, k), fetch(self.best, k)),
            put(self.positions, self.place(self.positions, places, k), fetch(self.where, k)),
        )
        clear = (put(self.best, k, _zero_of(self.operand.dtype)), put(self.where, k, Number(0, INT64)))
        return (
            repeat(k, 0, last + 1, 1, clear),
            repeat(i, 0, self.length, 1, insert),
            repeat(k, 0, last + 1, 1, copy),
        )

    def build_insert(self, i: Dim, length: int, new: Register) -> Body:
        """Insert element i: from its position on, each entry of the list is swapped with the one carried along."""
        k = self.builder.variable("k")
        begin, at = self.builder.keep("at", Integer(i))
        begin_moves, moves = self.builder.keep("moves", Number(False, BOOL))
        read_old, old = self.builder.keep("old", fetch(self.best, k))
        read_old_at, old_at = self.builder.keep("old_at", fetch(self.where, k))
        free = Call("greater_equal", (Integer(k), Integer(i)), BOOL)
        change = (read_old_at, put(self.best, k, new), put(self.where, k, at), assign(new, old), assign(at, old_at))
        step = (
            read_old,
            assign(moves, logical_or(moves, logical_or(free, self.precedes(new, old)))),
            When(moves, change),
        )
        return begin, begin_moves, repeat(k, 0, length, 1, step)

    # -- a heap ------------------------------------------------------------------------------------------------------

    def build_heap(self, places: list[Dim]) -> Body:
        """Keep the best so far in a heap with the worst on top, which a better one replaces; pop them in order."""
        count = self.primitive.count
        assert isinstance(count, int)
        i, j = self.builder.variable("i"), self.builder.variable("j")
        k, m = self.builder.variable("k"), self.builder.variable("m")
        size = Number(count, INT64)
        fill = (
            put(self.best, k, fetch(self.source, self.place(self.source, places, k))),
            put(self.where, k, Integer(k)),
        )
        middle = count // 2 - 1 - j
        read_old, old = self.builder.keep("old", fetch(self.best, middle))
        read_old_at, old_at = self.builder.keep("old_at", fetch(self.where, middle))
        order = (read_old, read_old_at, *self.build_sift(Integer(middle), size, old, old_at))
        read_new, new = self.builder.keep("new", fetch(self.source, self.place(self.source, places, i)))
        begin, at = self.builder.keep("at", Integer(i))
        better = self.precedes(new, fetch(self.best, 0))
        insert = (read_new, When(better, (begin, *self.build_sift(Number(0, INT64), size, new, at))))
        last = count - 1 - m
        read_end, end = self.builder.keep("end", fetch(self.best, last))
        read_end_at, end_at = self.builder.keep("end_at", fetch(self.where, last))
        pop = (
            put(self.values, self.place(self.values, places, last), fetch(self.best, 0)),
            put(self.positions, self.place(self.positions, places, last), fetch(self.where, 0)),
            read_end,
            read_end_at,
            *self.build_sift(Number(0, INT64), Integer(last), end, end_at),
        )
        return (
            repeat(k, 0, count, 1, fill),
            repeat(j, 0, count // 2, 1, order),
            repeat(i, count, self.length, 1, insert),
            repeat(m, 0, count, 1, pop),
        )

    def build_sift(self, start: Code, size: Code, new: Register, new_at: Register) -> Body:
        """Put an element at `start` of a heap, and move worse ones above it."""
        count = self.primitive.count
        assert isinstance(count, int)
        begin, at = self.builder.keep("hole", start)
        begin_going, going = self.builder.keep("going", Number(True, BOOL))
        one = Number(1, INT64)
        below, left = self.builder.keep("left", Call("add", (Call("add", (at, at), INT64), one), INT64))
        right_index = Call("minimum", (Call("add", (left, one), INT64), Call("subtract", (size, one), INT64)), INT64)
        beside, right = self.builder.keep("right", right_index)
        values = [self.builder.keep("value", fetch(self.best, 0, place)) for place in (left, right)]
        spots = [self.builder.keep("spot", fetch(self.where, 0, place)) for place in (left, right)]
        (read_left, a), (read_right, b) = values
        (find_left, a_at), (find_right, b_at) = spots
        choose, other = self.builder.keep("other", self.is_worse(b, b_at, a, a_at))
        take, worst = self.builder.keep("worst", Call("select", (other, b, a), self.operand.dtype))
        take_at, worst_at = self.builder.keep("worst_at", Call("select", (other, b_at, a_at), INT64))
        move = (
            put(self.best, 0, worst, at),
            put(self.where, 0, worst_at, at),
            assign(at, Call("select", (other, right, left), INT64)),
        )
        inside = (
            *(beside, read_left, read_right, find_left, find_right, choose, take, take_at),
            assign(going, self.is_worse(worst, worst_at, new, new_at)),
            When(going, move),
        )
        more = logical_and(going, Call("less", (left, size), BOOL))
        levels = repeat(self.builder.variable("level"), 0, count.bit_length(), 1, (below, When(more, inside)))
        return (begin, begin_going, levels, put(self.best, 0, new, at), put(self.where, 0, new_at, at))

    def is_worse(self, a: Code, a_at: Code, b: Code, b_at: Code) -> Code:
        """Test whether a comes after b; of equal elements, the later one does."""
        equal = logical_not(self.precedes(a, b))
        later = logical_and(equal, Call("greater", (a_at, b_at), BOOL))
        return logical_or(self.precedes(b, a), later)

    # -- merging -----------------------------------------------------------------------------------------------------

    def build_merge_sort(self, places: list[Dim]) -> Body:
        """Merge runs of doubling length, alternating between two halves of the workspace."""
        row: Dim = 0
        for extent, place in zip(self.sizes, places, strict=True):
            row = row * self.builder.size(extent) + place
        base = row * self.length * 2
        i = self.builder.variable("i")
        begin_width, width = self.builder.keep("width", Number(1, INT64))
        begin_source, source = self.builder.keep("source", Number(0, INT64))
        size = Integer(self.length)
        unsorted = Call("less", (width, size), BOOL)
        merge = (
            *self.build_merge(places, base, width, source),
            assign(width, Call("add", (width, width), INT64)),
            assign(source, Call("subtract", (size, source), INT64)),
        )
        passes = repeat(self.builder.variable("p"), 0, MAX_DOUBLINGS[self.runs], 1, (When(unsorted, merge),))
        choose, chosen = self.builder.keep("chosen", cast(fetch(self.run_positions, base + i, source), INT64))
        copy = (
            choose,
            put(self.values, self.place(self.values, places, i), self.fetch_key(places, chosen)),
            put(self.positions, self.place(self.positions, places, i), chosen),
        )
        number = as_position(i, self.runs)
        return (
            repeat(i, 0, self.length, 1, (put(self.run_positions, base + i, number),)),
            begin_width,
            begin_source,
            passes,
            repeat(i, 0, self.count, 1, copy),
        )

    def build_merge(self, places: list[Dim], base: Dim, width: Register, source: Register) -> list[Statement]:
        """Merge each pair of neighbouring runs into the other half, element by element from the left or the right."""
        bounds = [self.builder.register(name, INT64, False) for name in ("left", "right", "middle", "end")]
        left, right, middle, end = bounds
        i = self.builder.variable("i")
        size = Integer(self.length)

        def clamp(value: Code) -> Code:
            return Call("minimum", (value, size), INT64)

        def entry(register: Register) -> tuple[Statement, Register]:
            """Fetch a run's next position; past its end the value is arbitrary and not used."""
            place = Call("add", (source, Call("minimum", (register, Integer(self.length - 1)), INT64)), INT64)
            return self.builder.keep("entry", cast(fetch(self.run_positions, base, place), INT64))

        has_left, has_right = Call("less", (left, middle), BOOL), Call("less", (right, end), BOOL)
        take_a, a = entry(left)
        take_b, b = entry(right)
        sooner = self.precedes(self.fetch_key(places, b), self.fetch_key(places, a))
        no_left = logical_not(has_left)
        target = Call("subtract", (size, source), INT64)
        decide, from_right = self.builder.keep("from_right", logical_and(has_right, logical_or(no_left, sooner)))
        one = Call("cast", (from_right,), INT64)
        step: Body = (
            When(
                Call("equal", (Integer(i), end), BOOL),
                (
                    assign(left, end),
                    assign(middle, clamp(Call("add", (left, width), INT64))),
                    assign(right, middle),
                    assign(end, clamp(Call("add", (middle, width), INT64))),
                ),
            ),
            take_a,
            take_b,
            decide,
            put(self.run_positions, base + i, cast(Call("select", (from_right, b, a), INT64), self.runs), target),
            assign(right, Call("add", (right, one), INT64)),
            assign(left, Call("add", (left, Call("subtract", (Number(1, INT64), one), INT64)), INT64)),
        )
        return [*(define(bound, Number(0, INT64)) for bound in bounds), repeat(i, 0, self.length, 1, step)]


def _zero_of(dtype: DType) -> Number:
    return Number(dtype.numpy.type(0).item(), dtype)
