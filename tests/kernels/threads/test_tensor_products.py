"""Products on tiles, expanded to plain statements and run on this CPU, against numpy in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backends.llvm.emulated import run_kernel
from backends.llvm.ptx import assemble, find_ptxas
from backends.llvm.tile_cases import FEATURES
from backends.llvm.tile_cases import PROCESSORS as WAYS_OF_TILES
from kernels.epilogues import assert_close, random_array
from kernels.products import build_contract, build_convolve
from kernels.threads.works import Array, run_on_cpu, targets
from kernels.vector.test_contract import Case
from kernels.vector.test_convolve import Case as ConvolveCase
from kernels.vector.works import tensor_of

from weft.backends.llvm import assembly
from weft.backends.llvm.compilation import assembly_text
from weft.backends.llvm.emit import emit
from weft.backends.llvm.nvptx import NvidiaProcessor
from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.kernel import AddSums, Kernel, MoveRun, PutTile, Statement, TilePipeline, inner_bodies
from weft.ir.kernel_verify import verify_kernel
from weft.ir.layout import Layout, row_major
from weft.ir.packing import load_constant
from weft.ir.program import Contract
from weft.ir.target import Float32Products, ThreadTarget, TileProduct
from weft.kernels.lower.barriers import insert_barriers
from weft.kernels.lower.expand_tiles import expand_tiles
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.threads import convolve, operand_staging, product_choice
from weft.kernels.threads.contract import build_contraction
from weft.kernels.threads.convolve import build_convolution
from weft.kernels.threads.tensor_tile import TensorTile, find_product_scheme, list_tensor_tiles

F16, BF16, F32 = DType.float16, DType.bfloat16, DType.float32
I8, U8, I32 = DType.int8, DType.uint8, DType.int32
E4M3, E5M2 = DType.float8e4m3fn, DType.float8e5m2
TOLERANCES = {
    Float32Products.PARTS: 2e-6,
    Float32Products.TF32: 3e-3,
    Float32Products.HALVES: 2e-3,
}
WAYS = list(TOLERANCES)


def target_with(way: Float32Products = Float32Products.EXACT, rows: int = 64, lanes: int = 128) -> ThreadTarget:
    """Return a GPU target with tile products."""
    pairs = [(F16, F16, F32), (BF16, BF16, F32), (F32, F32, F32), (U8, I8, I32), (I8, U8, I32), (I8, I8, I32)]
    pairs += [(left, right, F32) for left in (E4M3, E5M2) for right in (E4M3, E5M2)]
    products = tuple(TileProduct(*pair, 6e12, rows, lanes) for pair in pairs)
    own = targets()["sharing"]
    return replace(
        own,
        block_threads=16,
        most_block_threads=1024,
        shared_bytes=227 << 10,
        tile_products=products,
        float32_products=way,
    )


def small(bits: int, lanes: int = 8) -> TensorTile:
    return TensorTile(8, 16, 256 // bits, lanes, 2)


def choosing(monkeypatch: pytest.MonkeyPatch, tile: TensorTile, parts: int = 1) -> None:
    monkeypatch.setattr(product_choice, "choose", lambda *_: (product_choice.Variant(tile, parts),))


def tile_bits(dtype: DType, way: Float32Products) -> int:
    return 16 if dtype is F32 and way is not Float32Products.TF32 else dtype.bits


def expanded(work: Work) -> Work:
    """Verify the kernels and expand their tiles."""

    def plain(kernel: Kernel) -> Kernel:
        verify_kernel(insert_barriers(kernel))
        return expand_tiles(kernel)

    return replace(work, launches=tuple(replace(launch, kernel=plain(launch.kernel)) for launch in work.launches))


def statements(kernel: Kernel) -> list[Statement]:
    collected: list[Statement] = []
    pending = list(kernel.body)
    while pending:
        statement = pending.pop()
        collected.append(statement)
        pending += [inner for body in inner_bodies(statement) for inner in body]
    return collected


def moved(work: Work) -> set[str]:
    """Return the operands that are moved into tiles without conversion."""
    kernels = [launch.kernel for launch in work.launches]
    return {s.buffer for kernel in kernels for s in statements(kernel) if isinstance(s, MoveRun)}


def product(
    shape: tuple[Any, Any, Any],
    target: ThreadTarget,
    dtypes: tuple[DType, DType],
    weights: Array | None = None,
    transposed: tuple[bool, bool] = (False, False),
    *,
    is_wide: bool = False,
) -> tuple[Work, StoredTensor]:
    """Build a product; that of float8, or with `is_wide`, has results of float32."""
    m, n, k = shape
    left = StoredTensor(dtypes[0], (m, k), Layout((1, 0)) if transposed[0] else row_major(2))
    right = StoredTensor(dtypes[1], (k, n), Layout((1, 0)) if transposed[1] else row_major(2))
    is_wide = is_wide or dtypes[0] in (E4M3, E5M2)
    result_type = F32 if is_wide else dtypes[0] if dtypes[0].is_float else I32
    result = StoredTensor(result_type, (m, n), row_major(2))
    primitive = Contract((0, 2), (2, 1), (0, 1))
    constants = {"constant_right": weights, "has_wide_result": is_wide}
    return build_contract(build_contraction, primitive, left, right, result, None, target, **constants), result


def check_product(
    shape: tuple[int, int, int],
    target: ThreadTarget,
    dtype: DType,
    *,
    is_constant: bool = False,
    transposed: tuple[bool, bool] = (False, False),
    tolerance: float | None = None,
) -> Work:
    m, n, k = shape
    a, b = random_array(m, (m, k), dtype), random_array(n, (k, n), dtype)
    work, result = product(shape, target, (dtype, dtype), b if is_constant else None, transposed)
    layouts = [Layout((1, 0)) if own else row_major(2) for own in transposed]
    (actual,), _ = run_on_cpu(expanded(work), [*zip((a, b), layouts)], [result])
    assert_close(actual, a.astype(np.float64) @ b.astype(np.float64), dtype, tolerance)
    return work


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_halves(dtype: DType, transposed: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Aligned operands are moved, others are fetched; constants are always moved."""
    choosing(monkeypatch, small(16))
    for shape in ((40, 56, 72), (17, 35, 41), (1, 1, 1), (33, 26, 100)):
        for is_constant in (False, True):
            work = check_product(shape, target_with(), dtype, is_constant=is_constant, transposed=transposed)
            aligned = {"left": shape[0 if transposed[0] else 2], "right": shape[2 if transposed[1] else 1]}
            expected = {name for name, size in aligned.items() if size % 8 == 0}
            assert min(shape) == 1 or moved(work) == expected | ({"right"} if is_constant else set())


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_float32(
    way: Float32Products, transposed: tuple[bool, bool], parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing(monkeypatch, small(tile_bits(F32, way)), parts)
    target = target_with(way)
    for shape in ((40, 56, 72), (17, 35, 141)):
        for is_constant in (False, True):
            check_product(shape, target, F32, is_constant=is_constant, transposed=transposed, tolerance=TOLERANCES[way])


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("dtype", "way"), [(F16, Float32Products.EXACT), *((F32, way) for way in WAYS)])
def test_few_rows(dtype: DType, way: Float32Products, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles compute the transposed product."""
    bits = tile_bits(dtype, way)
    for tile in (
        TensorTile(8, 16, 256 // bits, 8, 2, swapped=True),
        TensorTile(8, 8, 256 // bits, 12, 2, swapped=True),
    ):
        choosing(monkeypatch, tile, parts)
        for shape in ((5, 40, 72), (9, 35, 41)):
            check_product(shape, target_with(way), dtype, is_constant=True, tolerance=TOLERANCES.get(way))


@pytest.mark.parametrize("way", WAYS)
def test_operands_are_converted_before(way: Float32Products, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operand_staging, "_MIN_ELEMENTS", 1)
    monkeypatch.setattr(operand_staging, "_MIN_READS", 0)
    choosing(monkeypatch, small(tile_bits(F32, way)))
    target = target_with(way)
    for shape in ((40, 56, 72), (17, 40, 41)):
        work = check_product(shape, target, F32, tolerance=TOLERANCES[way])
        assert len(work.launches) == (2 if way is Float32Products.TF32 and shape[2] % 4 == 0 else 3)
        assert moved(work) == {"left", "right"}
    work = check_product((40, 56, 72), target, F32, is_constant=True, tolerance=TOLERANCES[way])
    assert len(work.launches) == (1 if way is Float32Products.TF32 else 2)
    assert moved(work) == {"left", "right"}


def test_largest_and_smallest_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splitting numbers into parts keeps infinities and the largest and smallest numbers."""
    choosing(monkeypatch, small(16))
    largest = np.finfo(np.float32).max
    a = np.array([[np.inf, 1], [largest, 0], [-np.inf, 2], [np.nan, 1], [1e-38, 1e-20], [1 + 2**-23, 0]], np.float32)
    b = np.array([[0.5, 1 / 3, np.inf, 0], [1, -1, 1, 0]], np.float32)
    for is_constant in (False, True):
        for left, right in ((a, b), (b.T.copy(), a.T.copy())):
            shape = (left.shape[0], right.shape[1], 2)
            work, result = product(
                shape, target_with(Float32Products.PARTS), (F32, F32), right if is_constant else None
            )
            (actual,), _ = run_on_cpu(expanded(work), [(left, row_major(2)), (right, row_major(2))], [result])
            with np.errstate(invalid="ignore"):
                expected = left.astype(np.float64) @ right.astype(np.float64)
            np.testing.assert_allclose(actual, expected, 1e-6)


def test_numbers_beyond_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN is kept, and larger numbers become the largest float16."""
    choosing(monkeypatch, small(16))
    a, b = np.array([[np.nan], [1e6], [-np.inf]], np.float32), np.array([[1, 0.5]], np.float32)
    for left, right in ((a, b), (b.T.copy(), a.T.copy())):
        for weights in (None, right):
            shape = (len(left), right.shape[1], 1)
            work, result = product(shape, target_with(Float32Products.HALVES), (F32, F32), weights)
            (actual,), _ = run_on_cpu(expanded(work), [(left, row_major(2)), (right, row_major(2))], [result])
            np.testing.assert_array_equal(actual, np.clip(left, -65504, 65504) @ np.clip(right, -65504, 65504))


@pytest.mark.parametrize("dtypes", [(U8, I8), (I8, U8), (I8, I8)])
def test_bytes(dtypes: tuple[DType, DType], monkeypatch: pytest.MonkeyPatch) -> None:
    choosing(monkeypatch, small(8))
    random = np.random.default_rng(7)
    for m, n, k in ((33, 20, 70), (16, 40, 64)):
        a, b = (
            random.integers(int(dtype.limits[0]), int(dtype.limits[1]) + 1, shape).astype(dtype.numpy)
            for dtype, shape in zip(dtypes, ((m, k), (k, n)))
        )
        for weights in (None, b):
            work, result = product((m, n, k), target_with(), dtypes, weights)
            (actual,), _ = run_on_cpu(expanded(work), [(a, row_major(2)), (b, row_major(2))], [result])
            assert np.array_equal(actual, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2)])
def test_float8(dtypes: tuple[DType, DType], monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of 8-bit floats, which are exact, and sums in float32; aligned operands are moved."""
    target = target_with(Float32Products.HALVES)
    for tile in (small(8), TensorTile(8, 16, 32, 8, 2, swapped=True)):
        if tile.swapped and dtypes[0] is not dtypes[1]:
            continue
        choosing(monkeypatch, tile)
        for m, n, k in ((33, 20, 70), (16, 40, 64), (1, 5, 300)):
            a, b = random_array(m, (m, k), F32).astype(dtypes[0].numpy), random_array(n, (k, n), F32)
            b = b.astype(dtypes[1].numpy)
            for weights in (None, b):
                work, result = product((m, n, k), target, dtypes, weights)
                assert weights is None or moved(work) == ({"left", "right"} if k % 16 == 0 else {"right"})
                (actual,), _ = run_on_cpu(expanded(work), [(a, row_major(2)), (b, row_major(2))], [result])
                wide = a.astype(np.float64), b.astype(np.float64)
                error = np.abs(actual - wide[0] @ wide[1]) / (np.abs(wide[0]) @ np.abs(wide[1]))
                assert error.max() < 3e-7


def test_float8_in_few_rows() -> None:
    """Kernels without tiles read 8-bit floats too."""
    target = replace(target_with(Float32Products.HALVES), block_threads=16, most_block_threads=64)
    a, b = (random_array(1, shape, F32).astype(E4M3.numpy) for shape in ((2, 100), (100, 40)))
    work, result = product((2, 40, 100), target, (E4M3, E4M3), b)
    assert not any(is_on_tiles(launch.kernel) for launch in work.launches)
    (actual,), _ = run_on_cpu(expanded(work), [(a, row_major(2)), (b, row_major(2))], [result])
    assert_close(actual, a.astype(np.float64) @ b.astype(np.float64), F32)


def test_wide_results_are_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 results of float16 leave the tensor cores after every depth tile, where no precision may be lost."""
    choosing(monkeypatch, small(16))
    a, b = random_array(1, (17, 200), F16), random_array(2, (200, 24), F16)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for way, is_promoted in ((Float32Products.EXACT, True), *((way, way is WAYS[0]) for way in WAYS)):
        work, result = product((17, 24, 200), target_with(way), (F16, F16), b, is_wide=True)
        adds = [s for launch in work.launches for s in statements(launch.kernel) if isinstance(s, AddSums)]
        assert bool(adds) == is_promoted
        (actual,), _ = run_on_cpu(expanded(work), [(a, row_major(2)), (b, row_major(2))], [result])
        assert_close(actual, expected, F32)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("symbolic", [False, True])
def test_random_labels(way: Float32Products, symbolic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any labels, layouts, grids and epilogues."""
    target = target_with(way)
    count = 0
    for seed in range(500 + 1000 * symbolic, 560 + 1000 * symbolic):
        case = Case(seed, symbolic)
        if case.dtype not in (F32, F16, BF16) or (case.dtype is not F32 and way is not Float32Products.PARTS):
            continue
        if np.prod([float(case.sizes[x]) for x in {*case.primitive.left, *case.primitive.right}]) > 3e5:
            continue
        count += 1
        print(f"seed {seed}: {case.primitive} of {case.dtype} {[a.shape for a in case.arrays]}")
        choosing(monkeypatch, small(tile_bits(case.dtype, way)), 1 + seed % 2)
        stored_operands = zip(case.arrays, case.layouts, (case.primitive.left, case.primitive.right))
        tensors = [tensor_of(array, layout, case.shape(labels)) for array, layout, labels in stored_operands]
        left, right = (array if constant else None for array, constant in zip(case.arrays, case.constant))
        ends = (case.result, case.ending.epilogue, target)
        work = build_contract(
            build_contraction, case.primitive, *tensors, *ends, constant_left=left, constant_right=right
        )
        operands = [*zip(case.arrays, case.layouts), *case.ending.arrays]
        (actual,), _ = run_on_cpu(expanded(work), operands, [case.result], case.bound)
        assert_close(actual, case.expected(), case.dtype, TOLERANCES[way] if case.dtype is F32 else None)
        if count == 5:
            break
    assert count == 5


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("symbolic", [False, True])
def test_random_convolutions(way: Float32Products, symbolic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_with(way)
    for seed in range(200 + 1000 * symbolic, 206 + 1000 * symbolic):
        case = ConvolveCase(seed, symbolic)
        if case.dtype not in (F32, F16, BF16):
            continue
        print(f"seed {seed}: {case.primitive} of {case.dtype} {case.x.shape} with {case.w.shape}")
        choosing(monkeypatch, small(tile_bits(case.dtype, way)), 1 + seed % 2)
        ends = (case.result, case.ending.epilogue, target)
        constant = case.w if case.constant else None
        work = build_convolve(
            build_convolution, case.primitive, case.x_tensor, tensor_of(case.w), *ends, constant_w=constant
        )
        operands = [(case.x, case.layout), (case.w, row_major(case.w.ndim)), *case.ending.arrays]
        (actual,), _ = run_on_cpu(expanded(work), operands, [case.result], case.bound)
        assert_close(actual, case.expected(), case.dtype, TOLERANCES[way] if case.dtype is F32 else None)


def test_few_channels_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs and weights whose channels do not fill a chunk are padded first."""
    monkeypatch.setattr(convolve, "_LARGE_IMAGE", 1)
    count = 0
    for seed in range(3000, 3400):
        case = ConvolveCase(seed, symbolic=seed % 2 == 1)
        channels = case.x.shape[1]
        if case.transposed or case.groups != 1 or not case.constant or not 2 <= channels < 8 or case.dtype is not F32:
            continue
        for way in (Float32Products.PARTS, Float32Products.HALVES):
            print(f"seed {seed}: {case.primitive} of {case.dtype} {case.x.shape} with {case.w.shape}, {way}")
            choosing(monkeypatch, small(tile_bits(case.dtype, way)))
            ends = (case.result, case.ending.epilogue, target_with(way))
            weights = tensor_of(case.w)
            work = build_convolve(build_convolution, case.primitive, case.x_tensor, weights, *ends, constant_w=case.w)
            assert work.workspaces
            operands = [(case.x, case.layout), (case.w, row_major(case.w.ndim)), *case.ending.arrays]
            (actual,), _ = run_on_cpu(expanded(work), operands, [case.result], case.bound)
            assert_close(actual, case.expected(), case.dtype, TOLERANCES[way])
        count += 1
        if count == 4:
            return
    raise AssertionError("too few such cases")


def test_empty_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    choosing(monkeypatch, small(16))
    check_product((20, 30, 0), target_with(), F16)
    work, result = product((20, 30, dims.symbol("k", 0)), target_with(), (F16, F16))
    a, b = np.zeros((20, 0), np.float16), np.zeros((0, 30), np.float16)
    (actual,), _ = run_on_cpu(expanded(work), [(a, row_major(2)), (b, row_major(2))], [result], {"k": 0})
    assert not actual.any()


def is_on_tiles(kernel: Kernel) -> bool:
    return any(isinstance(s, TilePipeline) for s in statements(kernel))


def test_choice() -> None:
    """Large products are computed on tiles, few rows and exact products are not."""
    for way, dtype in ((Float32Products.EXACT, F16), *((way, F32) for way in WAYS)):
        target = target_with(way)
        for shape in ((1024, 1024, 1024), (4096, 4096, 4096), (512, 4096, 4096)):
            work, _ = product(shape, target, (dtype, dtype))
            assert any(is_on_tiles(launch.kernel) for launch in work.launches), (way, shape)
        work, _ = product((1, 4096, 4096), target, (dtype, dtype))
        assert not any(is_on_tiles(launch.kernel) for launch in work.launches)
    work, _ = product((4096, 4096, 4096), target_with(), (F32, F32))
    assert not any(is_on_tiles(launch.kernel) for launch in work.launches)


def test_dynamic_sizes() -> None:
    """One of few variants is active for any size, each with its own packing of constants."""
    m = dims.symbol("m")
    weights = random_array(1, (1024, 768), F32)
    for way in WAYS:
        work, _ = product((m, 768, 1024), target_with(way), (F32, F32), weights)
        assert len(work.launches) <= 14
        assert len(work.constants) == 1  # others read the weights where they are, or just these
        for size in (1, 2, 8, 9, 64, 100, 1000, 5000):
            writers = [
                launch
                for launch in work.launches
                if any(reference.kind == "result" for reference in launch.references)
                and dims.evaluate(launch.blocks, {"m": size})
            ]
            assert len(writers) == 1


def test_weights_in_halves_with_few_rows() -> None:
    """Weights are stored in float16 for all kernels, other operands are unchanged."""
    target = replace(target_with(Float32Products.HALVES), block_threads=16, most_block_threads=64)
    for shape in ((1, 40, 100), (3, 37, 65)):
        work = check_product(shape, target, F32, is_constant=True, tolerance=2e-3)
        assert not any(is_on_tiles(launch.kernel) for launch in work.launches)
        assert [constant.dtype for constant in work.constants] == [np.dtype(np.float16)]


def test_tiles_fit() -> None:
    for rows, lanes in ((64, 128), (16, 32)):
        for way, dtype in ((Float32Products.EXACT, F16), *((way, F32) for way in WAYS)):
            target = target_with(way, rows, lanes)
            scheme = find_product_scheme(dtype, dtype, target)
            assert scheme is not None
            tiles = list_tensor_tiles(scheme, target)
            assert len(tiles) > 3
            for tile, _ in tiles:
                assert tile.bytes(scheme) <= target.shared_bytes
                assert tile.stages >= 2


PTXAS = find_ptxas()
REAL = [
    (F16, Float32Products.EXACT, False),
    (F16, Float32Products.EXACT, True),
    *((F32, way, False) for way in WAYS),
    (U8, Float32Products.EXACT, False),
    (I8, Float32Products.EXACT, False),
    (E4M3, Float32Products.HALVES, True),
]


@pytest.mark.skipif(PTXAS is None, reason="no ptxas")
@pytest.mark.parametrize("way", ["mma.sync", "wgmma"])
@pytest.mark.parametrize(("dtype", "float32", "is_wide"), REAL)
def test_kernels_assemble(dtype: DType, float32: Float32Products, is_wide: bool, way: str) -> None:
    """All tiles for moved operands, and the chosen ones for fetched operands; no register is spilled."""
    assert PTXAS is not None
    target = target_with(float32, *((64, 128) if way == "wgmma" else (16, 32)))
    pair = (U8, I8) if dtype is U8 else (dtype, dtype)
    scheme = find_product_scheme(*pair, target, has_wide_result=is_wide)
    assert scheme is not None
    shapes = (301, 515, 710), (3000, 3000, 3001)
    works = [product(shape, target, pair, is_wide=is_wide)[0] for shape in shapes]
    kernels = [launch.kernel for work in works for launch in work.launches]
    with pytest.MonkeyPatch.context() as patched:
        for tile, _ in list_tensor_tiles(scheme, target):
            choosing(patched, tile)
            work, _ = product((4096, 4096, 4096), target, pair, is_wide=is_wide)
            kernels += [launch.kernel for launch in work.launches]
    module = assembly.Module("weft")
    for number, kernel in enumerate(kernels):
        emit(replace(insert_barriers(kernel), name=f"kernel{number}"), module, ThreadLanes(tile_products=way))
    processor = "sm_89" if dtype is E4M3 and way == "mma.sync" else WAYS_OF_TILES[way]
    messages = assemble(PTXAS, assembly_text(str(module), NvidiaProcessor(processor, FEATURES[processor])), processor)
    assert messages.count(" 0 bytes spill stores") == len(kernels), messages
    assert "wgmma" not in messages, messages


@pytest.mark.parametrize("way", ["mma.sync", "wgmma"])
def test_instructions_of_tiles(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the PTX instructions of tile products in an emulator."""
    tile = TensorTile(64, 16, 64, 128, 2) if way == "wgmma" else TensorTile(16, 16, 64, 32, 2)
    few = replace(tile, height=8, width=tile.height, swapped=True)
    for own, dtype, float32 in (
        (tile, F16, Float32Products.EXACT),
        (tile, F32, Float32Products.PARTS),
        (few, F16, Float32Products.EXACT),
    ):
        choosing(monkeypatch, own)
        a, b = random_array(1, (19, 70), dtype), random_array(2, (70, 21), dtype)
        work, _ = product((19, 21, 70), target_with(float32), (dtype, dtype), b)
        (launch,) = work.launches
        arrays = {"operand": [a, b], "constant": [load_constant(c) for c in work.constants]}
        arguments = [arrays[r.kind][r.number] if r.kind != "result" else np.zeros((19, 21), dtype.numpy)
                 for r in launch.references]  # fmt: skip
        numbers = {name: dims.evaluate(value, {}) for name, value in launch.parameters}
        lanes = ThreadLanes(tile_products=way)
        actual = run_kernel(launch.kernel, arguments, dims.evaluate(launch.blocks, {}), numbers, lanes)[-1]
        assert_close(actual, a.astype(np.float64) @ b.astype(np.float64), dtype)


def test_whole_tiles_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more runs than lanes, and with fewer."""
    for lanes in (4, 16):
        choosing(monkeypatch, TensorTile(16, 8, 32, lanes, 3))
        work = check_product((35, 19, 65), target_with(), F16)
        assert any(isinstance(s, PutTile) for launch in work.launches for s in statements(launch.kernel))
