"""Models on several devices at once, as users meet them: named together, remembered, refused where that is strict."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from foreign_device import acme_card
from frontend.samples import model, node, tensor, value
from models.two_devices import sequential
from onnx import TensorProto
from peers import onnxruntime_run
from placement.forcing import calibration

import weft
from weft.backends.mixed.driver import JOINED
from weft.cache.files import VARIABLE
from weft.cli import main
from weft.compat.conformance.cases import collect
from weft.compat.conformance.worker import evaluate
from weft.cost.calibration import Calibration, Transfer
from weft.errors import DeviceError, OutOfMemoryError
from weft.ir.dtypes import DType
from weft.ir.mixed import MixedProgram
from weft.ir.target import Target
from weft.placement.schedule import Rules, Schedule, schedule
from weft.placement.units import Problem
from weft.runtime import choice, devices, mixing
from weft.runtime.choice import Ranked, Ranking

TOGETHER = "acme_card+cpu"
KNOWN = Path(__file__).parents[1] / "conformance" / "known_failures.txt"
SMALL = (64, 64, 2, 8)  # of the model that is made to need two devices


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The card is there, quick at products and slow at everything that is done often. What timed runs give is what a
    test says, by name; nothing was timed as long as it is empty.
    """
    entry = EntryPoint("acme_card", "foreign_device.acme_card:DEVICE", devices.GROUP)
    monkeypatch.setattr(devices, "_entries", lambda: [entry])
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(mixing, "calibrated", _calibrated)
    times: dict[str, float] = {}

    def by_benchmark(names: list[str], ready: Any, **_: Any) -> Ranking:
        for name in names:
            ready(name)()
        found = [Ranked(name, times.setdefault(name, 1.0), "made up") for name in names]
        return Ranking("benchmark", tuple(sorted(found, key=lambda one: one.seconds or 0.0)))

    monkeypatch.setattr(mixing, "by_benchmark", by_benchmark)
    times[TOGETHER] = 0.1
    return times


def _calibrated(device: str, threads: int | None = None) -> Calibration:
    if device == "cpu":
        return replace(calibration(device, 1e7, run=1e-6), iteration_seconds=1e-8)
    found = calibration(device, 1e9, run=1e-5, moved=Transfer(1e-6, 1e10))
    return replace(found, iteration_seconds=6e-4)


def _made() -> tuple[onnx.ModelProto, dict[str, Any], Any]:
    built = sequential(*SMALL)
    x = np.random.default_rng(1).standard_normal(SMALL[:2]).astype(np.float32)
    return built, {"x": x}, onnxruntime_run(built, {"x": x})[0]


def _placement(loaded: weft.Model) -> Any:
    program = loaded.session().whole.program
    assert isinstance(program, MixedProgram)
    return program.placement


def test_parts_run_where_they_are_quickest() -> None:
    built, feeds, expected = _made()
    loaded = weft.load(built, device=TOGETHER)
    assert loaded.device == TOGETHER
    placement = _placement(loaded)
    assert [piece.device for piece in placement.pieces] == ["acme_card", "cpu", "acme_card"]
    assert [(step.step, step.device, step.lacking) for step in placement.moved] == [("scan", "cpu", False)]
    assert placement.moved[0].reason.startswith("sequential: 64 turns, ")
    assert all(name in placement.moved[0].reason for name in ("on acme_card", "on cpu"))
    assert {(value.source, value.device) for value in placement.crossings} == {("", "acme_card"), ("acme_card", "")}
    assert sum(value.bytes for value in placement.crossings) == 2 * (64 * 64 + 64 * 8) * 4
    assert dict(placement.measured)[TOGETHER] == 0.1
    np.testing.assert_allclose(loaded.run(feeds)["y"], expected, rtol=1e-4, atol=1e-5)
    assert loaded.explain() == ()
    plan, _ = loaded.plan()
    weights = (4 * 64 * 64 + 2 * 64 * 8) * 4
    assert plan.weights >= weights
    assert loaded.memory().peak >= plan.weights + plan.arena


