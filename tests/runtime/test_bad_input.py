"""Invalid models and inputs raise the right WeftError, which names the file and the node, value or input."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
import pytest
from frontend.samples import external, model, node, subgraph, tensor, value
from onnx import TensorProto, helper
from single_nodes import BOOL, INT64, floats, ints, refuse, save, single

import weft
from weft.errors import InputError, InvalidModelError, ModelError, UnsupportedModelError

# -- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"hello world", "a text file that begins"), (b"\x08\x0a", "no graph"),
     (b"\xff" * 100, "not a complete ONNX file"), (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS")],
)  # fmt: skip
def test_files_that_are_not_models(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModelError, match=message) as caught:
        weft.load(path)
    assert str(path) in str(caught.value)


def test_folder_is_not_a_model(tmp_path: Path) -> None:
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
        lambda: model([node("Neg", ["x"], ["y"])], initializers=[tensor("w", 1.0), tensor("w", [2.0, 3.0])]), ("'w'",)
    ),
    "input and node": (lambda: model([node("Neg", ["x"], ["x"], name="again")]), ("'x'", "again")),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES)
def test_names(tmp_path: Path, case: str) -> None:
    build, messages = NAMES[case]
    refuse(tmp_path, build(), InvalidModelError, *messages)


@pytest.mark.parametrize(
    ("bad_tensor", "message"),
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
def test_inconsistent_tensors(tmp_path: Path, bad_tensor: TensorProto, message: str) -> None:
    refuse(tmp_path, model([node("Add", ["x", "w"], ["y"])], initializers=[bad_tensor]), ModelError, "value w", message)
    bad_tensor.name = ""
    constant = node("Constant", [], ["w"], name="culprit", value=bad_tensor)
    refuse(tmp_path, model([constant, node("Add", ["x", "w"], ["y"])]), ModelError, "culprit", message)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../secret.bin"}, "not allowed"),
        ({"location": "/etc/passwd"}, "not allowed"),
        ({"location": "sub/../../secret.bin"}, "not allowed"),
        ({"location": "link.bin"}, "leads out"),
        ({"location": ""}, "not allowed"),
        ({"location": "absent.bin"}, "missing"),
        ({"location": "short.bin"}, "beyond the end"),
        ({"location": "data.bin", "offset": "8"}, "beyond the end"),
        ({"location": "data.bin", "offset": str(2**63)}, "beyond the end"),
        ({"location": "data.bin", "length": "8"}, "need 12 bytes"),
        ({"location": "data.bin", "offset": "-4"}, "'-4'"),
        ({"location": "data.bin", "offset": "many"}, "'many'"),
    ],
)
def test_external_data(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"\0" * 12)
    (folder / "data.bin").write_bytes(b"\0" * 12)
    (folder / "short.bin").write_bytes(b"\0" * 8)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    built = model([node("Add", ["x", "w"], ["y"])], initializers=[external("w", [3], **entries)])
    refuse(folder, built, ModelError, "value w", message)


def test_external_data_of_a_model_without_a_folder() -> None:
    built = model([node("Add", ["x", "w"], ["y"])], initializers=[external("w", [3], location="data.bin")])
    with pytest.raises(ModelError, match=r"<bytes>.*not loaded from a path.*value w"):
        weft.load(built.SerializeToString())


# -- ops, opsets, attributes -----------------------------------------------------------------------------------------

NEWEST = onnx.defs.onnx_opset_version()


@pytest.mark.parametrize(
    ("built", "kind", "messages"),
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
def test_ops(tmp_path: Path, built: onnx.ModelProto, kind: type[Exception] | None, messages: tuple[str, ...]) -> None:
    if kind is None:
        weft.load(built)
    else:
        refuse(tmp_path, built, kind, *messages)


def function_calling_itself() -> onnx.ModelProto:
    function = helper.make_function(
        "local", "Again", ["a"], ["b"], [node("Again", ["a"], ["b"], domain="local")], [helper.make_opsetid("local", 1)]
    )
    return model([node("Again", ["x"], ["y"], domain="local")], opsets={"": 20, "local": 1}, functions=[function])


def test_recursive_function(tmp_path: Path) -> None:
    refuse(tmp_path, function_calling_itself(), ModelError, "Again")


def test_deeply_nested_branches(tmp_path: Path) -> None:
    inner = subgraph("leaf", [node("Neg", ["x"], ["v0"])], ["v0"])
    other = subgraph("other", [node("Abs", ["x"], ["o"])], ["o"])
    for level in range(24):
        step = node("If", ["c"], [f"v{level + 1}"], then_branch=inner, else_branch=other)
        inner = subgraph(f"level{level}", [step], [f"v{level + 1}"])
    built = model([node("If", ["c"], ["y"], then_branch=inner, else_branch=other)], [value("x"), value("c", [], BOOL)])
    x = floats(2, 3)
    np.testing.assert_array_equal(weft.load(save(tmp_path, built))(x, True), -x)


# -- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feeds", "message"),
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
        ({"x": "text", "y": ints(1)}, "'x' cannot be read as an array of float32"),
    ],
)
def test_inputs(tmp_path: Path, feeds: dict[str, Any], message: str) -> None:
    built = model(
        [node("Gather", ["x", "y"], ["z"], axis=1)],
        [value("x", ["n", 3]), value("y", ["k"], INT64)],
        [value("z", None)],
    )
    path = save(tmp_path, built)
    loaded = weft.load(path)
    with pytest.raises(InputError) as caught:
        loaded.run(feeds)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_shape_errors_name_both_shapes() -> None:
    """The error has both shapes and the name of the dim."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"])],
        "sum",
        [value("a", TensorProto.FLOAT, ["rows", 3]), value("b", TensorProto.FLOAT, ["rows", 3])],
        [value("c", TensorProto.FLOAT, ["rows", 3])],
    )
    model = weft.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    with pytest.raises(weft.InputError) as caught:
        model.run({"a": floats(2, 3), "b": floats(4, 3)})
    for part in ("'rows' is 2", "but 4", "a: [2, 3]", "b: [4, 3]", "a: float32[rows, 3]"):
        assert part in str(caught.value)


def test_fixed_batch_is_explained() -> None:
    value = helper.make_tensor_value_info
    node = helper.make_node("Neg", ["x"], ["y"])
    graph = helper.make_graph(
        [node], "one", [value("x", TensorProto.FLOAT, [1, 3])], [value("y", TensorProto.FLOAT, [1, 3])]
    )
    model = weft.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    with pytest.raises(weft.InputError, match=r"size 1 in dimension 0 .*\(8, 3\)\n.*rows one by one"):
        model(floats(8, 3))


MISSING_PACKAGE = """
import sys
import weft

class MissingPackage:
    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

"""


@pytest.mark.parametrize("package", ["llvmlite", "onnx"])
def test_missing_compiler_package_is_named(package: str, tmp_path: Path) -> None:
    """As in an environment that has only what saved programs need."""
    path = tmp_path / "model.onnx"
    onnx.save(model([node("Neg", ["x"], ["y"])], [value("x")], [value("y")]), path)
    program = (
        MISSING_PACKAGE
        + f"sys.meta_path.insert(0, MissingPackage({package!r}))\nweft.load({str(path)!r}, device='cpu')"
    )
    environment = {**os.environ, "WEFT_CACHE": ""}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    assert f"MissingPackageError: {path}: this needs the package {package}, which is not installed" in ran.stderr
    assert f"hint: pip install {package}" in ran.stderr
