"""Random numbers by Philox 4x32-10: a lane for each counter, which gives four numbers.

Number i of the tensor is word i % 4 of counter i // 4; normal numbers are computed in pairs from two neighbours. A seed
gives the same numbers on all devices.
"""

from __future__ import annotations

from math import pi

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Number, Statement, block, lane
from weft.ir.program import Random
from weft.ir.target import ThreadTarget, VectorTarget
from weft.kernels.build.loop_nest import choose_lanes
from weft.kernels.lower.kernel_builder import KernelBuilder, put, repeat
from weft.kernels.lower.operations import cast, less
from weft.kernels.lower.tensors import Reference, StoredTensor, Work

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORDS = 4
_BLOCK_COUNTERS = 1024  # counters per block on vector targets
_WORD_MASK = 0xFFFFFFFF
_SEED_PART = 0xFFFF  # 16 bits of a seed, which fit into a parameter on any device


def build_random(primitive: Random, result: StoredTensor, target: VectorTarget | ThreadTarget) -> Work:
    """Build one kernel; the seed must be known (the host draws numbers that differ in every run)."""
    assert primitive.seed is not None
    builder = KernelBuilder("random")
    match target:
        case VectorTarget():
            lanes, per_block = choose_lanes(target, [DType.uint64], widest=8), _BLOCK_COUNTERS
        case ThreadTarget():
            lanes = per_block = target.block_threads
    size = dims.product(result.shape)
    counters = dims.ceildiv(size, _WORDS)
    count, last = builder.parameter("count", size), builder.parameter("counters", counters)
    seed = [builder.parameter(f"seed{n}", (primitive.seed >> 16 * n) & _SEED_PART) for n in range(4)]
    out = builder.output("out", result.dtype, Reference("result", 0))
    first = builder.variable("first")
    counter = first + lane(lanes)
    registers = _Registers(builder)
    words = registers.philox(
        Call("cast", (Integer(counter),), DType.uint64), [_join_halves(*seed[:2]), _join_halves(*seed[2:])]
    )
    numbers = [registers.uniform(word) for word in words]
    if primitive.kind == "normal":
        numbers = [*registers.normal(*numbers[:2]), *registers.normal(*numbers[2:])]
    puts = []
    for word_number, number in enumerate(numbers):
        index = counter * _WORDS + word_number
        inside = less(index, count)
        value = cast(number, result.dtype)
        puts.append(put(out, index, value, mask=inside))
    stop = dims.minimum((block() + 1) * per_block, last)
    body = repeat(first, block() * per_block, stop, lanes, (*registers.statements, *puts))
    return Work((builder.launch(lanes, [body], dims.ceildiv(counters, per_block)),))


class _Registers:
    """Defines registers, and collects the statements that do so."""

    def __init__(self, builder: KernelBuilder) -> None:
        self.builder = builder
        self.statements: list[Statement] = []

    def keep(self, value: Code) -> Code:
        defined, register = self.builder.keep("v", value, varying=True)
        self.statements.append(defined)
        return register

    def word(self, function: str, left: Code, right: Code) -> Code:
        return self.keep(Call(function, (left, right), DType.uint64))

    def philox(self, counter: Code, keys: list[Code]) -> list[Code]:
        """Compute the four words of a counter, each 32 bits in a uint64."""
        low, half = Number(_WORD_MASK, DType.uint64), Number(32, DType.uint64)
        words = [self.word("bit_and", counter, low), self.word("shift_right", counter, half)]
        words += [Number(0, DType.uint64), Number(0, DType.uint64)]
        for _ in range(_ROUNDS):
            first, second = (
                self.word("multiply", word, Number(factor, DType.uint64))
                for word, factor in zip((words[0], words[2]), _MULTIPLIERS)
            )
            mixed = []
            for product, word, key in ((second, words[1], keys[0]), (first, words[3], keys[1])):
                high = self.word("shift_right", product, half)
                mixed.append(self.word("bit_xor", self.word("bit_xor", high, word), key))
            words = [mixed[0], self.word("bit_and", second, low), mixed[1], self.word("bit_and", first, low)]
            sums = [self.word("add", key, Number(step, DType.uint64)) for key, step in zip(keys, _KEY_STEPS)]
            keys = [self.word("bit_and", total, low) for total in sums]
        return words

    def uniform(self, word: Code) -> Code:
        """Convert a word to [0, 1) with 24 bits, which float32 holds exactly and never rounds up to 1."""
        bits = self.word("shift_right", word, Number(8, DType.uint64))
        return self.float("multiply", Call("cast", (bits,), DType.float64), Number(2.0**-24, DType.float64))

    def normal(self, first: Code, second: Code) -> list[Code]:
        """Compute two normal numbers from two uniform ones (Box-Muller)."""
        complement = self.float("subtract", Number(1.0, DType.float64), first)
        log = self.float("log", complement)
        radius = self.float("sqrt", self.float("multiply", Number(-2.0, DType.float64), log))
        angle = self.float("multiply", Number(2.0 * pi, DType.float64), second)
        return [self.float("multiply", radius, self.float(name, angle)) for name in ("cos", "sin")]

    def float(self, function: str, *values: Code) -> Code:
        return self.keep(Call(function, values, DType.float64))


def _join_halves(low: Dim, high: Dim) -> Code:
    """Join two 16-bit halves to a 32-bit word."""
    first, second = (Call("cast", (Integer(half),), DType.uint64) for half in (low, high))
    return Call("bit_or", (first, Call("shift_left", (second, Number(16, DType.uint64)), DType.uint64)), DType.uint64)