def test_what_was_decided_is_remembered(measured: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    built, feeds, _ = _made()
    first = weft.load(built, device=TOGETHER)
    bits = first.run(feeds)["y"].tobytes()
    placement = _placement(first)
    del first
    measured[TOGETHER] = 9.0
    monkeypatch.setattr(mixing, "calibrated", lambda *_: pytest.fail("nothing is asked again"))
    again = weft.load(built, device=TOGETHER)
    assert _placement(again) == placement
    assert again.run(feeds)["y"].tobytes() == bits


@pytest.mark.parametrize("best", ["acme_card", "cpu"])
def test_one_device_that_is_quicker_has_it_all(best: str, measured: dict[str, float]) -> None:
    measured |= {"acme_card": 0.2, "cpu": 0.2, TOGETHER: 0.2, best: 0.1}
    built, feeds, expected = _made()
    loaded = weft.load(built, device=TOGETHER)
    assert [piece.device for piece in _placement(loaded).pieces] == [best]
    assert _placement(loaded).moved == ()
    np.testing.assert_allclose(loaded.run(feeds)["y"], expected, rtol=1e-4, atol=1e-5)
    part = loaded.run(feeds, outputs=["y"], keep=["y"])["y"]
    assert part.device == "acme_card"


def test_one_device_is_used_as_if_it_were_alone(measured: dict[str, float]) -> None:
    """With the same shortcut, and no piece between it and the caller."""
    measured |= {"acme_card": 0.2, "cpu": 0.1, TOGETHER: 0.2}
    built, feeds, _ = _made()
    loaded, alone = weft.load(built, device=TOGETHER), weft.load(built, device="cpu")
    assert loaded.run(feeds)["y"].tobytes() == alone.run(feeds)["y"].tobytes()
    runners = [one.session().whole.runner for one in (loaded, alone)]
    assert type(runners[0]) is type(runners[1])
    assert all(shortcut is not None for shortcut in loaded.session().shortcuts.values())


def test_what_one_device_keeps_comes_home(measured: dict[str, float]) -> None:
    measured |= {"acme_card": 0.1, "cpu": 0.2, "cpu+acme_card": 0.2}
    built, feeds, expected = _made()
    loaded = weft.load(built, device="cpu+acme_card")
    assert [piece.device for piece in _placement(loaded).pieces] == ["acme_card"]
    kept = loaded.run(feeds, keep=True)["y"]
    assert kept.device == "cpu"
    np.testing.assert_allclose(kept.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert loaded.run({"x": loaded.to_device(feeds["x"])})["y"].tobytes() == kept.numpy().tobytes()


def test_several_devices_must_be_clearly_ahead(measured: dict[str, float]) -> None:
    measured |= {"acme_card": 0.2, "cpu": 0.101, TOGETHER: 0.1}
    assert [piece.device for piece in _placement(weft.load(_made()[0], device=TOGETHER)).pieces] == ["cpu"]


def test_tensors_are_kept_on_the_first_device() -> None:
    built, feeds, expected = _made()
    loaded = weft.load(built, device=TOGETHER)
    kept = loaded.run(feeds, keep=True)["y"]
    assert kept.device == loaded.to_device(feeds["x"]).device == "acme_card"
    np.testing.assert_allclose(kept.numpy(), expected, rtol=1e-4, atol=1e-5)
    again = loaded.run({"x": loaded.to_device(feeds["x"])})["y"]
    assert again.tobytes() == kept.numpy().tobytes()
    with pytest.raises(DeviceError, match="cannot be used on acme_card"):
        loaded.run({"x": weft.to_device(feeds["x"], "cpu")})


@pytest.mark.parametrize("kept", [False, True], ids=["new", "kept"])
def test_strict_refuses_what_is_moved(kept: bool) -> None:
    if kept:
        weft.load(_made()[0], device=TOGETHER)
    with pytest.raises(DeviceError, match=r"1 steps would not run on acme_card: Scan\w*: sequential: 64 turns"):
        weft.load(_made()[0], device=TOGETHER, strict=True)


def test_a_memory_limit_is_for_all_devices() -> None:
    built, feeds, _ = _made()
    needed = weft.load(built, device=TOGETHER).memory().peak
    weft.load(built, device=TOGETHER, memory_limit=2 * needed, cache=False).run(feeds)
    with pytest.raises(OutOfMemoryError, match="more than the memory_limit"):
        weft.load(built, device=TOGETHER, memory_limit=needed // 3, cache=False)


def test_weights_that_are_set_are_set_on_all_devices(tmp_path: Path, measured: dict[str, float]) -> None:
    built, feeds, _ = _made()
    loaded = weft.load(built, device=TOGETHER)
    before = loaded.run(feeds)["y"]
    name = next(iter(loaded.weights))
    measured[TOGETHER] = 9.0
    loaded.set_weight(name, np.asarray(loaded.weights[name]) * 2)
    after = loaded.run(feeds)["y"]
    assert [piece.device for piece in _placement(loaded).pieces] == ["acme_card", "cpu", "acme_card"]  # as it was
    measured[TOGETHER] = 0.1
    assert not np.array_equal(before, after)
    loaded.save(tmp_path / "new.onnx")
    assert weft.load(tmp_path / "new.onnx", device=TOGETHER).run(feeds)["y"].tobytes() == after.tobytes()


def test_names_that_cannot_be_joined() -> None:
    built = _made()[0]
    for name, said in (
        ("cpu+cpu", "names a device twice"),
        ("reference+cpu", "runs no pieces of programs"),
        ("cpu+warp", "there is no device 'warp'"),
    ):
        with pytest.raises(DeviceError, match=said):
            weft.load(built, device=name)


def test_what_is_not_told_of_several_devices_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built, feeds, _ = _made()
    with pytest.raises(DeviceError, match="cannot be timed one by one") as caught:
        weft.load(built, device=TOGETHER).profile(feeds)
    assert "device='acme_card'" in str(caught.value)
    onnx.save(built, tmp_path / "made.onnx")
    assert main(["kernels", str(tmp_path / "made.onnx"), "--device", TOGETHER]) == 1
    assert "acme_card" in capsys.readouterr().err


# -- a device that is named alone ------------------------------------------------------------------------------------


@pytest.fixture
def without_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card computes nothing in float64."""
    target = acme_card.CardDriver.target

    def lacking(self: acme_card.CardDriver, precision: str) -> Target:
        return replace(target(self, precision), missing_types=frozenset({DType.float64}))

    monkeypatch.setattr(acme_card.CardDriver, "target", lacking)
    monkeypatch.setattr(acme_card.CardDriver, "identity", lambda _: "a card without float64")


def _doubles() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Two products, between them large ones in float64."""
    weights = np.random.default_rng(2).standard_normal((256, 256)) / 16
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="before"),
        node("Cast", ["a"], ["b"], to=TensorProto.DOUBLE, name="widen"),
        node("MatMul", ["b", "v"], ["c"], name="precise"),
        node("Tanh", ["c"], ["d"], name="bend"),
        node("Cast", ["d"], ["e"], to=TensorProto.FLOAT, name="narrow"),
        node("MatMul", ["e", "w"], ["y"], name="after"),
    ]
    constants = [tensor("w", weights.astype(np.float32)), tensor("v", weights)]
    built = model(nodes, [value("x", ["rows", 256])], [value("y", ["rows", 256])], constants)
    return built, {"x": np.random.default_rng(3).standard_normal((32, 256)).astype(np.float32)}


@pytest.mark.usefixtures("without_doubles")
def test_a_named_device_gives_away_what_it_lacks() -> None:
    built, feeds = _doubles()
    loaded = weft.load(built, device="acme_card")
    assert loaded.device == "acme_card"
    placement = _placement(loaded)
    assert [piece.device for piece in placement.pieces] == ["acme_card", "cpu", "acme_card"]
    assert {step.lacking for step in placement.moved} == {True}
    assert {"precise", "bend"} <= {name for step in placement.moved for name in step.node.split(" + ")}
    assert all("float64" in step.reason for step in placement.moved)
    assert loaded.explain() == ()
    np.testing.assert_allclose(loaded.run(feeds)["y"], onnxruntime_run(built, feeds)[0], rtol=1e-4, atol=1e-5)
    again = weft.load(built, device="acme_card")
    assert _placement(again) == placement
    assert again.run(feeds, keep=True)["y"].device == "acme_card"


@pytest.mark.usefixtures("without_doubles")
@pytest.mark.parametrize("kept", [False, True], ids=["new", "kept"])
def test_a_named_device_may_give_nothing_away_where_that_is_strict(kept: bool) -> None:
    if kept:
        weft.load(_doubles()[0], device="acme_card")
    with pytest.raises(DeviceError, match=r"steps would not run on acme_card: .*precise.*float64"):
        weft.load(_doubles()[0], device="acme_card", strict=True)


def test_a_device_that_lacks_nothing_does_it_all() -> None:
    for strict in (False, True):
        loaded = weft.load(_doubles()[0], device="acme_card", strict=strict)
        assert not isinstance(loaded.session().whole.program, MixedProgram)


def test_other_shapes_follow_what_was_decided(measured: dict[str, float]) -> None:
    """A program that is made for some shapes alone stays on the device that was found to be the best."""
    built = model(
        [node("Add", ["x", "z"], ["s"], name="sum"), node("MatMul", ["s", "w"], ["y"], name="product")],
        [value("x", ["n", 16]), value("z", ["m", 16])],
        [value("y", None)],
        [tensor("w", np.eye(16, dtype=np.float32))],
    )
    measured |= {"acme_card": 0.1, "cpu": 0.2}
    loaded = weft.load(built, device=TOGETHER)
    rows: Mapping[str, Any] = {"x": np.ones((3, 16), np.float32), "z": np.ones((1, 16), np.float32)}
    np.testing.assert_array_equal(loaded.run(rows)["y"], np.full((3, 16), 2, np.float32))
    np.testing.assert_array_equal(loaded.run({**rows, "x": rows["z"]})["y"], np.full((1, 16), 2, np.float32))
    kept = loaded.run(rows, keep=True)["y"]
    assert kept.device == "acme_card"


# -- a choice that several devices are a part of ---------------------------------------------------------------------

ANY = weft.DevicePolicy(allow=("acme_card", "cpu"))


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "calibrated", _calibrated)


