"""Ranking devices by predicted cost, with made-up calibrations, and by runs on a simulated clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cost.calibrations import PLAIN

from weft.cache.files import VARIABLE
from weft.cost.calibration import Seconds
from weft.errors import DeviceError, DeviceLostError, InputError
from weft.fuse import fuse
from weft.ir.dtypes import DType
from weft.ir.groups import FusedProgram
from weft.ir.program import TensorProgram
from weft.runtime.devices import driver
from weft.runtime.probes import chain, products
from weft.runtime.ranking import (
    Ranked,
    Ranking,
    RankingCache,
    likely_sizes,
    rank_by_benchmark,
    rank_by_cost,
    with_reasons,
)

NEAR, FAR = "cpu", "webgpu:0"
SLOW_START = replace(PLAIN, device=FAR, run_seconds=1e-3, products=((DType.float32, 1e13),))


class Source:
    """A program to rank; it records the devices it was fused for."""

    def __init__(self, program: TensorProgram) -> None:
        self.traced = program
        self.fused_for: list[str] = []

    def program(self) -> TensorProgram:
        return self.traced

    def fused(self, device: str) -> FusedProgram:
        self.fused_for.append(device)
        return fuse(self.traced, driver(NEAR).target("float32"))  # type: ignore[attr-defined]


def test_small_models_stay_on_the_host_and_large_ones_move() -> None:
    both = {NEAR: replace(PLAIN, device=NEAR), FAR: SLOW_START}
    pytest.importorskip("wgpu")
    small, large = Source(chain().program), Source(products(DType.float32, PLAIN.peak).program)
    assert rank_by_cost([FAR, NEAR], small, {}, both).devices == (NEAR, FAR)
    ranked = rank_by_cost([NEAR, FAR], large, {}, both)
    assert ranked.devices == (FAR, NEAR)
    assert ranked.by == "cost"
    assert ranked.entries[0].reason.startswith("about ")
    assert ranked.entries[0].parts is not None
    assert ranked.entries[0].parts.total == ranked.entries[0].seconds
    assert small.fused_for == [NEAR]  # fused once, for the likely one
    assert large.fused_for == [FAR]


def test_close_predictions_prefer_the_host() -> None:
    """Within 10%, the device that uses the host's memory wins; beyond that, the faster one."""
    pytest.importorskip("wgpu")
    source = Source(chain().program)
    near = replace(PLAIN, device=NEAR, run_seconds=1.05)
    assert (
        rank_by_cost([FAR, NEAR], source, {}, {NEAR: near, FAR: replace(PLAIN, device=FAR, run_seconds=1.0)}).best
        == NEAR
    )
    assert (
        rank_by_cost([FAR, NEAR], source, {}, {NEAR: near, FAR: replace(PLAIN, device=FAR, run_seconds=0.9)}).best
        == FAR
    )


def test_devices_without_calibration_come_last_with_a_reason() -> None:
    source = Source(chain().program)
    ranked = rank_by_cost(["acme:1", NEAR, "acme:0"], source, {}, {NEAR: PLAIN})
    assert ranked.devices == (NEAR, "acme:1", "acme:0")
    explained = with_reasons(ranked, {"acme:1": "it has no clock"})
    assert [entry.reason for entry in explained.entries[1:]] == ["it has no clock", "it is not calibrated"]
    nothing_known = rank_by_cost(["b", "a"], source, {}, {})
    assert nothing_known.devices == ("b", "a")


def test_likely_sizes_are_the_callers_or_defaults() -> None:
    assert likely_sizes(chain().program, {}) == {}


# -- benchmarks ------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that advances only with runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs: dict[str, int] = {}

    def __call__(self) -> float:
        return self.now

    def run(self, device: str, seconds: Callable[[int], float]) -> Callable[[], None]:
        def once() -> None:
            self.runs[device] = self.runs.get(device, 0) + 1
            self.now += seconds(self.runs[device])

        return once


def test_lowest_median_wins() -> None:
    clock = Clock()
    speeds = {"a": 2e-3, "b": 1e-3, "c": 1.5e-3}
    ranked = rank_by_benchmark(
        list(speeds), lambda d: clock.run(d, lambda n: speeds[d] * (10 if n % 7 == 0 else 1)), clock=clock
    )
    assert ranked.devices == ("b", "c", "a")
    assert ranked.entries[0].seconds == pytest.approx(1e-3)
    assert "median" in ranked.entries[0].reason


