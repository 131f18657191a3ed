"""The native functions that compute numbers of plans, fill and run tapes (native/*.ll), loaded once per process."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from weft.backends.host.codegen import LoadedCode, compile_cached, load_code
from weft.backends.host.machine import host
from weft.cache.code import shared_cache
from weft.cache.digests import key_of
from weft.errors import DeviceError
from weft.records import dataclass
from weft.threads import once

_FUNCTIONS = (
    "weft_call",
    "weft_go",
    "weft_leave",
    "weft_worker",
    "weft_stop",
    "weft_pool_bytes",
    "weft_pause_times",
    "weft_compute",
    "weft_fill",
    "weft_submit",
)


@dataclass(frozen=True, slots=True)
class NativeRunner:
    """The native functions; ctypes releases the GIL around each."""

    call: Callable[[int], int]  # address of tape, pool, threads, times and regions; returns the error flag
    go: Callable[[int, int], int]  # address of a sliced run, nanoseconds; returns whether there is more to do
    leave: Callable[[int], None]  # address of a sliced run
    worker: Callable[[int, int], None]  # pool, number
    stop: Callable[[int], None]
    pool_bytes: Callable[[], int]
    pause: Callable[[int], None]
    compute: Callable[[int, int, int, int, int, int], int]  # operations, count, values, results, checks, count
    fill: Callable[[int, int, int, int], int]  # form, values, block of words, their number; returns the words it needs
    submit: Callable[[int, int, int, int], int]  # cuLaunchKernel, stream, launches, their number
    code: LoadedCode


_offered: dict[str, Callable[[], bytes | None]] = {}  # the runner's code from files, by the digest of its source


def offer_runner(code: Mapping[str, Callable[[], bytes | None]]) -> None:
    """Offer compiled code for the runner, which is used if the runner is not loaded yet."""
    _offered.update(code)


def _runner_code() -> bytes:
    text = runner_text(sys.platform)
    offered = _offered.get(key_of(text))
    code = None if offered is None else offered()
    return compile_cached(text, host(), shared_cache()) if code is None else code


@once
def runner() -> NativeRunner:
    """Load the native side of pools and tapes."""
    code = load_code([_runner_code()], _FUNCTIONS)
    _offered.clear()
    word, pointer = ctypes.c_int64, ctypes.c_void_p

    def function(name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(code.addresses[name])

    return NativeRunner(
        call=function("weft_call", ctypes.c_int32, pointer),
        go=function("weft_go", ctypes.c_int32, pointer, word),
        leave=function("weft_leave", None, pointer),
        worker=function("weft_worker", None, pointer, word),
        stop=function("weft_stop", None, pointer),
        pool_bytes=function("weft_pool_bytes", word),
        pause=function("weft_pause_times", None, word),
        compute=function("weft_compute", ctypes.c_int32, pointer, word, pointer, pointer, pointer, word),
        fill=function("weft_fill", word, pointer, pointer, pointer, word),
        submit=function("weft_submit", word, pointer, pointer, pointer, word),
        code=code,
    )


def runner_text(system: str, arm: bool | None = None) -> str:
    """Return the runner's LLVM IR for an operating system (by Python's name) and a processor, by default this one."""
    if arm is None:
        here = platform.machine().lower()
        arm = here in ("aarch64", "arm64")
        if not arm and here not in ("x86_64", "amd64"):
            raise DeviceError(f"native code runs on x86-64 and 64-bit ARM only, not on {platform.machine()}")
    systems = {"darwin": "macos", "win32": "windows"}
    names = (systems.get(system, "linux"), "aarch64" if arm else "x86_64", "walk", "runner", "numbers", "cuda", "tapes")
    folder = Path(__file__).parent / "native"
    return "\n".join((folder / f"{name}.ll").read_text(encoding="utf-8") for name in names)
