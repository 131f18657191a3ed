"""A cache of lookup tables built from constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_TABLES = 64  # each belongs to a step of a model
_tables: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}


def cached_table(build: Callable[..., Any], *sources: Any) -> Any:
    """Return `build(*sources)`, cached by the identity of the sources, which must never change."""
    key = (build, *map(id, sources))
    entry = _tables.get(key)
    if entry is None:  # holds the sources, so that their ids are not reused
        if len(_tables) >= MOST_TABLES:
            _tables.clear()
        entry = _tables[key] = sources, build(*sources)
    return entry[1]
