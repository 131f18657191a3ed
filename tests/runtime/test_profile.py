"""Profiles: the cost of steps, summaries of recorded runs, and the profile command."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

import weft
from weft.backends.cpu.peak import known_peak
from weft.cli import main
from weft.cli.kernel_table import print_kernels
from weft.cost.effort import copy_effort, estimate_effort
from weft.cost.roofline import Peak
from weft.errors import DeviceError, InputError
from weft.ir.dims import axis, symbol
from weft.ir.dtypes import DType
from weft.ir.kernel import Kernel
from weft.ir.program import Contract, Map, Step, Value, join_origins
from weft.ir.run_record import HostRecord, NativeRecord, RunRecord
from weft.ir.scalar import Apply, Index, Load
from weft.ir.types import TensorType
from weft.ir.work import Allocation, PlannedLaunch
from weft.report.nodes import label_nodes, ops_by_node
from weft.report.trace import trace_json
from weft.runtime.profile import HOST, Profile, plain_name, profile_runs

Capture = pytest.CaptureFixture[str]
MACHINE = Peak(flops=100e9, bandwidth=10e9)


# -- costs -----------------------------------------------------------------------------------------------------------


def tensor(number: int, *shape: Any) -> Value:
    return Value(number, TensorType(DType.float32, shape))


def test_a_product_with_its_epilogue_counts_both_and_moves_each_value_once() -> None:
    batch = symbol("batch")
    left, right, middle, result = tensor(0, batch, 5), tensor(1, 5, 3), tensor(2, batch, 3), tensor(3, batch, 3)
    load = Load(0, (Index(axis(0, batch)), Index(axis(1, 3))), DType.float32)
    steps = (
        Step(Contract((0, 1), (1, 2), (0, 2)), (left, right), (middle,), "product"),
        Step(Map(Apply("exp", (load,), DType.float32)), (middle,), (result,), "exponential"),
    )
    needed = estimate_effort(steps, (left, right), (result,))
    assert needed.flops == 2 * 5 * 3 * batch + 3 * batch
    assert needed.bytes == 4 * (5 * batch + 15 + 3 * batch)


def test_gather_reads_no_more_than_it_writes() -> None:
    table, indices, result = tensor(0, 30_000, 64), tensor(1, 8), tensor(2, 8, 64)
    index = Apply("cast", (Load(1, (Index(axis(0, 8)),), DType.float32),), DType.int64)
    read = Load(0, (index, Index(axis(1, 64))), DType.float32)
    needed = estimate_effort((Step(Map(read), (table, indices), (result,), "gather"),), (table, indices), (result,))
    assert needed.bytes == 4 * (8 * 64 + 8 + 8 * 64)
    assert needed.flops == 0
    assert copy_effort(result).bytes == 2 * 4 * 8 * 64


def test_origins_are_joined_without_duplicates() -> None:
    assert join_origins(["a + b", "b", "", "c"]) == "a + b + c"


# -- records of runs -------------------------------------------------------------------------------------------------


def launch(name: str, origin: str, task: int, flops: float = 0.0, bytes: float = 0.0) -> PlannedLaunch:
    return PlannedLaunch(Kernel(name, (), (), 1, ()), 1, (), (), origin, task, flops, bytes)


LAUNCHES = (
    launch("winograd_input_12", "a + b", 0, 1e6, 4e3),
    launch("winograd_output_7", "a + b", 0, 1e6, 4e3),
    launch("map_3f", "c", 1, 0.0, 1e6),
)
ALLOCATIONS = (
    Allocation("x", "a", 0, 100, 0, 1),
    Allocation("%7", "a + b", 128, 300, 1, 2),
    Allocation("workspace", "a", 512, 50, 0, 0),
)


def run_of(scale: int, start: int = 1_000_000) -> RunRecord:
    """Build a recorded run: two launches on two threads, one on thread 1, then a host step with an empty run inside."""
    times = np.array([[[0, 10], [2, 8]], [[10, 30], [12, 30]], [[0, 0], [40, 140]]], np.int64)
    times = np.where(times > 0, times * scale, times) + np.where(times[:, :, 1:] > 0, start, 0)
    native = NativeRecord(3, LAUNCHES, times, ALLOCATIONS, 600, start, start + 150 * scale)
    host = HostRecord("d", "unique", start + 160 * scale, start + 200 * scale, 10 * scale)
    return RunRecord(start, start + 250 * scale, (native, host))


def made_profile() -> Profile:
    records = iter([run_of(1), run_of(1), run_of(1000), run_of(3000), run_of(2000)])
    return profile_runs("m.onnx", "made up", 2, MACHINE, lambda: next(records), repeat=3)


def test_times_are_medians_and_launches_of_a_task_belong_together() -> None:
    profile = made_profile()
    assert profile.seconds == pytest.approx(250 * 2e-6)
    assert profile.kernels[0].name == "map"
    by_name = {kernel.name: kernel for kernel in profile.kernels}
    product = by_name["winograd (input, output)"]
    assert (product.launches, product.nodes, product.flops, product.bytes) == (2, ("a", "b"), 2e6, 8e3)
    assert product.seconds == pytest.approx(30 * 2e-6)
    assert product.busy == pytest.approx((10 + 6 + 20 + 18) * 2e-6)
    assert product.flops_per_second == pytest.approx(2e6 / 60e-6)
    assert (product.roofline, product.bound) == (pytest.approx(20e-6 / 60e-6), "arithmetic")
    assert (by_name["map"].bound, by_name["map"].roofline) == ("memory", pytest.approx(1e-4 / 200e-6))
    host = by_name["unique"]
    assert (host.bound, host.roofline, host.nodes) == ("host", None, ("d",))
    assert host.seconds == pytest.approx(30 * 2e-6)
    assert sum(kernel.share for kernel in profile.kernels) == pytest.approx(1)


def test_spans_and_memory_of_the_drawn_run() -> None:
    profile = made_profile()
    assert [span.thread for span in profile.spans] == [0, 1, 0, 1, 1, HOST]
    assert [span.name for span in profile.spans[:2]] == ["winograd_input", "winograd_input"]
    assert profile.spans[4].start == pytest.approx(40 * 2e-6)
    assert profile.occupancy == pytest.approx(((10 + 20) / 250, (6 + 18 + 100) / 250))
    assert [(point.bytes, point.start) for point in profile.memory] == [
        (150, pytest.approx(0)),
        (400, pytest.approx(20e-6)),
        (300, pytest.approx(80e-6)),
        (0, pytest.approx(300e-6)),
    ]
    peak = profile.peak_memory
    assert peak is not None
    assert (peak.bytes, profile.kernels[peak.kernel].name, profile.arena_bytes) == (
        400,
        "winograd (input, output)",
        600,
    )
    assert [(piece.name, piece.offset) for piece in profile.tensors] == [("x", 0), ("b", 128), ("workspace", 512)]
    assert (profile.tensors[1].start, profile.tensors[1].end) == (pytest.approx(20e-6), pytest.approx(280e-6))


def test_runs_with_other_launches_are_ignored() -> None:
    other = RunRecord(0, 10, ())
    records = iter([other, other, other, run_of(1000), run_of(2000)])
    profile = profile_runs("m.onnx", "made up", 2, MACHINE, lambda: next(records), repeat=3)
    assert len(profile.runs) == 3
    assert {kernel.name for kernel in profile.kernels} == {"map", "winograd (input, output)", "unique"}


@pytest.mark.parametrize(
    ("name", "plain"), [("map_3f", "map"), ("winograd_input", "winograd_input"), ("rows_0", "rows"), ("map", "map")]
)
def test_names_without_numbers(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_trace_has_threads_spans_and_live_bytes() -> None:
    profile = made_profile()
    events = json.loads(trace_json(profile, {"a": "Conv"}))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    assert [names[span["tid"]] for span in spans] == [
        "thread 0",
        "thread 1",
        "thread 0",
        "thread 1",
        "thread 1",
        "host",
    ]
    assert spans[0]["args"]["nodes"] == ["Conv a", "b"]
    assert spans[4]["ts"] == pytest.approx(80)
    assert spans[4]["dur"] == pytest.approx(200)
    assert [event["args"]["bytes"] for event in events if event["ph"] == "C"] == [150, 400, 300, 0]


def test_table_sums_up_unlisted_rows() -> None:
    stream = StringIO()
    print_kernels(made_profile(), {"c": "Transpose"}, 1, Console(file=stream, width=160))
    text = stream.getvalue()
    assert "Transpose c" in text
    assert "2 more" in text
    assert "winograd" not in text
    assert "100 GFLOP/s and 10 GB/s" in text


def test_node_labels_name_the_op_once() -> None:
    assert label_nodes(("n1", "/layer/Conv", "other"), {"n1": "Conv", "/layer/Conv": "Conv"}) == (
        "Conv n1",
        "/layer/Conv",
        "other",
    )


# -- real runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a convolution, relu and product over [batch, 3, 24, 24], then a host step."""
    random = np.random.default_rng(0)
    filters = random.standard_normal((8, 3, 3, 3)).astype(np.float32)
    weights = random.standard_normal((8 * 24 * 24, 10)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "filters"], ["c"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="second"),
        helper.make_node("Flatten", ["r"], ["f"], name="third"),
        helper.make_node("MatMul", ["f", "weights"], ["y"], name="fourth"),
        helper.make_node("NonZero", ["y"], ["z"], name="fifth"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 24, 24])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10]),
            helper.make_tensor_value_info("z", TensorProto.INT64, [2, "count"]),
        ],
        [numpy_helper.from_array(filters, "filters"), numpy_helper.from_array(weights, "weights")],
    )
    path = tmp_path_factory.mktemp("profiling") / "network.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.parametrize("threads", [1, 2])
