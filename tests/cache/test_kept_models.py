"""Models kept on disk: a second load makes nothing, gives the same bits, and nothing on the disk can do harm."""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft import compiler
from weft.backends.cpu import compile as compilation
from weft.cache import code, digests, files, memory, models, serialization
from weft.cache import entries as cache_entries
from weft.cache.models import ModelCache
from weft.frontend import read as reading
from weft.frontend.files import OpenFile, open_path
from weft.ir import dims
from weft.ir.compiled import CompiledProgram
from weft.ir.dtypes import DType
from weft.ir.packing import Packing, iterate_chunks, release_array_pages, release_pages
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.kernels import sections as building
from weft.opset import lower as lowering

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache_entries, "package_digest", lambda: "this version")  # whoever edits weft while tests run
    code.shared_cache.cache_clear()
    yield tmp_path / "cache" / "models"
    code.shared_cache.cache_clear()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done to make models, by name."""
    calls: list[str] = []

    def count(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def counted(*arguments: Any, **keywords: Any) -> Any:
            calls.append(name)
            return function(*arguments, **keywords)

        monkeypatch.setattr(owner, name, counted)

    count(reading, "read_model")
    count(lowering, "lower")
    count(building, "build_sections")
    count(compilation.KernelCompiler, "begin")
    return calls


def build(weights: Array | None = None, *, loop: bool = False) -> onnx.ModelProto:
    """x [batch, 64] -> relu(x @ w + b), and what a scan makes of it."""
    rng = np.random.default_rng(7)
    w = rng.normal(size=(64, 40)).astype(np.float32) if weights is None else weights
    b = rng.normal(size=40).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["a"])]
    nodes.append(helper.make_node("Relu", ["a"], ["r" if loop else "y"]))
    if loop:
        body = helper.make_graph(
            [helper.make_node("Add", ["state", "item"], ["sum"]), helper.make_node("Mul", ["sum", "half"], ["next"]),
             helper.make_node("Identity", ["next"], ["seen"])],
            "body",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [40]) for name in ("state", "item")],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [40]) for name in ("next", "seen")],
            [numpy_helper.from_array(np.full(40, 0.5, np.float32), "half")],
        )  # fmt: skip
        nodes.append(helper.make_node("Scan", ["b", "r"], ["last", "y"], num_scan_inputs=1, body=body))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 40])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def written(path: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, path)
    return path


def run(model: weft.Model, batch: int = 5) -> Array:
    x = np.random.default_rng(batch).normal(size=(batch, 64)).astype(np.float32)
    result: Array = model.run({"x": x})["y"]
    return result


def entries(folder: Path) -> list[Path]:
    cache_entries.await_writing()
    return sorted(folder.glob("*.model"))


@pytest.mark.parametrize("loop", [False, True])
def test_second_load_makes_nothing(tmp_path: Path, made: list[str], loop: bool) -> None:
    path = written(tmp_path / "m.onnx", build(loop=loop))
    first = weft.load(path, device="cpu")
    assert {"read_model", "lower", "build_sections", "begin"} <= set(made)
    made.clear()
    second = weft.load(path, device="cpu", threads=1)
    for batch in (1, 5, 33):
        np.testing.assert_array_equal(run(first, batch), run(second, batch))
    assert made == []
    assert (first.inputs, first.outputs, first.file) == (second.inputs, second.outputs, second.file)


def test_whatever_else_is_asked_of_a_kept_model(tmp_path: Path, made: list[str]) -> None:
    path = written(tmp_path / "m.onnx", build(loop=True))
    first = weft.load(path, device="cpu")
    second = weft.load(path, device="cpu")
    made.clear()
    assert [node.op for node in second.source.graph.nodes] == [node.op for node in first.source.graph.nodes]
    assert made == ["read_model"]
    assert str(second.program) == str(first.program)
    with pytest.raises(weft.InputError):
        second.run({"x": np.zeros((2, 63), np.float32)})


def test_sources_without_a_path(tmp_path: Path, made: list[str], folder: Path) -> None:
    model = build()
    path = written(tmp_path / "m.onnx", model)
    expected = run(weft.load(path.read_bytes(), device="cpu"))
    made.clear()
    with path.open("rb") as stream:
        for source in (path, str(path), stream):
            again = weft.load(source, device="cpu")
            np.testing.assert_array_equal(run(again), expected)
    assert made == []
    assert len(entries(folder)) == 1
    assert [node.op for node in again.source.graph.nodes] == ["MatMul", "Add", "Relu"]


def test_no_cache_where_none_is_wanted(tmp_path: Path, made: list[str], folder: Path) -> None:
    path = written(tmp_path / "m.onnx", build())
    for options in ({"cache": False}, {"dump": tmp_path / "dump"}, {"device": "reference"}):
        weft.load(path, **{"device": "cpu", **options})
        assert not folder.exists()
    weft.load(path, device="cpu")
    made.clear()
    weft.load(path, device="cpu", cache=False)
    assert "lower" in made
    assert (tmp_path / "dump").exists()


def test_another_model_another_entry(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "m.onnx"
    zeros = np.zeros((64, 40), np.float32)
    results = []
    for number, weights in enumerate((zeros, zeros + 1, zeros)):
        written(path, build(weights))
        results.append(run(weft.load(path, device="cpu")))
        assert len(entries(folder)) == min(number, 1) + 1
    np.testing.assert_array_equal(results[0], results[2])
    assert not np.array_equal(results[0], results[1])


def test_another_version_another_entry(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "m.onnx", build())
    weft.load(path, device="cpu")
    monkeypatch.setattr(cache_entries, "package_digest", lambda: "the next version")
    weft.load(path, device="cpu")
    weft.load(path, device="cpu", precision="strict")
    assert len(entries(folder)) == 3
    monkeypatch.setattr(cache_entries, "package_digest", lambda: None)  # changed since it was imported
    weft.load(path, device="cpu")
    assert len(entries(folder)) == 3


def test_external_data(tmp_path: Path, made: list[str], folder: Path) -> None:
    path = tmp_path / "m.onnx"

    onnx.save(build(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    expected = run(weft.load(path, device="cpu"))
    made.clear()
    np.testing.assert_array_equal(run(weft.load(path, device="cpu")), expected)
    assert made == []
    doubled = np.frombuffer((tmp_path / "m.data").read_bytes(), np.float32) * 2
    (tmp_path / "m.data").unlink()
    (tmp_path / "m.data").write_bytes(doubled.tobytes())
    changed = run(weft.load(path, device="cpu"))
    assert not np.array_equal(changed, expected)
    assert len(entries(folder)) == 2
    (tmp_path / "m.data").unlink()
    with pytest.raises(weft.ModelError, match=r"m\.data"):
        weft.load(path, device="cpu")


# -- damage ----------------------------------------------------------------------------------------------------------


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"!",
    "magic": lambda data: flipped(data, 0),
    "head": lambda data: flipped(data, 75),
    "structure": lambda data: flipped(data, len(data) - 200),
    "arrays": lambda data: flipped(data, 4096 + 200),
    "old": lambda data: b"weft\x00m00" + data[8:],
    "foreign": lambda _: b"something else entirely" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entries_are_made_again(tmp_path: Path, made: list[str], folder: Path, damage: str) -> None:
    path = written(tmp_path / "m.onnx", build())
    expected = run(weft.load(path, device="cpu"))
    (entry,) = entries(folder)
    entry.write_bytes(DAMAGES[damage](entry.read_bytes()))
    made.clear()
    np.testing.assert_array_equal(run(weft.load(path, device="cpu")), expected)
    assert "lower" in made
    made.clear()
    np.testing.assert_array_equal(run(weft.load(path, device="cpu")), expected)
    assert made == []


def test_entries_belong_to_their_models(tmp_path: Path, folder: Path) -> None:
    """Whoever copies files about: another model's entry is none."""
    sources = [written(tmp_path / f"{seed}.onnx", build(np.full((64, 40), seed, np.float32))) for seed in (1, 2)]
    expected = [run(weft.load(model, device="cpu")) for model in sources]
    one, other = entries(folder)
    content = one.read_bytes()
    one.unlink()
    other.rename(one)
    other.write_bytes(content)
    for model, result in zip(sources, expected, strict=True):
        np.testing.assert_array_equal(run(weft.load(model, device="cpu")), result)


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("was_here",)


