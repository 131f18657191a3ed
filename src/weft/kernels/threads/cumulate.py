"""Cumulative sums and products: a row per thread, or per block where there are few rows.

A block scans its row in strides. In each, lanes scan a few neighbours, then the lanes are scanned (in steps of 1, 2, 4,
... lanes through shared memory), and the total of earlier strides is added.
"""

from __future__ import annotations

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Put, Register, Statement, block, lane
from weft.ir.layout import offset
from weft.ir.program import Cumulate
from weft.ir.target import ThreadTarget
from weft.kernels.build.accumulators import COMBINE, identity_element, reduction_dtype
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, let, put, repeat
from weft.kernels.lower.tensors import Reference, StoredTensor, Work
from weft.kernels.threads.lane_groups import power_of_two, shares
from weft.kernels.threads.points import build_point_body, choose_lanes, unravel

MANY_ROWS = 4096  # for a thread per row
SHORT_ROW = 64
NEIGHBOURS = 4  # elements that a lane scans
MAX_LANE_ELEMENTS = 1 << 17  # of a row for one thread: llvmpipe ends a loop after 2 ** 16 iterations


def build_cumulate(primitive: Cumulate, operand: StoredTensor, result: StoredTensor, target: ThreadTarget) -> Work:
    """Build one kernel for a scan along an axis."""
    return _CumulateKernel(primitive, operand, result, target).work()


