"""Conversion of float32 to the types of tile products: rounded to float16, or split into planes of bfloat16.

A number is the sum of its three planes. The last plane of an infinity or NaN is the number itself. It is multiplied
only with the first planes of other numbers, because their last planes may be 0, and inf * 0 is NaN. The first plane of
an infinity or NaN is 1 or -1, for products of two such numbers.
"""

from __future__ import annotations

from math import inf

import numpy as np

from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Number, Statement, block, lane
from weft.ir.target import ThreadTarget
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, fetch_run, put, put_run
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.tensors import Launch, Reference

F32 = DType.float32
_RUN = 4
_TOGETHER = 1 << 15  # numbers that are split at a time, so that they stay in the cache: 7 times faster


def convert_value(
    code: Code, element: DType, planes: int, builder: KernelBuilder
) -> tuple[list[Statement], list[Code]]:
    """Split a value into planes of a type, the largest first; also returns the statements that compute them."""
    if code.dtype is element:
        return [], [code]
    if planes == 1:
        return [], [Call("cast", (_clamp(code, element),), element)]
    statements: list[Statement] = []

    def keep(hint: str, value: Code) -> Code:
        definition, register = builder.keep(hint, value, varying=True)
        statements.append(definition)
        return register

    is_finite = keep("finite", Call("less", (Call("absolute", (code,), F32), Number(inf, F32)), DType.bool))
    is_positive = Call("greater", (code, Number(0.0, F32)), DType.bool)
    sign = Call("select", (is_positive, Number(1.0, F32), Number(-1.0, F32)), F32)
    high = Call("select", (is_finite, _clamp(code, element), sign), F32)
    numbers = [keep("high", Call("cast", (high,), element))]
    remainder = keep("rest", Call("subtract", (code, Call("cast", (numbers[0],), F32)), F32))
    for number in range(1, planes):
        is_last = number == planes - 1
        value = remainder if is_last else Call("select", (is_finite, remainder, Number(0.0, F32)), F32)
        numbers.append(keep("part", Call("cast", (value,), element)))
        if not is_last:
            remainder = Call("subtract", (remainder, Call("cast", (numbers[-1],), F32)), F32)
    return statements, numbers


def _clamp(code: Code, element: DType) -> Code:
    """Clamp to the range of a type; NaN stays NaN."""
    low, high = element.limits
    return Call("minimum", (Call("maximum", (code, Number(low, F32)), F32), Number(high, F32)), F32)


def convert_array(array: Array, element: DType, planes: int) -> Array:
    """Convert an array like `convert_value`: [planes, ...], or the array's shape with one plane."""
    if planes == 1:
        if array.dtype == element.numpy:
            return array
        clamped: Array = np.clip(array, *element.limits).astype(element.numpy)
        return clamped
    parts = np.empty((planes, *array.shape), element.numpy)
    numbers, flat_parts = array.reshape(-1), parts.reshape(planes, -1)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, numbers.size, _TOGETHER):
            end = start + _TOGETHER
            _split_numbers(numbers[start:end], flat_parts[:, start:end], element)
    return parts


def _split_numbers(numbers: Array, parts: Array, element: DType) -> None:
    is_finite = np.isfinite(numbers)
    are_all_finite = bool(is_finite.all())
    first = np.clip(numbers, *element.limits)
    if not are_all_finite:
        first = np.where(is_finite, first, np.where(numbers > 0, np.float32(1), np.float32(-1)))
    parts[0] = first
    remainder = numbers - parts[0].astype(np.float32)
    last = len(parts) - 1
    for number in range(1, last):
        parts[number] = remainder if are_all_finite else np.where(is_finite, remainder, np.float32(0))
        remainder = remainder - parts[number].astype(np.float32)
    parts[last] = remainder


@memoize
def build_convert_launch(size: Dim, element: DType, planes: int, plane: Dim, target: ThreadTarget) -> Launch:
    """Convert all float32 of operand 0; the result is [planes, plane], where `plane` is a multiple of four."""
    builder = KernelBuilder("convert_operand")
    source = builder.input("given", F32, Reference("operand", 0))
    out = builder.output("out", element, Reference("result", 0))
    run = _RUN if dims.mod(size, _RUN) == 0 else 1
    count = dims.floordiv(size, run)
    lanes = target.block_threads
    number = block() * lanes + lane(lanes)
    mask = Call("less", (Integer(number), Integer(builder.parameter("runs", count))), DType.bool)
    definition, inside = builder.keep("inside", mask, varying=True)
    statements: list[Statement] = [definition]
    values = builder.registers("value", run, F32)
    if run == 1:
        statements.append(define(values[0], fetch(source, number, mask=inside)))
    else:
        statements.append(fetch_run(values, source, number * run, inside))
    converted: list[list[Code]] = []
    for value in values:
        conversion, numbers = convert_value(value, element, planes, builder)
        statements += conversion
        converted.append(numbers)
    distance = 0 if planes == 1 else run * builder.parameter("plane", dims.floordiv(plane, run))
    for part in range(planes):
        place, codes = part * distance + number * run, [numbers[part] for numbers in converted]
        statements.append(put(out, place, codes[0], mask=inside) if run == 1 else put_run(out, place, codes, inside))
    return builder.launch(lanes, statements, dims.ceildiv(count, lanes))
