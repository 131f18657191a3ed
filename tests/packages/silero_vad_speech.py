"""silero-vad detects speech in a recording, in a stream of chunks, and at 8000 Hz."""

from __future__ import annotations

import torch
from sample_audio import RATE, synthesize_conversation
from script_output import print_results
from silero_vad import VADIterator, get_speech_timestamps, load_silero_vad

CHUNK = 512

model = load_silero_vad(onnx=True)


def results() -> list[object]:
    audio = torch.from_numpy(synthesize_conversation())
    whole = get_speech_timestamps(audio, model, sampling_rate=RATE)
    half = get_speech_timestamps(audio[::2], model, sampling_rate=RATE // 2)
    stream = VADIterator(model, sampling_rate=RATE)
    chunks = [audio[start : start + CHUNK] for start in range(0, len(audio) - CHUNK + 1, CHUNK)]
    events = [event for chunk in chunks if (event := stream(chunk)) is not None]
    model.reset_states()
    probabilities = [model(chunk, RATE).item() for chunk in chunks]
    return [whole, half, events, probabilities]


if __name__ == "__main__":
    print_results(results)
