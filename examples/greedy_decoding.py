"""Build a loop that ends by a condition on data: greedy decoding until the end token."""

from __future__ import annotations

import numpy as np

import weft
from weft import Graph, Tensor, ops

WORDS, WIDTH, END, MAX_TOKENS = 40, 16, 0, 30
random = np.random.default_rng(5)


def build() -> Graph:
    graph = Graph("greedy_decoding")
    start = graph.input("start", ("length",), "int64")
    embedding = graph.parameter("embedding", random.normal(size=(WORDS, WIDTH)).astype(np.float32))
    mix = graph.parameter("mix", random.normal(size=(WIDTH, WIDTH)).astype(np.float32))

    def step(number: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = ops.tanh(ops.gather(embedding, text).mean(axis=0) @ mix)
        scores = ops.softmax(embedding @ state)
        word = ops.arg_max(scores, axis=0)  # of shape (1,)
        proceed = (word[0] != END) & (number < MAX_TOKENS)
        return proceed, ops.concat(text, word, axis=0), scores.max()

    text, certainty = ops.loop(None, None, [start], step)  # the text grows with each step
    graph.outputs(text=text, certainty=certainty)
    return graph


def sample() -> dict[str, np.ndarray]:
    return {"start": random.integers(1, WORDS, size=3)}


if __name__ == "__main__":
    model: weft.Model = build().compile()
    print(model.run(sample())["text"])
