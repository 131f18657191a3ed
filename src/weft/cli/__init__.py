"""The `weft` command. Each subcommand is a module with `add_parser(subparsers)` and `run(args) -> int`.

Only the module of the command that is asked for gets imported, and it imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from weft.errors import WeftError

COMMANDS = {
    "demo": "read a few handwritten digits: no file, no network",
    "info": "what is in a model: inputs, outputs, ops, parameters, FLOPs, dynamic dims",
    "run": "run a model on files or random data",
    "ops": "the operators weft knows",
    "devices": "the devices weft can use here, and why not the others",
    "report": "where a model runs and why, and what each device does of it",
    "kernels": "the kernels that a model becomes: nodes, template, cost, code",
    "plan": "the memory that a model needs, known before it runs",
    "profile": "where a model's time and memory go: kernels, threads, the arena",
    "tune": "choose the tiles of a model's products by measuring them on a GPU",
    "optimize": "a model with fewer nodes and the same results, as ONNX",
    "compile": "compile a model ahead of time, into a file that loads in milliseconds",
    "quantize": "a model with narrower numbers, and what that costs",
    "export": "a model as a C library: header, object file, weights",
    "compare": "a model on several devices, layer by layer: what departs first",
    "bench": "time models in weft and in other engines",
    "cache": "what is kept on disk: where, how much, which models; clean it, verify it",
    "conformance": "run the test suite of the installed onnx package",
}

INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 failed, 2 wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        try:
            code = _run(arguments)
        except SystemExit as stop:  # argparse leaves this way after --help, --version and wrong usage
            code = stop.code if isinstance(stop.code, int) else 1
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _silence_stdout()
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except Exception as error:
        if "--debug" in arguments:
            raise
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed, too
            _report(error)
        _flush_or_silence()
        return 1


def _run(arguments: Sequence[str]) -> int:
    parser = _parser(arguments)
    args, rest = parser.parse_known_args(arguments)
    if rest:
        from weft.cli.options import take_rest

        take_rest(parser, args, rest)
    if args.command is None:
        _parser([]).print_help()
        return 0
    code: int = _module(args.command).run(args)
    return code


def _open_streams() -> None:
    """Streams that were closed before the start are nothing, and not the next file that is opened."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, with the options of the command that `arguments` name and only the names of the others."""
    parser = argparse.ArgumentParser(prog="weft", description="Compile and run ONNX models.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        if name == wanted:
            _module(name).add_parser(subparsers)
            subparsers.choices[name].add_argument(
                "--debug", action="store_true", default=argparse.SUPPRESS, help="show the full traceback of an error"
            )
        else:
            subparsers.add_parser(name, help=summary)
    return parser


def _module(command: str) -> Any:
    return importlib.import_module(f"weft.cli.{command}")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"weft {version('weft')}")
        except PackageNotFoundError:
            print("weft (not installed)")
        parser.exit()


def _report(error: Exception) -> None:
    """The error on stderr: what is wrong in one red line, then what to do."""
    hint = "run the same command with --debug to see where this happened"
    if isinstance(error, WeftError):
        text, _, hint = str(error).partition("\n  hint: ")
    elif isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    else:
        text = f"unexpected {type(error).__name__}: {error}; please report it"
    from rich.console import Console
    from rich.text import Text

    from weft.cli.output import printable

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    line = printable(" ".join(text.split()))
    console.print(Text.assemble(("error:", "bold red"), (f" {line}", "red")))
    if hint:
        console.print(Text(f"  hint: {hint}", "dim"))


def _flush_or_silence() -> None:
    """What was printed before an error, where it can be."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _silence_stdout()


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not fail again."""
    with contextlib.suppress(OSError, ValueError):  # a stdout without a file descriptor needs nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
