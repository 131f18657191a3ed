"""Convolutions of all kinds with threads as lanes, at odd sizes, against the reference in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernels.epilogues import assert_close, random_array
from kernels.products import build_convolve
from kernels.threads.works import Array, run_on_cpu, run_work, targets
from kernels.vector.test_convolve import Case
from kernels.vector.works import tensor_of

from weft.backends.reference.products import convolve
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Convolve
from weft.ir.target import ThreadTarget
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.threads.convolve import build_convolution

F32 = DType.float32
LARGE = replace(targets()["sharing"], block_threads=256, shared_bytes=32768)


def work_of(case: Case, target: ThreadTarget) -> Work:
    ends = (case.result, case.ending.epilogue, target)
    constant = case.w if case.constant else None
    return build_convolve(
        build_convolution, case.primitive, case.x_tensor, tensor_of(case.w), *ends, constant_w=constant
    )


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("group", range(2))
def test_random_convolutions(group: int, symbolic: bool) -> None:
    for seed in range(1000 * symbolic + group * 4, 1000 * symbolic + group * 4 + 4):
        case = Case(seed, symbolic)
        print(f"seed {seed}: {case.primitive} of {case.dtype} {case.x.shape} with {case.w.shape}")
        operands = [(case.x, case.layout), (case.w, row_major(case.w.ndim)), *case.ending.arrays]
        for name in ("software", "vectors") if seed % 2 else ("sharing",):
            run = run_on_cpu if name == "vectors" else run_work
            (actual,), _ = run(work_of(case, targets()[name]), operands, [case.result], case.bound)
            assert_close(actual, case.expected(), case.dtype)


def check(primitive: Convolve, x: Array, w: Array, outputs: tuple[int, ...], target: ThreadTarget) -> Work:
    features = w.shape[1] * int(str(primitive.groups)) if primitive.transposed else w.shape[0]
    shape = (x.shape[0], features, *outputs)
    layout, result = channels_last(x.ndim), StoredTensor(F32, shape, channels_last(x.ndim))
    work = build_convolve(
        build_convolution, primitive, tensor_of(x, layout), tensor_of(w), result, None, target, constant_w=w
    )
    (actual,), _ = run_work(work, [(x, layout), (w, row_major(w.ndim))], [result])
    pads = [(int(str(before)), int(str(after))) for before, after in primitive.pads]
    wide = (array.astype(np.float64) for array in (x, w))
    assert_close(actual, convolve(primitive, *wide, primitive.groups, pads, shape), F32)
    return work


@pytest.mark.parametrize(
    ("channels", "size", "features", "taps", "stride"),
    [
        (3, 30, 64, 7, 2),
        (64, 14, 64, 3, 1),
        (32, 12, 128, 3, 2),
        (128, 12, 64, 1, 1),
        (64, 9, 32, 1, 2),
        (512, 4, 64, 3, 1),
    ],
)
def test_layers_of_networks(channels: int, size: int, features: int, taps: int, stride: int) -> None:
    x = random_array(1, (1, channels, size, size), F32)
    w = random_array(2, (features, channels, taps, taps), F32) / np.float32(taps * channels**0.5)
    pads = ((taps // 2, taps // 2),) * 2
    outputs = ((size + 2 * (taps // 2) - taps) // stride + 1,) * 2
    primitive = Convolve((stride, stride), (1, 1), pads, 1)
    check(primitive, x, w, outputs, targets()["software"])
    work = check(primitive, x, w, outputs, LARGE)
    assert len(work.launches) == 2 or channels != 512  # long sums are added up in parts


@pytest.mark.parametrize(("channels", "size", "features", "taps"), [(128, 7, 64, 3), (256, 14, 64, 1), (48, 3, 200, 1)])
def test_dynamic_batches(channels: int, size: int, features: int, taps: int) -> None:
    """One work for all batches, with different tiles for small and large ones."""
    layout = channels_last(4)
    batch = dims.symbol("batch")
    shapes: list[tuple[Dim, ...]] = [(batch, count, size, size) for count in (channels, features)]
    x_tensor, result = (StoredTensor(F32, shape, layout) for shape in shapes)
    w = random_array(2, (features, channels, taps, taps), F32) / np.float32(taps * channels**0.5)
    primitive = Convolve((1, 1), (1, 1), ((taps // 2, taps // 2),) * 2, 1)
    work = build_convolve(build_convolution, primitive, x_tensor, tensor_of(w), result, None, LARGE, constant_w=w)

    def active(number: int) -> list[int]:
        blocks = [dims.evaluate(launch.blocks, {"batch": number}) for launch in work.launches]
        return [place for place, count in enumerate(blocks) if count]

    changes = [number for number in range(2, 100) if active(number) != active(number - 1)]
    assert changes
    for number in sorted({1, *changes, *(change - 1 for change in changes)}):
        x = random_array(number, (number, channels, size, size), F32)
        (actual,), _ = run_work(work, [(x, layout), (w, row_major(4))], [result], {"batch": number})
        wide = (array.astype(np.float64) for array in (x, w))
        shape = (number, features, size, size)
        assert_close(actual, convolve(primitive, *wide, 1, [(taps // 2, taps // 2)] * 2, shape), F32)


def test_grouped_and_transposed() -> None:
    x = random_array(3, (2, 64, 9, 7), F32)
    for target in (targets()["software"], LARGE):
        check(Convolve((1, 1), (1, 1), ((1, 1), (1, 1)), 2), x, random_array(4, (40, 32, 3, 3), F32), (9, 7), target)
        primitive = Convolve((2, 2), (1, 1), ((1, 1), (1, 1)), 1, transposed=True)
        check(primitive, x, random_array(5, (64, 24, 4, 4), F32), (18, 14), target)


@pytest.mark.parametrize("target", ["software", "large"])
def test_permuted_channels(target: str) -> None:
    """A 1 x 1 convolution reads its input's channels in a permuted order."""
    x = random_array(6, (2, 48, 5, 6), F32)
    channel = dims.axis(1, 48)
    shuffle = dims.mod(channel, 2) * 24 + dims.floordiv(channel, 2)
    for order, count, groups in ((shuffle, 48, 2), (dims.axis(1, 16) + 8, 16, 1), (dims.axis(1, 16) * 3, 16, 4)):
        w = random_array(7, (20, count // groups, 1, 1), F32)
        places = [dims.evaluate(dims.substitute(order, lambda _, n=number: n), {}) for number in range(count)]
        layout, result = channels_last(4), StoredTensor(F32, (2, 20, 5, 6), channels_last(4))
        primitive = Convolve((1, 1), (1, 1), ((0, 0), (0, 0)), groups)
        chosen = LARGE if target == "large" else targets()[target]
        ends: tuple[StoredTensor, None, ThreadTarget] = (result, None, chosen)
        work = build_convolve(
            build_convolution, primitive, tensor_of(x, layout), tensor_of(w), *ends, constant_w=w, order=order
        )
        (actual,), _ = run_work(work, [(x, layout), (w, row_major(4))], [result])
        wide = (x[:, places].astype(np.float64), w.astype(np.float64))
        assert_close(actual, convolve(primitive, *wide, groups, [(0, 0), (0, 0)], (2, 20, 5, 6)), F32)


def test_dynamic_padding() -> None:
    """A transposed convolution with unknown phases reads its input with zeros between the elements."""
    pad: Dim = dims.symbol("pad", 0)
    primitive = Convolve((2, 3), (1, 1), ((pad, 0), (pad, 0)), 1, transposed=True)
    x, w = random_array(8, (1, 8, 5, 4), F32), random_array(9, (8, 12, 3, 3), F32)
    layout = channels_last(4)
    for target in (targets()["software"], LARGE):
        result = StoredTensor(F32, (1, 12, 11 - pad, 12 - pad), layout)
        work = build_convolve(build_convolution, primitive, tensor_of(x, layout), tensor_of(w), result, None, target)
        for value in (0, 1, 2):
            shape = (1, 12, 11 - value, 12 - value)
            operands = [(x, layout), (w, row_major(4))]
            (actual,), _ = run_work(work, operands, [result], {"pad": value})
            wide = (x.astype(np.float64), w.astype(np.float64))
            assert_close(actual, convolve(primitive, *wide, 1, [(value, 0), (value, 0)], shape), F32)


def test_bytes() -> None:
    random = np.random.default_rng(11)
    x = random.integers(0, 256, (1, 9, 8, 8)).astype(np.uint8)
    w = random.integers(-128, 128, (12, 9, 3, 3)).astype(np.int8)
    primitive = Convolve((1, 1), (1, 1), ((1, 1), (1, 1)), 1)
    layout, result = channels_last(4), StoredTensor(DType.int32, (1, 12, 8, 8), channels_last(4))
    expected = convolve(primitive, x.astype(np.int32), w.astype(np.int32), 1, [(1, 1), (1, 1)], (1, 12, 8, 8))
    for target in (targets()["software"], LARGE):
        work = build_convolve(
            build_convolution, primitive, tensor_of(x, layout), tensor_of(w), result, None, target, constant_w=w
        )
        (actual,), _ = run_work(work, [(x, layout), (w, row_major(4))], [result])
        assert np.array_equal(actual, expected)
