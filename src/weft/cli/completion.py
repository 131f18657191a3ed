"""`weft completion`: scripts for shells, in which the Tab key then completes commands, options and their values."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from weft.cli import output
from weft.cli.completion_scripts import SCRIPTS, Argument, Command
from weft.errors import InputError

EXAMPLES = (
    ("bash: in ~/.bashrc", 'eval "$(weft completion bash)"'),
    ("zsh: in ~/.zshrc, after compinit", 'eval "$(weft completion zsh)"'),
    ("fish: once", "weft completion fish > ~/.config/fish/completions/weft.fish"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="what makes the Tab key complete weft's commands in bash, zsh or fish",
        description="Print a script for a shell. Where it was read, the Tab key completes commands, options, their "
        "values, devices, model files, and the inputs of the model that was named.",
    )
    parser.add_argument("shell", nargs="?", choices=tuple(SCRIPTS), help="the shell (default: the one of SHELL)")
    parser.add_argument(
        "--words", nargs="+", metavar="KIND", help=f"what scripts ask for: {', '.join(_WORDS)}; the last two of a MODEL"
    )
    parser.add_argument("--json", action="store_true", help="print all commands and their options as JSON")


def run(args: argparse.Namespace) -> int:
    if args.words:
        return _print_words(*args.words)
    if args.json:
        output.print_json({command.name: _record(command) for command in all_commands()})
        return 0
    shell = args.shell or PurePath(os.environ.get("SHELL", "")).name
    if shell not in SCRIPTS:
        raise InputError("which shell is not known", hint=f"name it: weft completion {' or '.join(SCRIPTS)}")
    print(SCRIPTS[shell](all_commands()), end="")
    return 0


def all_commands() -> list[Command]:
    """Every command with its options and arguments, as its parser has them."""
    from weft.cli import COMMANDS, command_parser

    found = []
    for name, summary in COMMANDS.items():
        parser = command_parser([name]).chosen
        assert parser is not None
        arguments = [_argument(action) for action in parser._actions if action.help is not argparse.SUPPRESS]
        found.append(Command(name, summary, tuple(arguments)))
    return found


def _argument(action: argparse.Action) -> Argument:
    choices = tuple(map(str, action.choices or ()))
    kind = "words" if choices else _kind(action)
    text = " ".join((action.help or "").replace("%%", "%").split())
    return Argument(tuple(action.option_strings), text, kind, choices)


def _kind(action: argparse.Action) -> str:
    """What completes a value: a word of `_WORDS`, models, files, folders, anything, or nothing."""
    if action.nargs == 0:
        return ""
    match str(action.metavar or action.dest), action.dest:
        case (_, "device" | "devices" | "reference") | ("D", _):
            return "devices"
        case (_, "input" | "inputs"):
            return "inputs"
        case (_, "shape"):
            return "dims"
        case ("MODEL", _) | (_, "model" | "models"):
            return "models"
        case (_, "operators"):
            return "operators"
        case ("DIR", _):
            return "folders"
        case (metavar, _) if "FILE" in metavar or action.type is Path:
            return "files"
        case _:
            return "files" if not action.option_strings else "anything"


def _record(command: Command) -> dict[str, Any]:
    return {
        "summary": command.summary,
        "arguments": [
            {"options": each.options, "help": each.text, "kind": each.kind, "choices": each.choices}
            for each in command.arguments
        ],
    }


def _print_words(kind: str, *models: str) -> int:
    """Words of a kind, one a line; none where that cannot be told: this runs between two keys."""
    try:
        words = _WORDS[kind](*models)
    except Exception:
        return 1
    print("\n".join(words))
    return 0


def _devices() -> list[str]:
    import weft

    return ["auto", *(device.name for device in weft.devices() if device.available)]


def _operators() -> list[str]:
    from weft.opset.registry import definitions

    return sorted({definition.name for definition in definitions()})


def _specs(model: str) -> Any:
    from weft.ir.specs import signature
    from weft.loading import open_pipeline
    from weft.opset.lower import build_untraced_program
    from weft.runtime.options import LoadOptions

    graph = open_pipeline(str(Path(model).expanduser()), LoadOptions(device="reference")).read().graph
    return signature(graph, build_untraced_program(graph)).inputs


def _inputs(model: str) -> list[str]:
    return [f"{spec.name}=" for spec in _specs(model)]


def _dims(model: str) -> list[str]:
    return sorted({f"{dim}=" for spec in _specs(model) for dim in spec.shape or () if isinstance(dim, str)})


_WORDS: dict[str, Callable[..., list[str]]] = {
    "devices": _devices,
    "operators": _operators,
    "inputs": _inputs,
    "dims": _dims,
}
