"""The model of cost/launches.py, vectorized over all launches of a plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

import numpy as np

from weft.cost import launches as model
from weft.cost.roofline import Peak
from weft.ir.arrays import Array


class LaunchArrays:
    """Launches of a plan, as arrays of blocks, operations and bytes."""

    def __init__(self, blocks: Array, flops: Array, bytes: Array, peak: Peak) -> None:
        self._blocks, self._flops = blocks, flops
        speed = np.where(bytes <= model.CACHED_BYTES, peak.bandwidth * model.CACHE_SPEED, peak.bandwidth)
        seconds = model.LAUNCH_OVERHEAD + np.maximum(flops / (model.EFFICIENCY * peak.flops), bytes / speed)
        seconds[(flops == 0) & (bytes == 0)] = np.inf
        seconds[blocks == 0] = 0.0
        self.seconds = seconds
        self.worth_sharing = (blocks > 1) & (seconds >= model.WORTH_SHARING)

    @property
    def is_worth_waking(self) -> bool:
        return bool(self.seconds[self.worth_sharing].sum() >= model.WORTH_WAKING)

    @property
    def is_long(self) -> bool:
        return bool(self.seconds.sum() >= model.LONG)

    @property
    def may_block(self) -> bool:
        is_known = np.isfinite(self.seconds)
        most = np.where(self._flops > 0, model.BLOCKING_BLOCK, model.BLOCKING_BLOCK_TRAFFIC)
        long = self.seconds > most * np.maximum(self._blocks, 1)
        return bool((long & is_known).any() or self.seconds[is_known].sum() >= model.BLOCKING)

    @property
    def blocks_between_checks(self) -> Array:
        """The blocks of each launch that a thread runs between two checks for an interrupt."""
        blocks = np.where(np.isfinite(self.seconds), self._blocks, self._blocks // model.FEWEST_CHECKS)
        long = np.isfinite(self.seconds) & (self.seconds > model.CHECK_INTERVAL)
        blocks[long] = (self._blocks[long] * model.CHECK_INTERVAL / self.seconds[long]).astype(np.int64)
        return np.maximum(blocks, 1)

    def find_sequences(self, after: Sequence[Collection[int]]) -> list[bool]:
        """Decide which launches the same thread runs right after the previous one; `after` are dependencies."""
        result: list[bool] = []
        sequence = inf  # seconds of the current sequence
        for number, (duration, shared) in enumerate(zip(self.seconds.tolist(), self.worth_sharing.tolist())):
            result.append(not shared and number - 1 in after[number] and sequence + duration <= model.LONGEST_SEQUENCE)
            sequence = inf if shared else sequence + duration if result[-1] else duration
        return result
