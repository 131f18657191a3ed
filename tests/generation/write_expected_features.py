"""Write expected_features.json: log-mel features of transformers' WhisperFeatureExtractor for a chirp.

    python tests/generation/write_expected_features.py

Runs where transformers is installed. Its NumPy implementation is the oracle: the one in torch rounds to float32.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from transformers import WhisperFeatureExtractor

FILE = Path(__file__).with_name("expected_features.json")
FRAMES = (0, 1, 50, 119, 120, 121, 300, 2999)


def main() -> None:
    times = np.arange(19200) / 16000
    chirp = (0.3 * np.sin(2 * np.pi * (100 + 2500 * times) * times)).astype(np.float32)
    padded = np.zeros((1, 480000), np.float32)
    padded[0, : len(chirp)] = chirp
    expected = {}
    for mels in (80, 128):
        extractor = WhisperFeatureExtractor(feature_size=mels)
        features = extractor._np_extract_fbank_features(padded, "cpu")[0]
        expected[str(mels)] = {frame: [round(float(x), 7) for x in features[:, frame]] for frame in FRAMES}
    FILE.write_text(json.dumps(expected) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
