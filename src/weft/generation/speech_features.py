"""Features of speech models: Whisper's log-mel spectrogram, or samples as they are.

preprocessor_config.json states the sizes. The mel scale and its filters are those of Slaney's auditory toolbox: linear
up to 1 kHz, logarithmic above, each filter of unit area.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.errors import InvalidModelError
from weft.generation.config_files import read_optional_config
from weft.ir.arrays import Array
from weft.records import dataclass

MELS = 80
LOWEST_POWER = 1e-10
DYNAMIC_RANGE = 8.0  # powers of ten below the loudest
LINEAR_HERTZ, LINEAR_MELS = 1000.0, 15.0  # where the mel scale turns logarithmic
LOG_STEP = np.log(6.4) / 27


@dataclass(frozen=True, slots=True)
class SpeechFormat:
    """What a speech encoder takes: `mels` bins for each hop, or samples if it is None."""

    rate: int = 16_000
    seconds: int = 30  # of a chunk
    mels: int | None = None
    window: int = 400
    hop: int = 160
    normalizes: bool = False  # each chunk to zero mean and unit variance

    @property
    def chunk(self) -> int:
        """The most samples of a chunk."""
        return self.seconds * self.rate

    def split(self, samples: Array) -> list[Array]:
        """Split samples into chunks."""
        return [samples[start : start + self.chunk] for start in range(0, len(samples), self.chunk)]

    def compute(self, samples: Array) -> Array:
        """Return the features of a chunk: [mels, frames], padded with silence, or samples."""
        if self.normalizes:
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
        if self.mels is None:
            return samples.astype(np.float32)
        padded = np.zeros(self.chunk)
        padded[: len(samples)] = samples
        return compute_log_mel(padded, self.rate, self.mels, self.window, self.hop)


def read_speech_format(folder: Path, takes_samples: bool, mels: int = MELS) -> SpeechFormat:
    """Read preprocessor_config.json; missing fields are those of Whisper, with this number of mels."""
    config = read_optional_config(folder / "preprocessor_config.json")
    default = SpeechFormat()
    bins = None if takes_samples else config.integer("feature_size", low=1, high=1024) or mels
    speech = SpeechFormat(
        rate=config.integer("sampling_rate", low=1, high=1 << 20) or default.rate,
        seconds=config.integer("chunk_length", low=1, high=3600) or default.seconds,
        mels=bins,
        window=config.integer("n_fft", low=2, high=1 << 16) or default.window,
        hop=config.integer("hop_length", low=1, high=1 << 16) or default.hop,
        normalizes=bool(config.flag("do_normalize")),
    )
    frames = config.integer("nb_max_frames")
    if bins is not None and frames is not None and frames != speech.chunk // speech.hop:
        problem = f"nb_max_frames is {frames}, and {speech.seconds} s have {speech.chunk // speech.hop} frames"
        raise InvalidModelError(problem, file=str(config.path), hint="correct chunk_length or hop_length")
    return speech


def compute_log_mel(samples: Array, rate: int, mels: int, window: int, hop: int) -> Array:
    """Return the logarithm of mel powers as Whisper scales it, float32 [mels, len(samples) // hop]."""
    padded = np.pad(samples.astype(np.float64), window // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop][: len(samples) // hop]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    powers = np.abs(np.fft.rfft(frames * hann, axis=1)) ** 2
    logs = np.log10(np.maximum(powers @ compute_mel_filters(rate, mels, window), LOWEST_POWER))
    scaled: Array = (np.maximum(logs, logs.max() - DYNAMIC_RANGE) + 4) / 4
    return np.ascontiguousarray(scaled.T, np.float32)


def compute_mel_filters(rate: int, mels: int, window: int) -> Array:
    """Return triangular filters, [window // 2 + 1, mels]."""
    frequencies = np.linspace(0, rate / 2, window // 2 + 1)[:, None]
    corners = _mel_to_hertz(np.linspace(0, _hertz_to_mel(rate / 2), mels + 2))
    widths = np.diff(corners)
    rising = (frequencies - corners[:-2]) / widths[:-1]
    falling = (corners[2:] - frequencies) / widths[1:]
    filters: Array = np.maximum(0, np.minimum(rising, falling)) * (2 / (corners[2:] - corners[:-2]))
    return filters


def _hertz_to_mel(hertz: float) -> float:
    if hertz < LINEAR_HERTZ:
        return hertz * LINEAR_MELS / LINEAR_HERTZ
    return float(LINEAR_MELS + np.log(hertz / LINEAR_HERTZ) / LOG_STEP)


def _mel_to_hertz(mels: Array) -> Array:
    linear = mels * LINEAR_HERTZ / LINEAR_MELS
    hertz: Array = np.where(mels < LINEAR_MELS, linear, LINEAR_HERTZ * np.exp(LOG_STEP * (mels - LINEAR_MELS)))
    return hertz
