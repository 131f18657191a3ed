"""Builders that build equal things once: a program's equal layers share their kernels, and the time to make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

Made = TypeVar("Made")

_memory: ContextVar[dict[Any, Any] | None] = ContextVar("memory", default=None)


def memoized(build: Callable[..., Made]) -> Callable[..., Made]:
    """A function of plain data that looks up what it has made since `remembering` began."""

    @wraps(build)
    def look_up(*arguments: Any) -> Made:
        memory = _memory.get()
        if memory is None:
            return build(*arguments)
        key = (build, *(tuple(argument) if isinstance(argument, list) else argument for argument in arguments))
        if key not in memory:
            memory[key] = build(*arguments)
        made: Made = memory[key]
        return made

    return look_up


@contextmanager
def memoizing(memory: dict[Any, Any] | None = None) -> Iterator[None]:
    """Remember until the outermost of these is left; what is in `memory` was made before."""
    if _memory.get() is not None:
        yield
        return
    token = _memory.set({} if memory is None else memory)
    try:
        yield
    finally:
        _memory.reset(token)
