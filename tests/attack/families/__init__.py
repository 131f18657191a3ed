"""Families of attacks: one module each, found by its name.

A family says how long a case may take (SECONDS), how much memory beyond its start (MEMORY), how many cases belong to
every run of the tests (SHARE), makes cases, runs one, and may offer smaller ones that could show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
from attack.verdict import Payload, Verdict

SECONDS = 60.0
MEMORY = 4 << 30
SHARE = 25


@dataclass(frozen=True, slots=True)
class Family:
    """A module of this folder."""

    name: str
    about: str
    cases: Callable[[np.random.Generator, str], Iterator[Payload]]
    attack: Callable[[Payload, str], Verdict]
    smaller: Callable[[Payload], Iterator[Payload]]
    seconds: float
    memory: int
    share: int


def family_names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")


def load_family(name: str) -> Family:
    """Load a family by its name here, or by the full name of another module."""
    module = import_module(name if "." in name else f"attack.families.{name}")
    return Family(
        name,
        (module.__doc__ or "").strip().partition("\n")[0],
        module.cases,
        module.attack,
        getattr(module, "smaller", _nothing_smaller),
        getattr(module, "SECONDS", SECONDS),
        getattr(module, "MEMORY", MEMORY),
        getattr(module, "SHARE", SHARE),
    )


def _nothing_smaller(_: Payload) -> Iterator[Payload]:
    return iter(())