def test_profile_of_a_model(network: Path, threads: int) -> None:
    model = weft.load(network, device="cpu", threads=threads)
    x = np.random.default_rng(1).standard_normal((4, 3, 24, 24)).astype(np.float32)
    profile = model.profile({"x": x}, repeat=3)
    assert (profile.device, profile.threads, len(profile.runs)) == ("cpu", threads, 3)
    products = {kernel.nodes: kernel for kernel in profile.kernels if kernel.flops > 1e5}
    convolution = next(kernel for nodes, kernel in products.items() if "first" in nodes)
    assert "second" in convolution.nodes
    points = 4 * 8 * 24 * 24
    assert convolution.flops == pytest.approx(points * (2 * 27 + 1), rel=0.02)
    assert convolution.bytes >= 4 * (4 * 3 * 24 * 24 + points)
    product = next(kernel for nodes, kernel in products.items() if "fourth" in nodes)
    assert product.flops == pytest.approx(2 * 4 * 8 * 24 * 24 * 10)
    assert any(kernel.bound == "host" and kernel.nodes == ("fifth",) for kernel in profile.kernels)
    assert profile.seconds > 0
    assert all(0 <= span.start <= span.end <= profile.seconds * 1.001 for span in profile.spans)
    assert all(part <= 1.001 for part in profile.occupancy)
    assert profile.arena_bytes >= max(piece.offset + piece.size for piece in profile.tensors)
    peak = profile.peak_memory
    assert peak is not None
    assert 4 * points <= peak.bytes <= profile.arena_bytes
    assert ops_by_node(model.source.graph)["second"] == "Relu"


