"""Build a residual block: two convolutions with batch normalization, and a projection shortcut."""

from __future__ import annotations

import numpy as np

import weft
from weft import Graph, Tensor, ops

random = np.random.default_rng(1)


def normalize(graph: Graph, x: Tensor, name: str) -> Tensor:
    """Add a batch normalization with random statistics."""
    channels = x.shape[1]
    assert isinstance(channels, int)
    scale = graph.parameter(f"{name}.scale", random.uniform(0.5, 1.5, channels).astype(np.float32))
    bias = graph.parameter(f"{name}.bias", random.normal(size=channels).astype(np.float32))
    mean = graph.parameter(f"{name}.mean", random.normal(size=channels).astype(np.float32))
    variance = graph.parameter(f"{name}.variance", random.uniform(0.5, 1.5, channels).astype(np.float32))
    return ops.batch_normalization(x, scale, bias, mean, variance)


def convolution(graph: Graph, x: Tensor, name: str, channels: int, size: int, stride: int) -> Tensor:
    """Add a padded convolution and its normalization."""
    fan_in = x.shape[1]
    assert isinstance(fan_in, int)
    weights = random.normal(scale=(fan_in * size * size) ** -0.5, size=(channels, fan_in, size, size))
    w = graph.parameter(f"{name}.w", weights.astype(np.float32))
    y = ops.conv(x, w, strides=(stride, stride), pads=[size // 2] * 4, name=name)
    return normalize(graph, y, f"{name}.norm")


def build() -> Graph:
    graph = Graph("resnet_block")
    x = graph.input("x", ("batch", 16, 28, 28), "float32")
    y = ops.relu(convolution(graph, x, "conv1", 32, size=3, stride=2))
    y = convolution(graph, y, "conv2", 32, size=3, stride=1)
    shortcut = convolution(graph, x, "shortcut", 32, size=1, stride=2)
    graph.output(ops.relu(y + shortcut), "y")
    return graph


def sample() -> dict[str, np.ndarray]:
    return {"x": random.normal(size=(2, 16, 28, 28)).astype(np.float32)}


if __name__ == "__main__":
    model: weft.Model = build().compile()
    print(model.run(sample())["y"].shape)
