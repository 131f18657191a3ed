"""Softmax and normalisations with threads as lanes: in registers and from memory, against the reference in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.threads.test_reductions import target_named
from kernels.threads.works import run_on_cpu, run_work
from kernels.vector.test_rows import CASES, node, onnx_in_float64, program_of, run_groups

from weft.ir.dtypes import DType

ONNX_TYPES = {DType.float16: 10, DType.bfloat16: 16, DType.float64: 11}
SHAPES = [(3, 5, 7), (2, 17, 64), (4, 3, 129), (2, 2, 1000), (1, 2, 9001)]


def runner(name: str) -> Any:
    return run_on_cpu if name == "few" else run_work


@pytest.mark.parametrize("name", ["software", "sharing", "few"])
@pytest.mark.parametrize("case", CASES)
def test_normalisations(case: str, name: str) -> None:
    nodes, _ = CASES[case]
    used = {value for each in nodes for value in each.input}
    for seed, shape in enumerate(SHAPES):
        rng = np.random.default_rng(seed)
        weights = {"w": rng.normal(size=shape[-1]), "b": rng.normal(size=shape[-1]), "s": rng.normal(size=shape[1])}
        constants = {key: value.astype(np.float32) for key, value in weights.items() if key in used}
        program = program_of(nodes, {key: shape for key in ("x", "r") if key in used}, constants)
        inputs = [rng.normal(0, 2, shape).astype(np.float32) for _ in program.inputs]
        (actual,), groups = run_groups(program, inputs, {}, rng, target=target_named(name), run=runner(name))
        assert groups == 1
        expected = onnx_in_float64(nodes, dict(zip([v.name for v in program.inputs], inputs)), constants)
        scale = np.abs(expected).max()
        message = f"{case} of {shape}, seed {seed}"
        np.testing.assert_allclose(actual, expected, 1e-4, 1e-5 * scale + 1e-7, err_msg=message)


@pytest.mark.parametrize("name", ["software", "sharing", "few"])
@pytest.mark.parametrize("case", ["softmax", "softmax_of_middle", "log_softmax"])
def test_rows_of_dynamic_length(case: str, name: str) -> None:
    """One kernel for rows that fit in registers and for longer ones."""
    nodes, _ = CASES[case]
    for seed, shape in enumerate([(2, 3, 5), (2, 3, 1023), (1, 2, 5000), (1, 700, 33)]):
        rng = np.random.default_rng(seed)
        program = program_of(nodes, {"x": ["n", "m", "k"]}, {})
        x = rng.normal(0, 2, shape).astype(np.float32)
        sizes = dict(zip("nmk", shape))
        (actual,), groups = run_groups(program, [x], sizes, rng, target=target_named(name), run=runner(name))
        assert groups == 1
        expected = onnx_in_float64(nodes, {"x": x}, {})
        np.testing.assert_allclose(actual, expected, 1e-4, 1e-7, err_msg=f"{case} of {shape}, seed {seed}")


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16, DType.float64])
def test_softmax_of_other_types(dtype: DType) -> None:
    program = program_of([node("Softmax", "x", "y")], {"x": [6, 70]}, {}, ONNX_TYPES[dtype])
    x = np.random.default_rng(0).normal(0, 3, (6, 70)).astype(dtype.numpy)
    wide = x.astype(np.float64)
    expected = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    tolerance = {DType.float16: 1e-2, DType.bfloat16: 8e-2, DType.float64: 1e-12}[dtype]
    for name in ("software", "sharing"):
        rng = np.random.default_rng(1)
        (actual,), _ = run_groups(program, [x], {}, rng, target=target_named(name), run=run_work)
        small = 1e-6 if dtype is DType.float16 else 0
        np.testing.assert_allclose(actual.astype(np.float64), expected, tolerance, small)


def test_rows_with_infinities_and_nan() -> None:
    program = program_of([node("Softmax", "x", "y")], {"x": [4, 40]}, {})
    x = np.random.default_rng(0).normal(size=(4, 40)).astype(np.float32)
    x[0, 3:] = -np.inf
    x[1, 7] = np.nan
    x[2] = -np.inf
    for name in ("software", "sharing"):
        (actual,), _ = run_groups(program, [x], {}, np.random.default_rng(6), target=target_named(name), run=run_work)
        with np.errstate(invalid="ignore"):
            wide = np.exp(x - x.max(axis=1, keepdims=True))
            np.testing.assert_allclose(actual, wide / wide.sum(axis=1, keepdims=True), 1e-5)


LONG_CASES = ("softmax", "softmax_of_middle", "log_softmax", "costly_before", "norm", "instance", "mean_variance")


@pytest.mark.parametrize("case", LONG_CASES)
@pytest.mark.parametrize("shape", [(1, 4, 70001), (2, 2500, 5), (1, 3001, 36), (40, 5, 2100)], ids=str)
def test_few_long_rows(case: str, shape: tuple[int, int, int]) -> None:
    """Reductions of a group become separate kernels, in any layout, for a static and a dynamic batch."""
    nodes, _ = CASES[case]
    used = {value for each in nodes for value in each.input}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        weights = {"w": rng.normal(size=shape[-1]), "b": rng.normal(size=shape[-1]), "s": rng.normal(size=shape[1])}
        constants = {key: value.astype(np.float32) for key, value in weights.items() if key in used}
        named = [shape[0] if seed % 2 else "n", *shape[1:]]
        program = program_of(nodes, {key: named for key in ("x", "r") if key in used}, constants)
        inputs = [rng.normal(0, 2, shape).astype(np.float32) for _ in program.inputs]
        sizes = {"n": shape[0]}
        (actual,), _ = run_groups(program, inputs, sizes, rng, target=target_named("sharing"), run=run_work)
        expected = onnx_in_float64(nodes, dict(zip([v.name for v in program.inputs], inputs)), constants)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            actual, expected, 1e-4, 1e-5 * scale + 1e-9, err_msg=f"{case} of {shape}, seed {seed}"
        )
