"""Encoder–decoders: their answers are those of onnxruntime in a loop by hand, in all forms that exporters write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from generation.small_encoder_decoders import (
    END,
    FORMS,
    KINDS,
    LANGUAGES,
    NO_TIMESTAMPS,
    START,
    TASKS,
    VOCABULARY,
    WIDTH,
    Oracle,
    write_encoder_decoder,
    write_genai_whisper,
)

import weft
from weft.generation.answer_start import AnswerStarts
from weft.generation.model_folder import ModelFolder
from weft.generation.speech_features import read_speech_format

Array = np.ndarray[Any, np.dtype[Any]]
SUPPRESSED, FIRST_SUPPRESSED = [20, 21, 22], [23, END]
MULTILINGUAL = {
    "lang_to_id": LANGUAGES,
    "task_to_id": TASKS,
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "forced_decoder_ids": [[1, None], [2, TASKS["transcribe"]]],
    "suppress_tokens": SUPPRESSED,
    "begin_suppress_tokens": FIRST_SUPPRESSED,
}
TEXT_TOKENS = [5, 9, 14, 200, 31, 7]
COUNT = 12


def make_audio(seconds: float, seed: int = 0) -> Array:
    """Return tones that change, with noise."""
    random = np.random.default_rng(seed)
    times = np.arange(int(seconds * 16000)) / 16000
    tones = sum(np.sin(2 * np.pi * random.uniform(100, 3000) * times**power) for power in (1, 1.5, 2))
    return (0.2 * tones + 0.05 * random.normal(size=len(times))).astype(np.float32)


def log_softmax(logits: Array) -> Array:
    shifted = logits.astype(np.float64) - logits.max()
    result: Array = shifted - np.log(np.exp(shifted).sum())
    return result


def restrict(logits: Array, number: int) -> Array:
    """Exclude what the configuration suppresses; `number` counts the tokens of the answer."""
    result: Array = logits.copy()
    result[SUPPRESSED + (FIRST_SUPPRESSED if number == 0 else [])] = -np.inf
    return result


class GreedyLoop:
    """The answer of onnxruntime: the likeliest token at each step, after an edit of the logits."""

    def __init__(
        self,
        folder: Path,
        inputs: dict[str, Array],
        start: list[int],
        edit: Callable[[Array, int], Array] = lambda logits, _: logits,
        count: int = COUNT,
    ) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []

        def choose(logits: Array, position: int) -> int | None:
            edited = edit(logits, position - len(start))
            self.tokens.append(int(edited.argmax()))
            self.logprobs.append(float(log_softmax(edited)[self.tokens[-1]]))
            return None if self.tokens[-1] == END or len(self.tokens) == count else self.tokens[-1]

        for _ in Oracle(folder).list_logits(inputs, start, choose):
            pass


def text_inputs(tokens: list[int]) -> dict[str, Array]:
    return {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), np.int64)}


def speech_inputs(folder: Path, samples: Array) -> dict[str, Array]:
    return {"input_features": read_speech_format(folder, takes_samples=False).compute(samples)[None]}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_answer_agrees_with_onnxruntime(kind: str, form: str, tmp_path: Path) -> None:
    folder = write_encoder_decoder(tmp_path / kind, kind, form, **(MULTILINGUAL if kind == "speech" else {}))
    options = {"max_new_tokens": COUNT, "logprobs": 0}
    with weft.Generator(folder, device="cpu") as generator:
        if kind == "text":
            answer = generator(TEXT_TOKENS, **options)
            expected = GreedyLoop(folder, text_inputs(TEXT_TOKENS), [START])
        else:
            audio = make_audio(0.8)
            answer = generator(audio, language="de", task="translate", **options)
            start = [START, LANGUAGES["<|de|>"], TASKS["translate"], NO_TIMESTAMPS]
            expected = GreedyLoop(folder, speech_inputs(folder, audio), start, restrict)
    assert list(answer.tokens) == expected.tokens
    assert len(set(expected.tokens)) > 3  # a model that repeats one token would show little
    assert [entry.logprob for entry in answer.logprobs] == pytest.approx(expected.logprobs, abs=1e-4)


def test_whisper_of_onnxruntime_genai(tmp_path: Path) -> None:
    folders = write_encoder_decoder(tmp_path / "optimum", "speech", "split"), write_genai_whisper(tmp_path / "genai")
    audio = make_audio(0.8)
    answers = []
    for folder in folders:
        with weft.Generator(folder, device="cpu") as generator:
            answers.append(generator([audio, audio[::-1].copy()], max_new_tokens=COUNT, logprobs=0))
            answers[-1] += generator(audio, max_new_tokens=COUNT, num_beams=3, n=2)
    for optimum, genai in zip(*answers, strict=True):
        assert genai.tokens == optimum.tokens
        expected = [entry.logprob for entry in optimum.logprobs or ()]
        assert [entry.logprob for entry in genai.logprobs or ()] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("vocabulary", "options", "tokens", "forced"),
    [
        (51_865, {"language": "de", "task": "translate"}, (1, 4, 5, 2), ()),
        (51_865, {"language": None, "task": None}, (1,), ((3, 4), (6,), (2,))),
        (51_864, {"language": None, "task": None}, (1, 2), ()),
    ],
)
def test_start_without_a_configuration(
    vocabulary: int,
    options: dict[str, str | None],
    tokens: tuple[int, ...],
    forced: tuple[tuple[int, ...], ...],
    tmp_path: Path,
) -> None:
    """The tokenizer knows how Whisper's answers begin, where genai_config.json does not say it."""
    names = ("<|startoftranscript|>", "<|notimestamps|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>")
    numbers = {name: number for number, name in enumerate(names, 1)} | {"<|0.02|>": 7, "de": 8}
    backend = SimpleNamespace(get_vocab=lambda: numbers)
    tokenizer: Any = SimpleNamespace(id_of=numbers.get, backend=backend)
    facts: dict[str, Any] = {"origin": "onnxruntime-genai", "model_type": "whisper", "vocabulary": vocabulary}
    folder = ModelFolder(tmp_path, "whisper", "encoder-decoder", decoder=tmp_path, start_token=9, **facts)
    start = AnswerStarts(folder, lambda: tokenizer).make(**options)
    assert (start.tokens, start.forced) == (tokens, forced)


