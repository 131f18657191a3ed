"""The `weft` command. Each subcommand is a module with `add_parser(subparsers)`, `run(args) -> int` and `EXAMPLES`.

Only the module of the command that is asked for gets imported, and it imports what it needs when it runs. A module that
is named as no command serves several of them:

- what is typed: `parsing` (the parser, wrong usage, help), `options`, `values` and `sizes` (what several take),
  `inputs` and `picture_options` (data for a model), `completion_scripts` (shells);
- what is shown: `output` (consoles, numbers, JSON), `fitted_tables` (tables for every width), `streams` (encodings, and
  readers that go), and parts of what commands show: `kernel_table`, `comparison_table`, `results`, `labels`, `op_page`,
  `demo_picture`;
- what is written: `written`, `result_files`;
- `process`: this process, and its end with its parent's.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.cli.parsing import CommandParser, TopParser, closest_match, examples, filled, first_word
from weft.cli.streams import flush_or_silence, open_streams, silence_stdout
from weft.errors import WeftError

GROUPS = {
    "first steps": {
        "demo": "read a few handwritten digits: no file, no network",
        "run": "run a model on files or random data",
        "view": "a page that shows a model: graph, kernels, weights, times",
        "info": "what a model takes, gives, is made of and computes",
        "devices": "the devices weft can use here, and why not the others",
    },
    "what a model does": {
        "profile": "where a model's time and memory go: kernels, threads, the arena",
        "plan": "the memory that a model needs, known before it runs",
        "report": "where a model runs and why, and what each device does of it",
        "kernels": "the kernels that a model becomes: nodes, template, cost, code",
        "compare": "a model on several devices, layer by layer: what departs first",
        "bench": "time models in weft and in other engines",
    },
    "files from a model": {
        "optimize": "a model with fewer nodes and the same results, as ONNX",
        "quantize": "a model with narrower numbers, and what that costs",
        "compile": "a model compiled ahead of time: a file that loads in milliseconds",
        "export": "a model as a C library: header, object file, weights",
    },
    "weft itself": {
        "ops": "the operators weft knows, one of them, or what a model lacks",
        "cache": "what is kept on disk: list it, clean it, verify it",
        "tune": "measure which tiles suit a model's products on a GPU",
        "conformance": "run the test suite of the installed onnx package",
        "completion": "completion with the Tab key, for bash, zsh and fish",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}

INTERRUPTED = 130
BROKEN_PIPE = 141
OTHER_WORDS = {
    "version": "--version",
    "benchmark": "bench",
    "time": "bench",
    "show": "view",
    "visualize": "view",
    "open": "view",
    "simplify": "optimize",
    "predict": "run",
    "infer": "run",
    "inspect": "info",
    "memory": "plan",
    "test": "conformance",
}
"""Commands by what other tools call them."""

DEBUG = "show the full traceback of an error"
VERBOSE = "tell on stderr what is loaded, compiled and chosen; -vv tells of each stage"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: one of `parsing.EXIT_CODES`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    try:
        try:
            code = _run(arguments)
        except SystemExit as stop:  # argparse leaves this way after --help, --version and wrong usage
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
            _report(error)
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
    code: int = _module(args.command).run(args)
    return code


def command_parser(arguments: Sequence[str]) -> TopParser:
    """The parser, with the options of the command that `arguments` name and only the names of the others."""
    parser = TopParser(prog="weft")
    parser.groups = GROUPS
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument("-v", "--verbose", action="count", default=0, help=VERBOSE)
    parser.add_argument("--debug", action="store_true", help=DEBUG)
    wanted = first_word(arguments)
    if wanted is not None and wanted not in COMMANDS:
        parser.refuse(f"there is no command {wanted!r}", _instead(wanted))
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    for name, summary in COMMANDS.items():
        if name != wanted:
            subparsers.add_parser(name, help=summary)
            continue
        module = _module(name)
        module.add_parser(subparsers)
        parser.chosen = subparsers.choices[name]
        parser.chosen.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help=VERBOSE)
        parser.chosen.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=DEBUG)
        parser.chosen.description = parser.chosen.description or f"{summary[0].upper()}{summary[1:]}."
        parser.chosen.shorten_usage()
        parser.chosen.epilog = examples(module.EXAMPLES) if hasattr(module, "EXAMPLES") else None
    return parser


def _instead(word: str) -> str:
    """What to do where a command was expected."""
    if Path(word).suffix.lower() in (".onnx", ".weft"):
        return f"say what to do with it: weft run {word}, or weft info {word}"
    if Path(word).suffix:
        return f"weft run MODEL {word} gives it to a model"
    found = OTHER_WORDS.get(word.lower()) or closest_match(word, COMMANDS)
    return f"weft {found} may be meant; weft --help lists all" if found else "weft --help lists all commands"


def _module(command: str) -> Any:
    return importlib.import_module(f"weft.cli.{command}")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from weft import __version__

        print(f"weft {__version__}")
        parser.exit()


def _report(error: Exception) -> None:
    """The error on stderr: what is wrong in one red line, then what to do."""
    hint = "run the same command with --debug to see where this happened"
    if isinstance(error, WeftError):
        text, _, hint = str(error).partition("\n  hint: ")
    elif isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        hint = ""
    else:
        text = f"unexpected {type(error).__name__}: {error}; please report it"
    from rich.text import Text

    from weft.cli import output

    console = output.error_console()
    head, mark, rest = filled(output.escape_unprintable(f"error: {' '.join(text.split())}")).partition(":")
    console.print(Text.assemble((head + mark, "bold red"), (rest, "red")), soft_wrap=True)
    if hint:
        shown = filled(f"  hint: {output.escape_unprintable(' '.join(hint.split()))}")
        console.print(Text(shown, "dim"), soft_wrap=True)
