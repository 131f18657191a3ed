"""NVIDIA's GPUs by LLVM's names: processors, and the instructions that threads need beside those of all processors.

NVPTX computes a remainder of floats by a division, which is wrong once the quotient is long: here it is exact.
"""

from __future__ import annotations

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.instructions import Value, declare, intrinsic
from weft.backends.llvm.terms import Term, absolute, choose, with_sign
from weft.backends.llvm.types import BIT, INT32
from weft.records import dataclass

GLOBAL, SHARED = 1, 3  # address spaces
WARP = 32  # threads that exchange registers
_BARRIER = "llvm.nvvm.barrier.cta.sync.aligned.all"
_FMOD = "weft_fmod"


@dataclass(frozen=True, slots=True)
class NvidiaProcessor:
    """A GPU to compile PTX for: sm_80, sm_90, ..."""

    processor: str
    features: str = ""

    @property
    def triple(self) -> str:
        return "nvptx64-nvidia-cuda"


class NvptxBuilder(ir.IRBuilder):
    """Appends instructions of threads; `recent` ones (of 8.0 and later) only if they are there."""

    def __init__(self, block: ir.Block, recent: bool = False) -> None:
        super().__init__(block)
        self.recent = recent

    def thread(self) -> Value:
        """The number of the thread in its block."""
        return intrinsic(self, "llvm.nvvm.read.ptx.sreg.tid.x", [], INT32, [])

    def thread_block(self) -> Value:
        """The number of the block in its grid."""
        return intrinsic(self, "llvm.nvvm.read.ptx.sreg.ctaid.x", [], INT32, [])

    def barrier(self) -> None:
        """All threads of the block wait for each other, and see what the others wrote."""
        self.call(declare(self, _BARRIER, ir.FunctionType(ir.VoidType(), [INT32])), [INT32(0)])

    def exchange(self, word: Value, distance: int, threads: int) -> Value:
        """The 32 bits of the thread whose number differs in one bit; the first `threads` of a warp take part."""
        mask = INT32((1 << threads) - 1 - (1 << 32 if threads == WARP else 0))  # as a signed number
        return intrinsic(
            self, "llvm.nvvm.shfl.sync.bfly.i32", [], INT32, [mask, word, INT32(distance), INT32(WARP - 1)]
        )

    def dot4(self, unsigned: Value, signed: Value, total: Value) -> Value:
        return intrinsic(self, "llvm.nvvm.idp4a.u.s", [], INT32, [unsigned, signed, total])

    def bfloat16_bits(self, value: Value, /) -> Value | None:
        if not self.recent:
            return None
        signature = ir.FunctionType(ir.IntType(16), [ir.FloatType()])
        return self.asm(signature, "cvt.rn.bf16.f32 $0, $1;", "=h,f", [value])

    def frem(self, a: Value, b: Value) -> Value:
        if isinstance(a.type, ir.HalfType):
            wide = [self.fpext(value, ir.FloatType()) for value in (a, b)]
            return self.fptrunc(self.frem(*wide), a.type)
        name = f"{_FMOD}_{a.type.text}"
        if name not in self.module.globals:
            _define_fmod(self.module, name, a.type)
        function = self.module.globals[name]
        assert isinstance(function, ir.Function)
        return self.call(function, [a, b])


def _define_fmod(module: ir.Module, name: str, kind: ir.Type) -> None:
    """A function for the exact remainder: a long division of the fractions, as many bits at a time as are spare."""
    function = ir.Function(module, ir.FunctionType(kind, [kind, kind]), name)
    function.linkage = "internal"
    function.attributes |= {"nounwind", "noinline"}
    blocks = {part: function.append_basic_block(part) for part in ("entry", "divide", "next", "step", "done", "same")}
    builder = ir.IRBuilder(blocks["entry"])
    a, b = (Term(builder, argument) for argument in function.args)
    size, divisor = (absolute(x).as_integer() for x in (a, b))
    fraction, hidden = a.fraction, 1 << a.fraction
    spare = a.bits - fraction - 1
    infinity = ((1 << spare) - 1) << fraction
    # a if it is the smaller one; NaN for a NaN, an infinite a and a divisor of 0: of these 0 / 0 and inf / inf make it
    builder.cbranch((size < divisor).value, blocks["same"], blocks["divide"])
    builder.position_at_end(blocks["same"])
    builder.ret(choose(divisor > infinity, b, a).value)
    builder.position_at_end(blocks["divide"])
    exponents = [_at_least_one(x.logical_shift_right(fraction)) for x in (size, divisor)]
    fractions = [choose(x >= hidden, (x & (hidden - 1)) | hidden, x) for x in (size, divisor)]
    invalid = (size >= infinity) | divisor.equals(0)
    part = choose(invalid, 1, fractions[1])
    first = Term(builder, builder.urem(fractions[0].value, part.value))
    steps = exponents[0] - exponents[1]
    builder.branch(blocks["next"])
    builder.position_at_end(blocks["next"])
    rest, left = (builder.phi(size.value.type) for _ in range(2))
    more = (Term(builder, left) > 0) & (Term(builder, builder.icmp_signed("!=", rest, size.constant(0).value)))
    builder.cbranch(more.value, blocks["step"], blocks["done"])
    builder.position_at_end(blocks["step"])
    count = choose(Term(builder, left) < spare, Term(builder, left), spare)
    shorter = builder.urem((Term(builder, rest) << count).value, part.value)
    fewer = Term(builder, left) - count
    builder.branch(blocks["next"])
    for phi, before, after in ((rest, first, shorter), (left, steps, fewer.value)):
        phi.add_incoming(before.value, blocks["divide"])
        phi.add_incoming(after, blocks["step"])
    builder.position_at_end(blocks["done"])
    found = Term(builder, rest)
    zeros = Term(builder, _leading_zeros(builder, rest)) - spare
    room = exponents[1] - 1
    moved = found << choose(zeros < room, zeros, room)
    normal = moved + ((exponents[1] - zeros - 1) << fraction)
    number = choose(found.equals(0), 0, choose(moved >= hidden, normal, moved))
    result = with_sign(number.as_float(), a)
    builder.ret(choose(invalid, float("nan"), result).value)


def _at_least_one(exponent: Term) -> Term:
    return choose(exponent > 1, exponent, 1)


def _leading_zeros(builder: ir.IRBuilder, value: Value) -> Value:
    function = declare(builder, f"llvm.ctlz.{value.type.text}", ir.FunctionType(value.type, [value.type, BIT]))
    return builder.call(function, [value, BIT(0)])
