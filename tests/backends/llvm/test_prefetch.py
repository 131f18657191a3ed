"""Prefetches: of any address, on vectors alone, without a change of results."""

from __future__ import annotations

import numpy as np
import pytest
from backends.cpu.native import run_kernel

from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.backends.llvm.vector_lanes import VECTOR_LANES
from weft.backends.webgpu.emit import emit
from weft.backends.webgpu.wgsl_types import Abilities
from weft.errors import InternalError
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Fetch, Kernel, Prefetch, Put, Statement, block, lane
from weft.ir.kernel_verify import verify_kernel

F32, LANES = DType.float32, 8
FAR = 1 << 36  # elements: no process has that much memory


def copy_kernel(*prefetches: Statement) -> Kernel:
    place = block() * LANES + lane(LANES)
    buffers = (Buffer("x", F32, written=False), Buffer("y", F32, written=True))
    return Kernel("copy", buffers, (), LANES, (*prefetches, Put("y", place, Fetch("x", place, F32))))


@pytest.mark.parametrize("offset", [0, 64, FAR, -FAR])
def test_results_do_not_change(offset: int) -> None:
    kernel = copy_kernel(Prefetch("x", offset, 200))
    verify_kernel(kernel)
    numbers = np.arange(4 * LANES, dtype=np.float32)
    assert np.array_equal(run_kernel(kernel, [numbers, np.zeros_like(numbers)], 4)[1], numbers)
    assert f"prefetch 200 bytes of x from {offset} to L1" in str(kernel)


def test_only_vectors_load_ahead() -> None:
    plain, prefetching = copy_kernel(), copy_kernel(Prefetch("x", 0, 200))
    assert llvm_text([prefetching], VECTOR_LANES).count('call void @"llvm.prefetch.p0"') == 4  # lines of 64 bytes
    far = llvm_text([copy_kernel(Prefetch("x", 0, 64, level=2))], VECTOR_LANES)
    assert "i32 0, i32 2, i32 1" in far  # read, locality of L2, data
    assert llvm_text([prefetching], ThreadLanes()) == llvm_text([plain], ThreadLanes())
    abilities = Abilities(int64=False, float64=False, float16=False)
    assert emit(prefetching, abilities).text == emit(plain, abilities).text


@pytest.mark.parametrize(("buffer", "offset"), [("z", 0), ("x", lane(LANES))])
def test_what_cannot_be_prefetched(buffer: str, offset: Dim) -> None:
    with pytest.raises(InternalError, match="cannot be prefetched"):
        verify_kernel(copy_kernel(Prefetch(buffer, offset, 64)))
