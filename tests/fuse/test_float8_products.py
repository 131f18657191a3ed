"""Products of quantized floats of 8 bits: numbers are multiplied on tensor cores, and scales follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from kernels.threads.emulation import SHARING, run_work
from onnx import TensorProto
from peers import onnxruntime_run, trace_model

from weft.backends.reference.interpret import Interpreter, run
from weft.fuse import fuse
from weft.fuse.float8_products import multiplies_float8
from weft.ir.dtypes import DType
from weft.ir.layout import row_major
from weft.ir.program import Contract, Convolve, Step, TensorProgram
from weft.ir.target import Float32Products, TileProduct
from weft.ir.work import NativeSection, Task
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.sections import build_sections
from weft.kernels.threads import product_choice
from weft.kernels.threads.tensor_tile import TensorTile
from weft.loading import open_pipeline
from weft.passes import PIPELINE
from weft.runtime.options import LoadOptions

Array = np.ndarray[Any, Any]
E4M3, E5M2 = TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2
TYPES = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}
FLOAT8 = (DType.float8e4m3fn, DType.float8e5m2)
SEED = 5
TARGETS = {
    way: replace(
        SHARING,
        float32_products=way,
        unpacks_weights=True,
        tile_products=(
            *SHARING.tile_products,
            *(TileProduct(left, right, DType.float32, 14e12, 64, 128) for left in FLOAT8 for right in FLOAT8),
        ),
    )
    for way in (Float32Products.EXACT, Float32Products.PARTS, Float32Products.TF32, Float32Products.HALVES)
}
FAST = TARGETS[Float32Products.HALVES]


def quantized(kind: int, shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(SEED).normal(0, 2, shape).astype(TYPES[kind])


def dequantized_input(kind: int, wide: int = TensorProto.FLOAT) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Quantize x by sx, and dequantize it to xd."""
    nodes = [node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]), node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"])]
    scale = np.array(0.05, onnx.helper.tensor_dtype_to_np_dtype(wide))
    return nodes, [tensor("sx", scale), tensor("zx", np.zeros((), TYPES[kind]))]


def matrix_product(
    *,
    channels: bool = True,
    left: int = E4M3,
    right: int = E4M3,
    rows: Any = 40,
    transpose: str = "",
    wide: int = TensorProto.FLOAT,
    products: int = 1,
    depth: int = 160,
    columns: int = 48,
) -> onnx.ModelProto:
    nodes, constants = dequantized_input(left, wide)
    axis = 0 if transpose else 1
    shape = (columns, depth) if transpose else (depth, columns)
    scales = np.random.default_rng(SEED).uniform(0.01, 0.02, columns if channels else ())
    outputs = [f"y{number}" for number in range(products)]
    constants += [
        tensor("sw", scales.astype(onnx.helper.tensor_dtype_to_np_dtype(wide))),
        tensor("zw", np.zeros(scales.shape, TYPES[right])),
    ]
    for number, output in enumerate(outputs):
        constants.append(tensor(f"w{number}", np.roll(quantized(right, shape), number)))
        nodes.append(node("DequantizeLinear", [f"w{number}", "sw", "zw"], [f"wd{number}"], axis=axis))
        if transpose == "Transpose":
            nodes.append(node("Transpose", [f"wd{number}"], [f"wt{number}"], perm=[1, 0]))
            nodes.append(node("MatMul", ["xd", f"wt{number}"], [output]))
        elif transpose:
            nodes.append(node("Gemm", ["xd", f"wd{number}"], [output], transB=1))
        else:
            nodes.append(node("MatMul", ["xd", f"wd{number}"], [output]))
    outs = [value(output, None, wide) for output in outputs]
    return model(nodes, [value("x", [rows, depth], wide)], outs, constants, opsets={"": 21})


def image_convolution(kind: int = E4M3) -> onnx.ModelProto:
    nodes, constants = dequantized_input(kind)
    constants += [
        tensor("w", quantized(kind, (32, 16, 3, 3))),
        tensor("sw", np.random.default_rng(SEED).uniform(0.01, 0.02, 32).astype(np.float32)),
        tensor("zw", np.zeros(32, TYPES[kind])),
        tensor("b", np.random.default_rng(SEED).normal(size=32).astype(np.float32)),
    ]
    nodes += [
        node("DequantizeLinear", ["w", "sw", "zw"], ["wd"], axis=0),
        node("Conv", ["xd", "wd", "b"], ["c"], pads=[1] * 4, strides=[2, 2]),
        node("Relu", ["c"], ["y0"]),
    ]
    return model(nodes, [value("x", [2, 16, 9, 11])], [value("y0", None)], constants, opsets={"": 21})


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "tensor": lambda: matrix_product(channels=False),
    "channels": matrix_product,
    "mixed": lambda: matrix_product(left=E5M2),
    "one row": lambda: matrix_product(rows=1),
    "any rows": lambda: matrix_product(rows="rows"),
    "transposed": lambda: matrix_product(transpose="Transpose"),
    "gemm": lambda: matrix_product(transpose="Gemm"),
    "float16": lambda: matrix_product(wide=TensorProto.FLOAT16),
    "two products": lambda: matrix_product(products=2),
    "convolution": image_convolution,
}


