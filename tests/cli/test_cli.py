"""All commands through `main`; their JSON is compared with independent facts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from weft.cli import COMMANDS, main
from weft.cli.output import format_bytes, format_count, format_seconds

SOURCE = str(Path(__file__).parents[2] / "src")
Capture = pytest.CaptureFixture[str]


def run_json(capsys: Capture, *arguments: object) -> Any:
    """Return the JSON of a command, which prints nothing else to stdout."""
    code = main([*map(str, arguments), "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out)


def run_error(capsys: Capture, *arguments: object) -> str:
    """Return what a failing command prints to stderr."""
    code = main(list(map(str, arguments)))
    printed = capsys.readouterr()
    assert code == 1
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert "Traceback" not in printed.err
    return printed.err


def call(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=120, **options
    )


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    """y = relu(x @ w + b) with x [batch, 64], w [64, 32]."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((64, 32)).astype(np.float32),
        "b": random.standard_normal(32).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"], "multiply"),
            helper.make_node("Add", ["product", "b"], ["sum"], "shift"),
            helper.make_node("Relu", ["sum"], ["y"], "clip"),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 32])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, producer_name="test", opset_imports=[helper.make_opsetid("", 20)])
    helper.set_model_props(model, {"purpose": "testing"})
    model.ir_version = 9
    path = tmp_path / "linear.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    """y = x * scale, where the input `scale` has the default 3."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "scale"], ["y"])],
        "scaled",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.array(3, np.float32), "scale")],
    )
    path = tmp_path / "scaled.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two outputs with awkward names from a float, an integer and a bool input that share dims."""
    graph = helper.make_graph(
        [
            helper.make_node("Where", ["keep", "x", "x"], ["a/b:0"]),
            helper.make_node("Add", ["ids", "ids"], ["a_b_0"]),
        ],
        "mixed",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length"]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"]),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, ["batch", "length"]),
        ],
        [
            helper.make_tensor_value_info("a/b:0", TensorProto.FLOAT, ["batch", "length"]),
            helper.make_tensor_value_info("a_b_0", TensorProto.INT64, ["batch", "length"]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 9
    path = tmp_path / "mixed.onnx"
    onnx.save(model, path)
    return path


# -- all commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_names_every_command(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_and_json(command: str, capsys: Capture) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert "--debug" in text


def test_help_as_a_command(capsys: Capture) -> None:
    assert main(["help", "plan"]) == 0
    assert capsys.readouterr().out.startswith("usage: weft plan")


def test_help_is_fast_to_import() -> None:
    code = "import sys; from weft.cli import main; main(['--help']); print(sorted({'rich', 'onnx'} & set(sys.modules)))"
    assert call("-c", code).stdout.endswith("[]\n")


@pytest.mark.parametrize("arguments", [["knit"], ["run"], ["run", "m.onnx", "--seed", "x"]])
def test_wrong_usage(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("  hint: ")


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["inof"], "weft info"),
        (["confromance"], "weft conformance"),
        (["model.onnx"], "weft run model.onnx"),
        (["photo.jpg"], "weft run MODEL photo.jpg"),
        (["version"], "weft --version"),
        (["benchmark", "m.onnx"], "weft bench"),
        (["run"], "weft run [options] MODEL"),
        (["run", "m.onnx", "--devcie", "cpu"], "--device"),
        (["run", "m.onnx", "--jsno"], "--json"),
        (["run", "m.onnx", "--precision", "fasst"], "fast"),
    ],
)
def test_suggestions(arguments: list[str], suggestion: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    assert suggestion in capsys.readouterr().err.splitlines()[1]


def test_python_dash_m() -> None:
    result = call("-m", "weft", "--version")
    assert result.returncode == 0
    assert result.stdout.startswith("weft ")


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    for arguments in (["--debug", "info", "none.onnx"], ["info", "none.onnx", "--debug"]):
        result = call("-m", "weft", *arguments, cwd=tmp_path)
        assert result.returncode == 1
        assert "Traceback" in result.stderr


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.cli.devices.run", interrupted)
    assert main(["devices"]) == 130
    assert capsys.readouterr().err == ""


def test_unexpected_errors_ask_for_a_report(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def broken(_: object) -> int:
        raise TypeError("two\nlines")

    monkeypatch.setattr("weft.cli.devices.run", broken)
    text = run_error(capsys, "devices")
    assert "TypeError: two lines" in text.splitlines()[0]
    assert "--debug" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "m.onnx", "--seed", "-1"],
        ["run", "m.onnx", "--repeat", "0"],
        ["profile", "m.onnx", "--repeat", "9" * 30],
        ["plan", "m.onnx", "--threads", "-4"],
        ["plan", "m.onnx", "--threads", "9" * 5000],
        ["bench", "m.onnx", "--seconds", "nan"],
        ["bench", "m.onnx", "--seconds", "inf"],
        ["conformance", "--timeout", "nan"],
        ["conformance", "--workers", "100000"],
    ],
)
def test_numbers_out_of_bounds(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith(f"error: {arguments[-2]}")
    assert len(first) < 200


@pytest.mark.parametrize("size", ["99999999999999", "9" * 18, "9" * 40])
def test_huge_sizes(size: str, linear: Path, capsys: Capture) -> None:
    text = run_error(capsys, "run", str(linear), "--shape", f"batch={size}")
    assert "unexpected" not in text
    assert "--shape" in text


def test_pattern_without_matches(capsys: Capture) -> None:
    text = run_error(capsys, "conformance", "-k", "no_such_case", "--kind", "simple")
    assert "no case matches" in text


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize(("redirection", "code"), [(">&-", 0), (">&- 2>&-", 0), (">/dev/full", 1)])
def test_closed_and_full_streams(redirection: str, code: int) -> None:
    if "/dev/full" in redirection and not Path("/dev/full").exists():
        pytest.skip("the system has no /dev/full")
    environment = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1", "PYTHON": sys.executable}
    script = f'"$PYTHON" -m weft ops {redirection}'
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == code
    assert "Traceback" not in result.stderr
    assert "unexpected" not in result.stderr
    assert "Exception" not in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX pipe")
@pytest.mark.parametrize("option", ["--json", "--missing"])
def test_closed_pipe_is_quiet(option: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        environment = {**os.environ, "PYTHONPATH": SOURCE}
        command = [sys.executable, "-m", "weft", "ops", option]
        result = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, env=environment, timeout=120)
    assert (result.returncode, result.stderr) == (141, "")


# -- info ------------------------------------------------------------------------------------------------------------


def test_info_of_the_file(linear: Path, capsys: Capture) -> None:
    record = run_json(capsys, "info", linear)
    model = onnx.load(linear)
    assert record["file"] == str(linear)
    assert record["producer"].startswith("test")
    assert record["opsets"] == {"ai.onnx": 20}
    assert record["ir_version"] == 9
    assert record["metadata"] == {"purpose": "testing"}
    assert record["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 64]}]
    assert record["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["batch", 32]}]
    assert {(op["op"], op["count"]) for op in record["ops"]} == {("MatMul", 1), ("Add", 1), ("Relu", 1)}
    assert record["parameters"] == sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    assert record["weight_bytes"] == sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    assert record["weight_dtypes"] == ["float32"]
    assert record["dynamic"] == [{"dim": "batch", "places": ["x[0]", "y[0]"], "from_data": False}]


def test_info_counts_flops(linear: Path, capsys: Capture) -> None:
    by_hand = 2 * 64 * 32 + 32 + 32  # for one row: multiply-adds, the bias, the maximum
    guessed = run_json(capsys, "info", linear, "--symbolic")
    assert guessed["flops_symbolic"] == f"{by_hand}*batch"
    assert guessed["guessed"] == ["batch"]
    assert guessed["flops"] == by_hand * guessed["sizes"]["batch"]
    record = run_json(capsys, "info", linear, "--shape", "batch=5")
    assert record["flops"] == 5 * by_hand
    assert {op["op"]: op["flops"] for op in record["ops"]}["MatMul"] == 5 * 2 * 64 * 32


def test_info_of_the_demo_model(capsys: Capture) -> None:
    path = Path(SOURCE) / "weft" / "cli" / "demo_data" / "digits.onnx"
    record = run_json(capsys, "info", path, "--shape", "batch=1")
    flops = {op["op"]: op["flops"] for op in record["ops"]}
    multiply_adds = 2 * 64 * (16 * 9 + 32 * 16 * 9)
    assert multiply_adds <= flops["Conv"] <= multiply_adds + 64 * (16 + 32)  # the bias counts if it is a separate step
    assert flops["MaxPool"] == 32 * 16 * 4
    assert float(record["metadata"]["held_out_accuracy"]) > 0.97


def test_info_as_text(linear: Path, capsys: Capture) -> None:
    assert main(["info", str(linear)]) == 0
    text = capsys.readouterr().out
    for fact in ("2,080 in 2 tensors", "[batch, 64]", "8.12 KiB", "ai.onnx 20", "MatMul", "batch = 1", "dynamic dims"):
        assert fact in text


@pytest.mark.parametrize("option", ["batch", "batch=", "=4", "batch=-1", "height=3"])
def test_info_with_an_invalid_shape(option: str, linear: Path, capsys: Capture) -> None:
    assert "--shape" in run_error(capsys, "info", linear, "--shape", option)


def test_info_of_an_unsupported_model(tmp_path: Path, capsys: Capture) -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], "unknown_node", domain="example.unknown")
    graph = helper.make_graph(
        [node],
        "odd",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("example.unknown", 1)]
    path = tmp_path / "odd.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    record = run_json(capsys, "info", path)
    assert record["ops"] == [{"domain": "example.unknown", "op": "Frobnicate", "count": 1}]
    assert record["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["n"]}]
    assert "Frobnicate" in record["problem"]
    assert main(["info", str(path)]) == 0
    assert "problem" in capsys.readouterr().out
    assert "Frobnicate" in run_error(capsys, "run", path)


# -- run -------------------------------------------------------------------------------------------------------------


def test_run_with_a_file(linear: Path, tmp_path: Path, capsys: Capture) -> None:
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    record = run_json(capsys, "run", linear, "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "out")
    w, b = (numpy_helper.to_array(tensor) for tensor in onnx.load(linear).graph.initializer)
    expected = np.maximum(x @ w + b, 0)
    saved = np.load(record["saved"]["y"])
    np.testing.assert_allclose(saved, expected, rtol=1e-4, atol=1e-4)
    (output,) = record["outputs"]
    assert (output["name"], output["dtype"], output["shape"]) == ("y", "float32", [3, 32])
    assert output["min"] == 0
    assert output["max"] == pytest.approx(expected.max(), rel=1e-4)
    assert output["mean"] == pytest.approx(expected.mean(), rel=1e-4)
    assert output["first"] == pytest.approx(expected[0, :5], rel=1e-4, abs=1e-4)
    assert record["latency_ms"] > 0
    assert record["sizes"] == {"batch": 3}


@pytest.mark.parametrize("name", ["{}", "x={}"])
def test_run_with_an_archive(name: str, linear: Path, tmp_path: Path, capsys: Capture) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((2, 64), np.float32))
    record = run_json(capsys, "run", linear, "--input", name.format(tmp_path / "data.npz"))
    assert record["inputs"][0]["shape"] == [2, 64]


def test_array_names_with_colons(tmp_path: Path, capsys: Capture) -> None:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x:0"], ["y"])],
        "colons",
        [helper.make_tensor_value_info("x:0", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), tmp_path / "colons.onnx")
    np.savez(tmp_path / "data.npz", **{"x:0": np.array([1, 2], np.float32)})
    record = run_json(capsys, "run", tmp_path / "colons.onnx", "--input", tmp_path / "data.npz")
    assert record["outputs"][0]["first"] == [-1, -2]


def test_run_generates_other_inputs(mixed: Path, tmp_path: Path, capsys: Capture) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 7), np.float32))
    options = [
        "--input",
        f"x={tmp_path / 'x.npy'}",
        "--input",
        "keep=@ones",
        "--output",
        tmp_path,
        "--input",
        "@random",
    ]
    record = run_json(capsys, "run", mixed, *options)
    assert [item["shape"] for item in record["inputs"]] == [[2, 7]] * 3
    assert [item["source"] for item in record["inputs"]][1:] == ["@random", "@ones"]
    assert set(np.unique(np.load(record["saved"]["a_b_0"]))) <= {0, 2}
    assert len({Path(path).name for path in record["saved"].values()}) == 2
    assert all(Path(path).parent == tmp_path for path in record["saved"].values())


