"""Sections -> machine code: each kernel under a unique name, from the cache or compiled.

A kernel is emitted as LLVM IR as soon as it is built, and compiled by helper threads while the next ones are built, the
largest waiting kernel first. The program is returned before all of its code is compiled: its first run waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from threading import Semaphore
from types import TracebackType
from weakref import WeakSet, ref

from weft.backends.device import Compilation
from weft.backends.host.codegen import code_identity
from weft.backends.host.machine import Machine, host
from weft.backends.naming import KernelNames, kernel_names, name_kernels, replace_kernels
from weft.cache.code import CodeCache, is_caching, shared_cache
from weft.cache.digests import key_of
from weft.cache.launches import CachedKernels, LaunchCache, find_code
from weft.cache.pack import KernelPack
from weft.cache.sources import package_digest
from weft.ir.compiled import AwaitedObjects, CompiledProgram, build_compiled_program
from weft.ir.kernel import Kernel
from weft.ir.program import TensorProgram
from weft.ir.target import Target, VectorTarget
from weft.ir.work import Section, Work
from weft.threads import HelperPool, PendingTask, make_lock, usable_cores

Progress = Callable[[float], None]
BUILDERS = ("cost", "fuse", "ir", "kernels")  # the sources that the results of builders depend on


def compile_program(
    program: TensorProgram,
    sections: Sequence[Section],
    cache: bool = True,
    progress: Progress | None = None,
    machine: Machine | None = None,
) -> CompiledProgram:
    """Compile all kernels of a program."""
    kernels = name_kernels(sections)
    distinct = {kernel.name: kernel for kernel in kernels.values()}
    objects = compile_kernels(tuple(distinct.values()), machine or host(), shared_cache() if cache else None, progress)
    return build_compiled_program(program, replace_kernels(sections, kernels), objects)


def compile_kernels(
    kernels: Sequence[Kernel], machine: Machine, cache: CodeCache | None, progress: Progress | None = None
) -> tuple[bytes, ...]:
    """Compile each kernel to object code, unless the cache has it; the next is emitted while LLVM compiles one."""
    with KernelCompiler(machine, cache, None) as compiler:
        pending = []
        for number, kernel in enumerate(kernels):
            pending.append(compiler.begin(kernel))
            if progress is not None:
                progress((number + 1) / len(kernels))
        return tuple([wait() for wait in pending])


class PendingObject:
    """The code of one kernel, which a helper compiles unless all references to it are dropped before."""

    def __init__(self, text: str, machine: Machine, store: Callable[[bytes], None] | None) -> None:
        self._arguments = (text, machine, store)
        self._process = os.getpid()
        self.task = PendingTask(_compile, self._arguments)

    @property
    def is_done(self) -> bool:
        return self.task.is_done

    def __call__(self) -> bytes:
        if not self.task.is_done and os.getpid() != self._process:  # helpers do not survive in a forked child
            return _compile(*self._arguments)
        return self.task.result()


def _compile(text: str, machine: Machine, store: Callable[[bytes], None] | None) -> bytes:
    from weft.backends.cpu import codegen

    code = codegen.compile_module(text, machine)
    if store is not None:
        store(code)
    return code


def _store_results(kernels: CachedKernels, results: Mapping[str, bytes]) -> None:
    for name, content in results.items():
        kernels.put_result(name, content)


MOST_PENDING = 256  # kernels of all models; a new load waits until fewer are pending
_compile_slots = [Semaphore(usable_cores())]  # for all models' helpers: more would only wait for LLVM's locks
_PENDING: WeakSet[PendingObject] = WeakSet()
_pending_lock = make_lock()


def _list_unfinished() -> list[PendingObject]:
    with _pending_lock:
        return [pending for pending in _PENDING if not pending.is_done]


def _wait_for(objects: Sequence[PendingObject]) -> None:
    for pending in objects:
        with suppress(BaseException):  # raised again where the code is used
            pending.task.result()


def _wait_before_fork() -> None:
    """Finish all compilations: in the child, no helper would continue them."""
    _wait_for(_list_unfinished())


def _reset_in_child() -> None:
    """Replace the semaphore in a forked child, where helpers that hold it do not exist."""
    _compile_slots[0] = Semaphore(usable_cores())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_before_fork, after_in_child=_reset_in_child)


class KernelCompiler:
    """Helper threads that compile kernels. Leaving the `with` block does not wait; by an exception, it cancels."""

    def __init__(self, machine: Machine, cache: CodeCache | None, pack: KernelPack | None) -> None:
        emitter = package_digest("backends", "ir")
        common = key_of(code_identity(machine), emitter or "")
        self._machine = machine
        self.kernels = None if cache is None or emitter is None else CachedKernels(cache, partial(key_of, common))
        self.sources = [source for source in (self.kernels, pack) if source is not None]
        self._stores = is_caching()
        _wait_for(_list_unfinished()[MOST_PENDING:])
        self._team = HelperPool(usable_cores())
        self._waiting: list[tuple[int, int, ref[PendingObject]]] = []
        self._count = 0
        self._lock = make_lock()

    def begin(self, kernel: Kernel) -> Callable[[], bytes]:
        """Start to compile a kernel; the returned function waits for its code."""
        cached = find_code(self.sources, kernel.name)
        if cached is not None:
            return lambda: cached
        from weft.backends.cpu import codegen

        text = codegen.emit_kernel(kernel, self._machine)
        store = partial(self.kernels.put_code, kernel.name) if self.kernels is not None and self._stores else None
        pending = PendingObject(text, self._machine, store)
        with _pending_lock:
            _PENDING.add(pending)
        with self._lock:
            self._count += 1
            heappush(self._waiting, (-len(text), self._count, ref(pending)))
        self._team.submit(self._compile_largest)
        return pending

    def store(self, results: Mapping[str, bytes]) -> None:
        """Store results of builders in the background."""
        if self.kernels is not None and self._stores and results:
            self._team.submit(_store_results, self.kernels, results)

    def _compile_largest(self) -> None:
        """Compile the largest pending kernel whose model still exists."""
        with _compile_slots[0]:
            task = self._take_largest()
            if task is not None:
                task.work()

    def _take_largest(self) -> PendingTask[bytes] | None:
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
            cancelled, self._waiting = self._waiting, []
        for *_, reference in cancelled:
            pending = reference()
            if pending is not None:
                pending.task.abandon()
        self._team.__exit__(kind, error, at)


class CpuCompilation(Compilation):
    """Compiles kernels while others are built."""

    def __init__(self, machine: Machine, cache: bool, pack: KernelPack | None, progress: Progress) -> None:
        self._compiler = KernelCompiler(machine, shared_cache() if cache else None, pack)
        self._progress = progress
        self._names = KernelNames()
        self._pending: dict[str, Callable[[], bytes]] = {}
        self._launches: LaunchCache | None = None

    def launches(self, target: Target) -> LaunchCache | None:
        builders = package_digest(*BUILDERS)
        if builders is None or (isinstance(target, VectorTarget) and target.narrow_products):
            return None  # which products were narrowed is read from the bodies of kernels
        self._launches = LaunchCache(self._compiler.sources, builders)
        return self._launches

    def take(self, work: Work) -> None:
        for launch in work.launches:
            self._begin(self._names.rename(launch.kernel))

    def _begin(self, kernel: Kernel) -> None:
        if kernel.name not in self._pending:
            cached = None if kernel.body or self._launches is None else self._launches.objects[kernel.name]
            self._pending[kernel.name] = self._compiler.begin(kernel) if cached is None else lambda: cached

    def finish(self, program: TensorProgram, sections: Sequence[Section]) -> CompiledProgram:
        for kernel in name_kernels(sections, self._names).values():
            self._begin(kernel)
        renamed = replace_kernels(sections, self._names.kernels)
        if self._launches is not None:
            self._compiler.store(dict(self._launches.built_results(self._names.kernels)))
        self._progress(1.0)
        return build_compiled_program(
            program, renamed, AwaitedObjects([self._pending[name] for name in kernel_names(renamed)])
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._compiler.__exit__(kind, error, at)
