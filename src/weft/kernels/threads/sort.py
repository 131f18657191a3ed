"""Sorting along an axis by threads: elements as integer keys of the same order, then runs of these (see runs.py).

A short row needs no runs: a thread counts the elements that come before its own and writes it there.
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Integer, Number, Statement
from weft.ir.layout import offset
from weft.ir.program import Sort
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.expressions import both
from weft.kernels.lower.kernel_builder import KernelBuilder, fetch, put
from weft.kernels.lower.tensors import Launch, Reference, StoredTensor, Work
from weft.kernels.threads.points import digits, divisor, each_point, lanes_for
from weft.kernels.threads.sorted_runs import Rows, ranked, sorted_runs, workspaces

BOOL, INT32, INT64 = DType.bool, DType.int32, DType.int64
SHORT_ROW = 128  # elements that are made keys for every comparison
LONGEST_COUNTED = 2048  # elements of a row that are counted, all of them for each


def sort_work(
    primitive: Sort, operand: StoredTensor, values: StoredTensor, positions: StoredTensor, target: ThreadTarget
) -> Work:
    """Results: the sorted values, and where they stood."""
    return _Sorting(primitive, operand, values, positions, target).work()


def key_dtype(dtype: DType) -> DType:
    """Integers that hold an order of the type."""
    return INT64 if dtype.numpy.itemsize == 8 else INT32


def order_key(value: Code, descending: bool, builder: KernelBuilder, statements: list[Statement]) -> Code:
    """An integer that is less than another's where the value comes before the other one: NaN is the greatest number."""
    dtype = value.dtype
    whole = key_dtype(dtype)
    least = int(whole.limits[0])
    if dtype.is_float:
        key = _float_key(value, whole, builder, statements)
    elif dtype in (DType.uint32, DType.uint64):
        key = Call("bit_xor", (Call("bitcast", (value,), whole), Number(least, whole)), whole)
    else:
        key = value if dtype is whole else Call("cast", (value,), whole)
    return Call("bit_not", (key,), whole) if descending else key


def _float_key(value: Code, whole: DType, builder: KernelBuilder, statements: list[Statement]) -> Code:
    """The bits of a number, those of the magnitude turned over where it is negative; both zeros are one."""
    number = DType.float64 if whole is INT64 else DType.float32
    if value.dtype is not number:
        value = Call("cast", (value,), number)
    greatest = int(whole.limits[1])
    infinite = 0x7FF << 52 if whole is INT64 else 0xFF << 23
    first, bits = builder.keep("bits", Call("bitcast", (value,), whole))
    second, size = builder.keep("size", Call("bit_and", (bits, Number(greatest, whole)), whole))
    statements += [first, second]
    positive = Call("greater_equal", (bits, Number(0, whole)), BOOL)
    key = Call("select", (positive, size, Call("negate", (size,), whole)), whole)
    nan = Call("greater", (size, Number(infinite, whole)), BOOL)
    return Call("select", (nan, Number(greatest, whole), key), whole)


