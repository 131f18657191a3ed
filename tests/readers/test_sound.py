"""Sound as inputs: WAV files written byte by byte, and tones that must stay what they are at another rate."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from weft.errors import InputError
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.types import TensorType
from weft.readers.sound import Sound, read_wav, resampled, sound_array

RAMP = np.linspace(-1, 0.99, 50)


def spec(dtype: DType, *dims: int | str) -> TensorSpec:
    return TensorSpec("x", dims, TensorType(dtype, dims))


def wav(
    data: bytes, code: int, bits: int, channels: int = 1, rate: int = 16000, order: str = "<", size: int = -1
) -> bytes:
    """A file with a chunk of odd length before the data."""
    width = channels * bits // 8
    form = struct.pack(f"{order}HHIIHH", code, channels, rate, rate * width, width, bits)
    if code == 0xFFFE:
        form += struct.pack(f"{order}HHI", 22, bits, 0) + struct.pack("<H", 1) + bytes(14)
    parts = ((b"LIST", b"abc"), (b"fmt ", form))
    body = b"WAVE" + b"".join(
        label + struct.pack(f"{order}I", len(part)) + part + bytes(len(part) & 1) for label, part in parts
    )
    body += b"data" + struct.pack(f"{order}I", len(data) if size < 0 else size) + data
    return (b"RIFF" if order == "<" else b"RIFX") + struct.pack(f"{order}I", len(body)) + body


@pytest.mark.parametrize("order", "<>")
def test_numbers_of_all_widths(order: str) -> None:
    whole = {16: 2**15, 32: 2**31}
    for bits, scale in whole.items():
        numbers = np.floor(RAMP * scale)
        found = read_wav(wav(numbers.astype(f"{order}i{bits // 8}").tobytes(), 1, bits, order=order), "f")
        np.testing.assert_allclose(found.samples[:, 0], numbers / scale)
    for width in (4, 8):
        found = read_wav(wav(RAMP.astype(f"{order}f{width}").tobytes(), 3, 8 * width, order=order), "f")
        np.testing.assert_allclose(found.samples[:, 0], RAMP, rtol=1e-7)
    numbers = np.floor(RAMP * 2**23).astype(np.int64)
    parts = [int(number).to_bytes(3, "little" if order == "<" else "big", signed=True) for number in numbers]
    found = read_wav(wav(b"".join(parts), 1, 24, order=order), "f")
    np.testing.assert_allclose(found.samples[:, 0], numbers / 2**23)
    found = read_wav(wav(bytes(range(256)), 1, 8, order=order), "f")
    np.testing.assert_allclose(found.samples[:, 0], np.arange(-128, 128) / 128)


def test_codes_of_telephones() -> None:
    """Some of the values that ITU-T G.711 states."""
    mu = read_wav(wav(bytes([0xFF, 0x7F, 0x80, 0x00, 0xF0]), 7, 8), "f").samples[:, 0] * 2**15
    np.testing.assert_array_equal(mu, [0, 0, 32124, -32124, 120])
    a = read_wav(wav(bytes([0xD5, 0x55, 0xAA, 0x2A]), 6, 8), "f").samples[:, 0] * 2**15
    np.testing.assert_array_equal(a, [8, -8, 32256, -32256])


def test_channels_and_lengths_that_are_not_known() -> None:
    pairs = np.stack([RAMP, -RAMP, RAMP], 1).astype("<f4")
    found = read_wav(wav(pairs.tobytes(), 3, 32, 3), "f")
    np.testing.assert_array_equal(found.samples, pairs)
    streamed = read_wav(wav(pairs.tobytes() + b"\1", 3, 32, 3, size=0xFFFFFFFF), "f")
    np.testing.assert_array_equal(streamed.samples, pairs)
    extended = read_wav(wav(struct.pack("<2h", 16384, -16384), 0xFFFE, 16), "f")
    np.testing.assert_array_equal(extended.samples[:, 0], [0.5, -0.5])


@pytest.mark.parametrize(
    "content",
    [
        b"RIFF",
        b"RIFF\0\0\0\0WAVE",
        wav(b"", 1, 16),
        wav(b"\0\0", 1, 12),
        wav(b"\0\0", 2, 16),
        wav(b"\0\0", 1, 16, rate=0),
        wav(bytes(8), 1, 16, channels=0),
        wav(b"\0\0", 1, 16)[:30],
        b"RIFF\0\0\0\0WAVEdata\4\0\0\0abcd",
    ],
)
def test_files_that_are_none(content: bytes) -> None:
    with pytest.raises(InputError, match=r"^f: "):
        read_wav(content, "f")


@pytest.mark.parametrize(("rate", "wanted"), [(44100, 16000), (8000, 16000), (48000, 16000), (16000, 11025)])
def test_tones_stay_at_another_rate(rate: int, wanted: int) -> None:
    times = np.arange(rate // 4) / rate
    high = 0.35 * min(rate, wanted)
    found = resampled(np.sin(2000 * np.pi * times) + 0.5 * np.sin(2 * np.pi * high * times), rate, wanted)
    places = np.arange(len(found)) / wanted
    expected = np.sin(2000 * np.pi * places) + 0.5 * np.sin(2 * np.pi * high * places)
    assert len(found) == -(-len(times) * wanted // rate)
    np.testing.assert_allclose(found[300:-300], expected[300:-300], atol=1e-4)
    if wanted < rate:
        above = resampled(np.sin(2 * np.pi * 0.75 * wanted * times), rate, wanted)
        assert np.abs(above[300:-300]).max() < 1e-3


def shaped(length: int, *dims: int | str, **sizes: int) -> tuple[np.ndarray[Any, Any], str]:
    sound = Sound(np.arange(1, length + 1)[:, None] / 1000, 16000, 16)
    return sound_array(sound, spec(DType.float32, *dims), "f", 16000, sizes)


def test_shapes_of_waveforms() -> None:
    for dims, expected in (
        (("t",), (90,)),
        (("n", "t"), (1, 90)),
        ((1, 1, "t"), (1, 1, 90)),
        (("n", "t", 1), (1, 90, 1)),
    ):
        found, told = shaped(90, *dims)
        assert found.shape == expected
        np.testing.assert_allclose(found.reshape(-1), np.arange(1, 91) / 1000, rtol=1e-6)
        assert "chunk" not in told
    chunks, told = shaped(90, "n", 40)
    assert chunks.shape == (3, 40)
    assert chunks[2, 10:].max() == 0
    assert "3 chunks of 40" in told
    first, told = shaped(90, 1, 40)
    assert first.shape == (1, 40)
    assert "only the first 40 of 90" in told
    padded, told = shaped(90, 100)
    assert padded.shape == (100,)
    assert "silence" in told
    with pytest.raises(InputError, match="none of a waveform"):
        shaped(90, 1, 80, 3000)
    with pytest.raises(InputError, match="no waveform"):
        sound_array(Sound(np.ones((3, 1)), 8000, 8), spec(DType.string, "n"), "f", None, {})
    whole, _ = sound_array(Sound(np.array([[-1.0], [1.0]]), 8000, 8), spec(DType.int16, "n"), "f", None, {})
    assert whole.tolist() == [-32768, 32767]
