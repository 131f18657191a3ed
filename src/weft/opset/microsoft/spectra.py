"""Fourier transforms of real signals, and products of complex numbers stored as pairs."""

from __future__ import annotations

from typing import Any

from weft.opset.functions import cast, equal, where, wide_dtype
from weft.opset.language import Element, Tensor, assume_equal, broadcast_shapes, build, expand_dims, squeeze
from weft.opset.microsoft.domain import op
from weft.opset.registry import REQUIRED, require
from weft.opset.signal import dft_17


@op("Rfft")
def real_transform(x: Tensor, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> Tensor:
    """Transform the last `signal_ndim` dimensions, the last of them onesided; complex parts are a new dimension."""
    _check_attributes(x, normalized, onesided, signal_ndim, x.rank)
    result: Tensor = dft_17(expand_dims(x, [x.rank]), axis=x.rank - 1, onesided=1)
    for number in range(1, signal_ndim):
        result = dft_17(result, axis=x.rank - 1 - number)
    return result


@op("Irfft")
def inverse_real_transform(x: Tensor, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = REQUIRED) -> Tensor:
    _check_attributes(x, normalized, onesided, signal_ndim, x.rank - 1)
    result = x
    for number in range(1, signal_ndim):
        result = dft_17(result, axis=x.rank - 2 - number, inverse=1)
    return squeeze(dft_17(result, axis=x.rank - 2, inverse=1, onesided=1), [-1])


def _check_attributes(x: Tensor, normalized: int, onesided: int, signal_ndim: int, available: int) -> None:
    require(not normalized and bool(onesided), "transforms must be onesided and not normalized")
    require(1 <= signal_ndim <= available, f"signal_ndim is {signal_ndim} for {x.type}")


@op("ComplexMul")
def complex_product(a: Tensor, b: Tensor) -> Tensor:
    return _multiply_complex(a, b, conjugate=False)


@op("ComplexMulConj")
def complex_product_with_conjugate(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a by the conjugate of b."""
    return _multiply_complex(a, b, conjugate=True)


def _multiply_complex(a: Tensor, b: Tensor, *, conjugate: bool) -> Tensor:
    for tensor in (a, b):
        require(tensor.rank >= 1, "complex numbers are pairs in the last dimension")
        assume_equal(tensor.shape[-1], 2, "complex numbers are pairs in the last dimension")
    shape = (*broadcast_shapes(a.shape[:-1], b.shape[:-1]), 2)
    wide = wide_dtype(a.dtype)

    def element(*i: Element) -> Element:
        def part(x: Tensor, number: int) -> Any:
            outer = i[len(i) - x.rank : -1]
            return cast(x.at(*(0 if size == 1 else k for size, k in zip(x.shape, outer)), number), wide)

        imaginary = -part(b, 1) if conjugate else part(b, 1)
        real_result = part(a, 0) * part(b, 0) - part(a, 1) * imaginary
        imaginary_result = part(a, 0) * imaginary + part(a, 1) * part(b, 0)
        return cast(where(equal(i[-1], 0), real_result, imaginary_result), a.dtype)

    return build(shape, element)
