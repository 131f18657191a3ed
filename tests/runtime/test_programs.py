"""Shapes that the program for any shapes does not take: few programs, which later processes find in the cache."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cache.test_model_cache import DAMAGES
from onnx import helper, parser
from peers import onnxruntime_run
from runtime.recurrent_models import build, frames, matting, play

import weft
from weft.cache import code, files, models
from weft.cache import entries as cache_entries

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "cache"))
    code.shared_cache.cache_clear()
    yield tmp_path / "cache" / "models"
    cache_entries.await_writes()
    code.shared_cache.cache_clear()


def run_model(model: weft.Model) -> Any:
    return lambda feeds: list(model.run(feeds).values())


def peer(model: onnx.ModelProto) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def count_programs(caplog: pytest.LogCaptureFixture) -> int:
    return sum("one more program is compiled" in record.message for record in caplog.records)


def check(actual: list[Array], expected: list[Array]) -> None:
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def values(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def pairs(*shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> list[Feeds]:
    return [{"x": values(*x), "y": values(*y)} for x, y in shapes]


ATTENTION = [
    helper.make_node("Concat", ["past", "new"], ["k"], axis=1),
    helper.make_node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
    helper.make_node("MatMul", ["new", "t"], ["scores"]),
    helper.make_node("Add", ["scores", "mask"], ["sum"]),
    helper.make_node("Softmax", ["sum"], ["share"], axis=-1),
    helper.make_node("MatMul", ["share", "k"], ["y"]),
]
EXPAND = [
    helper.make_node("Shape", ["x"], ["shape"]),
    helper.make_node("Expand", ["y", "shape"], ["wide"]),
    helper.make_node("Mul", ["x", "wide"], ["z"]),
]
RESIZE = [
    helper.make_node("Shape", ["y"], ["shape"]),
    helper.make_node("Resize", ["x", "", "", "shape"], ["r"], mode="linear"),
    helper.make_node("Add", ["r", "y"], ["z"]),
]
SLICE = [helper.make_node("Slice", ["x", "start", "end", "axes"], ["s"]), helper.make_node("Relu", ["s"], ["z"])]
RANGE = {"start": np.array([2]), "end": np.array([10]), "axes": np.array([1])}

CASES: dict[str, tuple[onnx.ModelProto, list[Feeds], int]] = {
    "sizes of 1 broadcast": (
        build([helper.make_node("Add", ["x", "y"], ["z"])], {"x": ["a", 4], "y": ["b", 4]}, ["z"], {}),
        pairs(((3, 4), (3, 4)), ((1, 4), (3, 4)), ((1, 4), (5, 4)), ((4, 4), (1, 4)), ((6, 4), (1, 4))),
        2,
    ),
    "sizes expand": (
        build(EXPAND, {"x": ["a", "b"], "y": ["c", "d"]}, ["z"], {}),
        pairs(((3, 4), (3, 4)), ((3, 4), (1, 1)), ((5, 6), (1, 1)), ((3, 4), (1, 4)), ((5, 7), (1, 7))),
        2,
    ),
    "one name for unrelated dims": (
        build([helper.make_node("MatMul", ["x", "y"], ["z"])], {"x": ["n", "n"], "y": ["n", "n"]}, ["z"], {}),
        pairs(((3, 4), (4, 5)), ((3, 3), (3, 3)), ((6, 2), (2, 7)), ((1, 4), (4, 5)), ((0, 3), (3, 2))),
        2,
    ),
    "an empty past": (
        build(ATTENTION, {"past": ["b", "p", 4], "new": ["b", "n", 4], "mask": ["b", "n", "t"]}, ["y", "k"], {}),
        [
            {"past": values(batch, past, 4), "new": values(batch, new, 4), "mask": values(batch, new, past + new)}
            for batch, past, new in ((1, 0, 4), (1, 4, 1), (1, 5, 1), (1, 0, 7), (1, 0, 1), (2, 0, 4), (2, 3, 2))
        ],
        1,
    ),
    "equal sizes are resized": (
        build(RESIZE, {"x": ["b", "c", "h", "w"], "y": ["b", "c", "H", "W"]}, ["z"], {}),
        pairs(((1, 2, 4, 4), (1, 2, 8, 8)), ((1, 2, 8, 8), (1, 2, 8, 8)), ((1, 2, 1, 1), (1, 2, 8, 8))),
        0,
    ),
    "a slice ends beyond its tensor": (
        build(SLICE, {"x": ["a", "b"]}, ["z"], RANGE),
        [{"x": values(2, length)} for length in (4, 10, 20, 2, 1)],
        0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_programs_for_shapes_that_break_guards(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model, requests, programs = CASES[name]
    run, run_peer = run_model(weft.load(model, device="cpu", cache=False)), peer(model)
    with caplog.at_level(logging.INFO, "weft.compiling"):
        for feeds in requests:
            check(run(feeds), run_peer(feeds))
    assert count_programs(caplog) == programs


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(("same_names", "programs"), [(True, 2), (False, 1)])
def test_states_that_start_as_one_number(
    same_names: bool, programs: int, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One program starts a video, and one continues it, for all sizes."""
    model = matting(same_names)
    run, run_peer = run_model(weft.load(model, device=device, cache=False)), peer(model)
    with caplog.at_level(logging.INFO, "weft.compiling"):
        for height, width in ((16, 24), (32, 20), (12, 18)):
            video = frames(1, height, width)
            for actual, expected in zip(play(run, video), play(run_peer, video), strict=True):
                check(actual, expected)
    assert count_programs(caplog) == programs


