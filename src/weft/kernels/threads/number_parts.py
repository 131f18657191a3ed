"""Numbers as tile products take them: float32 rounded to float16, or as three bfloat16 whose sum they are.

The last part of what is not finite is the number itself, which is multiplied with the first part of others alone: with
their last parts, which may be 0, it would give what is no number. Its first part is 1 or -1, for others like it.
As code for values at hand, for constants, and as a kernel that does it for all elements of an operand.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Number, Statement, block, lane
from weft.ir.target import ThreadTarget
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, fetch_run, put, put_run
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import Launch, Reference

Array = np.ndarray[Any, Any]
F32 = DType.float32
_RUN = 4


def formed(code: Code, element: DType, planes: int, builder: KernelBuilder) -> tuple[list[Statement], list[Code]]:
    """A value as numbers of a type, largest first, with what computes them."""
    if code.dtype is element:
        return [], [code]
    if planes == 1:
        return [], [Call("cast", (_limited(code, element),), element)]
    statements: list[Statement] = []

    def keep(hint: str, value: Code) -> Code:
        defined, register = builder.keep(hint, value, varying=True)
        statements.append(defined)
        return register

    is_finite = keep("finite", Call("less", (Call("absolute", (code,), F32), Number(inf, F32)), DType.bool))
    is_high = Call("greater", (code, Number(0.0, F32)), DType.bool)
    sign = Call("select", (is_high, Number(1.0, F32), Number(-1.0, F32)), F32)
    high = Call("select", (is_finite, _limited(code, element), sign), F32)
    found = [keep("high", Call("cast", (high,), element))]
    rest = keep("rest", Call("subtract", (code, Call("cast", (found[0],), F32)), F32))
    for number in range(1, planes):
        is_last = number == planes - 1
        value = rest if is_last else Call("select", (is_finite, rest, Number(0.0, F32)), F32)
        found.append(keep("part", Call("cast", (value,), element)))
        if not is_last:
            rest = Call("subtract", (rest, Call("cast", (found[-1],), F32)), F32)
    return statements, found


def _limited(code: Code, element: DType) -> Code:
    """Within the range of a type; what is no number stays so."""
    low, high = element.limits
    above = Call("maximum", (code, Number(low, F32)), F32)
    return Call("minimum", (above, Number(high, F32)), F32)


def formed_array(array: Array, element: DType, planes: int) -> Array:
    """The same for all of an array: [planes, ...], or like the array where each number stays one."""
    if planes == 1:
        if array.dtype == element.numpy:
            return array
        limited: Array = np.clip(array, *element.limits).astype(element.numpy)
        return limited
    low, high = element.limits
    with np.errstate(invalid="ignore", over="ignore"):
        is_finite = np.isfinite(array)
        sign = np.where(array > 0, np.float32(1), np.float32(-1))
        found = [np.where(is_finite, np.clip(array, low, high), sign).astype(element.numpy)]
        rest = array - found[0].astype(np.float32)
        for number in range(1, planes):
            kept = rest if number == planes - 1 else np.where(is_finite, rest, np.float32(0))
            found.append(kept.astype(element.numpy))
            rest = rest - found[-1].astype(np.float32)
    return np.stack(found)


@memoized
def forming_launch(size: Dim, element: DType, planes: int, plane: Dim, target: ThreadTarget) -> Launch:
    """All float32 of operand 0 as numbers of another type: the result is [planes, plane], a multiple of four."""
    builder = KernelBuilder("form_operand")
    given = builder.input("given", F32, Reference("operand", 0))
    out = builder.output("out", element, Reference("result", 0))
    run = _RUN if dims.mod(size, _RUN) == 0 else 1
    count = dims.floordiv(size, run)
    lanes = target.block_threads
    number = block() * lanes + lane(lanes)
    mask = Call("less", (Integer(number), Integer(builder.named("runs", count))), DType.bool)
    defined, inside = builder.keep("inside", mask, varying=True)
    statements: list[Statement] = [defined]
    values = builder.registers("value", run, F32)
    if run == 1:
        statements.append(define(values[0], fetch(given, number, mask=inside)))
    else:
        statements.append(fetch_run(values, given, number * run, inside))
    found: list[list[Code]] = []
    for value in values:
        made, numbers = formed(value, element, planes, builder)
        statements += made
        found.append(numbers)
    far = 0 if planes == 1 else run * builder.named("plane", dims.floordiv(plane, run))
    for part in range(planes):
        place, taken = part * far + number * run, [numbers[part] for numbers in found]
        statements.append(put(out, place, taken[0], mask=inside) if run == 1 else put_run(out, place, taken, inside))
    return builder.launch(lanes, statements, dims.ceildiv(count, lanes))
