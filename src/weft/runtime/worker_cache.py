"""Cache the model that a worker of a process pool unpickled last: pools send it again with every task.

One model is cached. It is freed before another is loaded, so that the two never take memory at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING

from weft.threads import is_pool_worker

if TYPE_CHECKING:
    from weft.runtime.model import Model

_cached: list[tuple[bytes, Model]] = []


def load_in_worker(key: bytes | None, load: Callable[[], Model]) -> Model:
    """Load a model, or copy the cached one with this key; without a key nothing is cached.

    Setting the weights of one copy changes no other.
    """
    if key is None or not is_pool_worker():
        return load()
    for cached_key, model in _cached:
        if cached_key == key:
            return deepcopy(model)
    _cached.clear()
    model = load()
    _cached[:] = [(key, deepcopy(model))]
    return model