def test_translation_begins_with_its_language(tmp_path: Path) -> None:
    options = {"forced_bos_token_id": 40, "bad_words_ids": [[41], [42, 43]]}
    folder = write_encoder_decoder(tmp_path / "model", "text", "split", seed=2, **options)

    def edit(logits: Array, _: int) -> Array:
        result: Array = logits.copy()
        result[41] = -np.inf
        return result

    with weft.Generator(folder, device="cpu") as generator:
        answer = generator(TEXT_TOKENS, max_new_tokens=COUNT)
        assert list(answer.tokens) == GreedyLoop(folder, text_inputs(TEXT_TOKENS), [START, 40], edit).tokens
        token = generator.tokenizer.encode("the", special=False)[0]
        name = generator.tokenizer.text_of(token)
        answer = generator(TEXT_TOKENS, max_new_tokens=COUNT, language=name)
        assert list(answer.tokens) == GreedyLoop(folder, text_inputs(TEXT_TOKENS), [START, token], edit).tokens
        with pytest.raises(weft.InputError, match="knows no language"):
            generator(TEXT_TOKENS, language="no such language")


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder_decoder(tmp_path_factory.mktemp("text") / "model", "text", "merged", seed=1)


@pytest.fixture(scope="module")
def text_generator(text_folder: Path) -> weft.Generator:
    return weft.Generator(text_folder, device="cpu", max_length=64)


@pytest.fixture(scope="module")
def speech_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech") / "model"
    return write_encoder_decoder(folder, "speech", "merged", **MULTILINGUAL)


@pytest.fixture(scope="module")
def speech_generator(speech_folder: Path) -> weft.Generator:
    return weft.Generator(speech_folder, device="cpu")


def test_text_is_encoded(text_generator: weft.Generator) -> None:
    text = "the quick brown fox"
    tokens = text_generator.tokenizer.encode(text)
    assert len(tokens) > 3
    assert text_generator(text, max_new_tokens=5).tokens == text_generator(tokens, max_new_tokens=5).tokens


