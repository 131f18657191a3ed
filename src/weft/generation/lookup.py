"""Propose a continuation of tokens from an earlier place with the same last tokens (prompt lookup)."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_MATCH = 4
SHORTEST_MATCH = 2
MOST_SEARCHED = 4096  # tokens back


def find_continuation(tokens: Sequence[int], count: int) -> list[int]:
    """Return up to `count` tokens that followed the last tokens before; the longest and latest match counts."""
    if count < 1:
        return []
    recent = list(tokens[-MOST_SEARCHED:])
    last = recent[-1]
    best, best_length = -1, SHORTEST_MATCH - 1
    for end in range(len(recent) - 2, SHORTEST_MATCH - 2, -1):
        if recent[end] != last:
            continue
        length = 1
        while length < LONGEST_MATCH and length <= end and recent[end - length] == recent[-1 - length]:
            length += 1
        if length > best_length:
            best, best_length = end, length
            if length == LONGEST_MATCH:
                break
    return [] if best < 0 else recent[best + 1 : best + 1 + count]
