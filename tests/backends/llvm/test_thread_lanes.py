"""Lanes as threads: kernels as PTX, assembled if there is an assembler and run if there is a GPU."""

from __future__ import annotations

import re

import pytest
from backends.llvm.ptx import Example, assemble, emit_ptx, examples, find_ptxas, threads_target
from backends.llvm.run_ptx import Driver, DriverError
from models.catalog import load_catalog
from models.code_digests import kernels, programs

from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.ir import kernel as ir
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    AcrossGroup,
    Barrier,
    Buffer,
    Call,
    Define,
    Fetch,
    FetchRun,
    Integer,
    Kernel,
    Number,
    Put,
    PutRun,
    Register,
    Repeat,
    Statement,
    Transpose,
)
from weft.ir.kernel_verify import verify_kernel

F32, I32, I64, BOOL = DType.float32, DType.int32, DType.int64, DType.bool
PROCESSORS = ("sm_80", "sm_90")
PTXAS = find_ptxas()
needs_ptxas = pytest.mark.skipif(PTXAS is None, reason="no ptxas: WEFT_PTXAS, PATH and nvidia-cuda-nvcc name none")


@pytest.fixture(scope="module")
def built_examples() -> dict[str, Example]:
    return {example.name: example for example in examples()}


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize(
    ("name", "instructions"),
    [
        ("map", ["fma.rn.f32", "ld.global", "st.global"]),
        ("reduction", ["shfl.sync.bfly.b32", "bar.sync", "st.shared", "add.rn.f32"]),
        ("product", ["bar.sync", "ld.shared.v4", "st.shared", "ld.global", "fma.rn.f32"]),
    ],
)
def test_ptx(name: str, instructions: list[str], processor: str, built_examples: dict[str, Example]) -> None:
    text = ""
    for kernel in built_examples[name].kernels:
        ptx, shared = emit_ptx(kernel, processor)
        assert f".target {processor}" in ptx
        assert f".visible .entry {kernel.name}(" in ptx
        assert f".reqntid {kernel.lanes}" in ptx
        assert "call" not in ptx
        assert shared == 0
        text += ptx
    for instruction in instructions:
        assert instruction in text, f"no {instruction} in the {name}"
    assert not re.search(r"\b(mul|add)\.f32", text), "ptxas may fuse what is not said to be rounded"


@needs_ptxas
@pytest.mark.parametrize("processor", PROCESSORS)
def test_ptx_assembles(processor: str, built_examples: dict[str, Example]) -> None:
    assert PTXAS is not None
    for example in built_examples.values():
        for kernel in example.kernels:
            log = assemble(PTXAS, emit_ptx(kernel, processor)[0], processor)
            assert "0 bytes spill stores" in log, f"{kernel.name}: {log}"


def test_ptx_computes_what_numpy_does(built_examples: dict[str, Example]) -> None:
    try:
        driver = Driver()
    except DriverError as error:
        pytest.skip(str(error))
    for example in built_examples.values():
        example.check(driver.run(example.build_case("sm_80")))


# -- every statement and value ---------------------------------------------------------------------------------------

LANES = 64
ME = ir.lane(LANES)


def kernel_of(*body: Statement, dtype: DType = F32, lanes: int = LANES, shared: int = LANES) -> Kernel:
    buffers = (Buffer("x", dtype, False), Buffer("z", dtype, True), Buffer("held", dtype, True, shared))
    kernel = Kernel("made_up", buffers, ("n",), lanes, body)
    verify_kernel(kernel)
    return kernel


def ptx_text(kernel: Kernel, lanes: ThreadLanes | None = None) -> str:
    """Return the PTX, which must assemble if there is an assembler."""
    ptx, _ = emit_ptx(kernel, "sm_80", lanes)
    if PTXAS is not None:
        assemble(PTXAS, ptx, "sm_80")
    return ptx


@pytest.mark.parametrize("dtype", [F32, DType.float64, DType.float16, DType.bfloat16, I64, DType.int8, BOOL])
@pytest.mark.parametrize("lanes", [8, 32, 96, 100, 256])
def test_across(dtype: DType, lanes: int) -> None:
    """Warps exchange registers, several warps shared memory; so do lanes that are not whole warps."""
    body = Put("z", ir.block(), Across("maximum", Fetch("x", ir.lane(lanes), dtype)))
    text = ptx_text(kernel_of(body, dtype=dtype, lanes=lanes))
    assert ("shfl.sync" in text) == (lanes != 100)
    words = 2 if dtype.bits == 64 else 1
    assert text.count("shfl.sync") == {8: 3, 32: 5, 96: 5, 100: 0, 256: 5}[lanes] * words
    assert text.count("bar.sync") == {8: 0, 32: 0, 96: 2, 256: 2, 100: 9}[lanes]


