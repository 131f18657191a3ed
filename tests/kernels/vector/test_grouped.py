"""Depthwise and grouped convolutions at sizes that cover every code path, against the reference in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernels.epilogues import KINDS, EpilogueCase, assert_close, random_array
from kernels.products import build_convolve
from kernels.vector.works import TARGET, run_work, tensor_of

from weft.backends.reference.products import convolve
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Convolve
from weft.kernels.build.windows import Window
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.vector.column_split import split_columns
from weft.kernels.vector.convolve import build_convolution
from weft.kernels.vector.depthwise import find_runs
from weft.kernels.vector.panels import Panels

F32 = DType.float32


def check(
    channels: int,
    features: int,
    groups: int,
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    stride: int = 1,
    dilation: int = 1,
    pads: tuple[int, int] | None = None,
    transposed: bool = False,
    ending: str = KINDS[0],
    constant: bool = True,
    order: tuple[Dim, list[int]] | None = None,
    threads: int = 1,
) -> list[str]:
    """Run a convolution, compare it, and return the names of its kernels."""
    spans = [dilation * (taps - 1) + 1 for taps in kernel]
    before, after = pads or (spans[0] // 2, spans[0] // 2)
    if transposed:
        outputs = [(size - 1) * stride + span - before - after for size, span in zip(sizes, spans)]
    else:
        outputs = [(size + before + after - span) // stride + 1 for size, span in zip(sizes, spans)]
    rank = len(sizes)
    primitive = Convolve((stride,) * rank, (dilation,) * rank, ((before, after),) * rank, groups, transposed)
    layout, shape = channels_last(rank + 2), (2, features, *outputs)
    x = random_array(1, (2, channels, *sizes), F32)
    wide = channels if order is None else len(order[1])
    weights = (wide, features // groups) if transposed else (features, wide // groups)
    w = random_array(2, (*weights, *kernel), F32)
    end = EpilogueCase(ending, F32, shape, shape, 1, layout, 3)
    work = build_convolve(
        build_convolution,
        primitive,
        tensor_of(x, layout),
        tensor_of(w),
        StoredTensor(F32, shape, layout),
        end.epilogue,
        TARGET,
        constant_w=w if constant else None,
        order=None if order is None else order[0],
    )
    operands = [(x, layout), (w, row_major(w.ndim)), *end.arrays]
    (actual,), _ = run_work(work, operands, [StoredTensor(F32, shape, layout)], threads=threads)
    channels_read = x if order is None else x[:, order[1]]
    exact = convolve(primitive, channels_read.astype(np.float64), w.astype(np.float64), groups, primitive.pads, shape)
    assert_close(actual, end.apply(exact), F32)
    return [launch.kernel.name for launch in work.launches]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 9, 14, 17, 24, 31])
@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)])
def test_depthwise(size: int, taps: int, stride: int) -> None:
    channels = 16 + size % 3 * 12
    ending = KINDS[(size + taps) % len(KINDS)]
    check(channels, channels, channels, (size, size), (taps, taps), stride=stride, ending=ending, threads=1 + size % 2)


@pytest.mark.parametrize(
    ("sizes", "kernel", "stride", "dilation", "pads"),
    [
        ((40,), (9,), 1, 1, (4, 4)),
        ((40,), (3,), 1, 4, (8, 0)),
        ((9, 23), (3, 3), 1, 3, (3, 3)),
        ((9, 23), (3, 3), 3, 2, (0, 5)),
        ((9, 23), (3, 5), 1, 1, (0, 0)),
        ((3, 4, 11), (3, 3, 3), 1, 1, (1, 1)),
        ((3, 4, 11), (1, 2, 3), 2, 1, (1, 0)),
        ((6, 6), (3, 3), 1, 1, (9, 9)),
    ],
)
def test_depthwise_with_other_windows(
    sizes: tuple[int, ...], kernel: tuple[int, ...], stride: int, dilation: int, pads: tuple[int, int]
) -> None:
    check(20, 20, 20, sizes, kernel, stride=stride, dilation=dilation, pads=pads)


@pytest.mark.parametrize("taps", [2, 3, 4])
def test_transposed_depthwise(taps: int) -> None:
    check(20, 20, 20, (9, 13), (taps, taps), stride=2, pads=(1, 0), transposed=True)


def test_runs_of_pixels() -> None:
    """Runs cover all pixels once, evenly, with separate runs at both ends."""
    runs = find_runs(Window(28, -2, 1, 1, 5), 28)
    assert runs is not None
    assert [(run.first, run.end, run.width) for run in runs] == [(0, 7, 7), (7, 21, 7), (21, 28, 7)]
    assert [sorted(run.outside) for run in runs] == [[(0, 0), (0, 1), (1, 0)], [], [(5, 4), (6, 3), (6, 4)]]
    assert find_runs(Window(dims.symbol("n"), -2, 1, 1, 5), dims.symbol("n")) is None


@pytest.mark.parametrize("each", [3, 6, 17, 24, 34, 40])
@pytest.mark.parametrize("kernel", [1, 3])
def test_columns_in_parts(each: int, kernel: int) -> None:
    """Features of a group that do not fill vectors have another launch with fewer lanes."""
    names = check(3 * 34, 3 * each, 3, (17, 19), (kernel, kernel), ending=KINDS[each % len(KINDS)])
    if each == 34:
        assert names.count("convolve") == 2


@pytest.mark.parametrize("halves", [3, 5])
def test_columns_in_halves(halves: int) -> None:
    """Columns that are an odd number of half vectors are one panel, if there are registers for its tiles."""
    lanes = TARGET.vector_bytes // 8
    (many,) = split_columns(halves * lanes, 1000, 100, replace(TARGET, vector_registers=32), DType.float32)
    assert (many.first, many.panels) == (0, Panels(halves * lanes, lanes, halves))
    few = split_columns(halves * lanes, 1000, 100, replace(TARGET, vector_registers=16), DType.float32)
    assert all(part.panels.width <= 2 for part in few)


@pytest.mark.parametrize(
    ("sizes", "kernel", "stride", "transposed"),
    [
        ((200,), (3,), 1, False),
        ((30, 21), (3, 3), 2, False),
        ((5, 9, 8), (2, 2, 2), 1, False),
        ((30, 9), (2, 2), 2, True),
    ],
)
@pytest.mark.parametrize("constant", [True, False])
def test_groups_of_odd_sizes(
    sizes: tuple[int, ...], kernel: tuple[int, ...], stride: int, transposed: bool, constant: bool
) -> None:
    check(2 * 7, 2 * 37, 2, sizes, kernel, stride=stride, pads=(1, 0), transposed=transposed, constant=constant)


def test_parts_are_all_columns() -> None:
    for columns in range(1, 200):
        parts = split_columns(columns, 10_000, 64, TARGET, F32)
        sizes = [part.panels.columns for part in parts]
        assert [part.first for part in parts] == [sum(sizes[:number]) for number in range(len(parts))]
        assert sum(sizes) == columns


CHANNEL = dims.axis(1, 24)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    "order", [dims.mod(CHANNEL, 4) * 6 + dims.floordiv(CHANNEL, 4), CHANNEL * 2 + 1, CHANNEL + 7, 30 - CHANNEL]
)
def test_channels_in_another_order(order: Dim, groups: int) -> None:
    symbolic = dims.substitute(order, lambda _: dims.symbol("i", 0))
    channels = [dims.evaluate(symbolic, {"i": number}) for number in range(24)]
    for rows in (1, 3, 11):
        check(50, 40, groups, (rows, 5), (1, 1), order=(order, channels))


@pytest.mark.parametrize("ending", KINDS[1:])
@pytest.mark.parametrize(("channels", "features", "groups"), [(32, 32, 8), (16, 32, 16), (64, 64, 8), (32, 16, 8)])
def test_small_groups_fill_vectors(channels: int, features: int, groups: int, ending: str) -> None:
    for stride, kernel, transposed in ((1, (3, 3), False), (2, (3, 3), False), (1, (1, 1), False), (2, (4, 4), True)):
        kernels = check(
            channels, features, groups, (9, 13), kernel, stride=stride, transposed=transposed, ending=ending, threads=2
        )
        assert {name.split("_")[0] for name in kernels} == {"depthwise"}
    check(channels, features, groups, (40,), (5,), dilation=3, ending=ending)
    check(channels, features, groups, (6, 5, 9), (3, 1, 3), ending=ending)


@pytest.mark.parametrize(("channels", "features", "groups"), [(24, 24, 8), (12, 12, 3), (96, 8, 4), (40, 40, 10)])
def test_groups_that_do_not_fill_vectors(channels: int, features: int, groups: int) -> None:
    check(channels, features, groups, (9, 13), (3, 3))
