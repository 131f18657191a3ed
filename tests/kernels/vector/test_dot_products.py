"""Contractions of uint8 with int8 at odd sizes, with random labels and layouts, against exact integers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernels.products import build_contract
from kernels.vector.works import TARGET, Array, run_work, tensor_of

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, row_major
from weft.ir.program import Contract
from weft.ir.scalar import ELEMENT, Apply, Placeholder
from weft.ir.target import VectorTarget
from weft.kernels.lower.tensors import Epilogue, StoredTensor
from weft.kernels.vector.byte_products import build_byte_contraction

SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 31, 32, 33, 64, 70, 130)
BYTEWISE = replace(TARGET, dot_product_8=False)


def random_bytes(random: np.random.Generator, shape: Any, signed: bool) -> Array:
    """Draw from the whole range, which shows any saturation."""
    kind = np.int8 if signed else np.uint8
    extremes = np.iinfo(kind)
    if random.random() < 0.2:
        return random.choice([extremes.min, extremes.max], shape).astype(kind)
    return random.integers(extremes.min, extremes.max + 1, shape).astype(kind)


def check(seed: int, symbolic: bool, target: VectorTarget = TARGET) -> None:
    random = np.random.default_rng(seed)
    counts = random.choice([0, 1, 1, 1, 2], 4)
    labels = iter(range(100))
    batch, rows, columns, sums = ([next(labels) for _ in range(count)] for count in counts)
    private = [next(labels)] if random.random() < 0.15 else []
    sizes = {label: int(random.choice(SIZES)) for label in range(10)}
    while np.prod([float(sizes[x]) for x in (*batch, *rows, *columns, *sums, *private)]) > 3e6:
        sizes[max(sizes, key=lambda label: sizes[label])] //= 2
    names: dict[int, Dim] = dict(sizes)
    bound: dict[str, int] = {}
    for label in random.choice(10, 5, replace=False) if symbolic else ():
        names[int(label)] = dims.symbol(f"n{label}")
        bound[f"n{label}"] = sizes[int(label)]
    parts = [[*batch, *rows, *sums, *private], [*batch, *columns, *sums], [*batch, *rows, *columns]]
    for part in parts:
        random.shuffle(part)
    layouts = [Layout(tuple(int(x) for x in random.permutation(len(part)))) for part in parts]
    signed = bool(random.random() < 0.5)
    arrays = [random_bytes(random, [sizes[x] for x in part], signed is bool(n)) for n, part in enumerate(parts[:2])]
    shapes = [tuple(names[label] for label in part) for part in parts]
    tensors = [tensor_of(array, layout, shape) for array, layout, shape in zip(arrays, layouts, shapes)]
    constants = [array if random.random() < 0.4 and not symbolic else None for array in arrays]
    primitive = Contract(*map(tuple, parts))
    expected = np.einsum(arrays[0].astype(np.int64), parts[0], arrays[1].astype(np.int64), parts[1], parts[2])
    epilogue, dtype = None, DType.int32
    if random.random() < 0.5:
        element = Placeholder(ELEMENT, DType.int32)
        epilogue, dtype = Epilogue(Apply("cast", (element,), DType.float32), ()), DType.float32
        expected = expected.astype(np.float32)
    result = StoredTensor(dtype, shapes[2], layouts[2])
    work = build_contract(
        build_byte_contraction,
        primitive,
        *tensors,
        result,
        epilogue,
        target,
        constant_left=constants[0],
        constant_right=constants[1],
    )
    operands = list(zip(arrays, layouts))
    (actual,), _ = run_work(work, operands, [result], bound, threads=1 + seed % 2, at_start=seed % 3 == 0)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("seed", range(60))
def test_random_labels(seed: int) -> None:
    check(seed, symbolic=False)


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_symbolic_sizes(seed: int) -> None:
    check(seed, symbolic=True)


@pytest.mark.parametrize("seed", range(2000, 2010))
def test_without_the_instruction(seed: int) -> None:
    check(seed, symbolic=False, target=BYTEWISE)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("m", [1, 5, 13, 70])
def test_matrix_products(m: int, transposed: bool, constant: bool) -> None:
    random = np.random.default_rng(m)
    for n, k in ((1, 1), (1, 300), (3, 65), (31, 7), (33, 1024), (100, 20), (300, 3)):
        a, b = random_bytes(random, (m, k), False), random_bytes(random, (n, k) if transposed else (k, n), True)
        primitive = Contract((0, 2), (1, 2) if transposed else (2, 1), (0, 1))
        result = StoredTensor(DType.int32, (m, n), row_major(2))
        weights = b if constant else None
        work = build_contract(
            build_byte_contraction, primitive, tensor_of(a), tensor_of(b), result, None, TARGET, constant_right=weights
        )
        (actual,), _ = run_work(work, [(a, row_major(2)), (b, row_major(2))], [result])
        np.testing.assert_array_equal(actual, a.astype(np.int64) @ (b.T if transposed else b).astype(np.int64))
