"""Fewer searches for reference cycles while many objects are made that live on.

Python looks at all young objects after every 700 new ones, and at all there are now and then. While a model is
compiled, which makes a million objects and hardly a cycle, that is a third of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from weft.threads import lock

SELDOM = 200_000  # objects made between two searches

_lock = lock()
_inside = 0
_before = (0, 0, 0)


@contextmanager
def seldom_collected(lasting: bool = False) -> Iterator[None]:
    """Search seldom until the last thread leaves this; who searches seldom already, or never, is left alone.

    `lasting`: what is made stays, as modules do, and is not looked through in the end, unless others freeze objects.
    """
    global _inside, _before
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = gc.get_threshold()
            if 0 < _before[0] < SELDOM:
                gc.set_threshold(SELDOM, *_before[1:])
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and gc.get_threshold() == (SELDOM, *_before[1:]):
                if lasting and gc.get_freeze_count() == 0:
                    gc.freeze()  # and, with the next call, old: a way without looking at what is young
                    gc.unfreeze()
                gc.set_threshold(*_before)