def test_profile_of_a_scan_counts_every_iteration(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    length, batch, inputs, hidden = 20, 2, 6, 8
    parts = {"w": (1, 4 * hidden, inputs), "r": (1, 4 * hidden, hidden)}
    constants = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n) for n, s in parts.items()]
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="memory", hidden_size=hidden)
    graph = helper.make_graph(
        [node],
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [length, batch, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [length, 1, batch, hidden])],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "lstm.onnx")
    model = weft.load(tmp_path / "lstm.onnx", device="cpu", threads=1)
    profile = model.profile({"x": random.standard_normal((length, batch, inputs)).astype(np.float32)}, repeat=2)
    products = 2 * length * batch * 4 * hidden * (inputs + hidden)
    assert products <= profile.flops <= 2 * products
    assert any(kernel.launches >= length for kernel in profile.kernels)


def test_profiling_changes_no_result(network: Path) -> None:
    model = weft.load(network, device="cpu", threads=2)
    x = np.random.default_rng(2).standard_normal((2, 3, 24, 24)).astype(np.float32)
    before = model.run({"x": x})
    model.profile({"x": x}, repeat=1)
    after = model.run({"x": x})
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_wrong_use_is_refused(network: Path) -> None:
    x = np.zeros((1, 3, 24, 24), np.float32)
    with pytest.raises(DeviceError, match="'reference' cannot time its kernels"):
        weft.load(network, device="reference").profile({"x": x})
    model = weft.load(network, device="cpu")
    with pytest.raises(InputError, match="repeat must be a positive number"):
        model.profile({"x": x}, repeat=0)
    with pytest.raises(InputError, match="'x' is missing"):
        model.profile({})


