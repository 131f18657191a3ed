"""synheart-emotion classifies emotions from intervals between heartbeats, with random forests."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
from script_output import print_results
from synheart_emotion import EmotionConfig, EmotionEngine

MODELS = {"extratrees_w60s5_binary_v1_0": 60, "extratrees_w120s5_binary_v1_0": 120,
          "extratrees_w120s60_binary_v1_0": 120}  # fmt: skip


def results() -> list[object]:
    emotions: list[object] = []
    for model, window in MODELS.items():
        for rate, spread in ((58, 60), (75, 35), (110, 8)):
            engine = EmotionEngine(EmotionConfig(model_id=model, window_seconds=window))
            generator = np.random.default_rng(rate)
            for second in range(window - 1, 0, -1):  # the package counts back from the present
                beats = generator.normal(60000 / rate, spread, 1 + second % 2).tolist()
                engine.push(rate, beats, datetime.now() - timedelta(seconds=second))
            emotions += [[result.emotion, result.probabilities] for result in engine.consume_ready()]
    return emotions


if __name__ == "__main__":
    print_results(results)