def optimise(built: onnx.ModelProto) -> TensorProgram:
    program = trace_model(built)
    for apply in PIPELINE:
        program = apply(program, Interpreter())
    return program


def list_products(program: TensorProgram) -> list[Step]:
    return [step for step in program.steps if isinstance(step.primitive, (Contract, Convolve))]


def sample(built: onnx.ModelProto) -> Array:
    sizes = [dim.dim_value or 7 for dim in built.graph.input[0].type.tensor_type.shape.dim]
    wide = onnx.helper.tensor_dtype_to_np_dtype(built.graph.input[0].type.tensor_type.elem_type)
    return np.random.default_rng(SEED).normal(size=sizes).astype(wide)


@pytest.mark.parametrize("way", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_multiplied(name: str, way: Float32Products) -> None:
    """As float8 if operands may be rounded to float16, otherwise as float16, which is exact."""
    built = MODELS[name]()
    program = fuse(optimise(built), TARGETS[way]).program
    for step in list_products(program):
        kinds = {operand.dtype for operand in step.operands}
        assert kinds <= ({*FLOAT8} if way is Float32Products.HALVES else {DType.float16})
        assert step.results[0].dtype is DType.float32
        assert any(operand in program.constants for operand in step.operands)
    x = sample(built)
    for actual, expected in zip(run(program, [x]), onnxruntime_run(built, {"x": x}), strict=True):
        is_half = expected.dtype == np.float16
        tolerance = (2e-2 if is_half else 2e-6) * float(np.abs(expected).max())
        assert np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max() < tolerance


def test_numbers_of_two_products_are_widened_once() -> None:
    program = fuse(optimise(MODELS["two products"]()), TARGETS[Float32Products.PARTS]).program
    left, right = (step.operands[0] for step in list_products(program))
    assert left == right


@pytest.mark.parametrize("name", ["channels", "transposed", "convolution"])
def test_other_devices_dequantize(name: str) -> None:
    """On the CPU, constants are floats, not bytes."""
    built = MODELS[name]()
    pipeline = open_pipeline(built.SerializeToString(), LoadOptions(device="cpu", cache=False))
    assert not multiplies_float8(pipeline.compiling_driver.target("float32"))
    program = pipeline.fuse(pipeline.optimise(pipeline.trace())).program
    (product,) = list_products(program)
    assert {operand.dtype for operand in product.operands} == {DType.float32}
    assert product.operands[1] in program.constants


def unsupported(name: str) -> onnx.ModelProto:
    built = matrix_product()
    weights = next(node for node in built.graph.node if node.input[0] == "w0")
    scales = next(constant for constant in built.graph.initializer if constant.name == "sw")
    zeros = next(constant for constant in built.graph.initializer if constant.name == "zw")
    if name == "scales along the sums":
        scales.CopyFrom(tensor("sw", np.linspace(0.01, 0.02, 160, dtype=np.float32)))
        zeros.CopyFrom(tensor("zw", np.zeros(160, TYPES[E4M3])))
        weights.attribute[0].i = 0
    elif name == "a zero point":
        zeros.CopyFrom(tensor("zw", np.ones(48, TYPES[E4M3])))
    else:
        built.graph.output.append(value("wd0", None))
    return built


@pytest.mark.parametrize("name", ["scales along the sums", "a zero point", "weights that are an output"])
def test_other_products_stay(name: str) -> None:
    built = unsupported(name)
    program = fuse(optimise(built), FAST).program
    x = sample(built)
    (product,) = list_products(program)
    if name != "weights that are an output":
        assert {operand.dtype for operand in product.operands} == {DType.float32}
    (actual, *_), (expected, *_) = run(program, [x]), run(trace_model(built), [x])
    assert np.abs(actual - expected).max() < 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("way", [Float32Products.PARTS, Float32Products.HALVES])
@pytest.mark.parametrize("name", ["channels", "mixed", "convolution"])
def test_kernels(name: str, way: Float32Products, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the kernels, with tile products expanded to multiply-adds."""
    depth = 32 if way is Float32Products.HALVES else 16
    tile = TensorTile(16, 16, depth, 32, 2)
    monkeypatch.setattr(product_choice, "choose", lambda *_: (product_choice.Variant(tile, 1),))
    built = MODELS[name]()
    fused = fuse(optimise(built), TARGETS[way])
    (section,) = build_sections(fused, TARGETS[way], lambda _: None)
    assert isinstance(section, NativeSection)
    x = sample(built)
    values: dict[Any, Array] = {**fused.program.constants, fused.program.inputs[0]: x}
    for task in section.tasks:
        assert isinstance(task, Task)
        layouts = [fused.layouts.get(operand, row_major(operand.rank)) for operand in task.operands]
        operands = [(np.asarray(values[operand]), layout) for operand, layout in zip(task.operands, layouts)]
        (result,) = task.results
        layout = fused.layouts.get(result, row_major(result.rank))
        (values[result],) = run_work(task.work, operands, [StoredTensor(result.dtype, result.shape, layout)])
    expected = onnxruntime_run(built, {"x": x})[0]
    actual = values[fused.program.outputs[0]]
    assert np.abs(actual - expected).max() < 2e-6 * np.abs(expected).max()
