"""Synthetic speech for the scripts: vowels between pauses, with a little noise."""

from __future__ import annotations

from typing import Any

import numpy as np

RATE = 16000
VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))
"""The first three formants of a, i, u, e and o, in Hz."""


def synthesize_speech(seconds: float = 1.5, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return a voice of about 120 Hz with several vowels a second."""
    generator = np.random.default_rng(seed)
    count = int(seconds * RATE)
    time = np.arange(count) / RATE
    pitch = 120 + 15 * np.sin(2 * np.pi * 2.1 * time) + np.cumsum(generator.normal(0, 0.02, count))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    vowel_times = np.linspace(0, seconds, int(seconds * 6) + 2)
    formants = np.array(VOWELS, float)[generator.integers(0, len(VOWELS), len(vowel_times))]
    signal = np.zeros(count)
    for harmonic in range(1, 32):
        frequency = harmonic * pitch
        amplitude = np.zeros(count)
        for number in range(3):
            formant = np.interp(time, vowel_times, formants[:, number])
            amplitude += 0.5**number / (1 + ((frequency - formant) / (60 + 30 * number)) ** 2)
        signal += amplitude / harmonic**0.5 * np.sin(harmonic * phase)
    syllables = np.clip(0.6 + 0.6 * np.sin(2 * np.pi * 3.7 * time), 0.05, 1)
    fade = np.clip(np.minimum(time, seconds - time) / 0.05, 0, 1)
    return 0.5 * signal / np.abs(signal).max() * syllables * fade


def synthesize_conversation(seed: int = 0) -> np.ndarray[Any, Any]:
    """Return three utterances with pauses of a second."""
    generator = np.random.default_rng(seed)
    pause = np.zeros(RATE)
    utterances = [synthesize_speech(seconds, seed + number) for number, seconds in enumerate((1.5, 0.8, 2.2))]
    signal = np.concatenate([pause, utterances[0], pause, utterances[1], pause, utterances[2], pause])
    return (signal + generator.normal(0, 0.002, len(signal))).astype(np.float32)
