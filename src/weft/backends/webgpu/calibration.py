"""The rates of an adapter: a profile of its kind, scaled by a measurement.

Adapters do not report how many compute units they have. So a GPU is measured once, in less than a second, when kernels
are first built for it. The result on disk is its class, two powers of two, and stays until the driver changes: the
choice of kernels depends on it, and so do the bits of results and the names of cache entries. A GPU that cannot be
measured is treated as a large one; a software rasteriser is never measured.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path

from weft.backends.webgpu.adapters import Adapter
from weft.backends.webgpu.gpu import open_gpu
from weft.backends.webgpu.peak import measure_peak
from weft.cache.digests import key_of
from weft.cache.files import cache_folder, read_file, write_file
from weft.cost.profiles import LARGE_GPU, SOFTWARE_GPU, find_scale, scale_profile
from weft.errors import WeftError
from weft.ir.target import Rates

MOST = 16  # largest power of two that is plausible


@cache
def find_rates(adapter: Adapter) -> Rates:
    """Find the rates of an adapter, measuring it if its class is not on disk."""
    if adapter.is_software:
        return SOFTWARE_GPU
    path = _path(adapter)
    scale = None if path is None else read_scale(path)
    if scale is None:
        scale = (0, 0)
        with suppress(WeftError):  # no timestamps, or out of memory: treat it as a large GPU
            scale = find_scale(measure_peak(open_gpu(str(adapter.number))), LARGE_GPU)
            if path is not None:
                with suppress(OSError):
                    write_file(path, json.dumps(scale).encode())
    return scale_profile(LARGE_GPU, scale)


def read_scale(path: Path) -> tuple[int, int] | None:
    """Read a device class from disk; None if there is no valid one."""
    with suppress(OSError, ValueError, TypeError):
        units, bandwidth = json.loads(read_file(path))
        if all(isinstance(power, int) and -MOST <= power <= MOST for power in (units, bandwidth)):
            return units, bandwidth
    return None


def _path(adapter: Adapter) -> Path | None:
    folder = cache_folder()
    name = key_of("calibration 1", adapter.name, adapter.kind, adapter.backend, adapter.driver)
    return None if folder is None else folder / "peaks" / f"{name}.json"
