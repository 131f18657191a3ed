"""`weft bench`: turns, statistics, comparisons and records on invented numbers; engines on tiny models."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from weft.backends.cpu.peak import measure_peak, peak_text
from weft.backends.host.machine import host, named
from weft.bench import measure, show
from weft.bench.agreement import difference
from weft.bench.engines import PEERS, REFERENCE, WEFT, Engine, Setup
from weft.bench.facts import commit
from weft.bench.processes import EngineProcess
from weft.bench.results import (
    BenchReport,
    Measurement,
    ModelResult,
    Start,
    compare,
    find_mismatches,
    mean_ratios,
    read_report,
    to_json,
)
from weft.bench.rounds import (
    FEWEST_RUNS,
    FEWEST_TURNS,
    PAUSE_SECONDS,
    Spread,
    geometric_mean,
    summarize_times,
    take_turns,
    time_block,
    turn_order,
)
from weft.bench.worker import dim_sizes
from weft.cli import bench
from weft.errors import DeviceError, ExecutionError, InputError
from weft.threads import usable_cores

ROOT = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]


# -- turns -----------------------------------------------------------------------------------------------------------


class FakeClock:
    """A clock that only `sleep` advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_each_engine_is_first_and_last_equally_often(count: int) -> None:
    names = [f"engine {number}" for number in range(count)]
    orders = [turn_order(names, turn) for turn in range(2 * count)]
    assert all(sorted(order) == names for order in orders)
    assert set(Counter(order[0] for order in orders).values()) == {2}
    assert set(Counter(order[-1] for order in orders).values()) == {2}


def test_turns_alternate_with_a_pause_before_each_block() -> None:
    clock = FakeClock()
    calls: list[tuple[str, float]] = []

    def block(name: str, seconds: float) -> list[float]:
        calls.append((name, clock.now))
        clock.now += seconds
        return [seconds]

    blocks = {name: lambda seconds, name=name: block(name, seconds) for name in ("a", "b")}
    times = take_turns(blocks, 2.0, clock, clock.sleep)
    assert [name for name, _ in calls[:8]] == ["a", "b", "b", "a", "b", "a", "a", "b"]
    gaps = [later - earlier for (_, earlier), (_, later) in pairwise(calls)]
    assert gaps == pytest.approx([0.1 + PAUSE_SECONDS] * len(gaps))
    assert len(times["a"]) == len(times["b"]) == math.ceil(2.0 / 0.3)


def test_slow_engines_still_get_the_fewest_turns() -> None:
    clock = FakeClock()

    def block(_: float) -> list[float]:
        clock.now += 100.0
        return [100.0]

    assert take_turns({"a": block}, 0.1, clock, clock.sleep) == {"a": [100.0] * FEWEST_TURNS}


@pytest.mark.parametrize(
    ("run_seconds", "block_seconds", "timed"), [(0.01, 0.095, 10), (0.2, 0.1, 3), (0.9, 0.1, 2), (5, 0.1, 1)]
)
def test_a_block_warms_up_and_times_enough_runs(run_seconds: float, block_seconds: float, timed: int) -> None:
    clock = FakeClock()
    runs = 0

    def run() -> None:
        nonlocal runs
        runs += 1
        clock.now += run_seconds

    times = time_block(run, block_seconds, clock)
    assert times == pytest.approx([run_seconds] * timed)
    assert runs == timed + 1
    assert len(times) >= FEWEST_RUNS or run_seconds * FEWEST_RUNS > 1


def test_short_runs_are_warmed_up_for_a_while() -> None:
    clock = FakeClock()
    runs = 0

    def run() -> None:
        nonlocal runs
        runs += 1
        clock.now += 0.001

    assert len(time_block(run, 0.0105, clock)) == 11
    assert runs == 16


