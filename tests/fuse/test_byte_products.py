"""Products of bytes with equal signs: tensor cores that can multiply them need no shift, and no padded copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from fuse.test_float8_products import list_products, optimise
from kernels.threads.emulation import SHARING, run_work
from onnx import TensorProto
from peers import onnxruntime_run

from weft.backends.reference.interpret import run
from weft.fuse import fuse
from weft.fuse.inline import inline_maps
from weft.ir.dtypes import DType
from weft.ir.layout import row_major
from weft.ir.program import Map, TensorProgram
from weft.ir.target import TileProduct
from weft.ir.work import NativeSection, Task
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.sections import build_sections
from weft.kernels.threads import product_choice
from weft.kernels.threads.tensor_tile import TensorTile

Array = np.ndarray[Any, Any]
BYTES = (DType.int8, DType.uint8)
SEED = 6
TARGET = replace(
    SHARING,
    unpacks_weights=True,
    tile_products=tuple(
        TileProduct(left, right, DType.int32, 14e12, 64, 128) for left in BYTES for right in BYTES
    ),
)  # fmt: skip
DIFFERENT = replace(
    TARGET, tile_products=tuple(product for product in TARGET.tile_products if product.left is not product.right)
)


def numbers(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.random.default_rng(SEED).integers(limits.min, limits.max + 1, shape).astype(dtype)


def integer_product(
    left: Any, right: Any, zeros: tuple[int, int] = (0, 0), *, is_read_twice: bool = False
) -> onnx.ModelProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(left))
    nodes = [node("MatMulInteger", ["x", "w", "zx", "zw"], ["y"])]
    outputs = [value("y", None, TensorProto.INT32)]
    constants = [
        tensor("w", numbers(right, 96, 40)),
        tensor("zx", np.array(zeros[0], left)),
        tensor("zw", np.array(zeros[1], right)),
    ]
    if is_read_twice:
        nodes.append(node("MatMulInteger", ["x", "v", "zx", "zw"], ["z"]))
        outputs.append(value("z", None, TensorProto.INT32))
        constants.append(tensor("v", np.roll(numbers(right, 96, 40), 1)))
    return model(nodes, [value("x", ["rows", 96], kind)], outputs, constants)


def quantized_convolution(dtype: Any = np.int8, zero: int = 0, pads: tuple[int, ...] = (1, 2, 0, 1)) -> onnx.ModelProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    constants = [
        tensor("w", numbers(np.int8, 24, 16, 3, 3)),
        tensor("one", np.float32(0.1)),
        tensor("scales", np.random.default_rng(SEED).uniform(0.001, 0.002, 24).astype(np.float32)),
        tensor("scale", np.float32(0.5)),
        tensor("zw", np.zeros(24, np.int8)),
        tensor("zx", np.array(zero, dtype)),
    ]
    inputs = ["x", "one", "zx", "w", "scales", "zw", "scale", "zx"]
    nodes = [node("QLinearConv", inputs, ["y"], pads=pads)]
    return model(nodes, [value("x", [2, 16, 9, 7], kind)], [value("y", None, kind)], constants)


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[DType, DType]]] = {
    "int8": (lambda: integer_product(np.int8, np.int8), (DType.int8, DType.int8)),
    "int8 with a zero point": (lambda: integer_product(np.int8, np.int8, (3, 0)), (DType.int8, DType.int8)),
    "two products": (lambda: integer_product(np.int8, np.int8, is_read_twice=True), (DType.int8, DType.int8)),
    "uint8": (lambda: integer_product(np.uint8, np.uint8), (DType.uint8, DType.uint8)),
    "mixed": (lambda: integer_product(np.uint8, np.int8, (7, 0)), (DType.uint8, DType.int8)),
    "convolution": (quantized_convolution, (DType.int8, DType.int8)),
    "convolution without pads": (lambda: quantized_convolution(pads=(0,) * 4), (DType.int8, DType.int8)),
    "convolution with a zero point": (lambda: quantized_convolution(zero=5), (DType.uint8, DType.int8)),
}


def sample(program: TensorProgram) -> Array:
    (x,) = program.inputs
    return numbers(x.dtype.numpy, *(size if isinstance(size, int) else 13 for size in x.shape))


@pytest.mark.parametrize("name", MODELS)
def test_signs_stay(name: str) -> None:
    build, types = MODELS[name]
    program = optimise(build())
    fused = fuse(program, TARGET).program
    x = sample(program)
    for step in list_products(fused):
        assert tuple(operand.dtype for operand in step.operands) == types
    for actual, expected in zip(run(fused, [x]), onnxruntime_run(build(), {"x": x}), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ["int8", "two products", "convolution"])
def test_nothing_is_copied(name: str) -> None:
    """Without zero points, the only map is the one after the product."""
    program = fuse(optimise(MODELS[name][0]()), TARGET).program
    maps = [step for step in program.steps if isinstance(step.primitive, Map)]
    assert len(maps) <= len(program.outputs)
    assert all(program.inputs[0] in product.operands for product in list_products(program))


def test_sums_of_shifted_numbers_keep_the_shift() -> None:
    """With two zero points, sums of rows read the shifted numbers, too."""
    built = integer_product(np.uint8, np.uint8, (7, 9))
    program = optimise(built)
    fused = fuse(program, TARGET).program
    (product,) = list_products(fused)
    x = sample(program)
    np.testing.assert_array_equal(run(fused, [x])[0], onnxruntime_run(built, {"x": x})[0])
    assert {operand.dtype for operand in product.operands} == {*BYTES}


def test_one_map_reads_two_products() -> None:
    """Both corrections are dropped from a map that adds scaled sums."""
    nodes = [
        node("MatMulInteger", ["x", "w"], ["p"]),
        node("MatMulInteger", ["x", "v"], ["q"]),
        node("Sub", ["p", "q"], ["y"]),
    ]
    constants = [tensor("w", numbers(np.int8, 96, 40)), tensor("v", np.roll(numbers(np.int8, 96, 40), 1))]
    inputs = [value("x", [5, 96], TensorProto.INT8)]
    built = model(nodes, inputs, [value("y", None, TensorProto.INT32)], constants)
    program = inline_maps(optimise(built))
    x = sample(program)
    fused = fuse(program, TARGET).program
    assert all({operand.dtype for operand in step.operands} == {DType.int8} for step in list_products(fused))
    np.testing.assert_array_equal(run(fused, [x])[0], onnxruntime_run(built, {"x": x})[0])


def test_other_targets_shift() -> None:
    for name in ("int8", "convolution"):
        (product,) = list_products(fuse(optimise(MODELS[name][0]()), DIFFERENT).program)
        assert {operand.dtype for operand in product.operands} == {*BYTES}


@pytest.mark.parametrize("name", ["int8 with a zero point", "uint8", "convolution"])
def test_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the kernels, with tile products expanded to multiply-adds."""
    tile = TensorTile(16, 16, 32, 32, 2)
    monkeypatch.setattr(product_choice, "choose", lambda *_: (product_choice.Variant(tile, 1),))
    built = MODELS[name][0]()
    program = optimise(built)
    fused = fuse(program, TARGET)
    (section,) = build_sections(fused, TARGET, lambda _: None)
    assert isinstance(section, NativeSection)
    x = sample(program)
    values: dict[Any, Array] = {**fused.program.constants, fused.program.inputs[0]: x}
    for task in section.tasks:
        assert isinstance(task, Task)
        layouts = [row_major(operand.rank) for operand in task.operands]
        operands = [(np.asarray(values[operand]), layout) for operand, layout in zip(task.operands, layouts)]
        (result,) = task.results
        stored = StoredTensor(result.dtype, result.shape, row_major(result.rank))
        (values[result],) = run_work(task.work, operands, [stored], {"rows": 13})
    np.testing.assert_array_equal(values[fused.program.outputs[0]], onnxruntime_run(built, {"x": x})[0])
