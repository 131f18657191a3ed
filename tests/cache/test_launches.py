"""Cached launches: a model with known layers needs no builders and no compiler, and damage does no harm."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.backends.cpu import codegen, kernel_packs
from weft.backends.cpu import compile as compilation
from weft.cache import code, entries, files, launches
from weft.cache.launches import CachedKernels, LaunchCache, ResultReader, UncacheableError, write_result
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Kernel
from weft.ir.work import Launch, Reference, Work, Workspace
from weft.kernels.lower.kernel_builder import KernelBuilder

Array = np.ndarray[Any, Any]


def store_now(compiler: compilation.KernelCompiler, results: Mapping[str, bytes]) -> None:
    """Store results at once instead of in the background."""
    if compiler.kernels is not None:
        compilation._store_results(compiler.kernels, results)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(compilation, "package_digest", lambda *_: "these sources")  # weft may be edited during tests
    monkeypatch.setattr(entries, "package_digest", lambda: None)  # no cached models: only code
    monkeypatch.setattr(kernel_packs, "open_pack", lambda: None)
    monkeypatch.setattr(compilation.KernelCompiler, "store", store_now)
    code.shared_cache.cache_clear()
    yield tmp_path / "cache" / "code"
    code.shared_cache.cache_clear()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count kernels that are built, and modules that are compiled."""
    counts = {"built": 0, "compiled": 0}
    build, compile_module = KernelBuilder.launch, codegen.compile_module

    def count_built(*arguments: Any) -> Launch:
        counts["built"] += 1
        return build(*arguments)

    def count_compiled(*arguments: Any) -> bytes:
        counts["compiled"] += 1
        return compile_module(*arguments)

    monkeypatch.setattr(KernelBuilder, "launch", count_built)
    monkeypatch.setattr(codegen, "compile_module", count_compiled)
    return counts


