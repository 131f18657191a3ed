"""The model that a worker of a pool was sent last: pools send it with every task, and from the second on it is ready.

One is held, until another one comes: then it is let go first, so that both never take memory beside each other.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING

from weft.threads import is_pool_worker

if TYPE_CHECKING:
    from weft.runtime.model import Model

_held: list[tuple[bytes, Model]] = []


def received(key: bytes | None, load: Callable[[], Model]) -> Model:
    """A model by all that makes it what it is, or the same one that came before; None: it is not to be held.

    Who sets weights of one changes no other: what they share never changes.
    """
    if key is None or not is_pool_worker():
        return load()
    for known, model in _held:
        if known == key:
            return deepcopy(model)
    _held.clear()
    model = load()
    _held[:] = [(key, deepcopy(model))]
    return model
