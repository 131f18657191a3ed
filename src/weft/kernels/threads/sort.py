"""Sorting along an axis by threads: elements become integer keys of the same order, sorted in runs (merge_sort.py).

A short row needs no runs: a thread counts the elements before its own, which is the place to write it to.
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
from weft.kernels.lower.kernel_builder import KernelBuilder, fetch, put
from weft.kernels.lower.operations import and_masks
from weft.kernels.lower.tensors import Launch, Reference, StoredTensor, Work
from weft.kernels.threads.merge_sort import SortRows, build_sort_launches, count_before, sort_workspaces
from weft.kernels.threads.points import build_point_body, choose_lanes, divisor, unravel

BOOL, INT32, INT64 = DType.bool, DType.int32, DType.int64
SHORT_ROW = 128  # elements whose keys are recomputed for every comparison
MAX_COUNTED = 2048  # elements of a row that is sorted by counting


def build_sort(
    primitive: Sort, operand: StoredTensor, values: StoredTensor, positions: StoredTensor, target: ThreadTarget
) -> Work:
    """Results are the sorted values, and their positions before."""
    return _SortKernels(primitive, operand, values, positions, target).work()


def key_dtype(dtype: DType) -> DType:
    """Return the integer type of a type's keys."""
    return INT64 if dtype.numpy.itemsize == 8 else INT32


def order_key(value: Code, descending: bool, builder: KernelBuilder, statements: list[Statement]) -> Code:
    """Compute an integer key with the order of the values; NaN is the greatest number."""
    dtype = value.dtype
    key_type = key_dtype(dtype)
    lowest = int(key_type.limits[0])
    if dtype.is_float:
        key = _float_key(value, key_type, builder, statements)
    elif dtype in (DType.uint32, DType.uint64):
        key = Call("bit_xor", (Call("bitcast", (value,), key_type), Number(lowest, key_type)), key_type)
    else:
        key = value if dtype is key_type else Call("cast", (value,), key_type)
    return Call("bit_not", (key,), key_type) if descending else key


def _float_key(value: Code, key_type: DType, builder: KernelBuilder, statements: list[Statement]) -> Code:
    """Return the magnitude bits of a number, negated where it is negative; both zeros have the same key."""
    number = DType.float64 if key_type is INT64 else DType.float32
    if value.dtype is not number:
        value = Call("cast", (value,), number)
    greatest = int(key_type.limits[1])
    infinite = 0x7FF << 52 if key_type is INT64 else 0xFF << 23
    first, bits = builder.keep("bits", Call("bitcast", (value,), key_type))
    second, size = builder.keep("size", Call("bit_and", (bits, Number(greatest, key_type)), key_type))
    statements += [first, second]
    positive = Call("greater_equal", (bits, Number(0, key_type)), BOOL)
    key = Call("select", (positive, size, Call("negate", (size,), key_type)), key_type)
    nan = Call("greater", (size, Number(infinite, key_type)), BOOL)
    return Call("select", (nan, Number(greatest, key_type), key), key_type)