def test_run_with_default_inputs(scaled: Path, capsys: Capture) -> None:
    assert run_json(capsys, "run", scaled, "--input", "x=@ones")["outputs"][0]["first"] == [3, 3]
    both = run_json(capsys, "run", scaled, "--input", "x=@ones", "--input", "scale=@zeros")
    assert both["outputs"][0]["first"] == [0, 0]


def test_seed(linear: Path, capsys: Capture) -> None:
    def first(seed: int) -> Any:
        return run_json(capsys, "run", linear, "--seed", seed, "--shape", "batch=4")["outputs"][0]["first"]

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_run_states_assumed_sizes(linear: Path, capsys: Capture) -> None:
    assert main(["run", str(linear), "--repeat", "3"]) == 0
    text = capsys.readouterr().out
    for fact in ("@random", "assumed batch = 1", "--shape batch=N", "[1, 32]", "median of 3 runs"):
        assert fact in text


def test_kernels_are_listed(linear: Path, capsys: Capture) -> None:
    kernels = run_json(capsys, "kernels", linear, "--device", "cpu")
    assert all(kernel["template"] and kernel["nodes"] and kernel["launches"] for kernel in kernels)
    assert any("clip" in node for kernel in kernels for node in kernel["nodes"])
    name = kernels[-1]["name"]
    (shown,) = run_json(capsys, "kernels", linear, "--device", "cpu", "-k", name)
    assert shown["reason"]
    assert shown["ir"].startswith(f"kernel {name}(")
    assert set(shown["code"]) == {"LLVM", "assembly"}
    assert main(["kernels", str(linear), "--device", "cpu"]) == 0
    assert name in capsys.readouterr().out
    assert main(["kernels", str(linear), "--device", "cpu", "-k", name]) == 0
    text = capsys.readouterr().out
    assert "define void" in text
    assert shown["reason"] in " ".join(text.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [(["-k", "nowhere"], ["nowhere", "leave out -k"]), (["--device", "reference"], ["reference", "builds no kernels"])],
)
def test_missing_kernels(linear: Path, options: list[str], words: list[str], capsys: Capture) -> None:
    assert main(["kernels", str(linear), *options]) == 1
    text = " ".join(capsys.readouterr().err.split())
    assert all(word in text for word in words)