def test_bits_do_not_depend_on_earlier_sizes() -> None:
    videos = [frames(1, 16, 24), frames(2, 12, 18), frames(1, 32, 20)]
    states = [[np.zeros((len(video[0]), 1, 1, 1), np.float32)] * 2 for video in videos]
    results = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        run = run_model(weft.load(matting(True), device="cpu", cache=False))
        played = {number: play(run, videos[number], states[number]) for number in order}
        results.append([output.tobytes() for _, video in sorted(played.items()) for row in video for output in row])
    assert results[0] == results[1] == results[2]


def test_states_of_a_wrong_size_are_refused() -> None:
    run = run_model(weft.load(matting(True), device="cpu", cache=False))
    video = frames(1, 16, 24)
    play(run, video)
    with pytest.raises(weft.InputError, match="r1i"):
        play(run, video, [values(1, 4, 8, 11), values(1, 6, 4, 6)])


def test_memory_of_shapes_that_break_guards() -> None:
    model = weft.load(matting(True), device="cpu", cache=False)
    shapes = {"src": (1, 3, 16, 24), "r1i": (1, 4, 8, 12), "r2i": (1, 6, 4, 6)}
    assert model.memory(shapes).outputs == 4 * (16 * 24 + 4 * 8 * 12 + 6 * 4 * 6)
    assert model.profile({name: values(*shape) for name, shape in shapes.items()}, repeat=1).kernels


