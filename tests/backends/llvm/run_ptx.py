"""Run PTX on an NVIDIA GPU through the driver: it needs only Python and libcuda.

    python tests/backends/llvm/run_ptx.py CASES.pickle RESULTS.pickle

`CASES` is a list of dictionaries: `name`, `ptx`, `arrays` (bytes) and `launches`, each (kernel, blocks, lanes, bytes of
shared memory, numbers of arrays, parameters). `RESULTS` has for each case the arrays afterwards, or a text that says
what went wrong. `ptx.py` writes the one and checks the other.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

GUARD = 256  # bytes beside each array that must stay as they are
POISON = 0xA5
_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

Case = dict[str, Any]


class DriverError(Exception):
    """The driver reported an error."""


class Driver:
    """The first GPU."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        except OSError as error:
            raise DriverError(f"there is no driver of an NVIDIA GPU: {error}") from error
        device, context = c_int(), c_void_p()
        self("cuInit", c_uint(0))
        self("cuDeviceGet", byref(device), c_int(0))
        self("cuDevicePrimaryCtxRetain", byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            text = c_char_p()
            self.library.cuGetErrorString(c_int(code), byref(text))
            raise DriverError(f"{name}: {(text.value or b'?').decode()}")

    def run(self, case: Case) -> list[bytes]:
        """Run the launches of a case and return its arrays."""
        log = ctypes.create_string_buffer(8192)
        options = (c_int * 2)(5, 6)  # CU_JIT_ERROR_LOG_BUFFER and its size
        values = (c_void_p * 2)(ctypes.addressof(log), len(log))
        module = c_void_p()
        try:
            self("cuModuleLoadDataEx", byref(module), c_char_p(case["ptx"]), c_uint(2), options, values)
        except DriverError as error:
            raise DriverError(f"{error}: {log.value.decode(errors='replace')}") from None
        memory = [self.upload(array) for array in case["arrays"]]
        try:
            for kernel, blocks, lanes, shared, numbers, parameters in case["launches"]:
                function = c_void_p()
                self("cuModuleGetFunction", byref(function), module, c_char_p(kernel.encode()))
                if shared:
                    self("cuFuncSetAttribute", function, c_int(_DYNAMIC_SHARED), c_int(shared))
                words = [*(memory[number].value + GUARD for number in numbers), *parameters]
                arguments = [c_uint64(word % (1 << 64)) for word in words]
                pointers = (c_void_p * len(arguments))(*(ctypes.addressof(word) for word in arguments))
                grid = (c_uint(blocks), c_uint(1), c_uint(1), c_uint(lanes), c_uint(1), c_uint(1))
                if blocks:
                    self("cuLaunchKernel", function, *grid, c_uint(shared), c_void_p(), pointers, c_void_p())
            self("cuCtxSynchronize")
            return [self.download(place, len(array)) for place, array in zip(memory, case["arrays"])]
        finally:
            for place in memory:
                self.library.cuMemFree_v2(place)
            self.library.cuModuleUnload(module)

    def upload(self, array: bytes) -> c_uint64:
        whole = bytes([POISON]) * GUARD + array + bytes([POISON]) * GUARD
        place = c_uint64()
        self("cuMemAlloc_v2", byref(place), c_size_t(len(whole)))
        self("cuMemcpyHtoD_v2", place, c_char_p(whole), c_size_t(len(whole)))
        return place

    def download(self, place: c_uint64, size: int) -> bytes:
        whole = ctypes.create_string_buffer(size + 2 * GUARD)
        self("cuMemcpyDtoH_v2", whole, place, c_size_t(len(whole)))
        if set(whole.raw[:GUARD] + whole.raw[GUARD + size :]) != {POISON}:
            raise DriverError("something was written beside an array")
        return whole.raw[GUARD : GUARD + size]


def main() -> None:
    cases, results = (Path(argument) for argument in sys.argv[1:])
    driver = Driver()
    outcomes: list[list[bytes] | str] = []
    for case in pickle.loads(cases.read_bytes()):
        try:
            outcomes.append(driver.run(case))
        except DriverError as error:
            outcomes.append(f"{case['name']}: {error}")
    results.write_bytes(pickle.dumps(outcomes))
    print(f"{len(outcomes)} cases, {sum(isinstance(result, str) for result in outcomes)} of them failed")


if __name__ == "__main__":
    main()
