"""Cumulative sums and products along any axis, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.vector.works import TARGET, run_work, tensor_of

from weft.backends.reference.interpret import evaluate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, row_major
from weft.ir.program import Cumulate
from weft.ir.types import TensorType
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.vector.cumulate import build_cumulate

DTYPES = (DType.float32, DType.float64, DType.float16, DType.bfloat16, DType.int32, DType.int64, DType.uint8)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["sum", "product"])
def test_random_cumulations(kind: str, reverse: bool, exclusive: bool, symbolic: bool) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        shape = tuple(int(size) for size in rng.integers(0 if seed == 7 else 1, {1: 300, 2: 60, 3: 24}[rank], rank))
        sizes = {f"n{axis}": size for axis, size in enumerate(shape)}
        domain: tuple[Dim, ...] = tuple(
            dims.symbol(f"n{axis}", 0) if symbolic and rng.random() < 0.6 else size for axis, size in enumerate(shape)
        )
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        array = rng.integers(1, 3 if kind == "sum" else 2, shape).astype(dtype.numpy)
        if dtype in (DType.float32, DType.float64) and kind == "sum":
            array = rng.normal(size=shape).astype(dtype.numpy)
        primitive = Cumulate(kind, int(rng.integers(rank)), exclusive, reverse)
        layouts = [
            row_major(rank) if rng.random() < 0.5 else Layout(tuple(int(axis) for axis in rng.permutation(rank)))
            for _ in range(2)
        ]
        result = StoredTensor(dtype, domain, layouts[1])
        work = build_cumulate(primitive, tensor_of(array, layouts[0], domain), result, TARGET)
        (ours,), _ = run_work(work, [(array, layouts[0])], [result], sizes)
        (expected,) = evaluate(primitive, [array], [TensorType(dtype, domain)], sizes)
        tolerance = {DType.float32: 1e-5, DType.float64: 1e-12}.get(dtype, 0)
        np.testing.assert_allclose(
            ours.astype(np.float64), expected.astype(np.float64), tolerance, tolerance * 10, err_msg=f"seed {seed}"
        )
