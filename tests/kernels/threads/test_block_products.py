"""Products by block-quantized weights with threads as lanes, against numpy in float64 and onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from backends.cuda.recording_driver import H200
from backends.llvm.ptx import assemble, emit_ptx, find_ptxas
from kernels.threads import emulation, works
from kernels.vector.test_block_products import template_names
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.backends.cuda.processors import build_target as build_cuda_target
from weft.backends.webgpu import targets as targets_module
from weft.cost.profiles import LARGE_GPU
from weft.ir import dims
from weft.ir.block_weights import BlockWeights
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import row_major
from weft.ir.program import Contract
from weft.ir.scalar import ELEMENT, Apply, Index, Literal, Load, Placeholder, Scalar
from weft.ir.target import ThreadTarget
from weft.kernels.build.contraction import Contraction, ContractOperand
from weft.kernels.lower.barriers import insert_barriers
from weft.kernels.lower.tensors import Epilogue, StoredTensor, Work
from weft.kernels.threads.block_products import build_block_product, build_fixed_product

Array = np.ndarray[Any, Any]
F32 = DType.float32
SEED = 27
PTXAS = find_ptxas()


class Case:
    """Weights [columns, depth] of unsigned codes, with their dequantized values in float64."""

    def __init__(self, bits: int, block: int, columns: int, depth: int, zeros: str = "") -> None:
        random = np.random.default_rng(SEED + bits + block + columns)
        self.columns, self.depth, self.block = columns, depth, block
        self.codes = random.integers(0, 2**bits, (columns, depth)).astype(np.uint8)
        self.scales = (random.random((columns, depth // block)) + 0.1).astype(np.float32)
        self.constants: list[Any] = [self.codes, self.scales]
        offsets: Any = 2 ** (bits - 1)
        column, position = dims.axis(0, columns), dims.axis(1, depth)
        place = (Index(column), Index(dims.floordiv(position, block)))
        zero: Scalar | None = None
        if zeros:
            offsets = random.integers(0, 2**bits, self.scales.shape)
            offsets = offsets.astype(np.uint8) if zeros == "bytes" else (offsets + random.random(offsets.shape))
            offsets = offsets if zeros == "bytes" else offsets.astype(np.float32)
            self.constants.append(offsets)
            load = Load(2, place, DType.uint8 if zeros == "bytes" else F32)
            zero = Apply("cast", (load,), F32) if zeros == "bytes" else load
            offsets = np.repeat(offsets.astype(np.float64), block, axis=1)
        scale = Load(1, place, F32)
        self.weights = BlockWeights(1, columns, depth, block, bits, False, False, 0, scale, zero)
        self.values = (self.codes.astype(np.float64) - offsets) * np.repeat(self.scales.astype(np.float64), block, 1)

    def build(self, rows: Dim, target: ThreadTarget, epilogue: Epilogue | None = None) -> Work:
        left = ContractOperand(0, StoredTensor(F32, (rows, self.depth), row_major(2)), (0, 2), None)
        result = StoredTensor(F32, (rows, self.columns), row_major(2))
        return build_block_product(left, (0, 1), 1, self.weights, self.constants, result, epilogue, target)

    def run(self, x: Array, work: Work, *, emulated: bool = False, more: Sequence[Array] = ()) -> Array:
        """Run a work for dynamic rows, and compare it with float64."""
        operands = [
            (x, row_major(2)),
            (np.zeros(4, np.int32), row_major(1)),
            *((array, row_major(1)) for array in more),
        ]
        result, sizes = StoredTensor(F32, (x.shape[0], self.columns), row_major(2)), {"rows": x.shape[0]}
        actual = (
            emulation.run_work(work, operands, [result], sizes)[0]
            if emulated
            else works.run_work(work, operands, [result], sizes)[0][0]
        )
        expected = x.astype(np.float64) @ self.values.T
        if not more:
            assert np.abs(actual - expected).max() <= 3e-6 * np.abs(expected).max()
        return actual


def random_rows(rows: int, depth: int) -> Array:
    return np.random.default_rng(SEED).standard_normal((rows, depth), np.float32)


def take_rows(work: Work, case: Case, x: Array, height: int) -> Array:
    return np.concatenate([case.run(x[n : n + height], work) for n in range(0, len(x), height)])


@pytest.mark.parametrize("name", ["software", "sharing"])
@pytest.mark.parametrize("zeros", ["", "bytes", "floats"])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 16), (4, 128), (2, 16), (2, 64), (8, 16), (8, 64), (8, 12)])
def test_formats(bits: int, block: int, zeros: str, name: str) -> None:
    """Odd numbers of columns and blocks, for one row, few and many."""
    case = Case(bits, block, 75, 9 * block, zeros)
    work = case.build(dims.symbol("rows"), works.targets()[name])
    x = random_rows(70, case.depth)
    many = case.run(x, work)
    assert take_rows(work, case, x[:9], 1).tobytes() == many[:9].tobytes()
    assert take_rows(work, case, x[:9], 3).tobytes() == many[:9].tobytes()


@pytest.mark.parametrize("name", ["software", "sharing"])
def test_bits_of_a_row_do_not_depend_on_other_rows(name: str) -> None:
    """All numbers of rows to 40, and those around a tile in shared memory, with a range that is shorter."""
    case = Case(4, 32, 72, 32 * 70)
    work = case.build(dims.symbol("rows"), works.targets()[name])
    x = random_rows(130, case.depth)
    alone = take_rows(work, case, x, 1)
    for rows in (*range(2, 41), 48, 49, 64, 65, 130):
        assert case.run(x[-rows:], work).tobytes() == alone[-rows:].tobytes(), f"{rows} rows"


@pytest.mark.parametrize("columns", [9000, 18000])
def test_lanes_with_several_columns(columns: int) -> None:
    case = Case(4, 32, columns, 64)
    work = case.build(dims.symbol("rows"), works.targets()["sharing"])
    x = random_rows(9, case.depth)
    assert take_rows(work, case, x, 1).tobytes() == case.run(x, work).tobytes()


def test_static_rows_have_one_kernel() -> None:
    case = Case(4, 32, 64, 64)
    for rows in (1, 3, 8, 20, 100):
        assert len(case.build(rows, works.targets()["sharing"]).launches) == 1
        assert len(case.build(rows, works.targets()["software"]).launches) == 1


@pytest.mark.parametrize(("bits", "zeros"), [(2, ""), (4, "bytes"), (8, "floats")])
def test_emulated_lanes(bits: int, zeros: str) -> None:
    """The LLVM code of GPUs, for one row, few and many."""
    case = Case(bits, 32, 40, 32 * 37, zeros)
    work = case.build(dims.symbol("rows"), replace(emulation.SHARING, shared_bytes=16384, tile_products=()))
    x = random_rows(53, case.depth)
    many = case.run(x, work, emulated=True)
    for rows in (1, 3, 7):
        assert case.run(x[:rows], work, emulated=True).tobytes() == many[:rows].tobytes()


@pytest.mark.skipif(PTXAS is None, reason="ptxas is not installed")
def test_kernels_assemble() -> None:
    """For a GPU's target; words and activations are read 16 bytes at a time, and no registers are spilled."""
    target = replace(build_cuda_target(H200, "float32"), tile_products=())
    for columns in (896, 40000):
        for launch in Case(4, 32, columns, 64, "bytes").build(dims.symbol("rows"), target).launches:
            text, _ = emit_ptx(insert_barriers(launch.kernel), "sm_90a")
            assert PTXAS is not None
            assert "0 bytes spill stores" in assemble(PTXAS, text, "sm_90a")
            assert ".v4" in text


