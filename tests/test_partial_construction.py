"""Destructors of objects whose constructor was interrupted by Ctrl-C raise nothing."""

from __future__ import annotations

import gc

import pytest

from weft.backends.cpu.tape import SlicedRun
from weft.backends.cuda.gpu import CudaBuffer, CudaFunction
from weft.backends.cuda.interop import _ImportedCapsule
from weft.backends.cuda.launches import LaunchGraph

CLASSES: list[type] = [SlicedRun, CudaBuffer, CudaFunction, _ImportedCapsule, LaunchGraph]
try:
    from weft.backends.webgpu.allocations import GpuMemory
    from weft.backends.webgpu.gpu import GpuBuffer
    from weft.backends.webgpu.wgpu_native import ComputePass, Encoder

    CLASSES += [GpuMemory, GpuBuffer, ComputePass, Encoder]
except ImportError:
    pass  # wgpu is not installed


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_destructor_without_constructor(kind: type) -> None:
    instance = kind.__new__(kind)
    instance.__del__()  # type: ignore[attr-defined]
    del instance
    gc.collect()
