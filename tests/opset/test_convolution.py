"""Convolutions and their transposes, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

from weft.errors import WeftError

# input, weights, attributes
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 1, 5), (1, 1, 3), {}),
    ((2, 3, 7), (4, 3, 3), {"pads": [2, 1], "strides": [2]}),
    ((2, 4, 7, 6), (6, 4, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((2, 4, 9, 9), (6, 2, 3, 2), {"group": 2, "dilations": [2, 3]}),
    ((2, 4, 7, 6), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((2, 4, 7, 6), (8, 1, 3, 3), {"group": 4, "strides": [2, 2]}),
    ((2, 4, 7, 6), (5, 4, 1, 1), {}),
    ((2, 4, 7, 6), (5, 4, 1, 1), {"strides": [2, 3]}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"pads": [1, 0, 1, 0, 1, 0], "strides": [1, 2, 2]}),
    ((1, 2, 7, 8), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 2, 7, 8), (3, 2, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((1, 2, 7, 8), (3, 2, 1, 1), {"auto_pad": "SAME_UPPER", "strides": [3, 3]}),
    ((1, 2, 7, 8), (3, 2, 3, 3), {"auto_pad": "VALID", "strides": [2, 2]}),
    ((1, 2, 7, 8), (3, 2, 3, 3), {"kernel_shape": [3, 3]}),
    ((0, 2, 7, 8), (3, 2, 3, 3), {}),
]


@pytest.mark.parametrize("opset", [7, 11, 22])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_conv(case: tuple[Any, ...], opset: int, bias: bool) -> None:
    x, w, attributes = case
    inputs = [random_array(1, x), random_array(2, w), *([random_array(3, w[:1])] if bias else [])]
    check("Conv", inputs, opset=opset, rtol=1e-4, atol=1e-4, **attributes)


def test_conv_of_four_spatial_axes() -> None:
    """The weights pick one input element each, so the result is a window of the input."""
    x = random_array(1, (1, 1, 3, 4, 3, 4))
    w = np.zeros((1, 1, 2, 2, 2, 2), np.float32)
    w[0, 0, 1, 0, 1, 0] = 1
    check("Conv", [x, w], opset=11, expected=[x[:, :, 1:3, 0:3, 1:3, 0:3]])


def test_conv_pads_dilated_kernels_automatically() -> None:
    inputs = [random_array(1, (1, 2, 9, 9)), random_array(2, (3, 2, 3, 3))]
    reference = run_weft(node_model("Conv", inputs, opset=11, pads=[2, 2, 2, 2], dilations=[2, 2]), inputs)
    check("Conv", inputs, opset=11, expected=reference, auto_pad="SAME_UPPER", dilations=[2, 2])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_conv_types(dtype: Any) -> None:
    x, w = random_array(1, (1, 3, 6, 6), dtype), random_array(2, (2, 3, 3, 3), dtype)
    model = node_model("Conv", [x, w], opset=22)
    wide = [x.astype(np.float64), w.astype(np.float64)]
    reference = run_weft(node_model("Conv", wide, opset=22), wide)[0]
    actual = run_weft(model, [x, w])[0]
    assert actual.dtype == dtype
    np.testing.assert_allclose(
        actual.astype(np.float64), reference, rtol=1e-2, atol=0.3 if dtype != np.float64 else 1e-12
    )


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 1, 3), (1, 2, 3), {}),
    ((1, 1, 3), (1, 2, 3), {"strides": [3], "output_padding": [1]}),
    ((2, 4, 3, 4), (4, 5, 3, 3), {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
    ((2, 4, 3, 4), (4, 2, 3, 3), {"group": 2, "strides": [2, 2], "output_padding": [1, 1]}),
    ((2, 4, 3, 4), (4, 1, 3, 2), {"group": 4, "dilations": [2, 3]}),
    ((2, 4, 3, 4), (4, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 4, 3, 4), (4, 2, 4, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((2, 4, 3, 4), (4, 2, 3, 3), {"auto_pad": "VALID", "strides": [2, 2]}),
    ((2, 4, 3, 4), (4, 2, 3, 3), {"output_shape": [6, 9], "strides": [2, 2]}),
    ((2, 4, 3, 4), (4, 2, 3, 3), {"output_shape": [8, 10], "strides": [3, 2], "output_padding": [1, 1]}),
    ((1, 2, 2, 3, 2), (2, 3, 2, 2, 3), {"strides": [2, 1, 2], "pads": [0, 1, 0, 1, 0, 1]}),
]


@pytest.mark.parametrize("opset", [7, 11])
@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_conv_transpose(case: tuple[Any, ...], opset: int) -> None:
    x, w, attributes = case
    bias = random_array(3, (w[1] * attributes.get("group", 1),))
    check(
        "ConvTranspose", [random_array(1, x), random_array(2, w), bias], opset=opset, rtol=1e-4, atol=1e-4, **attributes
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"auto_pad": "SOMEHOW"},
        {"pads": [1, 1]},
        {"strides": [0, 1]},
        {"kernel_shape": [5, 5]},
        {"group": 3},
        {"dilations": [1]},
    ],
    ids=str,
)
def test_conv_rejects(attributes: dict[str, Any]) -> None:
    inputs = [random_array(1, (1, 2, 7, 8)), random_array(2, (3, 2, 3, 3))]
    with pytest.raises(WeftError):
        run_weft(node_model("Conv", inputs, opset=11, **attributes), inputs)
