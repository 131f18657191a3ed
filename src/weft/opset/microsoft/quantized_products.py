"""Matrix products of 8-bit numbers: exact sums in int32, scaled once at the end."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.opset.functions import cast
from weft.opset.language import Element, Tensor, contract, elementwise, expand_dims, matmul
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.scales import quantize_tensor, squeeze_single
from weft.opset.quantization import dynamic_quantize_linear, matmul_integer, subtract_zero_point
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
    return _scale_sums(sums, squeeze_single(a_scale), squeeze_single(b_scale), bias)


@op("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    a: Tensor, b: Tensor, b_scale: Tensor, b_zero_point: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Multiply after quantizing A to uint8 with one scale."""
    numbers, scale, zero_point = dynamic_quantize_linear(a)
    return matmul_integer_to_float(numbers, b, scale, b_scale, zero_point, b_zero_point, bias)


def _scale_sums(sums: Tensor, left: Tensor, right: Tensor, bias: Tensor | None, factor: float = 1.0) -> Tensor:
    def element(v: Element, a: Element, b: Element, *addend: Element) -> Element:
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
    """Multiply quantized matrices; the result is float32 unless it has a scale.

    C has the scale of the product unless it holds floats: onnxruntime's quantizer writes C as float32 for operands of
    8-bit floats.
    """
    require(a.rank == 2 and b.rank == 2, f"operands {a.type} and {b.type} must be matrices")
    column = squeeze_single(b_zero_point)
    column = expand_dims(column, [1]) if transB and column.rank == 1 else column
    left = elementwise(subtract_zero_point, a, squeeze_single(a_zero_point))
    right = elementwise(subtract_zero_point, b, column)
    sums = contract(left, right, "km" if transA else "mk", "nk" if transB else "kn", "mn")
    is_scaled = c is None or c.dtype.is_float
    sums = sums if is_scaled else sums + c
    result = _scale_sums(sums, squeeze_single(a_scale), squeeze_single(b_scale), None, alpha)
    result = result + c if is_scaled and c is not None else result
    if y_scale is None:
        return result
    return quantize_tensor(result, y_scale, y_zero_point, a.dtype if y_zero_point is None else y_zero_point.dtype)


@op("MatMulInteger16")
def matmul_integer_16(a: Tensor, b: Tensor) -> Tensor:
    wide = DType.uint32 if a.dtype.is_unsigned and b.dtype.is_unsigned else DType.int32
    return matmul(cast(a, wide), cast(b, wide))


@op("MulInteger")
def multiply_integers(a: Tensor, a_zero_point: Tensor | None, b: Tensor, b_zero_point: Tensor | None = None) -> Tensor:
    """Multiply two tensors after subtracting their zero points, in int32."""
    return _subtract_zero_point(a, a_zero_point) * _subtract_zero_point(b, b_zero_point)


def _subtract_zero_point(x: Tensor, zero_point: Tensor | None) -> Tensor:
    if zero_point is None:
        return cast(x, DType.int32)
    return elementwise(subtract_zero_point, x, squeeze_single(zero_point))
