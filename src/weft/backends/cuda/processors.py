"""A GPU as what code is compiled for: LLVM's processor, how tiles are multiplied there, and the target of kernels.

Code for 9.0 with its own instructions (wgmma) runs nowhere else, so all others from 8.0 on get that of 8.0, which the
driver assembles for them. Rates are those of a class of devices, with the units and the memory bus that this one has.
"""

from __future__ import annotations

from dataclasses import replace

from weft.backends.cuda.gpus import NvidiaGpu
from weft.backends.llvm.nvptx import NvidiaProcessor
from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.cost.profiles import LARGE_GPU
from weft.ir.dtypes import DType
from weft.ir.target import Choices, Float32Products, Rates, ThreadTarget, TileProduct

_HOPPER = (9, 0)
_PTX_84 = 12040  # the first CUDA with PTX 8.4, in which tiles of different types are multiplied
_AMPERE = (8, 0)
_FLOAT32_PRODUCTS = {
    "strict": Float32Products.EXACT,
    "float32": Float32Products.PARTS,
    "tf32": Float32Products.TF32,
    "fast": Float32Products.HALVES,
}
_BUS = 2 * 3.2e9 * 6144 / 8  # bytes a second that the profile's memory moves at most
_LANES_MOST = 1024


def processor_of(gpu: NvidiaGpu) -> NvidiaProcessor:
    """What LLVM compiles for."""
    if gpu.capability == _HOPPER:
        return NvidiaProcessor("sm_90a", "+ptx84" if gpu.driver >= _PTX_84 else "+ptx80")
    if gpu.capability >= _AMPERE:
        return NvidiaProcessor("sm_80", "+ptx80")
    major, minor = gpu.capability
    return NvidiaProcessor(f"sm_{major}{minor}", "+ptx70")


def thread_lanes(processor: NvidiaProcessor) -> ThreadLanes:
    """How lanes are written for a processor, where positions have 32 bits and buffers start where they may."""
    tiles = {"sm_90a": "wgmma", "sm_80": "mma.sync"}.get(processor.processor, "")
    return ThreadLanes(tile_products=tiles)


def target_of(gpu: NvidiaGpu, precision: str, tuned: Choices = ()) -> ThreadTarget:
    """The target that kernels are built for; `tuned` are choices that were measured."""
    return ThreadTarget(
        rates=_rates(gpu),
        fused_multiply_add=True,
        alignment=256,
        block_threads=256,
        most_block_threads=_LANES_MOST,
        shared_bytes=gpu.shared_bytes or 48 << 10,
        sharing_pays=True,
        tile_products=_tile_products(gpu),
        float32_products=_FLOAT32_PRODUCTS.get(precision, Float32Products.EXACT),
        tuned=tuned,
    )


def _rates(gpu: NvidiaGpu) -> Rates:
    bus = 2e3 * gpu.memory_clock * gpu.bus_bits / 8
    share = min(max(bus / _BUS, 2.0**-6), 4.0) if bus else 1.0
    return replace(
        LARGE_GPU,
        compute_units=gpu.units,
        memory_bandwidth=LARGE_GPU.memory_bandwidth * share,
        workspace_bandwidth=LARGE_GPU.workspace_bandwidth * share,
        launch_seconds=1.5e-6,
    )


def _tile_products(gpu: NvidiaGpu) -> tuple[TileProduct, ...]:
    """Rates are what an H200 was measured to do in a loop of products, for each of its units."""
    if gpu.capability < _AMPERE:
        return ()
    half, bfloat, single, sums = DType.float16, DType.bfloat16, DType.float32, DType.int32
    bytes_ = [(left, right) for left in (DType.uint8, DType.int8) for right in (DType.uint8, DType.int8)]
    if gpu.capability == _HOPPER and gpu.driver < _PTX_84:
        bytes_ = [(left, right) for left, right in bytes_ if left is right]
    if gpu.capability == _HOPPER:
        products = [TileProduct(kind, kind, single, 6.4e12, 64, 128) for kind in (half, bfloat)]
        products.append(TileProduct(single, single, single, 3.2e12, 64, 128))
        products += [TileProduct(left, right, sums, 12.8e12, 64, 128) for left, right in bytes_]
        small_floats = (DType.float8e4m3fn, DType.float8e5m2)
        return (*products, *(TileProduct(a, b, single, 12.8e12, 64, 128) for a in small_floats for b in small_floats))
    products = [TileProduct(kind, kind, single, 4.8e12) for kind in (half, bfloat)]
    products.append(TileProduct(single, single, single, 2.4e12))
    return (*products, *(TileProduct(left, right, sums, 9.4e12) for left, right in bytes_))
