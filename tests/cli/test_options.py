"""Options have the same names, types and checks in all commands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from weft.cli import COMMANDS, command_parser, main
from weft.cli.options import LOADING, load_arguments
from weft.cli.sizes import sizes_for
from weft.errors import InputError
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.types import TensorType

Capture = pytest.CaptureFixture[str]
RUNNING = ("run", "profile", "compare", "bench")
SERVING = ("run", "profile", "plan", "report")


def options(command: str) -> dict[str, argparse.Action]:
    """Return the options of a command by name."""
    subparsers: Any = next(
        action for action in command_parser([command])._actions if hasattr(action, "choices") and action.choices
    )
    parser = subparsers.choices[command]
    return {name: action for action in parser._actions for name in action.option_strings}


@pytest.mark.parametrize("command", COMMANDS)
def test_options_agree_between_commands(command: str) -> None:
    run_options = options("run")
    for name, action in options(command).items():
        if name == "--json":
            assert action.nargs == 0, "--json takes no file"
        if name in ("--device", "--output", "--devices") and command in ("compile", "conformance", "info"):
            continue
        if name in run_options and name not in ("--output", "-o", "--top", "--dump"):
            assert (action.type, action.nargs, action.choices) == (
                run_options[name].type,
                run_options[name].nargs,
                run_options[name].choices,
            ), name


def test_commands_that_run_models() -> None:
    common = {"--input", "--shape", "--batch", "--seed", "--mean", "--std", "--layout", "--resize", "--scale", "--rate"}
    for command in RUNNING:
        assert common <= options(command).keys(), command
    for command in SERVING:
        named = {f"--{name.replace('_', '-')}" for name in LOADING if name != "cache"} | {"--no-cache", "--no-progress"}
        assert named <= options(command).keys(), command


def test_values_are_validated(tmp_path: Path, capsys: Capture) -> None:
    for wrong in (["--memory-limit", "much"], ["--threads", "0"], ["--precision", "half"], ["--prefer", "size"]):
        assert main(["run", str(tmp_path / "m.onnx"), *wrong]) == 2
        assert wrong[0] in capsys.readouterr().err
    args = command_parser(["run"]).parse_args(["run", "m.onnx", "--memory-limit", "1.5KiB", "--device", "cuda, cpu"])
    assert load_arguments(args)["memory_limit"] == 1536
    assert load_arguments(args)["device"] == ["cuda", "cpu"]


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "m"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", ports[:1], ports[1:])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_json_with_a_file(doubled: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["info", str(doubled), "--json", "out.json"]) == 2
    assert "--json takes no file" in capsys.readouterr().err
    assert main(["run", str(doubled), "--json", "out.json"]) == 1
    assert "-o FILE" in capsys.readouterr().err
    out = tmp_path / "new" / "profile.json"
    assert main(["profile", str(doubled), "--device", "cpu", "--repeat", "1", "-o", str(out)]) == 0
    assert out.exists()
    assert main(["profile", str(doubled), "--device", "cpu", "--repeat", "1", "-o", str(doubled / "x.json")]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_limit_and_batch(doubled: Path, capsys: Capture) -> None:
    arguments = ["run", str(doubled), "--device", "cpu", "--batch", "4", "--shape", "x=4,1000"]
    assert main([*arguments, "--threads", "1", "--prefer", "speed", "--no-cache"]) == 0
    assert "[4, 1000]" in capsys.readouterr().out
    assert main([*arguments, "--memory-limit", "1KB"]) == 1
    assert "memory" in capsys.readouterr().err


def spec(name: str, *dims: int | str) -> TensorSpec:
    return TensorSpec(name, dims, TensorType(DType.float32, dims))


def size_options(batch: int | None, *shapes: str) -> argparse.Namespace:
    return argparse.Namespace(shape=list(shapes), batch=batch)


def test_sizes() -> None:
    inputs = [spec("x", "n", 3, "h", "w"), spec("ids:0", "n", "seq"), spec("flat", "k")]
    assert sizes_for(size_options(4, "h=5"), inputs) == {"h": 5, "n": 4, "k": 4}
    whole = sizes_for(size_options(None, "x=2,3,8,9", "ids:0=[2,7]", "flat=6"), inputs)
    assert whole == {"n": 2, "h": 8, "w": 9, "seq": 7, "k": 6}
    assert sizes_for(size_options(None, "x=2x3x8x9"), inputs) == {"n": 2, "h": 8, "w": 9}
    for batch, shapes, problem in (
        (None, ["x=2,4,8,9"], "does not fit its shape"),
        (None, ["x=2,3"], "does not fit its shape"),
        (None, ["z=1,2"], "no input of that name"),
        (None, ["z=1"], "no dynamic dim of that name"),
        (None, ["x"], "name=size"),
        (None, ["h=-1"], "name=size"),
        (None, ["x=2,3,8,9", "ids:0=3,7"], "another option says"),
        (3, ["n=2"], "another option says"),
    ):
        with pytest.raises(InputError, match=problem):
            sizes_for(size_options(batch, *shapes), inputs)
    with pytest.raises(InputError, match="cannot change"):
        sizes_for(size_options(3), [spec("x", 1, "n")])
    assert sizes_for(size_options(1), [spec("x", 1, "n")]) == {}
