"""The parser of the command line: wrong usage is told in one line with what may be meant, help ends with examples."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from textwrap import TextWrapper
from typing import Any, NoReturn

USAGE = 2
EXIT_CODES = {
    0: "done",
    1: "failed: a model, file, input or device is not as it must be, or a check said no",
    2: "wrong usage: no such command or option, or a value that it does not take",
    130: "stopped with Ctrl-C",
    141: "whoever read the output has closed it",
}
_UNKNOWN = "unrecognized arguments: "
_MISSING = "the following arguments are required: "


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors say what to do."""

    chosen: CommandParser | None = None
    """The parser of the command that was named."""

    def __init__(self, **options: object) -> None:
        super().__init__(**{"formatter_class": _Formatter, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and what may be meant, and leave."""
        parser = self.chosen or self
        self.refuse(_sentence(message), _meant(message, parser) or f"{parser.prog} --help tells what it takes")

    def refuse(self, problem: str, hint: str) -> NoReturn:
        """Wrong usage, in words of weft's own."""
        self.exit(USAGE, f"{filled(f'error: {problem}')}\n{filled(f'  hint: {hint}')}\n")

    def shorten_usage(self) -> None:
        """Say in the usage line what must be there; the options are listed below it."""
        needed = [f"{action.option_strings[0]} {_placeholder(action)}" for action in self._actions if action.required
                  and action.option_strings]  # fmt: skip
        own = [_placeholder(action) for action in self._actions if not action.option_strings]
        self.usage = " ".join([self.prog, "[options]", *needed, *own])

    def options(self) -> list[str]:
        """The long options, as they are typed."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]


class TopParser(CommandParser):
    """The parser of `weft` itself: its help shows all commands, by what they are for."""

    groups: Mapping[str, Mapping[str, str]] = {}

    def format_help(self) -> str:
        """All of it."""
        options = {
            "-h, --help": "show this page",
            "--version": "show the version",
            "--debug": "show where errors arise",
        }
        codes = {str(code): meaning for code, meaning in EXIT_CODES.items()}
        return self.overview() + "\n" + _listed({"options": options, "exit codes": codes})

    def overview(self) -> str:
        """What there is, in short."""
        head = "weft compiles and runs ONNX models.\n\nusage: weft COMMAND ...\n       weft COMMAND --help\n\n"
        return head + _listed(self.groups)


def examples(pairs: Iterable[tuple[str, str]]) -> str:
    """What stands at the end of a command's help: what for, and the command."""
    return "examples:\n" + "\n".join(f"  # {purpose}\n  {command}" for purpose, command in pairs)


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """The one that may be meant."""
    by_form = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_form, 1)
    return by_form[found[0]] if found else None


def filled(line: str) -> str:
    """A line of an error: in a terminal broken between words where it is too long for it, so that words stay whole."""
    if not sys.stderr.isatty():
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    return _wrapped(line.strip(), shutil.get_terminal_size().columns, indent, indent or "  ")


def _placeholder(action: argparse.Action) -> str:
    """How an argument is written in usage lines."""
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    name = action.metavar if isinstance(action.metavar, str) else choices or action.dest.upper()
    forms = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ...", argparse.PARSER: f"{name} ..."}
    return forms.get(str(action.nargs), name)


class _Formatter(argparse.HelpFormatter):
    """Descriptions are filled, texts of several lines stay as they are."""

    def _format_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None) -> str:
        if usage is None:
            return super()._format_usage(usage, actions, groups, prefix)
        first = "usage: " if prefix is None else prefix
        return _wrapped(f"{first}{usage}", self._width, "", " " * len(first)) + "\n\n"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "\n".join(_example(line, width) for line in text.splitlines())
        return _wrapped(" ".join(text.split()), width, indent, indent)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(" ".join(text.split()), width, "", "").splitlines()


def _example(line: str, width: int) -> str:
    """A line of the examples: a purpose is filled, a command goes on in the next line as shells have it."""
    if len(line) <= width or not line.startswith("  "):
        return line
    if line.startswith("  # "):
        return _wrapped(line[4:], width, "  # ", "  # ")
    return _wrapped(line.strip(), width - 2, "  ", "      ").replace("\n", " \\\n")


def _sentence(message: str) -> str:
    """What argparse says, in our words."""
    if message.startswith(_UNKNOWN):
        words = message[len(_UNKNOWN) :].split()
        options = [word for word in words if word.startswith("-")]
        if options:
            return f"there is no option {options[0].partition('=')[0]}"
        return f"{words[0] if words else 'this'} is one argument too many"
    if message.startswith(_MISSING):
        return f"{message[len(_MISSING) :]} is missing"
    return message.removeprefix("argument ")


def _meant(message: str, parser: CommandParser) -> str | None:
    if message.startswith(_UNKNOWN):
        words = [word for word in message[len(_UNKNOWN) :].split() if word.startswith("--")]
        found = closest_match(words[0].partition("=")[0], parser.options()) if words else None
        return f"{found} may be meant; {parser.prog} --help lists all" if found else None
    if message.startswith(_MISSING):
        return f"{parser.usage}; {parser.prog} --help tells more" if parser.usage else None
    if "invalid choice: '" in message and "(choose from " in message:
        word = message.partition("invalid choice: '")[2].partition("'")[0]
        choices = message.partition("(choose from ")[2].rstrip(")").replace("'", "").split(", ")
        found = closest_match(word, choices)
        return f"{found} may be meant" if found else None
    return None


def _listed(groups: Mapping[str, Mapping[str, str]]) -> str:
    width = max(min(shutil.get_terminal_size().columns - 1, 100), 30)
    longest = max(len(name) for group in groups.values() for name in group) + 4
    indent = longest if longest + 24 <= width else 6
    return "\n".join(f"{title}:\n{_entries(group, indent, width)}" for title, group in groups.items())


def _entries(group: Mapping[str, str], indent: int, width: int) -> str:
    lines = []
    for name, text in group.items():
        first = f"  {name}".ljust(indent) if len(name) + 4 <= indent else f"  {name}  "
        lines.append(_wrapped(text, width, first, " " * indent))
    return "\n".join(lines) + "\n"


def _wrapped(text: str, width: int, first: str, others: str) -> str:
    wrapper = TextWrapper(
        width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(text)


def first_word(arguments: Sequence[str]) -> str | None:
    """What should be the name of a command."""
    return next((argument for argument in arguments if not argument.startswith("-")), None)
