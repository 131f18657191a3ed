"""Products of int8 rows and weights of few bits, both quantized in blocks, against numpy and onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernels.vector.test_block_products import COLUMNS, DEPTH, SEED, check_against_reference, n_bits, template_names
from kernels.vector.works import TARGET, Array, run_work
from onnx import helper, numpy_helper

import weft
from weft.backends.host import machine
from weft.ir import dims
from weft.ir.block_weights import BlockWeights
from weft.ir.dtypes import DType
from weft.ir.layout import Layout, row_major
from weft.ir.scalar import Index, Literal, Load
from weft.kernels.build.contraction import ContractOperand
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.vector.code_products import CHUNK_ROWS, FEW_ROWS, build_code_product

INT8 = 4  # the accuracy level of int8 rows
FORMS = [(4, 32), (4, 16), (4, 128), (4, 256), (2, 32), (8, 16), (8, 32), (8, 64), (8, 256)]
needs_dot_products = pytest.mark.skipif(not TARGET.dot_product_8, reason="needs dot products of bytes")


def random_rows(rows: int, depth: int = DEPTH) -> Array:
    a = np.random.default_rng(SEED).standard_normal((rows, depth), np.float32)
    a[rows // 2, : depth // 2] = 0  # blocks without a scale
    return a


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize(("bits", "block"), FORMS)
@pytest.mark.parametrize("rows", [3, 41])
@needs_dot_products
def test_weights_of_few_bits(bits: int, block: int, zeros: bool, rows: int) -> None:
    model = check_against_reference(n_bits(rows, bits, block, zeros=zeros, level=INT8), rows)
    assert list(template_names(model)) == ["row passes", "code products"]
    stored = -(-COLUMNS // 32) * 32 * DEPTH * bits // 8
    assert model.memory().weights <= stored * (1 + (2 if zeros else 1) * 32 / (block * bits)) + 4096


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize(("bits", "block"), [form for form in FORMS if form[0] != 2])
def test_as_onnxruntime(bits: int, block: int, zeros: bool) -> None:
    source = n_bits("rows", bits, block, zeros=zeros, level=INT8)
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    model = weft.load(source, device="cpu", cache=False)
    floats = weft.load(n_bits("rows", bits, block, zeros=zeros), device="cpu", cache=False)
    for rows in (1, 20):
        a = random_rows(rows)
        (expected,) = session.run(None, {"a": a})
        actual = model.run({"a": a})["y"]
        assert np.abs(actual - expected).max() <= 2e-6 * np.abs(expected).max()
        assert np.abs(floats.run({"a": a})["y"] - expected).max() >= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 128), (8, 32), (2, 32)])
@pytest.mark.parametrize("level", [0, INT8], ids=["float", "int8"])
def test_rows_have_the_same_bits_in_any_batch(bits: int, block: int, zeros: bool, level: int) -> None:
    source = n_bits("rows", bits, block, zeros=zeros, level=level)
    a = random_rows(2 * CHUNK_ROWS + 10)
    models = [weft.load(source, device="cpu", cache=False, threads=threads) for threads in (1, 3)]
    whole = models[0].run({"a": a})["y"]
    assert models[1].run({"a": a})["y"].tobytes() == whole.tobytes()
    for rows in (*range(1, 71), CHUNK_ROWS, CHUNK_ROWS + 1):
        assert models[rows % 2].run({"a": a[:rows]})["y"].tobytes() == whole[:rows].tobytes(), rows
    for row in range(0, len(a), 17):
        assert models[0].run({"a": a[row : row + 1]})["y"].tobytes() == whole[row].tobytes(), row
    fixed = weft.load(n_bits(13, bits, block, zeros=zeros, level=level), device="cpu", cache=False)
    assert fixed.run({"a": a[:13]})["y"].tobytes() == whole[:13].tobytes()


def test_targets_without_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    host = machine.host()
    other = replace(host, target=replace(host.target, dot_product_8=False))
    monkeypatch.setattr(machine, "host", lambda: other)
    model = check_against_reference(n_bits(5, 4, 32, level=INT8), 5)
    assert "block products" in list(template_names(model))


@pytest.mark.parametrize("case", ["order", "odd depth", "long blocks"])
def test_other_forms_use_other_templates(case: str) -> None:
    depth = 500 if case == "odd depth" else 1024 if case == "long blocks" else DEPTH
    order = np.random.default_rng(SEED).integers(0, DEPTH // 32, DEPTH).astype(np.int32)
    block = 1024 if case == "long blocks" else 32
    source = n_bits(5, 4, block, depth=depth, level=INT8, order=order if case == "order" else None)
    assert "code products" not in list(template_names(check_against_reference(source, 5, depth)))


@needs_dot_products
def test_products_of_the_same_rows_share_their_codes() -> None:
    """Three products, one with an epilogue, read the codes of one row group; a fourth reads float32 rows."""
    source = n_bits("rows", 4, 32, level=INT8)
    first = source.graph.node[0]
    for number in range(1, 4):
        copy = onnx.NodeProto()
        copy.CopyFrom(first)
        copy.output[0] = f"y{number}"
        copy.input[2] = f"scales{number}"
        scales = numpy_helper.to_array(source.graph.initializer[1]) * (1 + number)
        source.graph.initializer.append(numpy_helper.from_array(scales, f"scales{number}"))
        source.graph.node.append(copy)
    for attribute in source.graph.node[3].attribute:
        if attribute.name == "accuracy_level":
            attribute.i = 0
    source.graph.initializer.append(numpy_helper.from_array(np.linspace(-1, 1, COLUMNS, dtype=np.float32), "bias"))
    source.graph.node.extend([helper.make_node("Add", ["y1", "bias"], ["s"]), helper.make_node("Relu", ["s"], ["y4"])])
    for name in ("y2", "y3", "y4"):
        source.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    model = weft.load(source, device="cpu", cache=False)
    names = list(template_names(model))
    assert (names.count("row passes"), names.count("code products"), names.count("block products")) == (1, 3, 1)
    for rows in (1, 30):
        a = random_rows(rows)
        expected = weft.load(source, device="reference").run({"a": a})
        for name, array in model.run({"a": a}).items():
            assert np.abs(array - expected[name]).max() <= 4e-6 * np.abs(expected[name]).max(), name


@pytest.mark.parametrize("zero_points", ["none", "float16"])
def test_float16_batches(zero_points: str) -> None:
    """Rows along two axes, float16 scales and zero points, and a bias."""
    random, blocks = np.random.default_rng(SEED), DEPTH // 32
    weights: dict[str, Array] = {
        "b": random.integers(0, 256, (COLUMNS, blocks, 16), np.uint8),
        "scales": (random.random((COLUMNS, blocks)) * 0.01).astype(np.float16),
        "zeros": (random.random((COLUMNS, blocks)) * 15).astype(np.float16),
        "bias": random.standard_normal(COLUMNS).astype(np.float16),
    }
    if zero_points == "none":
        del weights["zeros"]
    inputs = ["a", "b", "scales", "zeros" if "zeros" in weights else "", "", "bias"]
    node = helper.make_node(
        "MatMulNBits", inputs, ["y"], domain="com.microsoft", K=DEPTH, N=COLUMNS, block_size=32, accuracy_level=INT8
    )
    half = onnx.TensorProto.FLOAT16
    graph = helper.make_graph(
        [node],
        "blocks",
        [helper.make_tensor_value_info("a", half, ["batch", "length", DEPTH])],
        [helper.make_tensor_value_info("y", half, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    source = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    a = random_rows(3 * 7).reshape(3, 7, DEPTH).astype(np.float16)
    model = weft.load(source, device="cpu", cache=False)
    assert not TARGET.dot_product_8 or "code products" in list(template_names(model))
    expected = weft.load(source, device="reference").run({"a": a})["y"].astype(np.float32)
    actual = model.run({"a": a})["y"]
    assert np.abs(actual - expected).max() <= 1e-3 * np.abs(expected).max()
    assert model.run({"a": a[1:2, 3:4]})["y"].tobytes() == actual[1, 3].tobytes()


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (8, 32), (2, 64)])
@pytest.mark.parametrize("columns", [1, 16, 33, 64, 100])
@needs_dot_products
def test_memory_that_ends_at_an_unmapped_page(columns: int, bits: int, block: int, zeros: bool) -> None:
    random, depth = np.random.default_rng(columns), 5 * block
    numbers = random.integers(0, 2**bits, (columns, depth)).astype(np.uint8)
    scales = random.random((columns, 5)).astype(np.float32)
    at = tuple(map(Index, (dims.axis(0, columns), dims.floordiv(dims.axis(1, depth), block))))
    zero = Literal(3.0, DType.float32) if zeros else None
    weights = BlockWeights(1, columns, depth, block, bits, False, False, 0, Load(1, at, DType.float32), zero)
    size = dims.symbol("rows", 1)
    codes_tensor = StoredTensor(DType.int8, (size, depth), row_major(2))
    result = StoredTensor(DType.float32, (size, columns), row_major(2))
    for rows in (1, 3, FEW_ROWS - 1, FEW_ROWS, 23, CHUNK_ROWS + 9):
        codes = random.integers(-127, 128, (rows, depth)).astype(np.int8)
        row_scales = random.random((rows, 5)).astype(np.float32)
        left = ContractOperand(0, codes_tensor, (0, 1), None)
        work = build_code_product(left, (0, 2), 2, weights, [numbers, scales], result, None, TARGET)
        operands: list[tuple[Array, Layout]] = [(codes, row_major(2)), (row_scales, row_major(2))]
        (actual,), _ = run_work(work, operands, [result], {"rows": rows}, threads=1 + rows % 2, at_start=rows == 3)
        a: Any = codes.reshape(rows, 5, block) * row_scales.astype(np.float64)[:, :, np.newaxis]
        b: Any = (numbers.reshape(columns, 5, block) - (3.0 if zeros else 2.0 ** (bits - 1))) * scales[:, :, np.newaxis]
        expected = np.einsum("rbk,cbk->rc", a, b)
        assert np.abs(actual - expected).max() <= 1e-6 * np.abs(expected).max()