def build_model(seed: int, batch: str = "batch") -> onnx.ModelProto:
    """Build a small network with convolutions (one with Winograd), pools, a softmax and products."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.normal(size=shape) / np.sqrt(shape[-1] * 4)).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["c", "w2"], ["d"], group=32, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["d", "w3"], ["e"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "w4"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"]),
        helper.make_node("CumSum", ["y", "axis"], ["z"]),
    ]
    weights = [weight("w1", 32, 16, 3, 3), weight("b1", 32), weight("w2", 32, 1, 3, 3), weight("w3", 64, 32, 3, 3)]
    weights += [weight("w4", 64, 10), numpy_helper.from_array(np.array(1), "axis")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 16, 32, 32])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 10]) for name in ("y", "z")]
    graph = helper.make_graph(nodes, "known_layers", [x], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto, **options: Any) -> list[Array]:
    x = np.random.default_rng(5).normal(size=(3, 16, 32, 32)).astype(np.float32)
    loaded = weft.load(model, device="cpu", **options)
    return [np.asarray(output) for output in loaded.run({"x": x}).values()]


@pytest.mark.parametrize("batch", ["batch", "a_name_that_sorts_elsewhere"])
def test_other_weights_need_no_builder_and_no_compiler(batch: str, work: dict[str, int]) -> None:
    run(build_model(1))
    assert work["built"] > 5
    assert work["compiled"] > 5
    expected = run(build_model(2, batch), cache=False)
    work.update(built=0, compiled=0)
    outputs = run(build_model(2, batch))
    assert work == {"built": 0, "compiled": 0}
    assert [output.tobytes() for output in outputs] == [output.tobytes() for output in expected]


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "other"])
def test_damaged_entries_are_built_again(damage: str, folder: Path, work: dict[str, int]) -> None:
    expected = run(build_model(1))
    built = dict(work)
    for number, path in enumerate(sorted(folder.iterdir())):
        content = bytearray(path.read_bytes())
        if damage == "flip":
            content[-1 - number % 40] ^= 1
        if damage == "gone" and number % 2:
            path.unlink()
        elif damage == "other":
            path.write_bytes(sorted(folder.iterdir())[0].read_bytes())
        else:
            path.write_bytes(bytes(content[: len(content) // 2] if damage == "cut" else content))
    work.update(built=0, compiled=0)
    outputs = run(build_model(1))
    assert work["built"] > 0
    assert damage == "gone" or work["built"] == built["built"]
    assert [output.tobytes() for output in outputs] == [output.tobytes() for output in expected]


def test_code_that_is_missing_is_compiled_from_a_kernel_that_is_built_again(folder: Path, work: dict[str, int]) -> None:
    expected = run(build_model(1))
    for path in folder.iterdir():
        if b"ELF" in path.read_bytes()[:100]:
            path.unlink()
    work.update(built=0, compiled=0)
    outputs = run(build_model(1))
    assert work["compiled"] > 5
    assert [output.tobytes() for output in outputs] == [output.tobytes() for output in expected]


def test_invalid_content_counts_as_missing(tmp_path: Path) -> None:
    cache = code.CodeCache(tmp_path)
    for content in (b"", b"[]", b"[[], []]", b'[[1], ["launch", "name"]]', b'[[[["x"]]], ["tuple"]]', b'[[], ["bad"]]'):
        store = LaunchCache([CachedKernels(cache, str)], "identity")
        name, _ = store._name_call((len, 1))
        cache.put(name, content)
        with pytest.raises(KeyError):
            store[len, 1]


def random_dim(random_numbers: random.Random, symbols: list[Dim], depth: int = 3) -> Dim:
    if depth == 0 or random_numbers.random() < 0.2:
        return random_numbers.choice([*symbols, random_numbers.randrange(0, 100)])
    left, right = (random_dim(random_numbers, symbols, depth - 1) for _ in range(2))
    kind = random_numbers.randrange(6)
    if kind < 2:
        return left + right if kind else left - right
    if kind == 2:
        return left * right
    divisor = random_numbers.randrange(1, 9)
    functions = (
        lambda: dims.floordiv(left, divisor),
        lambda: dims.mod(left, divisor),
        lambda: dims.minimum(left, right),
    )
    return functions[kind - 3]()


def test_results_come_back_with_the_sizes_of_another_program() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    random_numbers = random.Random(seed)
    for _ in range(100):
        names = random_numbers.sample(["batch", "N", "length", "height", "a"], 3)
        others = random_numbers.sample(["w", "zeta", "batch", "b", "x"], 3)
        symbols, other_symbols = ([dims.symbol(name) for name in each] for each in (names, others))
        sizes = [random_dim(random_numbers, symbols) for _ in range(5)]
        kernel = Kernel("k", (Buffer("in0", DType.float32, False),), ("a", "b", "unused"), 16, ())
        parameters = (("a", sizes[0]), ("b", sizes[1]), ("unused", sizes[2]))
        launch = Launch(kernel, sizes[3], parameters, (("in0", Reference("operand", 0)),))
        result = Work((launch,), (Workspace(DType.int8, sizes[4]),), (), (0,))
        named = {id(kernel): replace(kernel, name="k_1", parameters=("a", "b"))}
        content = write_result((result, launch), named, [dims.as_symbol(each) for each in symbols])
        reader = ResultReader([dims.as_symbol(each) for each in other_symbols])
        work, again = reader.read(content)
        assert reader.kernels == {"k_1"}
        values = [random_numbers.randrange(1, 50) for _ in range(3)]
        read = [*work.launches[0].values, work.launches[0].blocks, work.workspaces[0].size]
        expected = [sizes[0], sizes[1], sizes[3], sizes[4]]
        assert again == work.launches[0]
        assert work.overwritable == (0,)
        for size, original in zip(read, expected, strict=True):
            assert dims.evaluate(size, dict(zip(others, values))) == dims.evaluate(original, dict(zip(names, values)))


def test_only_plain_data_has_a_name() -> None:
    store = LaunchCache((), "identity")

    def name(*key: Any) -> tuple[str, Any]:
        return store._name_call(key)

    assert name(len, lambda: 1) == ("", ())
    assert name(len, object()) == ("", ())
    distinct = [1, "1", 1.0, True, None, (1,), ((1,),), (1, 2), {1: 2}, frozenset((1, 2)), DType.int8, -0.0, 0.0, -1]
    assert len({name(len, each)[0] for each in distinct}) == len(distinct)
    n, m = dims.symbol("n"), dims.symbol("m")
    assert name(len, n, m)[0] == name(len, m, n)[0]
    assert name(len, n, n)[0] != name(len, n, m)[0]
    assert name(len, n)[0] != name(len, dims.symbol("n", 2))[0]
    assert name(len, n)[0] != name(max, n)[0]


def test_results_with_other_content_are_not_written() -> None:
    for result in (None, object(), Work((), constants=(np.zeros(1),)), (1,)):
        with pytest.raises(UncacheableError):
            launches.write_result(result, {}, ())
