"""Transposed convolutions as rectangles of pixels, against numpy in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.products import build_transformed
from kernels.vector.works import TARGET, run_work, tensor_of

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Convolve
from weft.ir.scalar import ELEMENT, Apply, Index, Load, Placeholder
from weft.kernels.lower.tensors import Epilogue, StoredTensor
from weft.kernels.vector.interleave import build_interleave

Array = np.ndarray[Any, Any]
F32 = DType.float32


def expected(x: Array, w: Array) -> Array:
    """Compute [N, F, H * a, W * b] from [N, C, H, W] and [C, F, a, b]."""
    parts: Array = np.einsum("nchw,cfab->nfhawb", x.astype(np.float64), w.astype(np.float64))
    n, f, h, a, width, b = parts.shape
    return parts.reshape(n, f, h * a, width * b)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("features", "strides"), [(1, (2, 2)), (3, (2, 2)), (2, (1, 3)), (4, (2, 2))])
def test_rectangles(features: int, strides: tuple[int, int], last: bool, symbolic: bool) -> None:
    rng = np.random.default_rng(features)
    x = rng.normal(size=(2, 21, 7, 19)).astype(np.float32)
    w = rng.normal(size=(21, features, *strides)).astype(np.float32)
    bias = rng.normal(size=features).astype(np.float32)
    sizes = {"h": 7, "w": 19}
    spatial: tuple[Dim, ...] = (dims.symbol("h"), dims.symbol("w")) if symbolic else (7, 19)
    layout = channels_last(4) if last else row_major(4)
    result = StoredTensor(F32, (2, features, spatial[0] * strides[0], spatial[1] * strides[1]), layout)
    at = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(result.shape))
    added = Apply("add", (Placeholder(ELEMENT, F32), Load(0, (at[1],), F32)), F32)
    epilogue = Epilogue(Apply("maximum", (added, Placeholder(ELEMENT, F32)), F32), (tensor_of(bias),))
    primitive = Convolve(strides, (1, 1), ((0, 0), (0, 0)), 1, transposed=True)
    source = tensor_of(x, channels_last(4), (2, 21, *spatial))
    work = build_transformed(build_interleave, primitive, source, w, result, epilogue, TARGET)
    assert work is not None
    operands = [(x, channels_last(4)), (w, row_major(4)), (bias, row_major(1))]
    (ours,), _ = run_work(work, operands, [result], sizes)
    plain = expected(x, w)
    np.testing.assert_allclose(ours, np.maximum(plain + bias[:, None, None], plain), 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "size"),
    [
        ((3, 3), (2, 2), ((0, 0), (0, 0)), 15),
        ((2, 2), (2, 2), ((1, 1), (0, 0)), 14),
        ((2, 2), (2, 2), ((0, 0),) * 2, 15),
    ],
)
def test_where_it_does_not_apply(
    kernel: tuple[int, int], strides: tuple[int, int], pads: tuple[tuple[int, int], ...], size: int
) -> None:
    """Overlapping windows, a cropped result, and one that is larger."""
    x = StoredTensor(F32, (1, 8, 7, 7), channels_last(4))
    result = StoredTensor(F32, (1, 1, size, size), row_major(4))
    primitive = Convolve(strides, (1, 1), pads, 1, transposed=True)
    assert (
        build_transformed(build_interleave, primitive, x, np.zeros((8, 1, *kernel), np.float32), result, None, TARGET)
        is None
    )