def test_run_dumps_every_stage(linear: Path, tmp_path: Path, capsys: Capture) -> None:
    run_json(capsys, "run", linear, "--dump", tmp_path / "stages")
    stages = sorted((tmp_path / "stages").glob("*.txt"))
    assert len(stages) >= 2
    assert all(stage.name[:1].isdigit() and stage.read_text(encoding="utf-8") for stage in stages)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("x=missing.npy", ["missing.npy", "no such file"]),
        ("z=@random", ["z=@random", "the inputs are x"]),
        ("x=@noise", ["@noise", "@random"]),
    ],
)
def test_run_with_an_invalid_input(option: str, words: list[str], linear: Path, capsys: Capture) -> None:
    text = run_error(capsys, "run", linear, "--input", option)
    assert all(word in text for word in words)


def test_run_with_an_unreadable_file(linear: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "x.npy").write_bytes(b"not an array")
    assert "not a readable" in run_error(capsys, "run", linear, "--input", f"x={tmp_path / 'x.npy'}")


@pytest.mark.parametrize(("shape", "dtype"), [((3, 65), np.float32), ((65,), np.float32), ((3, 64), np.complex64)])
def test_run_with_an_unfitting_array(
    shape: tuple[int, ...], dtype: type, linear: Path, tmp_path: Path, capsys: Capture
) -> None:
    np.save(tmp_path / "x.npy", np.zeros(shape, dtype))
    assert "x" in run_error(capsys, "run", linear, "--input", f"x={tmp_path / 'x.npy'}")


