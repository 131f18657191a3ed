"""Expand products of fragments and arithmetic on pairs of 16-bit floats into plain statements (see expand_tiles.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.ir import dims
from weft.ir import kernel as ir
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Assign,
    Call,
    Code,
    Define,
    Fetch,
    MultiplyFragments,
    Number,
    Put,
    Register,
    Repeat,
    Statement,
)

WORDS = "tile_fragments"  # the local buffer: registers of fragments, each of all lanes
_WARP = 32
_I32, _F32, _U16 = DType.int32, DType.float32, DType.uint16
_HIGH = -65536
_PAIRS = {"fma_bfloat16x2": DType.bfloat16, "fma_float16x2": DType.float16}


def count_words(product: MultiplyFragments) -> int:
    """Return the number of registers of a lane that are stored at a time."""
    return 4 * len(product.left) + 2 * product.planes * len(product.right)


def expand_product(product: MultiplyFragments, lanes: int, fresh: Callable[[str], str]) -> list[Statement]:
    """Store the fragments of each step to local memory; then each lane adds the products of its elements."""
    statements: list[Statement] = []
    for step in range(product.steps):
        left = [names[4 * step : 4 * step + 4] for names in product.left]
        width = 2 * product.planes
        right = [names[width * step : width * (step + 1)] for names in product.right]
        statements += _expand_step(product, left, right, lanes, fresh)
    return statements


def _expand_step(
    product: MultiplyFragments,
    left: Sequence[Sequence[str]],
    right: Sequence[Sequence[str]],
    lanes: int,
    fresh: Callable[[str], str],
) -> list[Statement]:
    here = ir.lane(lanes)
    names = [name for own in (*left, *right) for name in own]
    statements: list[Statement] = [
        Put(WORDS, number * lanes + here, Register(name, _I32, True)) for number, name in enumerate(names)
    ]
    plane_name, place_name = fresh("plane"), fresh("place")
    plane, place = ir.variable(plane_name, 0, product.planes - 1), ir.variable(place_name, 0, 3)
    within = dims.mod(here, _WARP)
    row, column = dims.floordiv(within, 4), 2 * dims.mod(within, 4)
    first = here - within + place
    body: list[Statement] = []

    def load(number: Dim, line: Dim) -> tuple[Code, Code]:
        word = Register(fresh("word"), _I32, True)
        body.append(Define(word.name, Fetch(WORDS, number * lanes + first + 4 * line, _I32), True))
        values = [Register(fresh("element"), _F32, True) for _ in range(2)]
        body.extend(Define(v.name, code, True) for v, code in zip(values, _unpack(word, product.dtype)))
        return values[0], values[1]

    for half in range(2):
        lefts = [[load(4 * number + 2 * half + upper, row) for upper in range(2)] for number in range(len(left))]
        rights = [
            [load(4 * len(left) + number * len(own) + 2 * plane + half, column + odd) for odd in range(2)]
            for number, own in enumerate(right)
        ]
        for number, sums in enumerate(product.sums):
            a, b = divmod(number, len(right))
            for element, name in enumerate(sums):
                total, pairs = Register(name, _F32, True), zip(lefts[a][element // 2], rights[b][element % 2])
                body.extend(Assign(name, Call("fma", (*pair, total), _F32)) for pair in pairs)
    loop = Repeat(place_name, 0, 4, 1, tuple(body))
    return [*statements, Repeat(plane_name, 0, product.planes, 1, (loop,))]


def expand_pairs(code: Code) -> Code:
    """Replace arithmetic on pairs of 16-bit floats by that on float32."""
    if not isinstance(code, Call):
        return code
    arguments = tuple(expand_pairs(argument) for argument in code.arguments)
    if code.function == "and_or":
        return Call("bit_or", (Call("bit_and", arguments[:2], _I32), arguments[2]), _I32)
    dtype = _PAIRS.get(code.function)
    if dtype is None:
        return code if arguments == code.arguments else replace(code, arguments=arguments)
    low, high = (
        _bits(Call("fma", values, _F32), dtype) for values in zip(*(_unpack(argument, dtype) for argument in arguments))
    )
    shifted = Call("shift_left", (high, Number(16, _I32)), _I32)
    return Call("bit_or", (low, shifted), _I32)


def _unpack(word: Code, dtype: DType) -> tuple[Code, Code]:
    """Return both floats of a word as float32."""
    upper = Call("shift_right", (word, Number(16, _I32)), _I32)
    if dtype is DType.bfloat16:
        bits = Call("shift_left", (word, Number(16, _I32)), _I32), Call("bit_and", (word, Number(_HIGH, _I32)), _I32)
        return Call("bitcast", (bits[0],), _F32), Call("bitcast", (bits[1],), _F32)
    low, high = (
        Call("cast", (Call("bitcast", (Call("cast", (half,), _U16),), dtype),), _F32) for half in (word, upper)
    )
    return low, high


def _bits(value: Code, dtype: DType) -> Code:
    """Return the bits of a float32 that is exact in a 16-bit type, as an int32."""
    if dtype is DType.bfloat16:
        upper = Call("shift_right", (Call("bitcast", (value,), _I32), Number(16, _I32)), _I32)
        return Call("bit_and", (upper, Number(0xFFFF, _I32)), _I32)
    return Call("cast", (Call("bitcast", (Call("cast", (value,), dtype),), _U16),), _I32)
