"""Sorting along an axis by threads: elements as integer keys of the same order, then runs of these (see runs.py).

A short row needs no runs: a thread counts the elements that come before its own and writes it there.
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
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
    Statement,
    is_varying,
)
from weft.ir.layout import offset
from weft.ir.program import Sort
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.expressions import both
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch, Reference, Tensor, Work
from weft.kernels.threads.sorted_runs import Rows, ranked, sorted_runs, workspaces
from weft.kernels.threads.thread_points import digits, divisor, each_point, lanes_for

BOOL, INT32, INT64 = DType.bool, DType.int32, DType.int64
SHORT_ROW = 128  # elements that are made keys for every comparison
LONGEST_COUNTED = 2048  # elements of a row that are counted, all of them for each


def sort_work(primitive: Sort, operand: Tensor, values: Tensor, positions: Tensor, target: ThreadTarget) -> Work:
    """Results: the sorted values, and where they stood."""
    return _Sorting(primitive, operand, values, positions, target).work()


def key_dtype(dtype: DType) -> DType:
    """Integers that hold an order of the type."""
    return INT64 if dtype.numpy.itemsize == 8 else INT32


def order_key(value: Code, descending: bool, name: str, statements: list[Statement]) -> Code:
    """An integer that is less than another's where the value comes before the other one: NaN is the greatest number."""
    dtype = value.dtype
    whole = key_dtype(dtype)
    least = int(whole.limits[0])
    if dtype.is_float:
        key = _float_key(value, whole, name, statements)
    elif dtype in (DType.uint32, DType.uint64):
        key = Call("bit_xor", (Call("bitcast", (value,), whole), Number(least, whole)), whole)
    else:
        key = value if dtype is whole else Call("cast", (value,), whole)
    return Call("bit_not", (key,), whole) if descending else key


def _float_key(value: Code, whole: DType, name: str, statements: list[Statement]) -> Code:
    """The bits of a number, those of the magnitude turned over where it is negative; both zeros are one."""
    number = DType.float64 if whole is INT64 else DType.float32
    if value.dtype is not number:
        value = Call("cast", (value,), number)
    varying = is_varying(value)
    bits = Register(f"{name}_bits", whole, varying)
    size = Register(f"{name}_size", whole, varying)
    greatest = int(whole.limits[1])
    infinite = 0x7FF << 52 if whole is INT64 else 0xFF << 23
    statements.append(Define(bits.name, Call("bitcast", (value,), whole), varying))
    statements.append(Define(size.name, Call("bit_and", (bits, Number(greatest, whole)), whole), varying))
    positive = Call("greater_equal", (bits, Number(0, whole)), BOOL)
    key = Call("select", (positive, size, Call("negate", (size,), whole)), whole)
    nan = Call("greater", (size, Number(infinite, whole)), BOOL)
    return Call("select", (nan, Number(greatest, whole), key), whole)


