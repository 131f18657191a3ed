"""Build an LSTM that classifies sequences of tokens, and the same cell as a scan."""

from __future__ import annotations

import numpy as np

import weft
from weft import Graph, Tensor, ops

WORDS, WIDTH, HIDDEN, CLASSES = 100, 16, 32, 5
random = np.random.default_rng(3)


def weights(*shape: int) -> np.ndarray:
    return random.normal(scale=0.2, size=shape).astype(np.float32)


def build() -> Graph:
    graph = Graph("lstm")
    tokens = graph.input("tokens", ("batch", "time"), "int64")
    embedding = graph.parameter("embedding", weights(WORDS, WIDTH))
    w = graph.parameter("w", weights(1, 4 * HIDDEN, WIDTH))
    r = graph.parameter("r", weights(1, 4 * HIDDEN, HIDDEN))
    b = graph.parameter("b", weights(1, 8 * HIDDEN))
    words = ops.gather(embedding, tokens).transpose(1, 0, 2)  # ONNX has time first
    _, last, _ = ops.lstm(words, w, r, b, hidden_size=HIDDEN)
    graph.output(last[0] @ graph.parameter("readout", weights(HIDDEN, CLASSES)), "scores")

    bias = b[0, : 4 * HIDDEN] + b[0, 4 * HIDDEN :]

    def cell(h: Tensor, c: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates = x @ w[0].T + h @ r[0].T + bias
        i, o, f, g = ops.split(gates, num_outputs=4, axis=1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        h = ops.sigmoid(o) * ops.tanh(c)
        return h, c, h

    zeros = ops.expand(graph.constant(0.0), (tokens.shape[0], HIDDEN))
    _, _, states = ops.scan([zeros, zeros], [words], cell)
    graph.output(states, "states")
    return graph


def sample() -> dict[str, np.ndarray]:
    return {"tokens": random.integers(0, WORDS, size=(3, 6))}


if __name__ == "__main__":
    model: weft.Model = build().compile()
    print(model.run(sample())["scores"])
