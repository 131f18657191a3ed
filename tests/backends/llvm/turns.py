"""Lanes as threads of which one runs at a time; they switch where they wait for each other.

Who arrives last at a meeting goes on, and the others follow in the opposite order. So the lanes of a block run forwards
and backwards in turn, and what lacks a barrier reads something stale, whichever way it looks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class MissedError(Exception):
    """A lane waits for others that never arrive."""


class Turns:
    """Runs lanes one at a time; `run` returns when all of them have ended."""

    def __init__(self, lanes: int) -> None:
        self.locks = [threading.Lock() for _ in range(lanes)]
        for lock in self.locks:
            lock.acquire()
        self.ready = deque(range(lanes))
        self.asleep: set[int] = set()
        self.broken = False
        self.own = threading.local()

    def run(self, lane: Callable[[int], None]) -> None:
        def enter(number: int) -> None:
            self.own.number = number
            self.locks[number].acquire()
            try:
                lane(number)
            finally:
                self.go_on()

        threads = [threading.Thread(target=enter, args=(number,)) for number in range(len(self.locks))]
        for thread in threads:
            thread.start()
        self.go_on()
        for thread in threads:
            thread.join()

    def go_on(self) -> None:
        """Switch to the next lane; if there is none, waiting lanes are stuck."""
        if self.ready:
            self.locks[self.ready.popleft()].release()
        elif self.asleep:
            self.give_up()

    def sleep(self) -> None:
        me = self.own.number
        self.asleep.add(me)
        self.go_on()
        self.locks[me].acquire()

    def wake(self, lanes: list[int]) -> None:
        self.asleep.difference_update(lanes)
        self.ready.extend(lanes)

    def give_up(self) -> None:
        """Let all lanes end at once."""
        if not self.broken:
            self.broken = True
            for number in (*self.ready, *self.asleep):
                self.locks[number].release()
            self.ready.clear()
            self.asleep.clear()


class Meeting:
    """A reusable barrier for some of the lanes."""

    def __init__(self, turns: Turns, size: int) -> None:
        self.turns = turns
        self.size = size
        self.here: list[int] = []

    def wait(self) -> bool:
        """Wait for the others; whether this lane is the last to arrive, which runs on first."""
        if self.turns.broken:
            raise MissedError
        if len(self.here) + 1 == self.size:
            self.turns.wake(self.here[::-1])
            self.here = []
            return True
        self.here.append(self.turns.own.number)
        self.turns.sleep()
        if self.turns.broken:
            raise MissedError
        return False
