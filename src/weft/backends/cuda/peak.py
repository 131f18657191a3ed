"""What a GPU can do at most, measured: multiply-adds in registers, products of tiles, and bytes read from memory.

All are kernels of the usual form, so that what is measured is what kernels can reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from weft.backends.cuda.compile import KernelCode, compile_kernels
from weft.backends.cuda.gpu import CudaGpu
from weft.backends.cuda.launches import GraphLaunch, GraphRecording, bound_launch
from weft.backends.cuda.processors import processor_of, target_of, thread_lanes
from weft.cost.roofline import Peak, TilePeak, tile_kind
from weft.errors import KernelError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Assign,
    Barrier,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    FetchRun,
    Integer,
    Kernel,
    MultiplyTiles,
    Number,
    Put,
    PutSums,
    PutTile,
    Register,
    Repeat,
    Statement,
    Sums,
    TileForm,
    block,
    lane,
    variable,
)
from weft.ir.target import TileProduct
from weft.threads import lock

ROUNDS = 5  # of which the best counts
_LANES = 256
_BLOCKS = 4096
_CHAINS = 16  # multiply-adds of a lane that do not wait for each other
_TURNS = 512
_BYTES = 512 << 20  # read, beyond any cache
_RUN = 4
_FLOAT = DType.float32
_TILE_ROWS = 128
_TILE_COLUMNS = {32: 128, 128: 256}  # by the number of lanes that multiply together
_TILE_TURNS = 256
_WAVES = 4  # of blocks, as many in each as there are units
_NEVER = 12345.678

_known: WeakKeyDictionary[CudaGpu, Peak] = WeakKeyDictionary()
_measuring = lock()


def known_peak(gpu: CudaGpu) -> Peak:
    """The GPU's peak, measured when it is first asked for."""
    with _measuring:
        peak = _known.get(gpu)
        if peak is None:
            peak = _known[gpu] = _measured(gpu)
        return peak