def test_foreign_structure_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = ModelCache(tmp_path / "models")
    names = [b"cbuiltins\neval\n(V__import__('os').mkdir('was_here')\ntR.", b"cos\nsystem\n(Vmkdir was_here\ntR."]
    for structure in (pickle.dumps(Evil()), pickle.dumps((Evil(), 1)), *names, b"junk", b""):
        cache.put("key", serialization.SerializedValue(structure, ()))
        assert len(entries(tmp_path / "models")) == 1
        assert cache.get("key") is None
        assert entries(tmp_path / "models") == []
    assert not (tmp_path / "was_here").exists()


def test_a_foreign_value_is_no_model(tmp_path: Path, made: list[str], folder: Path) -> None:
    path = written(tmp_path / "m.onnx", build())
    weft.load(path, device="cpu")
    (entry,) = entries(folder)
    ModelCache(folder).put(entry.stem, serialization.serialize({"not": "a model"}))
    made.clear()
    run(weft.load(path, device="cpu"))
    assert "lower" in made


def test_values_come_back_as_they_were() -> None:
    n = dims.symbol("n")
    shape = (n * 3 + 1, dims.floordiv(n + 1, 2), 4)
    value = Value(3, TensorType(DType.bfloat16, shape), "v")
    own = np.arange(12, dtype=np.float32).reshape(3, 4)
    inside = np.frombuffer(bytes(range(64)), np.int16, 8, offset=16)
    contents = {
        value: own[:, ::2], Value(4, value.type): inside, Value(5, value.type): np.array(["a", "é"], object),
        Value(6, value.type): [np.float32(1.5), None, (1, 2.5, 1j)], Value(7, value.type): np.zeros((0, 3), np.int8),
        Value(8, value.type): np.array(3.0).astype(DType.bfloat16.numpy),
    }  # fmt: skip
    saved = serialization.serialize(CompiledProgram((value,), (value,), (), contents, (), (b"code",)))
    memory = bytearray(saved.array_bytes)
    start = 0
    for array in saved.arrays:
        memory[start : start + array.nbytes] = array.tobytes()
        start += serialization.aligned(array.nbytes)
    back = serialization.restore(saved.structure, memoryview(memory))
    assert (back.inputs, back.outputs, back.objects) == ((value,), (value,), (b"code",))
    assert back.inputs[0].type.shape[0] - n * 3 == 1
    for key, content in contents.items():
        np.testing.assert_equal(back.constants[key], content)
    assert len(saved.arrays) == 5


