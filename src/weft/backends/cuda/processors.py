"""Describe a GPU as a compilation target: LLVM's processor, its tile instructions, and the target of kernels.

Compute capability 9.0 has instructions (wgmma) that no other GPU runs. All other GPUs from 8.9 on get PTX of 8.9, if
their driver assembles products of float8, and those from 8.0 on PTX of 8.0.
Rates are those of a device class, scaled by the GPU's multiprocessors and memory bus.
"""

from __future__ import annotations

from dataclasses import replace

from weft.backends.cuda.discovery import GpuProperties
from weft.backends.llvm.nvptx import NvidiaProcessor
from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.cost.profiles import LARGE_GPU
from weft.ir.dtypes import DType
from weft.ir.target import Choices, Float32Products, Rates, ThreadTarget, TileProduct

_HOPPER = (9, 0)
_PTX_84 = 12040  # the first CUDA with PTX 8.4: tiles of different types, and of float8 on compute capability 8.9
_ADA = (8, 9)
_AMPERE = (8, 0)
_FLOAT32_PRODUCTS = {
    "strict": Float32Products.EXACT,
    "float32": Float32Products.PARTS,
    "tf32": Float32Products.TF32,
    "fast": Float32Products.HALVES,
}
_PROFILE_BANDWIDTH = 2 * 3.2e9 * 6144 / 8  # peak bytes per second of the memory that LARGE_GPU describes
_MOST_LANES = 1024
_FLOAT8 = (DType.float8e4m3fn, DType.float8e5m2)


def choose_processor(gpu: GpuProperties) -> NvidiaProcessor:
    if gpu.capability == _HOPPER:
        return NvidiaProcessor("sm_90a", "+ptx84" if gpu.driver >= _PTX_84 else "+ptx80")
    if _multiplies_float8(gpu):
        return NvidiaProcessor("sm_89", "+ptx84")
    if gpu.capability >= _AMPERE:
        return NvidiaProcessor("sm_80", "+ptx80")
    major, minor = gpu.capability
    return NvidiaProcessor(f"sm_{major}{minor}", "+ptx70")


def choose_lanes(processor: NvidiaProcessor) -> ThreadLanes:
    """Return the lanes of a processor, for 32-bit indices and aligned buffers."""
    tiles = {"sm_90a": "wgmma", "sm_89": "mma.sync", "sm_80": "mma.sync"}.get(processor.processor, "")
    return ThreadLanes(tile_products=tiles)


def build_target(gpu: GpuProperties, precision: str, tuned: Choices = ()) -> ThreadTarget:
    """Build the target of a GPU; `tuned` are measured choices."""
    return ThreadTarget(
        rates=_rates(gpu),
        fused_multiply_add=True,
        unpacks_weights=True,
        alignment=256,
        block_threads=256,
        most_block_threads=_MOST_LANES,
        shared_bytes=gpu.shared_bytes or 48 << 10,
        sharing_pays=True,
        tile_products=_tile_products(gpu),
        float32_products=_FLOAT32_PRODUCTS.get(precision, Float32Products.EXACT),
        tuned=tuned,
        fixed_order=precision == "strict",
    )


def _rates(gpu: GpuProperties) -> Rates:
    bus = 2e3 * gpu.memory_clock * gpu.bus_bits / 8
    share = min(max(bus / _PROFILE_BANDWIDTH, 2.0**-6), 4.0) if bus else 1.0
    return replace(
        LARGE_GPU,
        compute_units=gpu.units,
        memory_bandwidth=LARGE_GPU.memory_bandwidth * share,
        workspace_bandwidth=LARGE_GPU.workspace_bandwidth * share,
        launch_seconds=1.5e-6,
    )


def _multiplies_float8(gpu: GpuProperties) -> bool:
    """Whether a GPU multiplies float8 in registers (mma.sync)."""
    return gpu.capability >= _ADA and gpu.capability != _HOPPER and gpu.driver >= _PTX_84


def _tile_products(gpu: GpuProperties) -> tuple[TileProduct, ...]:
    """List the tile products of a GPU, with rates per multiprocessor measured on an H200."""
    if gpu.capability < _AMPERE:
        return ()
    half, bfloat, single, sums = DType.float16, DType.bfloat16, DType.float32, DType.int32
    bytes_ = [(left, right) for left in (DType.uint8, DType.int8) for right in (DType.uint8, DType.int8)]
    if gpu.capability == _HOPPER and gpu.driver < _PTX_84:
        bytes_ = [(left, right) for left, right in bytes_ if left is right]
    small_floats = [(left, right) for left in _FLOAT8 for right in _FLOAT8]
    if gpu.capability == _HOPPER:
        products = [TileProduct(kind, kind, single, 6.4e12, 64, 128) for kind in (half, bfloat)]
        products.append(TileProduct(single, single, single, 3.2e12, 64, 128))
        products += [TileProduct(left, right, sums, 12.8e12, 64, 128) for left, right in bytes_]
        return (*products, *(TileProduct(left, right, single, 12.8e12, 64, 128) for left, right in small_floats))
    products = [TileProduct(kind, kind, single, 4.8e12) for kind in (half, bfloat)]
    products.append(TileProduct(single, single, single, 2.4e12))
    products += [TileProduct(left, right, sums, 9.4e12) for left, right in bytes_]
    if _multiplies_float8(gpu):
        products += [TileProduct(left, right, single, 9.4e12) for left, right in small_floats]
    return tuple(products)