class _Sorting:
    def __init__(
        self,
        primitive: Sort,
        operand: StoredTensor,
        values: StoredTensor,
        positions: StoredTensor,
        target: ThreadTarget,
    ) -> None:
        self.primitive = primitive
        self.operand = operand
        self.values, self.positions = values, positions
        self.target = target
        self.kept = [axis for axis in values.layout.order if axis != primitive.axis]
        self.sizes = [operand.shape[axis] for axis in self.kept]
        self.size = operand.shape[primitive.axis]
        self.rows = dims.product(self.sizes)
        self.key = key_dtype(operand.dtype)

    def work(self) -> Work:
        if isinstance(self.size, int) and self.size <= SHORT_ROW:
            return Work((self.counting(None),))
        rows = Rows(self.rows, self.size, self.primitive.count, self.key)
        spaces = [Reference("workspace", number) for number in range(4)]
        if isinstance(self.size, int) and self.size <= LONGEST_COUNTED:
            return Work((self.keys(spaces[0]), self.counting(spaces[0])), workspaces(rows)[:1])
        runs, last = sorted_runs(rows, self.target, spaces)
        return Work((self.keys(spaces[2]), *runs, self.gathering(last, spaces[1], spaces[3])), workspaces(rows))

    # -- kernels -----------------------------------------------------------------------------------------------------

    def source(self, builder: KernelBuilder) -> Buffer:
        return builder.input("in0", self.operand.dtype, Reference("operand", 0))

    def results(self, builder: KernelBuilder) -> tuple[Buffer, Buffer]:
        """The sorted values, and where they stood."""
        values = builder.output("values", self.operand.dtype, Reference("result", 0))
        return values, builder.output("positions", INT64, Reference("result", 1))

    def keys(self, place: Reference) -> Launch:
        """Every element as a key, rows one after the other."""
        builder = KernelBuilder("sort_keys")
        source, keys = self.source(builder), builder.output("keys", self.key, place)
        total = self.rows * self.size
        lanes = lanes_for(total, self.target)

        def body(number: Dim, mask: Code | None) -> Body:
            row, position = self.split(number, builder)
            element = fetch(source, self.place(self.operand, row, position, builder), mask=mask)
            defined, own = builder.keep("own", element, varying=True)
            statements: list[Statement] = [defined]
            key = order_key(own, self.primitive.descending, builder, statements)
            return (*statements, put(keys, number, key, mask=mask))

        blocks, statements = each_point(total, lanes, builder, body)
        return builder.launch(lanes, statements, blocks)

    def counting(self, made: Reference | None) -> Launch:
        """Every element to the place that is the number of those before it. `made`: where there are keys already."""
        builder = KernelBuilder("sort")
        source = self.source(builder)
        keys = None if made is None else builder.input("keys", self.key, made)
        values, positions = self.results(builder)
        total = self.rows * self.size
        lanes = lanes_for(total, self.target)

        def body(number: Dim, mask: Code | None) -> Body:
            row, position = self.split(number, builder)
            statements: list[Statement] = []

            def key_at(at: Dim, to: list[Statement]) -> Code:
                if keys is not None:
                    return fetch(keys, number - position + at, mask=mask)
                found = fetch(source, self.place(self.operand, row, at, builder), mask=mask)
                defined, element = builder.keep("element", found, varying=True)
                to.append(defined)
                return order_key(element, self.primitive.descending, builder, to)

            defined, own = builder.keep("own", key_at(position, statements), varying=True)
            statements.append(defined)
            counted, rank = ranked(builder, own, position, builder.size(self.size), key_at)
            statements += counted
            count = Call("cast", (Integer(builder.size(self.primitive.count)),), INT32)
            wanted = both(mask, Call("less", (rank, count), BOOL))
            element = fetch(source, self.place(self.operand, row, position, builder), mask=mask)
            results = ((values, self.values, element), (positions, self.positions, Integer(position)))
            for buffer, tensor, value in results:
                place = self.place(tensor, row, 0, builder)
                statements.append(put(buffer, place, value, self.along(tensor, rank, builder), wanted))
            return tuple(statements)

        blocks, statements = each_point(total, lanes, builder, body)
        return builder.launch(lanes, statements, blocks)

    def gathering(self, last: Dim, even: Reference, odd: Reference) -> Launch:
        """The results, from positions in order: the even ones or, where `last` is 1, the odd ones."""
        builder = KernelBuilder("sorted")
        source = self.source(builder)
        ordered = builder.input("even", INT32, even), builder.input("odd", INT32, odd)
        values, positions = self.results(builder)
        count = self.primitive.count
        total = self.rows * count
        lanes = lanes_for(total, self.target)
        second = Call("equal", (Integer(builder.named("last", last)), Integer(1)), BOOL)
        first = Call("logical_not", (second,), BOOL)

        def body(number: Dim, mask: Code | None) -> Body:
            size = divisor(count, builder)
            rank = dims.mod(number, size)
            line = dims.floordiv(number, size)
            row = digits(line, self.sizes, builder)
            place = line * builder.size(self.size) + rank
            one, other = (fetch(buffer, place, mask=both(mask, test)) for buffer, test in zip(ordered, (first, second)))
            defined, position = builder.keep("position", Call("select", (second, other, one), INT32), varying=True)
            along = self.along(self.operand, position, builder)
            element = fetch(source, self.place(self.operand, row, 0, builder), along, mask)
            stood = Call("cast", (position,), INT64)
            return (
                defined,
                put(values, self.place(self.values, row, rank, builder), element, mask=mask),
                put(positions, self.place(self.positions, row, rank, builder), stood, mask=mask),
            )

        blocks, statements = each_point(total, lanes, builder, body)
        return builder.launch(lanes, statements, blocks)

    # -- memory ------------------------------------------------------------------------------------------------------

    def split(self, number: Dim, builder: KernelBuilder) -> tuple[list[Dim], Dim]:
        """(the row, the position in it) of an element."""
        size = divisor(self.size, builder)
        return digits(dims.floordiv(number, size), self.sizes, builder), dims.mod(number, size)

    def place(self, tensor: StoredTensor, row: list[Dim], along: Dim, builder: KernelBuilder) -> Dim:
        indices: list[Dim] = [0] * (len(self.kept) + 1)
        for axis, position in zip(self.kept, row, strict=True):
            indices[axis] = position
        indices[self.primitive.axis] = along
        return offset([builder.size(stride) for stride in tensor.strides], indices)

    def along(self, tensor: StoredTensor, position: Code, builder: KernelBuilder) -> Code:
        """How far a position that data decides is from the start of its row."""
        stride = builder.size(tensor.strides[self.primitive.axis])
        wide = Call("cast", (position,), INT64)
        return wide if stride == 1 else Call("multiply", (wide, Integer(stride)), INT64)
