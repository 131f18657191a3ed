"""How long launches take, by the model of cost/launches.py, for all launches of a plan at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Any

import numpy as np

from weft.cost import launches as model
from weft.cost.roofline import Peak

Array = np.ndarray[Any, Any]


class ManyLaunches:
    """Numbers of blocks, operations and bytes of launches, one after the other."""

    def __init__(self, blocks: Array, flops: Array, bytes: Array, peak: Peak) -> None:
        self._blocks, self._flops = blocks, flops
        speed = np.where(bytes <= model.CACHED_BYTES, peak.bandwidth * model.CACHE_SPEED, peak.bandwidth)
        taken = model.START + np.maximum(flops / (model.EFFICIENCY * peak.flops), bytes / speed)
        taken[(flops == 0) & (bytes == 0)] = np.inf
        taken[blocks == 0] = 0.0
        self.seconds = taken
        self.worth_sharing = (blocks > 1) & (taken >= model.WORTH_SHARING)

    @property
    def is_worth_waking(self) -> bool:
        return bool(self.seconds[self.worth_sharing].sum() >= model.WORTH_WAKING)

    @property
    def is_long(self) -> bool:
        return bool(self.seconds.sum() >= model.LONG)

    @property
    def may_block(self) -> bool:
        known = np.isfinite(self.seconds)
        most = np.where(self._flops > 0, model.ONE_BLOCK, model.ONE_BLOCK_OF_TRAFFIC)
        long = self.seconds > most * np.maximum(self._blocks, 1)
        return bool((long & known).any() or self.seconds[known].sum() >= model.BLOCKING)

    @property
    def in_one_go(self) -> Array:
        """How many blocks of each a thread may run before it looks whether the run is to end."""
        pieces = np.where(np.isfinite(self.seconds), self._blocks, self._blocks // model.FEWEST_PIECES)
        long = np.isfinite(self.seconds) & (self.seconds > model.IN_ONE_GO)
        pieces[long] = (self._blocks[long] * model.IN_ONE_GO / self.seconds[long]).astype(np.int64)
        return np.maximum(pieces, 1)

    def joined(self, after: Sequence[Collection[int]]) -> list[bool]:
        """Which of them one thread should run right after the one before, where each waits for given others."""
        result: list[bool] = []
        row = inf  # seconds of the present row
        for number, (taken, shared) in enumerate(zip(self.seconds.tolist(), self.worth_sharing.tolist())):
            result.append(not shared and number - 1 in after[number] and row + taken <= model.MOST_JOINED)
            row = inf if shared else row + taken if result[-1] else taken
        return result
