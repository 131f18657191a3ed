"""Test that `tensor[...]` has numpy's results, or raises an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builder.running import run

import weft
from weft import ops

X = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)
ROWS = np.array([3, 0, -1])
TABLE = np.array([[0, 1], [4, -2]])
MASK = np.array([True, False, False, True])

PLAIN: tuple[Any, ...] = (
    2,
    -1,
    (1, 2),
    (1, 2, 3),
    (slice(None), 3),
    (..., 0),
    (0, ..., -1),
    ...,
    slice(1, 3),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(-2, None),
    slice(3, 0, -2),
    (slice(1, None), slice(None, -1), slice(None, None, 3)),
    (2, slice(1, 4), slice(None, None, -2)),
    None,
    (None, 1),
    (slice(None), None, slice(2)),
    (1, None, slice(None), None, 2),
    (..., None),
    (None, ..., 3, None),
)
GATHERED: tuple[Any, ...] = (
    ROWS,
    [0, 2],
    (slice(None), TABLE),
    (..., TABLE),
    (slice(1, None), [1, 1], None),
    (None, slice(None), TABLE),
    np.array(2),
    (None, np.array(2), None),
    (np.array(3), [0, 1]),
    (np.array(3), 1),
    (1, ..., np.array(3)),
    (ROWS, [1, 2, 0]),
    (ROWS, slice(None), [1, 2, 0]),
    (slice(None), ROWS, [1, 2, 0]),
    (0, slice(None), ROWS),
    (0, ROWS),
    (TABLE % 4, 1, TABLE),
    (slice(None), TABLE, 2),
    (ROWS[:, None], [0, 1], slice(None, None, 2)),
    MASK,
    (slice(None), [True, False, True, False, True]),
    X > 40,
    X[:, :, 0] > 40,
)


@pytest.mark.parametrize("shape", [(4, 5, 6), ("a", "b", "c")], ids=["fixed sizes", "dynamic sizes"])
@pytest.mark.parametrize("keys", [PLAIN, GATHERED], ids=["plain", "gathered"])
def test_indexing_matches_numpy(shape: tuple[Any, ...], keys: tuple[Any, ...]) -> None:
    graph = weft.Graph()
    x = graph.input("x", shape)
    for number, key in enumerate(keys):
        graph.output(x[key], f"y{number}")
    results = run(graph, {"x": X})
    for number, key in enumerate(keys):
        np.testing.assert_array_equal(results[f"y{number}"], X[key], err_msg=str(key))


BOUNDS = (None, *range(-5, 6), 2**31 - 1, -(2**63), 10**30)


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["fixed sizes", "dynamic sizes"])
@pytest.mark.parametrize("step", [None, 2, -1, -2, -3])
def test_all_slices_match_numpy(step: int | None, is_dynamic: bool) -> None:
    """One graph for all sizes if they are dynamic, else one for a fixed size."""
    slices = [slice(start, stop, step) for start in BOUNDS for stop in BOUNDS]
    for sizes in [range(5)] if is_dynamic else [[3]]:
        graph = weft.Graph()
        x = graph.input("x", ("n",) if is_dynamic else (sizes[0],))
        parts = [x[each] for each in slices]
        graph.output(ops.concat(*parts, axis=0), "elements")
        graph.output(ops.concat(*map(ops.shape, parts), axis=0), "counts")
        model = graph.compile(device="reference", cache=False)
        for size in sizes:
            array = np.arange(size, dtype=np.float32)
            results = model.run({"x": array})
            np.testing.assert_array_equal(results["counts"], [len(array[each]) for each in slices])
            np.testing.assert_array_equal(results["elements"], np.concatenate([array[each] for each in slices]))


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["fixed sizes", "dynamic sizes"])
def test_dynamic_bounds(is_dynamic: bool) -> None:
    """Tensors and sizes as bounds of slices in both directions."""
    for step in (-2, -1, 1):
        graph = weft.Graph()
        x = graph.input("x", ("n",) if is_dynamic else (3,))
        start, stop = (graph.input(name, (), "int64") for name in ("start", "stop"))
        graph.outputs(a=x[start:stop:step], b=x[start::step], c=x[:stop:step], d=x[x.shape[0] - 5 : stop : step])
        model = graph.compile(device="reference", cache=False)
        array = np.arange(3, dtype=np.float32)
        for first in range(-5, 6, 2):
            for last in range(-5, 6):
                inputs = {"x": array, "start": np.array(first), "stop": np.array(last)}
                results = model.run(inputs)
                expected = (array[first:last:step], array[first::step], array[:last:step], array[-2:last:step])
                for name, part in zip("abcd", expected):
                    np.testing.assert_array_equal(results[name], part, err_msg=f"{name} {first} {last} {step}")


def test_indices_out_of_range_are_refused() -> None:
    x = weft.Graph().input("x", (0, 3))
    for key in ((slice(None), [0, 3]), (slice(None), [-4]), (slice(None), np.array(3)), (slice(None), 3)):
        with pytest.raises(weft.GraphError, match="out of range"):
            x[key]


def test_tensors_as_indices_masks_and_bounds() -> None:
    graph = weft.Graph()
    x = graph.input("x", ("a", "b", "c"))
    i, mask, end = (
        graph.input("i", ("n",), "int32"),
        graph.input("mask", ("a",), "bool"),
        graph.input("end", (), "int64"),
    )
    graph.outputs(
        gathered=x[i],
        both=x[i, :, i],
        masked=x[mask],
        compared=x[x > 40],
        cut=x[:end, end:],
        half=x[: x.shape[0] // 2, -1],
        last=x[x.shape[0] - 1],
        scalar=x[None, end, None],
    )
    inputs = {"x": X, "i": np.array([1, 0, 3], np.int32), "mask": MASK, "end": np.array(2)}
    results = run(graph, inputs)
    i_, n = inputs["i"], 2
    expected = {"gathered": X[i_], "both": X[i_, :, i_], "masked": X[MASK], "compared": X[X > 40]}
    expected |= {"cut": X[:n, n:], "half": X[: X.shape[0] // 2, -1], "last": X[-1], "scalar": X[None, 2, None]}
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (4, "index 4 is out of range for axis 0"),
        ((0, 0, 0, 0), "4 indices for a tensor of 3 dimensions"),
        ((..., ...), "only one ellipsis"),
        ("name", "is not an index"),
        (1.5, "is not an index"),
        (slice(0, 2, 0), "step of a slice"),
        (slice(0.5, None), "bounds of a slice"),
        ((MASK, 0), "a mask must be the only index"),
        ((ROWS, None, ROWS), "new axes cannot be combined with several index tensors"),
    ],
    ids=str,
)
def test_wrong_indices(key: Any, message: str) -> None:
    x = weft.Graph().input("x", (4, 5, 6))
    with pytest.raises(weft.GraphError, match=message):
        x[key]
