"""Test that exported models compute the same bits as `weft.load` on this machine."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export import networks
from export.shared_library import COMPILER, SharedLibrary, same_bits
from onnx import TensorProto

import weft
from weft.export.export import export_c
from weft.ir.arrays import Array

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler (cc)")
Inputs = dict[str, Array]


def _numbers(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(dtype)


def _words(batch: int, length: int) -> Inputs:
    random = np.random.default_rng(batch * 100 + length)
    mask = np.ones((batch, length), np.int64)
    mask[:, length // 2 + 1 :] = random.integers(0, 2)
    return {"ids": random.integers(0, 50, (batch, length)), "mask": mask}


def _sequences(time: int, batch: int) -> Inputs:
    lengths = np.random.default_rng(time).integers(1, time + 1, batch).astype(np.int32)
    return {"x": _numbers(1, time, batch, 5), "lengths": lengths}


def _images(batch: int) -> Inputs:
    return {"x": _numbers(batch, batch, 3, 24, 20)}


def _rows(n: int, scale: float) -> Inputs:
    return {"x": _numbers(n, n, 4) * np.float32(scale) + np.float32(scale)}


CASES: dict[str, tuple[Callable[[], bytes], Sequence[Inputs]]] = {
    "convolutional": (networks.convnet, [_images(batch) for batch in (1, 2, 5)]),
    "transformer": (networks.transformer, [_words(1, 1), _words(1, 7), _words(3, 40), _words(2, 129)]),
    "float16": (lambda: networks.transformer(TensorProto.FLOAT16), [_words(1, 3), _words(2, 33)]),
    "lstm": (networks.recurrent, [_sequences(time, batch) for time, batch in ((1, 1), (2, 3), (9, 2), (30, 1))]),
    "gru": (lambda: networks.recurrent("GRU", "forward"), [_sequences(6, 2), _sequences(15, 4)]),
    "rnn reversed": (lambda: networks.recurrent("RNN", "reverse"), [_sequences(1, 2), _sequences(8, 1)]),
    "int8": (networks.quantized_convnet, [{"x": _numbers(n, n, 4, 9, 9)} for n in (1, 3)]),
    "passing": (networks.passthrough, [{"x": _numbers(1, n, 3), "z": _numbers(2, n, 3)} for n in (1, 4)]),
    "branching": (networks.branches, [_rows(n, scale) for n in (1, 3) for scale in (-1.0, 0.1, 5.0)]),
    "observing": (networks.float_sizes, [{"x": _numbers(n, 2, n)} for n in (1, 2, 17, 100)]),
    "deciding": (
        networks.size_inputs,
        [
            {"x": _numbers(n, n, 6), "shape": np.array(shape), "times": np.array(times)}
            for n, shape, times in (
                (2, (3, 4), (1, 1)),
                (5, (1, 30), (2, 3)),
                (1, (6, 1), (1, 0)),
                (4, (3, 8), (3, 1)),
            )
        ],
    ),
    "nested": (
        networks.nested_loops,
        [
            {
                "x": _numbers(n, n, 3),
                "k": _numbers(9, n),
                "most": np.array(most),
                "limit": np.float32(limit),
                "going0": np.array(going),
            }
            for n, most, limit, going in (
                (2, 0, 0, True),
                (2, 1, 9, True),
                (3, 4, 5, True),
                (1, 9, -1, True),
                (2, 5, 5, False),
            )
        ],
    ),
    "looping": (
        networks.loops,
        [
            {"x": _numbers(n, n, 4), "most": np.array(most), "limit": np.float32(limit)}
            for n, most, limit in ((1, 0, 9.0), (2, 1, 9.0), (2, 5, 1e9), (3, 40, 50.0), (1, 5, -50.0))
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_same_bits_as_python(case: str, tmp_path: Path) -> None:
    build, runs = CASES[case]
    source = build()
    library = SharedLibrary(export_c(source, tmp_path, name="network"))
    loaded = weft.load(source, device="cpu", threads=1, cache=False)
    for inputs in runs:
        expected = list(loaded.run(inputs).values())
        results = library.run(inputs)
        assert len(results) == len(expected)
        for result, array in zip(results, expected, strict=True):
            assert same_bits(result, np.asarray(array)), f"{case}, {[array.shape for array in inputs.values()]}"
    library.close()


def test_threads_of_the_caller_compute_the_same_bits(tmp_path: Path) -> None:
    library = SharedLibrary(export_c(networks.convnet(), tmp_path, name="network"))
    inputs = {"x": _numbers(3, 16, 3, 24, 20)}
    alone = library.run(inputs)
    blocks_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    spread_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    calls = []
    with ThreadPoolExecutor(3) as pool:

        @spread_type
        def spread(context: int, count: int, blocks: int, work: int) -> None:
            run = blocks_type(blocks)
            calls.append((context, count))
            ranges = [(count * part // 5, count * (part + 1) // 5) for part in reversed(range(5))]
            list(pool.map(lambda ends: run(work, *ends), ranges))

        parallel = (ctypes.c_void_p * 2)(ctypes.cast(spread, ctypes.c_void_p), 1234)
        together = library.run(inputs, parallel=parallel)
    assert calls
    assert all(context == 1234 and count > 1 for context, count in calls)
    assert all(map(same_bits, alone, together))


def test_fixed_and_empty_sizes(tmp_path: Path) -> None:
    source = networks.passthrough()
    for n in (0, 2):
        files = export_c(source, tmp_path / str(n), name="network", sizes={"n": n})
        assert not files.interface.sizes
        inputs = {"x": _numbers(1, n, 3), "z": _numbers(2, n, 3)}
        expected = weft.load(source, device="cpu", threads=1, cache=False).run(inputs)
        assert all(map(same_bits, SharedLibrary(files).run(inputs), map(np.asarray, expected.values())))


def test_embedded_weights(tmp_path: Path) -> None:
    source = networks.convnet()
    files = export_c(source, tmp_path, name="network", embed=True)
    assert files.weights is None
    inputs = _images(2)
    expected = weft.load(source, device="cpu", threads=1, cache=False).run(inputs)
    assert all(map(same_bits, SharedLibrary(files).run(inputs), map(np.asarray, expected.values())))


def test_the_workspace_is_about_the_planned_arena(tmp_path: Path) -> None:
    source = networks.transformer()
    library = SharedLibrary(export_c(source, tmp_path, name="network"))
    loaded = weft.load(source, device="cpu", threads=1, cache=False)
    inputs = _words(1, 128)  # the usual sizes
    needed = library.function("workspace_bytes")(library.pack_sizes(library.sizes(inputs)))
    planned = loaded.memory(library.sizes(inputs)).arena
    assert planned <= needed <= planned + 16 * 1024


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_other_x86_processors(target: str, tmp_path: Path) -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("needs an x86-64 processor")
    source = networks.transformer()
    results = SharedLibrary(export_c(source, tmp_path, name="network", target=target)).run(_words(2, 9))
    expected = weft.load(source, device="cpu", threads=1, cache=False).run(_words(2, 9))
    for result, array in zip(results, expected.values(), strict=True):
        np.testing.assert_allclose(result, array, rtol=2e-5, atol=2e-5)
