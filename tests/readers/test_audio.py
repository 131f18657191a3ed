"""Audio files as inputs, compared with soundfile; resampling, and shapes of waveforms."""

from __future__ import annotations

import io
import struct
import sys
from typing import Any

import numpy as np
import pytest
import soundfile

from weft.errors import InputError
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.types import TensorType
from weft.readers.audio import Audio, audio_to_input, read_audio, resample

RAMP = np.linspace(-1, 0.99, 50)
STEREO = np.stack([RAMP, RAMP[::-1]], axis=1)


def spec(dtype: DType, *dims: int | str) -> TensorSpec:
    return TensorSpec("x", dims, TensorType(dtype, dims))


def encode(samples: Any, subtype: str, format: str = "WAV", rate: int = 16000, **options: Any) -> bytes:
    content = io.BytesIO()
    soundfile.write(content, samples, rate, format=format, subtype=subtype, **options)
    return content.getvalue()


def wav(data: bytes, code: int, bits: int, channels: int = 1, rate: int = 16000, size: int = -1) -> bytes:
    """Write a WAV file with a chunk of odd length before the data."""
    width = channels * bits // 8
    form = struct.pack("<HHIIHH", code, channels, rate, rate * width, width, bits)
    chunks = ((b"LIST", b"abc"), (b"fmt ", form))
    body = b"WAVE" + b"".join(
        label + struct.pack("<I", len(chunk)) + chunk + bytes(len(chunk) & 1) for label, chunk in chunks
    )
    body += b"data" + struct.pack("<I", len(data) if size < 0 else size) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("samples", [RAMP, STEREO])
@pytest.mark.parametrize("format", ["WAV", "WAVEX"])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
def test_wav_files_are_read_as_by_soundfile(subtype: str, format: str, samples: Any) -> None:
    content = encode(samples, subtype, format, rate=44100)
    audio = read_audio(content, "f")
    expected, rate = soundfile.read(io.BytesIO(content), always_2d=True)
    np.testing.assert_array_equal(audio.samples, expected)
    assert audio.rate == rate == 44100


@pytest.mark.parametrize(("format", "subtype"), [("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")])
def test_compressed_files(format: str, subtype: str) -> None:
    tone = 0.5 * np.sin(np.arange(16000) / 20)
    audio = read_audio(encode(tone, subtype, format), "f")
    assert audio.rate == 16000
    np.testing.assert_allclose(audio.samples[2000:14000, 0], tone[2000:14000], atol=0.05)


def test_big_endian_files() -> None:
    audio = read_audio(encode(RAMP, "PCM_16", endian="BIG"), "f")
    np.testing.assert_array_equal(audio.samples[:, 0], soundfile.read(io.BytesIO(encode(RAMP, "PCM_16")))[0])


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32"])
def test_pcm_needs_no_extra(subtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode(STEREO, subtype)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert read_audio(content, "f").samples.shape == (50, 2)
    for other in (encode(RAMP, "FLOAT"), encode(RAMP, "PCM_16", "FLAC")):
        with pytest.raises(InputError, match="need soundfile") as caught:
            read_audio(other, "f")
        assert "weft-onnx[audio]" in str(caught.value.hint)


def test_streamed_files_have_no_length() -> None:
    numbers = np.arange(-6, 6, dtype="<i2")
    streamed = read_audio(wav(numbers.tobytes() + b"\1", 1, 16, 3, size=0xFFFFFFFF), "f")
    np.testing.assert_array_equal(streamed.samples, numbers.reshape(4, 3) / 2**15)


def test_values_that_are_not_finite() -> None:
    audio = read_audio(wav(np.array([np.nan, np.inf, -np.inf, 0.5], "<f4").tobytes(), 3, 32), "f")
    assert audio.samples[:, 0].tolist() == [0, 1, -1, 0.5]


def test_files_larger_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.readers.audio.memory_left", lambda: 1000)
    with pytest.raises(InputError, match="too long: only 1,000 bytes"):
        read_audio(encode(np.zeros(200_000), "PCM_16", "FLAC"), "f")


@pytest.mark.parametrize(
    "content",
    [
        b"RIFF",
        b"RIFF\0\0\0\0WAVE",
        b"ID3\4",
        wav(b"", 1, 16),
        wav(b"\0\0", 1, 72),
        wav(b"\0\0", 2, 16),
        wav(b"\0\0", 1, 16, rate=0),
        wav(bytes(8), 1, 16, channels=0),
        wav(b"\0\0", 1, 16)[:30],
        encode(RAMP, "PCM_16", "FLAC")[:60],
        b"RIFF\0\0\0\0WAVEdata\4\0\0\0abcd",
    ],
)
def test_files_that_are_no_audio(content: bytes) -> None:
    with pytest.raises(InputError, match=r"^f: "):
        read_audio(content, "f")


@pytest.mark.parametrize(("rate", "new_rate"), [(44100, 16000), (8000, 16000), (48000, 16000), (16000, 11025)])
def test_resampling_keeps_tones(rate: int, new_rate: int) -> None:
    times = np.arange(rate // 4) / rate
    high = 0.35 * min(rate, new_rate)
    resampled = resample(np.sin(2000 * np.pi * times) + 0.5 * np.sin(2 * np.pi * high * times), rate, new_rate)
    new_times = np.arange(len(resampled)) / new_rate
    expected = np.sin(2000 * np.pi * new_times) + 0.5 * np.sin(2 * np.pi * high * new_times)
    assert len(resampled) == -(-len(times) * new_rate // rate)
    np.testing.assert_allclose(resampled[300:-300], expected[300:-300], atol=1e-4)
    if new_rate < rate:
        above = resample(np.sin(2 * np.pi * 0.75 * new_rate * times), rate, new_rate)
        assert np.abs(above[300:-300]).max() < 1e-3


def convert(length: int, *dims: int | str, **sizes: int) -> tuple[np.ndarray[Any, Any], str]:
    audio = Audio(np.arange(1, length + 1)[:, None] / 1000, 16000, "16 bit")
    return audio_to_input(audio, spec(DType.float32, *dims), "f", 16000, sizes)


def test_shapes_of_waveforms() -> None:
    for dims, expected in (
        (("t",), (90,)),
        (("n", "t"), (1, 90)),
        ((1, 1, "t"), (1, 1, 90)),
        (("n", "t", 1), (1, 90, 1)),
    ):
        array, note = convert(90, *dims)
        assert array.shape == expected
        np.testing.assert_allclose(array.reshape(-1), np.arange(1, 91) / 1000, rtol=1e-6)
        assert "chunk" not in note
    chunks, note = convert(90, "n", 40)
    assert chunks.shape == (3, 40)
    assert chunks[2, 10:].max() == 0
    assert "3 chunks of 40" in note
    first, note = convert(90, 1, 40)
    assert first.shape == (1, 40)
    assert "only the first 40 of 90" in note
    padded, note = convert(90, 100)
    assert padded.shape == (100,)
    assert "silence" in note
    with pytest.raises(InputError, match="not that of a waveform"):
        convert(90, 1, 80, 3000)
    with pytest.raises(InputError, match="not a waveform"):
        audio_to_input(Audio(np.ones((3, 1)), 8000, "8 bit"), spec(DType.string, "n"), "f", None, {})
    edges = Audio(np.array([[-1.0], [1.0]]), 8000, "8 bit")
    integers, _ = audio_to_input(edges, spec(DType.int16, "n"), "f", None, {})
    assert integers.tolist() == [-32768, 32767]
