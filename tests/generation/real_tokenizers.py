"""The tokenizers of Qwen3, Llama 3.2 and Gemma 3 for tests, which skip those that are not fetched."""

from __future__ import annotations

from functools import cache

import pytest
from models.tokenizers import TOKENIZERS

from weft.generation.tokenizer import Tokenizer

REAL = [tokenizer.model for tokenizer in TOKENIZERS]


@cache
def open_real_tokenizer(model: str) -> Tokenizer:
    """Open a fetched tokenizer, once for all tests."""
    (tokenizer,) = (entry for entry in TOKENIZERS if entry.model == model)
    if tokenizer.missing:
        pytest.skip(tokenizer.missing)
    return Tokenizer.open(tokenizer.folder)
