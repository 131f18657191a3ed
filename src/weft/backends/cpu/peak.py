"""Measure the machine's peak rates: multiply-adds in registers, and bytes read from memory and from caches.

Each is a loop of independent vector instructions, run by all threads at once. Measurements are cached on disk for some
days; a busy machine measures less than its peak, so the best one counts.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, fields
from functools import cache, partial
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING

import numpy as np

from weft.backends.cpu.portability import vector_bytes_here
from weft.backends.host.codegen import LoadedCode, load_code
from weft.backends.host.machine import CACHE_LINE, Machine, host
from weft.backends.host.processor import are_names_known
from weft.cache.digests import key_of
from weft.cache.files import cache_folder, read_file, write_file
from weft.cost.roofline import Peak
from weft.threads import HelperPool, once, usable_cores

if TYPE_CHECKING:
    from weft.ir.target import VectorTarget

ROUNDS = 60  # short rounds; the best one counts
ROUND_SECONDS = 0.002
BUFFERS_BYTES = 256 * 1024**2  # total of all threads, larger than most caches
BUFFER_BYTES = (16 * 1024**2, 64 * 1024**2)  # of one thread: minimum and maximum
READ_VECTORS = 8
CACHED_BYTES = (1 << 20, 4 << 20, 16 << 20)  # sizes per thread that may fit into a cache; the first does
CACHE_ROUNDS = 12
CACHE_LOOPS = 1 << 17  # in a round
AS_FAST = 0.6  # of the smallest size's rate: a size read at least this fast is in a cache too
GOOD_FOR = 7 * 86_400.0  # seconds until a measurement is repeated
USUAL_CLOCK = 3e9  # vector multiply-adds per second
USUAL_BANDWIDTH = 2e10  # bytes per second
_FUNCTIONS = ("weft_peak_multiply", "weft_peak_read")
MOST = 1e18  # operations or bytes per second, beyond every machine


@cache
def known_peak(threads: int) -> Peak:
    """Return the machine's peak, from a recent measurement or a new one."""
    path = _cache_path(threads)
    if path is None:
        return measure_peak(threads)
    cached, when = _read_peak(path)
    if cached is not None and 0 <= time.time() - when < GOOD_FOR:
        return cached
    peak = measure_peak(threads)
    if cached is not None:
        peak = Peak(*map(max, astuple(peak), astuple(cached)))
    with suppress(OSError):
        write_file(path, json.dumps([*astuple(peak), time.time()]).encode())
    return peak


