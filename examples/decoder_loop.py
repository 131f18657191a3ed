"""Generate tokens with a decoder whose key-value cache stays on the device.

    python examples/decoder_loop.py speech.wav --device cuda

Each step takes the keys and values of all previous steps and returns them with one more. `keep=` leaves them on the
device: only the scores of the next token come to the host. `--copy` copies everything to the host and back in each
step, for comparison. The model is Moonshine (tiny, English, MIT license), which transcribes up to some 30 seconds of
speech. Its inputs and outputs have the names that Hugging Face's exporter uses for every decoder.
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


def generate(decoder: weft.Model, states: Any, max_tokens: int, copy: bool = False) -> Iterator[int]:
    """Yield tokens for the states of an encoder, until the decoder emits its end token."""
    cache: dict[str, Any] = {}
    for spec in decoder.inputs:
        match spec.shape:
            case (_, int(heads), _, int(width)) if spec.name.startswith("past_key_values."):
                cache[spec.name] = np.zeros((1, heads, 1, width), np.float32)  # the first step ignores it
    keep = [] if copy else [spec.name for spec in decoder.outputs if spec.name != "logits"]
    token = START
    for step in range(max_tokens):
        inputs = {"input_ids": np.array([[token]]), "use_cache_branch": np.array([step > 0])}
        outputs = decoder.run(inputs | {"encoder_hidden_states": states} | cache, keep=keep)
        token = int(np.argmax(outputs["logits"][0, -1]))
        if token == END:
            return
        yield token
        for name in cache:
            if step == 0 or ".decoder." in name:  # the encoder's part does not change after the first step
                cache[name] = outputs[name.replace("past_key_values", "present")]


def read_audio(path: Path) -> Array:
    """Read a 16-bit WAV file as mono floats between -1 and 1, at 16 kHz."""
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2:
            bits = 8 * file.getsampwidth()
            sys.exit(f"{path} has {bits} bits per sample; convert it to 16: ffmpeg -i {path} -c:a pcm_s16le out.wav")
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).reshape(-1, file.getnchannels())
        rate = file.getframerate()
    mono: Array = samples.mean(axis=1) / 32768
    positions = np.arange(round(len(mono) * RATE / rate)) * (rate / RATE)
    return np.asarray(np.interp(positions, np.arange(len(mono)), mono), np.float32)


class Vocabulary:
    """The text of tokens, from a Hugging Face tokenizer file."""

    def __init__(self, path: Path) -> None:
        pieces: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
        self.pieces = {number: piece.replace("▁", " ") for piece, number in pieces.items()}

    def text(self, token: int) -> str:
        return self.pieces.get(token, "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Transcribe speech token by token, with the cache on the device.")
    parser.add_argument("audio", type=Path, nargs="?", help="a WAV file of up to 30 seconds; default: a sample")
    parser.add_argument("--device", default="auto", help="cpu, cuda, webgpu, ... (default: the best one here)")
    parser.add_argument("--copy", action="store_true", help="copy the cache to the host and back in each step")
    parser.add_argument("--encoder", type=Path, help="an ONNX file; default: Moonshine tiny")
    parser.add_argument("--decoder", type=Path, help="an ONNX file; default: Moonshine tiny")
    arguments = parser.parse_args()
    vocabulary = Vocabulary(example_file("moonshine_tokenizer.json"))
    try:
        audio = read_audio(arguments.audio or example_file("beckett.wav"))
        device = arguments.device.split(",")
        encoder = weft.load(arguments.encoder or example_file("moonshine_encoder.onnx"), device=device)
        decoder = weft.load(arguments.decoder or example_file("moonshine_decoder.onnx"), device=device)
        states = encoder.run({"input_values": audio[np.newaxis]}, keep=True)["last_hidden_state"]
        max_tokens = len(audio) * 6 // RATE + 1  # speech has at most six tokens a second
        for _ in generate(decoder, states, max_tokens, arguments.copy):
            pass  # warm up: the first run compiles and plans
        start, count = time.perf_counter(), 0
        for token in generate(decoder, states, max_tokens, arguments.copy):
            print(vocabulary.text(token), end="", flush=True)
            count += 1
        seconds = time.perf_counter() - start
    except (OSError, EOFError, wave.Error, weft.WeftError) as error:
        sys.exit(f"{arguments.audio}: {error}" if isinstance(error, (EOFError, wave.Error)) else str(error))
    where = "copied to the host and back" if arguments.copy else "kept there"
    print(f"\n{count} tokens on {decoder.device}, {count / seconds:.0f} a second, the cache {where}")


if __name__ == "__main__":
    main()