class _CumulateKernel:
    def __init__(self, primitive: Cumulate, operand: StoredTensor, result: StoredTensor, target: ThreadTarget) -> None:
        self.primitive = primitive
        self.operand = operand
        self.result = result
        self.target = target
        self.builder = KernelBuilder("cumulate")
        self.source = self.builder.input("in0", operand.dtype, Reference("operand", 0))
        self.out = self.builder.output("out", result.dtype, Reference("result", 0))
        self.size = result.shape[primitive.axis]
        self.length = self.builder.size(self.size)
        self.others = [axis for axis in result.layout.order if axis != primitive.axis and result.shape[axis] != 1]
        self.sizes = [result.shape[axis] for axis in self.others]
        self.strides = [tuple(map(self.builder.size, tensor.strides)) for tensor in (operand, result)]
        self.wide = reduction_dtype(primitive.kind, result.dtype)

    def work(self) -> Work:
        rows = dims.product(self.sizes)
        is_short = isinstance(self.size, int) and self.size <= SHORT_ROW
        has_many_rows = estimate(rows) >= MANY_ROWS or not shares(self.target)
        if is_short or (has_many_rows and estimate(self.size) <= MAX_LANE_ELEMENTS):
            lanes = choose_lanes(rows, self.target)
            blocks, body = build_point_body(rows, lanes, self.builder, self.build_thread_row)
        else:
            lanes = self.target.block_threads
            if isinstance(self.size, int):
                lanes = min(lanes, max(power_of_two(-(-self.size // NEIGHBOURS)), 1))
            self.exchange_buffers = [self.builder.local(hint, self.wide, lanes) for hint in ("even", "odd")]
            blocks, body = rows, self.build_block_row(lanes)
        return Work((self.builder.launch(lanes, body, blocks),))

    # -- elements ----------------------------------------------------------------------------------------------------

    def place(self, tensor: int, row: list[Dim], position: Dim) -> Dim:
        indices: list[Dim] = [0] * len(self.result.shape)
        for axis, at in zip(self.others, row, strict=True):
            indices[axis] = at
        indices[self.primitive.axis] = self.length - 1 - position if self.primitive.reverse else position
        return offset(self.strides[tensor], indices)

    def element(self, row: list[Dim], position: Dim, mask: Code | None) -> Code:
        value: Code = fetch(self.source, self.place(0, row, position), mask=mask)
        return value if value.dtype is self.wide else Call("cast", (value,), self.wide)

    def write(self, row: list[Dim], position: Dim, value: Code, mask: Code | None) -> Put:
        narrow = value if value.dtype is self.result.dtype else Call("cast", (value,), self.result.dtype)
        return put(self.out, self.place(1, row, position), narrow, mask=mask)

    def combine(self, left: Code, right: Code) -> Code:
        return Call(COMBINE[self.primitive.kind], (left, right), self.wide)

    # -- a row for a thread ------------------------------------------------------------------------------------------

    def build_thread_row(self, number: Dim, mask: Code | None) -> Body:
        row = unravel(number, self.sizes, self.builder)
        total = self.builder.register("total", self.wide)

        def loop(hint: str, start: Dim, stop: Dim, count: int) -> Statement:
            """Load `count` elements together, then add them up one by one."""
            first = self.builder.variable(hint)
            places = [first + n for n in range(count)]
            loaded = [self.builder.keep("x", self.element(row, place, mask), varying=True) for place in places]
            statements: list[Statement] = [definition for definition, _ in loaded]
            for place, (_, element) in zip(places, loaded):
                add = assign(total, self.combine(total, element))
                write = self.write(row, place, total, mask)
                statements += (write, add) if self.primitive.exclusive else (add, write)
            return repeat(first, start, stop, count, statements)

        unrolled_stop = dims.floordiv(self.length, NEIGHBOURS) * NEIGHBOURS
        return (
            define(total, identity_element(self.primitive.kind, self.wide)),
            loop("i", 0, unrolled_stop, NEIGHBOURS),
            loop("j", unrolled_stop, self.length, 1),
        )

    # -- a row for a block -------------------------------------------------------------------------------------------

    def build_block_row(self, lanes: int) -> Body:
        values = unravel(block(), self.sizes, self.builder)
        row = self.builder.variables("o", len(values))
        begin, carry = self.builder.keep("carry", identity_element(self.primitive.kind, self.wide))
        first = self.builder.variable("first")
        stride = self.stride([*row], first, lanes, carry)
        return (
            *(let(name, value) for name, value in zip(row, values)),
            begin,
            repeat(first, 0, self.length, lanes * NEIGHBOURS, stride),
        )

    def stride(self, row: list[Dim], first: Dim, lanes: int, carry: Register) -> Body:
        """Scan a few neighbours per lane, from `first` on."""
        identity = identity_element(self.primitive.kind, self.wide)
        here, sums = lane(lanes), self.builder.registers("own", NEIGHBOURS, self.wide)
        masks = self.builder.registers("inside", NEIGHBOURS, DType.bool)
        start = first + here * NEIGHBOURS
        statements: list[Statement] = []
        for n, inside in enumerate(masks):
            test = Call("less", (Integer(start + n), Integer(self.length)), DType.bool)
            statements.append(define(inside, test))
            element = Call("select", (inside, self.element(row, start + n, inside), identity), self.wide)
            statements.append(define(sums[n], self.combine(sums[n - 1], element) if n else element))
        before, total = self.scan_lanes(sums[-1], lanes, statements)
        definition, ahead = self.builder.keep("ahead", self.combine(carry, before), varying=True)
        statements.append(definition)
        for n in range(NEIGHBOURS):
            value: Code = self.combine(ahead, sums[n])
            if self.primitive.exclusive:
                value = self.combine(ahead, sums[n - 1]) if n else ahead
            statements.append(self.write(row, start + n, value, masks[n]))
        statements.append(assign(carry, self.combine(carry, total)))
        return tuple(statements)

    def scan_lanes(self, value: Code, lanes: int, statements: list[Statement]) -> tuple[Code, Code]:
        """Combine the values of all lanes before a lane, and of all lanes."""
        here = lane(lanes)
        definition, running = self.builder.keep("running", value, varying=True)
        statements.append(definition)
        distance, turn = 1, 0
        while distance < lanes:
            has = Call("greater_equal", (Integer(here), Integer(distance)), DType.bool)
            other = fetch(self.exchange_buffers[turn % 2], here - distance, mask=has)
            statements.append(put(self.exchange_buffers[turn % 2], here, running))
            statements.append(assign(running, Call("select", (has, self.combine(other, running), running), self.wide)))
            distance, turn = 2 * distance, turn + 1
        last = self.exchange_buffers[turn % 2]
        statements.append(put(last, here, running))
        has = Call("greater_equal", (Integer(here), Integer(1)), DType.bool)
        other = fetch(last, here - 1, mask=has)
        chosen = Call("select", (has, other, identity_element(self.primitive.kind, self.wide)), self.wide)
        first, before = self.builder.keep("before", chosen, varying=True)
        second, total = self.builder.keep("all", fetch(last, lanes - 1))
        statements += [first, second]
        return before, total
