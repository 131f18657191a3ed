"""`Source`: what the encoder of an encoder–decoder reads for one request, and how the decoder's answer begins.

`SourceReader` makes sources from what users pass: a text or token ids (T5, BART), samples or an audio file (Whisper,
Moonshine), or an array that is ready for the encoder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import InputError, UnsupportedModelError, short_repr
from weft.generation.answer_start import AnswerStart, AnswerStarts
from weft.generation.model_folder import ModelFolder
from weft.generation.speech_features import MELS, SpeechFormat, read_speech_format
from weft.generation.tokenizer import Tokenizer
from weft.ir.arrays import Array
from weft.readers.audio import read_audio, resample
from weft.readers.content import DataSource, find_source
from weft.threads import cached_property

if TYPE_CHECKING:
    from weft.ir.specs import TensorSpec

TEXT, FEATURES, SAMPLES = "input_ids", "input_features", "input_values"
TOKENS_PER_SECOND = 6.5  # of speech, at most; Moonshine repeats itself beyond
SHORTEST_SECONDS = 0.1
MASK_NAMES = ("attention_mask", "encoder_attention_mask")


@dataclass(eq=False, slots=True)
class Source:
    """The inputs of the encoder for one request, without its masks, and how the answer begins.

    The decoder keeps what it computes once for all sequences of the request in `states` and `cross`.
    """

    inputs: Mapping[str, Array]
    length: int  # of the input's mask
    start: AnswerStart
    max_new_tokens: int | None = None  # where the request does not say
    capacity: int = 0  # tokens of the longest sequence
    states: Any = None
    cross: dict[str, Any] = field(default_factory=dict)


class SourceReader:
    """Makes the sources of requests to one model."""

    def __init__(self, folder: ModelFolder, inputs: Sequence[TensorSpec], tokenizer: Callable[[], Tokenizer]) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        specs = [spec for spec in inputs if spec.name not in MASK_NAMES]
        if len(specs) != 1:
            problem = f"its encoder takes {', '.join(spec.name for spec in specs)}; weft passes one input, and masks"
            raise UnsupportedModelError(
                problem, file=str(folder.encoder), hint="run encoder and decoder with weft.load"
            )
        (self._spec,) = specs
        self._starts = AnswerStarts(folder, tokenizer)

    @property
    def takes_text(self) -> bool:
        return self._spec.name == TEXT

    @property
    def expectation(self) -> str:
        """What users pass as a prompt."""
        if self.takes_text:
            return "a text or a list of token ids"
        return "an array" if self.speech is None else "an array of samples, or the path of an audio file"

    @cached_property
    def speech(self) -> SpeechFormat | None:
        """The format of audio; None if the encoder takes something else."""
        if self._spec.name == SAMPLES and len(self._spec.shape or ()) == 2:
            return read_speech_format(self._folder.path, takes_samples=True)
        has_features = self._spec.name in (FEATURES, self._folder.encoder_names.features)
        if has_features and self._folder.model_type in (None, "whisper"):
            sizes = [size for size in (self._spec.shape or ())[1:2] if isinstance(size, int)]
            return read_speech_format(self._folder.path, takes_samples=False, mels=sizes[0] if sizes else MELS)
        return None

    def is_prompt(self, prompt: object) -> bool:
        """Whether this is one prompt, and not a list of them."""
        if isinstance(prompt, (str, os.PathLike, np.ndarray)):
            return True
        is_list = isinstance(prompt, Sequence) and bool(prompt)
        return self.takes_text and is_list and not isinstance(prompt[0], (str, Sequence))  # type: ignore[index]

    def read(self, prompt: Any, language: str | None = None, task: str | None = None) -> list[Source]:
        """Return the sources of a prompt, several for audio that is longer than a chunk."""
        start = self._starts.make(language, task)
        if self.takes_text:
            return [self._read_text(prompt, start)]
        if isinstance(prompt, np.ndarray) and prompt.ndim > 1:
            return [self._take_array(prompt, start)]
        speech = self.speech
        if speech is None:
            axes = len(self._spec.shape or ())
            problem = f"its encoder takes {self._spec}, which weft cannot compute from {short_repr(prompt)}"
            hint = f"pass an array of {axes} axes, or {axes - 1} without the batch"
            raise InputError(problem, file=str(self._folder.path), hint=hint)
        samples = self._read_samples(prompt, speech)
        return [self._make_speech_source(chunk, speech, start) for chunk in speech.split(samples)]

    def _read_text(self, prompt: Any, start: AnswerStart) -> Source:
        if isinstance(prompt, str):
            tokens = self._tokenizer().encode(prompt)
        elif isinstance(prompt, os.PathLike):
            raise InputError("the model reads text, not files", hint="pass the text: path.read_text()")
        else:
            tokens = [int(token) for token in prompt]
        if not tokens:
            raise InputError("the prompt has no tokens", hint="pass a text that is not empty")
        size = self._folder.vocabulary
        unknown = next((token for token in tokens if token < 0 or (size is not None and token >= size)), None)
        if unknown is not None:
            raise InputError(f"token {unknown} is not one of the vocabulary", file=str(self._folder.path))
        return Source({TEXT: np.array([tokens], self._spec.dtype)}, len(tokens), start)

    def _take_array(self, array: Array, start: AnswerStart) -> Source:
        shape = self._spec.shape or ()
        if array.ndim == len(shape) - 1:
            array = array[None]
        if array.ndim != len(shape) or array.shape[0] != 1:
            problem = f"the encoder takes {self._spec}, not {array.dtype}{list(array.shape)}"
            raise InputError(problem, file=str(self._folder.path), hint="pass one prompt, without a batch")
        return Source({self._spec.name: array.astype(self._spec.dtype, copy=False)}, array.shape[-1], start)

    def _read_samples(self, prompt: Any, speech: SpeechFormat) -> Array:
        if isinstance(prompt, np.ndarray):
            if prompt.dtype.kind != "f":
                problem = f"samples are {prompt.dtype}, not floats from -1 to 1"
                raise InputError(problem, hint="divide 16-bit samples by 32768")
            samples = prompt.astype(np.float32, copy=False)
            if not np.isfinite(samples).all():
                raise InputError("the samples have NaN or infinity", hint="pass floats from -1 to 1")
        else:
            samples = self._read_file(prompt, speech.rate)
        if len(samples) < SHORTEST_SECONDS * speech.rate:
            problem = f"the audio has {len(samples):,} samples, less than {SHORTEST_SECONDS} seconds"
            raise InputError(problem, hint=f"pass samples at {speech.rate:,} Hz")
        return samples

    def _read_file(self, prompt: Any, rate: int) -> Array:
        if not isinstance(prompt, (str, os.PathLike)):
            raise InputError(f"a prompt is {self.expectation}, not {short_repr(prompt)}")
        name = os.fspath(prompt)
        source = find_source(str(Path(name).expanduser()))
        if not isinstance(source, DataSource):
            problem = f"{short_repr(name)} does not exist, and the model transcribes audio files"
            raise InputError(problem, hint="pass the path of a file, or samples as a float32 array")
        audio = read_audio(source.read(), source.name)
        samples = audio.samples.mean(axis=1)
        return (samples if audio.rate == rate else resample(samples, audio.rate, rate)).astype(np.float32)

    def _make_speech_source(self, samples: Array, speech: SpeechFormat, start: AnswerStart) -> Source:
        limit = None
        if speech.mels is None:
            limit = max(1, int(len(samples) / speech.rate * TOKENS_PER_SECOND))
            samples = np.pad(samples, (0, max(0, int(SHORTEST_SECONDS * speech.rate) - len(samples))))
        features = speech.compute(samples)[None].astype(self._spec.dtype, copy=False)
        return Source({self._spec.name: features}, features.shape[-1], start, limit)
