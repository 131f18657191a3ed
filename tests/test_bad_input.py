"""Models and inputs that cannot work: each is a weft error of the right class that names the culprit and the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
import pytest
from frontend.samples import external, model, node, subgraph, tensor, value
from onnx import TensorProto, helper

import weft
from weft.errors import (
    ExecutionError,
    InputError,
    InvalidModelError,
    ModelError,
    OutOfMemoryError,
    UnsupportedModelError,
)

INT64 = TensorProto.INT64
BOOL = TensorProto.BOOL


def save(folder: Path, built: onnx.ModelProto) -> Path:
    path = folder / "bad.onnx"
    path.write_bytes(built.SerializeToString())
    return path


def refuse(folder: Path, built: onnx.ModelProto, kind: type[Exception], *said: str) -> None:
    """Loading must fail with `kind`, naming the file and all of `said`."""
    path = save(folder, built)
    with pytest.raises(kind) as caught:
        weft.load(path)
    for text in (str(path), *said):
        assert text in str(caught.value)


def single(op: str, inputs: Sequence[Any], outputs: int = 1, opset: int = 23, **attributes: Any) -> onnx.ModelProto:
    """A model of one node, named culprit. An input is an array (a constant), a shape, a (shape, dtype), or None."""
    names, declared, constants = [], [], []
    for number, given in enumerate(inputs):
        name = f"in{number}"
        names.append("" if given is None else name)
        match given:
            case None:
                continue
            case np.ndarray():
                constants.append(tensor(name, given))
            case (list() as shape, int() as dtype):
                declared.append(value(name, shape, dtype))
            case list():
                declared.append(value(name, given))
    results = [f"out{number}" for number in range(outputs)]
    domain = attributes.pop("domain", "")
    made = node(op, names, results, name="culprit", domain=domain, **attributes)
    typeless = [helper.make_empty_tensor_value_info(name) for name in results]
    return model([made], declared, typeless, constants, opsets={"": opset, "com.microsoft": 1, "ai.onnx.ml": 4})


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


# -- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "empty"), (b"hello world", "not a whole ONNX file"), (b"\x08\x0a", "no graph"), (b"\xff" * 100, "not a whole ONNX file"),
     (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS")],
)  # fmt: skip
def test_no_model_at_all(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModelError, match=said) as caught:
        weft.load(path)
    assert str(path) in str(caught.value)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=re.escape(str(tmp_path))):
        weft.load(tmp_path)


NAMES: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[str, ...]]] = {
    "cycle": (
        lambda: model([node("Add", ["x", "b"], ["a"], name="first"), node("Neg", ["a"], ["b"], name="second"),
                       node("Abs", ["a"], ["y"])]),
        ("cycle", "first", "second"),
    ),
    "cycle of one": (lambda: model([node("Add", ["x", "y"], ["y"], name="self")]), ("cycle", "self")),
    "cycle through a branch": (
        lambda: model(
            [node("If", ["c"], ["y"], name="choice", then_branch=subgraph("t", [node("Neg", ["y"], ["b"])], ["b"]),
                  else_branch=subgraph("e", [node("Neg", ["x"], ["b"])], ["b"]))],
            [value("x"), value("c", [], BOOL)],
        ),
        ("cycle", "choice"),
    ),
    "missing input": (lambda: model([node("Add", ["x", "gone"], ["y"], name="culprit")]), ("gone", "culprit")),
    "missing output": (lambda: model([node("Neg", ["x"], ["z"])]), ("output 'y'",)),
    "missing in a branch": (
        lambda: model(
            [node("If", ["c"], ["y"], name="choice", then_branch=subgraph("t", [node("Neg", ["gone"], ["b"])], ["b"]),
                  else_branch=subgraph("e", [node("Neg", ["x"], ["b"])], ["b"]))],
            [value("x"), value("c", [], BOOL)],
        ),
        ("gone",),
    ),
    "two nodes": (
        lambda: model([node("Neg", ["x"], ["y"]), node("Abs", ["x"], ["y"], name="again")]), ("'y'", "again")
    ),
    "two inputs": (lambda: model([node("Neg", ["x"], ["y"])], [value("x"), value("x")]), ("'x' is defined more",)),
    "two initializers": (
        lambda: model([node("Neg", ["x"], ["y"])], initializers=[tensor("w", 1.0), tensor("w", 2.0)]), ("'w'",)
    ),
    "input and node": (lambda: model([node("Neg", ["x"], ["x"], name="again")]), ("'x'", "again")),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES)
def test_names(tmp_path: Path, case: str) -> None:
    build, said = NAMES[case]
    refuse(tmp_path, build(), InvalidModelError, *said)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (TensorProto(name="w", data_type=1, dims=[3], raw_data=b"\0" * 8), "need 12 bytes"),
        (TensorProto(name="w", data_type=1, dims=[3], float_data=[1, 2]), "need 3 elements"),
        (TensorProto(name="w", data_type=1, dims=[2**40], raw_data=b"\0" * 8), "need"),
        (TensorProto(name="w", data_type=1, dims=[2**62, 2**62], float_data=[1]), "need"),
        (TensorProto(name="w", data_type=1, dims=[2**32, 2**32]), "need"),
        (TensorProto(name="w", data_type=1, dims=[-3], float_data=[1]), "negative"),
        (TensorProto(name="w", data_type=99, dims=[1], float_data=[1]), "element type number 99"),
        (TensorProto(name="w", data_type=0, dims=[1], float_data=[1]), "element type number 0"),
    ],
)
def test_tensors_that_contradict_themselves(tmp_path: Path, made: TensorProto, said: str) -> None:
    refuse(tmp_path, model([node("Add", ["x", "w"], ["y"])], initializers=[made]), ModelError, "value w", said)
    made.name = ""
    constant = node("Constant", [], ["w"], name="culprit", value=made)
    refuse(tmp_path, model([constant, node("Add", ["x", "w"], ["y"])]), ModelError, "culprit", said)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"location": "../secret.bin"}, "not allowed"),
        ({"location": "/etc/passwd"}, "not allowed"),
        ({"location": "sub/../../secret.bin"}, "not allowed"),
        ({"location": "link.bin"}, "leads out"),
        ({"location": ""}, "not allowed"),
        ({"location": "absent.bin"}, "missing"),
        ({"location": "short.bin"}, "past the end"),
        ({"location": "data.bin", "offset": "8"}, "past the end"),
        ({"location": "data.bin", "offset": str(2**63)}, "past the end"),
        ({"location": "data.bin", "length": "8"}, "need 12 bytes"),
        ({"location": "data.bin", "offset": "-4"}, "'-4'"),
        ({"location": "data.bin", "offset": "many"}, "'many'"),
    ],
)
def test_external_data(tmp_path: Path, entries: dict[str, str], said: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"\0" * 12)
    (folder / "data.bin").write_bytes(b"\0" * 12)
    (folder / "short.bin").write_bytes(b"\0" * 8)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    built = model([node("Add", ["x", "w"], ["y"])], initializers=[external("w", [3], **entries)])
    refuse(folder, built, ModelError, "value w", said)


def test_external_data_of_a_model_without_a_folder() -> None:
    built = model([node("Add", ["x", "w"], ["y"])], initializers=[external("w", [3], location="data.bin")])
    with pytest.raises(ModelError, match=r"<bytes>.*no folder.*value w"):
        weft.load(built.SerializeToString())


# -- ops, opsets, attributes -----------------------------------------------------------------------------------------

NEWEST = onnx.defs.onnx_opset_version()


@pytest.mark.parametrize(
    ("built", "kind", "said"),
    [
        (single("Frobnicate", [[2]]), UnsupportedModelError, ("Frobnicate", "culprit")),
        (single("relu", [[2]]), UnsupportedModelError, ("did you mean Relu", "culprit")),
        (single("Frobnicate", [[2]], domain="com.microsoft"), UnsupportedModelError, ("com.microsoft.Frobnicate",)),
        (single("Neg", [[2]], domain="strange"), InvalidModelError, ("domain strange", "culprit")),
        (single("Neg", [[2]], opset=NEWEST + 1), UnsupportedModelError, (f"opset {NEWEST + 1}", f"up to {NEWEST}")),
        (single("Neg", [[2]], opset=10**6), UnsupportedModelError, ("opset 1000000",)),
        (single("Neg", [[2]], opset=0), UnsupportedModelError, ("opset 0",)),
        (single("Neg", [[2]], opset=-3), UnsupportedModelError, ("opset -3",)),
        (single("GridSample", [[1, 1, 2, 2], [1, 1, 1, 2]], opset=15), UnsupportedModelError, ("opset 15", "culprit")),
        (single("Neg", [[2]], wrong=1), InvalidModelError, ("'wrong'", "culprit")),
        (single("Softmax", [[2]], axis=1.5), InvalidModelError, ("'axis'", "culprit")),
        (single("Softmax", [[2]], axis="one"), InvalidModelError, ("'axis'", "culprit")),
        (single("Transpose", [[2, 3]], perm=1), InvalidModelError, ("'perm'", "culprit")),
        (single("Transpose", [[2, 3]], perm=[0.5, 1.5]), InvalidModelError, ("'perm'", "culprit")),
        (single("LeakyRelu", [[2]], alpha="steep"), InvalidModelError, ("'alpha'", "culprit")),
        (single("Concat", [[2], [2]]), InvalidModelError, ("'axis'", "culprit")),
        (single("Cast", [[2]]), InvalidModelError, ("'to'", "culprit")),
        (single("Cast", [[2]], to=99), ModelError, ("99", "culprit")),
        (single("Cast", [[2]], to=0), ModelError, ("0", "culprit")),
        (single("Neg", []), InvalidModelError, ("needs its input", "culprit")),
        (single("Neg", [[2], [2]]), InvalidModelError, ("at most 1 inputs", "culprit")),
        (single("Add", [[2], None]), InvalidModelError, ("needs its input", "culprit")),
        (single("Neg", [[2]], outputs=2), InvalidModelError, ("outputs", "culprit")),
        (single("Einsum", [[2, 3], [3, 4]], equation="ij,jk->"), None, ()),
    ],
)
def test_ops(tmp_path: Path, built: onnx.ModelProto, kind: type[Exception] | None, said: tuple[str, ...]) -> None:
    if kind is None:
        weft.load(built)
    else:
        refuse(tmp_path, built, kind, *said)


def function_calling_itself() -> onnx.ModelProto:
    made = helper.make_function(
        "local", "Again", ["a"], ["b"], [node("Again", ["a"], ["b"], domain="local")], [helper.make_opsetid("local", 1)]
    )
    return model([node("Again", ["x"], ["y"], domain="local")], opsets={"": 20, "local": 1}, functions=[made])


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    refuse(tmp_path, function_calling_itself(), ModelError, "Again")


def test_deeply_nested_branches(tmp_path: Path) -> None:
    """Deep nesting of one branch runs or is refused, and never overflows the stack."""
    inner = subgraph("leaf", [node("Neg", ["x"], ["v0"])], ["v0"])
    other = subgraph("other", [node("Abs", ["x"], ["o"])], ["o"])
    for level in range(24):
        step = node("If", ["c"], [f"v{level + 1}"], then_branch=inner, else_branch=other)
        inner = subgraph(f"level{level}", [step], [f"v{level + 1}"])
    built = model([node("If", ["c"], ["y"], then_branch=inner, else_branch=other)], [value("x"), value("c", [], BOOL)])
    x = floats(2, 3)
    try:
        loaded = weft.load(save(tmp_path, built))
    except ModelError as error:
        assert "nest" in str(error)
    else:
        np.testing.assert_array_equal(loaded(x, True), -x)


# -- shapes and types that do not fit an op --------------------------------------------------------------------------

MISFITS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Add", [[2, 3], [2, 4]], {}),
    ("Add", [[2], ([2], INT64)], {}),
    ("And", [[2], [2]], {}),
    ("Not", [[2]], {}),
    ("BitwiseAnd", [[2], [2]], {}),
    ("Where", [[2], [2], [2]], {}),
    ("Where", [([2], BOOL), [2], ([2], INT64)], {}),
    ("Sum", [[2], [3]], {}),
    ("Pow", [[2], [3]], {}),
    ("PRelu", [[2, 3], [2]], {}),
    ("Clip", [[2], [2], [2]], {}),
    ("MatMul", [[2, 3], [2, 3]], {}),
    ("MatMul", [[], [2, 3]], {}),
    ("MatMul", [[2, 2, 3], [3, 3, 2]], {}),
    ("MatMulInteger", [([2, 3], TensorProto.UINT8), ([2, 3], TensorProto.UINT8)], {}),
    ("Gemm", [[2, 3, 4], [3, 4]], {}),
    ("Gemm", [[2, 3], [4, 3]], {}),
    ("Gemm", [[2, 3], [3, 4], [5]], {}),
    ("Einsum", [[2, 3], [4, 5]], {"equation": "ij,jk->ik"}),
    ("Einsum", [[2, 3]], {"equation": "ijk->i"}),
    ("Einsum", [[2, 3]], {"equation": "ij->iz"}),
    ("Einsum", [[2, 3]], {"equation": "i->->j"}),
    ("Det", [[2, 3]], {}),
    ("Det", [[2]], {}),
    ("Conv", [[2, 3], floats(4, 3, 3, 3)], {}),
    ("Conv", [[1, 3, 8, 8], floats(4, 2, 3, 3)], {}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3)], {}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"kernel_shape": [5, 5]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"strides": [0, 1]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"strides": [-1, 1]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"strides": [1]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"dilations": [0, 1]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"pads": [1, 1]}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {"auto_pad": "SIDEWAYS"}),
    ("Conv", [[1, 4, 8, 8], floats(4, 2, 3, 3)], {"group": 0}),
    ("Conv", [[1, 4, 8, 8], floats(5, 2, 3, 3)], {"group": 2}),
    ("Conv", [[1, 3, 8, 8], floats(4, 3, 3, 3), floats(5)], {}),
    ("ConvTranspose", [[1, 3, 8, 8], floats(4, 3, 3, 3)], {}),
    ("ConvTranspose", [[1, 3, 8], floats(3, 4, 3, 3)], {}),
    ("MaxPool", [[1, 3]], {"kernel_shape": [2, 2]}),
    ("MaxPool", [[1, 3, 8, 8]], {"kernel_shape": [2]}),
    ("MaxPool", [[1, 3, 8, 8]], {"kernel_shape": [2, 2], "strides": [0, 0]}),
    ("MaxPool", [[1, 3, 8, 8]], {"kernel_shape": [0, 0]}),
    ("AveragePool", [[1, 3, 8, 8]], {"kernel_shape": [2, 2], "pads": [1]}),
    ("GlobalAveragePool", [[3]], {}),
    ("BatchNormalization", [[1, 3, 4], floats(3), floats(3), floats(3), floats(4)], {}),
    ("BatchNormalization", [[3], floats(3), floats(3), floats(3), floats(3)], {}),
    ("InstanceNormalization", [[1, 3, 4], floats(4), floats(3)], {}),
    ("LayerNormalization", [[2, 3], floats(3)], {"axis": 2}),
    ("LayerNormalization", [[2, 3], floats(4)], {}),
    ("GroupNormalization", [[1, 4, 5], floats(4), floats(4)], {"num_groups": 3}),
    ("LpNormalization", [[2, 3]], {"axis": 5}),
    ("Softmax", [[2, 3]], {"axis": 2}),
    ("LogSoftmax", [[2, 3]], {"axis": -3}),
    ("ArgMax", [[2, 3]], {"axis": 2}),
    ("ReduceSum", [[2, 3], ints(2)], {}),
    ("ReduceSum", [[2, 3], ints(0, -2)], {}),
    ("ReduceMax", [[2, 3], ints(-3)], {}),
    ("CumSum", [[2, 3], np.array(2, np.int64)], {}),
    ("Concat", [[2, 3], [2, 3]], {"axis": 2}),
    ("Concat", [[2, 3], [2, 4]], {"axis": 0}),
    ("Concat", [[2, 3], [2]], {"axis": 0}),
    ("Concat", [[2], ([2], INT64)], {"axis": 0}),
    ("Transpose", [[2, 3]], {"perm": [0]}),
    ("Transpose", [[2, 3]], {"perm": [0, 0]}),
    ("Transpose", [[2, 3]], {"perm": [0, 2]}),
    ("Reshape", [[4, 6], ints(5, 5)], {}),
    ("Reshape", [[4, 6], ints(-1, -1)], {}),
    ("Reshape", [[4, 6], ints(-2, 6)], {}),
    ("Reshape", [[4, 6], ints(5, -1)], {}),
    ("Reshape", [[4, 6], ints(0, -1, 0)], {}),
    ("Reshape", [[4, 6], ints(0, -1)], {"allowzero": 1}),
    ("Reshape", [[4, 6], floats(2)], {}),
    ("Reshape", [[4, 6], ints(2**40, 2**40)], {}),
    ("Flatten", [[2, 3]], {"axis": 3}),
    ("Squeeze", [[2, 1], ints(0)], {}),
    ("Squeeze", [[2, 1], ints(5)], {}),
    ("Unsqueeze", [[2], ints(0, 0)], {}),
    ("Unsqueeze", [[2], ints(5)], {}),
    ("Slice", [[4], ints(0, 1), ints(2)], {}),
    ("Slice", [[4], ints(0), ints(2), ints(3)], {}),
    ("Slice", [[4], ints(0), ints(2), ints(0), ints(0)], {}),
    ("Slice", [[4, 4], ints(0, 0), ints(2, 2), ints(0, 0)], {}),
    ("Split", [[4], ints(1, 2)], {}),
    ("Split", [[4], ints(5, -1)], {}),
    ("Split", [[4], ints(2, 2)], {"axis": 1}),
    ("Gather", [[2, 3], ints(0)], {"axis": 2}),
    ("Gather", [[2, 3], floats(1)], {}),
    ("GatherElements", [[2, 3], ints(0)], {}),
    ("GatherElements", [[2, 3], ints(0)[None]], {"axis": 2}),
    ("GatherND", [[2, 3], ints(0, 0, 0)[None]], {}),
    ("ScatterElements", [[2, 3], ints(0)[None], floats(1, 2)], {}),
    ("ScatterElements", [[2, 3], ints(0), floats(1)], {}),
    ("ScatterND", [[2, 3], ints(0, 0, 0)[None], floats(1)], {}),
    ("ScatterND", [[2, 3], ints(0)[None], floats(1, 4)], {}),
    ("Expand", [[2, 3], ints(2, 4)], {}),
    ("Expand", [[2, 3], ints(-1, 3)], {}),
    ("Tile", [[2, 3], ints(2)], {}),
    ("Tile", [[2, 3], ints(-1, 1)], {}),
    ("Pad", [[2, 3], ints(1, 1)], {}),
    ("Pad", [[2, 3], ints(-2, 0, -2, 0)], {}),
    ("Pad", [[2, 3], ints(0, 0, 0, 0)], {"mode": "sideways"}),
    ("Resize", [[1, 1, 2, 2]], {}),
    ("Resize", [[1, 1, 2, 2], None, floats(3)], {}),
    ("Resize", [[1, 1, 2, 2], None, -floats(4)], {}),
    ("Resize", [[1, 1, 2, 2], None, None, ints(1, 1, -4, 4)], {}),
    ("Resize", [[1, 1, 2, 2], None, floats(4)], {"mode": "magic"}),
    ("DepthToSpace", [[1, 3, 2, 2]], {"blocksize": 2}),
    ("DepthToSpace", [[1, 4, 2, 2]], {"blocksize": 0}),
    ("SpaceToDepth", [[1, 4, 3, 3]], {"blocksize": 2}),
    ("OneHot", [ints(1), ints(-2), floats(2)], {}),
    ("OneHot", [ints(1), ints(3), floats(3)], {}),
    ("TopK", [[3], ints(4)], {}),
    ("TopK", [[3], ints(-1)], {}),
    ("TopK", [[3], ints(1)], {"axis": 1}),
    ("Range", [np.array(0), np.array(5), np.array(0)], {}),
    ("Range", [ints(0, 1), np.array(5), np.array(1)], {}),
    ("ConstantOfShape", [ints(-1)], {}),
    ("ConstantOfShape", [floats(1)], {}),
    ("EyeLike", [[2]], {}),
    ("Trilu", [[3]], {}),
    ("QuantizeLinear", [[2, 3], floats(4)], {}),
    ("QuantizeLinear", [[2, 3], floats(3)], {"axis": 2}),
    ("DequantizeLinear", [([2, 3], TensorProto.INT8), floats(3)], {"axis": 0}),
    ("LSTM", [[5, 1], floats(1, 8, 3), floats(1, 8, 2)], {"hidden_size": 2}),
    ("LSTM", [[5, 1, 3], floats(1, 8, 4), floats(1, 8, 2)], {"hidden_size": 2}),
    ("GRU", [[5, 1, 3], floats(1, 6, 3), floats(1, 6, 5)], {"hidden_size": 2}),
    ("GRU", [[5, 1, 3], floats(1, 6, 3), floats(1, 6, 2)], {"hidden_size": 2, "direction": "sideways"}),
    ("RNN", [[5, 1, 3], floats(1, 2, 3), floats(1, 2, 2)], {"hidden_size": 2, "activations": ["Magic"]}),
    ("Compress", [[2, 3], ([2], BOOL)], {"axis": 2}),
    ("Unique", [[2, 3]], {"axis": 2}),
    ("ReverseSequence", [[4, 4], ints(1, 2)], {}),
    ("NonMaxSuppression", [[1, 2], [1, 1, 2]], {}),
    ("GridSample", [[1, 1, 2, 2], [1, 2, 2, 3]], {}),
    ("RoiAlign", [[1, 1, 4, 4], [1, 5], ([1], INT64)], {}),
    ("Col2Im", [[1, 5, 4], ints(3, 3), ints(2, 2)], {}),
    ("SoftmaxCrossEntropyLoss", [[2, 3], ([4], INT64)], {}),
    ("Attention", [[1, 2, 4], [1, 3, 4], [1, 3, 4]], {"q_num_heads": 3, "kv_num_heads": 3}),
    ("RotaryEmbedding", [[1, 2, 3, 5], floats(4, 2), floats(4, 2), ([1, 3], INT64)], {}),
    ("SequenceAt", [[2], np.array(0, np.int64)], {}),
    ("SequenceInsert", [[2], [2]], {}),
    ("StringConcat", [[2], [2]], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), MISFITS, ids=lambda part: re.sub(r"\s+", " ", str(part))[:60])
def test_misfits(tmp_path: Path, op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    outputs = 2 if op in ("Split", "TopK") else 1
    refuse(tmp_path, single(op, inputs, outputs, **attributes), ModelError, "culprit", op)


# -- control flow ----------------------------------------------------------------------------------------------------


def looping(body: onnx.GraphProto, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    return model(
        [node("Loop", list(inputs), list(outputs), name="culprit", body=body)],
        [value("x"), value("n", [], INT64)],
        [value(name, None) for name in outputs],
    )


def loop_body(count: int, results: Sequence[str] = ("still", "w")) -> onnx.GraphProto:
    given = [value("i", [], INT64), value("going", [], BOOL), value("v"), value("u")][:count]
    return helper.make_graph(
        [node("Identity", ["going"], ["still"]), node("Neg", ["x"], ["w"])],
        "body", given, [value(name, None) for name in results],
    )  # fmt: skip


@pytest.mark.parametrize(
    "built",
    [
        looping(loop_body(2), ["n", "", "x"], ["y"]),
        looping(loop_body(4), ["n", "", "x"], ["y"]),
        looping(loop_body(3, ["still"]), ["n", "", "x"], ["y"]),
        looping(loop_body(3), ["n", "", "x"], ["y", "z"]),
        looping(loop_body(3, ["w", "w"]), ["n", "", "x"], ["y"]),
        single("If", [[2]], then_branch=subgraph("t", [], []), else_branch=subgraph("e", [], [])),
        single("If", [([], BOOL)]),
        single("Loop", [([], INT64), None, [2]]),
        single("Scan", [[2]], num_scan_inputs=5, body=subgraph("body", [node("Neg", ["a"], ["b"])], ["b"], [value("a")])),
    ],
    ids=["few inputs", "many inputs", "no carry", "many outputs", "no condition", "If on floats", "no branches",
         "no body", "Scan"],
)  # fmt: skip
def test_control_flow_that_does_not_fit(tmp_path: Path, built: onnx.ModelProto) -> None:
    refuse(tmp_path, built, ModelError, "culprit")


# -- past memory -----------------------------------------------------------------------------------------------------

HUGE = 2**40


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("ConstantOfShape", [ints(HUGE)], {}),
        ("ConstantOfShape", [ints(2**20, 2**20, 4)], {}),
        ("ConstantOfShape", [ints(2**62, 2**62)], {}),
        ("Expand", [floats(1), ints(HUGE)], {}),
        ("Expand", [[1], ints(HUGE)], {}),
        ("Tile", [floats(1), ints(HUGE)], {}),
        ("Tile", [[3], ints(HUGE)], {}),
        ("Range", [np.array(0), np.array(HUGE), np.array(1)], {}),
        ("Range", [np.array(0.0), np.array(1e300), np.array(1.0)], {}),
        ("Pad", [[3], ints(HUGE, HUGE)], {}),
        ("Resize", [[1, 1, 2, 2], None, None, ints(1, 1, 2**20, 2**20)], {}),
        ("Resize", [[1, 1, 2, 2], None, np.float32([1, 1, 1e6, 1e6])], {}),
        ("OneHot", [ints(1), np.array(HUGE), np.float32([0, 1])], {}),
        ("MatMul", [[2**20, 1], [1, 2**20]], {}),
        ("RandomNormal", [], {"shape": [2**20, 2**20]}),
        ("EyeLike", [[2**20, 2**20]], {}),
        ("Conv", [[1, 1, 4], floats(1, 1, 1)], {"pads": [HUGE, HUGE]}),
        ("MaxPool", [[1, 1, 4]], {"kernel_shape": [1], "pads": [HUGE, HUGE]}),
    ],
    ids=lambda part: re.sub(r"\s+", " ", str(part))[:50],
)
def test_results_past_memory(tmp_path: Path, op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Whether or not loading can tell already, an error names the node, and nothing is allocated."""
    path = save(tmp_path, single(op, inputs, **attributes))
    with pytest.raises((OutOfMemoryError, ModelError, ExecutionError)) as caught:
        loaded = weft.load(path)
        loaded.run({spec.name: np.broadcast_to(np.float32(1), spec.shape) for spec in loaded.inputs})
    assert "culprit" in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("op", "shape"), [("Expand", [HUGE]), ("ConstantOfShape", [2**20, 2**20]), ("Tile", [HUGE]), ("Expand", [2**62, 2**62])]
)  # fmt: skip
def test_sizes_past_memory_that_arrive_with_the_data(tmp_path: Path, op: str, shape: list[int]) -> None:
    given = [([len(shape)], INT64)] if op == "ConstantOfShape" else [floats(1), ([len(shape)], INT64)]
    path = save(tmp_path, single(op, given))
    loaded = weft.load(path)
    with pytest.raises((OutOfMemoryError, ExecutionError)) as caught:
        loaded(shape)
    assert "culprit" in str(caught.value)
    assert str(path) in str(caught.value)


