"""Matrix products fused with transposes, scaling and activations."""

from __future__ import annotations

from weft.opset.functions import cast, wide_dtype
from weft.opset.language import Tensor, elementwise, matmul, transpose
from weft.opset.linear import gemm
from weft.opset.microsoft.activations import activate, fast_gelu
from weft.opset.microsoft.domain import op
from weft.opset.registry import REQUIRED


@op("FusedMatMul")
@op("TransposeMatMul")
def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    left = _permute_operand(a, swap=bool(transA), batch=bool(transBatchA))
    product = matmul(left, _permute_operand(b, swap=bool(transB), batch=bool(transBatchB)))
    if alpha == 1.0:
        return product
    wide = wide_dtype(product.dtype)
    return elementwise(lambda v: cast(cast(v, wide) * alpha, product.dtype), product)


def _permute_operand(x: Tensor, *, swap: bool, batch: bool) -> Tensor:
    """Move the first dimension behind the batch ones (`batch`), then exchange the last two (`swap`)."""
    order = list(range(x.rank))
    if batch and x.rank > 2:
        order = [*order[1:-1], order[0], order[-1]]
    if swap and x.rank > 1:
        order[-2:] = order[:-3:-1]
    return transpose(x, order)


@op("FusedMatMulActivation")
def fused_matmul_activation(
    a: Tensor,
    b: Tensor,
    *,
    activation: str = REQUIRED,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    activation_axis: int | None = None,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    product = fused_matmul(
        a, b, alpha=alpha, transA=transA, transB=transB, transBatchA=transBatchA, transBatchB=transBatchB
    )
    return activate(product, activation, (activation_alpha, activation_beta, activation_gamma))


@op("FusedGemm")
def fused_gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    activation: str | None = None,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    product = gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    second = activation_gamma if activation_beta is None else activation_beta
    return activate(product, activation, (activation_alpha, second))


@op("GemmFastGelu")
def gemm_fast_gelu(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    return fast_gelu(matmul(x, w), bias)
