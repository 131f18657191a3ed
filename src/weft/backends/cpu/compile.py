"""Sections -> machine code: every kernel under a name of its own, compiled or taken from the cache.

A kernel is written as LLVM's text as soon as it is built, and compiled by helpers while the next ones are built, the
largest of those that wait first. The program is there before all of its code is: who runs it waits for that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from threading import Semaphore
from types import TracebackType
from weakref import WeakSet, ref

from weft.backends.cpu.codegen import code_identity
from weft.backends.cpu.machine import Machine, host
from weft.backends.device import Compilation
from weft.backends.llvm.compilation import compile_module
from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.vector_lanes import VECTOR_LANES
from weft.backends.naming import KernelNames, kernel_names, named_kernels, named_sections
from weft.cache.code import CodeCache, is_keeping, shared_cache
from weft.cache.digests import key_of
from weft.cache.sources import package_digest
from weft.ir.compiled import AwaitedObjects, CompiledProgram, compiled
from weft.ir.kernel import Kernel
from weft.ir.program import TensorProgram
from weft.ir.work import Section, Work
from weft.threads import PendingTask, Team, lock, usable_cores

Progress = Callable[[float], None]


def compile_program(
    program: TensorProgram,
    sections: Sequence[Section],
    cache: bool = True,
    progress: Progress | None = None,
    machine: Machine | None = None,
) -> CompiledProgram:
    """The program with the code of all its kernels."""
    kernels = named_kernels(sections)
    distinct = {kernel.name: kernel for kernel in kernels.values()}
    objects = compile_kernels(tuple(distinct.values()), machine or host(), shared_cache() if cache else None, progress)
    return compiled(program, named_sections(sections, kernels), objects)


def compile_kernels(
    kernels: Sequence[Kernel], machine: Machine, cache: CodeCache | None, progress: Progress | None = None
) -> tuple[bytes, ...]:
    """Object code of each kernel. While LLVM compiles one, the next is written; what the cache has is neither."""
    with KernelCompiler(machine, cache) as compiler:
        pending = []
        for number, kernel in enumerate(kernels):
            pending.append(compiler.begin(kernel))
            if progress is not None:
                progress((number + 1) / len(kernels))
        return tuple([wait() for wait in pending])


class PendingObject:
    """The code of one kernel, which a helper compiles, unless nobody wants it any more before that."""

    def __init__(self, text: str, machine: Machine, keep: Callable[[bytes], None] | None) -> None:
        self._given = (text, machine, keep)
        self._process = os.getpid()
        self.task = PendingTask(_compile, self._given)

    @property
    def is_done(self) -> bool:
        return self.task.is_done

    def __call__(self) -> bytes:
        if not self.task.is_done and os.getpid() != self._process:  # no helper lives on in a forked child
            return _compile(*self._given)
        return self.task.result()


def _compile(text: str, machine: Machine, keep: Callable[[bytes], None] | None) -> bytes:
    code = compile_module(text, machine)
    if keep is not None:
        keep(code)
    return code


MOST_WAITING = 256  # kernels of all models, beyond which a load waits for others' before it adds to them
_at_work = [Semaphore(usable_cores())]  # of all models' helpers: more of them only wait for LLVM's locks
_PENDING: WeakSet[PendingObject] = WeakSet()
_listing = lock()


def _undone() -> list[PendingObject]:
    with _listing:
        return [pending for pending in _PENDING if not pending.is_done]


def _await(waiting: Sequence[PendingObject]) -> None:
    for pending in waiting:
        with suppress(BaseException):  # which whoever runs the code hears of
            pending.task.result()


def _await_pending() -> None:
    """Before a fork: in the child, what helpers were in the middle of would stay so."""
    _await(_undone())


def _renew() -> None:
    """In a forked child, where those that were at work are not."""
    _at_work[0] = Semaphore(usable_cores())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_await_pending, after_in_child=_renew)


class KernelCompiler:
    """Helpers that compile kernels (`with`). The end of the block waits for nothing; an exception drops what waits."""

    def __init__(self, machine: Machine, cache: CodeCache | None) -> None:
        emitter = package_digest("backends", "ir")
        self._machine = machine
        self._cache = None if emitter is None else cache
        self._keeps = is_keeping()
        self._common = key_of(code_identity(machine), emitter or "")
        _await(_undone()[MOST_WAITING:])
        self._team = Team(usable_cores())
        self._waiting: list[tuple[int, int, ref[PendingObject]]] = []
        self._count = 0
        self._lock = lock()

    def begin(self, kernel: Kernel) -> Callable[[], bytes]:
        """Have a kernel compiled; what gives its code once it is."""
        cache, key = self._cache, key_of(kernel.name, self._common)
        found = None if cache is None else cache.get(key)
        if found is not None:
            return lambda: found
        text = llvm_text([kernel], VECTOR_LANES)
        keep = None if cache is None or not self._keeps else lambda code: cache.put(key, code)
        pending = PendingObject(text, self._machine, keep)
        with _listing:
            _PENDING.add(pending)
        with self._lock:
            self._count += 1
            heappush(self._waiting, (-len(text), self._count, ref(pending)))
        self._team.submit(self._largest)
        return pending

    def _largest(self) -> None:
        """Compile the largest of all that wait and are wanted: models may be let go before their code is made."""
        with _at_work[0]:
            task = self._next()
            if task is not None:
                task.work()

    def _next(self) -> PendingTask[bytes] | None:
        with self._lock:
            while self._waiting:
                pending = heappop(self._waiting)[-1]()
                if pending is not None:
                    return pending.task
        return None

    def __enter__(self) -> KernelCompiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._team.end()
            return
        with self._lock:
            given_up, self._waiting = self._waiting, []
        for *_, found in given_up:
            pending = found()
            if pending is not None:
                pending.task.give_up()
        self._team.__exit__(kind, error, at)


class CpuCompilation(Compilation):
    """Compiles kernels while others are built."""

    def __init__(self, machine: Machine, cache: bool, progress: Progress) -> None:
        self._compiler = KernelCompiler(machine, shared_cache() if cache else None)
        self._progress = progress
        self._names = KernelNames()
        self._pending: dict[str, Callable[[], bytes]] = {}

    def take(self, work: Work) -> None:
        for launch in work.launches:
            self._begin(self._names.named(launch.kernel))

    def _begin(self, kernel: Kernel) -> None:
        if kernel.name not in self._pending:
            self._pending[kernel.name] = self._compiler.begin(kernel)

    def finish(self, program: TensorProgram, sections: Sequence[Section]) -> CompiledProgram:
        for kernel in named_kernels(sections, self._names).values():
            self._begin(kernel)
        named = named_sections(sections, self._names.found)
        self._progress(1.0)
        return compiled(program, named, AwaitedObjects([self._pending[name] for name in kernel_names(named)]))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._compiler.__exit__(kind, error, at)