def test_run_with_contradicting_sizes(mixed: Path, tmp_path: Path, capsys: Capture) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 7), np.float32))
    text = run_error(capsys, "run", mixed, "--input", f"x={tmp_path / 'x.npy'}", "--shape", "length=8")
    assert "length = 7" in text


def test_missing_model(capsys: Capture) -> None:
    for command in ("info", "run"):
        assert "nowhere.onnx" in run_error(capsys, command, "nowhere.onnx")


def test_unknown_device(linear: Path, capsys: Capture) -> None:
    assert "abacus" in run_error(capsys, "run", linear, "--device", "abacus")


# -- ops, devices ----------------------------------------------------------------------------------------------------


def test_ops_lists_all_of_onnx(capsys: Capture) -> None:
    record = run_json(capsys, "ops")
    rows = {(row["domain"], row["op"]): row for row in record["ops"]}
    for schema in onnx.defs.get_all_schemas_with_history():
        assert (schema.domain or "ai.onnx", schema.name) in rows
    from weft.opset.registry import definitions

    for definition in definitions():
        assert definition.since in rows[definition.domain or "ai.onnx", definition.name]["since"]
    assert rows["ai.onnx", "Relu"]["status"] == "defined"
    assert sum(record["summary"]["ai.onnx"].values()) == sum(domain == "ai.onnx" for domain, _ in rows)


