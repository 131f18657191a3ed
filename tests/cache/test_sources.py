"""What entries are named by: weft's files by content, libraries by version, wherever they lie."""

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


def written(path: Path) -> Path:
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
    """The result in a process that imports weft from a folder, and what of the compiler it imported."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(package),
        "WEFT_CACHE": str(cache),
        "WEFT_DENY_DEVICES": "cuda,webgpu",
    }
    command = [sys.executable, "-c", _PROGRAM, str(model), device]
    done = subprocess.run(command, env=environment, cwd=model.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    file, result, *imported = done.stdout.splitlines()
    assert Path(file).parent == package / "weft"
    return result, imported[0].split() if imported else []


def copied(package: Path, folder: Path) -> Path:
    """The files of a package elsewhere, as old as they are."""
    shutil.copytree(package, folder / "weft")
    return folder


def aged(path: Path) -> None:
    """Written before this process, and any that it starts, began."""
    before = sources._STARTED - 100
    os.utime(path, (before, before))


def test_a_copy_of_weft_finds_what_another_made_and_a_changed_one_does_not(tmp_path: Path) -> None:
    model, cache = written(tmp_path / "m.onnx"), tmp_path / "cache"
    first = copied(PACKAGE, tmp_path / "first")
    second = copied(first / "weft", tmp_path / "second")
    expected, compiled = run(first, model, cache)
    assert {"onnx", "llvmlite", "weft.opset", "weft.kernels"} <= set(compiled)
    for package in (first, second):
        for device in ("cpu", "auto"):
            assert run(package, model, cache, device) == (expected, [])  # nothing that compiles is imported
    source = second / "weft" / "kernels" / "select.py"
    source.write_text(source.read_text() + "\n# changed\n")
    aged(source)
    assert "weft.kernels" in run(second, model, cache)[1]
    assert run(first, model, cache) == (expected, [])


def package(folder: Path, **files: str) -> Path:
    (folder / "inner").mkdir(parents=True)
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.with_suffix(".py").write_text(text)
        aged(path.with_suffix(".py"))
    return folder


def test_the_content_of_sources_counts_and_their_place_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    aged(one / "a.py")
    assert sources.content_digest(one) not in names
    assert sources.content_digest(tmp_path / "nowhere") is None


def test_what_is_remembered_of_sources_is_not_asked_of_changed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "SETTLED", -1.0)
    folder = package(tmp_path / "one", a="x = 1")
    before = sources.content_digest(folder)
    (record,) = (tmp_path / "cache" / "sources").iterdir()
    record.write_text('"remembered"')
    assert sources.content_digest(folder) == "remembered"
    (folder / "a.py").write_text("x = 2")
    aged(folder / "a.py")
    assert sources.content_digest(folder) not in (before, "remembered", None)


def test_versions_of_libraries_are_read_and_not_imported() -> None:
    assert sources.library_version("numpy") == np.__version__
    assert sources.library_version("onnx") == onnx.__version__
    assert sources.library_version("no_such_library") == ""
    assert all(version for version in sources.libraries().split(" "))


def test_without_ops_of_others_their_digest_is_that_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = foreign.foreign_digest()
    assert sources.definitions_digest() == expected
    monkeypatch.delitem(sys.modules, "weft.opset")
    assert sources.definitions_digest() == expected
