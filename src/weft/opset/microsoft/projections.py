"""Products of one activation with several quantized matrices, fused with the norm before and the gate after them."""

from __future__ import annotations

from weft.opset.functions import elementwise_wide, sigmoid
from weft.opset.language import Tensor, elementwise
from weft.opset.microsoft.blocks import matmul_n_bits
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.normalization import simplified_layer_normalization, skip_simplified_layer_normalization
from weft.opset.registry import REQUIRED, require

_GATES = ("silu", "swish")


def _normalize(a: Tensor, skip: Tensor | None, scale: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor | None]:
    """Return the normalized activation, and its sum with the skipped one before that."""
    if scale is None:
        require(skip is None, "a skip connection needs norm_scale")
        return a, None
    if skip is None:
        return simplified_layer_normalization(a, scale, epsilon=epsilon)[0], None
    result, _, _, total = skip_simplified_layer_normalization(a, skip, scale, epsilon=epsilon)
    return result, total


@op("MatMulNBitsQkv", outputs=(3, 4))
def matmul_n_bits_qkv(
    a: Tensor,
    skip: Tensor | None,
    norm_scale: Tensor,
    q_b: Tensor,
    q_scales: Tensor,
    q_bias: Tensor | None,
    k_b: Tensor,
    k_scales: Tensor,
    k_bias: Tensor | None,
    v_b: Tensor,
    v_scales: Tensor,
    v_bias: Tensor | None = None,
    *,
    K: int = REQUIRED,
    Nkv: int = REQUIRED,
    Nq: int = REQUIRED,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int = REQUIRED,
    epsilon: float = 1e-6,
) -> list[Tensor | None]:
    """Compute queries, keys and values of the normalized input."""
    normal, total = _normalize(a, skip, norm_scale, epsilon)

    def multiply(weights: Tensor, scales: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
        return matmul_n_bits(
            normal,
            weights,
            scales,
            bias=bias,
            K=K,
            N=outputs,
            accuracy_level=accuracy_level,
            bits=bits,
            block_size=block_size,
        )

    parts = (q_b, q_scales, q_bias, Nq), (k_b, k_scales, k_bias, Nkv), (v_b, v_scales, v_bias, Nkv)
    return [*(multiply(*part) for part in parts), total]


@op("MatMulNBitsMlp", outputs=(1, 2))
def matmul_n_bits_mlp(
    a: Tensor,
    skip: Tensor | None,
    norm_scale: Tensor | None,
    gate_b: Tensor,
    gate_scales: Tensor,
    gate_bias: Tensor | None,
    up_b: Tensor,
    up_scales: Tensor,
    up_bias: Tensor | None = None,
    *,
    K: int = REQUIRED,
    N: int = REQUIRED,
    accuracy_level: int = 0,
    activation: str = REQUIRED,
    bits: int = 4,
    block_size: int = REQUIRED,
    epsilon: float = 1e-5,
) -> list[Tensor | None]:
    """Multiply one product by the other one, activated; a norm of the input before it is optional."""
    require(activation in _GATES, f"activation is {activation!r}", f"weft has {', '.join(_GATES)}")
    normal, total = _normalize(a, skip, norm_scale, epsilon)

    def multiply(weights: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        return matmul_n_bits(
            normal,
            weights,
            scales,
            bias=bias,
            K=K,
            N=N,
            accuracy_level=accuracy_level,
            bits=bits,
            block_size=block_size,
        )

    gate = elementwise_wide(lambda v: v * sigmoid(v), multiply(gate_b, gate_scales, gate_bias))
    return [elementwise(lambda g, u: g * u, gate, multiply(up_b, up_scales, up_bias)), total]
