"""Build a transformer layer: causal self-attention and a feed-forward network, for any batch size and length."""

from __future__ import annotations

import numpy as np

import weft
from weft import Graph, Tensor, ops

WIDTH, HEADS, HIDDEN = 64, 4, 256
random = np.random.default_rng(2)


def dense(graph: Graph, x: Tensor, name: str, rows: int, columns: int) -> Tensor:
    w = graph.parameter(f"{name}.w", random.normal(scale=rows**-0.5, size=(rows, columns)).astype(np.float32))
    b = graph.parameter(f"{name}.b", np.zeros(columns, np.float32))
    return x @ w + b


def normalize(graph: Graph, x: Tensor, name: str) -> Tensor:
    scale = graph.parameter(f"{name}.scale", np.ones(WIDTH, np.float32))
    bias = graph.parameter(f"{name}.bias", np.zeros(WIDTH, np.float32))
    return ops.layer_normalization(x, scale, bias)


def attention(graph: Graph, x: Tensor) -> Tensor:
    batch, length, _ = x.shape  # dynamic sizes

    def heads(name: str) -> Tensor:
        return dense(graph, x, name, WIDTH, WIDTH).reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3)

    q, k, v = heads("q"), heads("k"), heads("v")
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(WIDTH / HEADS)
    causal_mask = ops.trilu(ops.expand(graph.constant(1.0), (length, length)), 1)
    weights = ops.softmax(scores - 1e9 * causal_mask)
    mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)
    return dense(graph, mixed, "out", WIDTH, WIDTH)


def build() -> Graph:
    graph = Graph("transformer_layer")
    x = graph.input("x", ("batch", "length", WIDTH), "float32")
    x = x + attention(graph, normalize(graph, x, "norm1"))
    hidden = ops.gelu(dense(graph, normalize(graph, x, "norm2"), "up", WIDTH, HIDDEN))
    graph.output(x + dense(graph, hidden, "down", HIDDEN, WIDTH), "y")
    return graph


def sample() -> dict[str, np.ndarray]:
    return {"x": random.normal(size=(2, 7, WIDTH)).astype(np.float32)}


if __name__ == "__main__":
    model: weft.Model = build().compile()
    print(model.run(sample())["y"].shape)
