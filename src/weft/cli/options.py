"""Options that several commands share: loading, sizes, random data, timing, and output.

A command adds the options that it needs to its parser. Values for `weft.load` are validated by the functions that
`weft.load` uses.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from weft.cli import option_types
from weft.errors import InputError, WeftError
from weft.runtime.environment import PROGRESS
from weft.runtime.memory import parse_bytes
from weft.runtime.options import PRECISIONS, USUAL_PRECISION

AUTO = "auto"
PREFERENCES = ("memory", "speed")  # the first is the default
LOADING = ("device", "strict", "threads", "precision", "memory_limit", "prefer", "cache", "trusted")
"""Options of `weft.load` that the command line has, too, with the same names."""


def add_model(parser: ArgumentParser) -> None:
    """Add the model file."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or a file written by weft compile")


def add_loading(parser: ArgumentParser, device: str = "where to run", without: tuple[str, ...] = ()) -> None:
    """Add the options of LOADING except `without`; `device` describes the device in the help."""
    group = parser.add_argument_group("loading")
    add: dict[str, Callable[[], Any]] = {
        "device": lambda: group.add_argument(
            "--device",
            default=AUTO,
            metavar="D",
            help=f"{device}: a name that weft devices lists, or several, separated by commas, in order of preference "
            "(default: the best one)",
        ),
        "strict": lambda: group.add_argument(
            "--strict", action="store_true", help="fail instead of falling back to another device or repairing the file"
        ),
        "threads": lambda: group.add_argument(
            "--threads", type=option_types.count, metavar="N", help="number of threads (default: all cores)"
        ),
        "precision": lambda: group.add_argument(
            "--precision",
            choices=PRECISIONS,
            default=USUAL_PRECISION,
            help=f"tf32 and fast let matrix products round their operands (default {USUAL_PRECISION})",
        ),
        "memory_limit": lambda: group.add_argument(
            "--memory-limit",
            type=memory_size,
            metavar="BYTES",
            help="memory for weights, arena and outputs together, for instance 200MB or 1.5GiB (default: no limit)",
        ),
        "prefer": lambda: group.add_argument(
            "--prefer",
            choices=PREFERENCES,
            default=PREFERENCES[0],
            help="memory keeps the arena small, speed lets it grow so that kernels can run in parallel "
            f"(default {PREFERENCES[0]})",
        ),
        "cache": lambda: group.add_argument(
            "--no-cache", dest="cache", action="store_false", help="do not use the cache of compiled code"
        ),
        "trusted": lambda: group.add_argument(
            "--trusted", action="store_true", help="run the code of a compiled file from another user"
        ),
    }
    for name in LOADING:
        if name not in without:
            add[name]()
    group.add_argument("--no-progress", dest="progress", action="store_false", help="do not show progress")


def load_arguments(args: Namespace) -> dict[str, Any]:
    """Return the options of `add_loading` as keywords for `weft.load` and LoadOptions."""
    if not getattr(args, "progress", True):
        os.environ[PROGRESS.name] = "0"  # also for child processes
    keywords = {name: getattr(args, name) for name in LOADING if hasattr(args, name)}
    if "," in (keywords.get("device") or ""):
        keywords["device"] = [name.strip() for name in keywords["device"].split(",") if name.strip()]
    return keywords


def add_sizes(parser: _ArgumentGroup | ArgumentParser, what: str = "of random data") -> None:
    """Add sizes of dynamic dims; `what` says in the help what they are for."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help=f"size of a dynamic dim {what}, or shape of an input: --shape seq=128, --shape x=1,3,224,224",
    )
    parser.add_argument(
        "--batch",
        type=option_types.count,
        metavar="N",
        help=f"size of the first dim of all inputs {what}, if it is dynamic",
    )


def add_seed(parser: _ArgumentGroup | ArgumentParser) -> None:
    """Add the seed of random data."""
    parser.add_argument(
        "--seed", type=option_types.seed, default=0, metavar="N", help="seed of the random data (default 0)"
    )


def add_repeat(parser: ArgumentParser, default: int) -> None:
    """Add the number of timed runs."""
    parser.add_argument(
        "--repeat",
        "--runs",
        type=option_types.count,
        default=default,
        metavar="N",
        help=f"number of timed runs, of which the median is shown (default {default})",
    )


def add_json(parser: _ArgumentGroup | ArgumentParser, what: str = "print JSON instead of tables") -> None:
    """Add `--json`, with which only JSON is printed to stdout."""
    parser.add_argument("--json", action="store_true", help=what)


def add_output(
    parser: ArgumentParser, what: str, *old_names: str, metavar: str = "FILE", required: bool = False
) -> None:
    """Add `-o` for the file or folder that a command writes; `old_names` of the option work, too."""
    names = ("-o", "--output", *old_names)
    parser.add_argument(*names, dest="output", type=Path, metavar=metavar, required=required, help=what)


def add_new_model(parser: ArgumentParser) -> None:
    """Add the ONNX file to write, as a second argument or as `-o`."""
    parser.add_argument("result", metavar="OUT", nargs="?", type=Path, help="the file to write")
    parser.set_defaults(late_files="result")
    add_output(parser, "the file to write, instead of a second argument", metavar="OUT")


def new_model_path(args: Namespace) -> Path:
    """Return the path that was given in one of both ways."""
    if (args.result is None) == (args.output is None):
        raise InputError(
            "name one file to write", hint=f"weft {args.command} MODEL OUT, or weft {args.command} MODEL -o OUT"
        )
    path: Path = args.result or args.output
    return path


def add_files_after_options(parser: ArgumentParser, args: Namespace, texts: Sequence[str]) -> None:
    """Assign files that follow options, which argparse does not recognise; report other texts as wrong usage.

    A command names the argument for them with `parser.set_defaults(late_files="name")`.
    """
    are_files = all(text == "-" or not text.startswith("-") for text in texts)
    name = getattr(args, "late_files", None)
    if are_files and name and isinstance(getattr(args, name), list):
        getattr(args, name).extend(texts)
    elif are_files and name and getattr(args, name) is None and len(texts) == 1:
        setattr(args, name, Path(texts[0]))
    elif getattr(args, "json", False) and (texts[0] == "-" or texts[0].endswith(".json")):
        parser.error(f"--json takes no file: it prints to standard output. Leave out {texts[0]}, or redirect: > FILE")
    else:
        parser.error(f"unrecognized arguments: {' '.join(texts)}")


def as_option_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make a function that raises WeftError the `type` of an option: argparse reports its errors as wrong usage."""

    def parse_option(text: str) -> Any:
        try:
            return parse(text)
        except WeftError as error:
            raise ArgumentTypeError(f"{error.problem}; {error.hint}" if error.hint else error.problem) from None

    return parse_option


memory_size = as_option_type(parse_bytes)
