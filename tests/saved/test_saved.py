"""Saved programs give the same bits as the model, without a compiler."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from saved.saved_models import run_in_process, sample, write_model

import weft
from weft.backends.cpu import portability
from weft.backends.host.elf import AARCH64
from weft.backends.host.image import build_image
from weft.cache import serialization
from weft.frontend.source import open_model
from weft.saved.layout import get_content, read_block, read_header


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.onnx")


def result(source: object, **options: object) -> np.ndarray:
    return weft.load(source, **{"device": "cpu", **options}).run({"x": sample()})["y"]


def test_new_process_gives_the_same_bits_without_the_compiler(model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "m.weft"
    weft.compile(model, saved)
    expected = result(model).tobytes().hex()
    assert run_in_process(saved) == (expected, [])
    empty = tmp_path / "other-cache"
    assert run_in_process(saved, WEFT_CACHE=str(empty)) == (expected, [])
    assert list((empty / "models").glob("*.model"))  # the next process maps it
    assert run_in_process(saved, WEFT_CACHE=str(empty)) == (expected, [])
    assert run_in_process(saved, WEFT_CACHE="") == (expected, [])


def test_bytes_and_file_objects_as_source(model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "m.weft"
    weft.compile(model, saved)
    expected = result(model)
    with saved.open("rb") as file:
        assert np.array_equal(result(file), expected)
    content = saved.read_bytes()
    after_prefix = io.BytesIO(b"before" + content)
    after_prefix.seek(6)
    for source in (content, bytearray(content), memoryview(content), io.BytesIO(content), after_prefix, str(saved)):
        assert np.array_equal(result(source), expected)
    path = tmp_path / "prefixed"
    path.write_bytes(b"before" + content)
    with path.open("rb") as file:
        file.seek(6)
        assert np.array_equal(result(file), expected)


def test_graph_is_compiled_for_what_the_program_lacks(model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "m.weft"
    weft.compile(model, saved)
    plain, loaded = weft.load(model, device="cpu"), weft.load(saved)
    x = sample()
    assert np.array_equal(loaded.run({"x": x}, outputs=["s"])["s"], plain.run({"x": x}, outputs=["s"])["s"])
    assert loaded.run({"x": x[:0]})["y"].shape == (0, 5)  # breaks the program's guard
    changed = np.ones((48, 5), np.float32)
    for each in (plain, loaded):
        each.set_weight("v", changed)
    assert np.array_equal(loaded.run({"x": x})["y"], plain.run({"x": x})["y"])
    assert np.array_equal(loaded.weights["w"], plain.weights["w"])
    assert np.array_equal(result(saved, device="reference"), result(model, device="reference"))
    assert np.array_equal(result(saved, precision="strict"), result(model, precision="strict"))
    loaded.save(tmp_path / "again.onnx")
    assert np.array_equal(result(tmp_path / "again.onnx"), plain.run({"x": x})["y"])


def test_file_without_graph(model: Path, tmp_path: Path) -> None:
    whole, lean = tmp_path / "whole.weft", tmp_path / "lean.weft"
    weft.compile(model, whole)
    weft.compile(model, lean, graph=False)
    assert lean.stat().st_size < whole.stat().st_size
    assert np.array_equal(result(lean), result(model))
    loaded = weft.load(lean)
    with pytest.raises(weft.ModelError, match="without its graph"):
        loaded.run({"x": sample()}, outputs=["s"])
    with pytest.raises(weft.WeftError, match="without its graph"):
        loaded.set_weight("v", np.ones((48, 5), np.float32))
    with pytest.raises(weft.DeviceError, match="no program for cpu in strict"):
        weft.load(lean, precision="strict")
    with pytest.raises(weft.WeftError, match="without its graph"):
        weft.load(lean, device="reference")


def test_external_data_and_set_weights_are_saved(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", external=True)
    loaded = weft.load(model, device="cpu")
    weft.compile(model, tmp_path / "plain.weft")
    loaded.set_weight("b", np.arange(48, dtype=np.float32))
    weft.compile(loaded, tmp_path / "set.weft")
    expected = result(model), loaded.run({"x": sample()})["y"]
    (tmp_path / "m.onnx.data").unlink()
    assert np.array_equal(result(tmp_path / "plain.weft"), expected[0])
    assert np.array_equal(result(tmp_path / "set.weft"), expected[1])
    assert np.array_equal(
        result(tmp_path / "plain.weft", device="reference", outputs=["y"]),
        result(tmp_path / "plain.weft", device="reference"),
    )


def test_program_for_fixed_sizes_runs_others_too(model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "m.weft"
    weft.compile(model, saved, sizes={"n": 3})
    loaded, plain = weft.load(saved), weft.load(model, device="cpu")
    assert loaded.inputs == plain.inputs
    assert np.allclose(loaded.run({"x": sample()})["y"], plain.run({"x": sample()})["y"], rtol=1e-6)
    five = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    assert np.allclose(loaded.run({"x": five})["y"], plain.run({"x": five})["y"], rtol=1e-6)
    with pytest.raises(weft.InputError, match="no dynamic dim 'batch'"):
        weft.compile(model, saved, sizes={"batch": 3})


def test_best_runnable_target_is_chosen(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "m.weft"
    targets = ("aarch64", "x86-64-v2", "native", "x86-64-v3")
    weft.compile(model, saved, target=targets)
    assert np.array_equal(result(saved), result(model))
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": sample()})
    machine = portability._features()
    v2 = frozenset(portability._LEVELS["x86-64-v2"].split())
    v3 = frozenset(portability._LEVELS["x86-64-v3"].split())
    if portability._architecture() == "x86_64":
        for features in (machine & v2, machine & v3):
            monkeypatch.setattr(portability, "_features", lambda features=features: features)
            assert np.allclose(result(saved, cache=False), expected, rtol=1e-5)
        monkeypatch.setattr(portability, "_features", frozenset)
        with pytest.raises(weft.DeviceError, match=r"none of its programs runs.*x86-64-v2.*which this processor lacks"):
            result(saved)
        monkeypatch.undo()


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_processor_levels_agree_with_onnxruntime(model: Path, tmp_path: Path, target: str) -> None:
    saved = tmp_path / "m.weft"
    weft.compile(model, saved, target=target)
    needs = weft.load(model, device="cpu").session().driver.for_target(target).needs()
    if portability.describe_lack(needs) is not None:
        pytest.skip(f"this machine is not {target}")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert np.allclose(result(saved), session.run(None, {"x": sample()})[0], rtol=1e-5)


def test_code_for_another_machine_is_rejected_or_recompiled(model: Path, tmp_path: Path) -> None:
    saved, lean = tmp_path / "m.weft", tmp_path / "lean.weft"
    other = "aarch64" if portability._architecture() == "x86_64" else "x86-64-v2"
    weft.compile(model, saved, target=other)
    weft.compile(model, lean, target=other, graph=False)
    with pytest.raises(weft.DeviceError, match=rf"{other}.*and this is linux on[\s\S]*recompile=True"):
        weft.load(saved)
    assert np.array_equal(result(saved, recompile=True), result(model))
    with pytest.raises(weft.DeviceError, match="none of its programs"):
        weft.load(lean, recompile=True)


def test_arguments_are_checked(model: Path, tmp_path: Path) -> None:
    for arguments, error in (
        ({"target": "z80"}, "unknown processor 'z80'"),
        ({"device": "nothing"}, "no device"),
        ({"device": "reference"}, "nothing to save"),
        ({"target": ()}, "must be names"),
        ({"sizes": [3]}, "sizes must be"),
        ({"precision": "low"}, "precision"),
        ({"outputs": ["z"]}, "z"),
    ):
        with pytest.raises(weft.WeftError, match=error):
            weft.compile(model, tmp_path / "m.weft", **arguments)
    with pytest.raises(weft.InputError, match="cannot be written"):
        weft.compile(model, tmp_path / "nowhere" / "m.weft")
    with pytest.raises(weft.InputError, match="a path to save to"):
        weft.compile(model, 3)
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".weft", ".part")]


def test_default_options_are_those_of_the_file(model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "m.weft"
    weft.compile(model, saved, precision="fast", outputs=["s"])
    loaded = weft.load(saved)
    assert [spec.name for spec in loaded.outputs] == ["s"]
    assert loaded.pool.options.precision == "fast"
    again = pickle.loads(pickle.dumps(loaded))
    assert np.array_equal(again.run({"x": sample()})["s"], loaded.run({"x": sample()})["s"])


def test_pickled_model_needs_the_same_file(model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "m.weft"
    weft.compile(model, saved)
    content = saved.read_bytes()
    with_path, with_bytes = pickle.dumps(weft.load(saved)), pickle.dumps(weft.load(content))
    expected = result(model)
    assert np.array_equal(pickle.loads(with_path).run({"x": sample()})["y"], expected)
    weft.compile(write_model(tmp_path / "other.onnx", seed=4), saved)
    with pytest.raises(weft.ChangedFileError, match="has other content"):
        pickle.loads(with_path)
    saved.unlink()
    with pytest.raises(weft.ChangedFileError, match="since the model was pickled"):
        pickle.loads(with_path)
    assert np.array_equal(pickle.loads(with_bytes).run({"x": sample()})["y"], expected)


def test_loaded_model_survives_truncation_of_its_file(model: Path, tmp_path: Path) -> None:
    expected = result(model)
    for cache in (True, False):
        saved = tmp_path / f"{cache}.weft"
        weft.compile(model, saved, cache=cache)
        loaded = weft.load(saved, cache=cache)
        with saved.open("r+b") as file:  # as `cp` does
            file.truncate(100)
        assert np.array_equal(loaded.run({"x": sample()})["y"], expected)
        assert np.array_equal(loaded.run({"x": sample()[:2]})["y"], result(model)[:2])
        with pytest.raises(weft.WeftError, match="has changed"):
            loaded.run({"x": sample()}, outputs=["s"])


def test_common_arrays_are_stored_once(model: Path, tmp_path: Path) -> None:
    weft.compile(model, tmp_path / "m.weft", target=("x86-64-v4", "x86-64-v3", "aarch64"))
    manifest = weft.load(tmp_path / "m.weft", recompile=True).pool.files.manifest
    assert len({block.name for block in manifest.blocks}) == len(manifest.blocks)
    first, second, third = (set(program.arrays) for program in manifest.programs)
    assert first & second & third  # the bias, which no target packs


def test_arm_code_can_be_linked(model: Path, tmp_path: Path) -> None:
    weft.compile(model, tmp_path / "m.weft", target="aarch64")
    content = get_content(open_model(tmp_path / "m.weft"))
    manifest = read_header(content, "m").manifest
    (program,) = manifest.programs
    assert program.needs["cpu"]["architecture"] == "aarch64"
    code = read_block(content, manifest.blocks[program.program], "m")
    structure, objects = serialization.split_code(code)
    runner = [read_block(content, manifest.blocks[number], "m") for number in program.support.values()]
    assert objects
    assert structure
    image = build_image((*objects, *runner), AARCH64, lambda _: 0)
    assert {"weft_call", "weft_worker"} <= image.places.keys()
