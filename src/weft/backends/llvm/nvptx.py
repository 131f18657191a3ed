"""NVPTX: processors by LLVM's names, and a builder with the instructions of threads.

NVPTX computes float remainders by a division, which is wrong for large quotients; the builder's `frem` is exact.
"""

from __future__ import annotations

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.builder import IRBuilder
from weft.backends.llvm.instructions import Value, declare, intrinsic
from weft.backends.llvm.terms import Term
from weft.backends.llvm.types import BIT, INT32
from weft.backends.numerics.terms import absolute, choose, with_sign
from weft.records import dataclass

GLOBAL, SHARED = 1, 3  # address spaces
WARP = 32
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


class NvptxBuilder(IRBuilder):
    """A builder with instructions of threads; `recent`: it may use those of compute capability 8.0."""

    def __init__(self, block: ir.Block, recent: bool = False) -> None:
        super().__init__(block)
        self.recent = recent

    def thread(self) -> Value:
        """Return the thread's number in its block."""
        return intrinsic(self, "llvm.nvvm.read.ptx.sreg.tid.x", [], INT32, [])

    def thread_block(self) -> Value:
        """Return the block's number in its grid."""
        return intrinsic(self, "llvm.nvvm.read.ptx.sreg.ctaid.x", [], INT32, [])

    def barrier(self) -> None:
        """Synchronize the threads of the block, and their memory."""
        self.call(declare(self, _BARRIER, ir.FunctionType(ir.VoidType(), [INT32])), [INT32(0)])

    def exchange(self, word: Value, distance: int, threads: int) -> Value:
        """Exchange 32 bits with the thread whose number differs in one bit, among the first `threads` of a warp."""
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
    """Define the exact remainder as a long division of significands, several bits at a time."""
    function = ir.Function(module, ir.FunctionType(kind, [kind, kind]), name)
    function.linkage = "internal"
    function.attributes |= {"nounwind", "noinline"}
    blocks = {part: function.append_basic_block(part) for part in ("entry", "divide", "next", "step", "done", "same")}
    builder = IRBuilder(blocks["entry"])
    a, b = (Term(builder, argument) for argument in function.args)
    size, divisor = (absolute(x).as_integer() for x in (a, b))
    fraction, hidden = a.fraction, 1 << a.fraction
    spare = a.bits - fraction - 1
    infinity = ((1 << spare) - 1) << fraction
    # |a| < |b|: the result is a, or b if b is NaN. Otherwise NaN for a NaN, an infinite a and a divisor of 0.
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
    remainder = Term(builder, rest)
    zeros = Term(builder, _leading_zeros(builder, rest)) - spare
    room = exponents[1] - 1
    shifted = remainder << choose(zeros < room, zeros, room)
    normal = shifted + ((exponents[1] - zeros - 1) << fraction)
    number = choose(remainder.equals(0), 0, choose(shifted >= hidden, normal, shifted))
    result = with_sign(number.as_float(), a)
    builder.ret(choose(invalid, float("nan"), result).value)


def _at_least_one(exponent: Term) -> Term:
    return choose(exponent > 1, exponent, 1)


def _leading_zeros(builder: IRBuilder, value: Value) -> Value:
    function = declare(builder, f"llvm.ctlz.{value.type.text}", ir.FunctionType(value.type, [value.type, BIT]))
    return builder.call(function, [value, BIT(0)])
