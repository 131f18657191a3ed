"""Running sums and products: a row for each thread, or for a whole block where there are few.

A block goes along its row in strides. In each, lanes add up a few neighbours, then what lanes before them have (in
steps of 1, 2, 4, ... lanes through shared memory), then what strides before came to.
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
from weft.kernels.build.accumulators import COMBINE, neutral, wide_dtype
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, let, put, repeat
from weft.kernels.lower.tensors import Reference, StoredTensor, Work
from weft.kernels.threads.lane_groups import power_of_two, shares
from weft.kernels.threads.points import digits, each_point, lanes_for

MANY_ROWS = 4096  # with a thread for each
SHORT_ROW = 64
NEIGHBOURS = 4  # elements that a lane adds up on its own
LONGEST_ALONE = 1 << 17  # elements of a row for one thread: software counts the turns of a loop, and ends it at 2 ** 16


def cumulate_work(primitive: Cumulate, operand: StoredTensor, result: StoredTensor, target: ThreadTarget) -> Work:
    """One kernel."""
    return _Cumulation(primitive, operand, result, target).work()


class _Cumulation:
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
        self.wide = wide_dtype(primitive.kind, result.dtype)

    def work(self) -> Work:
        rows = dims.product(self.sizes)
        short = isinstance(self.size, int) and self.size <= SHORT_ROW
        many = estimate(rows) >= MANY_ROWS or not shares(self.target)
        if short or (many and estimate(self.size) <= LONGEST_ALONE):
            lanes = lanes_for(rows, self.target)
            blocks, body = each_point(rows, lanes, self.builder, self.alone)
        else:
            lanes = self.target.block_threads
            if isinstance(self.size, int):
                lanes = min(lanes, max(power_of_two(-(-self.size // NEIGHBOURS)), 1))
            self.exchanged = [self.builder.local(hint, self.wide, lanes) for hint in ("even", "odd")]
            blocks, body = rows, self.together(lanes)
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

    def alone(self, number: Dim, mask: Code | None) -> Body:
        row = digits(number, self.sizes, self.builder)
        total = self.builder.register("total", self.wide)

        def several(hint: str, start: Dim, stop: Dim, count: int) -> Statement:
            """Elements that are loaded together, then added up one by one."""
            first = self.builder.variable(hint)
            places = [first + n for n in range(count)]
            loaded = [self.builder.keep("x", self.element(row, place, mask), varying=True) for place in places]
            statements: list[Statement] = [defined for defined, _ in loaded]
            for place, (_, element) in zip(places, loaded):
                add = assign(total, self.combine(total, element))
                write = self.write(row, place, total, mask)
                statements += (write, add) if self.primitive.exclusive else (add, write)
            return repeat(first, start, stop, count, statements)

        whole = dims.floordiv(self.length, NEIGHBOURS) * NEIGHBOURS
        return (
            define(total, neutral(self.primitive.kind, self.wide)),
            several("i", 0, whole, NEIGHBOURS),
            several("j", whole, self.length, 1),
        )

    # -- a row for a block -------------------------------------------------------------------------------------------

    def together(self, lanes: int) -> Body:
        values = digits(block(), self.sizes, self.builder)
        row = self.builder.variables("o", len(values))
        begin, carry = self.builder.keep("carry", neutral(self.primitive.kind, self.wide))
        first = self.builder.variable("first")
        stride = self.stride([*row], first, lanes, carry)
        return (
            *(let(name, value) for name, value in zip(row, values)),
            begin,
            repeat(first, 0, self.length, lanes * NEIGHBOURS, stride),
        )

    def stride(self, row: list[Dim], first: Dim, lanes: int, carry: Register) -> Body:
        """Lanes with a few neighbours each."""
        nothing = neutral(self.primitive.kind, self.wide)
        here, own = lane(lanes), self.builder.registers("own", NEIGHBOURS, self.wide)
        there = self.builder.registers("inside", NEIGHBOURS, DType.bool)
        start = first + here * NEIGHBOURS
        statements: list[Statement] = []
        for n, inside in enumerate(there):
            test = Call("less", (Integer(start + n), Integer(self.length)), DType.bool)
            statements.append(define(inside, test))
            element = Call("select", (inside, self.element(row, start + n, inside), nothing), self.wide)
            statements.append(define(own[n], self.combine(own[n - 1], element) if n else element))
        before, total = self.lanes_before(own[-1], lanes, statements)
        defined, ahead = self.builder.keep("ahead", self.combine(carry, before), varying=True)
        statements.append(defined)
        for n in range(NEIGHBOURS):
            value: Code = self.combine(ahead, own[n])
            if self.primitive.exclusive:
                value = self.combine(ahead, own[n - 1]) if n else ahead
            statements.append(self.write(row, start + n, value, there[n]))
        statements.append(assign(carry, self.combine(carry, total)))
        return tuple(statements)

    def lanes_before(self, value: Code, lanes: int, statements: list[Statement]) -> tuple[Code, Code]:
        """(What the lanes before a lane have, what all have) together."""
        here = lane(lanes)
        defined, running = self.builder.keep("running", value, varying=True)
        statements.append(defined)
        distance, turn = 1, 0
        while distance < lanes:
            has = Call("greater_equal", (Integer(here), Integer(distance)), DType.bool)
            other = fetch(self.exchanged[turn % 2], here - distance, mask=has)
            statements.append(put(self.exchanged[turn % 2], here, running))
            statements.append(assign(running, Call("select", (has, self.combine(other, running), running), self.wide)))
            distance, turn = 2 * distance, turn + 1
        last = self.exchanged[turn % 2]
        statements.append(put(last, here, running))
        has = Call("greater_equal", (Integer(here), Integer(1)), DType.bool)
        other = fetch(last, here - 1, mask=has)
        chosen = Call("select", (has, other, neutral(self.primitive.kind, self.wide)), self.wide)
        first, before = self.builder.keep("before", chosen, varying=True)
        second, total = self.builder.keep("all", fetch(last, lanes - 1))
        statements += [first, second]
        return before, total
