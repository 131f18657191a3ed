"""GPU memory: allocations against plans, and buffers larger than a binding."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from models.catalog import load_catalog, random_inputs
from onnx import TensorProto

import weft
from weft.backends.webgpu.gpu import Gpu, open_gpu
from weft.errors import OutOfMemoryError

GPU = "webgpu:llvmpipe"
Array = np.ndarray[Any, Any]
SEED = 11


@pytest.fixture
def gpu() -> Gpu:
    return open_gpu("llvmpipe")


@pytest.fixture
def narrow(gpu: Gpu) -> Iterator[Gpu]:
    """A GPU with bindings of at most 4 KiB."""
    limits = gpu.limits
    gpu.limits = replace(limits, max_binding_bytes=4096)
    yield gpu
    gpu.limits = limits


def random_array(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return (np.random.default_rng(SEED).standard_normal(shape) * 4).astype(dtype)


def staging(gpu: Gpu) -> int:
    """Return the bytes of host staging buffers, which all models share."""
    return sum(buffer.size for buffer in gpu._readback._spare)


def run(built: onnx.ModelProto, **inputs: Array) -> list[Array]:
    return list(weft.load(built, device=GPU).run(inputs).values())


# -- planned and allocated ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["openwakeword__embedding_model", "silero-vad__silero_vad_16k_op15", "unisim__v1"])
def test_no_more_is_allocated_than_planned(gpu: Gpu, name: str) -> None:
    catalog = {entry.name: entry for entry in load_catalog()}
    if catalog[name].missing:
        pytest.skip(catalog[name].missing)
    gc.collect()
    before = gpu.allocated
    loaded = weft.load(catalog[name].file, device=GPU)
    inputs = random_inputs(catalog[name], seed=SEED)
    loaded.run(inputs)
    planned = loaded.memory({key: array.shape for key, array in inputs.items()}).peak
    spare = staging(gpu)
    assert gpu.allocated - before - spare <= 1.05 * planned


def test_inputs_beyond_the_binding_limit_are_refused(narrow: Gpu) -> None:
    """A model with dynamic sizes loads; only inputs that are too large are refused."""
    loaded = weft.load(model([node("Exp", ["x"], ["y"])], [value("x", ["a", "b", "c"])]), device=GPU)
    x = random_array((2, 3, 5))
    np.testing.assert_allclose(loaded.run({"x": x})["y"], np.exp(x), rtol=1e-5)
    with pytest.raises(OutOfMemoryError, match=r"need \d+ bindings: .* has"):
        loaded.run({"x": random_array((narrow.limits.max_bindings, 32, 32))})


def test_memory_is_freed_with_the_model(gpu: Gpu) -> None:
    gc.collect()
    before = gpu.allocated
    loaded = weft.load(affine((512, 512)), device=GPU)
    loaded.run({"x": random_array((512, 512))})
    assert gpu.allocated > before
    del loaded
    gc.collect()
    assert gpu.allocated <= before + staging(gpu)


def affine(shape: tuple[int, int]) -> onnx.ModelProto:
    return model(
        [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])],
        [value("x", list(shape))],
        [value("y", [shape[0], 48])],
        [tensor("w", random_array((shape[1], 48))), tensor("b", random_array((48,)))],
    )


# -- more than a binding ---------------------------------------------------------------------------------------------


def test_an_elementwise_kernel_on_several_bindings(narrow: Gpu) -> None:
    del narrow
    x = random_array((5, 1027))
    built = model(
        [node("Mul", ["x", "x"], ["s"]), node("Relu", ["x"], ["r"]), node("Add", ["s", "r"], ["y"])],
        [value("x", [5, 1027])],
        [value("y", [5, 1027])],
    )
    np.testing.assert_allclose(run(built, x=x)[0], x * x + np.maximum(x, 0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [TensorProto.INT8, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.DOUBLE])
def test_other_types_on_several_bindings(narrow: Gpu, dtype: int) -> None:
    del narrow
    type = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    length = 7013 // type.itemsize
    x = random_array((3, length), type)
    built = model(
        [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Add", ["t", "t"], ["y"])],
        [value("x", [3, length], dtype)],
        [value("y", [length, 3], dtype)],
    )
    np.testing.assert_array_equal(run(built, x=x)[0], x.T + x.T)


def test_a_table_larger_than_a_binding(narrow: Gpu) -> None:
    del narrow
    table = random_array((1000, 24))
    rows = np.random.default_rng(SEED).integers(-1000, 1000, (17, 3))
    built = model(
        [node("Gather", ["table", "rows"], ["y"])],
        [value("rows", [17, 3], TensorProto.INT64)],
        [value("y", [17, 3, 24])],
        [tensor("table", table)],
    )
    np.testing.assert_array_equal(run(built, rows=rows)[0], table[rows])


def test_products_and_sums_of_large_operands(narrow: Gpu) -> None:
    del narrow
    x = random_array((37, 260))
    built = affine((37, 260))
    built.graph.node.append(node("ReduceSum", ["y"], ["z"], keepdims=0))
    built.graph.output.append(value("z", []))
    y, z = run(built, x=x)
    weights = [onnx.numpy_helper.to_array(entry).astype(np.float64) for entry in built.graph.initializer]
    expected = x.astype(np.float64) @ weights[0] + weights[1]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(z, expected.sum(), rtol=1e-4, atol=1e-2)


def test_a_weight_beyond_the_adapters_own_limit(gpu: Gpu) -> None:
    rows = gpu.limits.max_binding_bytes // 1024 + 100
    if rows > 1 << 18:
        pytest.skip("this adapter binds more than a test should take")
    table = np.arange(rows, dtype=np.float32)[:, None] + np.arange(256, dtype=np.float32) / 256
    indices = np.array([0, 1, rows // 2, rows - 101, rows - 100, rows - 1])
    built = model(
        [node("Gather", ["table", "rows"], ["y"])],
        [value("rows", [6], TensorProto.INT64)],
        [value("y", [6, 256])],
        [tensor("table", table)],
    )
    np.testing.assert_array_equal(run(built, rows=indices)[0], table[indices])


def test_copy_within_one_result() -> None:
    """Source and target start together: their shared binding must cover the larger one."""
    built = model(
        [node("Concat", ["x", "x"], ["t"], axis=0), node("Concat", ["t", "t"], ["y"], axis=0)],
        [value("x", [30])],
        [value("y", [120])],
    )
    x = random_array((30,))
    np.testing.assert_array_equal(run(built, x=x)[0], np.tile(x, 4))


# -- more than a dispatch --------------------------------------------------------------------------------------------


def test_more_workgroups_than_one_dimension_allows(gpu: Gpu) -> None:
    limits = gpu.limits
    gpu.limits = replace(limits, max_groups=13)
    try:
        x = random_array((301, 11))
        built = model([node("Neg", ["x"], ["y"])], [value("x", [301, 11])], [value("y", [301, 11])])
        np.testing.assert_array_equal(run(built, x=x)[0], -x)
    finally:
        gpu.limits = limits