def test_spread_is_the_median_between_its_quartiles() -> None:
    assert summarize_times([5.0, 1.0, 4.0, 2.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert summarize_times([1.0, 2.0]) == Spread(1.5, 1.25, 1.75, 2)
    assert summarize_times([7.0]) == Spread(7.0, 7.0, 7.0, 1)


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([1.0, 10.0, 100.0]) == pytest.approx(10.0)
    assert math.isnan(geometric_mean([]))


# -- agreement -------------------------------------------------------------------------------------------------------


def test_difference_is_relative_to_the_largest_magnitude() -> None:
    expected = np.array([0.001, -100.0], np.float32)
    assert difference([expected], [expected]) == 0.0
    assert difference([expected], [np.array([0.101, -100.0])]) == pytest.approx(1e-3)
    assert difference([np.zeros(2)], [np.zeros(2)]) == 0.0
    assert difference([expected, np.ones(2)], [expected, np.array([1.0, 1.5])]) == 0.5


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([np.ones(2)], []),
        ([np.ones(2)], [np.ones(3)]),
        ([np.array([np.nan, 1.0])], [np.array([1.0, 1.0])]),
        ([np.array([np.inf])], [np.array([-np.inf])]),
        ([np.zeros(1)], [np.ones(1)]),
        ([np.array(["a"], object)], [np.array(["b"], object)]),
        ([[np.ones(1)]], [[]]),
        ([None], [np.ones(1)]),
        ([{"a": 1.0}], [{"b": 1.0}]),
    ],
)
def test_incomparable_outputs_differ_infinitely(expected: list[Any], actual: list[Any]) -> None:
    assert difference(expected, actual) == math.inf


def test_equal_special_values_agree() -> None:
    values = [
        np.array([np.nan, np.inf, 1.0]),
        np.array(["a"], object),
        [np.ones(1)],
        None,
        {"a": 1.0},
        np.array(True),
    ]
    assert difference(values, values) == 0.0


def test_dim_sizes_of_inputs() -> None:
    specs = [("x", ("batch", 3, "width")), ("y", ("batch",)), ("state", None)]
    assert dim_sizes(specs, {"x": np.ones((2, 3, 5)), "y": np.ones(2)}) == {"batch": 2, "width": 5}
    assert dim_sizes(specs, {"x": np.ones((2, 3, 5)), "y": np.ones(4)}) is None


# -- records ---------------------------------------------------------------------------------------------------------


def measurement(engine: str, median: float, agrees: bool | None = True) -> Measurement:
    start = Start(median / 2, 0.1, 1 << 20, 0.2)
    spread = Spread(median, median * 0.9, median * 1.1, 9)
    return Measurement(engine, spread, start, start, 1e-6, agrees, 0.25, 0.03 if engine == "weft" else None)


def report(**times: tuple[float, float]) -> BenchReport:
    """Return a report of models with (weft, onnxruntime) times."""
    models = tuple(
        ModelResult(name, {"x": "float32[1]"}, 100, (measurement("weft", weft), measurement("onnxruntime", peer)), {})
        for name, (weft, peer) in times.items()
    )
    return BenchReport({"processor": "some"}, {"device": "cpu", "threads": 2}, models, {})


def capture_console(show_function: Any, *arguments: Any) -> str:
    console = Console(width=200, record=True, file=StringIO())
    show_function(*arguments, console)
    return console.export_text()


def test_means_name_the_worst_and_best_models() -> None:
    (mean,) = mean_ratios(report(slow=(2.0, 1.0), fast=(1.0, 8.0), same=(3.0, 3.0)))
    assert (mean.engine, mean.models, mean.worst, mean.best) == ("onnxruntime", 3, ("slow", 0.5), ("fast", 8.0))
    assert mean.ratio == pytest.approx(4.0 ** (1 / 3))


def test_report_survives_json(tmp_path: Path) -> None:
    whole = replace(report(a=(1.0, 2.0)), left_out={"b": "why"})
    path = tmp_path / "a.json"
    path.write_text(to_json(whole))
    assert read_report(path) == whole


def test_json_has_no_numbers_that_json_lacks() -> None:
    wrong = replace(measurement("weft", 1.0, agrees=False), difference=math.inf)
    text = to_json(BenchReport({}, {}, (ModelResult("a", {}, None, (wrong,), {}),), {}))
    assert json.loads(text)["models"][0]["measurements"][0]["difference"] is None


