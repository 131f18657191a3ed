"""How caches of keys and values are stored: as they are, or as multiples of a scale in 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.functions import bit_and, bit_or, cast, clamp, round_half_even, shift_left, shift_right, where
from weft.opset.language import Element, Tensor, assume_equal, reshape
from weft.opset.registry import require
from weft.records import dataclass

LARGEST_FLOAT8 = 448.0
NIBBLE_ZERO = 8  # the 4-bit code of 0

Row = Callable[[Any], Any]  # the element of a row at a channel


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """How a row of `size` channels of one head is stored; `scale` is [1, 1] or [heads, size], None: unquantized.

    4-bit codes are unsigned, with 0 at 8, two in a byte; the lower half is the channel with the even number.
    """

    dtype: DType
    size: Dim
    scale: Tensor | None = None
    bits: int = 8

    @property
    def width(self) -> Dim:
        """Return how many elements a row is stored in."""
        return dims.ceildiv(self.size, 2) if self.bits == 4 else self.size

    def encode(self, row: Row, head: Element, position: Element) -> Any:
        """Return the stored element at a position of the row."""
        if self.scale is None:
            return row(position)
        if self.bits == 8:
            return self._quantize(row(position), head, position)
        low, high = (self._code(row, head, position * 2 + n) for n in range(2))
        return bit_or(low, shift_left(high, 4))

    def decode(self, stored: Row, head: Element, channel: Element, dtype: DType) -> Any:
        """Return the number at a channel of a stored row."""
        if self.scale is None:
            return stored(channel)
        if self.bits == 8:
            code = cast(stored(channel), DType.float32)
        else:
            pair = stored(channel // 2)
            half = where(channel % 2 < 1, bit_and(pair, 15), shift_right(pair, 4))
            code = cast(half, DType.float32) - float(NIBBLE_ZERO)
        return cast(code * self._step(head, channel), dtype)

    def _quantize(self, v: Element, head: Element, channel: Element) -> Element:
        steps = cast(v, DType.float32) / self._step(head, channel)
        if self.dtype.is_float:
            return cast(clamp(steps, -LARGEST_FLOAT8, LARGEST_FLOAT8), self.dtype)
        return cast(clamp(round_half_even(steps), -128.0, 127.0), self.dtype)

    def _code(self, row: Row, head: Element, channel: Element) -> Element:
        """Return a 4-bit code; beyond an odd number of channels it is that of 0."""
        steps = cast(row(channel), DType.float32) / self._step(head, channel)
        code = clamp(round_half_even(steps), -8.0, 7.0) + float(NIBBLE_ZERO)
        return cast(where(channel < self.size, code, float(NIBBLE_ZERO)), self.dtype)

    def _step(self, head: Element, channel: Element) -> Element:
        assert self.scale is not None
        return self.scale.at(*(0 if size == 1 else i for size, i in zip(self.scale.shape, (head, channel))))


def choose_format(
    name: str,
    past: Tensor | None,
    new: DType,
    *,
    quant_type: str,
    scale: Tensor | None,
    bits: int,
    heads: Dim,
    size: Dim,
) -> CacheFormat:
    """Return the format of a cache, from the attributes of an op; without a past, of the first one."""
    require(
        quant_type in ("NONE", "PER_TENSOR", "PER_CHANNEL"),
        f"the quantization of the {name} cache is {quant_type!r}",
        "it must be NONE, PER_TENSOR or PER_CHANNEL",
    )
    if quant_type == "NONE":
        dtype = new if past is None else past.dtype
        require(dtype is new, f"a {name} cache of {dtype} without a scale cannot hold {new}")
        return CacheFormat(new, size)
    require(bits in (4, 8), f"a {name} cache has {bits} bits", "4 and 8 are possible")
    require(scale is not None, f"a quantized {name} cache needs its scale")
    assert scale is not None
    if quant_type == "PER_TENSOR":
        assume_equal(scale.size, 1, f"one scale for the {name} cache")
        scale = reshape(scale, (1, 1))
    else:
        assume_equal(scale.size, heads * size, f"a scale for each channel of the {name} cache")
        scale = reshape(scale, (heads, size))
    expected = (DType.uint8,) if bits == 4 else (DType.int8, DType.float8e4m3fn)
    dtype = expected[0] if past is None else past.dtype
    require(dtype in expected, f"a {name} cache of {bits} bits has the type {expected[0]}, not {dtype}")
    return CacheFormat(dtype, size, scale, bits)
