"""Winograd convolutions against numpy, and when they are chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from kernels.epilogues import KINDS, EpilogueCase, assert_close, random_array
from kernels.products import build_transformed
from kernels.vector.works import TARGET, run_work, tensor_of

import weft
from weft.backends.reference.products import convolve
from weft.fuse import fuse
from weft.fuse.winograd import TileCandidate, choose_candidates
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Convolve, TensorProgram, Value
from weft.ir.target import VectorTarget
from weft.ir.types import TensorType
from weft.ir.work import NativeSection, Task
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.sections import build_sections
from weft.kernels.vector.winograd import build_winograd

F32 = DType.float32
CHANNELS = (1, 1, 2, 3, 4, 5, 8, 13, 16, 17, 32, 33, 40)
STRICT = replace(TARGET, transformed_products=False)
KERNELS = ((3, 3), (1, 3), (3, 1), (3,))
LONGER = ((5, 5), (1, 5), (7, 1), (5,), (5, 1), (7,))


@pytest.mark.parametrize("seed", range(50))
def test_winograd(seed: int) -> None:
    random = np.random.default_rng(seed)
    dtype = F32 if seed not in range(24, 30) else (DType.float16, DType.bfloat16)[seed % 2]
    kernels = LONGER if seed in range(30, 42) else KERNELS
    kernel = kernels[seed % len(kernels)]
    dilations = [int(random.integers(1, 5)) if seed >= 38 else 1 for _ in kernel]
    span = [(taps - 1) * distance for taps, distance in zip(kernel, dilations)]
    batch, channels, features = int(random.integers(1, 3)), int(random.choice(CHANNELS)), int(random.choice(CHANNELS))
    sizes = [int(size) for size in random.integers(max(5, *span, *kernel), 24, len(kernel))]
    pads = [(int(before), int(after)) for before, after in random.integers(0, 3, (len(kernel), 2))]
    shape = (batch, features, *(size + sum(pad) - more for size, pad, more in zip(sizes, pads, span)))
    x, w = (
        random_array(seed, (batch, channels, *sizes), dtype),
        random_array(seed + 1, (features, channels, *kernel), dtype),
    )
    ones = (1,) * len(kernel)
    primitive, layout = Convolve(ones, tuple(dilations), tuple(pads), 1), channels_last(x.ndim)
    names: list[Dim] = [*x.shape]
    bound: dict[str, int] = {}
    outputs: list[Dim] = list(shape)
    if seed % 3 == 0:
        names[2] = dims.symbol("h", 1 + span[0])
        bound["h"] = sizes[0]
        outputs[2] = names[2] + sum(pads[0]) - span[0]
    ending = EpilogueCase(KINDS[seed % len(KINDS)], dtype, tuple(outputs), shape, 1, layout, seed)
    result = StoredTensor(dtype, tuple(outputs), layout)
    tensor = tensor_of(x, layout, names)
    work = build_transformed(
        build_winograd,
        primitive,
        tensor,
        w,
        result,
        ending.epilogue,
        TARGET,
        2 + 2 * (seed // 4 % 2 * (max(kernel) == 3)),
    )
    assert work is not None
    operands = [(x, layout), (w, row_major(w.ndim)), *ending.arrays]
    (actual,), _ = run_work(work, operands, [result], bound, threads=1 + seed % 2, at_start=seed % 4 == 0)
    expected = convolve(primitive, x.astype(np.float64), w.astype(np.float64), 1, pads, shape)
    assert_close(actual, ending.apply(expected), dtype, tolerance=1e-5 if dtype is F32 else None)


@pytest.mark.parametrize(("channels", "cache"), [(8, 1024), (256, TARGET.cache_bytes)])
def test_strips_and_aliasing_tiles(channels: int, cache: int) -> None:
    """A small cache gives many strips; tiles of 256 channels need a pitch that avoids shared cache sets."""
    x, w = random_array(1, (2, channels, 33, 21), F32), random_array(2, (channels, channels, 3, 3), F32)
    primitive, layout = Convolve((1, 1), (1, 1), ((1, 1), (1, 1)), 1), channels_last(4)
    result, target = StoredTensor(F32, x.shape, layout), replace(TARGET, cache_bytes=cache)
    work = build_transformed(build_winograd, primitive, tensor_of(x, layout), w, result, None, target, 4)
    assert work is not None
    assert len(work.launches) > 3 or cache > 1024
    (actual,), _ = run_work(work, [(x, layout), (w, row_major(4))], [result])
    expected = convolve(primitive, x.astype(np.float64), w.astype(np.float64), 1, [(1, 1)] * 2, x.shape)
    assert_close(actual, expected, F32, tolerance=1e-5)


# -- the choice ------------------------------------------------------------------------------------------------------


def network(layers: list[tuple[int, int]], stride: int = 1, taps: tuple[int, int] = (3, 3)) -> onnx.ModelProto:
    """Make independent convolutions, each with (channels, image size), followed by averages."""
    rng = np.random.default_rng(3)
    nodes, inputs, outputs, weights = [], [], [], []
    for number, (channels, size) in enumerate(layers):
        pads = [tap // 2 for tap in taps] * 2
        nodes.append(node("Conv", [f"x{number}", f"w{number}"], [f"c{number}"], pads=pads, strides=[stride] * 2))
        nodes.append(node("GlobalAveragePool", [f"c{number}"], [f"y{number}"]))
        inputs.append(value(f"x{number}", [1, channels, size, size]))
        outputs.append(value(f"y{number}", None))
        weights.append(tensor(f"w{number}", rng.standard_normal((channels, channels, *taps)).astype(np.float32)))
    return model(nodes, inputs, outputs, weights)


def trace(built: onnx.ModelProto) -> TensorProgram:
    program = weft.load(built, device="reference").program
    assert isinstance(program, TensorProgram)
    return program


def kernel_names(program: TensorProgram, target: VectorTarget) -> set[str]:
    tasks = [
        task
        for section in build_sections(fuse(program, target), target)
        if isinstance(section, NativeSection)
        for task in section.tasks
    ]
    return {launch.kernel.name for task in tasks if isinstance(task, Task) for launch in task.work.launches}


def tiles(program: TensorProgram) -> dict[Value, int]:
    return {result: chosen.size for result, chosen in fuse(program, TARGET).tiles.items()}


def test_where_it_pays() -> None:
    assert set(tiles(trace(network([(64, 56), (128, 28)]))).values()) == {4}
    assert set(tiles(trace(network([(64, 64)], taps=(1, 3)))).values()) == {4}
    assert tiles(trace(network([(64, 56)], stride=2))) == {}
    assert tiles(trace(network([(64, 56)], taps=(1, 1)))) == {}
    assert tiles(trace(network([(4, 8)]))) == {}


def test_weights_of_many_large_layers_stay_within_the_budget() -> None:
    program = trace(network([(512, 14)] * 3))
    chosen = tiles(program)
    weight_bytes = sum(array.nbytes for array in program.constants.values())
    growth = {1: 1.0, 2: 16 / 9, 4: 36 / 9}
    convolutions = [step for step in program.steps if isinstance(step.primitive, Convolve)]
    total = sum(weight_bytes / 3 * growth[chosen.get(step.results[0], 1)] for step in convolutions)
    assert weight_bytes < total <= 1.5 * weight_bytes
    assert chosen == tiles(program)


def test_the_best_gain_per_byte_comes_first() -> None:
    first, second = (Value(number, TensorType(F32, ())) for number in range(2))
    layers = {
        first: [TileCandidate(1, 100, 10), TileCandidate(2, 50, 20), TileCandidate(4, 5, 40)],
        second: [TileCandidate(1, 100, 10), TileCandidate(2, 80, 20), TileCandidate(4, 60, 60)],
    }
    sizes = {room: [way.size for way in choose_candidates(layers, room).values()] for room in (0, 10, 30, 40, 80)}
    assert sizes == {0: [1, 1], 10: [2, 1], 30: [4, 1], 40: [4, 2], 80: [4, 4]}


def test_strict_never_transforms_and_float32_does() -> None:
    built = network([(64, 28)])
    program = trace(built)
    assert "winograd_product" in kernel_names(program, TARGET)
    assert not any(name.startswith("winograd") for name in kernel_names(program, STRICT))
    x = np.random.default_rng(4).standard_normal((1, 64, 28, 28)).astype(np.float32)
    results: dict[str, Any] = {p: weft.load(built, device="cpu", precision=p)(x) for p in ("float32", "strict")}
    assert (results["float32"] != results["strict"]).any()
