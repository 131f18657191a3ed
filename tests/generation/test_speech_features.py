"""Log-mel features are those of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.generation.speech_features import SpeechFormat, read_speech_format

EXPECTED = json.loads(Path(__file__).with_name("expected_features.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("mels", [80, 128])
def test_log_mel_agrees_with_transformers(mels: int) -> None:
    times = np.arange(19200) / 16000
    chirp = (0.3 * np.sin(2 * np.pi * (100 + 2500 * times) * times)).astype(np.float32)
    features = SpeechFormat(mels=mels).compute(chirp)
    assert features.shape == (mels, 3000)
    assert features.dtype == np.float32
    for frame, column in EXPECTED[str(mels)].items():
        np.testing.assert_allclose(features[:, int(frame)], column, rtol=0, atol=1e-5)


def test_long_audio_is_split() -> None:
    samples = np.arange(16000 * 65, dtype=np.float32)
    chunks = SpeechFormat(mels=80).split(samples)
    assert [len(chunk) for chunk in chunks] == [480000, 480000, 80000]
    assert np.array_equal(np.concatenate(chunks), samples)


def test_format_is_read(tmp_path: Path) -> None:
    fields = {"feature_size": 128, "sampling_rate": 8000, "chunk_length": 10, "hop_length": 80, "nb_max_frames": 1000}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields), encoding="utf-8")
    speech = read_speech_format(tmp_path, takes_samples=False)
    assert (speech.mels, speech.rate, speech.chunk, speech.hop) == (128, 8000, 80000, 80)
    assert speech.compute(np.zeros(100)).shape == (128, 1000)
    samples = read_speech_format(tmp_path, takes_samples=True)
    assert samples.compute(np.ones(100)).tolist() == [1.0] * 100


def test_contradiction_is_refused(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"nb_max_frames": 7}', encoding="utf-8")
    with pytest.raises(weft.ModelError, match="nb_max_frames is 7"):
        read_speech_format(tmp_path, takes_samples=False)
