"""docs/kernels.md shows a small kernel; `WEFT_WRITE_DOCS=1 pytest tests/test_kernel_page.py` writes it."""

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
LANES, EACH = 8, 64  # elements of a vector or threads of a block; elements that a block does
F32 = DType.float32

INTRODUCTION = f"""# A kernel, in all its forms

weft has one form for kernels, whatever the device (`src/weft/ir/kernel.py`): a grid of independent blocks, a fixed
number of lanes in each, registers that are *uniform* (one value for the block) or *varying* (one for each lane), loops
that all lanes run together. What a lane is, the emitter decides: on a CPU the element of a vector, on a GPU a thread.

This one computes `y = max(2 x, 0)`, in blocks of {EACH} elements, {LANES} lanes side by side; a mask cuts off the last
vector. `weft kernels MODEL -k NAME` shows the same of any kernel of a model, and `--dump DIR` writes all of them.
"""


def small_kernel() -> Kernel:
    """y = max(2 x, 0)."""
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
            Let("start", block() * EACH),
            Repeat(
                "i",
                start,
                dims.minimum(start + EACH, count),
                LANES,
                (
                    Define("inside", Call("less", (Integer(place), Integer(count)), DType.bool), varying=True),
                    Put("y", place, Call("maximum", (doubled, Number(0.0, F32)), F32), mask=inside),
                ),
            ),
        ),
    )


def page() -> str:
    """The page as Markdown."""
    kernel = small_kernel()
    abilities = Abilities(int64=False, float64=False, float16=False)
    wgsl = write_module(kernel, emit(kernel, abilities), {}, abilities)
    vectors, threads = llvm_text([kernel], VECTOR_LANES), llvm_text([kernel], ThreadLanes())
    forms = [
        ("The kernel", "As `str(kernel)` prints it.", "text", str(kernel)),
        ("LLVM, lanes as elements", "`cpu`: each varying value is a vector.", "llvm", vectors),
        ("WGSL, lanes as threads", "`webgpu`: each varying value is a thread's own.", "wgsl", wgsl),
        ("LLVM, lanes as threads", "`cuda`, through NVPTX: the same emitter, other lanes.", "llvm", threads),
    ]
    parts = [f"## {title}\n\n{said}\n\n```{form}\n{text.strip()}\n```\n" for title, said, form, text in forms]
    return "\n".join([INTRODUCTION, *parts])


def test_the_page_shows_what_is_emitted() -> None:
    if os.environ.get("WEFT_WRITE_DOCS"):
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), "run WEFT_WRITE_DOCS=1 pytest tests/test_kernel_page.py"


def test_the_kernel_computes_what_the_page_says() -> None:
    kernel = small_kernel()
    verify_kernel(kernel)
    x = np.random.default_rng(3).normal(size=150).astype(np.float32)
    _, y = run_kernel(kernel, [x, np.zeros_like(x)], 3, {"count": 150})
    np.testing.assert_array_equal(y, np.maximum(2 * x, 0))
