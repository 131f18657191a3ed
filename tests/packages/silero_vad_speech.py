"""silero-vad finds where a voice speaks: in a recording, in a stream of chunks, and at 8000 Hz."""

from __future__ import annotations

import torch
from silero_vad import VADIterator, get_speech_timestamps, load_silero_vad
from sounds import RATE, conversation
from telling import tell

CHUNK = 512

model = load_silero_vad(onnx=True)


def results() -> list[object]:
    sound = torch.from_numpy(conversation())
    whole = get_speech_timestamps(sound, model, sampling_rate=RATE)
    half = get_speech_timestamps(sound[::2], model, sampling_rate=RATE // 2)
    stream = VADIterator(model, sampling_rate=RATE)
    chunks = [sound[start : start + CHUNK] for start in range(0, len(sound) - CHUNK + 1, CHUNK)]
    events = [event for chunk in chunks if (event := stream(chunk)) is not None]
    model.reset_states()
    probabilities = [model(chunk, RATE).item() for chunk in chunks]
    return [whole, half, events, probabilities]


if __name__ == "__main__":
    tell(results)
