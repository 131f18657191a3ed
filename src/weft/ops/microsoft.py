"""The ops of the domain com.microsoft as functions; see `weft.ops`."""

from __future__ import annotations

from typing import Any

from weft.builder.namespaces import Functions

_FUNCTIONS = Functions("com.microsoft")


def __getattr__(name: str) -> Any:
    return getattr(_FUNCTIONS, name)


def __dir__() -> list[str]:
    return dir(_FUNCTIONS)
