"""Run tile products on an NVIDIA GPU and report errors and times: it needs only Python, numpy and libcuda.

python tests/backends/llvm/run_tiles.py CASES.pickle [RESULTS.pickle]

`tile_cases.py` writes the cases. Those with numbers are compared with what should come out; those with a shape are
given random ones, a few rows of the result are compared with numpy's float64, and they are timed.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from run_ptx import _DYNAMIC_SHARED, Driver, DriverError

Array = np.ndarray[Any, Any]
TIMES = 20
CHECKED = (0, 1, 77, 1023, 2050, -1)


def numbers(raw: bytes, kind: str) -> Array:
    """As float64."""
    if kind == "bfloat16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(raw, kind).astype(np.float64)


def compare(case: dict[str, Any], raw: bytes) -> str:
    expected = case["expected"]
    actual = numbers(raw, case["out"]).reshape(expected.shape)
    error = np.abs(actual - expected) / case["scale"]
    limit = {"bfloat16": 0.05, "int32": 0.0}.get(case["out"], case["limit"])
    wrong = ~(error <= limit)
    if not wrong.any():
        return f"ok     {error.max():.2e}"
    places = np.argwhere(wrong)
    rows, columns = (np.unique(places[:, axis]) for axis in range(2))
    some = [(*map(int, place), float(actual[tuple(place)]), float(expected[tuple(place)])) for place in places[:4]]
    return f"WRONG  {wrong.mean():.3f} of all; rows {list(rows[:12])} columns {list(columns[:12])}: {some}"


def random_operand(random: Any, shape: tuple[int, int], kind: str, transposed: bool) -> tuple[Array, Array]:
    """Return an operand as stored in memory, and as [rows, depth] in float32."""
    if kind == "int8":
        memory = plain = random.integers(-128, 128, shape, np.int8)
    elif kind.startswith("float8"):
        memory = random.integers(0, 0x78, shape, np.uint8)  # e4m3fn: 0 and positive numbers
        exponent, fraction = memory >> 3, memory & 7
        plain = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
        plain = plain.astype(np.float32)
    else:
        plain = random.standard_normal(shape, np.float32)
        mask = 0xFFFF0000 if kind == "bfloat16" else 0xFFFFE000
        plain = (plain.view(np.uint32) & np.uint32(mask)).view(np.float32)
        memory = (plain.view(np.uint32) >> 16).astype(np.uint16) if kind == "bfloat16" else plain
    return np.ascontiguousarray(memory.T) if transposed else memory, plain


class Timer:
    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.uploaded: dict[Any, tuple[c_uint64, Array]] = {}
        self.random = np.random.default_rng(5)

    def memory(self, array: Array) -> c_uint64:
        place = c_uint64()
        self.driver("cuMemAlloc_v2", byref(place), c_size_t(array.nbytes))
        self.driver("cuMemcpyHtoD_v2", place, c_void_p(array.ctypes.data), c_size_t(array.nbytes))
        return place

    def operand(self, number: int, shape: tuple[int, int], form: tuple[str, bool]) -> tuple[c_uint64, Array]:
        key = (number, shape, form)
        if key not in self.uploaded:
            memory, plain = random_operand(self.random, shape, *form)
            self.uploaded[key] = (self.memory(memory), plain)
        return self.uploaded[key]

    def run(self, case: dict[str, Any]) -> str:
        driver = self.driver
        rows, columns, depth = case["shape"]
        left, plain_left = self.operand(0, (rows, depth), case["forms"][0])
        right, plain_right = self.operand(1, (columns, depth), case["forms"][1])
        out = np.zeros((rows, columns), {"bfloat16": np.uint16}.get(case["out"], case["out"]))
        place = self.memory(out)
        module, function = c_void_p(), c_void_p()
        log = ctypes.create_string_buffer(8192)
        options, values = (c_int * 2)(5, 6), (c_void_p * 2)(ctypes.addressof(log), len(log))
        try:
            driver("cuModuleLoadDataEx", byref(module), c_char_p(case["ptx"]), c_uint(2), options, values)
        except DriverError as error:
            raise DriverError(f"{error}: {log.value.decode(errors='replace')}") from None
        kernel, blocks, lanes, shared, _, _ = case["launches"][0]
        driver("cuModuleGetFunction", byref(function), module, c_char_p(kernel.encode()))
        if shared:
            driver("cuFuncSetAttribute", function, c_int(_DYNAMIC_SHARED), c_int(shared))
        words = [left, right, left, place]
        pointers = (c_void_p * 4)(*(ctypes.addressof(word) for word in words))
        grid = (c_uint(blocks), c_uint(1), c_uint(1), c_uint(lanes), c_uint(1), c_uint(1))
        first, last = c_void_p(), c_void_p()
        driver("cuEventCreate", byref(first), c_uint(0))
        driver("cuEventCreate", byref(last), c_uint(0))

        def launch() -> None:
            driver("cuLaunchKernel", function, *grid, c_uint(shared), c_void_p(), pointers, c_void_p())

        for _ in range(3):
            launch()
        driver("cuEventRecord", first, c_void_p())
        for _ in range(TIMES):
            launch()
        driver("cuEventRecord", last, c_void_p())
        driver("cuCtxSynchronize")
        took = c_float()
        driver("cuEventElapsedTime", byref(took), first, last)
        driver("cuMemcpyDtoH_v2", c_void_p(out.ctypes.data), place, c_size_t(out.nbytes))
        driver("cuMemFree_v2", place)
        driver("cuModuleUnload", module)
        chosen = list(CHECKED)
        expected = case["repeated"] * plain_left[chosen].astype(np.float64) @ plain_right.astype(np.float64).T
        actual = numbers(out[chosen].tobytes(), case["out"]).reshape(expected.shape)
        error = float(np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-9))
        rate = 2.0 * case["repeated"] * rows * columns * depth * TIMES / (took.value * 1e-3) / 1e12
        return f"{took.value / TIMES:8.3f} ms {rate:7.1f} TFLOP/s  error {error:.1e}{'  WRONG' if error > 0.01 else ''}"


def main() -> None:
    driver = Driver()
    timer = Timer(driver)
    results: dict[str, Any] = {}
    wrong = 0
    for case in pickle.loads(Path(sys.argv[1]).read_bytes()):
        try:
            if "shape" in case:
                outcome = timer.run(case)
            else:
                raw = driver.run(case)[-1]
                results[case["name"]] = raw
                outcome = compare(case, raw)
        except DriverError as error:
            outcome = f"FAILED {error}"
            results[case["name"]] = outcome
        wrong += "WRONG" in outcome or "FAILED" in outcome
        print(f"{case['name']:48} {outcome}", flush=True)
    print(f"{wrong} went wrong")
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()
