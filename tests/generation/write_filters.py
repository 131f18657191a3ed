"""Write filters.json: the tokens that transformers keeps, and the logits after its penalties, for random logits.

Run it with a Python that has torch and transformers:

    python tests/generation/write_filters.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

VOCABULARY = 211
FILTERS: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 300},
    {"top_p": 0.01},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"min_p": 0.05},
    {"min_p": 0.5},
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 2.0, "top_p": 0.9, "typical_p": 0.8},
    {"temperature": 0.3, "top_k": 100, "top_p": 0.99, "min_p": 0.001, "typical_p": 0.95},
]
PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"logit_bias": {"3": 2.5, "17": -4.0}},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "logit_bias": {"3": 2.5, "9": -1.0}},
]


def make_logits(seed: int, scale: float) -> np.ndarray:
    """Draw logits; some are equal, as those of 16-bit models often are."""
    logits = np.random.default_rng(seed).normal(size=VOCABULARY).astype(np.float32) * np.float32(scale)
    return np.round(logits * 8) / 8 if seed % 2 else logits


def make_tokens(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 12, 40).tolist()


def make_processors(options: dict[str, Any]) -> LogitsProcessorList:
    kinds = {
        "logit_bias": lambda bias: SequenceBiasLogitsProcessor({(int(token),): value for token, value in bias.items()}),
        "repetition_penalty": RepetitionPenaltyLogitsProcessor,
        "no_repeat_ngram_size": NoRepeatNGramLogitsProcessor,
        "temperature": TemperatureLogitsWarper,
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
        "min_p": MinPLogitsWarper,
        "typical_p": TypicalLogitsWarper,
    }
    return LogitsProcessorList([kind(options[name]) for name, kind in kinds.items() if name in options])


def main() -> None:
    cases = []
    for seed in range(8):
        for options in (*FILTERS, *PENALTIES):
            scale = (1.0, 3.0, 6.0)[seed % 3]
            tokens = make_tokens(seed)
            # In float64: transformers adds up float32 probabilities one by one, with an error of its own.
            logits = torch.tensor(make_logits(seed, scale), dtype=torch.float64)[None]
            scores = make_processors(options)(torch.tensor([tokens]), logits)[0].numpy()
            bits = sum(1 << int(token) for token in np.flatnonzero(scores > -np.inf))
            case = {"seed": seed, "scale": scale, "options": options, "tokens": f"{bits:x}"}
            if options in PENALTIES:
                case["changes"] = {
                    int(token): float(scores[token]) if scores[token] > -np.inf else None
                    for token in np.flatnonzero(scores != logits[0].numpy())
                }
            cases.append(case)
    lines = ",\n".join(json.dumps(case) for case in cases)
    Path(__file__).with_name("filters.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
