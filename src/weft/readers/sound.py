"""WAV files as waveforms: PCM of 8 to 32 bits, floats, A-law and µ-law, any number of channels, any rate."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import gcd

import numpy as np

from weft.errors import InputError
from weft.ir.arrays import Array
from weft.ir.specs import TensorSpec
from weft.records import dataclass

PCM, FLOAT, A_LAW, MU_LAW, EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
MOST_CHANNELS = 1024
HIGHEST_RATE = 10_000_000
ZERO_CROSSINGS = 32  # of the low-pass on each side
KAISER = 8.6  # its window: what passes that should not is 80 dB down
MOST_PHASES = 4096
HINT = "give a WAV file: ffmpeg -i FILE -ar 16000 -ac 1 speech.wav"


@dataclass(frozen=True, slots=True)
class Sound:
    """A waveform from -1 to 1, [frames, channels]."""

    samples: Array
    rate: int
    bits: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    def __str__(self) -> str:
        channels = self.samples.shape[1]
        heard = {1: "mono", 2: "stereo"}.get(channels, f"{channels} channels")
        return f"{self.rate} Hz, {heard}, {self.bits} bit, {self.seconds:.3g} s"


def read_wav(content: bytes, name: str) -> Sound:
    """A WAV file; InputError where it is none that can be read."""
    order = ">" if content[:4] == b"RIFX" else "<"
    form: tuple[int, int, int, int] | None = None
    place = 12
    while place + 8 <= len(content):
        label = content[place : place + 4]
        (length,) = struct.unpack_from(f"{order}I", content, place + 4)
        body = content[place + 8 : place + 8 + length]
        if label == b"fmt " and len(body) >= 16:
            code, channels, rate, _, block, bits = struct.unpack_from(f"{order}HHIIHH", body)
            if code == EXTENSIBLE and len(body) >= 26:
                (code,) = struct.unpack_from(f"{order}H", body, 24)
            form = (code, channels, rate, bits)
            _check_form(name, form, block)
        elif label == b"data":
            if form is None:
                raise InputError(f"{name}: the WAV file has data before it says what these are")
            return Sound(_decoded(body, form, order, name), form[2], form[3])
        place += 8 + length + (length & 1)
    raise InputError(f"{name}: the WAV file has no data; it may be cut off", hint=HINT)


def _check_form(name: str, form: tuple[int, int, int, int], block: int) -> None:
    code, channels, rate, bits = form
    known = {PCM: (8, 16, 24, 32), FLOAT: (32, 64), A_LAW: (8,), MU_LAW: (8,)}
    if bits not in known.get(code, ()):
        raise InputError(f"{name}: a WAV file of format {code} with {bits} bits, which weft does not read", hint=HINT)
    if not 1 <= channels <= MOST_CHANNELS or not 1 <= rate <= HIGHEST_RATE:
        raise InputError(f"{name}: the WAV file says {channels} channels at {rate} Hz, which cannot be")
    if block not in (0, channels * bits // 8):
        raise InputError(f"{name}: frames of {block} bytes are not what {channels} channels of {bits} bits take")


def _decoded(body: bytes, form: tuple[int, int, int, int], order: str, name: str) -> Array:
    code, channels, _, bits = form
    width = bits // 8
    frames = len(body) // (width * channels)
    if frames == 0:
        raise InputError(f"{name}: the WAV file is empty")
    body = body[: frames * width * channels]
    if code == FLOAT:
        with np.errstate(invalid="ignore"):
            samples = np.frombuffer(body, f"{order}f{width}").astype(np.float64)
    elif code in (A_LAW, MU_LAW):
        samples = (_a_law if code == A_LAW else _mu_law)(np.frombuffer(body, np.uint8).astype(np.int64))
    elif bits == 8:
        samples = (np.frombuffer(body, np.uint8).astype(np.float64) - 128) / 128
    elif bits == 24:
        parts = np.frombuffer(body, np.uint8).reshape(-1, 3)
        low, middle, high = (parts[:, axis].astype(np.int32) for axis in ((0, 1, 2) if order == "<" else (2, 1, 0)))
        samples = ((high << 24 | middle << 16 | low << 8) >> 8) / 2.0**23
    else:
        samples = np.frombuffer(body, f"{order}i{width}") / 2.0 ** (bits - 1)
    return np.asarray(np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0).reshape(frames, channels))


def _mu_law(codes: Array) -> Array:
    """ITU-T G.711."""
    codes = ~codes & 0xFF
    magnitude = (((codes & 0x0F) << 3) + 0x84 << (codes >> 4 & 7)) - 0x84
    return np.where(codes & 0x80, -magnitude, magnitude) / 2.0**15


def _a_law(codes: Array) -> Array:
    """ITU-T G.711."""
    codes = codes ^ 0x55
    exponent, mantissa = codes >> 4 & 7, (codes & 0x0F) << 4
    magnitude = np.where(exponent == 0, mantissa + 8, mantissa + 0x108 << np.maximum(exponent - 1, 0))
    return np.where(codes & 0x80, magnitude, -magnitude) / 2.0**15


def resampled(samples: Array, rate: int, wanted: int) -> Array:
    """A waveform at another rate, without what the lower of both rates cannot carry."""
    shared = gcd(rate, wanted)
    up, down = wanted // shared, rate // shared
    if up > MOST_PHASES:
        raise InputError(f"--rate {wanted}: {rate} Hz and {wanted} Hz share no step", hint="use a usual rate")
    stretch = max(1.0, down / up)
    reach = int(np.ceil(ZERO_CROSSINGS * stretch))
    padded = np.concatenate([np.zeros(reach), samples, np.zeros(reach + 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    count = -(-len(samples) * up // down)
    result = np.empty(count)
    offsets = np.arange(-reach, reach + 1)
    for phase in range(min(up, count)):
        places = np.arange(phase, count, up, dtype=np.int64) * down
        distance = (offsets - (phase * down % up) / up) / stretch
        inside = np.clip(1 - (distance / ZERO_CROSSINGS) ** 2, 0, None)
        taps = np.sinc(distance) * np.i0(KAISER * np.sqrt(inside)) / np.i0(KAISER) / stretch
        taps /= taps.sum()
        for start in range(0, len(places), 1 << 14):
            some = places[start : start + (1 << 14)]
            result[phase + start * up : phase + (start + len(some) - 1) * up + 1 : up] = windows[some // up] @ taps
    return result


def sound_array(
    sound: Sound, spec: TensorSpec, name: str, rate: int | None, sizes: Mapping[str, int]
) -> tuple[Array, str]:
    """A sound as an input, and what was done to it."""
    told = [f"{name}: {sound}"]
    samples = sound.samples.mean(axis=1)
    if sound.samples.shape[1] > 1:
        told.append(f"the mean of {sound.samples.shape[1]} channels")
    if rate is not None and rate != sound.rate:
        samples = resampled(samples, sound.rate, rate)
        told.append(f"resampled to {rate} Hz")
    elif rate is None:
        told.append("its rate left as it is (--rate 16000 is what most models of speech want)")
    element = spec.element
    if element is None or not (element.is_float or element.is_integer) or spec.shape is None:
        raise InputError(f"{name}: input {spec.name!r} takes {spec.type}, and no waveform")
    if element.is_integer:
        limits = np.iinfo(np.int16 if element.numpy.itemsize > 1 else np.int8)
        samples = np.clip(np.round(samples * -float(limits.min)), limits.min, limits.max)
        told.append(f"whole numbers up to {limits.max}")
    shaped, how = _shaped(samples, spec, name, sizes)
    return shaped.astype(element.numpy), ", ".join([*told, *how])


def _shaped(samples: Array, spec: TensorSpec, name: str, sizes: Mapping[str, int]) -> tuple[Array, list[str]]:
    """Along the one axis that is long: [T], [N, T], [N, 1, T] or [N, T, 1]; in chunks where that one is fixed."""
    shape = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape or ()]
    axis = _time_axis(shape)
    if axis is None or any(dim != 1 for place, dim in enumerate(shape) if place not in (0, axis)):
        declared = ", ".join(map(str, spec.shape or ()))
        problem = f"{name}: input {spec.name!r} has the shape ({declared}), which is none of a waveform"
        raise InputError(problem, hint="give features that were computed from the sound, as .npy")
    length = shape[axis]
    if not isinstance(length, int):
        return samples.reshape([-1 if place == axis else 1 for place in range(len(shape))]), []
    chunks = -(-len(samples) // length)
    batch = shape[0] if axis else 1
    held = chunks if isinstance(batch, str) else batch
    padded = np.zeros(max(chunks, held) * length)
    padded[: len(samples)] = samples
    how = [f"filled up with silence to {held * length} samples"] if len(samples) < held * length else []
    if held > 1:
        how.insert(0, f"in {held} chunks of {length} samples, as a batch")
    elif len(samples) > length:
        how.append(f"only the first {length} of {len(samples)} samples, which are what the model takes at once")
    rest = [length if place == axis else 1 for place in range(1, len(shape))] if axis else []
    return padded[: held * length].reshape([held, *rest] if axis else [length]), how


def _time_axis(shape: Sequence[int | str]) -> int | None:
    """The last dim that is not 1, and not the batch's."""
    behind = [place for place, dim in enumerate(shape) if dim != 1 and (place or len(shape) == 1)]
    if len(behind) == 1:
        return behind[0]
    return None
