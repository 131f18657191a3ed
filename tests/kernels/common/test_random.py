"""Random numbers with a seed are the words of the published generator, for any shape and dtype."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.vector.works import TARGET, run_work

from weft.backends.reference.interpret import evaluate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import row_major
from weft.ir.program import Random
from weft.ir.types import TensorType
from weft.kernels.common.random import build_random
from weft.kernels.lower.tensors import StoredTensor

PUBLISHED = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)  # Philox 4x32-10 of key 0 and counter 0


def draw(kind: str, seed: int, shape: tuple[Dim, ...], dtype: DType, sizes: dict[str, int]) -> np.ndarray:
    result = StoredTensor(dtype, shape, row_major(len(shape)))
    (array,), _ = run_work(build_random(Random(kind, seed), result, TARGET), [], [result], sizes)
    return np.asarray(array)


def test_published_words() -> None:
    expected = np.array([word >> 8 for word in PUBLISHED], np.float64) * 2.0**-24
    np.testing.assert_array_equal(draw("uniform", 0, (4,), DType.float64, {}), expected)


@pytest.mark.parametrize("dtype", [DType.float16, DType.float32, DType.float64, DType.bfloat16])
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_as_on_the_reference(kind: str, dtype: DType) -> None:
    for seed, shape in ((1, (1,)), (2**63 + 5, (7, 9)), (77, (3, 1500)), (3, (0, 4)), (12, ())):
        sizes = {"n": shape[0] if shape else 1}
        symbolic: tuple[Dim, ...] = (dims.symbol("n", 0), *shape[1:]) if shape else ()
        (expected,) = evaluate(Random(kind, seed), [], [TensorType(dtype, symbolic)], sizes)
        actual = draw(kind, seed, symbolic, dtype, sizes)
        tolerance = 1e-14 if dtype is DType.float64 else 0
        np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), tolerance, tolerance)
