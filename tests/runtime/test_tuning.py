"""Tiles chosen by measurement, with a simulated clock and a recording driver."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from backends.cuda.conftest import Attach, attach, driver  # noqa: F401
from backends.cuda.recording_driver import A100, H200, RecordingDriver
from frontend.samples import model, node, tensor, value

import weft
from weft.backends.device import CompilingDriver
from weft.cache.tuning import cached_choices, store_choices, to_text
from weft.errors import DeviceError, InputError
from weft.ir.compiled import CompiledProgram
from weft.ir.groups import FusedProgram
from weft.ir.target import ThreadTarget
from weft.ir.work import NativeSection, Task
from weft.loading import open_pipeline
from weft.runtime import tuning
from weft.runtime.devices import compiling
from weft.runtime.options import LoadOptions
from weft.runtime.tuning import Tuning, tune

FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
H200_NAME = "NVIDIA H200, 132 units"


def layers(rows: Any = 512, kind: int = FLOAT) -> onnx.ModelProto:
    """Two products of one shape and a smaller one."""
    random = np.random.default_rng(1)
    weights = {"a": (1024, 1024), "b": (1024, 1024), "c": (1024, 256)}
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    return model(
        [node("MatMul", [f"x{i}", name], [f"x{i + 1}"]) for i, name in enumerate(weights)],
        [value("x0", [rows, 1024], kind)],
        [value("x3", [rows, 256], kind)],
        [tensor(name, random.standard_normal(shape).astype(dtype)) for name, shape in weights.items()],
    )


def fused(source: onnx.ModelProto, precision: str = "float32") -> tuple[FusedProgram, CompilingDriver]:
    pipeline = open_pipeline(source, LoadOptions(device="cuda", precision=precision))
    assert isinstance(pipeline.driver, CompilingDriver)
    return pipeline.fuse(pipeline.program()), pipeline.driver


def kernels(program: CompiledProgram) -> list[str]:
    """Return the names of a program's kernels, which cover their code."""
    tasks = [task for section in program.sections if isinstance(section, NativeSection) for task in section.tasks]
    works = [task.work for task in tasks if isinstance(task, Task)]
    return [launch.kernel.name for work in works for launch in work.launches]


def last_is_best(timings: list[Any]) -> tuning.Timer:
    """Return a timer for which every program is faster than the one before."""

    def timer(_: CompilingDriver, program: CompiledProgram, inputs: Sequence[Any]) -> float:
        timings.append((program, [array.shape for array in inputs]))
        return 1.0 / len(timings)

    return timer


def session_program(loaded: weft.Model) -> CompiledProgram:
    program = loaded.session().whole.program
    assert isinstance(program, CompiledProgram)
    return program


@pytest.mark.usefixtures("driver")
def test_fastest_tiles_are_stored_and_used() -> None:
    before = session_program(weft.load(layers(), device="cuda"))
    groups, opened = fused(layers())
    timings: list[Any] = []
    tuned = tune(groups, opened, "float32", 1e9, timer=last_is_best(timings))
    assert [one.uses for one in tuned.timed] == [2, 1]  # the largest share first
    assert (tuned.tuned_before, tuned.left) == (0, 0)
    assert all(1 < one.ways <= tuning.MOST_TILINGS for one in tuned.timed)
    assert all(one.best != one.before and one.best_seconds < one.before_seconds for one in tuned.timed)
    assert {shape for _, (shape,) in timings} == {(512, 1024)}
    first = tuned.timed[0].ways
    assert len({tuple(kernels(program)) for program, _ in timings[:first]}) == first

    store_choices(H200_NAME, tuned.choices)
    after = session_program(weft.load(layers(), device="cuda"))
    assert kernels(after) != kernels(before)
    for number in (first - 1, len(timings) - 1):  # the last of both products
        assert set(kernels(timings[number][0])) <= set(kernels(after))
    again = tune(*fused(layers()), "float32", 1e9, timer=last_is_best([]))
    assert (again.timed, again.tuned_before) == ((), 2)
    assert len(tune(*fused(layers()), "float32", 1e9, timer=last_is_best([]), again=True).timed) == 2
    assert kernels(session_program(weft.load(layers(), device="cuda", cache=False))) == kernels(before)


@pytest.mark.usefixtures("driver")
def test_small_gains_change_nothing() -> None:
    times = iter([1.0, *([0.99] * 1000)])
    tuned = tune(*fused(layers()), "float32", 1e9, timer=lambda *_: next(times))
    assert tuned.timed[0].best == tuned.timed[0].before


@pytest.mark.usefixtures("driver")
def test_tuning_stops_at_its_time_limit() -> None:
    now = [0.0]

    def timer(*_: Any) -> float:
        now[0] += 1.0
        return 1.0 / now[0]

    def tune_for(seconds: float) -> Tuning:
        now[0] = 0.0
        return tune(*fused(layers()), "float32", seconds, timer=timer, clock=lambda: now[0])

    short = tune_for(3.0)
    assert [one.ways for one in short.timed] == [3]
    assert short.left == 1
    assert tune_for(1.0).timed == ()  # one way says nothing
    assert tune_for(1.0).left == 2


