"""Fused products, convolutions and activations of onnxruntime's domain, against onnxruntime or numpy."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_onnxruntime

MICROSOFT = {"opset": 1, "domain": "com.microsoft"}


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("Gelu", [(3, 5)], {}),
        ("BiasGelu", [(2, 3, 5), (5,)], {}),
        ("FastGelu", [(2, 3, 5)], {}),
        ("FastGelu", [(2, 3, 5), (5,)], {}),
        ("QuickGelu", [(2, 3, 5)], {}),
        ("QuickGelu", [(2, 3, 5)], {"alpha": 0.5}),
    ],
)
def test_activations(op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> None:
    inputs = [random_array(number, shape) for number, shape in enumerate(shapes)]
    check(op, inputs, **MICROSOFT, **attributes)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def softmax(x: Any, axes: tuple[int, ...]) -> Any:
    powers = np.exp(x - x.max(axis=axes, keepdims=True))
    return powers / powers.sum(axis=axes, keepdims=True)


def test_bias_add_and_split_gelu() -> None:
    x, bias, skip = random_array(0, (2, 3, 8)), random_array(1, (8,)), random_array(2, (2, 3, 8))
    check("BiasAdd", [x, bias, skip], expected=[x + bias + skip], **MICROSOFT)
    total = x.astype(np.float64) + bias
    expected = (total[..., :4] * gelu(total[..., 4:])).astype(np.float32)
    check("BiasSplitGelu", [x, bias], expected=[expected], **MICROSOFT)


@pytest.mark.parametrize(
    ("bias_shape", "axis", "inner", "spread"),
    [
        ((4, 5), 3, 0, (1, 1, 4, 5)),
        ((1, 1, 4, 5), 3, 0, (1, 1, 4, 5)),
        ((2, 5), 3, 1, (2, 1, 1, 5)),
        ((2, 1, 1, 5), 3, 1, (2, 1, 1, 5)),
        ((4, 5), 2, 0, (1, 1, 4, 5)),
    ],
)
def test_bias_softmax(bias_shape: tuple[int, ...], axis: int, inner: int, spread: tuple[int, ...]) -> None:
    x, bias = random_array(0, (2, 3, 4, 5)), random_array(1, bias_shape)
    expected = softmax(x.astype(np.float64) + bias.reshape(spread), tuple(range(axis, 4))).astype(np.float32)
    check(
        "BiasSoftmax", [x, bias], expected=[expected], axis=axis, is_inner_broadcast=inner, constants=[1], **MICROSOFT
    )


@pytest.mark.parametrize(
    ("left", "right", "attributes"),
    [
        ((2, 3, 4), (2, 4, 5), {}),
        ((2, 4, 3), (2, 5, 4), {"transA": 1, "transB": 1, "alpha": 0.5}),
        ((4, 3), (2, 5, 4), {"transA": 1, "transB": 1}),
        ((3, 2, 6, 4), (2, 6, 4, 5), {"transBatchA": 1, "alpha": 2.0}),
        ((2, 6, 3, 4), (5, 2, 6, 4), {"transB": 1, "transBatchB": 1}),
        ((4, 2, 6, 3), (2, 6, 4, 5), {"transA": 1, "transBatchA": 1}),
        ((4,), (4, 5), {}),
        ((3, 4), (4,), {"transB": 1}),
    ],
)
def test_fused_matmul(left: tuple[int, ...], right: tuple[int, ...], attributes: dict[str, Any]) -> None:
    inputs = [random_array(0, left), random_array(1, right)]
    expected = None
    if attributes.get("transA") and attributes.get("transBatchA"):
        expected = [np.matmul(inputs[0].transpose(1, 2, 3, 0), inputs[1])]
    if len(right) == 1:
        expected = [inputs[0] @ inputs[1]]
    check("FusedMatMul", inputs, expected=expected, atol=1e-5, **attributes, **MICROSOFT)


def test_transpose_matmul() -> None:
    inputs = [random_array(0, (2, 4, 3)), random_array(1, (4, 5))]
    check("TransposeMatMul", inputs, transA=1, alpha=0.5, **MICROSOFT)


@pytest.mark.parametrize(
    "attributes",
    [
        {"activation": "Relu"},
        {"activation": "LeakyRelu", "activation_alpha": 0.3},
        {"activation": "Tanh", "alpha": 0.2, "beta": 0.5},
        {"activation": "Sigmoid", "transA": 1, "transB": 1},
        {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4},
        {"activation": "Elu", "activation_alpha": 0.7},
        {"activation": "Selu", "activation_alpha": 1.5, "activation_gamma": 1.1},
        {"activation": "ThresholdedRelu", "activation_alpha": 0.7},
        {"activation": "Softplus"},
        {"activation": "Softsign"},
    ],
)
def test_fused_gemm(attributes: dict[str, Any]) -> None:
    a = random_array(0, (4, 3) if attributes.get("transA") else (3, 4))
    b = random_array(1, (5, 4) if attributes.get("transB") else (4, 5))
    check("FusedGemm", [a, b, random_array(2, (5,))], **attributes, atol=1e-5, **MICROSOFT)


def test_products_that_only_other_devices_fuse() -> None:
    a, b, c = random_array(0, (2, 3, 4), low=-1, high=1), random_array(1, (4, 5)), random_array(2, (5,))
    product = a.astype(np.float64) @ b
    total = product + c
    cubed = 0.5 * total * (1 + np.tanh(np.sqrt(2 / np.pi) * (total + 0.044715 * total**3)))
    check("GemmFastGelu", [a, b, c], expected=[cubed.astype(np.float32)], atol=1e-5, **MICROSOFT)
    expected = [np.maximum(product * 0.5, 0).astype(np.float32)]
    check("FusedMatMulActivation", [a, b], expected=expected, activation="Relu", alpha=0.5, atol=1e-5, **MICROSOFT)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"activation": "Relu"},
        {"activation": "LeakyRelu", "activation_params": [0.3]},
        {"activation": "Clip", "activation_params": [-0.5, 0.7], "pads": [1, 1, 1, 1]},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
        {"activation": "Sigmoid", "strides": [2, 2]},
        {"activation": "Tanh", "auto_pad": "SAME_UPPER"},
        {"activation": "Relu", "residual": True, "pads": [1, 1, 1, 1]},
    ],
)
def test_fused_conv(attributes: dict[str, Any]) -> None:
    attributes = dict(attributes)
    residual = random_array(3, (2, 6, 7, 8)) if attributes.pop("residual", False) else None
    inputs = [random_array(0, (2, 4, 7, 8)), random_array(1, (6, 4, 3, 3), low=-1, high=1), random_array(2, (6,))]
    check("FusedConv", [*inputs, residual], **attributes, atol=1e-4, **MICROSOFT)


def test_channels_last_conv() -> None:
    x, w, b = random_array(0, (2, 4, 7, 8)), random_array(1, (6, 2, 3, 3)), random_array(2, (6,))
    check_pair("NhwcConv", x, w, b, None, {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]})


def test_channels_last_fused_conv() -> None:
    x, w, b = random_array(0, (2, 4, 7, 8)), random_array(1, (6, 4, 3, 3)), random_array(2, (6,))
    z = random_array(3, (2, 6, 7, 8))
    check_pair("NhwcFusedConv", x, w, b, z, {"pads": [1, 1, 1, 1], "activation": "Relu"})


def check_pair(op: str, x: Any, w: Any, b: Any, z: Any, attributes: dict[str, Any]) -> None:
    """A channels-last convolution against the same one with the channels second."""
    inputs = [x, w, b] if z is None else [x, w, b, z]
    reference = run_onnxruntime(node_model("FusedConv", inputs, **attributes, **MICROSOFT), inputs)[0]
    last = [x.transpose(0, 2, 3, 1), w, b, *([] if z is None else [z.transpose(0, 2, 3, 1)])]
    check(op, last, expected=[reference.transpose(0, 2, 3, 1)], atol=1e-4, **attributes, **MICROSOFT)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 2], "pads": [1, 0, 1, 1]}, {"ceil_mode": 1}])
def test_channels_last_max_pool(dtype: Any, attributes: dict[str, Any]) -> None:
    low, high = (0, 255) if dtype == np.uint8 else (-128, 127)
    x = random_array(0, (2, 7, 8, 3), dtype, low, high)
    check("NhwcMaxPool", [x], kernel_shape=[3, 2], **attributes, **MICROSOFT)


def test_conv_transpose_with_dynamic_pads() -> None:
    x, w, b = random_array(0, (2, 4, 5, 6)), random_array(1, (4, 3, 3, 3)), random_array(2, (3,))
    pads = np.array([1, 0, 1, 2], np.int64)
    for constants in ([], [2]):
        check(
            "ConvTransposeWithDynamicPads",
            [x, w, pads, b],
            strides=[2, 1],
            constants=constants,
            atol=1e-4,
            **MICROSOFT,
        )


@pytest.mark.parametrize("norm", ["none", "norm", "skip"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op", ["MatMulNBitsQkv", "MatMulNBitsMlp"])
def test_fused_projections(op: str, norm: str, bias: bool) -> None:
    """The same as the separate ops, which onnxruntime has on the CPU."""
    if op == "MatMulNBitsQkv" and norm == "none":
        pytest.skip("it always has a norm")
    depth, wide, narrow = 64, 24, 16
    a, skip, scale = random_array(0, (2, 3, depth)), random_array(1, (2, 3, depth)), random_array(2, (depth,))

    def run(name: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> list[Any]:
        return run_onnxruntime(node_model(name, inputs, outputs=outputs, **attributes, **MICROSOFT), inputs)

    normal, total = a, None
    if norm != "none":
        zeros = skip if norm == "skip" else np.zeros_like(a)
        normal, _, _, total = run("SkipSimplifiedLayerNormalization", [a, zeros, scale], 4, epsilon=1e-4)

    def layer(seed: int, outputs: int) -> list[Any]:
        packed = random_array(seed, (outputs, depth // 32, 16), np.uint8, 0, 255)
        return [packed, random_array(seed, (outputs, depth // 32)), random_array(seed, (outputs,)) if bias else None]

    attributes: dict[str, Any] = {"K": depth, "block_size": 32, "bits": 4}
    sizes = [wide, narrow, narrow] if op == "MatMulNBitsQkv" else [wide, wide]
    layers = [layer(seed, outputs) for seed, outputs in enumerate(sizes, 3)]
    expected = [
        run("MatMulNBits", [normal, packed, steps, None, None, addend], N=outputs, **attributes)[0]
        for (packed, steps, addend), outputs in zip(layers, sizes)
    ]
    if op == "MatMulNBitsMlp":
        gate, up = expected
        expected = [gate / (1 + np.exp(-gate)) * up]
        attributes |= {"N": wide, "activation": "silu"}
    else:
        attributes |= {"Nq": wide, "Nkv": narrow}
    if norm == "skip":
        expected.append(total)
    inputs = [a, skip if norm == "skip" else None, None if norm == "none" else scale]
    inputs += [part for parts in layers for part in parts]
    options = {"outputs": len(expected), "epsilon": 1e-4, "atol": 2e-3, "rtol": 1e-3}
    check(op, inputs, expected=expected, **attributes, **options, **MICROSOFT)
