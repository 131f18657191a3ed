"""A loop whose state stays on the device: a decoder writes one token after another, and its cache never leaves the GPU.

    python examples/decoder_loop.py speech.wav --device cuda

Each step takes the keys and values of all steps before it, and gives them back one longer. `keep=` leaves them where
they are: only the scores of the next token come to the host. `--copy` brings all of it to the host and back in each
step instead, for comparison. The model is Moonshine (tiny, English, MIT licence), which writes down up to some 30
seconds of speech; the names of inputs and outputs are those that Hugging Face's exporter gives every decoder.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from files import example_file

import weft

Array = np.ndarray[Any, np.dtype[Any]]
RATE, START, END = 16_000, 1, 2


def generate(decoder: weft.Model, states: Any, most: int, copy: bool = False) -> Iterator[int]:
    """The tokens for what an encoder gave, each as soon as it is known, until the decoder says that it is done."""
    cache: dict[str, Any] = {}
    for spec in decoder.inputs:
        match spec.shape:
            case (_, int(heads), _, int(width)) if spec.name.startswith("past_key_values."):
                cache[spec.name] = np.zeros((1, heads, 1, width), np.float32)  # the first step does not look at it
    kept = [] if copy else [spec.name for spec in decoder.outputs if spec.name != "logits"]
    token = START
    for step in range(most):
        inputs = {"input_ids": np.array([[token]]), "use_cache_branch": np.array([step > 0])}
        outputs = decoder.run(inputs | {"encoder_hidden_states": states} | cache, keep=kept)
        token = int(np.argmax(outputs["logits"][0, -1]))
        if token == END:
            return
        yield token
        for name in cache:
            if step == 0 or ".decoder." in name:  # what was heard does not change: the first step's stays
                cache[name] = outputs[name.replace("past_key_values", "present")]


def read_sound(path: Path) -> Array:
    """A WAV file of 16-bit numbers as floats between -1 and 1, one channel, 16,000 a second."""
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2:
            bits = 8 * file.getsampwidth()
            sys.exit(f"{path} has {bits} bits a sample; make them 16: ffmpeg -i {path} -c:a pcm_s16le out.wav")
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16).reshape(-1, file.getnchannels())
        rate = file.getframerate()
    mono: Array = sound.mean(axis=1) / 32768
    places = np.arange(round(len(mono) * RATE / rate)) * (rate / RATE)
    return np.asarray(np.interp(places, np.arange(len(mono)), mono), np.float32)


class Vocabulary:
    """The text of tokens, from a file of Hugging Face's tokenizers."""

    def __init__(self, path: Path) -> None:
        pieces: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
        self.pieces = {number: piece.replace("▁", " ") for piece, number in pieces.items()}

    def text(self, token: int) -> str:
        return self.pieces.get(token, "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write down what is said, token by token, with the cache on the device."
    )
    parser.add_argument("sound", type=Path, nargs="?", help="a WAV file of up to 30 seconds; default: a sample")
    parser.add_argument("--device", default="auto", help="cpu, cuda, webgpu, ... (default: the best one here)")
    parser.add_argument("--copy", action="store_true", help="bring the cache to the host and back in each step")
    parser.add_argument("--encoder", type=Path, help="an ONNX file; default: Moonshine tiny")
    parser.add_argument("--decoder", type=Path, help="an ONNX file; default: Moonshine tiny")
    arguments = parser.parse_args()
    vocabulary = Vocabulary(example_file("moonshine_tokenizer.json"))
    try:
        sound = read_sound(arguments.sound or example_file("beckett.wav"))
        device = arguments.device.split(",")
        encoder = weft.load(arguments.encoder or example_file("moonshine_encoder.onnx"), device=device)
        decoder = weft.load(arguments.decoder or example_file("moonshine_decoder.onnx"), device=device)
        states = encoder.run({"input_values": sound[np.newaxis]}, keep=True)["last_hidden_state"]
        most = len(sound) * 6 // RATE + 1  # nobody says more than six tokens a second
        for _ in generate(decoder, states, most, arguments.copy):
            pass  # the first time, code is made for what the model meets
        start, count = time.perf_counter(), 0
        for token in generate(decoder, states, most, arguments.copy):
            print(vocabulary.text(token), end="", flush=True)
            count += 1
        seconds = time.perf_counter() - start
    except (OSError, EOFError, wave.Error, weft.WeftError) as error:
        sys.exit(f"{arguments.sound}: {error}" if isinstance(error, (EOFError, wave.Error)) else str(error))
    where = "copied to the host and back" if arguments.copy else "kept there"
    print(f"\n{count} tokens on {decoder.device}, {count / seconds:.0f} a second, the cache {where}")


if __name__ == "__main__":
    main()
