"""Running sums and products: a row for each thread, or for a whole block where there are few.

A block goes along its row in strides. In each, lanes add up a few neighbours, then what lanes before them have (in
steps of 1, 2, 4, ... lanes through shared memory), then what strides before came to.
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
    Let,
    Put,
    Register,
    Repeat,
    Statement,
    block,
    lane,
    variable,
)
from weft.ir.layout import offset
from weft.ir.program import Cumulate
from weft.ir.target import ThreadTarget
from weft.kernels.build.accumulators import COMBINE, neutral, wide_dtype
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch, Reference, Tensor, Work
from weft.kernels.threads.lane_groups import power_of_two, shares
from weft.kernels.threads.thread_points import digits, each_point, lanes_for

MANY_ROWS = 4096  # with a thread for each
SHORT_ROW = 64
NEIGHBOURS = 4  # elements that a lane adds up on its own
LONGEST_ALONE = 1 << 17  # elements of a row for one thread: software counts the turns of a loop, and ends it at 2 ** 16


def cumulate_work(primitive: Cumulate, operand: Tensor, result: Tensor, target: ThreadTarget) -> Work:
    """One kernel."""
    return _Cumulation(primitive, operand, result, target).work()


class _Cumulation:
    def __init__(self, primitive: Cumulate, operand: Tensor, result: Tensor, target: ThreadTarget) -> None:
        self.primitive = primitive
        self.operand = operand
        self.result = result
        self.target = target
        self.parameters = Parameters()
        self.size = result.shape[primitive.axis]
        self.length = self.parameters.size(self.size)
        self.others = [axis for axis in result.layout.order if axis != primitive.axis and result.shape[axis] != 1]
        self.sizes = [result.shape[axis] for axis in self.others]
        self.strides = [tuple(map(self.parameters.size, tensor.strides)) for tensor in (operand, result)]
        self.wide = wide_dtype(primitive.kind, result.dtype)

    def work(self) -> Work:
        rows = dims.product(self.sizes)
        short = isinstance(self.size, int) and self.size <= SHORT_ROW
        many = estimate(rows) >= MANY_ROWS or not shares(self.target)
        buffers = [Buffer("in0", self.operand.dtype, False), Buffer("out", self.result.dtype, True)]
        if short or (many and estimate(self.size) <= LONGEST_ALONE):
            lanes = lanes_for(rows, self.target)
            blocks, body = each_point(rows, lanes, self.parameters, self.alone)
        else:
            lanes = self.target.block_threads
            if isinstance(self.size, int):
                lanes = min(lanes, max(power_of_two(-(-self.size // NEIGHBOURS)), 1))
            blocks, body = rows, self.together(lanes)
            buffers += [Buffer(name, self.wide, True, lanes) for name in ("even", "odd")]
        kernel = Kernel("cumulate", tuple(buffers), tuple(self.parameters.values), lanes, body)
        launch = Launch(kernel, blocks, tuple(self.parameters.values.values()))
        return Work(((launch, (Reference("operand", 0), Reference("result", 0))),))

    # -- elements ----------------------------------------------------------------------------------------------------

    def place(self, tensor: int, row: list[Dim], position: Dim) -> Dim:
        indices: list[Dim] = [0] * len(self.result.shape)
        for axis, at in zip(self.others, row, strict=True):
            indices[axis] = at
        indices[self.primitive.axis] = self.length - 1 - position if self.primitive.reverse else position
        return offset(self.strides[tensor], indices)

    def element(self, row: list[Dim], position: Dim, mask: Code | None) -> Code:
        value: Code = Fetch("in0", self.place(0, row, position), self.operand.dtype, mask=mask)
        return value if value.dtype is self.wide else Call("cast", (value,), self.wide)

    def put(self, row: list[Dim], position: Dim, value: Code, mask: Code | None) -> Put:
        narrow = value if value.dtype is self.result.dtype else Call("cast", (value,), self.result.dtype)
        return Put("out", self.place(1, row, position), narrow, mask=mask)

    def combine(self, left: Code, right: Code) -> Code:
        return Call(COMBINE[self.primitive.kind], (left, right), self.wide)

    # -- a row for a thread ------------------------------------------------------------------------------------------

    def alone(self, number: Dim, mask: Code | None) -> Body:
        row = digits(number, self.sizes, self.parameters)
        total = Register("total", self.wide, True)

        def several(name: str, count: int) -> Body:
            """Elements that are loaded together, then added up one by one."""
            places = [variable(name) + n for n in range(count)]
            statements: list[Statement] = [
                Define(f"x{n}", self.element(row, place, mask), True) for n, place in enumerate(places)
            ]
            for n in range(count):
                add = Assign("total", self.combine(total, Register(f"x{n}", self.wide, True)))
                put = self.put(row, places[n], total, mask)
                statements += (put, add) if self.primitive.exclusive else (add, put)
            return tuple(statements)

        whole = dims.floordiv(self.length, NEIGHBOURS) * NEIGHBOURS
        return (
            Define("total", neutral(self.primitive.kind, self.wide), True),
            Repeat("i", 0, whole, NEIGHBOURS, several("i", NEIGHBOURS)),
            Repeat("j", whole, self.length, 1, several("j", 1)),
        )

    # -- a row for a block -------------------------------------------------------------------------------------------

    def together(self, lanes: int) -> Body:
        statements: list[Statement] = []
        for number, value in enumerate(digits(block(), self.sizes, self.parameters)):
            statements.append(Let(f"o{number}", value))
        row: list[Dim] = [variable(f"o{number}") for number in range(len(self.sizes))]
        stride = self.stride(row, variable("first"), lanes)
        return (
            *statements,
            Define("carry", neutral(self.primitive.kind, self.wide), False),
            Repeat("first", 0, self.length, lanes * NEIGHBOURS, stride),
        )

    def stride(self, row: list[Dim], first: Dim, lanes: int) -> Body:
        """Lanes with a few neighbours each."""
        nothing = neutral(self.primitive.kind, self.wide)
        here, own = lane(lanes), [Register(f"own{n}", self.wide, True) for n in range(NEIGHBOURS)]
        start = first + here * NEIGHBOURS
        statements: list[Statement] = []
        for n in range(NEIGHBOURS):
            inside = Register(f"inside{n}", DType.bool, True)
            test = Call("less", (Integer(start + n), Integer(self.length)), DType.bool)
            statements.append(Define(inside.name, test, True))
            element = Call("select", (inside, self.element(row, start + n, inside), nothing), self.wide)
            statements.append(Define(own[n].name, self.combine(own[n - 1], element) if n else element, True))
        before, total = self.lanes_before(own[-1], lanes, statements)
        carry = Register("carry", self.wide, False)
        statements.append(Define("ahead", self.combine(carry, before), True))
        ahead = Register("ahead", self.wide, True)
        for n in range(NEIGHBOURS):
            value: Code = self.combine(ahead, own[n])
            if self.primitive.exclusive:
                value = self.combine(ahead, own[n - 1]) if n else ahead
            statements.append(self.put(row, start + n, value, Register(f"inside{n}", DType.bool, True)))
        statements.append(Assign("carry", self.combine(carry, total)))
        return tuple(statements)

    def lanes_before(self, value: Code, lanes: int, statements: list[Statement]) -> tuple[Code, Code]:
        """(What the lanes before a lane have, what all have) together."""
        here = lane(lanes)
        running = Register("running", self.wide, True)
        statements.append(Define(running.name, value, True))
        distance, turn = 1, 0
        names = ("even", "odd")
        while distance < lanes:
            has = Call("greater_equal", (Integer(here), Integer(distance)), DType.bool)
            other = Fetch(names[turn % 2], here - distance, self.wide, mask=has)
            statements.append(Put(names[turn % 2], here, running))
            statements.append(
                Assign(running.name, Call("select", (has, self.combine(other, running), running), self.wide))
            )
            distance, turn = 2 * distance, turn + 1
        statements.append(Put(names[turn % 2], here, running))
        has = Call("greater_equal", (Integer(here), Integer(1)), DType.bool)
        other = Fetch(names[turn % 2], here - 1, self.wide, mask=has)
        before = Register("before", self.wide, True)
        chosen = Call("select", (has, other, neutral(self.primitive.kind, self.wide)), self.wide)
        statements.append(Define(before.name, chosen, True))
        total = Register("all", self.wide, False)
        statements.append(Define(total.name, Fetch(names[turn % 2], lanes - 1, self.wide), False))
        return before, total
