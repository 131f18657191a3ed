"""What mkdocs calls while it builds the site: pages made from the source join those of docs/, and the list of pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import api_pages
import command_pages
import example_pages
import operator_pages
from mkdocs.structure.files import File, Files

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:[A-Z]{4,}|examples|scripts|bench|src|tests)[^)]*\)")


def on_config(config: Any) -> Any:
    """Put the made pages where the list has a name for all of them."""
    makers = {"api": api_pages, "commands": command_pages, "examples": example_pages, "operators": operator_pages}
    made = {kind: list(maker.pages()) for kind, maker in makers.items()}
    config.nav = _with_pages(config.nav, made)
    config.extra["made"] = made
    return config


def on_files(files: Files, config: Any) -> Files:
    for pages in config.extra["made"].values():
        for path, _, text in pages:
            files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to files of the repository that are no pages become names."""
    return _OUTSIDE.sub(r"`\1`", markdown)


def _with_pages(nav: list[Any], made: dict[str, list[tuple[str, str, str]]]) -> list[Any]:
    found: list[Any] = []
    for entry in nav:
        match entry:
            case {"made": kind}:
                found += [{title: path} for path, title, _ in made[kind]]
            case dict():
                found.append(
                    {
                        key: _with_pages(value, made) if isinstance(value, list) else value
                        for key, value in entry.items()
                    }
                )
            case _:
                found.append(entry)
    return found
