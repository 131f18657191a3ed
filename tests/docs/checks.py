"""Check blocks that do not run: they compile, their names exist, their commands parse, their scripts exist."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

from docs.blocks import Block, BlockError

ROOT = Path(__file__).parent.parent.parent
_SHELL = re.compile(r"[|&;<>$`*?(){}~]|^\s*\w+=")
"""Syntax that needs a shell."""
_COMPOUND_WORDS = set(
    ". alias case cd do done elif else esac export fi for function if set source then trap unset until while".split()
)
"""First words of lines that affect other lines."""


def is_available(name: str) -> bool:
    """Whether there is a program, a module, or a hardware device of this name."""
    import weft

    devices = {
        device.name.partition(":")[0] for device in weft.devices() if device.available and device.kind != "software"
    }
    return bool(name in devices or shutil.which(name) or importlib.util.find_spec(name))


def check(block: Block) -> None:
    """Raise a BlockError or SyntaxError if a block is wrong."""
    match block.language:
        case "python":
            check_python(block.code)
        case "sh":
            for line in command_lines(block.code):
                check_command(line)
        case "console":
            for command, _ in parse_dialogue(block.code):
                check_command(command)
        case "json":
            json.loads(block.code)
        case "toml" if importlib.util.find_spec("tomllib"):
            importlib.import_module("tomllib").loads(block.code)


def check_python(code: str) -> None:
    """Check that code compiles, and that the names and keywords of weft in it exist."""
    tree = compile(code, "block", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute():
                resolve_name(node)
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "weft":
                for name in names:
                    if not hasattr(importlib.import_module(module), name.name):
                        importlib.import_module(f"{module}.{name.name}")
            case ast.Call(func=function, keywords=keywords):
                _check_keywords(resolve_name(function), [word.arg for word in keywords if word.arg])


def resolve_name(node: ast.expr) -> Any:
    """Return the object that `weft.a.b` names; None for names outside of weft."""
    match node:
        case ast.Name(id="weft"):
            return importlib.import_module("weft")
        case ast.Attribute(value=value, attr=name):
            owner = resolve_name(value)
            if owner is None:
                return None
            if not hasattr(owner, name):
                raise BlockError(f"{ast.unparse(node)} does not exist")
            return getattr(owner, name)
    return None


def _check_keywords(function: Any, names: list[str]) -> None:
    if not callable(function):
        return
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for name in names:
            if name not in parameters:
                raise BlockError(f"{function.__name__} takes no {name!r}")


def command_lines(code: str) -> list[str]:
    """Return the commands of a block, with continued lines joined, without comments and empty lines."""
    joined = re.sub(r"\\\n[ \t]*", " ", code)
    return [line for line in joined.split("\n") if line.strip() and not line.lstrip().startswith("#")]


def parse_dialogue(code: str) -> list[tuple[str, str]]:
    """Return the commands after `$ `, each with the output below it."""
    dialogue: list[tuple[str, str]] = []
    for line in re.sub(r"\\\n(?:> )?[ \t]*", " ", code).split("\n"):
        if line.startswith("$ "):
            dialogue.append((line[2:], ""))
        elif dialogue:
            command, output = dialogue[-1]
            dialogue[-1] = (command, f"{output}{line}\n")
        elif line.strip():
            raise BlockError("a console block begins with a line that begins with `$ `")
    return dialogue


def parse_weft_command(line: str) -> list[str] | None:
    """Return the arguments of a line that only calls weft; None if the line needs a shell."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None
    bare = re.sub(r"'[^']*'|\"[^\"$`]*\"|(?<=\s)#.*", "", line)
    return words[1:] if words and words[0] == "weft" and not _SHELL.search(bare) else None


def is_standalone(line: str) -> bool:
    """Whether a line is a complete command that does not affect the next."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return False
    return (
        bool(words) and words[0] not in _COMPOUND_WORDS and "<<" not in line and not re.fullmatch(r"\w+=\S*", words[0])
    )


def check_command(line: str) -> None:
    """Check that weft's commands parse, and that scripts of this repository exist."""
    for part in re.split(r"&&|\|\||[;|]|(?<!\d)>", line):
        try:
            words = shlex.split(part, comments=True)
        except ValueError as error:
            raise BlockError(f"{line!r}: {error}") from None
        while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] in ("sudo", "time", "env")):
            words = words[1:]
        if words and words[0].startswith("scripts/") and not (ROOT / words[0]).is_file():
            raise BlockError(f"{words[0]} does not exist")
        if words and words[0] == "weft":
            check_arguments(words[1:])


def check_arguments(words: list[str]) -> None:
    """Raise a BlockError if weft's command line does not accept these arguments."""
    from weft.cli import COMMANDS, command_parser

    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            command_parser(words).parse_args(words)
    except SystemExit as stop:
        if stop.code:
            raise BlockError(f"weft {' '.join(words)}: {output.getvalue().strip()}") from None
    except argparse.ArgumentError as error:
        raise BlockError(f"weft {' '.join(words)}: {error}") from None
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        raise BlockError(f"weft has no command {words[0]}")
