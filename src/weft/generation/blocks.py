"""`BlockPool`: the blocks of a KV cache, counted references to them, and the tree of prefixes that they hold.

A block that a sequence has filled is published under its tokens and all tokens before them. Other sequences with the
same prefix share it, and nothing writes to it again: what a sequence appends goes into blocks of its own. Blocks
without references stay published until their memory is needed, those that were used longest ago first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from weft.records import dataclass

ROOT = 0  # the node before the first block; other trees have negative numbers


@dataclass(frozen=True, slots=True)
class Prefix:
    """The blocks that hold the beginning of a sequence, and the node of the last of them."""

    blocks: tuple[int, ...]
    node: int


NO_PREFIX = Prefix((), ROOT)


class BlockPool:
    """Blocks of `block_size` tokens each. One thread at a time uses it."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self._unused = list(range(blocks - 1, -1, -1))
        self._references = [0] * blocks
        self._published: dict[
            tuple[int, tuple[int, ...]], tuple[int, int]
        ] = {}  # blocks and nodes, by parents and tokens
        self._keys: dict[int, tuple[int, tuple[int, ...]]] = {}  # of published blocks
        self._idle: OrderedDict[int, None] = OrderedDict()  # published blocks without references, oldest first
        self._last_node = ROOT

    @property
    def available(self) -> int:
        """The number of blocks that `allocate` can return."""
        return len(self._unused) + len(self._idle)

    @property
    def used(self) -> int:
        """The number of blocks that sequences hold."""
        return self.blocks - self.available

    def is_used(self, block: int) -> bool:
        """Whether a sequence holds a block."""
        return self._references[block] > 0

    def count_blocks(self, tokens: int) -> int:
        """Return how many blocks hold this number of tokens."""
        return -(-tokens // self.block_size)

    def allocate(self) -> int | None:
        """Return a block with one reference; None if all blocks are in use."""
        if self._unused:
            block = self._unused.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            del self._published[self._keys.pop(block)]
        else:
            return None
        self._references[block] = 1
        return block

    def share(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block."""
        for block in blocks:
            if not self._references[block]:
                del self._idle[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each block; published ones stay until their memory is needed, the last first to go."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._keys:
                self._idle[block] = None
            else:
                self._unused.append(block)

    def find(self, tokens: Sequence[int], prefix: Prefix = NO_PREFIX) -> Prefix:
        """Return the longest published prefix of these tokens that continues `prefix`, without adding references."""
        blocks, node, size = list(prefix.blocks), prefix.node, self.block_size
        for start in range(len(blocks) * size, len(tokens) - size + 1, size):
            entry = self._published.get((node, tuple(tokens[start : start + size])))
            if entry is None:
                break
            blocks.append(entry[0])
            node = entry[1]
        return Prefix(tuple(blocks), node)

    def publish(self, block: int, parent: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Publish a block that holds these tokens after those of a node; return the block to use, and its node.

        If another block holds the same, that one is used, and this one is released.
        """
        key = parent, tuple(tokens)
        entry = self._published.get(key)
        if entry is not None:
            self.share(entry[:1])
            self.release((block,))
            return entry
        self._last_node += 1
        self._published[key] = block, self._last_node
        self._keys[block] = key
        return block, self._last_node

    def clear(self) -> None:
        """Forget all published prefixes that no sequence uses."""
        for block in self._idle:
            del self._published[self._keys.pop(block)]
            self._unused.append(block)
        self._idle.clear()
