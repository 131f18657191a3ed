"""The cache of compiled models: a second load compiles nothing, results have the same bits, damage does no harm."""

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
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.backends.cpu import compile as compilation
from weft.cache import code, digests, files, memory, models, serialization
from weft.cache import entries as cache_entries
from weft.cache.models import ModelCache
from weft.frontend import read as reading
from weft.frontend.files import OpenFile, open_path
from weft.ir import dims
from weft.ir.compiled import CompiledProgram
from weft.ir.dtypes import DType
from weft.ir.packing import Packing, iterate_chunks, load_constant, release_array_pages, release_pages
from weft.ir.program import Value
from weft.ir.types import TensorType
from weft.kernels import sections as building
from weft.opset import lower as lowering
from weft.runtime import compiled_models

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache_entries, "package_digest", lambda: "this version")  # weft may be edited during tests
    code.shared_cache.cache_clear()
    yield tmp_path / "cache" / "models"
    code.shared_cache.cache_clear()


@pytest.fixture
def compile_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of compilation functions, in the order of their calls."""
    calls: list[str] = []

    def record(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def recorder(*arguments: Any, **keywords: Any) -> Any:
            calls.append(name)
            return function(*arguments, **keywords)

        monkeypatch.setattr(owner, name, recorder)

    record(reading, "read_model")
    record(lowering, "lower")
    record(building, "build_sections")
    record(compilation.KernelCompiler, "begin")
    return calls


def build(weights: Array | None = None, *, loop: bool = False) -> onnx.ModelProto:
    """Build x [batch, 64] -> relu(x @ w + b), with `loop` followed by a scan."""
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


def save_onnx(path: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, path)
    return path


def run(model: weft.Model, batch: int = 5) -> Array:
    x = np.random.default_rng(batch).normal(size=(batch, 64)).astype(np.float32)
    result: Array = model.run({"x": x})["y"]
    return result


def entries(folder: Path) -> list[Path]:
    cache_entries.await_writes()
    return sorted(folder.glob("*.model"))


@pytest.mark.parametrize("loop", [False, True])
def test_second_load_compiles_nothing(tmp_path: Path, compile_calls: list[str], loop: bool) -> None:
    path = save_onnx(tmp_path / "m.onnx", build(loop=loop))
    first = weft.load(path, device="cpu")
    assert {"read_model", "lower", "build_sections", "begin"} <= set(compile_calls)
    compile_calls.clear()
    second = weft.load(path, device="cpu", threads=1)
    for batch in (1, 5, 33):
        np.testing.assert_array_equal(run(first, batch), run(second, batch))
    assert compile_calls == []
    assert (first.inputs, first.outputs, first.file) == (second.inputs, second.outputs, second.file)


def test_graph_and_program_of_a_cached_model(tmp_path: Path, compile_calls: list[str]) -> None:
    path = save_onnx(tmp_path / "m.onnx", build(loop=True))
    first = weft.load(path, device="cpu")
    second = weft.load(path, device="cpu")
    compile_calls.clear()
    assert [node.op for node in second.source.graph.nodes] == [node.op for node in first.source.graph.nodes]
    assert compile_calls == ["read_model"]
    assert str(second.program) == str(first.program)
    with pytest.raises(weft.InputError):
        second.run({"x": np.zeros((2, 63), np.float32)})


def test_sources_without_a_path(tmp_path: Path, compile_calls: list[str], folder: Path) -> None:
    model = build()
    path = save_onnx(tmp_path / "m.onnx", model)
    expected = run(weft.load(path.read_bytes(), device="cpu"))
    compile_calls.clear()
    with path.open("rb") as stream:
        for source in (path, str(path), stream):
            again = weft.load(source, device="cpu")
            np.testing.assert_array_equal(run(again), expected)
    assert compile_calls == []
    assert len(entries(folder)) == 1
    assert [node.op for node in again.source.graph.nodes] == ["MatMul", "Add", "Relu"]


def test_options_that_bypass_the_cache(tmp_path: Path, compile_calls: list[str], folder: Path) -> None:
    path = save_onnx(tmp_path / "m.onnx", build())
    for options in ({"cache": False}, {"dump": tmp_path / "dump"}, {"device": "reference"}):
        weft.load(path, **{"device": "cpu", **options})
        assert not folder.exists()
    weft.load(path, device="cpu")
    compile_calls.clear()
    weft.load(path, device="cpu", cache=False)
    assert "lower" in compile_calls
    assert (tmp_path / "dump").exists()


def test_each_model_has_its_entry(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "m.onnx"
    zeros = np.zeros((64, 40), np.float32)
    results = []
    for number, weights in enumerate((zeros, zeros + 1, zeros)):
        save_onnx(path, build(weights))
        results.append(run(weft.load(path, device="cpu")))
        assert len(entries(folder)) == min(number, 1) + 1
    np.testing.assert_array_equal(results[0], results[2])
    assert not np.array_equal(results[0], results[1])


def test_each_version_has_its_entry(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_onnx(tmp_path / "m.onnx", build())
    weft.load(path, device="cpu")
    monkeypatch.setattr(cache_entries, "package_digest", lambda: "the next version")
    weft.load(path, device="cpu")
    weft.load(path, device="cpu", precision="strict")
    assert len(entries(folder)) == 3
    monkeypatch.setattr(cache_entries, "package_digest", lambda: None)  # changed since it was imported
    weft.load(path, device="cpu")
    assert len(entries(folder)) == 3


def test_external_data(tmp_path: Path, compile_calls: list[str], folder: Path) -> None:
    path = tmp_path / "m.onnx"

    onnx.save(build(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    expected = run(weft.load(path, device="cpu"))
    compile_calls.clear()
    np.testing.assert_array_equal(run(weft.load(path, device="cpu")), expected)
    assert compile_calls == []
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


def flip_bit(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"!",
    "magic": lambda data: flip_bit(data, 0),
    "head": lambda data: flip_bit(data, 75),
    "structure": lambda data: flip_bit(data, len(data) - 200),
    "arrays": lambda data: flip_bit(data, 4096 + 200),
    "old": lambda data: b"weft\x00m00" + data[8:],
    "foreign": lambda _: b"something else entirely" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entries_are_replaced(tmp_path: Path, compile_calls: list[str], folder: Path, damage: str) -> None:
    path = save_onnx(tmp_path / "m.onnx", build())
    expected = run(weft.load(path, device="cpu"))
    (entry,) = entries(folder)
    entry.write_bytes(DAMAGES[damage](entry.read_bytes()))
    compile_calls.clear()
    np.testing.assert_array_equal(run(weft.load(path, device="cpu")), expected)
    assert "lower" in compile_calls
    compile_calls.clear()
    np.testing.assert_array_equal(run(weft.load(path, device="cpu")), expected)
    assert compile_calls == []


def test_swapped_entries_are_not_used(tmp_path: Path, folder: Path) -> None:
    sources = [save_onnx(tmp_path / f"{seed}.onnx", build(np.full((64, 40), seed, np.float32))) for seed in (1, 2)]
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


def test_a_malicious_structure_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = ModelCache(tmp_path / "models")
    names = [b"cbuiltins\neval\n(V__import__('os').mkdir('was_here')\ntR.", b"cos\nsystem\n(Vmkdir was_here\ntR."]
    for structure in (pickle.dumps(Evil()), pickle.dumps((Evil(), 1)), *names, b"junk", b""):
        cache.put("key", serialization.SerializedValue(structure, ()))
        assert len(entries(tmp_path / "models")) == 1
        assert cache.get("key") is None
        assert entries(tmp_path / "models") == []
    assert not (tmp_path / "was_here").exists()


def test_an_entry_that_is_not_a_model(tmp_path: Path, compile_calls: list[str], folder: Path) -> None:
    path = save_onnx(tmp_path / "m.onnx", build())
    weft.load(path, device="cpu")
    (entry,) = entries(folder)
    ModelCache(folder).put(entry.stem, serialization.serialize({"not": "a model"}))
    compile_calls.clear()
    run(weft.load(path, device="cpu"))
    assert "lower" in compile_calls


def test_values_survive_serialization() -> None:
    n = dims.symbol("n")
    shape = (n * 3 + 1, dims.floordiv(n + 1, 2), 4)
    value = Value(3, TensorType(DType.bfloat16, shape), "v")
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = np.frombuffer(bytes(range(64)), np.int16, 8, offset=16)
    contents = {
        value: matrix[:, ::2], Value(4, value.type): view, Value(5, value.type): np.array(["a", "é"], object),
        Value(6, value.type): [np.float32(1.5), None, (1, 2.5, 1j)], Value(7, value.type): np.zeros((0, 3), np.int8),
        Value(8, value.type): np.array(3.0).astype(DType.bfloat16.numpy),
    }  # fmt: skip
    saved = serialization.serialize(CompiledProgram((value,), (value,), (), contents, (), (b"code",)))
    memory = bytearray(saved.array_bytes)
    start = 0
    for array in saved.arrays:
        memory[start : start + array.nbytes] = array.tobytes()
        start += serialization.align_up(array.nbytes)
    restored = serialization.restore(saved.structure, memoryview(memory))
    assert (restored.inputs, restored.outputs, restored.objects) == ((value,), (value,), (b"code",))
    assert restored.inputs[0].type.shape[0] - n * 3 == 1
    for key, content in contents.items():
        np.testing.assert_equal(restored.constants[key], content)
    assert len(saved.arrays) == 5


# -- the disk --------------------------------------------------------------------------------------------------------


def test_equal_arrays_are_shared() -> None:
    random = np.random.default_rng(11)
    first = [random.integers(0, 255, size, np.uint8) for size in (4096, 8192, 8192, 100)]
    memory = memoryview(b"".join(array.tobytes() for array in first))
    offsets = np.cumsum([0, *(array.size for array in first)])
    views = [np.frombuffer(memory, np.uint8, array.size, offset) for array, offset in zip(first, offsets)]
    shared = serialization.SharedArrays(memory, [*views, np.zeros(4096, np.uint8)])
    different = first[1].copy()
    different[-1] ^= 1
    packing = Packing(first[2].view(np.float32), lambda array: iter((array[:5], array[5:])), (2048,), np.dtype("f4"))
    values = (first[1].view(np.int64).reshape(64, 16), packing, different, first[3].copy(), np.zeros(4096, np.uint8))
    saved = serialization.serialize(values, shared)
    assert [array.nbytes for array in saved.arrays] == [8192, 100, 4096]
    stored = bytearray(saved.array_bytes)
    for array, offset in zip(saved.arrays, (0, 8192, 8192 + 128)):
        stored[offset : offset + array.nbytes] = load_constant(array).tobytes()
    restored = serialization.restore(saved.structure, memoryview(stored), memory)
    for mine, value in zip(restored, (values[0], first[2].view(np.float32), *values[2:]), strict=True):
        assert mine.dtype == value.dtype
        np.testing.assert_array_equal(mine, value)
    assert np.shares_memory(restored[0], views[1])
    assert np.shares_memory(restored[1], views[2])
    with pytest.raises(ValueError, match="buffer"):
        serialization.restore(saved.structure, memoryview(stored))


def test_size_is_limited_and_the_least_recently_used_entries_go(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, max_bytes=100_000)
    for number in range(12):
        cache.put(f"k{number}", serialization.serialize(np.full(2000, number, np.int32)))
        os.utime(tmp_path / f"k{number}.used", (time.time() - 50_000 + number,) * 2)
        if number == 3:
            assert cache.get("k0")[0] == 0  # updates its last use
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 100_000
    assert cache.get("k0")[0] == 0
    assert cache.get("k1") is None
    assert cache.get("k11")[0] == 11
    cache.put("large", serialization.serialize(np.zeros(20_000, np.int32)))
    assert cache.get("large") is None


def test_a_cache_with_room_is_scanned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, storing thousands of small models would take quadratic time."""
    scans: list[Any] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: scans.append(folder) or scandir(folder))
    cache = ModelCache(tmp_path)
    for number in range(20):
        cache.put(f"k{number}", serialization.serialize(np.full(20, number, np.int32)))
    assert scans.count(tmp_path) == 1
    assert len(entries(tmp_path)) == 20


