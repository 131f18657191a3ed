"""Moonshine, a real speech model: its transcription is that of onnxruntime, and the words that were spoken."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generation.small_encoder_decoders import Oracle

import weft
from weft.readers.audio import read_audio, resample

EXAMPLES = Path(__file__).parents[2] / "examples"
START, END = 1, 2
WORDS = "ever tried ever failed no matter try again fail again fail better"
PARTS = {
    "moonshine_encoder.onnx": "encoder_model.onnx",
    "moonshine_decoder.onnx": "decoder_model_merged.onnx",
    "moonshine_tokenizer.json": "tokenizer.json",
    "beckett.wav": "beckett.wav",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay out the files that `examples/files.py` fetches (pinned, digests checked) as transformers.js does."""
    missing = [name for name in PARTS if not (EXAMPLES / ".models" / name).exists()]
    if missing:
        pytest.skip(f"python examples/files.py {' '.join(missing)}")
    path = tmp_path_factory.mktemp("moonshine")
    for name, part in PARTS.items():
        shutil.copy(EXAMPLES / ".models" / name, path / part)
    config = {
        "model_type": "moonshine",
        "decoder_start_token_id": START,
        "eos_token_id": END,
        "vocab_size": 32768,
        "max_position_embeddings": 194,
    }
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def find_words(text: str) -> str:
    """Return a text without punctuation, which roundings to int8 that flip can change."""
    return " ".join(re.findall(r"[a-z]+", text.lower()))


def test_speech_is_transcribed(folder: Path) -> None:
    with weft.Generator(folder, device="cpu") as generator:
        answer = generator(folder / "beckett.wav")
        assert find_words(answer) == WORDS
        assert answer.finish_reason == "stop"
        assert "".join(generator.stream(folder / "beckett.wav")) == answer
        audio = read_audio((folder / "beckett.wav").read_bytes(), "beckett.wav")
        samples = resample(audio.samples.mean(axis=1), audio.rate, 16000).astype(np.float32)
        assert generator(samples) == answer
        expected: list[int] = []

        def choose(logits: Any, _: int) -> int | None:
            expected.append(int(logits.argmax()))
            return None if expected[-1] == END or len(expected) > 60 else expected[-1]

        for _ in Oracle(folder).list_logits({"input_values": samples[None]}, [START], choose):
            pass
        assert find_words(generator.tokenizer.decode(expected)) == WORDS
