"""Measure the peak of a device once per process, as the best of several timed rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from weft.cost.roofline import Peak
from weft.threads import make_lock

Device = TypeVar("Device")
ROUNDS = 6  # the first one warms up and does not count


def measure_once(measure: Callable[[Device], Peak]) -> Callable[[Device], Peak]:
    """Cache a measurement for as long as its device is open; other threads wait while it runs."""
    peaks: WeakKeyDictionary[Device, Peak] = WeakKeyDictionary()
    measuring = make_lock()

    @wraps(measure)
    def measure_if_new(device: Device) -> Peak:
        with measuring:
            peak = peaks.get(device)
            if peak is None:
                peak = peaks[device] = measure(device)
            return peak

    return measure_if_new


def best_seconds(rounds: Sequence[float]) -> float:
    """Return the shortest time of all rounds but the first."""
    return max(min(rounds[1:]), 1e-9)