def test_a_model_too_large_for_the_cache_is_compiled_from_cached_code(
    tmp_path: Path, compile_calls: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_entries, "shared_models", lambda: ModelCache(folder, max_bytes=1000))
    path = save_onnx(tmp_path / "m.onnx", build())
    expected = run(weft.load(path, device="cpu"))
    compile_calls.clear()
    np.testing.assert_array_equal(run(weft.load(path, device="cpu")), expected)
    assert "lower" in compile_calls
    assert entries(folder) == []


def test_a_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "file" / "below"))
    code.shared_cache.cache_clear()
    path = save_onnx(tmp_path / "m.onnx", build())
    np.testing.assert_array_equal(run(weft.load(path, device="cpu")), run(weft.load(path, device="cpu")))


@pytest.mark.parametrize(("left", "times"), [(None, 1), (1 << 40, 1), (100, 2)])
def test_a_disk_that_fills_up(
    tmp_path: Path, compile_calls: list[str], monkeypatch: pytest.MonkeyPatch, left: int | None, times: int
) -> None:
    """Packed weights are in memory; with too little memory they are lost, and the model is compiled again."""
    monkeypatch.setattr(compiled_models, "memory_left", lambda: left)

    def fail(cache: ModelCache, key: str, saved: serialization.SerializedValue, memory: object) -> None:
        assert any(packing.size for array in saved.arrays for packing in iterate_chunks(array))
        raise OSError("no space left")

    monkeypatch.setattr(models, "UnfinishedEntry", fail)
    path = save_onnx(tmp_path / "m.onnx", build())
    result = run(weft.load(path, device="cpu"))
    assert compile_calls.count("build_sections") == times
    np.testing.assert_allclose(result, run(weft.load(path, device="reference")), rtol=1e-5, atol=1e-5)


