"""Maps with threads as lanes: random ones with every kind of load, and maps with four elements per thread."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.threads.works import run_work, targets
from kernels.vector.test_maps import Maker, assert_same, plain
from kernels.vector.works import tensor_of

from weft.backends.reference.interpret import evaluate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import PutRun
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Map
from weft.ir.scalar import Apply, Index, Load, Scalar
from weft.ir.types import TensorType
from weft.kernels.common.maps import Region
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.threads.maps import build_map, build_map_launch

F32, F16 = DType.float32, DType.float16


@pytest.mark.parametrize("symbolic", [False, True])
def test_random_maps(symbolic: bool) -> None:
    for seed in range(1000 * symbolic, 1000 * symbolic + 40):
        maker = Maker(seed, symbolic)
        expression = maker.expression()
        result = StoredTensor(maker.dtype, maker.domain, maker.layout(len(maker.domain)))
        work = build_map(expression, maker.operands(), result, targets()["sharing"])
        kinds = [TensorType(maker.dtype, maker.domain)]
        (expected,) = evaluate(Map(expression), maker.arrays, kinds, maker.sizes)
        pairs = list(zip(maker.arrays, maker.layouts, strict=True))
        (actual,), errors = run_work(work, pairs, [result], maker.sizes)
        assert_same(actual, expected, f"seed {seed}: {expression} over {maker.domain} as {result.layout}")
        assert errors == 0


@pytest.mark.parametrize("dtype", [F32, F16, DType.bfloat16, DType.float64, DType.int64, DType.uint8, DType.bool])
@pytest.mark.parametrize("batch", [1, 3, dims.symbol("n", 1)], ids=str)
def test_four_elements_per_thread(dtype: DType, batch: Dim) -> None:
    """A tensor with one value for each channel and one for each image, both broadcast."""
    random = np.random.default_rng(3)
    for channels, size in ((20, 7), (32, 13), (4, 1)):
        shape: tuple[Dim, ...] = (batch, channels, size, size)
        sizes = (batch if isinstance(batch, int) else 5, channels, size, size)
        arrays = [
            random.integers(0, 2 if dtype is DType.bool else 9, extents).astype(dtype.numpy)
            for extents in (sizes, sizes[:2], sizes[:1])
        ]
        image, channel = (Index(dims.axis(axis, shape[axis])) for axis in (0, 1))
        combine = "logical_xor" if dtype is DType.bool else "add"
        scaled: Scalar = Apply(combine, (plain(shape, 0, dtype), Load(1, (image, channel), dtype)), dtype)
        expression = Apply(combine, (scaled, Load(2, (image,), dtype)), dtype)
        result = StoredTensor(dtype, shape, channels_last(4))
        layouts = [channels_last(4), row_major(2), row_major(1)]
        shapes = (shape, shape[:2], shape[:1])
        operands = [tensor_of(*stored) for stored in zip(arrays, layouts, shapes)]
        work = build_map(expression, operands, result, targets()["sharing"])
        assert any(isinstance(statement, PutRun) for statement in work.launches[0].kernel.body)
        (actual,), _ = run_work(work, list(zip(arrays, layouts)), [result], {"n": 5})
        (expected,) = evaluate(Map(expression), arrays, [TensorType(dtype, shape)], {"n": 5})
        assert_same(actual, expected, f"{dtype}{sizes}")


@pytest.mark.parametrize("start", [0, 2, 8])
def test_region_of_a_larger_tensor(start: int) -> None:
    array = np.random.default_rng(5).normal(size=(6, 8)).astype(np.float32)
    whole, part = StoredTensor(F32, (6, 20), row_major(2)), StoredTensor(F32, (6, 8), row_major(2))
    region = Region(whole, (0, start))
    launch = build_map_launch(plain((6, 8)), [tensor_of(array)], part, targets()["sharing"], region)
    has_runs = any(isinstance(statement, PutRun) for statement in launch.kernel.body)
    assert has_runs == (start % 4 == 0)
    work = build_map(plain((6, 8)), [tensor_of(array)], part, targets()["sharing"], region)
    (actual,), _ = run_work(work, [(array, row_major(2))], [whole])
    np.testing.assert_array_equal(actual[:, start : start + 8], array)
    assert (actual[:, :start] == 77).all()
    assert (actual[:, start + 8 :] == 77).all()
