"""Command lines made of the parsers' own options and of values that they do not expect.

What must hold: a command ends with 0, 1 or 2 and says in plain words what is wrong; no traceback, nothing that asks for
a report, however its streams are.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from attack.verdict import Payload, Verdict, right, wrong
from onnx import TensorProto, helper

SECONDS = 120
SHARE = 8

NUMBERS = (
    "0",
    "1",
    "2",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "99999999999999999999",
    "",
    "x",
    "1.5",
    "٣",
    "0x10",
    "1_0",
)
TEXTS = (
    "",
    "-",
    "--",
    "x",
    "é😀",
    "\x1b[31m",
    "a" * 5000,
    "%s%n",
    "[",
    "*",
    "../..",
    "@random",
    "@zeros",
    "@what",
    "none",
)
SHAPES = ("n=2", "n=0", "n=", "=2", "n", "n=-1", "n=99999999999999", "n=" + "9" * 40, "n=1.5", "m=2", "n=2=3", "é=1")
FILES = ("model.onnx", "missing.onnx", "folder", "junk.onnx", "empty.onnx", "x.npy", "x.npz", "junk.npz", "wrong.npy")
TARGETS = (
    "out.json",
    "folder",
    "missing/deep/out.json",
    "model.onnx/out",
    "/dev/full",
    "-",
    "out.svg",
    "out.png",
    "out.x",
)
DEVICES = ("cpu", "reference", "auto", "cuda", "webgpu:99", "cpu:1", "", "x")
STREAMS = ("kept", "kept", "kept", "closed", "full", "pipe", "ascii", "narrow")
SLOW = {"conformance": ("-k", "["), "bench": ("--against", "unknown")}
"""What ends commands early that would take minutes."""


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    """Commands with some of their options, each with a value that may be wrong."""
    from weft.cli import COMMANDS

    while True:
        command = str(random.choice(list(COMMANDS)))
        arguments: list[str] = []
        for action in _actions(command):
            if not action.option_strings:
                count = 2 if action.nargs == "*" and random.random() < 0.2 else 1
                arguments += [_pick(random, FILES if random.random() < 0.3 else FILES[:1]) for _ in range(count)]
            elif action.dest == "device":
                arguments += ["--device", _pick(random, DEVICES) if random.random() < 0.2 else device]
            elif random.random() < 0.25 and action.dest not in (
                "help",
                "debug",
                "verbose",
                "workers",
                "timeout",
                "native",
            ):
                arguments += _option(random, action)
        if random.random() < 0.05:
            arguments.append(_pick(random, ("--nothing", "-x", "", "extra", "--debug=1")))
        arguments += SLOW.get(command, ())
        yield {"name": command, "arguments": [command, *arguments], "streams": _pick(random, STREAMS)}


def attack(payload: Payload, device: str) -> Verdict:
    """Run one command line in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        _furnish(Path(folder))
        if payload["streams"] == "kept":
            return _judge(*_inside(payload["arguments"], folder))
        return _judge(*_outside(payload["arguments"], folder, payload["streams"]))


def smaller(payload: Payload) -> Iterator[Payload]:
    """The same with an argument less."""
    arguments = payload["arguments"]
    for number in range(1, len(arguments)):
        yield {**payload, "arguments": [*arguments[:number], *arguments[number + 1 :]]}
    if payload["streams"] != "kept":
        yield {**payload, "streams": "kept"}


def _actions(command: str) -> list[argparse.Action]:
    from weft.cli import command_parser

    chosen = command_parser([command]).chosen
    assert chosen is not None
    return list(chosen._actions)


def _option(random: np.random.Generator, action: argparse.Action) -> list[str]:
    name = action.option_strings[0]
    if action.nargs == 0 or isinstance(action.const, bool):
        return [name]
    values: tuple[str, ...]
    match action.dest:
        case "shape":
            values = SHAPES
        case "threads" | "seed" | "repeat" | "top" | "seconds":
            values = NUMBERS
        case "json" | "html" | "trace" | "picture" | "output" | "dump":
            values = TARGETS
        case "input":
            values = (*(f"x={file}" for file in FILES), *FILES, "x=@ones", "x=@what", "y=@ones", "@random", *TEXTS)
        case "known_failures" | "diff":
            values = FILES
        case _:
            values = TEXTS
    count = action.nargs if isinstance(action.nargs, int) else 1
    return [name, *(_pick(random, values) for _ in range(count))]


def _pick(random: np.random.Generator, values: tuple[str, ...]) -> str:
    return values[int(random.integers(len(values)))]


def _furnish(folder: Path) -> None:
    """The files that arguments name."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "folder").mkdir()
    (folder / "junk.onnx").write_bytes(bytes(range(256)))
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "junk.npz").write_bytes(b"PK\3\4" + bytes(range(200)))
    np.save(folder / "x.npy", np.ones((2, 3), np.float32))
    np.save(folder / "wrong.npy", np.ones((2, 4), np.int64))
    np.savez(folder / "x.npz", x=np.ones((2, 3), np.float32))


def _inside(arguments: list[str], folder: str) -> tuple[int, str]:
    from weft.cli import main

    before, stderr = Path.cwd(), io.StringIO()
    try:
        os.chdir(folder)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr):
            return main(arguments), stderr.getvalue()
    finally:
        os.chdir(before)


def _outside(arguments: list[str], folder: str, streams: str) -> tuple[int, str]:
    """The command as a process whose standard output is out of the ordinary."""
    import weft

    environment = {**os.environ, "PYTHONPATH": str(Path(weft.__file__).parents[1])}
    output: Any = subprocess.DEVNULL
    close = ()
    if streams == "ascii":
        environment |= {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    if streams == "narrow":
        environment |= {"COLUMNS": "4", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "weft", *arguments]
    with contextlib.ExitStack() as stack:
        if streams == "pipe":
            reader, writer = os.pipe()
            os.close(reader)
            output = stack.enter_context(os.fdopen(writer, "w"))
        elif streams == "full" and Path("/dev/full").exists():
            output = stack.enter_context(Path("/dev/full").open("w"))
        elif streams == "closed" and os.name == "posix":
            close = ("sh", "-c", 'exec "$@" >&-', "sh")
        process = subprocess.run(
            [*close, *command],
            stdout=output,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
            timeout=SECONDS,
            check=False,
        )
    return process.returncode, process.stderr.decode(errors="replace")


def _judge(code: int, stderr: str) -> Verdict:
    if code not in (0, 1, 2, 141):
        return wrong(f"it ended with {code}: {stderr[-300:]}")
    for words in ("Traceback", "unexpected", "please report", "Exception ignored"):
        if words in stderr:
            return wrong(f"{words}: {stderr[-300:]}")
    if code == 1 and "error" not in stderr and "failed" not in stderr and stderr.strip():
        return wrong(f"no error is named: {stderr[-300:]}")
    return right()