def test_digests_of_changed_files_are_recomputed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, records = tmp_path / "file", tmp_path / "records"
    reads: list[int] = []
    digest = digests.digest
    monkeypatch.setattr(digests, "digest", lambda content: reads.append(content.size) or digest(content))

    def name() -> str:
        file = open_path(path, str(path))
        assert isinstance(file, OpenFile)
        return digests.file_digest(file, path, records)

    monkeypatch.setattr(digests, "has_reliable_times", lambda _: True)

    path.write_bytes(bytes(digests.SMALL))
    first = name()
    assert name() == first
    assert len(reads) == 2  # changed too recently to trust its times
    monkeypatch.setattr(digests, "SETTLED", -10.0)
    assert name() == name() == first
    assert len(reads) == 3
    path.write_bytes(bytes(digests.SMALL - 1) + b"!")
    second = name()
    assert second != first
    assert name() == second
    assert len(reads) == 4
    for record in records.iterdir():
        record.write_bytes(b'{"no": "record"}')
    assert name() == second


def test_digests_depend_on_every_byte() -> None:
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
    path = save_onnx(tmp_path / "m.onnx", build())
    processes = [
        subprocess.Popen([sys.executable, "-c", _PROGRAM, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = [process.communicate()[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    expected = run(weft.load(path, device="cpu")).tobytes().hex()
    assert outputs == [[expected] * 3] * 4
    cache_entries.await_writes()
    assert {entry.suffix for entry in folder.iterdir()} <= {".model", ".used", ".about"}


# -- packed arrays ---------------------------------------------------------------------------------------------------


def packing_of(source: Array, sizes: tuple[int, ...] = (2, 4)) -> Packing:
    """Return a packing that repeats the source, in three chunks."""
    return Packing(source, lambda array: iter((array, array[:1], array[1:])), sizes, source.dtype)


def test_packings_are_packed_once_and_read_as_array_or_chunks() -> None:
    source = np.arange(4, dtype=np.float32)
    packing = packing_of(source)
    assert packing.nbytes == 32
    assert packing.array() is packing.array()
    np.testing.assert_array_equal(packing.array(), [source, source])
    consumed = packing_of(source)
    np.testing.assert_array_equal(np.concatenate(list(consumed.chunks())), [*source, *source])
    with pytest.raises(weft.InternalError):
        consumed.array()
    with pytest.raises(weft.InternalError):
        packing_of(source, (3, 4)).array()


def test_packings_release_their_source() -> None:
    source = np.arange(4, dtype=np.float32)
    reference = weakref.ref(source)
    packing = packing_of(source)
    del source
    assert reference() is not None
    packing.array()
    assert reference() is None


def test_packings_are_serialized_as_arrays(tmp_path: Path) -> None:
    packing = packing_of(np.arange(4, dtype=np.float32))
    cache = ModelCache(tmp_path / "models")
    assert cache.put("key", serialization.serialize((packing, packing)))
    first, second = cache.get("key")
    np.testing.assert_array_equal(first, [[0, 1, 2, 3]] * 2)
    assert first.ctypes.data == second.ctypes.data


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_weights_of_a_first_load_are_remapped_to_the_entry(tmp_path: Path, folder: Path) -> None:
    path = save_onnx(tmp_path / "m.onnx", build())
    loaded = weft.load(path, device="cpu")
    expected = run(loaded)
    cache_entries.await_writes()
    (entry,) = entries(folder)
    assert str(entry) in Path("/proc/self/maps").read_text()
    for _ in range(3):
        np.testing.assert_array_equal(run(loaded), expected)


def test_memory_is_remapped_to_a_file_as_it_is_filled(tmp_path: Path) -> None:
    size = 2 * digests.CHUNK + 100
    content = np.random.default_rng(2).bytes(size)
    arrays = memory.ArraysInMemory(size)
    array = np.frombuffer(arrays.view, np.uint8)
    path, results = tmp_path / "file", []

    def write() -> None:
        with path.open("w+b") as file:
            file.truncate(mmap.PAGESIZE + size)
            file.seek(mmap.PAGESIZE)
            results.append(arrays.move_to(file, mmap.PAGESIZE))
            file.write(b"more")

    writer = Thread(target=write)
    writer.start()
    for start in range(0, size, 1 << 20):
        arrays.writable[start : start + (1 << 20)] = content[start : start + (1 << 20)]
        arrays.set_filled(min(start + (1 << 20), size))
    writer.join()
    assert results == [digests.digest(memoryview(content))]
    assert path.read_bytes()[mmap.PAGESIZE :] == content + b"more"
    path.unlink()
    assert array.tobytes() == content
    release_pages(arrays.view)
    release_array_pages(array)
    assert array.tobytes() == content
    assert not array.flags.writeable
    assert len(memory.ArraysInMemory(0).view) == 0


def test_writing_abandoned_arrays_fails(tmp_path: Path) -> None:
    arrays = memory.ArraysInMemory(100)
    arrays.abandon()
    with (tmp_path / "file").open("w+b") as file, pytest.raises(OSError, match="abandoned"):
        arrays.move_to(file, 0)


def test_capacity_follows_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def report_blocks(blocks: int) -> Callable[[Path], SimpleNamespace]:
        def report(place: Path) -> SimpleNamespace:
            if not place.exists():
                raise FileNotFoundError(place)
            return SimpleNamespace(f_frsize=4096, f_blocks=blocks)

        return report

    missing = tmp_path / "cache" / "weft"
    monkeypatch.setattr(os, "statvfs", report_blocks(10 << 20))
    assert models.choose_capacity(missing) == 4 << 30
    monkeypatch.setattr(os, "statvfs", report_blocks(64 << 20))
    assert models.choose_capacity(missing) == 16 << 30


def test_waiting_for_a_writer_that_has_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = (None, "an entry")
    events: list[str] = []
    waiters: list[Thread] = []

    def wait() -> None:
        cache_entries.await_writes(entry)
        events.append("waited")

    class LateThread(Thread):
        def start(self) -> None:
            waiters.append(Thread(target=wait))
            waiters[0].start()
            time.sleep(0.05)  # it waits by now, or has failed
            super().start()

    monkeypatch.setattr(cache_entries, "Thread", LateThread)
    cache_entries._write_in_background(entry, lambda: events.append("written"))()
    waiters[0].join()
    assert events == ["written", "waited"]


def test_writing_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(cache_entries, "Thread", NoThread)
    events: list[str] = []
    finish = cache_entries._write_in_background((None, "an entry"), lambda: events.append("written"))
    cache_entries.await_writes()
    assert events == []
    finish()
    assert events == ["written"]
