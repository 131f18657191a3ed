"""Sequences of requests: the state of a model stays on the server between the requests with one sequence id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.interrupts import await_run
from weft.runtime.make_state import make_state
from weft.server.errors import overload_error
from weft.server.http import HttpError
from weft.server.memory import MemoryBudget

if TYPE_CHECKING:
    from weft.runtime.model import Model
    from weft.runtime.state import State

MOST_SEQUENCES = 4096


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Which sequence a request belongs to, and whether it begins or ends it."""

    id: Hashable
    starts: bool = False
    ends: bool = False


@dataclass(slots=True)
class _Sequence:
    state: State
    used: float
    reserved: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Sequences:
    """The states of one model, by sequence id. Requests of one sequence run in their order."""

    def __init__(self, model: Model, length: int, idle: float, budget: MemoryBudget) -> None:
        """`length`: the most elements of a state that grows. `idle`: seconds after which a state is dropped."""
        self._model = model
        self.idle = idle
        self._budget = budget
        self._sequences: dict[Hashable, _Sequence] = {}
        self._capacity: int | None = length
        self._turn = asyncio.Lock()  # one run at a time uses all threads
        self.pairs = self._find_pairs()

    def __len__(self) -> int:
        return len(self._sequences)

    def _find_pairs(self) -> Mapping[str, str]:
        """Return the inputs that a state holds and their outputs; none if the model has no state."""
        for capacity in (None, self._capacity):
            try:
                pairs = make_state(self._model, capacity, None).pairs
            except InputError:  # no state, or one that grows and needs a capacity
                continue
            self._capacity = capacity
            return pairs
        return {}

    async def run(self, step: SequenceStep, arrays: Mapping[str, Any], outputs: tuple[str, ...] | None) -> Any:
        """Continue a sequence; HttpError 400 if it has not been started."""
        self.drop_idle()
        sequence = self._start(step.id) if step.starts else self._sequences.get(step.id)
        if sequence is None:
            problem = (
                f"there is no sequence {step.id!r}: its first request must set sequence_start, and it may have ended"
            )
            raise HttpError(400, f"{problem} after {self.idle:g} s without a request")
        async with sequence.lock:
            sequence.used = time.monotonic()
            try:
                async with self._turn:
                    results = await await_run(partial(self._model.run, state=sequence.state), dict(arrays), outputs)
            finally:
                sequence.used = time.monotonic()
                self._count_memory(sequence)
                if step.ends and self._sequences.get(step.id) is sequence:
                    self._drop(step.id)
        return results

    def _start(self, key: Hashable) -> _Sequence:
        if key in self._sequences:
            self._drop(key)
        if len(self._sequences) >= MOST_SEQUENCES or self._budget.free <= 0:
            raise overload_error(f"{len(self._sequences):,} sequences are open already; try again later")
        sequence = _Sequence(make_state(self._model, self._capacity, None), time.monotonic())
        self._sequences[key] = sequence
        return sequence

    def _count_memory(self, sequence: _Sequence) -> None:
        size = sequence.state.nbytes
        if size != sequence.reserved and sequence in self._sequences.values():
            self._budget.reserve(size - sequence.reserved)
            sequence.reserved = size

    def _drop(self, key: Hashable) -> None:
        sequence = self._sequences.pop(key)
        self._budget.reserve(-sequence.reserved)
        sequence.reserved = 0

    def drop_idle(self) -> None:
        """Drop the states that no request has continued for long."""
        limit = time.monotonic() - self.idle
        for key in [key for key, each in self._sequences.items() if each.used < limit and not each.lock.locked()]:
            self._drop(key)

    def close(self) -> None:
        """Drop all states."""
        for key in list(self._sequences):
            self._drop(key)
