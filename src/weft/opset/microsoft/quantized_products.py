"""Matrix products of 8-bit numbers: exact sums in int32, scaled once at the end."""

from __future__ import annotations

from typing import Any

from weft.ir.dtypes import DType
from weft.opset.functions import cast
from weft.opset.language import Element, Tensor, contract, elementwise, expand_dims, matmul
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.scales import quantized, single
from weft.opset.quantization import centered, dynamic_quantize_linear, matmul_integer
from weft.opset.registry import require


@op("MatMulIntegerToFloat")
def matmul_integer_to_float(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    sums = matmul_integer(a, b, a_zero_point, b_zero_point)
    return _scaled(sums, single(a_scale), single(b_scale), bias)


@op("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    a: Tensor, b: Tensor, b_scale: Tensor, b_zero_point: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """A is quantized on the way, as a whole, to uint8."""
    numbers, scale, zero_point = dynamic_quantize_linear(a)
    result: Tensor = matmul_integer_to_float(numbers, b, scale, b_scale, zero_point, b_zero_point, bias)
    return result


def _scaled(sums: Tensor, left: Tensor, right: Tensor, bias: Tensor | None, factor: float = 1.0) -> Tensor:
    def element(v: Element, a: Element, b: Element, *addend: Element) -> Any:
        scale = cast(a, DType.float32) * cast(b, DType.float32)
        result = cast(v, DType.float32) * (scale if factor == 1.0 else scale * factor)
        return cast(result + cast(addend[0], DType.float32) if addend else result, a.dtype)

    return elementwise(element, sums, left, right, *(() if bias is None else (bias,)))


@op("QGemm")
def quantized_gemm(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """Without a scale for the result it is float32. C is of the scale that the product has, unless it holds floats.

    onnxruntime's quantizer writes C as float32 where the operands are of 8-bit floats.
    """
    require(a.rank == 2 and b.rank == 2, f"operands {a.type} and {b.type} must be matrices")
    column = single(b_zero_point)
    column = expand_dims(column, [1]) if transB and column.rank == 1 else column
    left = elementwise(centered, a, single(a_zero_point))
    right = elementwise(centered, b, column)
    sums = contract(left, right, "km" if transA else "mk", "nk" if transB else "kn", "mn")
    is_scaled = c is None or c.dtype.is_float
    sums = sums if is_scaled else sums + c
    result = _scaled(sums, single(a_scale), single(b_scale), None, alpha)
    result = result + c if is_scaled and c is not None else result
    if y_scale is None:
        return result
    return quantized(result, y_scale, y_zero_point, a.dtype if y_zero_point is None else y_zero_point.dtype)


@op("MatMulInteger16")
def matmul_integer_16(a: Tensor, b: Tensor) -> Tensor:
    wide = DType.uint32 if a.dtype.is_unsigned and b.dtype.is_unsigned else DType.int32
    return matmul(cast(a, wide), cast(b, wide))


@op("MulInteger")
def multiply_integers(a: Tensor, a_zero_point: Tensor | None, b: Tensor, b_zero_point: Tensor | None = None) -> Tensor:
    """The product of two tensors less their zero points, in int32."""
    return _centered(a, a_zero_point) * _centered(b, b_zero_point)  # type: ignore[no-any-return]


def _centered(x: Tensor, zero_point: Tensor | None) -> Tensor:
    if zero_point is None:
        return cast(x, DType.int32)  # type: ignore[no-any-return]
    return elementwise(centered, x, single(zero_point))
