"""Group chunks of prompts that run together as one batch."""

from __future__ import annotations

from collections.abc import Sequence as Items

from weft.generation.sequence import Sequence

Chunk = tuple[Sequence, int]
"""A sequence, and the number of its next tokens to compute."""

MOST_PADDING = 1.25  # tokens with padding, by tokens without


def group_chunks(chunks: Items[Chunk], *, pads: bool) -> list[list[Chunk]]:
    """Group chunks, those that end a prompt apart from those that do not, since only the first need logits.

    pads: whether lengths and pasts in a group may differ; then there is little padding.
    """
    groups: list[list[Chunk]] = []
    for chunk in sorted(chunks, key=lambda chunk: (_is_last(chunk), -chunk[1])):
        if groups and _is_last(groups[-1][0]) == _is_last(chunk) and _fits(groups[-1], chunk, pads):
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


def list_largest_steps(rows: int, chunk: int, max_length: int, *, takes_chunks: bool) -> list[tuple[int, int]]:
    """List the steps that need the most memory: their rows, and the tokens of each.

    Without chunks, prompts are computed whole until those of a step have `chunk` tokens.
    """
    longest, total = (min(chunk, max_length), chunk) if takes_chunks else (max_length, chunk + max_length)
    return [(rows, 1), (1, longest), (rows, min(-(-total // rows), max_length))]


def _is_last(chunk: Chunk) -> bool:
    sequence, count = chunk
    return sequence.remaining == count


def _fits(group: Items[Chunk], chunk: Chunk, pads: bool) -> bool:
    (first, longest), (sequence, count) = group[0], chunk
    if pads:
        padded = longest * (len(group) + 1)
        return padded <= MOST_PADDING * (sum(size for _, size in group) + count)
    return (first.computed, longest) == (sequence.computed, count)