def test_requests_together_are_as_alone(text_generator: weft.Generator) -> None:
    prompts = [TEXT_TOKENS[:length] for length in (2, 4, 6, 3)]
    alone = [text_generator(prompt, max_new_tokens=8, logprobs=2) for prompt in prompts]
    together = text_generator(prompts, max_new_tokens=8, logprobs=2)
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert [answer.logprobs for answer in together] == [answer.logprobs for answer in alone]


def test_waiting_sequences_have_the_same_answers(text_folder: Path) -> None:
    prompts = [TEXT_TOKENS[:length] for length in (2, 4, 6)]
    with weft.Generator(text_folder, device="cpu", max_length=64) as generator:
        expected = [generator(prompt, max_new_tokens=8).tokens for prompt in prompts]
    with weft.Generator(text_folder, device="cpu", max_length=64, max_batch=2) as generator:
        assert [answer.tokens for answer in generator(prompts, max_new_tokens=8)] == expected


def test_samples_share_the_encoder(text_generator: weft.Generator) -> None:
    options = {"max_new_tokens": 8, "temperature": 1.5, "top_k": 0}
    samples = text_generator(TEXT_TOKENS, n=3, seed=5, **options)
    assert [answer.tokens for answer in samples] == [
        text_generator(TEXT_TOKENS, seed=5 + number, **options).tokens for number in range(3)
    ]
    assert len({answer.tokens for answer in samples}) == 3


def test_stream_and_async_are_the_answer(text_generator: weft.Generator) -> None:
    answer = text_generator(TEXT_TOKENS, max_new_tokens=10)
    assert "".join(text_generator.stream(TEXT_TOKENS, max_new_tokens=10)) == answer
    assert asyncio.run(text_generator.generate_async(TEXT_TOKENS, max_new_tokens=10)).tokens == answer.tokens


def test_cancelled_stream_ends(text_generator: weft.Generator) -> None:
    stream = text_generator.stream(TEXT_TOKENS, max_new_tokens=50)
    stream.cancel()
    assert stream.answer().finish_reason in ("cancelled", "length")


def search_beams(folder: Path, inputs: dict[str, Array], start: list[int], width: int, count: int) -> list[list[int]]:
    """Search by computing every beam from its beginning in onnxruntime; answers do not end early."""
    oracle = Oracle(folder)
    beams: list[tuple[float, list[int]]] = [(0.0, list(start))]
    for _ in range(count):
        candidates = []
        for score, tokens in beams:
            logprobs = log_softmax(next(oracle.list_logits(inputs, tokens, lambda *_: None)))
            assert END not in np.argsort(-logprobs)[: 2 * width]
            candidates += [(score + logprobs[token], [*tokens, token]) for token in range(VOCABULARY)]
        beams = sorted(candidates, key=lambda beam: -beam[0])[:width]
    return [tokens[len(start) :] for _, tokens in beams]


def test_beams_agree_with_onnxruntime(text_generator: weft.Generator, text_folder: Path) -> None:
    answers = text_generator(TEXT_TOKENS, num_beams=3, n=3, max_new_tokens=6)
    expected = search_beams(text_folder, text_inputs(TEXT_TOKENS), [START], width=3, count=6)
    assert [list(answer.tokens) for answer in answers] == expected


def test_language_is_detected(speech_generator: weft.Generator, speech_folder: Path) -> None:
    audio = make_audio(1.0, seed=4)
    forced = [sorted(LANGUAGES.values()), [TASKS["transcribe"]], [NO_TIMESTAMPS]]

    def edit(logits: Array, number: int) -> Array:
        if number >= len(forced):
            return restrict(logits, number - len(forced))
        result = np.full_like(logits, -np.inf)
        result[forced[number]] = logits[forced[number]]
        return result

    expected = GreedyLoop(speech_folder, speech_inputs(speech_folder, audio), [START], edit, COUNT + len(forced))
    answer = speech_generator(audio, max_new_tokens=COUNT)
    assert list(answer.tokens) == expected.tokens[len(forced) :]
    code = next(code for code, token in LANGUAGES.items() if token == expected.tokens[0])
    assert speech_generator(audio, language=code.strip("<|>"), max_new_tokens=COUNT).tokens == answer.tokens
    best = speech_generator(audio, num_beams=2, max_new_tokens=3)
    assert best.tokens == speech_generator(audio, num_beams=2, max_new_tokens=3, language=code).tokens


