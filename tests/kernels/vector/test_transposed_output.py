"""Row-major convolutions, computed channels-last and transposed, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.epilogues import KINDS, EpilogueCase, assert_close
from kernels.vector.works import TARGET, run_work, tensor_of

from weft.backends.reference.products import convolve
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Convolve
from weft.kernels.build.convolution import Convolution
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.vector.convolve import build_convolution
from weft.kernels.vector.transposed_output import Build, allow_transposed_output
from weft.kernels.vector.winograd import build_winograd

F32 = DType.float32
PLAIN = allow_transposed_output(lambda convolution, target, _: build_convolution(convolution, target))
TRANSFORMED = allow_transposed_output(lambda convolution, target, _: build_winograd(convolution, target, 4))


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("build", [PLAIN, TRANSFORMED])
def test_result_is_transposed(build: Build, last: bool, kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 5, 9, 13), (21, 5, 3, 3)))
    primitive = Convolve((1, 1), (1, 1), ((1, 1), (1, 1)), 1)
    shape = (2, 21, 9, 13)
    result = StoredTensor(F32, shape, row_major(4))
    ending = EpilogueCase(kind, F32, shape, shape, 1, channels_last(4) if last else row_major(4), 3)
    source = tensor_of(x, channels_last(4))
    work = build(Convolution(primitive, source, tensor_of(w), result, ending.epilogue, w), TARGET, 4)
    assert work is not None
    assert len(work.launches) > 1
    assert work.launches[-1].kernel.name.startswith("map")
    wide = convolve(primitive, x.astype(np.float64), w.astype(np.float64), 1, [(1, 1), (1, 1)], shape)
    operands = [(x, channels_last(4)), (w, row_major(4)), *ending.arrays]
    (actual,), _ = run_work(work, operands, [result])
    assert_close(actual, ending.apply(wide), F32, 4e-6)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("features", [1, 3, 5])
@pytest.mark.parametrize("last", [False, True])
def test_long_epilogues_of_few_channels_are_a_map(last: bool, features: int, kind: str) -> None:
    rng = np.random.default_rng(features)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 6, 7, 9), (features, 6, 3, 3)))
    primitive = Convolve((1, 1), (1, 1), ((1, 1), (1, 1)), 1)
    shape = (2, features, 7, 9)
    layout = channels_last(4) if last else row_major(4)
    result = StoredTensor(F32, shape, layout)
    ending = EpilogueCase(kind, F32, shape, shape, 1, layout, 3)
    source = tensor_of(x, channels_last(4))
    work = PLAIN(Convolution(primitive, source, tensor_of(w), result, ending.epilogue, w), TARGET, None)
    assert work is not None
    is_map = work.launches[-1].kernel.name.startswith("map")
    assert is_map == ((kind == "gelu" and features < 5) or (features == 5 and not last))
    wide = convolve(primitive, x.astype(np.float64), w.astype(np.float64), 1, [(1, 1), (1, 1)], shape)
    operands = [(x, channels_last(4)), (w, row_major(4)), *ending.arrays]
    (actual,), _ = run_work(work, operands, [result])
    assert_close(actual, ending.apply(wide), F32, 4e-6)


def test_one_channel_is_not_transposed() -> None:
    x, w = np.zeros((1, 8, 4, 4), np.float32), np.zeros((1, 8, 1, 1), np.float32)
    convolution = Convolution(
        Convolve((1, 1), (1, 1), ((0, 0), (0, 0)), 1),
        tensor_of(x, channels_last(4)),
        tensor_of(w),
        StoredTensor(F32, (1, 1, 4, 4), row_major(4)),
        None,
        w,
    )
    work = PLAIN(convolution, TARGET, None)
    assert work is not None
    assert len(work.launches) == 1