class _SortKernels:
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
        self.row_axes = [axis for axis in values.layout.order if axis != primitive.axis]
        self.sizes = [operand.shape[axis] for axis in self.row_axes]
        self.size = operand.shape[primitive.axis]
        self.rows = dims.product(self.sizes)
        self.key = key_dtype(operand.dtype)

    def work(self) -> Work:
        if isinstance(self.size, int) and self.size <= SHORT_ROW:
            return Work((self.build_counting(None),))
        rows = SortRows(self.rows, self.size, self.primitive.count, self.key)
        workspaces = [Reference("workspace", number) for number in range(4)]
        if isinstance(self.size, int) and self.size <= MAX_COUNTED:
            return Work((self.build_keys(workspaces[0]), self.build_counting(workspaces[0])), sort_workspaces(rows)[:1])
        runs, last = build_sort_launches(rows, self.target, workspaces)
        return Work(
            (self.build_keys(workspaces[2]), *runs, self.build_gathering(last, workspaces[1], workspaces[3])),
            sort_workspaces(rows),
        )

    # -- kernels -----------------------------------------------------------------------------------------------------

    def source(self, builder: KernelBuilder) -> Buffer:
        return builder.input("in0", self.operand.dtype, Reference("operand", 0))

    def results(self, builder: KernelBuilder) -> tuple[Buffer, Buffer]:
        """Declare the sorted values and their positions."""
        values = builder.output("values", self.operand.dtype, Reference("result", 0))
        return values, builder.output("positions", INT64, Reference("result", 1))

    def build_keys(self, place: Reference) -> Launch:
        """Write the key of every element, row by row."""
        builder = KernelBuilder("sort_keys")
        source, keys = self.source(builder), builder.output("keys", self.key, place)
        total = self.rows * self.size
        lanes = choose_lanes(total, self.target)

        def body(number: Dim, mask: Code | None) -> Body:
            row, position = self.split(number, builder)
            element = fetch(source, self.place(self.operand, row, position, builder), mask=mask)
            definition, register = builder.keep("own", element, varying=True)
            statements: list[Statement] = [definition]
            key = order_key(register, self.primitive.descending, builder, statements)
            return (*statements, put(keys, number, key, mask=mask))

        blocks, statements = build_point_body(total, lanes, builder, body)
        return builder.launch(lanes, statements, blocks)

    def build_counting(self, key_buffer: Reference | None) -> Launch:
        """Write every element to the place that is the number of those before it; without keys, compute them."""
        builder = KernelBuilder("sort")
        source = self.source(builder)
        keys = None if key_buffer is None else builder.input("keys", self.key, key_buffer)
        values, positions = self.results(builder)
        total = self.rows * self.size
        lanes = choose_lanes(total, self.target)

        def body(number: Dim, mask: Code | None) -> Body:
            row, position = self.split(number, builder)
            statements: list[Statement] = []

            def key_at(at: Dim, to: list[Statement]) -> Code:
                if keys is not None:
                    return fetch(keys, number - position + at, mask=mask)
                fetched = fetch(source, self.place(self.operand, row, at, builder), mask=mask)
                definition, element = builder.keep("element", fetched, varying=True)
                to.append(definition)
                return order_key(element, self.primitive.descending, builder, to)

            definition, key = builder.keep("own", key_at(position, statements), varying=True)
            statements.append(definition)
            counting, rank = count_before(builder, key, position, builder.size(self.size), key_at)
            statements += counting
            count = Call("cast", (Integer(builder.size(self.primitive.count)),), INT32)
            is_result = and_masks(mask, Call("less", (rank, count), BOOL))
            element = fetch(source, self.place(self.operand, row, position, builder), mask=mask)
            results = ((values, self.values, element), (positions, self.positions, Integer(position)))
            for buffer, tensor, value in results:
                place = self.place(tensor, row, 0, builder)
                statements.append(put(buffer, place, value, self.along(tensor, rank, builder), is_result))
            return tuple(statements)

        blocks, statements = build_point_body(total, lanes, builder, body)
        return builder.launch(lanes, statements, blocks)

    def build_gathering(self, last: Dim, even: Reference, odd: Reference) -> Launch:
        """Write the results from sorted positions: the even ones or, where `last` is 1, the odd ones."""
        builder = KernelBuilder("sorted")
        source = self.source(builder)
        ordered = builder.input("even", INT32, even), builder.input("odd", INT32, odd)
        values, positions = self.results(builder)
        count = self.primitive.count
        total = self.rows * count
        lanes = choose_lanes(total, self.target)
        second = Call("equal", (Integer(builder.parameter("last", last)), Integer(1)), BOOL)
        first = Call("logical_not", (second,), BOOL)

        def body(number: Dim, mask: Code | None) -> Body:
            size = divisor(count, builder)
            rank = dims.mod(number, size)
            line = dims.floordiv(number, size)
            row = unravel(line, self.sizes, builder)
            place = line * builder.size(self.size) + rank
            one, other = (
                fetch(buffer, place, mask=and_masks(mask, test)) for buffer, test in zip(ordered, (first, second))
            )
            definition, position = builder.keep("position", Call("select", (second, other, one), INT32), varying=True)
            along = self.along(self.operand, position, builder)
            element = fetch(source, self.place(self.operand, row, 0, builder), along, mask)
            result_position = Call("cast", (position,), INT64)
            return (
                definition,
                put(values, self.place(self.values, row, rank, builder), element, mask=mask),
                put(positions, self.place(self.positions, row, rank, builder), result_position, mask=mask),
            )

        blocks, statements = build_point_body(total, lanes, builder, body)
        return builder.launch(lanes, statements, blocks)

    # -- memory ------------------------------------------------------------------------------------------------------

    def split(self, number: Dim, builder: KernelBuilder) -> tuple[list[Dim], Dim]:
        """Return the row of an element, and its position in the row."""
        size = divisor(self.size, builder)
        return unravel(dims.floordiv(number, size), self.sizes, builder), dims.mod(number, size)

    def place(self, tensor: StoredTensor, row: list[Dim], along: Dim, builder: KernelBuilder) -> Dim:
        indices: list[Dim] = [0] * (len(self.row_axes) + 1)
        for axis, position in zip(self.row_axes, row, strict=True):
            indices[axis] = position
        indices[self.primitive.axis] = along
        return offset([builder.size(stride) for stride in tensor.strides], indices)

    def along(self, tensor: StoredTensor, position: Code, builder: KernelBuilder) -> Code:
        """Return the offset, from the start of its row, of a position that depends on data."""
        stride = builder.size(tensor.strides[self.primitive.axis])
        wide = Call("cast", (position,), INT64)
        return wide if stride == 1 else Call("multiply", (wide, Integer(stride)), INT64)