@pytest.mark.usefixtures("driver")
def test_tiles_that_fail_to_compile_are_skipped() -> None:
    count = [0]

    def timer(*_: Any) -> float:
        count[0] += 1
        if count[0] % 2 == 0:
            raise weft.WeftError("made up")
        return 1.0 / count[0]

    tuned = tune(*fused(layers()), "float32", 1e9, timer=timer)
    assert tuned.timed
    assert all(one.ways < tuning.MOST_TILINGS for one in tuned.timed)


@pytest.mark.usefixtures("driver")
def test_types_and_precisions_are_tuned_separately() -> None:
    names: set[str] = set()
    for kind, precision in ((FLOAT, "float32"), (FLOAT, "tf32"), (FLOAT, "fast"), (FLOAT, "strict"), (HALF, "float32")):
        tuned = tune(*fused(layers(kind=kind), precision), precision, 1e9, timer=last_is_best([]))
        assert not names & {one.product for one in tuned.timed}
        names |= {one.product for one in tuned.timed}


def test_choices_belong_to_one_gpu(attach: Attach) -> None:  # noqa: F811
    attach(H200)
    untuned = compiling("cuda").identity()
    store_choices(H200_NAME, (("a", "b"),))
    assert compiling("cuda").identity() != untuned
    assert cached_choices(H200_NAME) == (("a", "b"),)
    attach(A100)
    target = compiling("cuda").target("float32")
    assert isinstance(target, ThreadTarget)
    assert target.tuned == ()


@pytest.mark.usefixtures("driver")
def test_tuning_files_can_be_loaded(tmp_path: Path) -> None:
    before = kernels(session_program(weft.load(layers(), device="cuda")))
    tuned = tune(*fused(layers()), "float32", 1e9, timer=last_is_best([]))
    path = tmp_path / "tuned.json"
    path.write_text(to_text(H200_NAME, tuned.choices))
    for source in (path, str(path)):
        assert kernels(session_program(weft.load(layers(), device="cuda", tune=source))) != before
    assert kernels(session_program(weft.load(layers(), device="cuda"))) == before
    strange = {name: "tiles 1x2x3 lanes 7" for name, _ in tuned.choices}
    path.write_text(json.dumps({**json.loads(path.read_text()), "choices": strange}))
    assert kernels(session_program(weft.load(layers(), device="cuda", tune=path))) == before


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:40], "damaged"),
        (lambda _: "[]", "not a tuning file"),
        (lambda _: "[" * 100_000, "damaged"),
        (lambda text: text.replace(H200_NAME, "NVIDIA A100"), "NVIDIA A100"),
        (lambda text: text.replace('"version": 1', '"version": 7'), "another version"),
        (lambda text: text.replace('"y"', "3"), "damaged"),
    ],
)
def test_invalid_tuning_files_are_named(change: Callable[[str], str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(change(to_text(H200_NAME, (("x", "y"),))))
    with pytest.raises(weft.WeftError, match=f"(?s)bad.json.*{re.escape(message)}"):
        weft.load(layers(), device="cuda", tune=path)
    with pytest.raises(weft.WeftError, match=r"nowhere.json"):
        weft.load(layers(), device="cuda", tune=tmp_path / "nowhere.json")


@pytest.mark.usefixtures("driver")
def test_loads_may_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernels(session_program(weft.load(layers(), device="cuda")))
    monkeypatch.setattr(tuning, "recorded_seconds", last_is_best([]))
    for cache in (False, True):
        assert kernels(session_program(weft.load(layers(), device="cuda", tune=1000, cache=cache))) != before
        assert bool(cached_choices(H200_NAME)) == cache
    sampled = weft.load(layers("rows"), device="cuda", tune=1000, sample={"x0": np.zeros((64, 1024), np.float32)})
    assert sampled.device == "cuda:0"
    assert any(" 1x64x1024x" in name for name, _ in cached_choices(H200_NAME))


def test_other_devices_ignore_tuning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "weft")
    x = np.ones((4, 1024), np.float32)
    assert weft.load(layers(4), device="cpu", tune=5)(x).shape == (4, 256)
    assert "takes no tuned choices" in caplog.text
    pipeline = open_pipeline(layers(4), LoadOptions(device="cpu"))
    assert isinstance(pipeline.driver, CompilingDriver)
    with pytest.raises(DeviceError, match="nothing to tune"):
        tune(pipeline.fuse(pipeline.program()), pipeline.driver, "float32", 1.0)


@pytest.mark.parametrize("option", [True, 0, -1, float("nan"), float("inf"), b"x", [1]])
def test_options_are_checked(option: Any) -> None:
    with pytest.raises(InputError, match="tune"):
        LoadOptions(tune=option)


def test_times_come_from_the_device_clock(driver: RecordingDriver) -> None:  # noqa: F811

    groups, opened = fused(layers())
    tuned = tune(groups, opened, "float32", 1e9)
    assert driver.launched
    assert all(one.before_seconds >= 0 for one in tuned.timed)
