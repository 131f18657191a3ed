"""Matrix products, Einsum and determinants, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

from weft.errors import WeftError

Array = np.ndarray[Any, Any]

MATMUL_SHAPES = [
    ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (4, 3, 2)), ((1, 2, 3), (5, 3, 1)), ((3,), (5, 3, 2)), ((5, 2, 3), (3,)), ((0, 3), (3, 2)),
    ((2, 0), (0, 3)), ((1, 1), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), MATMUL_SHAPES, ids=str)
@pytest.mark.parametrize("opset", [7, 13])
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], opset: int) -> None:
    a, b = random_array(1, left), random_array(2, right)
    check("MatMul", [a, b], opset=opset, expected=[np.matmul(a, b)])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64, np.float64], ids=lambda d: d.__name__)
def test_matmul_types(dtype: Any) -> None:
    a, b = random_array(3, (4, 5), dtype, low=0, high=50), random_array(4, (5, 6), dtype, low=0, high=50)
    check("MatMul", [a, b], opset=13, expected=[np.matmul(a, b)])


def test_matmul_wraps_large_integers() -> None:
    a = np.array([[2**62, 3]], np.int64)
    check("MatMul", [a, a.T], opset=13, expected=[a @ a.T])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_matmul_accumulates_narrow_floats_widely(dtype: Any) -> None:
    a, b = random_array(5, (3, 700), dtype), random_array(6, (700, 2), dtype)
    wide = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32).astype(dtype)
    check("MatMul", [a, b], opset=13, expected=[wide], rtol=1e-2)


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
@pytest.mark.parametrize("addend", [(), (1,), (4,), (3, 1), (1, 4), (3, 4)], ids=str)
@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)], ids=str)
def test_gemm(opset: int, addend: tuple[int, ...], transposed: tuple[int, int]) -> None:
    a = random_array(1, (5, 3) if transposed[0] else (3, 5))
    b = random_array(2, (4, 5) if transposed[1] else (5, 4))
    options: dict[str, Any] = {"transA": transposed[0], "transB": transposed[1], "alpha": 0.5, "beta": -2.0}
    check("Gemm", [a, b, random_array(3, addend)], opset=opset, rtol=1e-4, atol=1e-5, **options)


def test_gemm_without_addend() -> None:
    check("Gemm", [random_array(1, (3, 5)), random_array(2, (5, 4))], opset=13, rtol=1e-4, alpha=2.0)


def test_gemm_of_integers() -> None:
    a, b = random_array(1, (3, 5), np.int32), random_array(2, (5, 4), np.int32)
    check("Gemm", [a, b], opset=13, expected=[2 * (a @ b)], alpha=2.0)


EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3, 4)), ("i,j->ij", (2,), (3,)), ("i,i->", (3,), (3,)),
    ("ii->i", (3, 3)), ("ii", (3, 3)), ("iij->j", (3, 3, 2)), ("ij->ji", (2, 3)), ("ij->", (2, 3)), ("ij->j", (2, 3)),
    ("...ij,...jk->...ik", (5, 2, 3), (5, 3, 4)), ("...ij,...jk->...ik", (5, 1, 2, 3), (4, 3, 4)),
    ("...ij,jk->...ik", (2, 5, 2, 3), (3, 4)), ("...->...", (2, 3)), ("...i->...", (2, 3)),
    ("b...,b...->...", (2, 3), (2, 3)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)), ("bij,bjk,bkl->bil", (2, 3, 4), (2, 4, 5), (2, 5, 2)),
    ("ab,bc,cd,de->ae", (2, 3), (3, 4), (4, 5), (5, 2)), ("i,j,k->kji", (2,), (3,), (4,)),
    ("ij,ij->ij", (2, 3), (2, 3)),
    ("ij,kj->ik", (2, 3), (4, 3)), ("iJ,Jk->ik", (2, 3), (3, 4)), (" i j , j k -> i k ", (2, 3), (3, 4)),
    ("i...j->...ij", (2, 5, 6, 3)), ("iij,jk->ik", (3, 3, 2), (2, 4)), ("ij,jk->", (2, 3), (3, 4)),
    (",ij->ij", (), (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("case", EQUATIONS, ids=lambda case: case[0])
def test_einsum(case: tuple[Any, ...]) -> None:
    equation, *shapes = case
    operands = [random_array(number, shape) for number, shape in enumerate(shapes)]
    reference = np.einsum(equation, *(operand.astype(np.float64) for operand in operands)).astype(np.float32)
    check("Einsum", operands, opset=12, expected=[reference], rtol=1e-4, atol=1e-4, equation=equation)


@pytest.mark.parametrize("equation", ["ij,jk", "ijk,jk->ik", "ij,jk->iz", "ij,jk->ii", "i!,jk->ik"])
def test_einsum_rejects(equation: str) -> None:
    inputs = [random_array(1, (2, 3)), random_array(2, (3, 4)), random_array(3, (2,))][
        : 3 if equation == "ij,jk" else 2
    ]
    with pytest.raises(WeftError):
        run_weft(node_model("Einsum", inputs, opset=12, equation=equation), inputs)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 5), (2, 3, 4, 4), (0, 3, 3), (0, 0)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)
def test_determinant(shape: tuple[int, ...], dtype: Any) -> None:
    x = random_array(7, shape, dtype)
    reference = np.asarray(np.linalg.det(x.astype(np.float64))).astype(dtype)
    check("Det", [x], opset=11, expected=[reference], rtol=1e-4, atol=1e-4)


def test_determinant_needs_pivots() -> None:
    x = np.array([[0, 1, 0], [0, 0, 2], [3, 0, 0]], np.float32)
    check("Det", [x], opset=22, expected=[np.float32(6)])
    check("Det", [np.zeros((3, 3), np.float32)], opset=22, expected=[np.float32(0)])


def test_products_that_do_not_fit() -> None:
    inputs: list[Array | None] = [random_array(1, (2, 3)), random_array(2, (4, 5))]
    with pytest.raises(WeftError, match="3"):
        run_weft(node_model("MatMul", inputs, opset=13), inputs)
