"""One model in many threads gives the results of sequential runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import onnx
import pytest
from frontend.samples import branching, model, node, tensor, value
from onnx import TensorProto

import weft

THREADS = 8
RUNS = 60  # in each thread


def classifier() -> onnx.ModelProto:
    """Convolution, normalisation and a product over a dynamic batch and size."""
    rng = np.random.default_rng(3)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)),
        "scale": rng.random(4),
        "shift": rng.random(4),
        "mean": rng.random(4),
        "variance": 1 + rng.random(4),
        "m": rng.standard_normal((4, 5)),
    }
    return model(
        [
            node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["b"]),
            node("Relu", ["b"], ["r"]),
            node("GlobalAveragePool", ["r"], ["g"]),
            node("Flatten", ["g"], ["f"]),
            node("MatMul", ["f", "m"], ["p"]),
            node("Softmax", ["p"], ["y"]),
        ],
        [value("x", ["n", 3, "h", "w_"])],
        [value("y", ["n", 5])],
        [tensor(name, array.astype(np.float32)) for name, array in weights.items()],
    )


def broadcasting() -> onnx.ModelProto:
    """A sum whose operands may broadcast, which needs programs for particular shapes."""
    return model(
        [node("Add", ["x", "y"], ["s"]), node("Exp", ["s"], ["z"])],
        [value("x", ["a", "b"]), value("y", ["c", "d"])],
        [value("z", None)],
    )


def selecting() -> onnx.ModelProto:
    """Sizes that depend on data."""
    return model(
        [node("Greater", ["x", "zero"], ["p"]), node("Compress", ["x", "p"], ["s"], axis=0),
         node("TopK", ["s", "one"], ["v", "i"], axis=0), node("Sub", ["s", "v"], ["z"])],
        [value("x", ["n"])],
        [value("z", None), value("i", None, TensorProto.INT64)],
        [tensor("zero", np.float32(0)), tensor("one", [1])],
    )  # fmt: skip


Feeds = dict[str, np.ndarray]


def classifier_feeds(rng: np.random.Generator) -> Feeds:
    return {"x": rng.standard_normal((rng.integers(1, 4), 3, *rng.integers(1, 9, 2))).astype(np.float32)}


def broadcasting_feeds(rng: np.random.Generator) -> Feeds:
    shape = rng.integers(1, 6, 2)
    narrowed = [np.where(rng.random(2) < 0.4, 1, shape) for _ in range(2)]
    return {name: rng.standard_normal(tuple(size)).astype(np.float32) for name, size in zip("xy", narrowed)}


def selecting_feeds(rng: np.random.Generator) -> Feeds:
    x = rng.standard_normal(rng.integers(1, 30)).astype(np.float32)
    x[0] = 1
    return {"x": x}


def branching_feeds(rng: np.random.Generator) -> Feeds:
    return {"x": rng.standard_normal((2, 3)).astype(np.float32), "c": np.array(rng.random() < 0.5)}


@pytest.mark.parametrize(
    ("build", "feeds"),
    [
        (classifier, classifier_feeds),
        (broadcasting, broadcasting_feeds),
        (selecting, selecting_feeds),
        (branching, branching_feeds),
    ],
    ids=["classifier", "broadcasting", "selecting", "branching"],
)
def test_threads_agree_with_sequential_runs(
    build: Callable[[], onnx.ModelProto], feeds: Callable[[np.random.Generator], Feeds]
) -> None:
    requests = [[feeds(np.random.default_rng(1000 * thread + run)) for run in range(RUNS)] for thread in range(THREADS)]
    serial = weft.load(build())
    expected = [[serial.run(request) for request in row] for row in requests]
    shared = weft.load(build())
    start = Barrier(THREADS)

    def work(number: int) -> list[dict[str, np.ndarray]]:
        start.wait()
        order = np.random.default_rng(number).permutation(RUNS)
        outputs = {run: shared.run(requests[number][run]) for run in order}
        return [outputs[run] for run in range(RUNS)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(work, range(THREADS)))
    finally:
        sys.setswitchinterval(interval)
    for row, expected_row in zip(results, expected, strict=True):
        for outputs, expected_outputs in zip(row, expected_row, strict=True):
            assert outputs.keys() == expected_outputs.keys()
            for name, array in outputs.items():
                np.testing.assert_array_equal(array, expected_outputs[name], err_msg=name)


def test_models_may_be_loaded_in_threads() -> None:
    x = np.ones((2, 3, 4, 4), np.float32)
    expected = weft.load(classifier())(x)
    with ThreadPoolExecutor(THREADS) as pool:
        for actual in pool.map(lambda _: weft.load(classifier())(x), range(2 * THREADS)):
            np.testing.assert_array_equal(actual, expected)


def test_error_in_one_thread_does_not_affect_others() -> None:
    loaded = weft.load(broadcasting())
    good = {"x": np.ones((2, 3), np.float32), "y": np.ones((2, 3), np.float32)}
    bad = {"x": np.ones((2, 3), np.float32), "y": np.ones((3, 2), np.float32)}

    def work(number: int) -> bool:
        if number % 2:
            np.testing.assert_allclose(loaded.run(good)["z"], np.exp(2.0), rtol=1e-6)
            return True
        with pytest.raises(weft.InputError, match="do not fit together"):
            loaded.run(bad)
        return True

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(work, range(200)))