# -- data that does not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "feeds", "said"),
    [
        ("Gather", [[3], ([1], INT64)], {}, [floats(3), ints(3)], "index 3 is out of range"),
        ("Gather", [[3], ([1], INT64)], {}, [floats(3), ints(-4)], "out of range"),
        ("GatherElements", [[3], ([1], INT64)], {}, [floats(3), ints(7)], "out of range"),
        ("GatherND", [[3], ([1, 1], INT64)], {}, [floats(3), ints(5)[None]], "out of range"),
        ("ScatterElements", [[3], ([1], INT64), [1]], {}, [floats(3), ints(9), floats(1)], "out of range"),
        ("ScatterND", [[3], ([1, 1], INT64), [1]], {}, [floats(3), ints(9)[None], floats(1)], "out of range"),
        ("Reshape", [[6], ([2], INT64)], {}, [floats(6), ints(4, 4)], ""),
        ("Reshape", [[6], ([2], INT64)], {}, [floats(6), ints(4, -1)], ""),
        ("Reshape", [[6], ([2], INT64)], {}, [floats(6), ints(-2, -3)], ""),
        ("Reshape", [["n"], ([2], INT64)], {}, [floats(6), ints(0, -1)], None),
        ("Expand", [[2], ([1], INT64)], {}, [floats(2), ints(5)], ""),
        ("Tile", [[2], ([1], INT64)], {}, [floats(2), ints(-5)], ""),
        ("Split", [[4], ([2], INT64)], {}, [floats(4), ints(1, 1)], ""),
        ("TopK", [[3], ([1], INT64)], {}, [floats(3), ints(5)], ""),
        ("Range", [([], INT64)] * 3, {}, [ints(0)[0], ints(5)[0], ints(0)[0]], ""),
        ("Slice", [[4], ([1], INT64), ([1], INT64), ([1], INT64), ([1], INT64)], {},
         [floats(4), ints(0), ints(2), ints(0), ints(0)], ""),
        ("Slice", [[4], ([1], INT64), ([1], INT64), ([1], INT64)], {}, [floats(4), ints(0), ints(2), ints(7)], ""),
        ("Unsqueeze", [[4], ([1], INT64)], {}, [floats(4), ints(9)], ""),
        ("ReduceSum", [[4], ([1], INT64)], {}, [floats(4), ints(9)], ""),
        ("ConstantOfShape", [([1], INT64)], {}, [ints(-4)], ""),
        ("Pad", [[4], ([2], INT64)], {}, [floats(4), ints(-3, -3)], ""),
        ("Concat", [["n"], ["n", "m"]], {"axis": 0}, None, ""),
    ],
    ids=lambda part: re.sub(r"\s+", " ", str(part))[:40],
)  # fmt: skip
def test_data_that_does_not_fit(
    tmp_path: Path, op: str, inputs: list[Any], attributes: dict[str, Any], feeds: list[Any] | None, said: str | None
) -> None:
    path = save(tmp_path, single(op, inputs, 2 if op in ("Split", "TopK") else 1, **attributes))
    if said is None:
        weft.load(path)(*feeds or ())
        return
    with pytest.raises(ModelError if feeds is None else (ExecutionError, InputError)) as caught:
        weft.load(path)(*feeds or ())
    for text in (str(path), "culprit", said):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "feeds"),
    [
        ([node("Shape", ["x"], ["s"]), node("Sub", ["s", "two"], ["t"]), node("ConstantOfShape", ["t"], ["y"], name="culprit")],
         floats(1)),
        ([node("Shape", ["x"], ["s"]), node("Mod", ["s", "zero"], ["q"], name="culprit"), node("Reshape", ["x", "q"], ["y"], name="culprit")],
         floats(2)),
    ],
    ids=["negative size", "remainder by zero"],
)  # fmt: skip
def test_arithmetic_of_shapes(tmp_path: Path, nodes: list[onnx.NodeProto], feeds: np.ndarray) -> None:
    built = model(nodes, [value("x", ["n"])], [value("y", None)], [tensor("two", ints(2)), tensor("zero", ints(0))])
    path = save(tmp_path, built)
    with pytest.raises(weft.WeftError) as caught:
        weft.load(path)(feeds)
    for text in (str(path), "culprit"):
        assert text in str(caught.value)