def wide_product() -> onnx.ModelProto:
    """Build (x + y) @ w, where y may broadcast."""
    nodes = [helper.make_node("Add", ["x", "y"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["z"])]
    return build(nodes, {"x": ["a", 256], "y": ["b", 256]}, ["z"], {"w": values(256, 256)})


# -- the cache -------------------------------------------------------------------------------------------------------

_PROCESS = """
import logging, sys
import numpy as np
import weft

messages = []

class Keep(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())

logging.getLogger("weft.compiling").addHandler(Keep())
logging.getLogger("weft.compiling").setLevel("INFO")
model = weft.load(sys.argv[1], device="cpu")
for size in ((16, 24), (32, 20)):
    r1, r2 = [np.zeros((1, 1, 1, 1), np.float32)] * 2
    for seed in range(3):
        frame = np.random.default_rng(seed).standard_normal((1, 3, *size)).astype(np.float32)
        pha, r1, r2 = model.run({"src": frame, "r1i": r1, "r2i": r2}).values()
        print(b"".join(output.tobytes() for output in (pha, r1, r2)).hex())
print("compiled", sum("compiled" in message for message in messages))
print("imports", *sorted({"llvmlite", "onnx", "weft.opset", "weft.kernels", "weft.fuse"} & set(sys.modules)))
"""


def run_processes(path: Path, count: int) -> tuple[list[list[str]], list[str], list[str]]:
    """Run processes at once; return the results of each, and what each compiled and imported."""
    command = [sys.executable, "-c", _PROCESS, str(path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    outputs = [process.communicate()[0].splitlines() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    return [lines[:-2] for lines in outputs], [lines[-2] for lines in outputs], [lines[-1] for lines in outputs]


def programs_in(folder: Path) -> list[Path]:
    cache_entries.await_writes()
    return sorted(folder.glob("*-*.model"))


@pytest.mark.parametrize("count", [1, 3])
def test_later_processes_find_all_programs(tmp_path: Path, folder: Path, count: int) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(matting(True), path)
    first, _, _ = run_processes(path, count)
    assert {entry.suffix for entry in folder.iterdir()} <= {".model", ".used", ".about"}
    assert len(programs_in(folder)) == 2
    second, compiled, imports = run_processes(path, count)
    assert compiled == ["compiled 0"] * count
    assert imports == ["imports"] * count
    assert all(results == first[0] for results in (*first, *second))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_programs_are_replaced(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(matting(True), path)
    video = frames(1, 16, 24)
    expected = play(run_model(weft.load(path, device="cpu")), video)
    for program in programs_in(folder):
        content = DAMAGES[damage](program.read_bytes())
        program.chmod(0o600)
        program.write_bytes(content)
    for programs in (2, 0):
        caplog.clear()
        with caplog.at_level(logging.INFO, "weft.compiling"):
            results = play(run_model(weft.load(path, device="cpu")), video)
        assert count_programs(caplog) == programs
        for actual, first in zip(results, expected, strict=True):
            for mine, theirs in zip(actual, first, strict=True):
                np.testing.assert_array_equal(mine, theirs)
        cache_entries.await_writes()


def test_a_model_has_a_limited_number_of_programs(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(models, "MAX_PROGRAMS", 3)
    path = tmp_path / "m.onnx"
    onnx.save(matting(True), path)
    model = weft.load(path, device="cpu")
    feeds = {"src": values(1, 3, 16, 24), "r1i": values(1, 4, 8, 12), "r2i": values(1, 6, 4, 6)}
    for number, output in enumerate(("x1", "h1", "z1", "r1", "c1")):
        earlier = programs_in(folder)
        model.run(feeds, outputs=[output])
        for entry in set(programs_in(folder)) - set(earlier):
            os.utime(entry.with_suffix(".used"), (number, number))
    assert len(programs_in(folder)) == 3
    assert len(list(folder.glob("*.model"))) == 4  # with that for any shapes
    with caplog.at_level(logging.INFO, "weft.compiling"):
        weft.load(path, device="cpu").run(feeds, outputs=["c1"])
    assert count_programs(caplog) == 0


def test_programs_share_weights(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(wide_product(), path)
    model = weft.load(path, device="cpu")
    feeds = {"x": values(3, 256), "y": values(1, 256)}
    expected = run_model(model)(feeds)
    check(expected, peer(wide_product())(feeds))
    (program,) = programs_in(folder)
    (whole,) = set(folder.glob("*.model")) - {program}
    assert whole.stat().st_size > 256 * 256 * 4 > 4 * program.stat().st_size
    del model
    np.testing.assert_array_equal(run_model(weft.load(path, device="cpu"))(feeds)[0], expected[0])


@pytest.mark.parametrize("failure", ["no room", "no disk", "no memory"])
def test_programs_that_cannot_be_cached(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(wide_product(), path)
    run, feeds = run_model(weft.load(path, device="cpu")), {"x": values(3, 256), "y": values(1, 256)}
    cache_entries.await_writes()

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    if failure == "no room":
        monkeypatch.setattr(models.ModelCache, "has_room", lambda *_: False)
    else:
        monkeypatch.setattr(cache_entries, "ArraysInMemory", fail)
    if failure == "no disk":
        monkeypatch.setattr(models.UnfinishedEntry, "_write", fail)
    check(run(feeds), peer(wide_product())(feeds))
    assert len(programs_in(folder)) == (1 if failure == "no memory" else 0)


def test_programs_of_changed_weights_are_not_cached(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(matting(True), path)
    model = weft.load(path, device="cpu")
    model.set_weights({"small.w": np.zeros((1, 6, 3, 3), np.float32)})
    results = play(run_model(model), frames(1, 16, 24))
    assert not any(outputs[0].any() for outputs in results)
    assert programs_in(folder) == []
    fresh = play(run_model(weft.load(path, device="cpu")), frames(1, 16, 24))
    assert all(outputs[0].any() for outputs in fresh)


def test_other_sizes_stay_dynamic_where_one_breaks_a_guard(caplog: pytest.LogCaptureFixture) -> None:
    """A window that is larger than the image in one dim fixes that dim only."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[n, 2, h, w] x) => (float[n, 2, p, q] y) {
            y = MaxPool<kernel_shape = [4, 2], strides = [2, 2]>(x)
        }
    """)
    loaded = weft.load(model, device="cpu", cache=False)
    with caplog.at_level(logging.INFO, "weft.compiling"):
        for n, w in ((1, 8), (2, 9), (3, 20), (1, 31)):
            x = np.random.default_rng(w).standard_normal((n, 2, 3, w)).astype(np.float32)
            np.testing.assert_allclose(loaded.run({"x": x})["y"], onnxruntime_run(model, {"x": x})[0])
    assert count_programs(caplog) == 1
