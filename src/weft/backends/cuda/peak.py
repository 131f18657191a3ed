"""What a GPU can do at most, measured: multiply-adds in registers, and bytes read from memory.

Both are kernels of the usual form, so that what is measured is what kernels can reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from weft.backends.cuda.compile import compile_kernel
from weft.backends.cuda.gpu import CudaBuffer, Gpu
from weft.backends.cuda.launches import BoundLaunch, Recording, bound_launch
from weft.backends.cuda.processors import processor_of, thread_lanes
from weft.cost.roofline import Peak
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Assign,
    Buffer,
    Call,
    Code,
    Define,
    FetchRun,
    Integer,
    Kernel,
    Number,
    Put,
    Register,
    Repeat,
    Statement,
    block,
    lane,
    variable,
)
from weft.threads import lock

ROUNDS = 5  # of which the best counts
_LANES = 256
_BLOCKS = 4096
_CHAINS = 16  # multiply-adds of a lane that do not wait for each other
_TURNS = 512
_BYTES = 512 << 20  # read, beyond any cache
_RUN = 4
_FLOAT = DType.float32

_known: WeakKeyDictionary[Gpu, Peak] = WeakKeyDictionary()
_measuring = lock()


def known_peak(gpu: Gpu) -> Peak:
    """The GPU's peak, measured when it is first asked for."""
    with _measuring:
        peak = _known.get(gpu)
        if peak is None:
            peak = _known[gpu] = _measured(gpu)
        return peak


def _measured(gpu: Gpu) -> Peak:
    size = min(_BYTES, gpu.described.memory_bytes // 8) // (_LANES * _BLOCKS * _RUN * 4) * (_LANES * _BLOCKS * _RUN * 4)
    small, large = gpu.buffer(_BLOCKS * _LANES * 4), gpu.buffer(size)
    turns = size // (_LANES * _BLOCKS * _RUN * 4)
    products = _best(gpu, _multiplying(), [small], [])
    reading = _best(gpu, _reading(), [small, large], [turns])
    return Peak(2 * _CHAINS * _TURNS * _LANES * _BLOCKS / products, size / reading)


def _best(gpu: Gpu, kernel: Kernel, buffers: Sequence[CudaBuffer], parameters: Sequence[int]) -> float:
    """The fewest seconds, those of the first time left out."""
    code = compile_kernel(kernel, thread_lanes(processor_of(gpu.described)), gpu)
    function = gpu.load(kernel.name, kernel.name, code.code, code.shared_bytes)
    launch = bound_launch(function, _BLOCKS, _LANES, [*(each.address for each in buffers), *parameters])
    times = _times(gpu, [launch] * (ROUNDS + 1))
    return max(min(times[1:]), 1e-9)


def _times(gpu: Gpu, launches: Sequence[BoundLaunch]) -> list[float]:
    timed = Recording(gpu, launches, {}).timed()
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


def _put(registers: Sequence[Register]) -> Put:
    """All of them are needed for what is written, which is next to nothing."""
    total: Code = registers[0]
    for other in registers[1:]:
        total = Call("add", (total, other), _FLOAT)
    never = Call("equal", (total, Number(12345.678, _FLOAT)), DType.bool)
    return Put("out", block() * _LANES + lane(_LANES), total, mask=never)


def _number(here: Dim, number: int) -> Code:
    return Call("cast", (Integer(here + number),), _FLOAT)


def _fma(a: Code, b: Code, c: Code) -> Call:
    return Call("fma", (a, b, c), _FLOAT)
