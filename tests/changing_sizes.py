"""Small models whose sizes change from run to run, and the memory that a run of weft really takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from export import networks
from export.networks import BOOL, FLOAT, INT64, node
from onnx import helper

import weft
from weft.backends.cpu.memory import Arena, Arenas
from weft.backends.resident.section import RunMemory

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]
Draw = Callable[[np.random.Generator], Inputs]


@dataclass(frozen=True)
class ChangingModel:
    """A model, and a function that draws inputs of random sizes."""

    build: Callable[[], bytes]
    draw: Draw
    programs: int = 0  # that it needs besides the first: an empty state needs its own
    is_planned: bool = True  # whether all sizes are known before a run


def _numbers(random: np.random.Generator, *shape: int) -> Array:
    return random.standard_normal(shape, np.float32) * np.float32(0.5)


def _weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {name: _numbers(random, *shape) for name, shape in shapes.items()}


# -- models ----------------------------------------------------------------------------------------------------------


def _build_mlp() -> bytes:
    nodes = [
        node("Gemm", "x w1 b1", "a"),
        node("Relu", "a", "b"),
        node("Gemm", "b w2", "c"),
        node("Add", "b c", "d"),
        node("Gemm", "d w3", "e"),
        node("Softmax", "e", "y"),
    ]
    weights = _weights(1, w1=(24, 48), b1=(48,), w2=(48, 48), w3=(48, 10))
    return networks.model(nodes, [("x", FLOAT, ["batch", 24])], [("y", FLOAT, ["batch", 10])], weights)


def _draw_batch(random: np.random.Generator) -> Inputs:
    return {"x": _numbers(random, int(random.integers(1, 200)), 24)}


def _build_images() -> bytes:
    """Convolutions, a transposed one and a skip connection, for any height and width that 2 divides."""
    nodes = [
        node("Conv", "x w1 b1", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b w2", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("MaxPool", "c", "d", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("ConvTranspose", "d w3", "e", strides=[2, 2]),
        node("Concat", "b e", "f", axis=1),
        node("Conv", "f w4", "y"),
        node("GlobalAveragePool", "y", "z"),
    ]
    weights = _weights(2, w1=(8, 3, 3, 3), b1=(8,), w2=(16, 8, 3, 3), w3=(16, 8, 2, 2), w4=(4, 16, 1, 1))
    outputs = [("y", FLOAT, ["batch", 4, "height", "width"]), ("z", FLOAT, ["batch", 4, 1, 1])]
    return networks.model(nodes, [("x", FLOAT, ["batch", 3, "height", "width"])], outputs, weights)


def _draw_images(random: np.random.Generator) -> Inputs:
    batch, height, width = random.integers((1, 2, 2), (4, 33, 33)).tolist()
    return {"x": _numbers(random, batch, 3, 2 * height, 2 * width)}


def _draw_words(random: np.random.Generator) -> Inputs:
    batch, length = random.integers((1, 1), (5, 120)).tolist()
    lengths = random.integers(1, length + 1, batch)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return {"ids": random.integers(0, 50, (batch, length)), "mask": mask}


def _draw_frames(random: np.random.Generator) -> Inputs:
    frames, batch = random.integers((1, 1), (80, 5)).tolist()
    lengths = random.integers(1, frames + 1, batch).astype(np.int32)
    return {"x": _numbers(random, frames, batch, 5), "lengths": lengths}


def _build_cache() -> bytes:
    """Attention over a cache that grows by concatenation, for any batch, one of 1 included."""
    nodes = [
        node("MatMul", "x wq", "q"),
        node("MatMul", "x wk", "k0"),
        node("MatMul", "x wv", "v0"),
        node("Concat", "past_k k0", "k", axis=1),
        node("Concat", "past_v v0", "v", axis=1),
        node("Transpose", "k", "k1", perm=[0, 2, 1]),
        node("MatMul", "q k1", "scores"),
        node("Softmax", "scores", "p", axis=-1),
        node("MatMul", "p v", "y"),
    ]
    past, present = ["batch", "past", 16], ["batch", "total", 16]
    inputs = [("x", FLOAT, ["batch", "length", 16]), ("past_k", FLOAT, past), ("past_v", FLOAT, past)]
    outputs = [("y", FLOAT, ["batch", "length", 16]), ("k", FLOAT, present), ("v", FLOAT, present)]
    return networks.model(nodes, inputs, outputs, _weights(3, wq=(16, 16), wk=(16, 16), wv=(16, 16)))


def _draw_cache(random: np.random.Generator) -> Inputs:
    batch, past, length = random.integers((1, 0, 1), (4, 90, 6)).tolist()
    batch, past = (1 if random.random() < 0.4 else batch), (0 if random.random() < 0.1 else past)
    states = {name: _numbers(random, batch, past, 16) for name in ("past_k", "past_v")}
    return {"x": _numbers(random, batch, length, 16), **states}


def _build_growing_loop() -> bytes:
    """A loop whose body sees another size in each iteration: it appends to what it carries."""
    body = helper.make_graph(
        [
            node("ReduceMean", "state first", "mean"),
            node("MatMul", "mean w", "row0"),
            node("Tanh", "row0", "row"),
            node("Concat", "state row", "next", axis=0),
            node("Identity", "going", "going_next"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("going", BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("going_next", BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, None),
        ],
    )
    return networks.model(
        [node("Loop", "times going0 x", "states", body=body), node("Softmax", "states", "y")],
        [("x", FLOAT, ["n", 12]), ("times", INT64, [])],
        [("y", FLOAT, ["rows", 12])],
        {"going0": np.array(True), "first": np.array([0]), **_weights(4, w=(12, 12))},
    )


def _draw_growth(random: np.random.Generator) -> Inputs:
    return {"x": _numbers(random, int(random.integers(1, 40)), 12), "times": np.array(random.integers(1, 12))}


def _draw_loop(random: np.random.Generator) -> Inputs:
    rows, most = random.integers((1, 1), (100, 6)).tolist()
    return {"x": _numbers(random, rows, 4), "most": np.array(most), "limit": np.array(2.5, np.float32)}


CHANGING_MODELS: Mapping[str, ChangingModel] = {
    "mlp": ChangingModel(_build_mlp, _draw_batch),
    "images": ChangingModel(_build_images, _draw_images),
    "attention": ChangingModel(networks.transformer, _draw_words),
    "gru": ChangingModel(lambda: networks.recurrent("GRU"), _draw_frames),
    "cache": ChangingModel(_build_cache, _draw_cache, programs=1),
    "loop": ChangingModel(networks.loops, _draw_loop),
    "growing loop": ChangingModel(_build_growing_loop, _draw_growth, is_planned=False),
}


# -- what a run takes ------------------------------------------------------------------------------------------------


@contextmanager
def record_run_memory() -> Iterator[list[int]]:
    """Record the bytes of each arena that a section takes, on any device, apart from constant overheads.

    On a device with its own memory these include copies of inputs and outputs.
    """
    sizes: list[int] = []
    take, reserve = Arenas.take, RunMemory.reserve

    def record_take(self: Arenas, size: int, regions: int) -> Arena:
        sizes.append(size)
        return take(self, size, regions)

    def record_reserve(self: RunMemory, size: int) -> Any:
        sizes.append(size)
        return reserve(self, size)

    with patch.object(Arenas, "take", record_take), patch.object(RunMemory, "reserve", record_reserve):
        yield sizes


def agrees_with_prediction(memory: weft.Memory, sizes: list[int], outputs: Mapping[str, Array], device: str) -> bool:
    """Whether a run took the memory that was predicted.

    On the CPU, the arena must be exactly as large. On a device with its own memory, one buffer holds the arena, inputs
    and outputs; the prediction also counts parameters of launches, so the buffer must not exceed it.
    """
    if memory.unplanned:
        return True
    is_planned = memory.outputs == sum(array.nbytes for array in outputs.values())
    largest = max(sizes, default=0)
    if device == "cpu":
        return is_planned and largest == memory.arena
    whole = memory.arena + memory.workspace + memory.outputs
    return is_planned and memory.arena <= largest <= whole
