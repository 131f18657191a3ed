"""Code compiled by helpers in the background of a load: at most one helper per core, and none for dropped models."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from weft.backends.cpu import codegen
from weft.backends.cpu import compile as compiling
from weft.backends.host.machine import host
from weft.threads import usable_cores

Begin = Callable[[str], Callable[[], bytes]]


class NamedKernel:
    """The fields of a kernel that the compiler reads."""

    def __init__(self, name: str) -> None:
        self.name = name


class Library:
    """Replaces LLVM; it blocks until it is released."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.begun: list[str] = []
        self.most = self._inside = 0
        self._lock = threading.Lock()

    def compile(self, text: str, _: Any) -> bytes:
        with self._lock:
            self.begun.append(text)
            self._inside += 1
            self.most = max(self.most, self._inside)
        assert self.goes_on.wait(60)
        with self._lock:
            self._inside -= 1
        return text.encode()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(codegen, "compile_module", library.compile)
    monkeypatch.setattr(codegen, "emit_kernel", lambda kernel, _: kernel.name)
    monkeypatch.setattr(compiling, "_PENDING", type(compiling._PENDING)())
    monkeypatch.setattr(compiling, "_compile_slots", [threading.Semaphore(usable_cores())])
    return library


def begin(names: Sequence[str]) -> list[Callable[[], bytes]]:
    with compiling.KernelCompiler(host(), None, None) as compiler:
        return [compiler.begin(NamedKernel(name)) for name in names]  # type: ignore[arg-type]


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


def test_code_of_dropped_models_is_not_compiled(library: Library) -> None:
    cores = usable_cores()
    first = begin([f"first {number}" for number in range(cores)])
    wait_for(lambda: len(library.begun) == cores)
    for _ in range(20):
        begin(["given up", "given up, too"])  # models that were dropped
    pending = begin(["wanted"])
    library.goes_on.set()
    assert [wait() for wait in pending] == [b"wanted"]
    assert [wait() for wait in first] == [f"first {number}".encode() for number in range(cores)]
    assert sorted(library.begun) == sorted([*(f"first {number}" for number in range(cores)), "wanted"])


def test_helpers_of_all_models_together_are_as_many_as_cores(library: Library) -> None:
    models = [begin([f"{model} {number}" for number in range(3)]) for model in range(8)]
    wait_for(lambda: len(library.begun) >= usable_cores())
    library.goes_on.set()
    assert [[wait() for wait in model] for model in models] == [
        [f"{model} {number}".encode() for number in range(3)] for model in range(8)
    ]
    assert library.most <= usable_cores()


def test_load_waits_if_the_queue_is_long(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MOST_PENDING", 4)
    pending = begin([f"early {number}" for number in range(8)])
    late: list[bytes] = []
    thread = threading.Thread(target=lambda: late.extend(wait() for wait in begin(["late"])))
    thread.start()
    time.sleep(0.05)
    assert "late" not in library.begun
    library.goes_on.set()
    thread.join(60)
    assert late == [b"late"]
    assert len([wait() for wait in pending]) == 8