class _Sorting:
    def __init__(
        self, primitive: Sort, operand: Tensor, values: Tensor, positions: Tensor, target: ThreadTarget
    ) -> None:
        self.primitive = primitive
        self.operand = operand
        self.tensors = {"in0": operand, "values": values, "positions": positions}
        self.target = target
        self.kept = [axis for axis in values.layout.order if axis != primitive.axis]
        self.sizes = [operand.shape[axis] for axis in self.kept]
        self.size = operand.shape[primitive.axis]
        self.rows = dims.product(self.sizes)
        self.key = key_dtype(operand.dtype)

    def work(self) -> Work:
        if isinstance(self.size, int) and self.size <= SHORT_ROW:
            given = (Reference("operand", 0), Reference("result", 0), Reference("result", 1))
            return Work(((self.counting(made=False), given),))
        rows = Rows(self.rows, self.size, self.primitive.count, self.key)
        spaces = [Reference("workspace", number) for number in range(4)]
        results = (Reference("result", 0), Reference("result", 1))
        if isinstance(self.size, int) and self.size <= LONGEST_COUNTED:
            keys = (self.keys(), (Reference("operand", 0), spaces[0]))
            counting = (self.counting(made=True), (Reference("operand", 0), spaces[0], *results))
            return Work((keys, counting), workspaces(rows)[:1])
        runs, last = sorted_runs(rows, self.target, spaces)
        gather = (self.gathering(last), (Reference("operand", 0), spaces[1], spaces[3], *results))
        return Work(((self.keys(), (Reference("operand", 0), spaces[2])), *runs, gather), workspaces(rows))

    # -- kernels -----------------------------------------------------------------------------------------------------

    def keys(self) -> Launch:
        """Every element as a key, rows one after the other."""
        parameters = Parameters()
        total = self.rows * self.size
        lanes = lanes_for(total, self.target)

        def body(number: Dim, mask: Code | None) -> Body:
            row, position = self.split(number, parameters)
            place = self.place("in0", row, position, parameters)
            statements: list[Statement] = [Define("own", Fetch("in0", place, self.operand.dtype, mask=mask), True)]
            own = Register("own", self.operand.dtype, True)
            key = order_key(own, self.primitive.descending, "own", statements)
            return (*statements, Put("keys", number, key, mask=mask))

        blocks, statements = each_point(total, lanes, parameters, body)
        buffers = (Buffer("in0", self.operand.dtype, False), Buffer("keys", self.key, True))
        kernel = Kernel("sort_keys", buffers, tuple(parameters.values), lanes, statements)
        return Launch(kernel, blocks, tuple(parameters.values.values()))

    def counting(self, *, made: bool) -> Launch:
        """Every element to the place that is the number of those before it. `made`: there are keys already."""
        parameters = Parameters()
        total = self.rows * self.size
        lanes = lanes_for(total, self.target)
        dtype = self.operand.dtype

        def body(number: Dim, mask: Code | None) -> Body:
            row, position = self.split(number, parameters)
            statements: list[Statement] = []

            def key_at(at: Dim, name: str, to: list[Statement]) -> Code:
                if made:
                    return Fetch("keys", number - position + at, self.key, mask=mask)
                element = Register(f"{name}_element", dtype, True)
                fetch = Fetch("in0", self.place("in0", row, at, parameters), dtype, mask=mask)
                to.append(Define(element.name, fetch, True))
                return order_key(element, self.primitive.descending, name, to)

            statements.append(Define("own", key_at(position, "mine", statements), True))
            own, rank = Register("own", self.key, True), Register("rank", INT32, True)
            statements += ranked(own, position, parameters.size(self.size), key_at)
            count = Call("cast", (Integer(parameters.size(self.primitive.count)),), INT32)
            wanted = both(mask, Call("less", (rank, count), BOOL))
            element = Fetch("in0", self.place("in0", row, position, parameters), dtype, mask=mask)
            for name, value in (("values", element), ("positions", Integer(position))):
                place = self.place(name, row, 0, parameters)
                statements.append(Put(name, place, value, self.along(name, rank, parameters), wanted))
            return tuple(statements)

        blocks, statements = each_point(total, lanes, parameters, body)
        keys = (Buffer("keys", self.key, False),) if made else ()
        buffers = (Buffer("in0", dtype, False), *keys, *self.results())
        kernel = Kernel("sort", buffers, tuple(parameters.values), lanes, statements)
        return Launch(kernel, blocks, tuple(parameters.values.values()))

    def gathering(self, last: Dim) -> Launch:
        """The results, from positions in order: those of the first or, where `last` is 1, the second workspace."""
        parameters = Parameters()
        count = self.primitive.count
        total = self.rows * count
        lanes = lanes_for(total, self.target)
        second = Call("equal", (Integer(parameters.named("last", last)), Integer(1)), BOOL)
        first = Call("logical_not", (second,), BOOL)
        dtype = self.operand.dtype

        def body(number: Dim, mask: Code | None) -> Body:
            size = divisor(count, parameters)
            rank = dims.mod(number, size)
            line = dims.floordiv(number, size)
            row = digits(line, self.sizes, parameters)
            place = line * parameters.size(self.size) + rank
            one, other = (
                Fetch(name, place, INT32, mask=both(mask, test)) for name, test in (("even", first), ("odd", second))
            )
            position = Register("position", INT32, True)
            along = self.along("in0", position, parameters)
            element = Fetch("in0", self.place("in0", row, 0, parameters), dtype, along, mask)
            return (
                Define(position.name, Call("select", (second, other, one), INT32), True),
                Put("values", self.place("values", row, rank, parameters), element, mask=mask),
                Put(
                    "positions",
                    self.place("positions", row, rank, parameters),
                    Call("cast", (position,), INT64),
                    mask=mask,
                ),
            )

        blocks, statements = each_point(total, lanes, parameters, body)
        buffers = (
            Buffer("in0", dtype, False),
            Buffer("even", INT32, False),
            Buffer("odd", INT32, False),
            *self.results(),
        )
        kernel = Kernel("sorted", buffers, tuple(parameters.values), lanes, statements)
        return Launch(kernel, blocks, tuple(parameters.values.values()))

    # -- memory ------------------------------------------------------------------------------------------------------

    def results(self) -> tuple[Buffer, Buffer]:
        return Buffer("values", self.operand.dtype, True), Buffer("positions", INT64, True)

    def split(self, number: Dim, parameters: Parameters) -> tuple[list[Dim], Dim]:
        """(the row, the position in it) of an element."""
        size = divisor(self.size, parameters)
        return digits(dims.floordiv(number, size), self.sizes, parameters), dims.mod(number, size)

    def place(self, name: str, row: list[Dim], along: Dim, parameters: Parameters) -> Dim:
        indices: list[Dim] = [0] * (len(self.kept) + 1)
        for axis, position in zip(self.kept, row, strict=True):
            indices[axis] = position
        indices[self.primitive.axis] = along
        return offset([parameters.size(stride) for stride in self.tensors[name].strides], indices)

    def along(self, name: str, position: Code, parameters: Parameters) -> Code:
        """How far a position that data decides is from the start of its row."""
        stride = parameters.size(self.tensors[name].strides[self.primitive.axis])
        wide = Call("cast", (position,), INT64)
        return wide if stride == 1 else Call("multiply", (wide, Integer(stride)), INT64)