def test_first_runs_are_ignored() -> None:
    clock = Clock()
    speeds = {"slow to start": (0.5, 1e-3), "steady": (2e-3, 2e-3)}
    ranked = rank_by_benchmark(list(speeds), lambda d: clock.run(d, lambda n: speeds[d][n > 1]), clock=clock)
    assert ranked.best == "slow to start"


def test_clear_winner_ends_the_benchmark_early() -> None:
    def runs_of(slower: float) -> int:
        clock = Clock()
        speeds = {"a": 1e-3, "b": slower * 1e-3}
        rank_by_benchmark(list(speeds), lambda d: clock.run(d, lambda _: speeds[d]), clock=clock)
        return sum(clock.runs.values())

    assert runs_of(100.0) < runs_of(2.0) < runs_of(1.01)
    clock = Clock()
    rank_by_benchmark(["a", "b"], lambda d: clock.run(d, lambda _: 1e-2 if d == "a" else 2e-2), runs=30, clock=clock)
    assert all(30 <= runs <= 40 for runs in clock.runs.values())


def test_benchmark_respects_its_time_limit() -> None:
    clock = Clock()
    rank_by_benchmark(["a", "b"], lambda d: clock.run(d, lambda _: 0.5), runs=100, seconds=2.0, clock=clock)
    assert clock.now < 6.0  # with the runs before, which get things ready


def test_failing_devices_are_ranked_last_with_a_reason() -> None:
    clock = Clock()

    def ready(device: str) -> Callable[[], None]:
        if device == "broken":
            raise DeviceError("no kernels come out")
        if device == "foreign":
            raise RuntimeError("segment 7")

        def lost(number: int) -> float:
            if device == "lost" and number > 6:
                raise DeviceLostError("it went away")
            return 1e-4 if device == "lost" else 1e-3

        return clock.run(device, lost)

    ranked = rank_by_benchmark(["broken", "lost", "good", "fine", "foreign"], ready, clock=clock)
    assert ranked.devices[:2] in (("good", "fine"), ("fine", "good"))
    reasons = {entry.device: entry.reason for entry in ranked.entries if entry.seconds is None}
    assert reasons == {
        "broken": "no kernels come out",
        "lost": "it went away",
        "foreign": "RuntimeError: segment 7",
    }
    none_left = rank_by_benchmark(["broken"], ready, clock=clock)
    assert [entry.seconds for entry in none_left.entries] == [None]


def test_input_errors_are_not_device_failures() -> None:
    def ready(_: str) -> Callable[[], None]:
        raise InputError("there is no such input")

    with pytest.raises(InputError):
        rank_by_benchmark(["a", "b"], ready)


# -- remembered ------------------------------------------------------------------------------------------------------

RANKING = Ranking("cost", (Ranked("b", 1e-3, "quick", Seconds(1e-3)), Ranked("a", None, "no clock")))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))


def test_rankings_are_cached_by_model_sizes_and_devices() -> None:
    shapes = {"x": (1, 2)}
    RankingCache("model").put(RANKING, ("a", "b"), shapes, "known")
    assert RankingCache("model").get("cost", ("a", "b"), shapes, "known") == RANKING
    others = [
        RankingCache("another").get("cost", ("a", "b"), shapes, "known"),
        RankingCache("model").get("benchmark", ("a", "b"), shapes, "known"),
        RankingCache("model").get("cost", ("b", "a"), shapes, "known"),
        RankingCache("model").get("cost", ("a", "b"), {"x": (1, 3)}, "known"),
        RankingCache("model").get("cost", ("a", "b"), None, "known"),
        RankingCache("model").get("cost", ("a", "b"), shapes, "measured again"),
        RankingCache(None).get("cost", ("a", "b"), shapes, "known"),
    ]
    assert others == [None] * len(others)


@pytest.mark.parametrize(
    "damage",
    [
        "", "[]", "{}", "nonsense", json.dumps([["b", 1e-3, "quick", None]]), json.dumps([["b", -1.0, "x", None]] * 2),
        json.dumps([["b", 1e-3, "quick", [1]], ["a", None, 5, None]]), json.dumps([["b"], ["a"]]),
    ],
)  # fmt: skip
def test_damaged_records_are_ignored(damage: str, tmp_path: Path) -> None:
    remembered = RankingCache("model")
    remembered.put(RANKING, ("a", "b"), None, "known")
    (file,) = (tmp_path / "choices").iterdir()
    file.write_text(damage)
    assert remembered.get("cost", ("a", "b"), None, "known") is None
    remembered.put(RANKING, ("a", "b"), None, "known")
    assert remembered.get("cost", ("a", "b"), None, "known") is not None