@pytest.mark.parametrize(
    ("lanes", "members", "step", "shuffles", "barriers"),
    [
        (32, 8, 1, 3, 0),
        (256, 32, 1, 5, 0),
        (256, 64, 1, 5, 2),
        (256, 8, 32, 0, 2),
        (256, 16, 16, 1, 2),
        (512, 512, 1, 5, 4),
    ],
)
def test_across_groups(lanes: int, members: int, step: int, shuffles: int, barriers: int) -> None:
    """Lanes of a warp exchange registers; those of several warps read up to eight values from shared memory."""
    put = Put("z", ir.lane(lanes), AcrossGroup("sum", Fetch("x", ir.lane(lanes), F32), members, step))
    text = ptx_text(kernel_of(put, lanes=lanes))
    assert (text.count("shfl.sync"), text.count("bar.sync")) == (shuffles, barriers)


@pytest.mark.parametrize("width", [2, 4])
def test_runs_are_vector_accesses_unless_a_buffer_is_unaligned(width: int) -> None:
    names = tuple(f"r{number}" for number in range(width))
    mask = Call("less", (Integer(ME), Integer(ir.variable("n"))), BOOL)
    values = tuple(Register(name, F32, True) for name in names)
    kernel = kernel_of(FetchRun(names, "x", ME * width, F32, mask), PutRun("z", ME * width, values, mask))
    text = ptx_text(kernel)
    assert f"ld.global.v{width}.b32" in text
    assert f"st.global.v{width}.b32" in text
    apart = ptx_text(kernel, ThreadLanes(unaligned=frozenset({"x"})))
    assert f"ld.global.v{width}" not in apart
    assert f"st.global.v{width}.b32" in apart


def test_first_thread_writes_uniform_values() -> None:
    text = ptx_text(kernel_of(Put("z", ir.block(), Number(1.0, F32))))
    assert "%tid.x" in text
    assert "setp" in text


@pytest.mark.parametrize("bits", [32, 64])
def test_indices_have_the_narrowest_sufficient_type(bits: int) -> None:
    place = ir.variable("i") * 7 + ME
    loop = Repeat("i", 0, ir.variable("n"), 1, (Put("z", place, Fetch("x", place, F32)),))
    text = ptx_text(kernel_of(loop), ThreadLanes(index_bits=bits))
    assert ("setp.lt.s64" in text or "setp.gt.s64" in text or ".s64 \t%p" in text) == (bits == 64)


@pytest.mark.parametrize("dtype", [F32, DType.float64, DType.float16])
def test_remainders_do_not_use_a_division(dtype: DType) -> None:
    text = ptx_text(kernel_of(Put("z", ME, Call("fmod", (Fetch("x", ME, dtype),) * 2, dtype)), dtype=dtype))
    assert "weft_fmod" in text
    assert "div.rn.f" not in text


def test_products_of_bytes_are_one_instruction() -> None:
    text = ptx_text(kernel_of(Put("z", ME, Call("dot4", (Fetch("x", ME, I32),) * 3, I32)), dtype=I32))
    assert "dp4a.u32.s32" in text


def test_squares_are_transposed_in_shared_memory() -> None:
    names = tuple(f"r{number}" for number in range(8))
    me = ir.lane(8)
    body = [Define(name, Fetch("x", me * 8 + n, F32), True) for n, name in enumerate(names)]
    puts = [Put("z", me * 8 + n, Register(name, F32, True)) for n, name in enumerate(names)]
    text = ptx_text(kernel_of(*body, Transpose(names), *puts, lanes=8, shared=8))
    assert text.count("bar.sync") == 3
    assert "ld.shared" in text


def test_large_shared_memory_is_dynamic() -> None:
    body = (Put("held", ME, Fetch("x", ME, F32)), Barrier(), Put("z", ME, Fetch("held", LANES - 1 - ME, F32)))
    kernel = kernel_of(*body, shared=20_000)
    text, shared = emit_ptx(kernel, "sm_80")
    assert shared == 80_000
    assert ".extern .shared" in text
    assert emit_ptx(kernel_of(*body), "sm_80")[1] == 0


# -- models ----------------------------------------------------------------------------------------------------------


@needs_ptxas
@pytest.mark.slow(reason="assembles some 150 kernels")
@pytest.mark.parametrize("name", ["mobilenet_v3_large", "bert_base", "silero-vad__silero_vad_half"])
def test_all_kernels_of_models_assemble(name: str) -> None:
    assert PTXAS is not None
    models = [model for model in load_catalog() if model.name == name and not model.missing]
    if not models:
        pytest.skip(f"{name} is not here")
    for kernel in kernels(programs(str(models[0].file)), threads_target()):
        assemble(PTXAS, emit_ptx(kernel, "sm_90")[0], "sm_90")
