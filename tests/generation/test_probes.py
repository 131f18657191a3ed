"""What a decoder's steps allow, tested on its own steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import weft
from weft.generation.decoder import Decoder, Step
from weft.generation.probes import takes_chunks
from weft.ir.tensors import DeviceTensor


class WholePrompts(Decoder):
    """A decoder whose mask fits whole prompts and single tokens only, or whose chunks are rounded otherwise."""

    block_size, blocks, vocabulary = 128, 1, 50

    def __init__(self, error: bool, difference: float) -> None:
        self._error = error
        self._difference = difference

    def run(self, steps: Sequence[Step], tokens: DeviceTensor | None = None) -> Any:  # noqa: ARG002
        (step,) = steps
        is_chunk = step.past > 0 and len(step.tokens) > 1
        if is_chunk and self._error:
            raise weft.InputError("sizes 3 and 8 differ")
        logits = np.array([[token + column for column in range(50)] for token in step.tokens], np.float32)
        return logits[-step.selected :] + (self._difference if is_chunk else 0)

    def memory(self, rows: int, tokens: int, past: int) -> None: ...


@pytest.mark.parametrize(
    ("error", "difference", "keeps_bits", "expected"),
    [(False, 0.0, True, True), (False, 0.5, True, False), (False, 0.5, False, True), (True, 0.0, False, False)],
)
def test_takes_chunks(error: bool, difference: float, keeps_bits: bool, expected: bool) -> None:
    assert takes_chunks(WholePrompts(error, difference), keeps_bits=keeps_bits) == expected
