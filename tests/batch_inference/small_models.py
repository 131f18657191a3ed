"""Small models for tests of many rows, and random rows for them."""

from __future__ import annotations

import os
import random
from functools import cache
from typing import Any

import numpy as np

import weft
from weft import ops

CLASSES = 3


def random_seed() -> int:
    """Return a seed that the test prints; WEFT_TEST_SEED repeats one."""
    seed = int(os.environ.get("WEFT_TEST_SEED") or random.randrange(1 << 30))
    print(f"WEFT_TEST_SEED={seed}")
    return seed


@cache
def weights(*shape: int) -> Any:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def dense_graph() -> weft.Graph:
    """`x` [batch, 4] to class scores `y` [batch, 3] and `best` int64[batch]."""
    graph = weft.Graph("dense")
    x = graph.input("x", ("batch", 4), "float32")
    y = ops.softmax(x @ graph.parameter("w", weights(4, CLASSES)))
    graph.output(y, "y")
    graph.output(ops.arg_max(y, axis=1, keepdims=0), "best")
    return graph


def ragged_graph() -> weft.Graph:
    """`tokens` int64[batch, time] and `gain` float32[batch] to `state` [batch, time, 5] and `total` [batch]."""
    graph = weft.Graph("ragged")
    tokens = graph.input("tokens", ("batch", "time"), "int64")
    gain = graph.input("gain", ("batch",), "float32")
    embedding = graph.parameter("embedding", weights(20, 5))
    state = ops.gather(embedding, tokens) * ops.unsqueeze(gain, np.array([1, 2]))
    graph.output(state, "state")
    graph.output(ops.reduce_sum(state, np.array([1, 2]), keepdims=0), "total")
    return graph


def mixing_graph() -> weft.Graph:
    """`x` [batch, 4] less its mean over the batch: rows depend on each other."""
    graph = weft.Graph("mixing")
    x = graph.input("x", ("batch", 4), "float32")
    graph.output(x - ops.reduce_mean(x, np.array([0]), keepdims=1) + x * x, "y")
    return graph


def single_graph() -> weft.Graph:
    """A model that takes one row: `x` [1, 2, 3] to `y` [1, 3]."""
    graph = weft.Graph("single")
    x = graph.input("x", (1, 2, 3), "float32")
    graph.output(ops.reduce_sum(x * x, np.array([1]), keepdims=0), "y")
    return graph


def scaled_graph() -> weft.Graph:
    """`x` [batch, time] times `rate`, which all rows share."""
    graph = weft.Graph("scaled")
    x = graph.input("x", ("batch", "time"), "float32")
    rate = graph.input("rate", (), "float32")
    graph.output(x * rate, "y")
    return graph


def text_graph() -> weft.Graph:
    """`text` string[batch] to `same` string[batch] and `y` float32[batch, 2]."""
    graph = weft.Graph("text")
    text = graph.input("text", ("batch",), "string")
    x = graph.input("x", ("batch", 2), "float32")
    graph.output(ops.identity(text), "same")
    graph.output(x + x, "y")
    return graph


GRAPHS = {
    "dense": dense_graph,
    "ragged": ragged_graph,
    "mixing": mixing_graph,
    "single": single_graph,
    "scaled": scaled_graph,
    "text": text_graph,
}


@cache
def model(name: str) -> weft.Model:
    return GRAPHS[name]().compile(device="cpu")


def ragged_rows(count: int, generator: np.random.Generator) -> list[dict[str, Any]]:
    """Return random rows of `ragged`, of 1 to 7 tokens; most have the length of the row before."""
    rows: list[dict[str, Any]] = []
    length = 3
    for _ in range(count):
        length = int(generator.integers(1, 8)) if generator.random() < 0.4 else length
        gain = np.float32(generator.normal())
        rows.append({"tokens": generator.integers(0, 20, length), "gain": gain})
    return rows


def run_alone(loaded: weft.Model, row: dict[str, Any]) -> dict[str, Any]:
    """Run one row by itself: the oracle of every batch."""
    outputs = loaded.run({name: np.asarray(content)[None] for name, content in row.items()})
    return {name: array[0] for name, array in outputs.items()}


def assert_same_bits(left: Any, right: Any) -> None:
    """Compare two rows: the same names, dtypes, shapes and bits."""
    assert list(left) == list(right)
    for name in left:
        first, second = np.asarray(left[name]), np.asarray(right[name])
        assert first.dtype == second.dtype, name
        assert first.shape == second.shape, name
        if first.dtype == object:
            assert first.tolist() == second.tolist(), name
        else:
            assert first.tobytes() == second.tobytes(), name