def test_comparison_marks_changes_beyond_the_spread() -> None:
    before = report(same=(1.0, 2.0), faster=(1.0, 2.0), slower=(1.0, 2.0), gone=(1.0, 1.0))
    after = report(same=(1.15, 2.2), faster=(0.5, 2.2), slower=(1.3, 2.2), added=(1.0, 1.0))
    comparison = compare(before, after)
    assert {change.model: change.verdict for change in comparison.changes} == {
        "same": "same",
        "faster": "faster",
        "slower": "slower",
    }
    assert [change.ratio for change in comparison.changes] == pytest.approx([1 / 1.15, 2.0, 1 / 1.3])
    assert comparison.drift["onnxruntime"] == pytest.approx(1 / 1.1)
    assert (comparison.only_before, comparison.only_after) == (("gone",), ("added",))
    text = capture_console(show.show_comparison, comparison)
    assert "only before: gone" in text
    assert "onnxruntime moved by 0.909" in text
    assert comparison.figures["importing"] == (1.0, 3)
    assert comparison.figures["loading, cold"] == (pytest.approx((2 / 1.15 / 1.3) ** (1 / 3)), 3)
    assert "planning: before / after 1.000 over 3 models" in text


def test_results_of_older_versions_can_be_compared(tmp_path: Path) -> None:
    data = json.loads(to_json(report(a=(1.0, 2.0))))
    for entry in data["models"][0]["measurements"]:
        del entry["plan"], entry["cold"]["imports"], entry["cached"]["imports"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    assert set(compare(read_report(path), report(a=(1.0, 2.0))).figures) == {
        "loading, cold",
        "loading, cached",
        "first run, cached",
    }


def test_report_warns_about_differences() -> None:
    good = report(fine=(1.0, 2.0))
    wrong = ModelResult("broken", {}, None, (measurement("weft", 1.0, agrees=False),), {"openvino": "word " * 100})
    whole = replace(good, models=(*good.models, wrong), left_out={"absent": "no such file"})
    assert [(model, measurement.engine) for model, measurement in find_mismatches(whole.models)] == [("broken", "weft")]
    text = capture_console(show.show_report, whole, ["torch: pip install torch"])
    assert "MISMATCH: broken: weft's outputs differ by 1e-06" in text
    assert "weft DIFFERS" in text
    assert "not measured: torch: pip install torch" in text
    assert "not measured: openvino on broken: word word" in text
    assert "left out: absent: no such file" in text
    assert "onnxruntime / weft: geometric mean 2.000 over 1 models" in text
    assert "weft: importing 200 ms, loading, cold 500 ms" in text
    assert "planning 30 ms (geometric means)" in text


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "models": [{}]}'])
def test_files_that_are_no_results_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"results\.json"):
        read_report(path)


# -- the machine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, usable_cores()])
def test_a_peak_is_measured(threads: int) -> None:
    """The peak is a positive, finite rate on any machine."""
    peak = measure_peak(threads)
    assert 0 < peak.flops < math.inf
    assert 0 < peak.bandwidth < math.inf


def test_peak_loop_keeps_its_sums_in_registers() -> None:
    from weft.backends.llvm.compilation import assembly_text

    machine = host()
    text = assembly_text(peak_text(machine), machine)
    if machine.target.fused_multiply_add and "fma" in machine.target.features:
        assert text.count("vfmadd") == machine.target.vector_registers * 3 // 4


@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3", "neoverse-n1"])
def test_peak_loop_compiles_for_other_machines(processor: str) -> None:
    from weft.backends.llvm.compilation import assembly_text

    assert "weft_peak_multiply" in assembly_text(peak_text(named(processor)), named(processor))


