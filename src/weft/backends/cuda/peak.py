"""Measure a GPU's peak rates: multiply-adds in registers, tile products, and reads from memory.

The measurements run kernels of the usual form, so that they show the rates that kernels can reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.backends.cuda.compile import KernelCode, compile_kernels
from weft.backends.cuda.gpu import CudaGpu
from weft.backends.cuda.launch_table import repeat_launch
from weft.backends.cuda.launches import TimedRecording
from weft.backends.cuda.processors import build_target, choose_lanes, choose_processor
from weft.backends.resident.peaks import ROUNDS, best_seconds, measure_once
from weft.cost.roofline import Peak, TilePeak, tile_kind
from weft.errors import KernelError
from weft.ir import dims
from weft.ir import kernel as ir
from weft.ir.dtypes import DType
from weft.ir.target import TileProduct

_LANES = 256
_BLOCKS = 4096
_CHAINS = 16  # independent multiply-adds per lane
_TURNS = 512
_BYTES = 512 << 20  # larger than any cache
_RUN = 4
_FLOAT = DType.float32
_TILE_ROWS = 128
_TILE_COLUMNS = {32: 128, 128: 256}  # by TileProduct.lanes
_TILE_TURNS = 256
_WAVES = 4  # blocks per multiprocessor
_NEVER = 12345.678  # no result equals it: comparing with it keeps LLVM from dropping the work


@measure_once
def measure_peak(gpu: CudaGpu) -> Peak:
    """Measure the GPU's peak rates; a rate of tile products is left out if its kernel does not fit."""
    turn_bytes = _LANES * _BLOCKS * _RUN * 4
    iterations = min(_BYTES, gpu.properties.memory_bytes // 8) // turn_bytes
    size = iterations * turn_bytes
    small, large = gpu.buffer(_BLOCKS * _LANES * 4), gpu.buffer(size)
    tiles = build_tile_kernels(gpu)
    kernels = [_fma_kernel(), _read_kernel(), *tiles.values()]
    lanes = choose_lanes(choose_processor(gpu.properties))
    fma, read, *products = zip(kernels, compile_kernels([(kernel, lanes) for kernel in kernels], gpu))
    fma_seconds = _measure_seconds(gpu, *fma, _BLOCKS, [small.address])
    read_seconds = _measure_seconds(gpu, *read, _BLOCKS, [small.address, large.address, iterations])
    peak = 2 * _CHAINS * _TURNS * _LANES * _BLOCKS / fma_seconds, size / read_seconds
    if not tiles:
        return Peak(*peak)
    blocks = min(gpu.properties.units * _WAVES, _BLOCKS)
    rates: dict[str, float] = {}
    for kind, (kernel, code) in zip(tiles, products):
        try:
            seconds = _measure_seconds(gpu, kernel, code, blocks, [small.address])
        except KernelError:
            continue  # needs more shared memory than blocks have: rooflines use the float32 rate
        rates[kind] = blocks * _count_tile_flops(kernel) / seconds
    return TilePeak(*peak, products=rates)


def _measure_seconds(gpu: CudaGpu, kernel: ir.Kernel, code: KernelCode, blocks: int, values: Sequence[int]) -> float:
    function = gpu.load(kernel.name, kernel.name, code.code, code.shared_bytes)
    recording = TimedRecording(gpu, repeat_launch(function, blocks, kernel.lanes, values, ROUNDS))
    with gpu.guard("measuring the GPU") as driver:
        recording.launch(driver, gpu.stream)
    gpu.wait()
    return best_seconds([float(span) * 1e-9 for span in np.diff(recording.ticks())])


def _fma_kernel() -> ir.Kernel:
    chains = [ir.Register(f"chain{number}", _FLOAT, True) for number in range(_CHAINS)]
    here = ir.block() * _LANES + ir.lane(_LANES)
    starts = [
        ir.Define(chain.name, ir.Call("cast", (ir.Integer(here + number),), _FLOAT), True)
        for number, chain in enumerate(chains)
    ]
    factor, term = ir.Number(1.0001, _FLOAT), ir.Number(0.5, _FLOAT)
    steps = tuple(ir.Assign(chain.name, ir.Call("fma", (chain, factor, term), _FLOAT)) for chain in chains)
    loop = ir.Repeat("turn", 0, _TURNS, 1, steps)
    return ir.Kernel("weft_peak", (ir.Buffer("out", _FLOAT, True),), (), _LANES, (*starts, loop, _use(chains)))


def _read_kernel() -> ir.Kernel:
    sums = [ir.Register(f"sum{number}", _FLOAT, True) for number in range(_RUN)]
    elements = [ir.Register(f"element{number}", _FLOAT, True) for number in range(_RUN)]
    offset = (ir.variable("turn") * _BLOCKS + ir.block()) * (_LANES * _RUN) + ir.lane(_LANES) * _RUN
    body: tuple[ir.Statement, ...] = (
        ir.FetchRun(tuple(element.name for element in elements), "source", offset, _FLOAT),
        *(ir.Assign(total.name, ir.Call("add", (total, element), _FLOAT)) for total, element in zip(sums, elements)),
    )
    loop = ir.Repeat("turn", 0, ir.variable("turns"), 1, body, 4)
    starts = [ir.Define(total.name, ir.Number(0.0, _FLOAT), True) for total in sums]
    buffers = ir.Buffer("out", _FLOAT, True), ir.Buffer("source", _FLOAT, False)
    return ir.Kernel("weft_bandwidth", buffers, ("turns",), _LANES, (*starts, loop, _use(sums)))


def build_tile_kernels(gpu: CudaGpu) -> dict[str, ir.Kernel]:
    """Build a kernel for each tile type that multiplies the same two tiles repeatedly."""
    kernels: dict[str, ir.Kernel] = {}
    for product in build_target(gpu.properties, "").tile_products:
        kind = tile_kind(product.left)
        if kind not in kernels:
            kernels[kind] = _tile_kernel(f"weft_peak_{kind}", product)
    return kernels


def _count_tile_flops(kernel: ir.Kernel) -> float:
    left, right = (buffer.tile for buffer in kernel.buffers if buffer.tile is not None)
    return 2.0 * left.rows * right.rows * left.depth * _TILE_TURNS


def _tile_kernel(name: str, product: TileProduct) -> ir.Kernel:
    rows, columns, depth = _TILE_ROWS, _TILE_COLUMNS[product.lanes], 128 * 8 // product.left.bits
    if product.left.is_float and product.left.bits == 8:
        columns = min(columns, 128)  # float8 products need a second set of sums in registers
    buffers = (
        ir.Buffer("out", product.sums, True),
        ir.Buffer("left", product.left, True, rows * depth, ir.TileForm(rows, depth)),
        ir.Buffer("right", product.right, True, columns * depth, ir.TileForm(columns, depth)),
        ir.Buffer("products", product.sums, True, rows * columns, late=True),
    )
    here = ir.Fetch("products", ir.lane(_LANES), product.sums)
    never = ir.Call(
        "equal", (here, ir.Number(int(_NEVER) if product.sums.is_integer else _NEVER, product.sums)), DType.bool
    )
    body: tuple[ir.Statement, ...] = (
        *_fill_tile("left", product.left, rows, depth),
        *_fill_tile("right", product.right, columns, depth),
        ir.Barrier(),
        ir.Sums("sums", rows, columns, product.sums),
        ir.Repeat("turn", 0, _TILE_TURNS, 1, (ir.MultiplyTiles("sums", "left", "right"),)),
        ir.Barrier(),
        ir.PutSums("sums", "products", 0, columns),
        ir.Barrier(),
        ir.Put("out", ir.block() * _LANES + ir.lane(_LANES), here, mask=never),
    )
    return ir.Kernel(name, buffers, (), _LANES, body)


def _fill_tile(tile: str, dtype: DType, rows: int, depth: int) -> list[ir.Statement]:
    """Fill a tile with varied numbers, 16 bytes per lane: power draw, and with it speed, depends on them."""
    count = 16 * 8 // dtype.bits
    number = ir.variable("number", 0, rows * depth // (count * _LANES) - 1)
    element = (number * _LANES + ir.lane(_LANES)) * count
    row, column = dims.floordiv(element, depth), dims.mod(element, depth)
    values = []
    for number_in_run in range(count):
        value: ir.Code = ir.Integer(dims.mod(row * 37 + (column + number_in_run) * 101, 113))
        if dtype.is_float:
            value = ir.Call("multiply", (ir.Call("cast", (value,), _FLOAT), ir.Number(1 / 64, _FLOAT)), _FLOAT)
        values.append(ir.Call("cast", (value,), dtype))
    return [
        ir.Repeat("number", 0, rows * depth // (count * _LANES), 1, (ir.PutTile(tile, row, column, tuple(values)),))
    ]


def _use(registers: Sequence[ir.Register]) -> ir.Put:
    """Store the sum of all registers under a condition that never holds, so that none is optimized away."""
    total: ir.Code = registers[0]
    for register in registers[1:]:
        total = ir.Call("add", (total, register), _FLOAT)
    never = ir.Call("equal", (total, ir.Number(_NEVER, _FLOAT)), DType.bool)
    return ir.Put("out", ir.block() * _LANES + ir.lane(_LANES), total, mask=never)
