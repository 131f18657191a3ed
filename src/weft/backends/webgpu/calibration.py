"""The rates of an adapter: a profile of its kind, scaled to what a first measurement finds.

An adapter does not tell how many units it has. So a GPU is measured once, when kernels are first built for it, for less
than a second, and what is kept on disk is its class: two powers of two. Which kernels are chosen follows from it, and
with that bits and names of cache entries; so it stays what it is until the driver changes. A GPU that cannot be
measured is taken for a large one, and an adapter that is software is never measured.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path

from weft.backends.webgpu.adapters import Adapter
from weft.backends.webgpu.gpu import open_gpu
from weft.backends.webgpu.peak import known_peak
from weft.cache.digests import key_of
from weft.cache.files import cache_folder, read_file, write_file
from weft.cost.profiles import LARGE_GPU, SOFTWARE_GPU, scale_of, scaled
from weft.errors import WeftError
from weft.ir.target import Rates

MOST = 16  # a power of two that no device differs by


@cache
def rates_of(adapter: Adapter) -> Rates:
    """What kernels for an adapter are chosen by."""
    if adapter.is_software:
        return SOFTWARE_GPU
    path = _path(adapter)
    scale = None if path is None else read_scale(path)
    if scale is None:
        scale = (0, 0)
        with suppress(WeftError):  # it has no clock, or its memory is full: it is taken for what is usual
            scale = scale_of(known_peak(open_gpu(str(adapter.number))), LARGE_GPU)
            if path is not None:
                with suppress(OSError):
                    write_file(path, json.dumps(scale).encode())
    return scaled(LARGE_GPU, scale)


def read_scale(path: Path) -> tuple[int, int] | None:
    """The class that was found before; None where nothing that makes sense is kept."""
    with suppress(OSError, ValueError, TypeError):
        units, bandwidth = json.loads(read_file(path))
        if all(isinstance(power, int) and -MOST <= power <= MOST for power in (units, bandwidth)):
            return units, bandwidth
    return None


def _path(adapter: Adapter) -> Path | None:
    folder = cache_folder()
    name = key_of("calibration 1", adapter.name, adapter.kind, adapter.backend, adapter.driver)
    return None if folder is None else folder / "peaks" / f"{name}.json"
