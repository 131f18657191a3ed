"""Test docs/kernels.md, which shows a small kernel; `WEFT_WRITE_DOCS=1 pytest tests/test_kernel_page.py` writes it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from backends.cpu.native import run_kernel

from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.backends.llvm.vector_lanes import VECTOR_LANES
from weft.backends.webgpu.bindings import write_module
from weft.backends.webgpu.emit import emit
from weft.backends.webgpu.wgsl_types import Abilities
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Buffer,
    Call,
    Define,
    Fetch,
    Integer,
    Kernel,
    Let,
    Number,
    Put,
    Register,
    Repeat,
    block,
    lane,
    variable,
)
from weft.ir.kernel_verify import verify_kernel

PAGE = Path(__file__).parent.parent / "docs" / "kernels.md"
LANES, BLOCK_SIZE = 8, 64  # vector elements or threads; elements per block
F32 = DType.float32

INTRODUCTION = f"""# One kernel on every device

To see the kernels of a model with their code, run `weft kernels MODEL -k NAME`; `--dump DIR` writes all of them. This
page shows one small kernel and its code for each device.

All devices share one kernel form (`src/weft/ir/kernel.py`):

- a grid of independent blocks, with a fixed number of lanes each
- registers that are *uniform* (one value per block) or *varying* (one value per lane)
- loops that all lanes run together

The emitter decides what a lane is: an element of a vector on a CPU, a thread on a GPU.

The kernel computes `y = max(2 x, 0)` in blocks of {BLOCK_SIZE} elements, {LANES} lanes at a time. A mask guards the
last vector.
"""


def small_kernel() -> Kernel:
    """Return the kernel of y = max(2 x, 0)."""
    count, start, i = variable("count", 1), variable("start"), variable("i")
    place = i + lane(LANES)
    inside = Register("inside", DType.bool, True)
    doubled = Call("multiply", (Fetch("x", place, F32, mask=inside), Number(2.0, F32)), F32)
    return Kernel(
        "double_relu",
        (Buffer("x", F32, written=False), Buffer("y", F32, written=True)),
        ("count",),
        LANES,
        (
            Let("start", block() * BLOCK_SIZE),
            Repeat(
                "i",
                start,
                dims.minimum(start + BLOCK_SIZE, count),
                LANES,
                (
                    Define("inside", Call("less", (Integer(place), Integer(count)), DType.bool), varying=True),
                    Put("y", place, Call("maximum", (doubled, Number(0.0, F32)), F32), mask=inside),
                ),
            ),
        ),
    )


def page() -> str:
    """Return the page as Markdown."""
    kernel = small_kernel()
    abilities = Abilities(int64=False, float64=False, float16=False)
    wgsl = write_module(kernel, emit(kernel, abilities), {}, abilities)
    vectors, threads = llvm_text([kernel], VECTOR_LANES), llvm_text([kernel], ThreadLanes())
    forms = [
        ("The kernel", "As `str(kernel)` prints it.", "text", str(kernel)),
        ("LLVM, lanes as vector elements", "`cpu`: each varying value is a vector.", "llvm", vectors),
        ("WGSL, lanes as threads", "`webgpu`: each varying value is private to a thread.", "wgsl", wgsl),
        ("LLVM, lanes as threads", "`cuda`, through NVPTX: the same emitter with other lanes.", "llvm", threads),
    ]
    parts = [f"## {title}\n\n{note}\n\n```{form}\n{text.strip()}\n```\n" for title, note, form, text in forms]
    return "\n".join([INTRODUCTION, *parts])


def test_page_shows_the_emitted_code() -> None:
    if os.environ.get("WEFT_WRITE_DOCS"):
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), "run WEFT_WRITE_DOCS=1 pytest tests/test_kernel_page.py"


def test_kernel_of_the_page_is_right() -> None:
    kernel = small_kernel()
    verify_kernel(kernel)
    x = np.random.default_rng(3).normal(size=150).astype(np.float32)
    _, y = run_kernel(kernel, [x, np.zeros_like(x)], 3, {"count": 150})
    np.testing.assert_array_equal(y, np.maximum(2 * x, 0))
