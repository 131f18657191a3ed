"""Keys of cache entries depend on the content of weft's sources and the versions of libraries, not on paths."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.cache import sources
from weft.opset import foreign

PACKAGE = Path(weft.__file__).parent
COMPILING = (
    "onnx",
    "llvmlite",
    "ml_dtypes",
    "rich",
    "weft.opset",
    "weft.passes",
    "weft.fuse",
    "weft.kernels",
)

_PROGRAM = f"""
import sys
import numpy as np
import weft
x = np.random.default_rng(5).normal(size=(3, 8)).astype(np.float32)
y = weft.load(sys.argv[1], device=sys.argv[2]).run({{"x": x}})["y"]
print(weft.__file__)
print(y.tobytes().hex())
print(*(name for name in {COMPILING} if name in sys.modules))
"""


def save_onnx(path: Path) -> Path:
    weights = numpy_helper.from_array(np.random.default_rng(3).normal(size=(8, 5)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])],
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        [weights],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def run(package: Path, model: Path, cache: Path, device: str = "cpu") -> tuple[str, list[str]]:
    """Run a model in a process that imports weft from a folder; return the result and the compiler modules imported."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(package),
        "WEFT_CACHE": str(cache),
        "WEFT_DENY_DEVICES": "cuda,webgpu",
    }
    command = [sys.executable, "-c", _PROGRAM, str(model), device]
    process = subprocess.run(command, env=environment, cwd=model.parent, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    file, result, *imported = process.stdout.splitlines()
    assert Path(file).parent == package / "weft"
    return result, imported[0].split() if imported else []


def copy_package(package: Path, folder: Path) -> Path:
    """Copy a package with the times of its files."""
    shutil.copytree(package, folder / "weft")
    return folder


def backdate(path: Path) -> None:
    """Set the times of a file to before the start of this process and its children."""
    before = sources._STARTED - 100
    os.utime(path, (before, before))


def test_copies_of_weft_share_entries_unless_one_is_changed(tmp_path: Path) -> None:
    model, cache = save_onnx(tmp_path / "m.onnx"), tmp_path / "cache"
    first = copy_package(PACKAGE, tmp_path / "first")
    second = copy_package(first / "weft", tmp_path / "second")
    expected, compiled = run(first, model, cache)
    assert {"onnx", "llvmlite", "weft.opset", "weft.kernels"} <= set(compiled)
    for package in (first, second):
        for device in ("cpu", "auto"):
            assert run(package, model, cache, device) == (expected, [])  # nothing that compiles is imported
    source = second / "weft" / "kernels" / "select.py"
    source.write_text(source.read_text() + "\n# changed\n")
    backdate(source)
    assert "weft.kernels" in run(second, model, cache)[1]
    assert run(first, model, cache) == (expected, [])


def package(folder: Path, **files: str) -> Path:
    (folder / "inner").mkdir(parents=True)
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.with_suffix(".py").write_text(text)
        backdate(path.with_suffix(".py"))
    return folder


def test_digests_depend_on_content_and_not_on_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    one = package(tmp_path / "one", a="x = 1", inner__b="y = 2")
    same = package(tmp_path / "two", a="x = 1", inner__b="y = 2")
    other = package(tmp_path / "three", a="x = 1", inner__c="y = 2")
    names = [sources.content_digest(folder) for folder in (one, same, other)]
    assert names[0] == names[1] != names[2]
    assert None not in names
    assert sources.content_digest(one) == names[0]
    assert sources.content_digest(one, ["inner"]) not in names
    (one / "a.py").write_text("x = 3")
    assert sources.content_digest(one) is None  # changed since this process began
    backdate(one / "a.py")
    assert sources.content_digest(one) not in names
    assert sources.content_digest(tmp_path / "nowhere") is None


def test_stored_digests_are_not_used_for_changed_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "SETTLED", -1.0)
    folder = package(tmp_path / "one", a="x = 1")
    before = sources.content_digest(folder)
    (record,) = (tmp_path / "cache" / "sources").iterdir()
    record.write_text('{"": "stored"}')
    stored = sources.content_digest(folder)
    assert stored not in (before, None)
    (folder / "a.py").write_text("x = 2")
    backdate(folder / "a.py")
    assert sources.content_digest(folder) not in (before, stored, None)


def test_library_versions() -> None:
    assert sources.library_version("numpy") == np.__version__
    assert sources.library_version("onnx") == onnx.__version__
    assert sources.library_version("no_such_library") == ""
    assert all(version for version in sources.libraries().split(" "))


def test_digest_of_definitions_without_the_opset_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = foreign.foreign_digest()
    assert sources.definitions_digest() == expected
    monkeypatch.delitem(sys.modules, "weft.opset")
    assert sources.definitions_digest() == expected