def test_ops_of_a_domain(capsys: Capture) -> None:
    record = run_json(capsys, "ops", "--domain", "ai.onnx.ml")
    assert {row["domain"] for row in record["ops"]} == {"ai.onnx.ml"}
    assert list(record["summary"]) == ["ai.onnx.ml"]
    assert "ai.onnx.ml" in run_error(capsys, "ops", "--domain", "nowhere")


def test_ops_missing(capsys: Capture) -> None:
    record = run_json(capsys, "ops", "--missing")
    assert all(row["status"] in ("missing", "partial") for row in record["ops"])
    assert main(["ops", "--missing"]) == 0
    assert "operators" in capsys.readouterr().out


def test_ops_as_text(capsys: Capture) -> None:
    assert main(["ops"]) == 0
    assert "Relu" in capsys.readouterr().out


def test_devices(capsys: Capture) -> None:
    devices = {device["name"]: device for device in run_json(capsys, "devices")}
    assert devices["reference"]["available"] is True
    assert all(device["description"] for device in devices.values())
    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in devices)


# -- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_count(0), "0"),
        (format_count(999), "999"),
        (format_count(12_345_678), "12.3 M"),
        (format_bytes(512), "512 B"),
        (format_bytes(12_345_678), "11.8 MiB"),
        (format_seconds(2e-7), "200 ns"),
        (format_seconds(0.0123), "12.3 ms"),
        (format_seconds(4.25e-5), "42.5 µs"),
        (format_seconds(3), "3 s"),
        (format_seconds(1234), "1234 s"),
    ],
)
def test_number_formats(text: str, expected: str) -> None:
    assert text == expected


def test_counts_agree(linear: Path, capsys: Capture) -> None:
    """Every command counts the kernels, launches and host steps of a model alike."""
    (share,) = run_json(capsys, "report", linear, "--device", "cpu")["shares"]
    kernels = run_json(capsys, "kernels", linear, "--device", "cpu")
    assert share["kernels"] == len(kernels)
    assert share["launches"] == sum(kernel["launches"] for kernel in kernels)
    profile = run_json(capsys, "profile", linear, "--device", "cpu", "--repeat", "1")
    assert share["launches"] == sum(kernel["launches"] for kernel in profile["kernels"])
    texts = {}
    for command in ("kernels", "profile"):
        assert main([command, str(linear), "--device", "cpu"]) == 0
        texts[command] = capsys.readouterr().out
    assert "1 kernel, 1 launch on cpu" in texts["kernels"]
    assert "1 kernel, 1 launch, 0 steps on the host" in texts["profile"]
    sizes = [run_json(capsys, command, linear)["sizes"] for command in ("info", "plan", "view", "run")]
    assert sizes == [{"batch": 1}] * 4


def test_output_option(linear: Path, tmp_path: Path, capsys: Capture) -> None:
    """`-o` names the file or folder of every command that writes one; older spellings work, too."""
    for number, (command, *options) in enumerate(
        (
            ("run", "-o", "OUT.npy"),
            ("view", "--no-open", "-o", "OUT.html"),
            ("profile", "--repeat", "1", "-o", "OUT.html"),
            ("profile", "--repeat", "1", "-o", "OUT.trace"),
            ("profile", "--repeat", "1", "-o", "OUT.json"),
            ("profile", "--repeat", "1", "--html", "OUT.html"),
            ("plan", "-o", "OUT.svg"),
            ("plan", "--picture", "OUT.svg"),
            ("optimize", "-o", "OUT.onnx"),
            ("optimize", "OUT.onnx"),
            ("quantize", "--to", "fp16", "--quick", "-o", "OUT.onnx"),
            ("quantize", "--to", "fp16", "--quick", "OUT.onnx"),
            ("compile", "-o", "OUT.weft"),
            ("export", "-o", "OUT"),
            ("export", "--c", "OUT"),
        )
    ):
        name = next(option for option in options if option.startswith("OUT"))
        path = tmp_path / name.replace("OUT", f"out{number}")
        assert main([command, str(linear), *(str(path) if option == name else option for option in options)]) == 0
        assert path.exists(), capsys.readouterr().err
        content = b"" if path.is_dir() else path.read_bytes()
        assert content.startswith(b"<!") == (path.suffix == ".html"), path
    capsys.readouterr()
    assert "name one file to write" in run_error(capsys, "quantize", linear, "--to", "fp16")
