"""Packs of kernels: a first load finds known layers in them, and packs for others do no harm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.backends.cpu import codegen, kernel_packs
from weft.backends.cpu import compile as compilation
from weft.backends.cpu.device import CpuDriver
from weft.backends.cpu.kernel_packs import PACK_TARGETS, PackTarget, open_pack, pack_digest, pack_needs, pack_path
from weft.backends.cpu.portability import list_needs
from weft.backends.host.machine import host
from weft.cache import code, entries, files
from weft.cache.launches import CachedKernels, list_kernels
from weft.cache.pack import SUFFIX, PackContent, read_content, read_header, write_pack

Array = np.ndarray[Any, Any]
TARGET = PackTarget("x86-64", "", ({},))


def store_now(compiler: compilation.KernelCompiler, results: Mapping[str, bytes]) -> None:
    """Store results at once instead of in the background."""
    if compiler.kernels is not None:
        compilation._store_results(compiler.kernels, results)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_packs, "FOLDER", tmp_path)
    monkeypatch.setattr(kernel_packs, "PACK_TARGETS", (TARGET,))
    for module in (compilation, kernel_packs):
        monkeypatch.setattr(module, "package_digest", lambda *_: "these sources")  # weft may be edited during tests
    monkeypatch.setattr(entries, "package_digest", lambda: None)  # no cached models: only code
    monkeypatch.setattr(compilation.KernelCompiler, "store", store_now)
    code.shared_cache.cache_clear()
    open_pack.cache_clear()
    yield tmp_path
    code.shared_cache.cache_clear()
    open_pack.cache_clear()


def build_model(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["y"]),
    ]
    w = numpy_helper.from_array(rng.normal(size=(24, 8, 3, 3)).astype(np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8, 12, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 24, 1, 1])
    graph = helper.make_graph(nodes, "layers", [x], [y], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(seed: int, **options: Any) -> bytes:
    x = np.random.default_rng(0).normal(size=(2, 8, 12, 12)).astype(np.float32)
    return np.asarray(weft.load(build_model(seed), device="cpu", **options).run({"x": x})["y"]).tobytes()


def fill_pack(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Load a model, and move the kernels that this caches to a pack for this machine."""
    results: dict[str, bytes] = {}
    objects: dict[str, bytes] = {}
    with monkeypatch.context() as patch:
        patch.setattr(CachedKernels, "put_result", lambda _, name, content: results.update({name: content}))
        patch.setattr(CachedKernels, "put_code", lambda _, name, content: objects.update({name: content}))
        run(1)
    assert len(results) > 2
    assert {name for content in results.values() for name in list_kernels(content)} <= set(objects)
    support = CpuDriver("cpu").support()
    header = {"sources": "these sources", "needs": list_needs(host()), "support": sorted(support), **changes}
    write_pack(pack_path(TARGET), header, PackContent(results, objects, support))
    open_pack.cache_clear()
    for path in (folder / "cache").rglob("*.weft"):
        path.unlink()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that are compiled."""
    texts: list[str] = []
    compile_module = codegen.compile_module

    def record(text: str, machine: Any) -> bytes:
        texts.append(text)
        return compile_module(text, machine)

    monkeypatch.setattr(codegen, "compile_module", record)
    return texts


def test_a_first_load_takes_known_layers_from_the_pack(
    folder: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    expected = run(2, cache=False)
    fill_pack(folder, monkeypatch)
    compiled.clear()
    assert run(2) == expected
    assert not compiled
    assert run(2, cache=False) == expected
    assert compiled  # a load without the cache compiles everything


@pytest.mark.parametrize(
    "changes",
    [
        {"sources": "other sources"},
        {"needs": {**list_needs(host()), "features": ["avx9000"]}},
        {"needs": {**list_needs(host()), "architecture": "riscv64"}},
        {"needs": None},
        {"support": 1},
    ],
)
def test_a_pack_for_others_is_not_used(
    changes: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    fill_pack(folder, monkeypatch, **changes)
    compiled.clear()
    assert open_pack() is None
    run(2)
    assert compiled


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
def test_a_damaged_pack_is_empty(damage: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(2, cache=False)
    fill_pack(folder, monkeypatch)
    assert open_pack() is not None
    path = pack_path(TARGET)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    path.write_bytes(content[: {"cut": len(content) // 2, "empty": 0}.get(damage, len(content))])
    if damage == "gone":
        path.unlink()
    assert read_content(path) == PackContent({}, {}, {})
    assert run(2) == expected


def test_equal_content_gives_equal_files(folder: Path) -> None:
    name, other = "0" * 64, "1" * 64
    header = {"sources": "a", "needs": {}}
    write_pack(folder / "a", header, PackContent({name: b"1", other: b"2"}, {"k": b"x", "j": b"y"}, {}))
    write_pack(folder / "b", header, PackContent({other: b"2", name: b"1"}, {"j": b"y", "k": b"x"}, {}))
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()
    assert read_header(folder / "a") == header


@pytest.mark.parametrize("target", PACK_TARGETS, ids=lambda target: target.processor)
def test_the_packs_of_this_version(target: PackTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    path = pack_path(target)
    assert path.suffix == SUFFIX
    header = read_header(path)
    if header["sources"] != pack_digest():
        pytest.skip("the packs are older than weft's sources: scripts/make-packs makes them again, before a release")
    assert header["needs"] == pack_needs(target)
    content = read_content(path)
    assert len(content.results) > 500
    assert sorted(content.support) == header["support"]
    for result in content.results.values():
        assert list_kernels(result) <= set(content.code)
    assert sum(pack_path(each).stat().st_size for each in PACK_TARGETS) < 2_000_000
