"""Transcribe a recording: find the segments with speech, and transcribe each of them.

    python examples/transcribe.py recording.wav

Silero VAD detects speech in windows of 32 ms; its state passes from window to window and stays on the device. Moonshine
(tiny, English) transcribes each segment, with the loop of `decoder_loop.py`.
"""

from __future__ import annotations

import argparse
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from decoder_loop import RATE, Vocabulary, generate, read_audio
from files import example_file

import weft

Array = np.ndarray[Any, np.dtype[Any]]
WINDOW, CONTEXT = 512, 64  # new samples in a window, and samples repeated from the previous one


def speech_probabilities(detector: weft.Model, audio: Array) -> list[float]:
    """Return the probability of speech in each window."""
    padded = np.pad(audio, (CONTEXT, -len(audio) % WINDOW))
    state: Any = detector.to_device(np.zeros((2, 1, 128), np.float32))
    rate = np.array(RATE)
    probabilities = []
    for start in range(0, len(padded) - CONTEXT, WINDOW):
        window = padded[np.newaxis, start : start + CONTEXT + WINDOW]
        results = detector.run({"input": window, "state": state, "sr": rate}, keep=["stateN"])
        state = results["stateN"]
        probabilities.append(float(results["output"][0, 0]))
    return probabilities


def find_segments(
    probabilities: list[float], silence: float = 0.4, margin: float = 0.2, longest: float = 25.0
) -> Iterator[tuple[float, float]]:
    """Yield the begin and end of each segment in seconds; `silence` ends a segment, `margin` is added on both sides."""
    step = WINDOW / RATE
    begin: float | None = None
    last = 0.0
    for index, probability in enumerate([*probabilities, *[0.0] * round(silence / step + 1)]):
        now = index * step
        if probability > 0.5:
            begin = now if begin is None else begin
            last = now + step
        if begin is not None and (now - last > silence or now - begin > longest):
            yield max(begin - margin, 0.0), min(last + margin, len(probabilities) * step)
            begin = None


def main() -> None:
    parser = argparse.ArgumentParser(description="Find speech in a recording, and transcribe it.")
    parser.add_argument("audio", type=Path, nargs="?", help="a WAV file; default: a sample")
    parser.add_argument("--device", default="auto", help="cpu, cuda, webgpu, ... (default: the best one here)")
    parser.add_argument("--detector", type=Path, help="an ONNX file; default: Silero VAD")
    parser.add_argument("--encoder", type=Path, help="an ONNX file; default: Moonshine tiny")
    parser.add_argument("--decoder", type=Path, help="an ONNX file; default: Moonshine tiny")
    arguments = parser.parse_args()
    vocabulary = Vocabulary(example_file("moonshine_tokenizer.json"))
    try:
        audio = read_audio(arguments.audio or example_file("beckett.wav"))
        device = arguments.device.split(",")
        detector = weft.load(arguments.detector or example_file("silero_vad.onnx"), device=device)
        encoder = weft.load(arguments.encoder or example_file("moonshine_encoder.onnx"), device=device)
        decoder = weft.load(arguments.decoder or example_file("moonshine_decoder.onnx"), device=device)
        for begin, end in find_segments(speech_probabilities(detector, audio)):
            print(f"{begin:7.2f} – {end:6.2f} s ", end="")
            for piece in transcribe(encoder, decoder, vocabulary, audio[round(begin * RATE) : round(end * RATE)]):
                print(piece, end="", flush=True)
            print()
    except (OSError, EOFError, wave.Error, weft.WeftError) as error:
        sys.exit(f"{arguments.audio}: {error}" if isinstance(error, (EOFError, wave.Error)) else str(error))


def transcribe(encoder: weft.Model, decoder: weft.Model, vocabulary: Vocabulary, audio: Array) -> Iterator[str]:
    """Yield the text of a segment, token by token."""
    states = encoder.run({"input_values": audio[np.newaxis]}, keep=True)["last_hidden_state"]
    for token in generate(decoder, states, max_tokens=len(audio) * 6 // RATE + 1):
        yield vocabulary.text(token)


if __name__ == "__main__":
    main()
