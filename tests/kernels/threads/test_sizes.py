"""Tensors computed from sizes hold any int64, although GPU kernels count in 32 bits."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.threads.works import run_work, targets

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.layout import row_major
from weft.ir.program import Dims
from weft.kernels.common.sizes import build_sizes
from weft.kernels.lower.tensors import StoredTensor


@pytest.mark.parametrize("dtype", [DType.int64, DType.int32, DType.float32])
@pytest.mark.parametrize(("n", "m"), [(3, 5), (40, 0), (2**31, 2**33), (2**62, -(2**62) - 1)])
def test_any_int64(n: int, m: int, dtype: DType) -> None:
    a, b = dims.symbol("n", 0, None), dims.symbol("m", None, None)
    values = (a, b, a * b, a * 2**60, -a * 2**40 + 1, b - a, 7, -(2**63), *(a + 3**number for number in range(30)))
    result = StoredTensor(dtype, (len(values),), row_major(1))
    work = build_sizes(Dims(values), result, targets()["software"])
    (actual,), _ = run_work(work, [], [result], {"n": n, "m": m})
    exact = [dims.evaluate(value, {"n": n, "m": m}) for value in values]
    wrapped = np.array([(number + 2**63) % 2**64 - 2**63 for number in exact], np.int64)
    np.testing.assert_array_equal(actual, wrapped.astype(dtype.numpy))