# -- the disk --------------------------------------------------------------------------------------------------------


def test_size_is_bounded_and_the_least_used_goes(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, most_bytes=100_000)
    for number in range(12):
        cache.put(f"k{number}", serialization.serialize(np.full(2000, number, np.int32)))
        os.utime(tmp_path / f"k{number}.used", (time.time() - 50_000 + number,) * 2)
        if number == 3:
            assert cache.get("k0")[0] == 0  # its use makes it young again
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 100_000
    assert cache.get("k0")[0] == 0
    assert cache.get("k1") is None
    assert cache.get("k11")[0] == 11
    cache.put("large", serialization.serialize(np.zeros(20_000, np.int32)))
    assert cache.get("large") is None


def test_a_cache_with_room_is_looked_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many entries it has: each of thousands of small models would pay for all others."""
    looked: list[Any] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: looked.append(folder) or scandir(folder))
    cache = ModelCache(tmp_path)
    for number in range(20):
        cache.put(f"k{number}", serialization.serialize(np.full(20, number, np.int32)))
    assert looked.count(tmp_path) == 1
    assert len(entries(tmp_path)) == 20


def test_a_model_too_large_to_keep_is_compiled_from_cached_code(
    tmp_path: Path, made: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_entries, "shared_models", lambda: ModelCache(folder, most_bytes=1000))
    path = written(tmp_path / "m.onnx", build())
    expected = run(weft.load(path, device="cpu"))
    made.clear()
    np.testing.assert_array_equal(run(weft.load(path, device="cpu")), expected)
    assert "lower" in made
    assert entries(folder) == []


def test_a_disk_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "file" / "below"))
    code.shared_cache.cache_clear()
    path = written(tmp_path / "m.onnx", build())
    np.testing.assert_array_equal(run(weft.load(path, device="cpu")), run(weft.load(path, device="cpu")))


@pytest.mark.parametrize(("left", "times"), [(None, 1), (1 << 40, 1), (100, 2)])
def test_a_disk_that_fills_up_half_way(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch, left: int | None, times: int
) -> None:
    """Weights are in memory; where there is too little, those that were packed for the file are gone by then, so that
    the model is made again.
    """
    monkeypatch.setattr(compiler, "memory_left", lambda: left)

    def fail(cache: ModelCache, key: str, saved: serialization.SerializedValue, memory: object) -> None:
        assert any(packing.size for array in saved.arrays for packing in iterate_chunks(array))
        raise OSError("no space left")

    monkeypatch.setattr(models, "UnfinishedEntry", fail)
    path = written(tmp_path / "m.onnx", build())
    found = run(weft.load(path, device="cpu"))
    assert made.count("build_sections") == times
    np.testing.assert_allclose(found, run(weft.load(path, device="reference")), rtol=1e-5, atol=1e-5)


def test_files_are_read_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, records = tmp_path / "file", tmp_path / "records"
    read: list[int] = []
    real = digests.digest
    monkeypatch.setattr(digests, "digest", lambda content: read.append(content.size) or real(content))

    def name() -> str:
        file = open_path(path, str(path))
        assert isinstance(file, OpenFile)
        return digests.file_digest(file, path, records)

    monkeypatch.setattr(digests, "times_tell", lambda _: True)

    path.write_bytes(bytes(digests.SMALL))
    first = name()
    assert name() == first
    assert len(read) == 2  # too young to be trusted
    monkeypatch.setattr(digests, "SETTLED", -10.0)
    assert name() == name() == first
    assert len(read) == 3
    path.write_bytes(bytes(digests.SMALL - 1) + b"!")
    second = name()
    assert second != first
    assert name() == second
    assert len(read) == 4
    for record in records.iterdir():
        record.write_bytes(b'{"no": "record"}')
    assert name() == second


def test_digests_know_every_byte() -> None:
    content = bytearray(digests.CHUNK * 2 + 5)
    names = {
        digests.digest(memoryview(content)),
        digests.digest(memoryview(content)[:-1]),
        digests.digest(memoryview(b"")),
    }
    for place in (0, digests.CHUNK - 1, digests.CHUNK, len(content) - 1):
        content[place] = 1
        names.add(digests.digest(memoryview(content)))
    assert len(names) == 7


_PROGRAM = """
import sys
import numpy as np
import weft
x = np.random.default_rng(5).normal(size=(5, 64)).astype(np.float32)
for _ in range(3):
    print(weft.load(sys.argv[1], device="cpu").run({"x": x})["y"].tobytes().hex())
