"""Products by packed weights on fragments of tensor cores, expanded to plain statements, against numpy in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backends.cuda.recording_driver import H200
from backends.llvm.emulated import run_kernel
from backends.llvm.ptx import assemble, emit_ptx, find_ptxas
from kernels.threads import emulation, works
from kernels.threads.test_block_products import Case, random_rows

from weft.backends.cuda.processors import build_target as build_cuda_target
from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.cost.profiles import LARGE_GPU
from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Define, FetchRun, Kernel, MultiplyFragments, Register, Statement, inner_bodies
from weft.ir.kernel_verify import verify_kernel
from weft.ir.layout import row_major
from weft.ir.packing import load_constant
from weft.ir.program import Contract
from weft.ir.target import Float32Products, ThreadTarget
from weft.kernels.build.contraction import Contraction
from weft.kernels.lower.barriers import insert_barriers
from weft.kernels.lower.expand_tiles import expand_tiles
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.threads.block_products import build_fixed_product

Array = np.ndarray[Any, Any]
F16, BF16, F32 = DType.float16, DType.bfloat16, DType.float32
PTXAS = find_ptxas()
ROWS = (1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128)


def tensor_target(units: int = LARGE_GPU.compute_units) -> ThreadTarget:
    """Return a GPU target with tensor cores; with few units, warps share fewer sums."""
    own = works.targets()["sharing"]
    rates = replace(LARGE_GPU, compute_units=units)
    return replace(own, rates=rates, tile_products=emulation.SHARING.tile_products, fixed_order=True)


def expand(work: Work) -> Work:
    """Verify the kernels of a work, and expand their tile products."""

    def expand_kernel(kernel: Kernel) -> Kernel:
        verify_kernel(insert_barriers(kernel))
        return expand_tiles(kernel)

    launches = tuple(replace(launch, kernel=expand_kernel(launch.kernel)) for launch in work.launches)
    return replace(work, launches=launches)


def build(case: Case, target: ThreadTarget) -> Work:
    work = case.build(dims.symbol("rows"), target)
    assert any(uses_fragments(launch.kernel) for launch in work.launches)
    return expand(work)


def uses_fragments(kernel: Kernel) -> bool:
    pending: list[Statement] = list(kernel.body)
    while pending:
        statement = pending.pop()
        if isinstance(statement, MultiplyFragments):
            return True
        pending += [inner for body in inner_bodies(statement) for inner in body]
    return False


def check_rows(case: Case, work: Work, numbers: Sequence[int]) -> None:
    """Compare with float64, and rows with the same rows among others."""
    x = random_rows(max(numbers), case.depth)
    every = case.run(x, work)
    for rows in numbers:
        assert case.run(x[-rows:], work).tobytes() == every[-rows:].tobytes(), f"{rows} rows"


@pytest.mark.parametrize("zeros", ["", "bytes"])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 256), (2, 16), (2, 128), (8, 64), (8, 96)])
def test_formats(bits: int, block: int, zeros: str) -> None:
    """Odd numbers of columns and blocks, for one row, few and many."""
    case = Case(bits, block, 75, 3 * block, zeros)
    check_rows(case, build(case, tensor_target()), (1, 20, 70))


@pytest.mark.parametrize(("units", "columns"), [(132, 72), (2, 72), (1, 264), (1, 600)])
def test_bits_of_a_row_do_not_depend_on_other_rows(units: int, columns: int) -> None:
    """Ranges of the sums belong to warps, blocks or turns, and warps have one tile of columns or two."""
    case = Case(4, 32, columns, 32 * 21)
    check_rows(case, build(case, tensor_target(units)), ROWS)


def test_many_rows() -> None:
    case = Case(4, 64, 40, 64 * 5, "bytes")
    check_rows(case, build(case, tensor_target()), (1, 500))


def test_a_row_without_room_in_local_memory() -> None:
    """Planes of one row, in a workspace like those of more."""
    case = Case(4, 32, 40, 32 * 70)
    work = build(case, replace(tensor_target(), shared_bytes=8192))
    check_rows(case, work, (1, 3))


def test_zero_points_of_floats_stay_in_float32() -> None:
    work = Case(4, 32, 40, 64, "floats").build(dims.symbol("rows"), tensor_target())
    assert not any(uses_fragments(launch.kernel) for launch in work.launches)


def test_precision_of_float32_is_kept() -> None:
    """No worse than with multiply-adds; the magnitudes of a row's numbers differ."""
    case = Case(8, 128, 48, 128 * 8, "bytes")
    random = np.random.default_rng(1)
    x = (random.standard_normal((4, case.depth)) * np.exp(4 * random.standard_normal((4, case.depth)))).astype(
        np.float32
    )
    expected = x.astype(np.float64) @ case.values.T
    scale = np.abs(x).astype(np.float64) @ np.abs(case.values).T
    plain = case.build(dims.symbol("rows"), works.targets()["sharing"])
    error, plain_error = (
        np.abs((case.run(x, work) - expected) / scale).max() for work in (build(case, tensor_target()), plain)
    )
    assert error <= 2 * plain_error


