"""Generate a page for each command from its parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

from weft.cli import COMMANDS, GROUPS, command_parser

FOLDER = "reference/cli"
_GUIDE = re.compile(r"\(?docs/guides/(\w+)\.md\)?")


def pages() -> Iterator[tuple[str, str, str]]:
    """Yield the path, title and text of each page."""
    yield f"{FOLDER}/index.md", "Overview", _overview()
    for name in COMMANDS:
        parser = command_parser([name]).chosen
        assert parser is not None
        yield f"{FOLDER}/{name}.md", f"weft {name}", _page(parser)


def _overview() -> str:
    parts = [
        "# Command line",
        "`weft COMMAND --help` shows the same in a terminal. All commands share their [exit codes](../exit-codes.md).",
    ]
    for title, group in GROUPS.items():
        rows = [f"| [`weft {name}`]({name}.md) | {_cell(text)} |" for name, text in group.items()]
        parts.append("\n".join([f"## {_title(title)}", "", "| command | |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _page(parser: argparse.ArgumentParser) -> str:
    return "\n\n".join([f"# {parser.prog}", *_parts(parser)]) + "\n"


def _parts(parser: argparse.ArgumentParser) -> Iterator[str]:
    if parser.description:
        yield _GUIDE.sub(r"([guide](../../guides/\1.md))", _text(parser.description))
    yield f"```text\n{_usage(parser)}\n```"
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
        rows = [_row(parser, action) for action in actions if not isinstance(action, argparse._SubParsersAction)]
        if rows:
            title = {"positional arguments": "Arguments", "options": "Options"}.get(
                group.title or "", group.title or ""
            )
            yield "\n".join([f"## {_title(title)}", "", "| | |", "| --- | --- |", *rows])
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            for name, inner in action.choices.items():
                yield f"## {inner.prog}"
                yield from (part.replace("## ", "### ") for part in _parts(_add_description(inner, helps.get(name))))
    if parser.epilog:
        yield _examples(parser.epilog)


def _title(text: str) -> str:
    return text if text.startswith("weft") else f"{text[0].upper()}{text[1:]}"


def _add_description(parser: argparse.ArgumentParser, text: str | None) -> argparse.ArgumentParser:
    if not parser.description and text:
        parser.description = f"{text[0].upper()}{text[1:]}."
    return parser


def _usage(parser: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(parser.prog, width=88)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    return formatter.format_help().strip()


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    metavar = _format_metavar(action)
    names = [f"{name} {metavar}".strip() for name in action.option_strings] or [metavar]
    text = (action.help or "") % {**vars(action), "prog": parser.prog} if action.help else ""
    linked = _GUIDE.sub(r"([guide](../../guides/\1.md))", _cell(text))
    return f"| {', '.join(f'`{name}`'.replace('|', chr(92) + '|') for name in names)} | {linked} |"


def _format_metavar(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    metavar: Any = action.metavar
    if metavar is None:
        metavar = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest
        metavar = metavar.upper() if action.option_strings and not action.choices else metavar
    word = " ".join(metavar) if isinstance(metavar, tuple) else metavar
    return {"*": f"[{word} ...]", "+": f"{word} ...", "?": f"[{word}]"}.get(str(action.nargs), word)


def _examples(epilog: str) -> str:
    if not epilog.startswith("examples:"):
        return _text(epilog)
    lines = [line.removeprefix("  ") for line in epilog.split("\n")[1:]]
    return "## Examples\n\n```sh\n" + "\n".join(lines) + "\n```"


def _text(text: str) -> str:
    return re.sub(r"(?<![\w`])(--[a-z][\w-]*)", r"`\1`", text)


def _cell(text: str) -> str:
    return _text(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")
