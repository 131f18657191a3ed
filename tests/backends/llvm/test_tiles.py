"""Tile products with threads as lanes: layouts, emulated results, and assembly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from backends.llvm.emulated import run_kernel
from backends.llvm.ptx import assemble, find_ptxas
from backends.llvm.tile_cases import TileCase, cases
from backends.llvm.tile_products import Product

from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.backends.llvm.tile_layout import TileLayout, split_sums
from weft.backends.llvm.tile_pipeline import SECOND_BARRIER_STAGES
from weft.ir.dtypes import DType

PTXAS = find_ptxas()
needs_ptxas = pytest.mark.skipif(PTXAS is None, reason="no ptxas: WEFT_PTXAS, PATH and nvidia-cuda-nvcc name none")
CASES = {case.name: case for case in cases() if case.second_barrier_stages == SECOND_BARRIER_STAGES}


@pytest.mark.parametrize("line_bytes", [16, 32, 64, 128, 192, 256, 288])
@pytest.mark.parametrize("lines", [8, 16, 64])
def test_each_byte_of_a_tile_has_one_offset(lines: int, line_bytes: int) -> None:
    """A chunk of 8 neighbouring lines, from a multiple of 8 on, is in 8 banks."""
    layout = TileLayout(lines, line_bytes, 2)
    places = np.array([[layout.offset(line, byte) for byte in range(line_bytes)] for line in range(lines)])
    assert np.array_equal(np.sort(places.reshape(-1)), np.arange(lines * line_bytes))
    for first in range(0, lines, 8):
        for chunk in range(0, line_bytes, 16):
            assert len(set(places[first : first + 8, chunk] % 128)) == 8


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("lanes", [32, 128, 256, 384])
@pytest.mark.parametrize("shape", [(16, 8), (64, 64), (128, 256), (192, 96), (64, 8), (16, 128)])
def test_each_sum_has_a_thread(shape: tuple[int, int], lanes: int, grouped: bool) -> None:
    partition = split_sums(*shape, lanes, grouped)
    positions = {partition.place(thread, number) for thread in range(lanes) for number in range(partition.count)}
    assert positions == {(row, column) for row in range(shape[0]) for column in range(shape[1])}


SMALL = Product("small", shape=(32, 16, 64), tiles=(32, 16, 32), lanes=64)
GROUPS = Product("groups", shape=(64, 16, 128), tiles=(64, 16, 64), lanes=128, stages=3)
EMULATED = {
    "warps": (SMALL, "mma.sync"),
    "warps_three_stages": (replace(SMALL, stages=3, shape=(32, 16, 160)), "mma.sync"),
    "warps_transposed": (replace(SMALL, transposed_left=True, transposed_right=True, tiles=(32, 24, 32)), "mma.sync"),
    "warps_puts": (replace(SMALL, bring="puts", stages=1), "mma.sync"),
    "warps_both": (replace(SMALL, bring="both", shape=(40, 24, 80), scaled=True), "mma.sync"),
    "warps_narrow": (replace(SMALL, result=DType.bfloat16, bring="puts"), "mma.sync"),
    "warps_whole": (replace(SMALL, bring="whole", parts=True), "mma.sync"),
    "warps_tf32": (replace(SMALL, left=DType.float32, right=DType.float32, transposed_right=True), "mma.sync"),
    "warps_bytes": (replace(SMALL, left=DType.uint8, right=DType.int8, transposed_left=True), "mma.sync"),
    "warps_rough": (replace(SMALL, left=DType.float8e4m3fn, right=DType.float8e5m2, tiles=(32, 16, 64)), "mma.sync"),
    "warps_deep": (replace(SMALL, tiles=(16, 8, 128), shape=(16, 8, 128), lanes=32, stages=1), "mma.sync"),
    "groups": (GROUPS, "wgmma"),
    "groups_four_stages": (replace(GROUPS, stages=4, shape=(64, 16, 320), tiles=(64, 16, 64)), "wgmma"),
    "groups_transposed": (replace(GROUPS, transposed_left=True, transposed_right=True, tiles=(64, 64, 32)), "wgmma"),
    "groups_transposed_wide": (
        replace(GROUPS, transposed_right=True, tiles=(64, 128, 32), shape=(64, 128, 64)),
        "wgmma",
    ),
    "groups_puts": (replace(GROUPS, bring="puts", shape=(48, 16, 200)), "wgmma"),
    "groups_parts": (replace(GROUPS, parts=True, scaled=True, stages=2), "wgmma"),
    "groups_two_stages_parts": (replace(GROUPS, parts=True, stages=2, shape=(64, 16, 320), repeated=2), "wgmma"),
    "groups_three_stages_parts": (replace(GROUPS, parts=True, shape=(64, 16, 64)), "wgmma"),
    "groups_four_stages_parts": (replace(GROUPS, parts=True, stages=4, shape=(56, 16, 360)), "wgmma"),
    "groups_columns": (replace(GROUPS, lanes=256, tiles=(64, 32, 128), shape=(64, 32, 256)), "wgmma"),
    "groups_rows": (replace(GROUPS, tiles=(128, 8, 32), shape=(128, 8, 96)), "wgmma"),
    "groups_tf32": (replace(GROUPS, left=DType.float32, right=DType.float32, tiles=(64, 16, 16)), "wgmma"),
    "groups_rough": (
        replace(GROUPS, left=DType.float8e4m3fn, right=DType.float8e5m2, tiles=(64, 128, 64), shape=(64, 128, 128)),
        "wgmma",
    ),
    "groups_two_stages": (replace(GROUPS, stages=2, shape=(64, 16, 256)), "wgmma"),
    "groups_bytes": (replace(GROUPS, left=DType.int8, right=DType.uint8, tiles=(64, 16, 128)), "wgmma"),
}


@pytest.mark.parametrize("name", EMULATED)
def test_products(name: str) -> None:
    product, way = EMULATED[name]
    lanes = ThreadLanes(tile_products=way)
    product.check(run_kernel(product.kernel, product.arrays, product.blocks, lanes=lanes)[-1])


@pytest.mark.parametrize("way", ["mma.sync", "wgmma"])
def test_64_bit_indices_and_unaligned_buffers(way: str) -> None:
    product = replace(GROUPS, shape=(56, 16, 136), stages=2)
    lanes = ThreadLanes(index_bits=64, unaligned=frozenset({"left"}), tile_products=way)
    product.check(run_kernel(product.kernel, product.arrays, product.blocks, lanes=lanes)[-1])


def assembles(case: TileCase) -> None:
    """Assemble without spilled registers and without serialised products."""
    assert PTXAS is not None
    log = assemble(PTXAS, case.ptx()[0], case.processor)
    assert " 0 bytes spill stores" in log, log
    assert "wgmma" not in log, log


@needs_ptxas
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.timed])
def test_cases_assemble(name: str) -> None:
    assembles(CASES[name])


@needs_ptxas
@pytest.mark.slow(reason="assembles some 50 large products")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.timed])
def test_large_cases_assemble(name: str) -> None:
    assembles(CASES[name])
