"""Weights of 16 bits in memory: those of files, and with precision "fast" all constants of products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from export.networks import FLOAT, model, node
from models.code_digests import gpu_limits, kernels

import weft
from weft.backends.webgpu.targets import build_target
from weft.backends.webgpu.wgsl_types import Abilities
from weft.fuse import fuse
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.narrowed_products import find_narrowed_products
from weft.kernels.sections import build_sections
from weft.runtime.options import Precision

SEED = 20261119
DEPTH, COLUMNS = 520, 2100
ALL = Abilities(int64=True, float64=True, float16=True)
WITHOUT = replace(ALL, float16=False)


def product(weights: Array) -> bytes:
    nodes = [node("MatMul", "x w32", "y")]
    if weights.dtype == np.float16:
        nodes.insert(0, node("Cast", "w", "w32", to=FLOAT))
    name = "w" if weights.dtype == np.float16 else "w32"
    return model(nodes, [("x", FLOAT, ["n", DEPTH])], [("y", FLOAT, ["n", COLUMNS])], {name: weights})


def convolution(weights: Array) -> bytes:
    return model(
        [node("Conv", "x w", "y", pads=[1, 1, 1, 1])],
        [("x", FLOAT, ["n", 8, 11, 9])],
        [("y", FLOAT, ["n", 16, 11, 9])],
        {"w": weights},
    )


def reads_halves(file: bytes, abilities: Abilities, precision: str) -> bool:
    program: Any = weft.load(file, device="reference", cache=False).program
    target = build_target(gpu_limits(True), abilities, precision=precision)
    return DType.float16 in {buffer.dtype for kernel in kernels(program, target) for buffer in kernel.buffers}


def draw(*shape: int) -> Array:
    return np.random.default_rng(SEED).normal(0, 0.05, shape).astype(np.float32)


@pytest.mark.parametrize("precision", ["float32", "strict"])
def test_weights_of_files_stay_narrow(precision: Precision) -> None:
    weights = draw(DEPTH, COLUMNS).astype(np.float16)
    file = product(weights)
    assert reads_halves(file, ALL, precision)
    assert not build_target(gpu_limits(True), WITHOUT).widens_weights
    loaded = weft.load(file, device="webgpu:0", precision=precision, cache=False)
    x = np.random.default_rng(SEED + 1).normal(0, 1, (5, DEPTH)).astype(np.float32)
    y = loaded.run({"x": x})["y"]
    np.testing.assert_allclose(y, x.astype(np.float64) @ weights.astype(np.float64), rtol=1e-5, atol=1e-5)
    if precision == "strict":
        np.testing.assert_array_equal(loaded.run({"x": x[2:3]})["y"], y[2:3])


def test_fast_products_round_weights() -> None:
    weights = draw(DEPTH, COLUMNS)
    weights[0, 0] = 1e6  # beyond float16
    file = product(weights)
    assert [reads_halves(file, ALL, precision) for precision in ("fast", "float32", "strict")] == [True, False, False]
    assert not reads_halves(file, WITHOUT, "fast")
    loaded = weft.load(file, device="webgpu:0", precision="fast", cache=False)
    x = np.random.default_rng(SEED + 1).normal(0, 1, (5, DEPTH)).astype(np.float32)
    x[:, 0] = 0.001
    rounded = np.clip(weights, -65504, 65504).astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(loaded.run({"x": x})["y"], x.astype(np.float64) @ rounded, rtol=1e-5, atol=1e-5)


def test_fast_convolutions_round_weights() -> None:
    file = convolution(draw(16, 8, 3, 3))
    assert reads_halves(file, ALL, "fast")
    x = np.random.default_rng(SEED + 1).normal(0, 1, (2, 8, 11, 9)).astype(np.float32)
    rounded = convolution(draw(16, 8, 3, 3).astype(np.float16).astype(np.float32))
    expected = weft.load(rounded, device="reference", cache=False).run({"x": x})["y"]
    actual = weft.load(file, device="webgpu:0", precision="fast", cache=False).run({"x": x})["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_rounded_weights_are_reported() -> None:
    program: Any = weft.load(product(draw(DEPTH, COLUMNS)), device="reference", cache=False).program
    for precision, types in (("fast", ["float16"]), ("float32", [])):
        target = build_target(gpu_limits(True), ALL, precision=precision)
        sections = build_sections(fuse(program, target), target)
        assert [product.operands for product in find_narrowed_products(sections)] == types