@pytest.mark.parametrize("rows", [1, 4, 60])
@pytest.mark.parametrize("name", ["software", "sharing"])
def test_epilogues(name: str, rows: int) -> None:
    case = Case(4, 32, 44, 64)
    bias = np.linspace(-90, 90, 44, dtype=np.float32)
    total = Apply("add", (Placeholder(ELEMENT, F32), Load(0, (Index(dims.axis(1, 44)),), F32)), F32)
    relu = Apply("maximum", (total, Literal(0.0, F32)), F32)
    epilogue = Epilogue(relu, (StoredTensor(F32, (44,), row_major(1)),))
    x = random_rows(rows, 64)
    actual = case.run(x, case.build(dims.symbol("rows"), works.targets()[name], epilogue), more=[bias])
    expected = np.maximum(x.astype(np.float64) @ case.values.T + bias, 0)
    assert np.abs(actual - expected).max() <= 3e-6 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["software", "sharing"])
@pytest.mark.parametrize(
    ("dtype", "depth"), [(F32, 520), (DType.float16, 96), (DType.bfloat16, 520), (F32, 37)], ids=str
)
def test_floats_in_a_fixed_order(dtype: DType, depth: int, name: str) -> None:
    """Weights [depth, columns] of floats; depths that are no multiple of a chunk, of a tile, or of four."""
    target, columns = replace(works.targets()[name], fixed_order=True), 44
    random = np.random.default_rng(SEED)
    weights = random.standard_normal((depth, columns)).astype(dtype.numpy)
    x = random.standard_normal((60, depth)).astype(dtype.numpy)
    left = StoredTensor(dtype, (dims.symbol("rows"), depth), row_major(2))
    right = StoredTensor(dtype, (depth, columns), row_major(2))
    result = StoredTensor(dtype, (dims.symbol("rows"), columns), row_major(2))
    contraction = Contraction(Contract((0, 2), (2, 1), (0, 1)), left, right, result, None, None, weights)
    work = build_fixed_product(contraction, target)
    assert work is not None

    def run(rows: Array) -> Array:
        operands = [(rows, row_major(2)), (weights, row_major(2))]
        shape = StoredTensor(dtype, (len(rows), columns), row_major(2))
        return works.run_work(work, operands, [shape], {"rows": len(rows)})[0][0]

    expected = x.astype(np.float64) @ weights.astype(np.float64)
    many = run(x)
    tolerance = 3e-6 if dtype is F32 else 1e-3 if dtype is DType.float16 else 8e-3
    assert np.abs(many.astype(np.float64) - expected).max() <= tolerance * np.abs(expected).max()
    assert all(run(x[n : n + 1]).tobytes() == many[n : n + 1].tobytes() for n in range(5))
    assert run(x[:7]).tobytes() == many[:7].tobytes()


