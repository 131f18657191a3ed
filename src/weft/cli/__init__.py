"""The `weft` command. Each subcommand is a module with `add_parser(subparsers)`, `run(args) -> int` and `EXAMPLES`.

Only the module of the named command is imported, and it imports what it needs when it runs. Other modules serve several
commands:

- arguments: `parsing` (the parser, wrong usage, help), `options`, `option_types` and `sizes` (shared options),
  `text_options` (answers of language models), `inputs`, `image_options` and `image_batches` (data for a model);
- terminal output: `output` (consoles, numbers, JSON), `fitted_tables` (tables for any width), `streams` (encodings and
  closed pipes), `kernel_table`, `comparison_table`, `operator_table`, `describe_outputs`, `labels`, `demo_gallery`;
- files: `output_files`, `save_outputs`;
- `process`: memory of this process, and requests of its parent.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from weft.cli.parsing import CommandParser, TopParser, closest_match, fill_line, first_word, format_examples
from weft.cli.streams import flush_or_silence, open_streams, silence_stdout
from weft.errors import WeftError

GROUPS = {
    "first steps": {
        "demo": "recognise a few handwritten digits; needs no file and no network",
        "run": "run a model on files or random data",
        "generate": "continue a text with a language model",
        "chat": "talk with a language model",
        "view": "show a model as a page: graph, kernels, weights, times",
        "info": "show inputs, outputs, operators and cost of a model",
        "devices": "list the devices of this machine, and why others are unavailable",
    },
    "use models from other programs": {
        "serve": "answer requests over HTTP and gRPC",
    },
    "analyse a model": {
        "profile": "show where time and memory go: kernels, threads, the arena",
        "plan": "predict the memory that a model needs",
        "report": "show where a model runs and why, and what each device computes",
        "kernels": "list the kernels of a model: nodes, template, cost, code",
        "compare": "compare a model on several devices, layer by layer",
        "bench": "time models in weft and in other engines",
    },
    "convert a model": {
        "optimize": "write an ONNX model with fewer nodes and the same results",
        "quantize": "write an ONNX model with fewer bits per number, and measure the error",
        "compile": "compile a model ahead of time, into a file that loads in milliseconds",
        "export": "write a model as a C library: header, object file, weights",
    },
    "manage weft": {
        "ops": "list supported operators, describe one, or find what a model lacks",
        "cache": "list, clean or verify the cache of compiled models",
        "tune": "measure which tiles suit a model's matrix products on a GPU",
        "conformance": "run the test suite of the installed onnx package",
        "completion": "complete commands with the Tab key in bash, zsh and fish",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}

INTERRUPTED = 130
BROKEN_PIPE = 141
SYNONYMS = {
    "version": "--version",
    "benchmark": "bench",
    "time": "bench",
    "show": "view",
    "visualize": "view",
    "open": "view",
    "simplify": "optimize",
    "predict": "run",
    "infer": "run",
    "complete": "generate",
    "text": "generate",
    "inspect": "info",
    "memory": "plan",
    "test": "conformance",
    "server": "serve",
    "deploy": "serve",
}
"""Commands by their names in other tools."""

DEPENDENCIES = ("llvmlite", "ml_dtypes", "onnx", "platformdirs", "rich")
"""Packages that weft installs, and that an installation with only the runtime lacks."""

DEBUG = "show the full traceback of an error"
VERBOSE = "log to stderr what is loaded, compiled and chosen; -vv logs each stage"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, and return one of `parsing.EXIT_CODES`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    try:
        try:
            code = _run(arguments)
        except SystemExit as stop:  # of argparse, after --help, --version and wrong usage
            code = stop.code if isinstance(stop.code, int) else 1
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        silence_stdout()
        return INTERRUPTED
    except BrokenPipeError:
        silence_stdout()
        return BROKEN_PIPE
    except Exception as error:
        if "--debug" in arguments:
            raise
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed, too
            _print_error(error)
        flush_or_silence()
        return 1


def _run(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    parser = command_parser(arguments)
    args, unrecognized = parser.parse_known_args(arguments)
    if unrecognized:
        from weft.cli.options import add_files_after_options

        add_files_after_options(parser, args, unrecognized)
    if args.command is None:
        sys.stdout.write(parser.overview())
        return 0
    if args.verbose:
        from weft import logs

        logs.write_to_stderr(logs.INFO if args.verbose == 1 else logs.DEBUG)
    code: int = _import_command(args.command).run(args)
    return code


def command_parser(arguments: Sequence[str]) -> TopParser:
    """Return the parser, with the options of the command that `arguments` name; other commands have only names."""
    name = first_word(arguments)
    parser = _make_parser(COMMANDS.keys() & {name})
    if name is not None and name not in COMMANDS:
        parser.refuse(f"there is no command {name!r}", _suggest_command(name))
    parser.chosen = None if name is None else parser.commands[name]
    return parser


def full_parser() -> TopParser:
    """Return the parser with the options of all commands."""
    return _make_parser(COMMANDS.keys())


def _make_parser(loaded: Collection[str]) -> TopParser:
    """Make the parser with the options of some commands, whose modules are imported."""
    parser = TopParser(prog="weft")
    parser.groups = GROUPS
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument("-v", "--verbose", action="count", default=0, help=VERBOSE)
    parser.add_argument("--debug", action="store_true", help=DEBUG)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    for name, summary in COMMANDS.items():
        if name not in loaded:
            subparsers.add_parser(name, help=summary)
            continue
        module = _import_command(name)
        module.add_parser(subparsers)
        command = subparsers.choices[name]
        command.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help=VERBOSE)
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=DEBUG)
        command.description = command.description or f"{summary[0].upper()}{summary[1:]}."
        command.shorten_usage()
        command.epilog = format_examples(module.EXAMPLES)
    parser.commands = subparsers.choices
    return parser


def _suggest_command(word: str) -> str:
    if Path(word).suffix.lower() in (".onnx", ".weft"):
        return f"name a command first: weft run {word}, or weft info {word}"
    if Path(word).suffix:
        return f"weft run MODEL {word} runs a model on it"
    close = SYNONYMS.get(word.lower()) or closest_match(word, COMMANDS)
    return f"did you mean weft {close}? weft --help lists all" if close else "weft --help lists all commands"


def _import_command(command: str) -> Any:
    return importlib.import_module(f"weft.cli.{command}")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from weft import __version__

        print(f"weft {__version__}")
        parser.exit()


def _print_error(error: Exception) -> None:
    """Print an error to stderr: the problem in one red line, then the hint."""
    hint = "run the same command with --debug to see the traceback"
    if isinstance(error, WeftError):
        text, _, hint = str(error).partition("\n  hint: ")
    elif isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        hint = ""
    elif isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) in DEPENDENCIES:
        text = f"this command needs the package {package}, which is not installed"
        hint = f"pip install {package}; from Python, a model that `weft compile` wrote runs with numpy alone"
    else:
        text = f"unexpected {type(error).__name__}: {error}; please report it"
    try:
        from rich.text import Text

        from weft.cli import output
    except ModuleNotFoundError:
        sys.stderr.write(f"error: {text}\n" + (f"  hint: {hint}\n" if hint else ""))
        return

    console = output.error_console()
    label, colon, problem = fill_line(output.escape_unprintable(f"error: {' '.join(text.split())}")).partition(":")
    console.print(Text.assemble((label + colon, "bold red"), (problem, "red")), soft_wrap=True)
    if hint:
        line = fill_line(f"  hint: {output.escape_unprintable(' '.join(hint.split()))}")
        console.print(Text(line, "dim"), soft_wrap=True)