"""


def test_many_processes(tmp_path: Path, folder: Path) -> None:
    path = written(tmp_path / "m.onnx", build())
    processes = [
        subprocess.Popen([sys.executable, "-c", _PROGRAM, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = [process.communicate()[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    expected = run(weft.load(path, device="cpu")).tobytes().hex()
    assert outputs == [[expected] * 3] * 4
    cache_entries.await_writing()
    assert {entry.suffix for entry in folder.iterdir()} <= {".model", ".used", ".about"}


# -- packed arrays ---------------------------------------------------------------------------------------------------


def packing_of(source: Array, sizes: tuple[int, ...] = (2, 4)) -> Packing:
    """The source twice, in pieces."""
    return Packing(source, lambda array: iter((array, array[:1], array[1:])), sizes, source.dtype)


def test_packings_are_made_once_and_kept_or_given_away() -> None:
    source = np.arange(4, dtype=np.float32)
    packing = packing_of(source)
    assert packing.nbytes == 32
    assert packing.array() is packing.array()
    np.testing.assert_array_equal(packing.array(), [source, source])
    given = packing_of(source)
    np.testing.assert_array_equal(np.concatenate(list(given.pieces())), [*source, *source])
    with pytest.raises(weft.InternalError):
        given.array()
    with pytest.raises(weft.InternalError):
        packing_of(source, (3, 4)).array()


def test_packings_let_go_of_what_they_are_made_of() -> None:
    source = np.arange(4, dtype=np.float32)
    gone = weakref.ref(source)
    packing = packing_of(source)
    del source
    assert gone() is not None
    packing.array()
    assert gone() is None


def test_packings_are_saved_as_arrays(tmp_path: Path) -> None:
    packing = packing_of(np.arange(4, dtype=np.float32))
    cache = ModelCache(tmp_path / "models")
    assert cache.put("key", serialization.serialize((packing, packing)))
    first, second = cache.get("key")
    np.testing.assert_array_equal(first, [[0, 1, 2, 3]] * 2)
    assert first.ctypes.data == second.ctypes.data


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_weights_of_a_first_load_become_those_of_its_entry(tmp_path: Path, folder: Path) -> None:
    path = written(tmp_path / "m.onnx", build())
    loaded = weft.load(path, device="cpu")
    expected = run(loaded)
    cache_entries.await_writing()
    (entry,) = entries(folder)
    assert str(entry) in Path("/proc/self/maps").read_text()
    for _ in range(3):
        np.testing.assert_array_equal(run(loaded), expected)


def test_memory_becomes_a_files_as_it_is_filled_and_holds_the_same(tmp_path: Path) -> None:
    size = 2 * digests.CHUNK + 100
    content = np.random.default_rng(2).bytes(size)
    held = memory.ArraysInMemory(size)
    array = np.frombuffer(held.view, np.uint8)
    path, found = tmp_path / "file", []

    def write() -> None:
        with path.open("w+b") as file:
            file.truncate(mmap.PAGESIZE + size)
            file.seek(mmap.PAGESIZE)
            found.append(held.move_to(file, mmap.PAGESIZE))
            file.write(b"more")

    writer = Thread(target=write)
    writer.start()
    for start in range(0, size, 1 << 20):
        held.room[start : start + (1 << 20)] = content[start : start + (1 << 20)]
        held.filled_to(min(start + (1 << 20), size))
    writer.join()
    assert found == [digests.digest(memoryview(content))]
    assert path.read_bytes()[mmap.PAGESIZE :] == content + b"more"
    path.unlink()
    assert array.tobytes() == content
    release_pages(held.view)
    release_array_pages(array)
    assert array.tobytes() == content
    assert not array.flags.writeable
    assert len(memory.ArraysInMemory(0).view) == 0


def test_who_waits_for_arrays_hears_that_there_are_none(tmp_path: Path) -> None:
    held = memory.ArraysInMemory(100)
    held.give_up()
    with (tmp_path / "file").open("w+b") as file, pytest.raises(OSError, match="nothing to be written"):
        held.move_to(file, 0)
