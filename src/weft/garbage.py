"""Run the cyclic garbage collector rarely while many long-lived objects are created.

Compiling a model creates a million objects and hardly a cycle; with the default thresholds, collections take a third of
the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from weft.threads import make_lock

THRESHOLD = 200_000  # allocations between two collections

_lock = make_lock()
_depth = 0
_thresholds = (0, 0, 0)


def freeze_objects() -> None:
    """Leave all objects of now out of later collections, after one of all.

    A collection of the objects of a loaded model takes tens of milliseconds, in which a server answers nothing.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Raise the collection threshold until the last thread leaves; a higher or disabled one stays as it is.

    At the end, new objects are moved to the oldest generation, unless the program uses `gc.freeze` itself. Otherwise
    the next allocation would scan them all, which takes 25 to 115 ms after a load.
    """
    global _depth, _thresholds
    with _lock:
        _depth += 1
        if _depth == 1:
            _thresholds = gc.get_threshold()
            if 0 < _thresholds[0] < THRESHOLD:
                gc.set_threshold(THRESHOLD, *_thresholds[1:])
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and gc.get_threshold() == (THRESHOLD, *_thresholds[1:]):
                if gc.get_freeze_count() == 0:
                    # Together these promote all objects to the oldest generation without scanning them.
                    gc.freeze()
                    gc.unfreeze()
                gc.set_threshold(*_thresholds)