# -- command line ----------------------------------------------------------------------------------------------------


def test_command_prints_and_writes(network: Path, tmp_path: Path, capsys: Capture) -> None:
    files = [tmp_path / "new" / name for name in ("page.html", "trace.json", "profile.json")]
    options = [f"--{name}={file}" for name, file in zip(("html", "trace", "output"), files)]
    assert main(["profile", str(network), "--threads", "1", "--repeat", "2", *options]) == 0
    printed = capsys.readouterr().out
    for text in ("Conv first", "of roofline", "live bytes", "threads busy", "batch = 1"):
        assert text in printed
    assert files[0].read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(files[1].read_text())["traceEvents"]
    record = json.loads(files[2].read_text())
    assert {"kernels", "spans", "occupancy", "tensors", "memory", "arena_bytes", "peak_memory"} <= set(record)


def test_command_prints_json(network: Path, capsys: Capture) -> None:
    arguments = ["profile", str(network), "--shape", "batch=3", "--repeat", "1", "--json", "--threads", "2"]
    assert main(arguments) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["threads"] == 2
    assert all(kernel["seconds"] >= 0 for kernel in record["kernels"])


def test_bench_lists_kernels(network: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "kernels.json"
    assert main(["bench", "--kernels", str(network), "--threads", "1", "-o", str(file)]) == 0
    assert "of roofline" in capsys.readouterr().out
    record = json.loads(file.read_text())
    assert record["peak"]["flops"] > 0
    assert any("first" in kernel["nodes"] for kernel in record["kernels"]["network"])


# -- the machine -----------------------------------------------------------------------------------------------------


def test_peak_is_kept_and_the_best_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    measured = iter([Peak(100.0, 10.0), Peak(80.0, 20.0)])
    monkeypatch.setattr("weft.backends.cpu.peak.measure_peak", lambda _: next(measured))
    known_peak.cache_clear()
    try:
        assert known_peak(1) == Peak(100.0, 10.0)
        known_peak.cache_clear()
        assert known_peak(1) == Peak(100.0, 10.0)
        (file,) = (tmp_path / "peaks").iterdir()
        file.write_text("[100.0, 10.0, 0.0, 0.0, 5.0]")  # long ago
        known_peak.cache_clear()
        assert known_peak(1) == Peak(100.0, 20.0)
        file.write_text("damaged")
        known_peak.cache_clear()
        with pytest.raises(StopIteration):
            known_peak(1)
    finally:
        known_peak.cache_clear()