@cache
def assumed_peak() -> Peak:
    """Return one thread's peak without measuring: from any earlier measurement, or usual for the vector width."""
    path = _cache_path(1) if are_names_known() else None
    cached = None if path is None else _read_peak(path)[0]
    return cached or Peak(USUAL_CLOCK * 2 * (vector_bytes_here() // 4), USUAL_BANDWIDTH)


def _cache_path(threads: int) -> Path | None:
    """Return the cache file for a number of threads; None without a cache."""
    machine = host()
    folder = cache_folder()
    name = key_of(machine.triple, machine.processor, machine.features, str(usable_cores()), str(threads))
    return None if folder is None else folder / "peaks" / f"{name}.json"


def _read_peak(path: Path) -> tuple[Peak | None, float]:
    """Read a measurement and its time; None if the file is missing or invalid."""
    with suppress(OSError, ValueError, TypeError):
        *rates, when = map(float, json.loads(read_file(path)))
        if len(rates) == len(fields(Peak)) and min(rates[:2]) > 0 and all(0 <= rate < MOST for rate in rates):
            return Peak(*rates), when
    return None, 0.0


def measure_peak(threads: int) -> Peak:
    """Measure the machine's float32 peak on this many threads, at most one per core.

    Each core has its own arithmetic and caches, so every thread's best round counts. Memory is shared: the best round
    of all threads together counts.
    """
    target = host().target
    per_loop = 2 * _accumulators(target) * _lanes(target)
    count = min(threads, usable_cores())
    size = min(max(BUFFERS_BYTES // count, BUFFER_BYTES[0]), BUFFER_BYTES[1]) & -BUFFER_BYTES[0]
    buffers = [_buffer(size) for _ in range(count)]
    code = _code()  # must live while its functions are called
    signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    multiply, read = (signature(code.addresses[name]) for name in _FUNCTIONS)
    places = [buffer.ctypes.data for buffer in buffers]
    loops = _count_loops(lambda count: multiply(count, places[0], 0))
    rows = size // (READ_VECTORS * target.vector_bytes)
    multiplying = _run_rounds([partial(multiply, loops, place, 0) for place in places])
    rates = [loops * per_loop / min(end - start for start, end in spans) for spans in zip(*multiplying)]
    reading = _run_rounds([partial(read, rows, place, -1) for place in places])
    together = min(max(end for _, end in spans) - min(start for start, _ in spans) for spans in reading)
    return Peak(sum(rates), len(reading[0]) * size / together, *_measure_caches(read, places))


def _measure_caches(reread: Callable[[int, int, int], object], places: Sequence[int]) -> tuple[float, float]:
    """Return how many bytes all threads together read faster than from memory, and their rate."""
    row = READ_VECTORS * host().target.vector_bytes
    measured: list[tuple[float, float]] = []
    for size in CACHED_BYTES:
        rows = size // row
        spans = _run_rounds([partial(reread, CACHE_LOOPS, place, rows - 1) for place in places], CACHE_ROUNDS)
        rates = [CACHE_LOOPS * row / min(end - start for start, end in thread) for thread in zip(*spans)]
        measured.append((len(rates) * size, sum(rates)))
    rate = measured[0][1]
    return max(size for size, reached in measured if reached >= AS_FAST * rate), rate


def _buffer(size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Allocate touched memory that starts at a cache line."""
    memory = np.ones(size // 4 + CACHE_LINE // 4, np.float32)
    skipped = -memory.ctypes.data % CACHE_LINE // 4
    return memory[skipped : skipped + size // 4]


def _count_loops(run: Callable[[int], object]) -> int:
    """Find the number of loops that take one round's time."""
    count = 1000
    while True:
        start = time.perf_counter()
        run(count)
        seconds = time.perf_counter() - start
        if seconds > ROUND_SECONDS / 4:
            return max(1, int(count * ROUND_SECONDS / seconds))
        count *= 4


def _run_rounds(works: Sequence[Callable[[], object]], rounds: int = ROUNDS) -> list[list[tuple[float, float]]]:
    """Return when each thread started and ended in every round; the threads of a round start together."""

    def run_timed(work: Callable[[], object]) -> tuple[float, float]:
        barrier.wait()
        start = time.perf_counter()
        work()
        return start, time.perf_counter()

    with HelperPool(len(works)) as team:
        works = works[: max(1, team.start_all())]  # as many as threads could be started
        barrier = Barrier(len(works))
        return [list(team.map(run_timed, works)) for _ in range(rounds)]


@once
def _code() -> LoadedCode:
    from weft.backends.llvm.compilation import compile_module

    machine = host()
    text = peak_text(machine)
    return load_code([compile_module(text, machine)], _FUNCTIONS)


def _lanes(target: VectorTarget) -> int:
    return target.vector_bytes // 4


def _accumulators(target: VectorTarget) -> int:
    """Return a count that hides the latency of a multiply-add and stays in registers."""
    return target.vector_registers * 3 // 4


def peak_text(machine: Machine) -> str:
    """Write both loops as LLVM IR; their sums are stored, so that no instruction is dead."""
    width, lanes = machine.target.vector_bytes, _lanes(machine.target)
    vector = f"<{lanes} x float>"
    fused = f"@llvm.fmuladd.v{lanes}f32"
    accumulators = _accumulators(machine.target)
    multiply = [
        f"%next{index} = call {vector} {fused}({vector} %sum{index}, {vector} splat (float 0.5), "
        f"{vector} splat (float 1.0))"
        for index in range(accumulators)
    ]
    read = ["%row = and i64 %turn, %mask", f"%first = mul i64 %row, {READ_VECTORS}"]
    for index in range(READ_VECTORS):
        read += [
            f"%number{index} = add i64 %first, {index}",
            f"%place{index} = getelementptr {vector}, ptr %data, i64 %number{index}",
            f"%item{index} = load {vector}, ptr %place{index}, align {width}",
            f"%next{index} = fadd {vector} %sum{index}, %item{index}",
        ]
    return "\n".join(
        (
            f"declare {vector} {fused}({vector}, {vector}, {vector})",
            _loop(_FUNCTIONS[0], vector, multiply, accumulators),
            _loop(_FUNCTIONS[1], vector, read, READ_VECTORS),
        )
    )


def _loop(name: str, vector: str, body: Sequence[str], count: int) -> str:
    """Write a function of a loop count, a buffer and a mask of its rows, which carries `count` sums.

    The sums start with different values: equal ones could be merged.
    """
    carried = [
        f"%sum{index} = phi {vector} [ splat (float {index + 1}.0), %entry ], [ %next{index}, %loop ]"
        for index in range(count)
    ]
    added = [f"%total1 = fadd {vector} %next0, %next1"]
    added += [f"%total{index} = fadd {vector} %total{index - 1}, %next{index}" for index in range(2, count)]
    lines = [
        f"define void @{name}(i64 %loops, ptr %data, i64 %mask) {{",
        "entry:",
        "br label %loop",
        "loop:",
        "%turn = phi i64 [ 0, %entry ], [ %following, %loop ]",
        *carried,
        *body,
        "%following = add i64 %turn, 1",
        "%more = icmp ult i64 %following, %loops",
        "br i1 %more, label %loop, label %done",
        "done:",
        *added,
        f"store {vector} %total{count - 1}, ptr %data, align 4",
        "ret void",
        "}",
    ]
    return "\n".join(lines)
