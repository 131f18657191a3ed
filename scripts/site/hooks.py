"""Hooks of mkdocs: add the pages that are generated from the source to those of docs/ and to the navigation."""

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
    """Replace the placeholders in the navigation by the generated pages."""
    makers = {"api": api_pages, "commands": command_pages, "examples": example_pages, "operators": operator_pages}
    generated = {kind: list(maker.pages()) for kind, maker in makers.items()}
    config.nav = _with_pages(config.nav, generated)
    config.extra["generated"] = generated
    return config


def on_files(files: Files, config: Any) -> Files:
    for pages in config.extra["generated"].values():
        for path, _, text in pages:
            files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links to repository files that are not pages by their names."""
    return _OUTSIDE.sub(r"`\1`", markdown)


def _with_pages(nav: list[Any], generated: dict[str, list[tuple[str, str, str]]]) -> list[Any]:
    entries: list[Any] = []
    for entry in nav:
        match entry:
            case {"generated": kind}:
                entries += [{title: path} for path, title, _ in generated[kind]]
            case dict():
                entries.append(
                    {
                        key: _with_pages(value, generated) if isinstance(value, list) else value
                        for key, value in entry.items()
                    }
                )
            case _:
                entries.append(entry)
    return entries