@pytest.mark.parametrize(("bits", "zeros"), [(4, ""), (8, "bytes"), (2, "bytes")])
def test_activations_are_rounded_to_float16_where_allowed(bits: int, zeros: str) -> None:
    """A third of the products, the same bits for any number of rows, and clamped numbers."""
    case = Case(bits, 64, 40, 64 * 5, zeros)
    work = build(case, replace(tensor_target(), float32_products=Float32Products.HALVES))
    x = 100 * random_rows(70, case.depth)
    x[0, 3], x[1, 5] = 1e30, np.nan

    def run(rows: Array) -> Array:
        operands = [(rows, row_major(2)), (np.zeros(4, np.int32), row_major(1))]
        result = StoredTensor(F32, (len(rows), case.columns), row_major(2))
        return works.run_work(work, operands, [result], {"rows": len(rows)})[0][0]

    every = run(x)
    rounded = np.clip(x, -65504, 65504).astype(np.float16).astype(np.float64)
    expected = rounded @ case.values.T
    np.testing.assert_allclose(every, expected, rtol=0, atol=3e-6 * np.nanmax(np.abs(expected)))
    for rows in (1, 2, 9, 33, 65):
        assert run(x[-rows:]).tobytes() == every[-rows:].tobytes()


def test_infinities_and_nan_stay_in_their_rows() -> None:
    case = Case(4, 32, 24, 64)
    x = random_rows(5, 64)
    x[1, 7], x[2, 9], x[3, 5] = np.inf, np.nan, -1e30
    work = build(case, tensor_target())
    operands = [(x, row_major(2)), (np.zeros(4, np.int32), row_major(1))]
    result = StoredTensor(F32, (5, 24), row_major(2))
    (actual,), _ = works.run_work(work, operands, [result], {"rows": 5})
    with np.errstate(invalid="ignore", over="ignore"):
        expected = (x.astype(np.float64)[:, None] * case.values).sum(axis=2).astype(np.float32)
    assert np.allclose(actual, expected, rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(("dtype", "depth"), [(F16, 96), (BF16, 520), (F16, 1037), (BF16, 37)], ids=str)
def test_floats(dtype: DType, depth: int) -> None:
    """Weights of 16 bits, with depths that are no multiple of a window or of four."""
    columns, random = 44, np.random.default_rng(3)
    weights = random.standard_normal((depth, columns)).astype(dtype.numpy)
    x = random.standard_normal((70, depth)).astype(dtype.numpy)
    left = StoredTensor(dtype, (dims.symbol("rows"), depth), row_major(2))
    right = StoredTensor(dtype, (depth, columns), row_major(2))
    result = StoredTensor(dtype, (dims.symbol("rows"), columns), row_major(2))
    contraction = Contraction(Contract((0, 2), (2, 1), (0, 1)), left, right, result, None, None, weights)
    plain = build_fixed_product(contraction, tensor_target())
    assert plain is not None
    assert any(uses_fragments(launch.kernel) for launch in plain.launches)
    work = expand(plain)

    def run(rows: Array) -> Array:
        operands = [(rows, row_major(2)), (weights, row_major(2))]
        shape = StoredTensor(dtype, (len(rows), columns), row_major(2))
        return works.run_work(work, operands, [shape], {"rows": len(rows)})[0][0]

    expected = x.astype(np.float64) @ weights.astype(np.float64)
    every = run(x)
    tolerance = 1e-3 if dtype is F16 else 8e-3
    assert np.abs(every.astype(np.float64) - expected).max() <= tolerance * np.abs(expected).max()
    for rows in (1, 3, 12, 33):
        assert run(x[-rows:]).tobytes() == every[-rows:].tobytes()


# -- GPU code --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "zeros", "rows"), [(4, "", 1), (8, "bytes", 1), (2, "bytes", 3)])
def test_emulated_instructions(bits: int, zeros: str, rows: int) -> None:
    """The PTX of tensor cores, as the manual specifies it."""
    case = Case(bits, 32, 20, 96, zeros)
    target = replace(emulation.SHARING, rates=replace(LARGE_GPU, compute_units=1))
    work = case.build(rows, target)
    x = random_rows(rows, case.depth)
    arrays: dict[str, list[Array]] = {
        "operand": [x],
        "result": [np.zeros((rows, case.columns), np.float32)],
        "workspace": [np.zeros(dims.evaluate(space.size, {}), space.dtype.numpy) for space in work.workspaces],
        "constant": [load_constant(constant) for constant in work.constants],
    }
    for launch in work.launches:
        arguments = [arrays[reference.kind][reference.number] for reference in launch.references]
        numbers = {name: dims.evaluate(value, {}) for name, value in launch.parameters}
        lanes = ThreadLanes(tile_products="mma.sync")
        after = run_kernel(launch.kernel, arguments, dims.evaluate(launch.blocks, {}), numbers, lanes)
        for reference, array in zip(launch.references, after):
            arrays[reference.kind][reference.number] = array
    expected = x.astype(np.float64) @ case.values.T
    assert np.abs(arrays["result"][0] - expected).max() <= 3e-6 * np.abs(expected).max()


@pytest.mark.skipif(PTXAS is None, reason="ptxas is not installed")
@pytest.mark.parametrize(
    ("processor", "tiles", "precision"),
    [("sm_90a", "wgmma", "strict"), ("sm_90a", "wgmma", "fast"), ("sm_80", "mma.sync", "strict")],
)
def test_kernels_assemble(processor: str, tiles: str, precision: str) -> None:
    """Weights are read 16 bytes at a time, and no registers are spilled, for all kinds of tiles and formats."""
    target = build_cuda_target(H200, precision)
    for bits, block, zeros, columns, depth in (
        (4, 32, "bytes", 4864, 896),
        (4, 32, "", 896, 4864),
        (4, 128, "", 4096, 1024),
        (4, 32, "", 40000, 256),
        (8, 64, "bytes", 4864, 896),
        (2, 16, "bytes", 4864, 896),
    ):
        for launch in Case(bits, block, columns, depth, zeros).build(dims.symbol("rows"), target).launches:
            text, _ = emit_ptx(insert_barriers(launch.kernel), processor, ThreadLanes(tile_products=tiles))
            assert PTXAS is not None
            assert "0 bytes spill stores" in assemble(PTXAS, text, processor)
            if uses_fragments(launch.kernel):
                assert "mma.sync" in text
                assert "ld.global.v4" in text


def test_fragments_are_verified() -> None:
    """Registers vary and are as many as a lane has elements, and lanes fill warps."""
    words = tuple(f"w{number}" for number in range(6))
    sums = tuple(f"s{number}" for number in range(4))
    defines = [Define(name, Register("x", DType.int32, True), True) for name in words]
    product = MultiplyFragments((sums,), (words[:4],), (words[4:],), 1, BF16)
    body: list[Statement] = [FetchRun(("x",), "given", dims.symbol("lane", 0, 31), DType.int32), *defines]

    def kernel(statement: MultiplyFragments, lanes: int = 32) -> Kernel:
        floats = [Define(name, Register("x", DType.int32, True), True) for name in sums]
        return Kernel("k", (Buffer("given", DType.int32, False),), (), lanes, (*body, *floats, statement))

    verify_kernel(kernel(product))
    for broken in (
        replace(product, left=(words[:3],)),
        replace(product, planes=2),
        replace(product, sums=(sums, sums)),
        replace(product, right=((words[4], "missing"),)),
    ):
        with pytest.raises(InternalError, match="fragments"):
            verify_kernel(kernel(broken))
    with pytest.raises(InternalError, match="fragments"):
        verify_kernel(kernel(product, 16))
