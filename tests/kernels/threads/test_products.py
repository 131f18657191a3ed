"""Contractions with threads as lanes: random labels, layouts, types and epilogues, against numpy in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernels.epilogues import assert_close, random_array
from kernels.products import build_contract
from kernels.threads.works import Array, run_on_cpu, run_work, targets
from kernels.vector.test_contract import Case
from kernels.vector.works import tensor_of

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Barrier, Kernel, Repeat, Statement
from weft.ir.layout import row_major
from weft.ir.program import Contract
from weft.ir.target import ThreadTarget
from weft.kernels.lower.barriers import insert_barriers
from weft.kernels.lower.tensors import Reference, StoredTensor, Work
from weft.kernels.threads import product_choice as choose
from weft.kernels.threads import size_ranges as ranges
from weft.kernels.threads.contract import build_contraction
from weft.kernels.threads.tile import Tile
from weft.kernels.threads.tile_speeds import RATED_TILES

F32 = DType.float32
TILES = [rated.tile for rated in RATED_TILES]
LARGE = replace(targets()["sharing"], block_threads=256, shared_bytes=32768)


def work_of(case: Case, target: ThreadTarget) -> Work:
    operands = zip(case.arrays, case.layouts, (case.primitive.left, case.primitive.right))
    tensors = [tensor_of(array, layout, case.shape(labels)) for array, layout, labels in operands]
    left, right = (array if constant else None for array, constant in zip(case.arrays, case.constant))
    ends = (case.result, case.ending.epilogue, target)
    return build_contract(build_contraction, case.primitive, *tensors, *ends, constant_left=left, constant_right=right)


def check(case: Case, names: tuple[str, ...]) -> None:
    print(f"seed {case.seed}: {case.primitive} of {case.dtype} {[a.shape for a in case.arrays]}")
    operands = [*zip(case.arrays, case.layouts), *case.ending.arrays]
    for name in names:
        run = run_on_cpu if name == "vectors" else run_work
        (actual,), _ = run(work_of(case, targets()[name]), operands, [case.result], case.bound)
        assert_close(actual, case.expected(), case.dtype)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("group", range(2))
def test_random_labels(group: int, symbolic: bool) -> None:
    for seed in range(1000 * symbolic + group * 4, 1000 * symbolic + group * 4 + 4):
        names = ("software", "vectors") if seed % 2 else ("sharing",)
        check(Case(seed, symbolic), names)


def product(
    m: Dim, n: Dim, k: Dim, target: ThreadTarget, weights: Array | None = None, dtypes: tuple[DType, DType] = (F32, F32)
) -> Work:
    left, right = StoredTensor(dtypes[0], (m, k), row_major(2)), StoredTensor(dtypes[1], (k, n), row_major(2))
    result = StoredTensor(dtypes[0] if dtypes[0] is dtypes[1] else DType.int32, (m, n), row_major(2))
    return build_contract(
        build_contraction, Contract((0, 2), (2, 1), (0, 1)), left, right, result, None, target, constant_right=weights
    )


def check_product(m: int, n: int, k: int, work: Work, bound: dict[str, int] | None = None) -> None:
    a, b = random_array(m, (m, k), F32), random_array(n, (k, n), F32)
    operands = [(a, row_major(2)), (b, row_major(2))]
    (actual,), _ = run_work(work, operands, [StoredTensor(F32, (m, n), row_major(2))], bound)
    assert_close(actual, a.astype(np.float64) @ b.astype(np.float64), F32)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("tile", TILES, ids=[f"{tile.height}x{tile.width}s{tile.slices}" for tile in TILES])
def test_tiles(tile: Tile, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile, with and without edges, and uneven split-K."""
    monkeypatch.setattr(choose, "choose", lambda *_: (choose.Variant(tile, parts),))
    m, n, k = dims.symbol("m"), 4 * dims.symbol("n"), 4 * dims.symbol("k")
    work = product(m, n, k, LARGE)
    for sizes in ((3, 4, 4), (130, 132, 200), (128, 256, 64)):
        check_product(*sizes, work, {"m": sizes[0], "n": sizes[1] // 4, "k": sizes[2] // 4})


@pytest.mark.parametrize("m", [1, 3, 8])
def test_few_rows(m: int) -> None:
    """Lanes share the sums for any number of columns; with few columns, several blocks do."""
    for n, k in ((1, 300), (37, 1000), (600, 64), (8, 9000)):
        check_product(m, n, k, product(m, n, k, LARGE))
        check_product(n, m, k, product(n, m, k, LARGE))
    assert len(product(m, 8, 9000, LARGE).launches) == 2


def writers(work: Work, sizes: dict[str, int]) -> list[int]:
    """Return the launches that write the result for given sizes."""
    return [
        number
        for number, launch in enumerate(work.launches)
        if any(reference.kind == "result" for reference in launch.references) and dims.evaluate(launch.blocks, sizes)
    ]


def first_sizes(work: Work, name: str, most: int = 3000) -> list[int]:
    """Return the first size, and every size whose result is written by other launches than that of the size before."""
    active = [tuple(writers(work, {name: size})) for size in range(most + 1)]
    return [size for size in range(1, most + 1) if size == 1 or active[size] != active[size - 1]]


def test_static_sizes_need_one_variant() -> None:
    for sizes in ((1, 1000, 2048), (49, 512, 4608), (64, 768, 768), (4096, 4096, 4096)):
        for target in (LARGE, targets()["software"]):
            work = product(*sizes, target)
            assert len(work.launches) == 1 + len(work.workspaces)
            assert all(isinstance(launch.blocks, int) for launch in work.launches)


@pytest.mark.parametrize("name", ["large", "software"])
def test_one_variant_is_active(name: str) -> None:
    """For any size, one variant has blocks, and only its partial sums need memory."""
    target = LARGE if name == "large" else targets()[name]
    m = dims.symbol("m")
    shapes: list[tuple[Dim, Dim, Dim]] = [(m, 768, 768), (m, 1000, 2048), (49 * m, 512, 4608), (512, m, 600)]
    shapes += [(64, 64, m), (m, m, 64), (m, 4 * m, m), (3, m, 2048), (m + 20, 10, 16), (dims.floordiv(m, 7), 64, 64)]
    for shape in shapes:
        work = product(*shape, target)
        assert len(work.launches) <= (8 if name == "large" else 2)
        for size in range(1, 3000):
            sizes = {"m": size}
            blocks = [dims.evaluate(launch.blocks, sizes) for launch in work.launches]
            assert min(blocks) >= 0
            assert len(writers(work, sizes)) == (0 not in (dims.evaluate(extent, sizes) for extent in shape))
            for number, space in enumerate(work.workspaces):
                launch = next(
                    n for n, one in enumerate(work.launches) if Reference("workspace", number) in one.references
                )
                assert (dims.evaluate(space.size, sizes) > 0) == (blocks[launch] > 0) == (blocks[launch + 1] > 0)


def test_random_ranges() -> None:
    """For any sizes exactly one range is active, whatever the times are."""
    for seed in range(40):
        random = np.random.default_rng(seed)
        b, s = dims.symbol("b"), dims.symbol("s", 2, 300)
        extents: list[Dim] = [[b, 7, s, 5], [1, b * s, 9, 64], [1, 3, 3, s], [2, dims.floordiv(b + 1, 2), 8, b]][
            seed % 4
        ]
        samples = ranges.sample_extents(extents)
        times = random.uniform(1, 100, (len(samples), 12)) ** random.uniform(0.1, 2)
        chosen = ranges.choose_ranges(extents, samples, times, 4)
        print(f"seed {seed}: {len(samples)} samples, {chosen}")
        assert 1 <= len(chosen) <= 4
        for _ in range(300):
            sizes = {"b": int(2 ** random.uniform(0, 14)), "s": int(random.integers(2, 301))}
            active = [dims.evaluate(one.active, sizes) for one in chosen]
            assert sorted(active) == [*[0] * (len(chosen) - 1), 1]


@pytest.mark.parametrize("each", [1, 3, 5, 20])
def test_sizes_with_large_products(each: int) -> None:
    """Products of sampled sizes may exceed 64 bits, and what any run computes."""
    names = [[f"{kind}{number}" for number in range(each)] for kind in "mnk"]
    extents = [dims.product(map(dims.symbol, own)) for own in names]
    extents[0] = extents[0] * 2 + dims.product(extents[1:])  # a sum, as places of a convolution are
    for target in (LARGE, targets()["software"]):
        work = product(*extents, target)
        for size in (1, 2, 3):
            bound = {name: 1 for own in names for name in own} | {own[0]: size for own in names}
            m, n, k = (dims.evaluate(extent, bound) for extent in extents)
            check_product(m, n, k, work, bound)


def test_samples_too_large_to_run() -> None:
    a, b = dims.symbol("a", 2**40, None), dims.symbol("b", 2**40, None)
    assert ranges.sample_extents([1, a, b, 64]) == []
    work = product(a, b * b, 2**40, LARGE)
    assert sum(dims.evaluate(launch.blocks, {"a": 2**40, "b": 2**40}) > 0 for launch in work.launches) >= 1


@pytest.mark.parametrize(("n", "k"), [(256, 1040), (96, 64), (1000, 300)])
def test_sizes_around_the_boundaries_of_ranges(n: int, k: int) -> None:
    """One work for all sizes: few rows, and both sides of each boundary between variants."""
    work = product(dims.symbol("m"), n, k, LARGE)
    starts = first_sizes(work, "m")
    assert starts[1] <= 12
    assert len(starts) > 2
    for first in starts:
        for m in {max(first - 1, 1), first}:
            check_product(m, n, k, work, {"m": m})


def test_few_rows_are_a_variant_on_software_adapters() -> None:
    """With vectors as lanes, too."""
    for name in ("software", "vectors"):
        work = product(dims.symbol("m"), 80, 40, targets()[name])
        (_, first) = first_sizes(work, "m")
        for m in (1, first - 1, first, 70):
            a, b = random_array(m, (m, 40), F32), random_array(m + 1, (40, 80), F32)
            run = run_on_cpu if name == "vectors" else run_work
            operands = [(a, row_major(2)), (b, row_major(2))]
            (actual,), _ = run(work, operands, [StoredTensor(F32, (m, 80), row_major(2))], {"m": m})
            assert_close(actual, a.astype(np.float64) @ b.astype(np.float64), F32)


def test_dynamic_grids_rows_and_columns() -> None:
    """Products as in attention: grid, rows and columns are dynamic, and there may be one row."""
    b, s = dims.symbol("b"), dims.symbol("s")
    shapes: list[tuple[Dim, ...]] = [(b, s, 32), (b, 3 * s, 32), (b, s, 3 * s)]
    left, right, result = (StoredTensor(F32, shape, row_major(3)) for shape in shapes)
    work = build_contract(
        build_contraction, Contract((0, 1, 3), (0, 2, 3), (0, 1, 2)), left, right, result, None, LARGE
    )
    chosen = set()
    for sizes in ({"b": 1, "s": 1}, {"b": 70, "s": 1}, {"b": 2, "s": 9}, {"b": 3, "s": 65}, {"b": 1, "s": 300}):
        shape = (sizes["b"], sizes["s"], 32)
        x, y = random_array(1, shape, F32), random_array(2, (shape[0], 3 * shape[1], 32), F32)
        chosen |= {*writers(work, sizes)}
        (actual,), _ = run_work(work, [(x, row_major(3)), (y, row_major(3))], [result], sizes)
        assert_close(actual, np.einsum("bmk,bnk->bmn", x.astype(np.float64), y.astype(np.float64)), F32)
    assert len(chosen) > 1


def test_empty_sums() -> None:
    """Empty sums are 0, with static and dynamic sizes."""
    k = dims.symbol("k", 0)
    for target in (targets()["software"], LARGE):
        check_product(20, 30, 0, product(20, 30, 0, target))
        check_product(20, 30, 0, product(20, 30, k, target), {"k": 0})


@pytest.mark.parametrize("dtypes", [(DType.uint8, DType.int8), (DType.int8, DType.uint8)])
def test_bytes(dtypes: tuple[DType, DType]) -> None:
    random = np.random.default_rng(7)
    a, b = (
        random.integers(int(dtype.limits[0]), int(dtype.limits[1]) + 1, shape).astype(dtype.numpy)
        for dtype, shape in zip(dtypes, ((33, 70), (70, 20)))
    )
    for target in (targets()["software"], LARGE):
        for weights in (None, b):
            work = product(33, 20, 70, target, weights, dtypes)
            result = StoredTensor(DType.int32, (33, 20), row_major(2))
            (actual,), _ = run_work(work, [(a, row_major(2)), (b, row_major(2))], [result])
            assert np.array_equal(actual, a.astype(np.int32) @ b.astype(np.int32))


def test_kernels_have_exactly_the_needed_barriers() -> None:

    def count(body: tuple[Statement, ...]) -> int:
        return sum(isinstance(s, Barrier) + (count(s.body) if isinstance(s, Repeat) else 0) for s in body)

    def kernel(m: int, target: ThreadTarget) -> Kernel:
        return product(m, 512, 512, target).launches[0].kernel

    for m, expected in ((4, 5), (100, 5), (512, 4), (8192, 3)):
        built = kernel(m, LARGE)
        assert count(built.body) == count(insert_barriers(built).body) == expected
    assert count(kernel(512, targets()["software"]).body) == 0
