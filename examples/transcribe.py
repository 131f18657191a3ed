"""Who says what when: finds the stretches of speech in a recording, and writes down each of them.

    python examples/transcribe.py recording.wav

Silero VAD hears speech in windows of 32 ms; its state goes from window to window and stays on the device. Moonshine
(tiny, English) writes down what was said in each stretch, with the loop of `decoder_loop.py`.
"""

from __future__ import annotations

import argparse
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from decoder_loop import RATE, Vocabulary, generate, read_sound
from files import example_file

import weft

Array = np.ndarray[Any, np.dtype[Any]]
WINDOW, CONTEXT = 512, 64  # samples: what is new in a window, and what it sees of the one before


def speech_probabilities(detector: weft.Model, sound: Array) -> list[float]:
    """How likely there is speech in each window."""
    padded = np.pad(sound, (CONTEXT, -len(sound) % WINDOW))
    state: Any = detector.to_device(np.zeros((2, 1, 128), np.float32))
    rate = np.array(RATE)
    found = []
    for start in range(0, len(padded) - CONTEXT, WINDOW):
        window = padded[np.newaxis, start : start + CONTEXT + WINDOW]
        results = detector.run({"input": window, "state": state, "sr": rate}, keep=["stateN"])
        state = results["stateN"]
        found.append(float(results["output"][0, 0]))
    return found


def stretches(
    probabilities: list[float], silence: float = 0.4, margin: float = 0.2, longest: float = 25.0
) -> Iterator[tuple[float, float]]:
    """Where speech begins and ends, in seconds. `silence` ends a stretch, `margin` is left on both sides of it."""
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
    parser = argparse.ArgumentParser(description="Find speech in a recording, and write it down.")
    parser.add_argument("sound", type=Path, nargs="?", help="a WAV file; default: a sample")
    parser.add_argument("--device", default="auto", help="cpu, cuda, webgpu, ... (default: the best one here)")
    parser.add_argument("--detector", type=Path, help="an ONNX file; default: Silero VAD")
    parser.add_argument("--encoder", type=Path, help="an ONNX file; default: Moonshine tiny")
    parser.add_argument("--decoder", type=Path, help="an ONNX file; default: Moonshine tiny")
    arguments = parser.parse_args()
    vocabulary = Vocabulary(example_file("moonshine_tokenizer.json"))
    try:
        sound = read_sound(arguments.sound or example_file("beckett.wav"))
        device = arguments.device.split(",")
        detector = weft.load(arguments.detector or example_file("silero_vad.onnx"), device=device)
        encoder = weft.load(arguments.encoder or example_file("moonshine_encoder.onnx"), device=device)
        decoder = weft.load(arguments.decoder or example_file("moonshine_decoder.onnx"), device=device)
        for begin, end in stretches(speech_probabilities(detector, sound)):
            print(f"{begin:7.2f} – {end:6.2f} s ", end="")
            for piece in transcript(encoder, decoder, vocabulary, sound[round(begin * RATE) : round(end * RATE)]):
                print(piece, end="", flush=True)
            print()
    except (OSError, EOFError, wave.Error, weft.WeftError) as error:
        sys.exit(f"{arguments.sound}: {error}" if isinstance(error, (EOFError, wave.Error)) else str(error))


def transcript(encoder: weft.Model, decoder: weft.Model, vocabulary: Vocabulary, sound: Array) -> Iterator[str]:
    """What is said in a stretch of speech, piece by piece."""
    states = encoder.run({"input_values": sound[np.newaxis]}, keep=True)["last_hidden_state"]
    for token in generate(decoder, states, most=len(sound) * 6 // RATE + 1):
        yield vocabulary.text(token)


if __name__ == "__main__":
    main()
