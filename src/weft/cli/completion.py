"""`weft completion`: shell scripts with which the Tab key completes commands, options and their values."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any

from weft.cli import output
from weft.cli.sizes import declared_signature
from weft.errors import InputError
from weft.ir.specs import TensorSpec

SHELLS = ("bash", "zsh", "fish")
MODEL_SUFFIXES = (".onnx", ".weft")
NAME_SHELL = f"weft completion {' or '.join(SHELLS)}"
BASH_WRAPPER = """
_weft() {
    _shtab_weft "$@"
    case "${COMPREPLY[0]-}" in *=) compopt -o nospace 2>/dev/null ;; esac
    return 0
}
complete -o default -F _weft weft
"""
"""Appended to the script for bash, so that no space follows `NAME=`."""

EXAMPLES = (
    ("bash: in ~/.bashrc", 'eval "$(weft completion bash)"'),
    ("zsh: in ~/.zshrc, after compinit", 'eval "$(weft completion zsh)"'),
    ("fish: once", "weft completion fish > ~/.config/fish/completions/weft.fish"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="complete weft's commands with the Tab key in bash, zsh or fish",
        description="Print a shell script that completes commands, options, their values, devices, model files, and "
        "the inputs of a model with the Tab key. This needs shtab: pip install 'weft-onnx[completion]'.",
    )
    parser.add_argument("shell", nargs="?", choices=SHELLS, help="the shell (default: the one that $SHELL names)")
    parser.add_argument("--words", nargs=argparse.REMAINDER, metavar="KIND", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print all commands and their options as JSON")


def run(args: argparse.Namespace) -> int:
    if args.words:
        return _print_words(*args.words)
    if args.json:
        from weft.cli import COMMANDS, full_parser

        parsers = full_parser().commands
        output.print_json({name: _describe_command(COMMANDS[name], parser) for name, parser in parsers.items()})
        return 0
    shell = args.shell or PurePath(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise InputError("cannot find out which shell you use", hint=f"name it: {NAME_SHELL}")
    print(make_script(shell))
    return 0


def make_script(shell: str) -> str:
    """Generate the completion script of a shell from the parsers of all commands."""
    from weft.cli import full_parser

    try:
        import shtab
    except ImportError as error:
        raise InputError("shell completion needs shtab", hint="pip install 'weft-onnx[completion]'") from error
    completers = {
        "models": shtab.glob(*(f"*{suffix}" for suffix in MODEL_SUFFIXES)),
        "files": shtab.FILE,
        "folders": shtab.DIRECTORY,
        **{kind: _words_completer(kind) for kind in _WORDS},
    }
    parser = full_parser()
    for command in parser.commands.values():
        for action in command._actions:
            completer = completers.get(_value_kind(action))
            if completer is not None:
                action.complete = completer  # type: ignore[attr-defined]
    script: str = shtab.complete(parser, shell)
    return script + (BASH_WRAPPER if shell == "bash" else "")


def _words_completer(kind: str) -> dict[str, Any]:
    """Return the shell code that asks `weft completion --words KIND` with the words of the line."""
    name = f"_weft_{kind}"
    command = f"weft completion --words {kind}"
    return {
        "bash": name,
        "zsh": name,
        "fish": f"({command} (commandline -opc) 2>/dev/null)",
        "preamble": {
            "bash": f'{name}() {{ compgen -W "$({command} "${{COMP_WORDS[@]}}" 2>/dev/null)" -- "$1"; }}',
            "zsh": f"""{name}() {{ compadd -S '' -- ${{(f)"$({command} $words 2>/dev/null)"}} }}""",
        },
    }


def _value_kind(action: argparse.Action) -> str:
    """Return the kind of a value: a key of `_WORDS`, models, files, folders, choices, anything, or "" for none."""
    if action.nargs == 0:
        return ""
    if action.choices:
        return "choices"
    match str(action.metavar or action.dest), action.dest:
        case (_, "device" | "devices") | ("D", _):
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


def _describe_command(summary: str, parser: argparse.ArgumentParser) -> dict[str, Any]:
    arguments = [
        {
            "options": action.option_strings,
            "help": " ".join((action.help or "").replace("%%", "%").split()),
            "kind": _value_kind(action),
            "choices": list(map(str, action.choices or ())),
        }
        for action in parser._actions
        if action.help is not argparse.SUPPRESS
    ]
    return {"summary": summary, "arguments": arguments}


# -- words that scripts ask for ---------------------------------------------------------------------------------------


def _print_words(kind: str, *line: str) -> int:
    """Print the words of a kind, one per line; nothing if that fails, since the user is typing."""
    try:
        words = _WORDS[kind](line)
    except Exception:
        return 1
    print("\n".join(words))
    return 0


def _devices(_: Sequence[str]) -> list[str]:
    import weft

    return ["auto", *(device.name for device in weft.devices() if device.available)]


def _operators(_: Sequence[str]) -> list[str]:
    from weft.opset.registry import definitions

    return sorted({definition.name for definition in definitions()})


def _input_specs(line: Sequence[str]) -> Sequence[TensorSpec]:
    """Return the inputs of the model on the line."""
    model = next(word for word in line if word.endswith(MODEL_SUFFIXES))
    return declared_signature(Path(model).expanduser())[0].inputs


def _inputs(line: Sequence[str]) -> list[str]:
    return [f"{spec.name}=" for spec in _input_specs(line)]


def _dims(line: Sequence[str]) -> list[str]:
    return sorted({f"{dim}=" for spec in _input_specs(line) for dim in spec.shape or () if isinstance(dim, str)})


_WORDS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "devices": _devices,
    "operators": _operators,
    "inputs": _inputs,
    "dims": _dims,
}
