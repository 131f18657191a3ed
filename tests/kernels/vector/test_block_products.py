"""Products with weights of few bits, quantized in blocks, against numpy and onnxruntime, and their memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.backends.host import machine
from weft.ir.compiled import CompiledProgram
from weft.ir.work import NativeSection, Task

Array = np.ndarray[Any, Any]
SEED = 41
COLUMNS, DEPTH = 200, 512


@pytest.fixture(params=["table", "arithmetic"])
def decoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode numbers by a lookup in a register, if this machine can, and by arithmetic."""
    if request.param == "arithmetic":
        host = machine.host()
        without_lookup = replace(host, target=replace(host.target, lookup_16=False))
        monkeypatch.setattr(machine, "host", lambda: without_lookup)


def make_model(nodes: list[onnx.NodeProto], weights: dict[str, Array], rows: int | str, depth: int) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [rows, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def n_bits(
    rows: int | str,
    bits: int,
    block: int,
    *,
    zeros: bool = False,
    depth: int = DEPTH,
    level: int = 0,
    order: Array | None = None,
) -> onnx.ModelProto:
    random = np.random.default_rng(SEED)
    blocks = -(-depth // block)
    weights: dict[str, Array] = {
        "b": random.integers(0, 256, (COLUMNS, blocks, block * bits // 8), np.uint8),
        "scales": (random.random((COLUMNS, blocks)) + 0.1).astype(np.float32).reshape(-1),
    }
    if zeros:
        weights["zeros"] = random.integers(0, 256, (COLUMNS, -(-blocks * bits // 8)), np.uint8).reshape(-1)
    attributes = {"K": depth, "N": COLUMNS, "bits": bits, "block_size": block, "accuracy_level": level}
    inputs = ["a", *weights]
    if order is not None:
        inputs += [""] * (4 - len(inputs)) + ["order"]
        weights["order"] = order
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **attributes)
    return make_model([node], weights, rows, depth)


def template_names(model: weft.Model) -> Iterator[str]:
    program = model.session().whole.program
    assert isinstance(program, CompiledProgram)
    for section in program.sections:
        assert isinstance(section, NativeSection)
        yield from (task.template for task in section.tasks if isinstance(task, Task))


def check_against_reference(source: onnx.ModelProto, rows: int, depth: int = DEPTH) -> weft.Model:
    """Compare the model on the CPU with numpy, and return it."""
    a = np.random.default_rng(SEED).standard_normal((rows, depth), np.float32)
    model = weft.load(source, device="cpu", cache=False)
    expected = weft.load(source, device="reference").run({"a": a})["y"]
    actual = model.run({"a": a})["y"]
    assert np.abs(actual - expected).max() <= 4e-6 * np.abs(expected).max()
    return model


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 16), (4, 128), (2, 32), (8, 32), (8, 64)])
@pytest.mark.usefixtures("decoding")
def test_weights_of_few_bits(bits: int, block: int, zeros: bool) -> None:
    source = n_bits(5, bits, block, zeros=zeros)
    model = check_against_reference(source, 5)
    assert list(template_names(model)) == ["block products"]
    stored = -(-COLUMNS // 16) * 16 * DEPTH * bits // 8
    assert model.memory().weights <= stored * (1 + (2 if zeros else 1) * 32 / (block * bits)) + 4096


@pytest.mark.parametrize("rows", [1, 2, 6, 7, 13, 40])
def test_numbers_of_rows(rows: int) -> None:
    check_against_reference(n_bits("rows", 4, 32), rows)
    check_against_reference(n_bits(rows, 4, 32), rows)


def test_as_onnxruntime() -> None:
    source = n_bits(3, 4, 32, zeros=True)
    a = np.random.default_rng(SEED).standard_normal((3, DEPTH), np.float32)
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"a": a})
    actual = weft.load(source, device="cpu", cache=False).run({"a": a})["y"]
    assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max()


def test_rows_have_the_same_bits_in_any_batch_and_for_any_number_of_threads() -> None:
    source = n_bits("rows", 4, 32)
    a = np.random.default_rng(SEED).standard_normal((13, DEPTH), np.float32)
    models = [weft.load(source, device="cpu", cache=False, threads=threads) for threads in (1, 3)]
    whole = [model.run({"a": a})["y"].tobytes() for model in models]
    assert whole[0] == whole[1] == b"".join(models[0].run({"a": a[n : n + 1]})["y"].tobytes() for n in range(13))


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize("kind", ["int4", "uint4", "int8", "uint8"])
@pytest.mark.parametrize("turned", [False, True], ids=["matmul", "gemm"])
def test_dequantized_in_blocks(kind: str, zeros: bool, turned: bool) -> None:
    random, dtype = np.random.default_rng(SEED), np.dtype(getattr(ml_dtypes, kind, kind))
    info = ml_dtypes.iinfo(dtype)
    shape, axis = ((COLUMNS, DEPTH), 1) if turned else ((DEPTH, COLUMNS), 0)
    blocks = tuple(size // 32 if number == axis else size for number, size in enumerate(shape))
    weights: dict[str, Array] = {
        "w": random.integers(info.min, info.max + 1, shape).astype(dtype),
        "scales": (random.random(blocks) + 0.1).astype(np.float32),
    }
    if zeros:
        weights["zeros"] = random.integers(info.min, info.max + 1, blocks).astype(dtype)
    nodes = [
        helper.make_node("DequantizeLinear", list(weights), ["d"], axis=axis, block_size=32),
        helper.make_node("Gemm", ["a", "d"], ["y"], transB=1)
        if turned
        else helper.make_node("MatMul", ["a", "d"], ["y"]),
    ]
    assert list(template_names(check_against_reference(make_model(nodes, weights, 5, DEPTH), 5))) == ["block products"]


def test_epilogue_is_fused() -> None:
    source = n_bits(5, 4, 32)
    source.graph.node[0].output[0] = "p"
    source.graph.initializer.append(numpy_helper.from_array(np.linspace(-1, 1, COLUMNS, dtype=np.float32), "bias"))
    source.graph.node.extend([helper.make_node("Add", ["p", "bias"], ["s"]), helper.make_node("Relu", ["s"], ["y"])])
    assert list(template_names(check_against_reference(source, 5))) == ["block products"]


@pytest.mark.parametrize("case", ["order", "odd depth"])
def test_other_forms_use_other_templates(case: str) -> None:
    depth = DEPTH if case == "order" else 500
    order = np.random.default_rng(SEED).integers(0, DEPTH // 32, DEPTH).astype(np.int32)
    source = n_bits(5, 4, 32, depth=depth, order=order if case == "order" else None)
    assert "block products" not in list(template_names(check_against_reference(source, 5, depth)))


def test_weights_can_be_set(tmp_path: Any) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(n_bits(5, 4, 32), path)
    model, a = weft.load(path, device="cpu", cache=False), np.ones((5, DEPTH), np.float32)
    before = model.run({"a": a})["y"]
    model.set_weight("scales", 2 * model.weights["scales"])
    np.testing.assert_array_equal(model.run({"a": a})["y"], 2 * before)
