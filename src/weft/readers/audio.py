"""Audio files as waveforms: PCM WAV with the standard library, all other formats with soundfile."""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping, Sequence
from math import gcd

import numpy as np

from weft.errors import InputError
from weft.ir.arrays import Array
from weft.ir.specs import TensorSpec
from weft.records import dataclass
from weft.runtime.available_memory import memory_left

HIGHEST_RATE = 10_000_000
ZERO_CROSSINGS = 32  # of the low-pass filter, on each side
KAISER = 8.6  # window parameter: the stop band is 80 dB down
MOST_PHASES = 4096
BLOCK = 1 << 14  # frames that are read or resampled at a time
HINT = "convert it to WAV: ffmpeg -i FILE -ar 16000 -ac 1 -c:a pcm_s16le speech.wav"


@dataclass(frozen=True, slots=True)
class Audio:
    """A waveform from -1 to 1, [frames, channels]; `encoding` is that of the file."""

    samples: Array
    rate: int
    encoding: str

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    def __str__(self) -> str:
        channels = self.samples.shape[1]
        layout = {1: "mono", 2: "stereo"}.get(channels, f"{channels} channels")
        return f"{self.rate} Hz, {layout}, {self.encoding}, {self.seconds:.3g} s"


def read_audio(content: bytes, name: str) -> Audio:
    """Decode an audio file; formats other than PCM WAV need soundfile."""
    try:
        audio = _read_pcm(content)
    except (wave.Error, EOFError, RuntimeError):  # RuntimeError: chunk sizes that exceed the file
        audio = _read_with_soundfile(content, name)
    if not audio.samples.size:
        raise InputError(f"{name}: the audio file is empty; it may be truncated", hint=HINT)
    if not 1 <= audio.rate <= HIGHEST_RATE:
        raise InputError(f"{name}: the audio file has an invalid sampling rate of {audio.rate} Hz", hint=HINT)
    return audio