def test_commit_only_of_a_checkout(tmp_path: Path) -> None:
    (tmp_path / "file.py").touch()
    assert commit(tmp_path / "file.py") is None
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    for arguments in (["init", "-q"], ["add", "file.py"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], cwd=tmp_path, check=True)
    number = commit(tmp_path / "file.py")
    assert number is not None
    assert len(number) == 12
    (tmp_path / "file.py").write_text("changed")
    assert commit(tmp_path / "file.py") == f"{number}+"
    (tmp_path / "untracked.py").touch()
    assert commit(tmp_path / "untracked.py") is None


# -- engines ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = relu(x @ w) with x [batch, 16], w [16, 8]."""
    weights = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Relu", ["product"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path_factory.mktemp("models") / "linear.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


def run_bench(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    return bench.run(parser.parse_args(["bench", *map(str, arguments)]))


def peer_parameter(engine: Engine) -> Any:
    missing = engine.missing
    return pytest.param(engine, id=engine.name, marks=[pytest.mark.skip(reason=missing)] if missing else [])


@pytest.mark.parametrize("engine", [peer_parameter(PEERS[name]) for name in bench.DEFAULT_NAMES])
def test_each_engine_agrees_and_is_measured(engine: Engine, linear: Path) -> None:
    options = measure.Options("reference", 1, 0.1, (engine,), peak_flops=1e12)
    result = measure.measure(measure.BenchCase("linear", linear, sizes={"batch": 3}), options)
    assert result.failures == {}
    assert result.inputs == {"x": "float32[3, 16]"}
    assert result.flops == 3 * 8 * (2 * 16 + 1)
    assert [measurement.engine for measurement in result.measurements] == ["weft", engine.name]
    for measurement in result.measurements:
        assert measurement.agrees
        assert measurement.run.runs >= FEWEST_TURNS
        assert 0 < measurement.run.lower <= measurement.run.median <= measurement.run.upper
        assert measurement.cold.load > 0
        assert measurement.cached.load > 0
        assert measurement.cold.memory is None or measurement.cold.memory > 0
        assert measurement.share_of_peak == pytest.approx(result.flops / measurement.run.median / 1e12)


def test_outputs_are_compared_without_the_reference_among_the_peers(linear: Path) -> None:
    options = measure.Options("reference", 1, 0.05, (), peak_flops=None)
    result = measure.measure(measure.BenchCase("linear", linear, inputs={"x": np.ones((1, 16), np.float32)}), options)
    (measurement,) = result.measurements
    assert measurement.agrees
    assert measurement.share_of_peak is None


def test_differences_between_engines(linear: Path, tmp_path: Path) -> None:
    with EngineProcess(WEFT, Setup(str(linear), "reference", 1), tmp_path) as worker:
        assert worker.version()
        assert worker.load() > 0
        inputs = worker.inputs({"batch": 2}, 0)
        outputs = worker.run(inputs).outputs
    with EngineProcess(REFERENCE, Setup(str(linear), "", 1), tmp_path) as reference:
        reference.load()
        expected = reference.run(inputs).outputs
    assert difference(expected, outputs) < 1e-6
    assert difference(expected, [outputs[0] + 1]) > 1e-3


def failed_load(worker: EngineProcess) -> str:
    with worker, pytest.raises(ExecutionError) as raised:
        worker.load()
    return raised.value.problem


def test_a_broken_file_fails_with_a_message(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    assert "protobuf" in failed_load(EngineProcess(REFERENCE, Setup(str(broken), "", 1), tmp_path)).lower()
    assert "broken.onnx" in failed_load(EngineProcess(WEFT, Setup(str(broken), "reference", 1), tmp_path))


def test_an_engine_that_dies_or_hangs_is_reported(linear: Path, tmp_path: Path) -> None:
    setup = Setup(str(linear), "reference", 1)
    problem = failed_load(EngineProcess(replace(WEFT, name="stranger"), setup, tmp_path))
    assert problem.startswith("stranger: its process ended with code 1 during 'load'")
    assert "KeyError" in problem
    assert "no answer to 'load'" in failed_load(EngineProcess(WEFT, setup, tmp_path, reply_timeout=0.01))


# -- the command -----------------------------------------------------------------------------------------------------


def test_bench_writes_results_that_can_be_compared(linear: Path, tmp_path: Path, capsys: Capture) -> None:
    files = [tmp_path / "new folder" / name for name in ("a.json", "b.json")]
    options = ("--device", "reference", "--against", "onnxruntime", "--threads", 1, "--seconds", 0.1)
    for file in files:
        assert run_bench(linear, *options, "--shape", "batch=2", "--output", file) == 0
    text = capsys.readouterr().out
    assert "linear" in text
    assert "onnxruntime / weft: geometric mean" in text
    data = json.loads(files[0].read_text())
    assert data["settings"] | {"peak_flops": 0} == {
        "device": "reference",
        "precision": "float32",
        "threads": 1,
        "seconds": 0.1,
        "peak_flops": 0,
    }
    assert set(data["machine"]["versions"]) == {"weft", "onnxruntime"}
    assert data["models"][0]["inputs"] == {"x": "float32[2, 16]"}
    assert str(tmp_path) not in files[0].read_text()
    assert run_bench("--diff", *files) == 0
    assert "geometric mean of before / after" in capsys.readouterr().out
    assert run_bench("--diff", *files, "--json") == 0
    assert json.loads(capsys.readouterr().out)["changes"][0]["model"] == "linear"


def test_json_alone_on_stdout(linear: Path, capsys: Capture) -> None:
    options = ("--device", "reference", "--against", "none", "--seconds", 0.05)
    assert run_bench(linear, *options, "--json") == 0
    printed = capsys.readouterr()
    assert [entry["engine"] for entry in json.loads(printed.out)["models"][0]["measurements"]] == ["weft"]
    assert printed.err == ""


def test_a_missing_model_is_left_out(linear: Path, capsys: Capture) -> None:
    options = ("--device", "reference", "--against", "none", "--seconds", 0.05)
    assert run_bench(linear, "absent.onnx", *options) == 1
    assert "left out: absent.onnx" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no model to time"),
        (("absent.onnx",), "absent.onnx: no such file"),
        (("{}", "--against", "someone"), "someone: no such engine"),
        (("{}", "--shape", "batch"), "not of the form name=size"),
        (("--diff", "absent.json", "absent.json"), "absent.json"),
    ],
)
def test_wrong_use_is_refused(arguments: tuple[str, ...], message: str, linear: Path) -> None:
    with pytest.raises(InputError, match=message):
        run_bench(*(argument.format(linear) for argument in arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seconds", "0"), "--seconds: 0 must be more than 0"),
        (("--threads", "0"), "--threads: 0 must be at least 1"),
    ],
)
def test_options_out_of_range_are_wrong_usage(
    arguments: tuple[str, ...], message: str, linear: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_bench(str(linear), *arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_missing_engines_are_named_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Engine("absent", ("absent", "absent-onnx"), ("absent_engine", "absent_engine.onnx"), WEFT.load, {})
    monkeypatch.setitem(PEERS, "absent", absent)
    engines, missing = bench.choose_engines("onnxruntime,absent,onnxruntime")
    assert [engine.name for engine in engines] == ["onnxruntime"]
    assert missing == ["absent: absent_engine not installed: pip install absent absent-onnx"]


def test_kernels_need_a_device_that_times_them(linear: Path) -> None:
    with pytest.raises(DeviceError, match="'reference' cannot time its kernels") as raised:
        run_bench(linear, "--kernels", "--device", "reference")
    assert raised.value.hint is not None


def test_the_help_lists_all_engines() -> None:
    assert tuple(PEERS) == bench.NAMES


def test_script_takes_names_of_listed_models() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "bench")]
    options = ["light_shufflenet", "absent", "--device", "nowhere"]
    done = subprocess.run([*script, *options], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no device 'nowhere'")


def test_script_converts_models_for_wonnx() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "bench"), "wonnx"]
    options = ["light_squeezenet", "--device", "reference", "--against", "none", "--seconds", "0.01"]
    done = subprocess.run([*script, *options], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "light_squeezenet" in done.stdout
