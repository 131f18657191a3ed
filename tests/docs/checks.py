"""What can be said of a block that is not run: it compiles, its names exist, its commands parse, its scripts exist."""

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
"""What only a shell understands."""
_LASTING = set(
    ". alias case cd do done elif else esac export fi for function if set source then trap unset until while".split()
)
"""Words with which a line begins that means something only with others."""


def is_here(name: str) -> bool:
    """Whether there is such a program, such a module, or a device of this kind that is no software."""
    import weft

    devices = {
        device.name.partition(":")[0] for device in weft.devices() if device.available and device.kind != "software"
    }
    return bool(name in devices or shutil.which(name) or importlib.util.find_spec(name))


def check(block: Block) -> None:
    """BlockError or SyntaxError where a block cannot be right."""
    match block.language:
        case "python":
            check_python(block.code)
        case "sh":
            for line in command_lines(block.code):
                check_command(line)
        case "console":
            for command, _ in dialogue(block.code):
                check_command(command)
        case "json":
            json.loads(block.code)
        case "toml" if importlib.util.find_spec("tomllib"):
            importlib.import_module("tomllib").loads(block.code)


def check_python(code: str) -> None:
    """It compiles, what it names of weft is there, and so are the keywords it calls that with."""
    tree = compile(code, "block", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute():
                resolved(node)
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "weft":
                for name in names:
                    if not hasattr(importlib.import_module(module), name.name):
                        importlib.import_module(f"{module}.{name.name}")
            case ast.Call(func=function, keywords=keywords):
                _check_keywords(resolved(function), [word.arg for word in keywords if word.arg])


def resolved(node: ast.expr) -> Any:
    """What `weft.a.b` is; None for what does not begin with weft."""
    match node:
        case ast.Name(id="weft"):
            return importlib.import_module("weft")
        case ast.Attribute(value=value, attr=name):
            owner = resolved(value)
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
    """The commands of a block: lines, joined where they end with a backslash, without comments and empty ones."""
    joined = re.sub(r"\\\n[ \t]*", " ", code)
    return [line for line in joined.split("\n") if line.strip() and not line.lstrip().startswith("#")]


def dialogue(code: str) -> list[tuple[str, str]]:
    """Commands after `$ `, each with what a block shows below it."""
    found: list[tuple[str, str]] = []
    for line in re.sub(r"\\\n(?:> )?[ \t]*", " ", code).split("\n"):
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
        elif line.strip():
            raise BlockError("a console block begins with a line that begins with `$ `")
    return found


def words_of_weft(line: str) -> list[str] | None:
    """The arguments of weft on a line that is nothing else; None where the line wants a shell."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None
    bare = re.sub(r"'[^']*'|\"[^\"$`]*\"|(?<=\s)#.*", "", line)
    return words[1:] if words and words[0] == "weft" and not _SHELL.search(bare) else None


def stands_alone(line: str) -> bool:
    """Whether a line leaves nothing behind for the next, and is a command by itself."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return False
    return bool(words) and words[0] not in _LASTING and "<<" not in line and not re.fullmatch(r"\w+=\S*", words[0])


def check_command(line: str) -> None:
    """weft's commands parse, and scripts of this repository are there."""
    for part in re.split(r"&&|\|\||[;|]|(?<!\d)>", line):
        try:
            words = shlex.split(part, comments=True)
        except ValueError as error:
            raise BlockError(f"{line!r}: {error}") from None
        while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] in ("sudo", "time", "env")):
            words = words[1:]
        if words and words[0].startswith("scripts/") and not (ROOT / words[0]).is_file():
            raise BlockError(f"{words[0]} is not there")
        if words and words[0] == "weft":
            check_arguments(words[1:])


def check_arguments(words: list[str]) -> None:
    """BlockError where the command line of weft does not take these."""
    from weft.cli import COMMANDS, command_parser

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            command_parser(words).parse_args(words)
    except SystemExit as stop:
        if stop.code:
            raise BlockError(f"weft {' '.join(words)}: {said.getvalue().strip()}") from None
    except argparse.ArgumentError as error:
        raise BlockError(f"weft {' '.join(words)}: {error}") from None
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        raise BlockError(f"weft has no command {words[0]}")
