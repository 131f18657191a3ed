"""Profiles on GPUs with tile products: each kernel is compared with the peak of its arithmetic."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from io import StringIO
from typing import Any

import numpy as np
import onnx
import pytest
from backends.cuda.conftest import GPUS, Attach
from backends.cuda.recording_driver import H200, RecordingDriver
from backends.llvm.emulated import run_kernel
from backends.llvm.ptx import assemble, find_ptxas
from frontend.samples import model, node, tensor, value
from rich.console import Console

import weft
from weft.backends.cuda import peak
from weft.backends.cuda.compile import emit_ptx
from weft.backends.cuda.gpu import open_gpu
from weft.backends.cuda.processors import choose_lanes, choose_processor
from weft.cli.kernel_table import print_kernels
from weft.cost.calibration import from_record, to_record
from weft.cost.roofline import Peak, TileArithmetic, TilePeak, tile_arithmetic, tile_kind
from weft.ir.dtypes import DType
from weft.ir.kernel import Kernel, Put, TileForm
from weft.ir.kernel_verify import verify_kernel
from weft.kernels.lower.kernel_builder import KernelBuilder
from weft.report.page import profile_page
from weft.report.trace import trace_json
from weft.runtime.calibrate import get_calibration

MACHINE = TilePeak(1e12, 1e11, products={"float16": 16e12, "bfloat16": 12e12})


def product(dtype: Any) -> onnx.ModelProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", [1024, 1024], kind)],
        [value("y", [1024, 1024], kind)],
        [tensor("w", np.ones((1024, 1024), dtype))],
    )


# -- arithmetic of a kernel ----------------------------------------------------------------------------------------


def build_tiled_kernel(hints: list[str], parts: int) -> Kernel:
    builder = KernelBuilder("tiled")
    tiles = [[builder.tile(hint, DType.bfloat16, TileForm(64, 64)) for _ in range(parts)] for hint in hints]
    return Kernel("tiled", tuple(tile for several in tiles for tile in several), (), 128, ())


@pytest.mark.parametrize("hints", [["left_tile", "right_tile"], ["queries0_", "queries1_", "keys0_", "weights0_"]])
def test_parts_of_numbers_are_products_of_their_own(hints: list[str]) -> None:
    assert [tile_arithmetic(build_tiled_kernel(hints, parts)) for parts in (1, 2, 3)] == [
        TileArithmetic("bfloat16", times) for times in (1, 3, 6)
    ]


def test_tile_kinds() -> None:
    kinds = [DType.float32, DType.float16, DType.bfloat16, DType.uint8, DType.int8, DType.float8e5m2]
    assert [tile_kind(kind) for kind in kinds] == ["tf32", "float16", "bfloat16", "int8", "int8", "float8"]
    assert tile_arithmetic(Kernel("none", (), (), 1, ())) is None


def test_the_roofline_of_tiles() -> None:
    flops, bytes = 16e12, 1e10
    assert MACHINE.roofline(flops, bytes) == 16
    assert MACHINE.roofline(flops, bytes, TileArithmetic("float16")) == 1
    assert MACHINE.roofline(flops, bytes, TileArithmetic("bfloat16", 6)) == 8
    assert MACHINE.roofline(flops, bytes, TileArithmetic("int8")) == 16  # not measured: the float32 rate
    assert MACHINE.bound(flops, 2e11, TileArithmetic("float16")) == "memory"
    assert MACHINE.bound(flops, 2e11) == "arithmetic"
    plain = Peak(1e12, 1e11)
    assert plain.roofline(flops, bytes, TileArithmetic("float16")) == 16


# -- profiles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "dtype", "precision", "tiles"),
    [
        ("h200", np.float16, "float32", "float16"),
        ("h200", np.float32, "float32", "bfloat16 × 6"),
        ("h200", np.float32, "tf32", "tf32"),
        ("h200", np.float32, "fast", "float16"),
        ("h200", np.float32, "strict", ""),
        ("a100", np.float16, "float32", "float16"),
        ("t4", np.float16, "float32", ""),
    ],
)
def test_kernels_are_compared_with_the_peak_of_their_tiles(
    attach: Attach, monkeypatch: pytest.MonkeyPatch, gpu: str, dtype: Any, precision: str, tiles: str
) -> None:
    attach(GPUS[gpu])
    monkeypatch.setattr("weft.backends.cuda.driver.measure_peak", lambda _: MACHINE)
    loaded = weft.load(product(dtype), device="cuda", precision=precision)
    profile = loaded.profile({"x": np.ones((1024, 1024), dtype)}, repeat=1)
    (kernel,) = (kernel for kernel in profile.kernels if kernel.flops)
    assert kernel.tiles == tiles
    times = 6 if "×" in tiles else 1
    rate = MACHINE.products.get(tiles.partition(" ")[0], MACHINE.flops) / times
    assert kernel.roofline == pytest.approx(max(kernel.flops / rate, kernel.bytes / MACHINE.bandwidth) / kernel.seconds)
    stream = StringIO()
    print_kernels(profile, {}, 10, Console(file=stream, width=400))
    assert "1 TFLOP/s, 16 TFLOP/s of float16, 12 TFLOP/s of bfloat16 and 100 GB/s" in stream.getvalue()
    assert not tiles or kernel.bound == "memory" or f"arithmetic, {tiles}" in stream.getvalue()
    assert '"peakProducts":{"float16":16000000000000.0' in profile_page(profile)
    assert json.loads(trace_json(profile, {}))
    assert json.loads(json.dumps(asdict(profile.machine)))["products"] == MACHINE.products


# -- peaks ------------------------------------------------------------------------------------------------


def test_peaks_are_measured_once(driver: RecordingDriver) -> None:
    result = peak.measure_peak(open_gpu())
    assert isinstance(result, TilePeak)
    assert list(result.products) == ["float16", "bfloat16", "tf32", "int8", "float8"]
    assert all(rate > 0 for rate in (*result.products.values(), result.flops, result.bandwidth))
    texts = len(driver.texts)
    assert peak.measure_peak(open_gpu()) is result
    assert len(driver.texts) == texts == 7


def test_a_gpu_without_tiles(attach: Attach) -> None:
    attach(GPUS["t4"])
    assert type(peak.measure_peak(open_gpu())) is Peak


def test_calibrations_are_kept(driver: RecordingDriver) -> None:
    assert driver is not None
    calibration = get_calibration("cuda")
    again = from_record(json.loads(json.dumps(to_record(calibration))))
    assert (again.peak.flops, again.peak.bandwidth) == (calibration.peak.flops, calibration.peak.bandwidth)
    assert again.products == calibration.products


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas: WEFT_PTXAS and PATH name none")
@pytest.mark.parametrize("gpu", ["h200", "a100"])
def test_peak_kernels_assemble(attach: Attach, gpu: str) -> None:
    """They use the expected instructions and spill no registers."""
    attach(GPUS[gpu])
    processor = choose_processor(GPUS[gpu])
    ptxas = find_ptxas()
    assert ptxas is not None
    for kernel in peak.build_tile_kernels(open_gpu()).values():
        verify_kernel(kernel)
        text, shared = emit_ptx(kernel, choose_lanes(processor), processor)
        assert shared <= GPUS[gpu].shared_bytes
        log = assemble(ptxas, text, processor.processor)
        assert " 0 bytes spill stores" in log, log
        assert "wgmma" not in log, log
        assert ("wgmma.mma_async" in text) is (GPUS[gpu] is H200)
        assert ("mma.sync" in text) is (GPUS[gpu] is not H200)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_peak_kernels_multiply(driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Emulated, they compute the product of their tiles."""
    assert driver is not None
    monkeypatch.setattr(peak, "_TILE_TURNS", 2)
    kernel = peak.build_tile_kernels(open_gpu())[kind]
    put = kernel.body[-1]
    assert isinstance(put, Put)
    kernel = replace(kernel, body=(*kernel.body[:-1], replace(put, mask=None)))
    empty = np.zeros(kernel.lanes, kernel.buffers[0].dtype.numpy)
    actual = run_kernel(kernel, [empty], 1, lanes=choose_lanes(choose_processor(H200)))[-1]
    left, right = (
        (np.arange(form.rows)[:, None] * 37 + np.arange(form.depth) * 101) % 113 / (1 if kind == "int8" else 64)
        for form in (buffer.tile for buffer in kernel.buffers)
        if form is not None
    )
    np.testing.assert_array_equal(actual, 2 * (left @ right.T).reshape(-1)[: kernel.lanes])
