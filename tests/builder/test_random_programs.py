"""Build random programs: the shapes and dtypes that the builder infers are those of the results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builder.running import run

import weft
from weft import Tensor, ops
from weft.ir import dims

PROGRAMS, STEPS = 25, 14
SIZES = {"a": 3, "b": 5}

Random = np.random.Generator
Step = Callable[[Random, Tensor, Tensor], Tensor]


def _number(random: Random) -> float:
    return float(random.choice([-2, -0.5, 0, 1, 3.25]))


def _axis(random: Random, x: Tensor) -> int:
    return int(random.integers(-x.ndim, x.ndim))


STEPS_OF_ONE: tuple[Step, ...] = (
    lambda r, x, _: x + _number(r),
    lambda r, x, _: _number(r) - x,
    lambda r, x, _: ops.clip(x * _number(r), -5, 5),
    lambda _, x, __: ops.tanh(x),
    lambda _, x, __: abs(x) // 0.5,
    lambda _, x, __: x % 0.75,
    lambda r, x, _: x.sum(axis=_axis(r, x), keepdims=bool(r.integers(2))) if x.ndim > 1 else x,
    lambda r, x, _: x.max(axis=_axis(r, x), keepdims=True) if x.ndim else x,
    lambda r, x, _: x.transpose(*r.permutation(x.ndim).tolist()),
    lambda _, x, __: x.reshape(-1),
    lambda _, x, __: x.reshape(x.shape[0], -1) if x.ndim else x,
    lambda _, x, __: x[None],
    lambda _, x, __: x[..., ::-1] if x.ndim else x,
    lambda _, x, __: x[1:] if x.ndim and x.shape[0] != 1 else x,
    lambda r, x, _: x[..., int(r.integers(0, 1))] if x.ndim > 1 else x,
    lambda r, x, _: ops.softmax(x, axis=_axis(r, x)) if x.ndim else x,
    lambda _, x, __: ops.concat(x, x + 1, axis=0) if x.ndim else x,
    lambda r, x, _: ops.gather(x, [0, 0], axis=_axis(r, x)) if x.ndim else x,
    lambda _, x, __: x.astype("int64").astype("float32"),
    lambda _, x, __: ops.pad(x, [1] + [0] * (x.ndim * 2 - 1)) if x.ndim else x,
    lambda _, x, __: x * x.shape[0] if x.ndim else x,
    lambda _, x, __: ops.if_(x.sum() > 0, lambda: x * 2, lambda: x - 1),
    lambda _, x, __: ops.loop(2, None, [x], lambda i, s: (None, s * 0.5 + i.astype("float32")))[0],
    lambda _, x, __: ops.where(x > 0, x, 0.5),
)
STEPS_OF_TWO: tuple[Step, ...] = (
    lambda _, x, y: x + y,
    lambda _, x, y: x * y.mean(),
    lambda _, x, y: ops.where(x > y, x, y),
    lambda _, x, y: x @ y.T,
)


def can_combine(step: Step, x: Tensor, y: Tensor) -> bool:
    """Whether a step accepts two shapes at the sizes of this test."""
    left, right = sizes(x), sizes(y)
    if left is None or right is None:
        return False
    if step is STEPS_OF_TWO[-1]:
        return x.ndim == y.ndim == 2 and left[1] == right[1]
    try:
        np.broadcast_shapes(left, right)
    except ValueError:
        return False
    return True


def sizes(x: Tensor) -> tuple[int, ...] | None:
    """Return the shape at the sizes of this test; None if it depends on other sizes."""
    if any(not set(map(str, dims.symbols(size))) <= set(SIZES) for size in x.shape):
        return None
    return tuple(dims.evaluate(size, SIZES) for size in x.shape)


def build(random: Random) -> tuple[weft.Graph, dict[str, Tensor]]:
    graph = weft.Graph()
    pool = [graph.input("x", ("a", "b")), graph.input("y", ("a", 4, 1)), graph.input("z", (4, "b"))]
    tensors: dict[str, Tensor] = {}
    for number in range(STEPS):
        x, y = (pool[int(random.integers(len(pool)))] for _ in range(2))
        if random.random() < 0.25:
            step = STEPS_OF_TWO[int(random.integers(len(STEPS_OF_TWO)))]
        else:
            step = STEPS_OF_ONE[int(random.integers(len(STEPS_OF_ONE)))]
        if step in STEPS_OF_TWO and not can_combine(step, x, y):
            continue
        result = step(random, x, y)
        if result.ndim > 5 or any(result is each for each in pool):
            continue
        pool.append(result)
        tensors[f"step{number}"] = result
        graph.output(result, f"step{number}")
    return graph, tensors


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_inferred_types_are_those_of_the_results(seed: int) -> None:
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    graph, tensors = build(random)
    if not tensors:
        return
    inputs = {"x": (3, 5), "y": (3, 4, 1), "z": (4, 5)}
    used = {name: random.normal(size=shape).astype(np.float32) for name, shape in inputs.items()}
    results = run(graph, used)
    for name, tensor in tensors.items():
        assert results[name].dtype == tensor.dtype.numpy, name
        assert results[name].ndim == tensor.ndim, name
        assert sizes(tensor) in (None, results[name].shape), name
