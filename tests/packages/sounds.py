"""Sounds made for the packages that listen: vowels of a voice between pauses, in a little noise."""

from __future__ import annotations

from typing import Any

import numpy as np

RATE = 16000
VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))
"""The first three formants of a, i, u, e and o, in Hz."""


def speech(seconds: float = 1.5, seed: int = 0) -> np.ndarray[Any, Any]:
    """A voice of some 120 Hz that goes from vowel to vowel, several a second."""
    generator = np.random.default_rng(seed)
    count = int(seconds * RATE)
    time = np.arange(count) / RATE
    pitch = 120 + 15 * np.sin(2 * np.pi * 2.1 * time) + np.cumsum(generator.normal(0, 0.02, count))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    corners = np.linspace(0, seconds, int(seconds * 6) + 2)
    chosen = np.array(VOWELS, float)[generator.integers(0, len(VOWELS), len(corners))]
    sound = np.zeros(count)
    for harmonic in range(1, 32):
        frequency = harmonic * pitch
        strength = np.zeros(count)
        for formant in range(3):
            centre = np.interp(time, corners, chosen[:, formant])
            strength += 0.5**formant / (1 + ((frequency - centre) / (60 + 30 * formant)) ** 2)
        sound += strength / harmonic**0.5 * np.sin(harmonic * phase)
    syllables = np.clip(0.6 + 0.6 * np.sin(2 * np.pi * 3.7 * time), 0.05, 1)
    edges = np.clip(np.minimum(time, seconds - time) / 0.05, 0, 1)
    return 0.5 * sound / np.abs(sound).max() * syllables * edges


def conversation(seed: int = 0) -> np.ndarray[Any, Any]:
    """Three utterances with pauses of a second around each."""
    generator = np.random.default_rng(seed)
    pause = np.zeros(RATE)
    parts = [pause, speech(1.5, seed), pause, speech(0.8, seed + 1), pause, speech(2.2, seed + 2), pause]
    sound = np.concatenate(parts)
    return (sound + generator.normal(0, 0.002, len(sound))).astype(np.float32)