def _measured(gpu: CudaGpu) -> Peak:
    size = min(_BYTES, gpu.described.memory_bytes // 8) // (_LANES * _BLOCKS * _RUN * 4) * (_LANES * _BLOCKS * _RUN * 4)
    small, large = gpu.buffer(_BLOCKS * _LANES * 4), gpu.buffer(size)
    turns = size // (_LANES * _BLOCKS * _RUN * 4)
    tiles = tile_kernels(gpu)
    kernels = [_multiplying(), _reading(), *tiles.values()]
    lanes = thread_lanes(processor_of(gpu.described))
    adding, reading, *multiplying = zip(kernels, compile_kernels([(kernel, lanes) for kernel in kernels], gpu))
    products = _best(gpu, *adding, _BLOCKS, [small.address])
    read = _best(gpu, *reading, _BLOCKS, [small.address, large.address, turns])
    peak = 2 * _CHAINS * _TURNS * _LANES * _BLOCKS / products, size / read
    if not tiles:
        return Peak(*peak)
    blocks = min(gpu.described.units * _WAVES, _BLOCKS)
    rates: dict[str, float] = {}
    for kind, (kernel, code) in zip(tiles, multiplying):
        try:
            seconds = _best(gpu, kernel, code, blocks, [small.address])
        except KernelError:
            continue  # more memory than its blocks have: float32's rate stands for it
        rates[kind] = blocks * tile_flops(kernel) / seconds
    return TilePeak(*peak, products=rates)


def _best(gpu: CudaGpu, kernel: Kernel, code: KernelCode, blocks: int, values: Sequence[int]) -> float:
    """The fewest seconds, those of the first time left out."""
    function = gpu.load(kernel.name, kernel.name, code.code, code.shared_bytes)
    launch = bound_launch(function, blocks, kernel.lanes, values)
    times = _times(gpu, [launch] * (ROUNDS + 1))
    return max(min(times[1:]), 1e-9)


def _times(gpu: CudaGpu, launches: Sequence[GraphLaunch]) -> list[float]:
    timed = GraphRecording(gpu, launches, {}).timed()
    with gpu.at_work("measuring it") as driver:
        timed.launch(driver, gpu.stream)
    gpu.wait()
    ticks = timed.ticks()
    return [float(span) * 1e-9 for span in np.diff(ticks)]


def _multiplying() -> Kernel:
    chains = [Register(f"chain{number}", _FLOAT, True) for number in range(_CHAINS)]
    here = block() * _LANES + lane(_LANES)
    first = [Define(chain.name, _number(here, number), True) for number, chain in enumerate(chains)]
    steps = tuple(Assign(chain.name, _fma(chain, Number(1.0001, _FLOAT), Number(0.5, _FLOAT))) for chain in chains)
    loop = Repeat("turn", 0, _TURNS, 1, steps)
    return Kernel("weft_peak", (Buffer("out", _FLOAT, True),), (), _LANES, (*first, loop, _put(chains)))


def _reading() -> Kernel:
    sums = [Register(f"sum{number}", _FLOAT, True) for number in range(_RUN)]
    taken = [Register(f"taken{number}", _FLOAT, True) for number in range(_RUN)]
    place = (variable("turn") * _BLOCKS + block()) * (_LANES * _RUN) + lane(_LANES) * _RUN
    body: tuple[Statement, ...] = (
        FetchRun(tuple(each.name for each in taken), "given", place, _FLOAT),
        *(Assign(total.name, Call("add", (total, each), _FLOAT)) for total, each in zip(sums, taken)),
    )
    loop = Repeat("turn", 0, variable("turns"), 1, body, 4)
    first = [Define(total.name, Number(0.0, _FLOAT), True) for total in sums]
    buffers = Buffer("out", _FLOAT, True), Buffer("given", _FLOAT, False)
    return Kernel("weft_bandwidth", buffers, ("turns",), _LANES, (*first, loop, _put(sums)))


def tile_kernels(gpu: CudaGpu) -> dict[str, Kernel]:
    """By what tiles are of: a kernel that multiplies two of them over and over."""
    found: dict[str, Kernel] = {}
    for product in target_of(gpu.described, "").tile_products:
        kind = tile_kind(product.left)
        if kind not in found:
            found[kind] = _multiplying_tiles(f"weft_peak_{kind}", product)
    return found


def tile_flops(kernel: Kernel) -> float:
    """The operations of a block of it."""
    left, right = (buffer.tile for buffer in kernel.buffers if buffer.tile is not None)
    return 2.0 * left.rows * right.rows * left.depth * _TILE_TURNS


def _multiplying_tiles(name: str, product: TileProduct) -> Kernel:
    rows, columns, depth = _TILE_ROWS, _TILE_COLUMNS[product.lanes], 128 * 8 // product.left.bits
    if product.left.is_float and product.left.bits == 8:
        columns = min(columns, 128)  # their sums are added up in registers of their own
    buffers = (
        Buffer("out", product.sums, True),
        Buffer("left", product.left, True, rows * depth, TileForm(rows, depth)),
        Buffer("right", product.right, True, columns * depth, TileForm(columns, depth)),
        Buffer("held", product.sums, True, rows * columns, late=True),
    )
    here = Fetch("held", lane(_LANES), product.sums)
    never = Call("equal", (here, Number(int(_NEVER) if product.sums.is_integer else _NEVER, product.sums)), DType.bool)
    body: tuple[Statement, ...] = (
        *_filled("left", product.left, rows, depth),
        *_filled("right", product.right, columns, depth),
        Barrier(),
        Sums("sums", rows, columns, product.sums),
        Repeat("turn", 0, _TILE_TURNS, 1, (MultiplyTiles("sums", "left", "right"),)),
        Barrier(),
        PutSums("sums", "held", 0, columns),
        Barrier(),
        Put("out", block() * _LANES + lane(_LANES), here, mask=never),
    )
    return Kernel(name, buffers, (), _LANES, body)


def _filled(tile: str, dtype: DType, rows: int, depth: int) -> list[Statement]:
    """Numbers that are not alike, 16 bytes a lane: how much power products take depends on them."""
    count = 16 * 8 // dtype.bits
    number = variable("number", 0, rows * depth // (count * _LANES) - 1)
    element = (number * _LANES + lane(_LANES)) * count
    line, first = dims.floordiv(element, depth), dims.mod(element, depth)
    values = []
    for part in range(count):
        mixed: Code = Integer(dims.mod(line * 37 + (first + part) * 101, 113))
        if dtype.is_float:
            mixed = Call("multiply", (Call("cast", (mixed,), _FLOAT), Number(1 / 64, _FLOAT)), _FLOAT)
        values.append(Call("cast", (mixed,), dtype))
    return [Repeat("number", 0, rows * depth // (count * _LANES), 1, (PutTile(tile, line, first, tuple(values)),))]


def _put(registers: Sequence[Register]) -> Put:
    """All of them are needed for what is written, which is next to nothing."""
    total: Code = registers[0]
    for other in registers[1:]:
        total = Call("add", (total, other), _FLOAT)
    never = Call("equal", (total, Number(_NEVER, _FLOAT)), DType.bool)
    return Put("out", block() * _LANES + lane(_LANES), total, mask=never)


def _number(here: Dim, number: int) -> Code:
    return Call("cast", (Integer(here + number),), _FLOAT)


def _fma(a: Code, b: Code, c: Code) -> Call:
    return Call("fma", (a, b, c), _FLOAT)