def test_long_audio_is_transcribed_in_chunks(speech_generator: weft.Generator) -> None:
    audio = make_audio(2.5, seed=6)
    chunks = [audio[start : start + 16000] for start in range(0, len(audio), 16000)]
    options = {"language": "en", "max_new_tokens": 6}
    expected = [speech_generator(chunk, **options) for chunk in chunks]
    answer = speech_generator(audio, **options)
    assert answer == "".join(expected)
    assert answer.tokens == tuple(token for part in expected for token in part.tokens)
    assert "".join(speech_generator.stream(audio, **options)) == answer
    assert asyncio.run(speech_generator.generate_async(audio, **options)) == answer
    stream: Any = speech_generator.stream(audio, **options)
    assert stream.answer() == answer
    assert [part.sequence.source for part in stream._streams] == [None] * 3  # the encoder's states of long audio
    samples = speech_generator(audio, n=2, temperature=1.0, seed=3, **options)
    assert len(samples) == 2
    assert samples[0].tokens != samples[1].tokens


def test_audio_file_is_read_and_resampled(speech_generator: weft.Generator, tmp_path: Path) -> None:
    import wave

    times = np.arange(4000) / 8000
    tone = np.round(0.4 * np.sin(2 * np.pi * 440 * times) * 32767).astype("<i2")
    with wave.open(str(tmp_path / "tone.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(tone.tobytes())
    options = {"language": "en", "max_new_tokens": 4}
    answer = speech_generator(tmp_path / "tone.wav", **options)
    fine = (0.4 * np.sin(2 * np.pi * 440 * np.arange(8000) / 16000)).astype(np.float32)
    assert speech_generator(str(tmp_path / "tone.wav"), **options).tokens == answer.tokens
    assert speech_generator(fine, **options).tokens == answer.tokens


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (np.zeros(16000, np.int16), {}, "int16"),
        (np.full(16000, np.nan, np.float32), {}, "NaN"),
        (np.zeros(100, np.float32), {}, "100 samples"),
        ("no such file.wav", {}, "does not exist"),
        (np.zeros(16000, np.float32), {"language": "xx"}, "it knows de, en"),
        (np.zeros(16000, np.float32), {"task": "sing"}, "knows no task 'sing'"),
        (42, {}, "an array of samples"),
        (np.zeros(16000, np.float32), {"regex": "a+"}, "language"),
    ],
)
def test_wrong_requests_are_refused(
    speech_generator: weft.Generator, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(weft.InputError, match=message):
        speech_generator(prompt, **options)


def test_memory_counts_all_models(text_generator: weft.Generator, text_folder: Path) -> None:
    sizes = [weft.load(file, device="cpu").memory().weights for file in text_folder.glob("*.onnx")]
    memory = text_generator.memory()
    assert memory.weights == sum(sizes)
    assert memory.token_bytes == 2 * 2 * WIDTH * 4  # keys and values of two layers


def test_limit_without_room_is_refused(text_folder: Path) -> None:
    with pytest.raises(weft.OutOfMemoryError, match="needs 32,768 bytes of cache"):
        weft.Generator(text_folder, device="cpu", max_length=64, memory_limit=200_000)


def test_chats_are_refused(text_generator: weft.Generator) -> None:
    with pytest.raises(weft.WeftError, match="does not chat"):
        text_generator.chat([{"role": "user", "content": "hello"}])


def test_states_are_released(text_generator: weft.Generator) -> None:
    text_generator([TEXT_TOKENS] * 3, max_new_tokens=5)
    text_generator(TEXT_TOKENS, num_beams=3, max_new_tokens=5)
    decoder: Any = text_generator._decoder
    assert decoder._states == {}
