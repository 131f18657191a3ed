"""Chunks of prompts that run together."""

from __future__ import annotations

import pytest

from weft.generation.chunks import group_chunks
from weft.generation.options import GenerationOptions
from weft.generation.sequence import Sequence


def sequence(length: int, computed: int = 0) -> Sequence:
    result = Sequence([1] * length, length, GenerationOptions(), 0, length + 1, frozenset(), lambda _: False)
    result.computed = computed
    return result


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ([16, 16, 16], [[16, 16, 16]]),
        ([16, 13, 14, 15], [[16, 15, 14, 13]]),
        ([100, 3, 4, 90], [[100, 90], [4, 3]]),
        ([8, 4], [[8], [4]]),
        ([], []),
    ],
)
def test_groups_have_little_padding(lengths: list[int], groups: list[list[int]]) -> None:
    chunks = [(sequence(length), length) for length in lengths]
    assert [[count for _, count in group] for group in group_chunks(chunks, pads=True)] == groups


def test_chunks_that_end_prompts_are_apart() -> None:
    chunks = [(sequence(16), 16), (sequence(40), 16), (sequence(48, 32), 16), (sequence(40), 15)]
    groups = group_chunks(chunks, pads=True)
    assert groups == [[chunks[1], chunks[3]], [chunks[0], chunks[2]]]


def test_only_equal_chunks_join_without_padding() -> None:
    chunks = [(sequence(16), 16), (sequence(16), 16), (sequence(15), 15), (sequence(32, 16), 16)]
    groups = group_chunks(chunks, pads=False)
    assert groups == [[chunks[0], chunks[1]], [chunks[3]], [chunks[2]]]