def _read_pcm(content: bytes) -> Audio:
    with wave.open(io.BytesIO(content)) as file:
        channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
        if width > 4:
            raise wave.Error(f"samples of {8 * width} bits")
        data = file.readframes(file.getnframes())
    data = data[: len(data) // (width * channels) * (width * channels)]
    if width == 1:
        samples = np.frombuffer(data, np.uint8) / 128.0 - 1
    elif width == 3:
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        samples = padded.view("<i4")[:, 0] / 2.0**31
    else:
        samples = np.frombuffer(data, f"<i{width}") / 2.0 ** (8 * width - 1)
    return Audio(samples.reshape(-1, channels), rate, f"{8 * width} bit")


def _read_with_soundfile(content: bytes, name: str) -> Audio:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: without libsndfile
        problem = f"{name}: audio files other than PCM WAV need soundfile"
        raise InputError(problem, hint=f"pip install 'weft-onnx[audio]', or {HINT}") from error
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            blocks, size, left = [np.empty((0, file.channels))], 0, memory_left()
            while len(block := file.read(BLOCK, always_2d=True)):  # the header may claim any length
                blocks.append(block)
                size += block.nbytes
                if left is not None and size > left:
                    raise InputError(f"{name}: the waveform is too long: only {left:,} bytes of memory are left")
            samples = np.nan_to_num(np.concatenate(blocks), nan=0.0, posinf=1.0, neginf=-1.0)
            return Audio(samples, file.samplerate, file.subtype_info)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{name}: not a readable audio file: {error}", hint=HINT) from error


def resample(samples: Array, rate: int, new_rate: int) -> Array:
    """Convert a waveform to another sampling rate with a windowed sinc filter."""
    common = gcd(rate, new_rate)
    up, down = new_rate // common, rate // common
    if up > MOST_PHASES:
        raise InputError(f"cannot resample {rate} Hz to {new_rate} Hz", hint="choose a common rate such as 16000")
    stretch = max(1.0, down / up)
    reach = int(np.ceil(ZERO_CROSSINGS * stretch))
    padded = np.concatenate([np.zeros(reach), samples, np.zeros(reach + 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    count = -(-len(samples) * up // down)
    result = np.empty(count)
    offsets = np.arange(-reach, reach + 1)
    for phase in range(min(up, count)):
        positions = np.arange(phase, count, up, dtype=np.int64) * down
        distance = (offsets - (phase * down % up) / up) / stretch
        inside = np.clip(1 - (distance / ZERO_CROSSINGS) ** 2, 0, None)
        taps = np.sinc(distance) * np.i0(KAISER * np.sqrt(inside)) / np.i0(KAISER) / stretch
        taps /= taps.sum()
        for start in range(0, len(positions), BLOCK):
            block = positions[start : start + BLOCK]
            result[phase + start * up : phase + (start + len(block) - 1) * up + 1 : up] = windows[block // up] @ taps
    return result


def audio_to_input(
    audio: Audio, spec: TensorSpec, name: str, rate: int | None, sizes: Mapping[str, int]
) -> tuple[Array, str]:
    """Convert audio to an input's rate, type and shape, and say how."""
    notes = [f"{name}: {audio}"]
    samples = audio.samples.mean(axis=1)
    if audio.samples.shape[1] > 1:
        notes.append(f"mean of {audio.samples.shape[1]} channels")
    if rate is not None and rate != audio.rate:
        samples = resample(samples, audio.rate, rate)
        notes.append(f"resampled to {rate} Hz")
    elif rate is None:
        notes.append("not resampled (most speech models expect --rate 16000)")
    element = spec.element
    if element is None or not (element.is_float or element.is_integer) or spec.shape is None:
        raise InputError(f"{name}: input {spec.name!r} takes {spec.type}, which is not a waveform")
    if element.is_integer:
        limits = np.iinfo(np.int16 if element.numpy.itemsize > 1 else np.int8)
        samples = np.clip(np.round(samples * -float(limits.min)), limits.min, limits.max)
        notes.append(f"integers from {limits.min} to {limits.max}")
    array, shape_notes = _fit_shape(samples, spec, name, sizes)
    return array.astype(element.numpy), ", ".join([*notes, *shape_notes])


def _fit_shape(samples: Array, spec: TensorSpec, name: str, sizes: Mapping[str, int]) -> tuple[Array, list[str]]:
    """Shape a waveform as [T], [N, T], [N, 1, T] or [N, T, 1]; a fixed T makes chunks."""
    shape = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape or ()]
    axis = _time_axis(shape)
    if axis is None or any(dim != 1 for index, dim in enumerate(shape) if index not in (0, axis)):
        declared = ", ".join(map(str, spec.shape or ()))
        problem = f"{name}: input {spec.name!r} has the shape ({declared}), which is not that of a waveform"
        raise InputError(problem, hint="compute the features that it takes, and pass them as .npy")
    length = shape[axis]
    if not isinstance(length, int):
        return samples.reshape([-1 if index == axis else 1 for index in range(len(shape))]), []
    chunks = -(-len(samples) // length)
    batch = shape[0] if axis else 1
    count = chunks if isinstance(batch, str) else batch
    padded = np.zeros(max(chunks, count) * length)
    padded[: len(samples)] = samples
    notes = [f"padded with silence to {count * length} samples"] if len(samples) < count * length else []
    if count > 1:
        notes.insert(0, f"in {count} chunks of {length} samples, as a batch")
    elif len(samples) > length:
        notes.append(f"only the first {length} of {len(samples)} samples, since the input is fixed to that length")
    inner = [length if index == axis else 1 for index in range(1, len(shape))] if axis else []
    return padded[: count * length].reshape([count, *inner] if axis else [length]), notes


def _time_axis(shape: Sequence[int | str]) -> int | None:
    """Return the only axis, besides the batch, whose size is not 1."""
    axes = [index for index, dim in enumerate(shape) if dim != 1 and (index or len(shape) == 1)]
    return axes[0] if len(axes) == 1 else None
