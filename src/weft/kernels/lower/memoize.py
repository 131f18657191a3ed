"""Memoize kernel builders, so that equal layers of a program share their kernels and are built once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from weft.ir.work import Launch

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")

_memory: ContextVar[dict[Any, Any] | None] = ContextVar("memory", default=None)


def memoize(build: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate a function of plain data to return earlier results within `memoization`."""

    @wraps(build)
    def look_up(*arguments: Any) -> Result:
        memory = _memory.get()
        if memory is None:
            return build(*arguments)
        key = (build, *(tuple(argument) if isinstance(argument, list) else argument for argument in arguments))
        try:
            result: Result = memory[key]
        except KeyError:
            result = memory[key] = build(*arguments)
        return result

    return look_up


class _LaunchBuilder(Protocol):
    def build_launch(self) -> Launch: ...


def memoize_launch(builder: Callable[Parameters, _LaunchBuilder]) -> Callable[Parameters, Launch]:
    """Return a memoized function that constructs a builder and returns its launch."""

    @wraps(builder, updated=())
    def build(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Launch:
        return builder(*arguments, **keywords).build_launch()

    return memoize(build)


@contextmanager
def memoization(memory: dict[Any, Any] | None = None) -> Iterator[None]:
    """Memoize until the outermost of these contexts is left; `memory` holds earlier results, or finds them."""
    if _memory.get() is not None:
        yield
        return
    token = _memory.set({} if memory is None else memory)
    try:
        yield
    finally:
        _memory.reset(token)