@pytest.mark.usefixtures("chosen")
def test_several_devices_are_chosen_where_they_are_expected_to_be_ahead() -> None:
    built, feeds, expected = _made()
    loaded = weft.load(built, device=ANY)
    assert loaded.device == TOGETHER
    assert [piece.device for piece in _placement(loaded).pieces] == ["acme_card", "cpu", "acme_card"]
    np.testing.assert_allclose(loaded.run(feeds)["y"], expected, rtol=1e-4, atol=1e-5)
    report = loaded.report()
    assert report.candidates == (TOGETHER, "acme_card", "cpu")
    assert "in 3 pieces" in str(report)
    assert "moved to cpu: sequential: 64 turns" in str(report)
    assert weft.load(built, device=ANY).device == TOGETHER  # as it is remembered


@pytest.mark.usefixtures("chosen")
def test_one_device_is_chosen_where_that_is_strict() -> None:
    assert JOINED not in weft.load(_made()[0], device=ANY, strict=True).device


@pytest.mark.usefixtures("chosen")
def test_one_device_is_chosen_where_several_are_not_ahead() -> None:
    built = model([node("MatMul", ["x", "w"], ["y"])], initializers=[tensor("w", np.eye(3, dtype=np.float32))])
    assert JOINED not in weft.load(built, device=ANY).device


