"""Pooling kernels of any rank, layout, padding, stride and dilation, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.vector.works import TARGET, run_work, tensor_of

from weft.backends.reference.interpret import evaluate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, channels_last, row_major
from weft.ir.program import Pool
from weft.ir.scalar import ELEMENT, Apply, Index, Literal, Load, Placeholder
from weft.ir.types import TensorType
from weft.kernels.lower.tensors import Epilogue, StoredTensor
from weft.kernels.vector.pool import build_pool

F32, I64 = DType.float32, DType.int64
DTYPES = (F32, F32, F32, DType.float64, DType.float16, DType.bfloat16, DType.int8, DType.uint8)


def random_layout(rng: np.random.Generator, rank: int) -> Layout:
    choices = [row_major(rank), channels_last(rank), Layout(tuple(int(axis) for axis in rng.permutation(rank)))]
    return choices[int(rng.choice(3, p=[0.4, 0.4, 0.2]))]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("kind", ["maximum", "sum", "argmax"])
@pytest.mark.parametrize("group", range(8))
def test_random_pools(group: int, kind: str, symbolic: bool) -> None:
    for seed in range(group * 6, group * 6 + 6):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        window = tuple(int(k) for k in rng.integers(1, 5, rank))
        strides = tuple(int(s) for s in rng.integers(1, 4, rank))
        dilations = tuple(int(d) for d in rng.integers(1, 3, rank))
        pads = tuple((int(rng.integers(0, 3)), int(rng.integers(0, 3))) for _ in range(rank))
        reach = [d * (k - 1) + 1 for d, k in zip(dilations, window)]
        spatial = [int(rng.integers(r, r + {1: 100, 2: 40, 3: 12}[rank])) for r in reach]
        shape = (int(rng.integers(1, 3)), int(rng.choice([1, 3, 16, 20, 65])), *spatial)
        sizes = {f"n{axis}": size for axis, size in enumerate(shape)}
        domain: tuple[Dim, ...] = tuple(
            dims.symbol(f"n{axis}") if symbolic and rng.random() < 0.5 else size for axis, size in enumerate(shape)
        )
        more = int(rng.integers(0, 2))  # windows may lie beyond the end, as with ceil_mode
        counts = [
            dims.floordiv(size + before + after - r, stride) + 1 + more
            for size, (before, after), r, stride in zip(domain[2:], pads, reach, strides)
        ]
        primitive = Pool(kind, window, strides, dilations, pads)
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        array = rng.integers(-20, 20, shape).astype(np.int8).astype(dtype.numpy)
        if dtype.is_float and kind != "sum" and rng.random() < 0.3:
            array[rng.random(shape) < 0.05] = np.nan
        layout = random_layout(rng, rank + 2)
        kind_of_result = I64 if kind == "argmax" else dtype
        result = StoredTensor(kind_of_result, (*domain[:2], *counts), random_layout(rng, rank + 2))
        work = build_pool(primitive, tensor_of(array, layout, domain), result, TARGET)
        (ours,), _ = run_work(work, [(array, layout)], [result], sizes, at_start=bool(seed % 2))
        (expected,) = evaluate(primitive, [array], [TensorType(kind_of_result, result.shape)], sizes)
        wide = np.float64 if dtype.is_float and kind != "argmax" else expected.dtype
        message = f"seed {seed}: {primitive} of {dtype}{shape}, {layout} to {result.layout}"
        np.testing.assert_array_equal(ours.astype(wide), expected.astype(wide), err_msg=message)


@pytest.mark.parametrize("layout", [row_major(4), channels_last(4)])
def test_averages_by_epilogue(layout: Layout) -> None:
    array = np.random.default_rng(0).normal(size=(2, 24, 9, 11)).astype(np.float32)
    bias = np.arange(24, dtype=np.float32)
    shape = (2, 24, 4, 5)
    at = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(shape))
    mean = Apply("divide", (Placeholder(ELEMENT, F32), Literal(9.0, F32)), F32)
    epilogue = Epilogue(Apply("add", (mean, Load(0, (at[1],), F32)), F32), (tensor_of(bias),))
    primitive = Pool("sum", (3, 3), (2, 2), (1, 1), ((0, 0), (0, 0)))
    result = StoredTensor(F32, shape, layout)
    work = build_pool(primitive, tensor_of(array, layout), result, TARGET, epilogue)
    (ours,), _ = run_work(work, [(array, layout), (bias, row_major(1))], [result])
    (total,) = evaluate(primitive, [array.astype(np.float64)], [TensorType(DType.float64, shape)], {})
    np.testing.assert_allclose(ours, total / 9 + bias[:, None, None], 1e-5, 1e-6)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("kind", ["maximum", "sum"])
@pytest.mark.parametrize(
    ("window", "stride", "dilation", "pads"),
    [
        ((2, 2), 1, 1, ((0, 1), (0, 1))),
        ((3, 3), 2, 1, ((1, 1), (1, 1))),
        ((3, 3), 1, 2, ((2, 2), (2, 2))),
        ((5, 5), 1, 1, ((2, 2), (2, 2))),
        ((2, 7), 3, 1, ((0, 0), (3, 3))),
        ((2, 2), 2, 1, ((0, 0), (0, 0))),
    ],
)
def test_lines_of_pixels(
    window: tuple[int, int],
    stride: int,
    dilation: int,
    pads: tuple[tuple[int, int], tuple[int, int]],
    kind: str,
    symbolic: bool,
) -> None:
    """Channels-last tensors with lines long enough for several pixels at a time, against numpy."""
    array = np.random.default_rng(7).normal(size=(2, 24, 11, 37)).astype(np.float32)
    array[0, 3, 5, 6:9] = np.nan if kind == "maximum" else 0
    sizes = {"h": 11, "w": 37}
    spatial: tuple[Dim, ...] = (dims.symbol("h"), dims.symbol("w")) if symbolic else (11, 37)
    reach = [dilation * (size - 1) + 1 for size in window]
    counts = [dims.floordiv(s + sum(p) - r, stride) + 1 for s, p, r in zip(spatial, pads, reach)]
    result = StoredTensor(F32, (2, 24, *counts), channels_last(4))
    primitive = Pool(kind, window, (stride, stride), (dilation, dilation), pads)
    work = build_pool(primitive, tensor_of(array, channels_last(4), (2, 24, *spatial)), result, TARGET)
    (ours,), _ = run_work(work, [(array, channels_last(4))], [result], sizes)
    nothing = -np.inf if kind == "maximum" else 0.0
    padded = np.pad(array.astype(np.float64), ((0, 0), (0, 0), *pads), constant_values=nothing)
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, (2, 3))
    views = views[:, :, ::stride, ::stride, ::dilation, ::dilation]
    expected = views.max((4, 5)) if kind == "maximum" else views.sum((4, 5))
    np.testing.assert_allclose(ours, expected, 1e-5, 1e-5)
