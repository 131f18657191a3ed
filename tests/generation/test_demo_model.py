"""The language model that ships with weft has the logits of onnxruntime, and the same greedy answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from generation.agreement import GENERATOR_MODES, MODES, Comparison, find_decoder_file

import weft

FOLDER = Path(weft.__file__).parent / "generation" / "demo_model"
MOST_BYTES = 1_300_000
PROMPTS = (
    "<|user|>What does list.append do?<|end|><|assistant|>",
    "<|user|>What does math.sqrt do?<|end|><|assistant|>",
    "<|user|>What is pathlib.Path?<|end|><|assistant|>",
)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return Comparison(find_decoder_file(FOLDER))


@pytest.mark.parametrize("mode", [*MODES, *GENERATOR_MODES])
def test_logits_agree_with_onnxruntime(comparison: Comparison, mode: str) -> None:
    agreement = comparison.measure(mode)
    assert agreement.largest > 5
    assert agreement.is_within(1e-4)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_answers_are_those_of_onnxruntime(comparison: Comparison, prompt: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    ends = json.loads((FOLDER / "genai_config.json").read_text(encoding="utf-8"))["model"]["eos_token_id"]
    tokens = tokenizer.encode(prompt).ids
    state = comparison.model.state(capacity=128)
    answer: list[int] = []
    while len(answer) < 40 and not (answer and answer[-1] in ends):
        new = answer[-1:] or tokens
        feeds = {"input_ids": np.array([new]), "attention_mask": np.ones((1, state.length + len(new)), np.int64)}
        answer.append(int(comparison.model.run(feeds, state=state)["logits"][0, -1].argmax()))
    sequence = [*tokens, *answer]
    length = len(sequence)
    feeds = {"input_ids": np.array([sequence]), "attention_mask": np.ones((1, length), np.int64)}
    caches = {name: np.zeros((1, heads, 0, size), t) for name, (heads, size, t) in comparison.decoder.caches.items()}
    expected = comparison.oracle(feeds | caches)["logits"][0, len(tokens) - 1 : -1].argmax(-1)
    assert answer == expected.tolist()
    assert re.fullmatch(r"[A-Z][ -~\n]+", tokenizer.decode(answer))


def test_folder_is_small_and_complete() -> None:
    files = {file.name: file.stat().st_size for file in FOLDER.iterdir() if file.is_file()}
    assert files.keys() == {
        "NOTICE.txt",
        "genai_config.json",
        "model.onnx",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) < MOST_BYTES


def test_vocabulary_has_the_size_of_the_logits(comparison: Comparison) -> None:
    tokenizer = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    assert len(tokenizer["model"]["vocab"]) == comparison.decoder.vocabulary