@pytest.mark.parametrize("divisor", ["zero", "none"])
def test_division_by_zero_in_shapes(tmp_path: Path, divisor: str) -> None:
    """Integers divided by 0 are 0 wherever they are computed, while loading or in a run; nothing traps."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Sub", ["s", "two"], ["none"]),
        node("Div", ["s", divisor], ["q"]),
        node("ConstantOfShape", ["q"], ["y"]),
    ]
    built = model(nodes, [value("x", ["n"])], [value("y", None)], [tensor("two", ints(2)), tensor("zero", ints(0))])
    assert weft.load(save(tmp_path, built))(floats(2)).shape == (0,)


# -- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ({"x": floats(2, 3).astype(np.float64), "y": ints(1)}, "'x' must be float32, not float64"),
        ({"x": floats(2, 3), "y": np.int32([1])}, "'y' must be int64, not int32"),
        ({"x": floats(2, 3, 1), "y": ints(1)}, "'x' must have 2 dimensions"),
        ({"x": floats(2), "y": ints(1)}, "'x' must have 2 dimensions"),
        ({"x": floats(2, 4), "y": ints(1)}, "'x' must have size 3 in dimension 1"),
        ({"x": floats(2, 3)}, "'y' is missing"),
        ({}, "'x' is missing"),
        ({"x": floats(2, 3), "y": ints(1), "z": ints(1)}, "no input 'z'"),
        ({"x": None, "y": ints(1)}, "'x' must be an array, not nothing"),
        ({"x": "text", "y": ints(1)}, "'x' cannot be read as a float32 array"),
    ],
)
def test_inputs(tmp_path: Path, feeds: dict[str, Any], said: str) -> None:
    built = model(
        [node("Gather", ["x", "y"], ["z"], axis=1)],
        [value("x", ["n", 3]), value("y", ["k"], INT64)],
        [value("z", None)],
    )
    path = save(tmp_path, built)
    loaded = weft.load(path)
    with pytest.raises(InputError) as caught:
        loaded.run(feeds)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
