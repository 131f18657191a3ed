"""Objects that Ctrl-C leaves half made: their end says nothing."""

from __future__ import annotations

import gc

import pytest

from weft.backends.cpu.tape import SlicedRun
from weft.backends.cuda.gpu import CudaBuffer, CudaFunction
from weft.backends.cuda.interop import _ImportedCapsule
from weft.backends.cuda.launches import LaunchGraph

MADE_OF: list[type] = [SlicedRun, CudaBuffer, CudaFunction, _ImportedCapsule, LaunchGraph]
try:
    from weft.backends.webgpu.allocations import GpuMemory
    from weft.backends.webgpu.gpu import GpuBuffer
    from weft.backends.webgpu.wgpu_native import ComputePass, Encoder

    MADE_OF += [GpuMemory, GpuBuffer, ComputePass, Encoder]
except ImportError:
    pass  # without wgpu there are none of these


@pytest.mark.parametrize("kind", MADE_OF, ids=lambda kind: kind.__name__)
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_the_end_of_what_was_never_made(kind: type) -> None:
    made = kind.__new__(kind)
    made.__del__()  # type: ignore[attr-defined]
    del made
    gc.collect()