@pytest.mark.usefixtures("chosen")
def test_a_device_that_fails_in_the_middle_leaves_the_model_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    built, feeds, expected = _made()
    loaded = weft.load(built, device=ANY)

    def broken(*_: Any, **__: Any) -> Any:
        raise DeviceError("the card fell out")

    monkeypatch.setattr(acme_card.Card, "execute", broken)
    with pytest.warns(weft.FallbackWarning):
        found = loaded.run(feeds)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert loaded.device == "cpu"
    assert [attempt.device for attempt in loaded.report().attempts] == [TOGETHER, "acme_card"]
    assert "acme_card: the card fell out" in str(loaded.report())


# -- the suite, in pieces --------------------------------------------------------------------------------------------

SUITE_SEED, SUITE_COUNT = 20261116, 60


def test_cases_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases of onnx's suite, some of them, chosen by a seed, with every other unit on another device."""
    pieces: list[int] = []

    def alternating(problem: Problem) -> Schedule | None:
        found = schedule(problem, tuple(number % 2 for number in range(len(problem.units))), Rules(0))
        pieces.append(len(found.parts))
        return found if found.parts else None

    monkeypatch.setattr(mixing, "divided", alternating)
    monkeypatch.setattr(mixing, "contenders", lambda mix: {TOGETHER: mix})
    cases = collect(["node"])
    known = {line.split()[0] for line in KNOWN.read_text().splitlines() if line and not line.startswith("#")}
    names = sorted(set(cases) - known)
    random.Random(SUITE_SEED).shuffle(names)
    print("seed", SUITE_SEED)
    found = {name: evaluate(cases[name], weft.load, TOGETHER) for name in names[:SUITE_COUNT]}
    assert {name: reason for name, (status, reason) in found.items() if status != "passed"} == {}
    assert sum(count > 1 for count in pieces) > SUITE_COUNT // 5
