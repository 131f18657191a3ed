"""Sorting along an axis: the first few by insertion into a short list, all by merging runs of positions.

Each row is done by one lane. Ties keep their order; NaN counts as greater than every number.
"""

from __future__ import annotations

from weft.cost.sizes import estimate
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
    When,
    variable,
)
from weft.ir.layout import offset
from weft.ir.program import Sort
from weft.kernels.build.loop_nest import Body, loops, spread
from weft.kernels.build.positions import as_position, position_dtype
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch, Reference, Tensor, Work, Workspace

SHORT_LIST = 32
MOST_DOUBLINGS = {DType.int32: 31, DType.int64: 62}  # of a run, until it is as long as positions can tell

INT64, BOOL = DType.int64, DType.bool


def sort_work(primitive: Sort, operand: Tensor, values: Tensor, positions: Tensor) -> Work:
    """Results: the sorted values, and where they stood."""
    return _Sorting(primitive, operand, values, positions).work()


class _Sorting:
    def __init__(self, primitive: Sort, operand: Tensor, values: Tensor, positions: Tensor) -> None:
        self.primitive = primitive
        self.operand = operand
        self.parameters = Parameters()
        self.kept = [axis for axis in values.layout.order if axis != primitive.axis]
        size = operand.shape[primitive.axis]
        self.size = size
        self.runs = position_dtype(size)
        self.length = self.parameters.size(size)
        self.count = self.parameters.size(primitive.count)
        self.strides = {
            name: tuple(self.parameters.size(stride) for stride in tensor.strides)
            for name, tensor in (("in0", operand), ("values", values), ("positions", positions))
        }
        self.sizes = [operand.shape[axis] for axis in self.kept]
        few = isinstance(primitive.count, int) and primitive.count <= SHORT_LIST
        self.lists = few and not (isinstance(size, int) and size <= 2 * estimate(primitive.count))

    def work(self) -> Work:
        weight = estimate(self.size) * (4 if self.lists else 16)
        blocks, spans = spread(self.sizes, self.parameters, weight)
        body = loops(spans, "o", self.short_list if self.lists else self.merge_sort)
        dtype = self.operand.dtype
        buffers = [
            Buffer("in0", dtype, False),
            Buffer("values", dtype, True),
            Buffer("positions", INT64, True),
        ]
        references = [Reference("operand", 0), Reference("result", 0), Reference("result", 1)]
        spaces: tuple[Workspace, ...] = ()
        if self.lists:
            length = max(estimate(self.primitive.count), 1)
            buffers += [Buffer("best", dtype, True, length), Buffer("where", INT64, True, length)]
        else:
            buffers.append(Buffer("runs", self.runs, True))
            references.append(Reference("workspace", 0))
            spaces = (Workspace(self.runs, 2 * self.size * dims.product(self.sizes)),)
        kernel = Kernel("sort", tuple(buffers), tuple(self.parameters.values), 1, body)
        launch = Launch(kernel, blocks, tuple(self.parameters.values.values()))
        return Work(((launch, tuple(references)),), spaces)

    # -- memory ------------------------------------------------------------------------------------------------------

    def place(self, name: str, places: list[Dim], along: Dim) -> Dim:
        indices: list[Dim] = [0] * (len(self.kept) + 1)
        for axis, position in zip(self.kept, places, strict=True):
            indices[axis] = position
        indices[self.primitive.axis] = along
        return offset(self.strides[name], indices)

    def key(self, places: list[Dim], position: Code) -> Code:
        """The element at a position that data decides."""
        stride = self.strides["in0"][self.primitive.axis]
        scaled = position if stride == 1 else Call("multiply", (position, Integer(stride)), INT64)
        return Fetch("in0", self.place("in0", places, 0), self.operand.dtype, scaled)

    def before(self, a: Code, b: Code) -> Code:
        """Whether a must come before b; not so where they are equal."""
        dtype = self.operand.dtype
        if dtype is BOOL:
            a, b = (Call("cast", (value,), DType.uint8) for value in (a, b))
        test = Call("greater" if self.primitive.descending else "less", (a, b), BOOL)
        if not dtype.is_float:
            return test
        first, second = (a, b) if self.primitive.descending else (b, a)
        other = Call("logical_not", (Call("is_nan", (second,), BOOL),), BOOL)
        lone = Call("logical_and", (Call("is_nan", (first,), BOOL), other), BOOL)
        return Call("logical_or", (test, lone), BOOL)

    # -- a short list ------------------------------------------------------------------------------------------------

    def short_list(self, places: list[Dim]) -> Body:
        """The best so far, in order; a new one is put in place, and those after it move on by one."""
        last = self.primitive.count - 1
        if not isinstance(last, int) or last < 0:
            return ()
        dtype = self.operand.dtype
        i, k = variable("i"), variable("k")
        new = Register("new", dtype, False)
        unfilled = Call("less_equal", (Integer(i), Integer(last)), BOOL)
        begin = (Define("at", Integer(i), False), Define("moves", Number(False, BOOL), False))
        take = (
            Define("new", Fetch("in0", self.place("in0", places, i), dtype), False),
            When(
                _or(unfilled, self.before(new, Fetch("best", last, dtype))),
                (*begin, Repeat("k", 0, last + 1, 1, self.insert(i, k))),
            ),
        )
        copy = (
            Put("values", self.place("values", places, k), Fetch("best", k, dtype)),
            Put("positions", self.place("positions", places, k), Fetch("where", k, INT64)),
        )
        clear = (Put("best", k, _zero(dtype)), Put("where", k, Number(0, INT64)))
        return (
            Repeat("k", 0, last + 1, 1, clear),
            Repeat("i", 0, self.length, 1, take),
            Repeat("k", 0, last + 1, 1, copy),
        )

    def insert(self, i: Dim, k: Dim) -> Body:
        """At place k of the list: from where element i belongs on, what is there changes with what is at hand."""
        dtype = self.operand.dtype
        new, old = Register("new", dtype, False), Register("old", dtype, False)
        at, old_at = Register("at", INT64, False), Register("old_at", INT64, False)
        moves = Register("moves", BOOL, False)
        free = Call("greater_equal", (Integer(k), Integer(i)), BOOL)
        change = (
            Define("old_at", Fetch("where", k, INT64), False),
            Put("best", k, new),
            Put("where", k, at),
            Assign("new", old),
            Assign("at", old_at),
        )
        return (
            Define("old", Fetch("best", k, dtype), False),
            Assign("moves", _or(moves, _or(free, self.before(new, old)))),
            When(moves, change),
        )

    # -- merging -----------------------------------------------------------------------------------------------------

    def merge_sort(self, places: list[Dim]) -> Body:
        """Runs of twice the width each time, to and fro between two halves of the workspace."""
        row: Dim = 0
        for extent, place in zip(self.sizes, places, strict=True):
            row = row * self.parameters.size(extent) + place
        base = row * self.length * 2
        i = variable("i")
        width, source = Register("width", INT64, False), Register("source", INT64, False)
        size = Integer(self.length)
        unsorted = Call("less", (width, size), BOOL)
        passes = Repeat(
            "p",
            0,
            MOST_DOUBLINGS[self.runs],
            1,
            (
                When(
                    unsorted,
                    (
                        *self.merge_runs(places, base),
                        Assign("width", Call("add", (width, width), INT64)),
                        Assign("source", Call("subtract", (size, source), INT64)),
                    ),
                ),
            ),
        )
        chosen = Register("chosen", INT64, False)
        copy = (
            Define("chosen", _wide(Fetch("runs", base + i, self.runs, source)), False),
            Put("values", self.place("values", places, i), self.key(places, chosen)),
            Put("positions", self.place("positions", places, i), chosen),
        )
        number = as_position(i, self.runs)
        return (
            Repeat("i", 0, self.length, 1, (Put("runs", base + i, number),)),
            Define("width", Number(1, INT64), False),
            Define("source", Number(0, INT64), False),
            passes,
            Repeat("i", 0, self.count, 1, copy),
        )

    def merge_runs(self, places: list[Dim], base: Dim) -> list[Statement]:
        """Every pair of neighbouring runs as one: each place of the other half takes from the left or the right."""
        registers = {
            name: Register(name, INT64, False) for name in ("left", "right", "middle", "end", "width", "source")
        }
        left, right, middle, end, width, source = registers.values()
        i = variable("i")
        size = Integer(self.length)

        def cut(value: Code) -> Code:
            return Call("minimum", (value, size), INT64)

        def entry(name: str, register: Register) -> Define:
            """A run's next position; beyond its end whatever is there, which is not taken."""
            place = Call("add", (source, Call("minimum", (register, Integer(self.length - 1)), INT64)), INT64)
            return Define(name, _wide(Fetch("runs", base, self.runs, place)), False)

        has_left, has_right = Call("less", (left, middle), BOOL), Call("less", (right, end), BOOL)
        a, b = Register("a", INT64, False), Register("b", INT64, False)
        from_right = Register("from_right", BOOL, False)
        sooner = self.before(self.key(places, b), self.key(places, a))
        no_left = Call("logical_not", (has_left,), BOOL)
        target = Call("subtract", (size, source), INT64)
        one = Call("cast", (from_right,), INT64)
        step: Body = (
            When(
                Call("equal", (Integer(i), end), BOOL),
                (
                    Assign("left", end),
                    Assign("middle", cut(Call("add", (left, width), INT64))),
                    Assign("right", middle),
                    Assign("end", cut(Call("add", (middle, width), INT64))),
                ),
            ),
            entry("a", left),
            entry("b", right),
            Define("from_right", Call("logical_and", (has_right, _or(no_left, sooner)), BOOL), False),
            Put("runs", base + i, self._narrow(Call("select", (from_right, b, a), INT64)), target),
            Assign("right", Call("add", (right, one), INT64)),
            Assign("left", Call("add", (left, Call("subtract", (Number(1, INT64), one), INT64)), INT64)),
        )
        begin = [Define(name, Number(0, INT64), False) for name in ("left", "right", "middle", "end")]
        return [*begin, Repeat("i", 0, self.length, 1, step)]

    def _narrow(self, value: Code) -> Code:
        """A position as runs have it."""
        return value if self.runs is INT64 else Call("cast", (value,), self.runs)


def _or(a: Code, b: Code) -> Code:
    return Call("logical_or", (a, b), BOOL)


def _wide(value: Code) -> Code:
    return value if value.dtype is INT64 else Call("cast", (value,), INT64)


def _zero(dtype: DType) -> Number:
    return Number(dtype.numpy.type(0).item(), dtype)
