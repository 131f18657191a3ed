"""Contractions at odd sizes, with random labels, layouts, types and epilogues, against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.epilogues import KINDS, EpilogueCase, assert_close, random_array
from kernels.products import build_contract
from kernels.vector.works import TARGET, Array, run_work, tensor_of

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, row_major
from weft.ir.program import Contract
from weft.ir.types import Shape
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.vector.contract import build_contraction

F32 = DType.float32
DTYPES = (F32, F32, F32, DType.float64, DType.float16, DType.bfloat16, DType.int32, DType.int64, DType.uint8)
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 31, 32, 33, 45, 64, 70)


class Case:
    """A random contraction with its operands; with `symbolic`, some sizes are symbols."""

    def __init__(self, seed: int, symbolic: bool = False) -> None:
        random = np.random.default_rng(seed)
        self.seed = seed
        self.dtype = DTYPES[random.integers(len(DTYPES))]
        counts = random.choice([0, 1, 1, 1, 2], 4)
        labels = iter(range(100))
        batch, rows, columns, sums = ([next(labels) for _ in range(count)] for count in counts)
        private = [next(labels)] if random.random() < 0.15 else []
        self.sizes = {label: int(random.choice(SIZES)) for label in range(10)}
        while np.prod([float(self.sizes[x]) for x in (*batch, *rows, *columns, *sums, *private)]) > 3e6:
            largest = max(self.sizes, key=lambda label: self.sizes[label])
            self.sizes[largest] //= 2
        left, right = [*batch, *rows, *sums, *private], [*batch, *columns, *sums]
        if rows and random.random() < 0.1:
            left.append(rows[0])  # a diagonal
        output = [*batch, *rows, *columns]
        for part in (left, right, output):
            random.shuffle(part)
        self.primitive = Contract(tuple(left), tuple(right), tuple(output))
        self.names: dict[int, Dim] = dict(self.sizes)
        self.bound: dict[str, int] = {}
        if symbolic:
            for label in random.choice(10, 5, replace=False):
                self.names[int(label)] = dims.symbol(f"n{label}")
                self.bound[f"n{label}"] = self.sizes[int(label)]
        self.layouts = [Layout(tuple(int(x) for x in random.permutation(len(part)))) for part in (left, right, output)]
        self.constant = [bool(random.random() < 0.4) and not symbolic for _ in range(2)]
        self.arrays = [
            random_array(seed + n, [self.sizes[x] for x in part], self.dtype) for n, part in enumerate((left, right))
        ]
        kind = str(random.choice(KINDS if self.dtype.is_float else KINDS[:4]))
        axis = int(random.integers(max(len(output), 1)))
        sizes = [self.sizes[x] for x in output]
        self.ending = EpilogueCase(kind, self.dtype, self.shape(output), sizes, axis, self.layouts[2], seed)
        self.result = StoredTensor(self.dtype, self.shape(output), self.layouts[2])

    def shape(self, labels: Any) -> Shape:
        return tuple(self.names[label] for label in labels)

    def work(self) -> Work:
        parts = (self.primitive.left, self.primitive.right)
        operands = zip(self.arrays, self.layouts, parts)
        tensors = [tensor_of(array, layout, self.shape(labels)) for array, layout, labels in operands]
        constants = [array if constant else None for array, constant in zip(self.arrays, self.constant)]
        return build_contract(build_contraction,
            self.primitive, *tensors, self.result, self.ending.epilogue, TARGET,
            constant_left=constants[0], constant_right=constants[1],
        )  # fmt: skip

    def expected(self) -> Array:
        wide = [a.astype(np.float64) if self.dtype.is_float else a for a in self.arrays]
        product = np.einsum(
            wide[0], list(self.primitive.left), wide[1], list(self.primitive.right), list(self.primitive.output)
        )
        return self.ending.apply(product)

    def check(self, work: Work, threads: int = 1, at_start: bool = False) -> None:
        operands = [*zip(self.arrays, self.layouts), *self.ending.arrays]
        (actual,), _ = run_work(work, operands, [self.result], self.bound, threads=threads, at_start=at_start)
        assert_close(actual, self.expected(), self.dtype)


@pytest.mark.parametrize("seed", range(40))
def test_random_labels(seed: int) -> None:
    case = Case(seed)
    case.check(case.work(), threads=1 + seed % 2, at_start=seed % 3 == 0)


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_symbolic_sizes(seed: int) -> None:
    case = Case(seed, symbolic=True)
    case.check(case.work(), at_start=seed % 3 == 0)


def matrix_product(m: Dim, n: Dim, k: Dim, weights: Array | None, dtype: DType = F32, transposed: bool = False) -> Work:
    left, result = (StoredTensor(dtype, shape, row_major(2)) for shape in ((m, k), (m, n)))
    right = StoredTensor(dtype, (n, k) if transposed else (k, n), row_major(2))
    primitive = Contract((0, 2), (1, 2) if transposed else (2, 1), (0, 1))
    return build_contract(build_contraction, primitive, left, right, result, None, TARGET, constant_right=weights)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 12, 13, 25, 70])
def test_matrix_products(m: int, transposed: bool, constant: bool) -> None:
    """Few and many rows, columns and sums."""
    for n, k in ((1, 1), (1, 300), (3, 65), (31, 7), (33, 1024), (100, 20), (300, 3)):
        a, b = random_array(m, (m, k), F32), random_array(n, (n, k) if transposed else (k, n), F32)
        work = matrix_product(m, n, k, b if constant else None, transposed=transposed)
        (actual,), _ = run_work(work, [(a, row_major(2)), (b, row_major(2))], [StoredTensor(F32, (m, n), row_major(2))])
        assert_close(actual, a.astype(np.float64) @ (b.T if transposed else b).astype(np.float64), F32)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("dtype", [F32, DType.float64])
def test_edges_of_columns(dtype: DType, constant: bool) -> None:
    """Whole panels, single vectors and a last one with idle lanes, for few rows and many."""
    for m, n in ((3, 40), (13, 17), (13, 24), (25, 33), (25, 48), (25, 49), (30, 80), (150, 100)):
        a, b = random_array(m, (m, 19), dtype), random_array(n, (19, n), dtype)
        work = matrix_product(m, n, 19, b if constant else None, dtype)
        (actual,), _ = run_work(
            work, [(a, row_major(2)), (b, row_major(2))], [StoredTensor(dtype, (m, n), row_major(2))]
        )
        assert_close(actual, a.astype(np.float64) @ b.astype(np.float64), dtype)


@pytest.mark.parametrize("transposed", [True, False])
def test_one_kernel_for_many_sizes(transposed: bool) -> None:
    m, n, k = (dims.symbol(name) for name in "mnk")
    work = matrix_product(m, n, k, None, transposed=transposed)
    for sizes in ((1, 1, 1), (70, 70, 70), (13, 33, 5), (64, 3, 100), (2, 500, 40)):
        a = random_array(1, (sizes[0], sizes[2]), F32)
        b = random_array(2, (sizes[1], sizes[2]) if transposed else (sizes[2], sizes[1]), F32)
        bound = dict(zip("mnk", sizes))
        (actual,), _ = run_work(
            work, [(a, row_major(2)), (b, row_major(2))], [StoredTensor(F32, (m, n), row_major(2))], bound
        )
        assert_close(actual, a.astype(np.float64) @ (b.T if transposed else b).astype(np.float64), F32)


def test_few_kernels_for_many_shapes() -> None:
    shapes = [(m, n, k) for m in (200, 500, 784, 1000) for n in (32, 64, 96) for k in (27, 64, 100)]
    works = [matrix_product(m, n, k, np.zeros((k, n), np.float32)) for m, n, k in shapes]
    assert len({launch.kernel for work in works for launch in work.launches}) == 1


@pytest.mark.parametrize("static", [True, False])
def test_weights_beyond_the_cache_are_prefetched(static: bool) -> None:
    """Tiles prefetch the next panel; a single tile and weights that fit the cache need no prefetch."""
    k, n = 256, TARGET.cache_bytes // 2 // 4 // 256 + 40
    weights = random_array(2, (k, n), F32)
    for m in (5, 30, 100):
        rows: Dim = m if static else dims.symbol("m")
        work = matrix_product(rows, n, k, weights)
        text = str(work.launches[0].kernel)
        assert ("to L2" in text) is (m > 8 or not static)
        assert "to L2" not in str(matrix_product(rows, 64, k, weights[:, :64]).launches[0].kernel)
        a = random_array(m, (m, k), F32)
        operands, results = [(a, row_major(2)), (weights, row_major(2))], [StoredTensor(F32, (rows, n), row_major(2))]
        (actual,), _ = run_work(work, operands, results, {"m": m})
        assert_close(actual, a.astype(np.float64) @ weights.astype(np.float64), F32)


@pytest.mark.parametrize("sizes", [(0, 5, 3), (5, 0, 3), (5, 3, 0)])
def test_empty_products(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    for names in (sizes, tuple(dims.symbol(name, 0) for name in "mnk")):
        work = matrix_product(*names, None)
        a, b = np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)
        result = StoredTensor(F32, names[:2], row_major(2))
        (actual,), _ = run_work(work, [(a, row_major(2)), (b, row_major(2))], [result], dict(zip("mnk", sizes)))
        np.testing.assert_array_equal(actual, np.zeros((m, n), np.float32))


def test_same_bits_for_any_number_of_threads() -> None:
    a, b = random_array(1, (300, 200), F32), random_array(2, (200, 170), F32)
    work = matrix_product(300, 170, 200, b)
    operands, results = [(a, row_major(2)), (b, row_major(2))], [StoredTensor(F32, (300, 170), row_major(2))]
    runs = [run_work(work, operands, results, threads=threads)[0][0] for threads in (1, 2, 4)]
    assert runs[0].tobytes() == runs[1].tobytes() == runs[2].tobytes()