# -- models ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["software", "sharing"])
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run models with the kernels of a software adapter, and with those of a GPU."""
    own = targets_module.build_target
    if request.param == "sharing":
        monkeypatch.setattr(
            targets_module,
            "build_target",
            lambda *arguments: replace(
                own(*arguments), rates=LARGE_GPU, block_threads=128, shared_bytes=16384, sharing_pays=True
            ),
        )


def make_model(nodes: list[onnx.NodeProto], weights: dict[str, Array], depth: int, kind: int) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("a", kind, ["batch", "length", depth])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check_model(source: onnx.ModelProto, depth: int, tolerance: float, dtype: Any = np.float32) -> None:
    """Compare with onnxruntime, and rows alone with all rows; weights stay packed."""
    model = weft.load(source, device="webgpu:0", cache=False)
    assert "block products" in template_names(model)
    stored = sum(len(tensor.raw_data) for tensor in source.graph.initializer)
    assert model.memory().weights <= 1.4 * stored + 8192
    a = np.random.default_rng(SEED).standard_normal((2, 7, depth)).astype(dtype)
    options = onnxruntime.SessionOptions()  # by default it rounds activations to int8
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"a": a})
    actual = model.run({"a": a})["y"]
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max()
    assert difference <= tolerance * np.abs(expected.astype(np.float64)).max()
    alone = [model.run({"a": a[b : b + 1, n : n + 1]})["y"] for b in range(2) for n in range(7)]
    assert np.concatenate(alone).tobytes() == actual.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 16), (8, 32)])
@pytest.mark.usefixtures("adapter")
def test_n_bits(bits: int, block: int, zeros: bool, dtype: Any) -> None:
    random, columns, depth = np.random.default_rng(SEED), 200, 512
    blocks = depth // block
    weights: dict[str, Array] = {
        "b": random.integers(0, 256, (columns, blocks, block * bits // 8), np.uint8),
        "scales": (random.random((columns, blocks)) + 0.1).astype(dtype).reshape(-1),
    }
    if zeros:
        weights["zeros"] = random.integers(0, 256, (columns, -(-blocks * bits // 8)), np.uint8).reshape(-1)
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    node = helper.make_node("MatMulNBits", ["a", *weights], ["y"], domain="com.microsoft", **attributes)
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.FLOAT16
    check_model(make_model([node], weights, depth, kind), depth, 1e-5 if dtype is np.float32 else 2e-3, dtype)


@pytest.mark.parametrize("kind", ["int4", "uint4", "int8"])
@pytest.mark.usefixtures("adapter")
def test_dequantized_in_blocks(kind: str) -> None:
    random, dtype = np.random.default_rng(SEED), np.dtype(getattr(ml_dtypes, kind, kind))
    info = ml_dtypes.iinfo(dtype)
    weights: dict[str, Array] = {
        "w": random.integers(info.min, info.max + 1, (512, 200)).astype(dtype),
        "scales": (random.random((16, 200)) + 0.1).astype(np.float32),
        "zeros": random.integers(info.min, info.max + 1, (16, 200)).astype(dtype),
    }
    nodes = [
        helper.make_node("DequantizeLinear", list(weights), ["d"], axis=0, block_size=32),
        helper.make_node("MatMul", ["a", "d"], ["y"]),
    ]
    check_model(make_model(nodes, weights, 512, TensorProto.FLOAT), 512, 1e-5)
