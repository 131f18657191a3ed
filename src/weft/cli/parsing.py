"""The argument parser: wrong usage is one line with a suggestion, and help ends with examples."""

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
    1: "failed: a problem with a model, file, input or device, or a check that found differences",
    2: "wrong usage: an unknown command or option, or an invalid value",
    130: "interrupted with Ctrl-C",
    141: "the reader of the output closed the pipe",
}
_UNKNOWN = "unrecognized arguments: "
_MISSING = "the following arguments are required: "


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors say what to do."""

    chosen: CommandParser | None = None
    """The parser of the named command."""

    def __init__(self, **options: object) -> None:
        super().__init__(**{"formatter_class": _Formatter, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Exit with an error of argparse, and a suggestion."""
        parser = self.chosen or self
        self.refuse(_rephrase(message), _suggest(message, parser) or f"see {parser.prog} --help")

    def refuse(self, problem: str, hint: str) -> NoReturn:
        """Exit with the code for wrong usage."""
        self.exit(USAGE, f"{fill_line(f'error: {problem}')}\n{fill_line(f'  hint: {hint}')}\n")

    def shorten_usage(self) -> None:
        """List only required arguments in the usage line; the options are listed below it."""
        options = [action for action in self._actions if action.required and action.option_strings]
        required = [f"{action.option_strings[0]} {_placeholder(action)}" for action in options]
        positional = [_placeholder(action) for action in self._actions if not action.option_strings]
        self.usage = " ".join([self.prog, "[options]", *required, *positional])

    def long_options(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]


class TopParser(CommandParser):
    """The parser of `weft` itself, whose help lists all commands by purpose."""

    groups: Mapping[str, Mapping[str, str]] = {}
    commands: Mapping[str, CommandParser] = {}

    def format_help(self) -> str:
        """Return the overview, the options and the exit codes."""
        options = {
            "-h, --help": "show this page",
            "--version": "show the version",
            "--debug": "show the traceback of errors",
        }
        codes = {str(code): meaning for code, meaning in EXIT_CODES.items()}
        return self.overview() + "\n" + _format_groups({"options": options, "exit codes": codes})

    def overview(self) -> str:
        """Return usage and all commands."""
        head = "weft compiles and runs ONNX models.\n\nusage: weft COMMAND ...\n       weft COMMAND --help\n\n"
        return head + _format_groups(self.groups)


def format_examples(pairs: Iterable[tuple[str, str]]) -> str:
    """Format the examples at the end of a command's help: purpose and command."""
    return "examples:\n" + "\n".join(f"  # {purpose}\n  {command}" for purpose, command in pairs)


def closest_match(word: str, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to a misspelled word."""
    by_lower_case = {name.lower(): name for name in names}
    matches = get_close_matches(word.lower(), by_lower_case, 1)
    return by_lower_case[matches[0]] if matches else None


def fill_line(line: str) -> str:
    """Break a line of an error message between words if a terminal is narrower."""
    if not sys.stderr.isatty():
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    return _wrap(line.strip(), shutil.get_terminal_size().columns, indent, indent or "  ")


def _placeholder(action: argparse.Action) -> str:
    """Return the notation of an argument in usage lines."""
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    name = action.metavar if isinstance(action.metavar, str) else choices or action.dest.upper()
    forms = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ...", argparse.PARSER: f"{name} ..."}
    return forms.get(str(action.nargs), name)


class _Formatter(argparse.HelpFormatter):
    """Fills descriptions; texts of several lines keep their lines."""

    def _format_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None) -> str:
        if usage is None:
            return super()._format_usage(usage, actions, groups, prefix)
        first = "usage: " if prefix is None else prefix
        return _wrap(f"{first}{usage}", self._width, "", " " * len(first)) + "\n\n"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "\n".join(_format_example(line, width) for line in text.splitlines())
        return _wrap(" ".join(text.split()), width, indent, indent)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrap(" ".join(text.split()), width, "", "").splitlines()


def _format_example(line: str, width: int) -> str:
    """Break a long line of the examples; a command is continued with a backslash."""
    if len(line) <= width or not line.startswith("  "):
        return line
    if line.startswith("  # "):
        return _wrap(line[4:], width, "  # ", "  # ")
    return _wrap(line.strip(), width - 2, "  ", "      ").replace("\n", " \\\n")


def _rephrase(message: str) -> str:
    """Rephrase a message of argparse."""
    if message.startswith(_UNKNOWN):
        words = message[len(_UNKNOWN) :].split()
        options = [word for word in words if word.startswith("-")]
        if options:
            return f"there is no option {options[0].partition('=')[0]}"
        return f"unexpected argument {words[0] if words else ''}"
    if message.startswith(_MISSING):
        return f"{message[len(_MISSING) :]} is missing"
    return message.removeprefix("argument ")


def _suggest(message: str, parser: CommandParser) -> str | None:
    """Return a hint for an error of argparse, if there is a better one than the help page."""
    if message.startswith(_UNKNOWN):
        words = [word for word in message[len(_UNKNOWN) :].split() if word.startswith("--")]
        close = closest_match(words[0].partition("=")[0], parser.long_options()) if words else None
        return f"did you mean {close}? {parser.prog} --help lists all" if close else None
    if message.startswith(_MISSING):
        return f"usage: {parser.usage}; {parser.prog} --help says more" if parser.usage else None
    if "invalid choice: '" in message and "(choose from " in message:
        word = message.partition("invalid choice: '")[2].partition("'")[0]
        choices = message.partition("(choose from ")[2].rstrip(")").replace("'", "").split(", ")
        close = closest_match(word, choices)
        return f"did you mean {close}?" if close else None
    return None


def _format_groups(groups: Mapping[str, Mapping[str, str]]) -> str:
    width = max(min(shutil.get_terminal_size().columns - 1, 100), 30)
    longest = max(len(name) for group in groups.values() for name in group) + 4
    indent = longest if longest + 24 <= width else 6
    return "\n".join(f"{title}:\n{_format_entries(group, indent, width)}" for title, group in groups.items())


def _format_entries(group: Mapping[str, str], indent: int, width: int) -> str:
    lines = []
    for name, text in group.items():
        first = f"  {name}".ljust(indent) if len(name) + 4 <= indent else f"  {name}  "
        lines.append(_wrap(text, width, first, " " * indent))
    return "\n".join(lines) + "\n"


def _wrap(text: str, width: int, first: str, others: str) -> str:
    wrapper = TextWrapper(
        width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(text)


def first_word(arguments: Sequence[str]) -> str | None:
    """Return the first argument that is not an option: the name of a command."""
    return next((argument for argument in arguments if not argument.startswith("-")), None)
