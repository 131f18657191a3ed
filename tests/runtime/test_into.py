"""Outputs in the caller's arrays: the same bits, no writes outside of them, no needless copy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from onnx import TensorProto
from runtime.test_calls import layers, picking
from runtime.test_interrupts import sort

import weft
from weft.runtime import preallocated

X = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
DEVICES = ["cpu", "reference"]


@pytest.fixture(params=DEVICES)
def loaded(request: pytest.FixtureRequest) -> weft.Model:
    return weft.load(layers(), device=request.param)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the arrays that results are copied to."""
    targets: list[Any] = []
    copy = np.copyto

    def noted(to: Any, *rest: Any, **named: Any) -> None:
        targets.append(to)
        copy(to, *rest, **named)

    monkeypatch.setattr(preallocated.np, "copyto", noted)
    return targets


def fenced(shape: tuple[int, ...], dtype: Any = np.float32, offset: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Return an array inside a buffer of bytes that are all 7, and the buffer."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = np.full(size + offset + 64, 7, np.uint8)
    return whole[offset : offset + size].view(dtype).reshape(shape), whole


def test_results_are_the_callers_arrays(loaded: weft.Model) -> None:
    expected = loaded.run({"x": X})["y"]
    for turn in range(3):
        place, whole = fenced(X.shape)
        results = loaded.run({"x": X}, into={"y": place})
        assert results["y"] is place, turn
        np.testing.assert_array_equal(place, expected)
        assert set(whole[:64]) == set(whole[-64:]) == {7}


def test_cpu_kernels_write_there_directly(copies: list[Any]) -> None:
    loaded = weft.load(layers(), device="cpu")
    loaded.run({"x": X})
    place = np.empty_like(X)
    loaded.run({"x": X}, into={"y": place})
    assert copies == []
    np.testing.assert_array_equal(place, loaded.run({"x": X})["y"])


@pytest.mark.parametrize("offset", [64, 68, 65, 66])
def test_arrays_of_any_alignment(loaded: weft.Model, offset: int) -> None:
    expected = loaded.run({"x": X})["y"]
    for _ in range(2):
        place, whole = fenced(X.shape, offset=offset)
        loaded.run({"x": X}, into={"y": place})
        np.testing.assert_array_equal(place, expected)
        assert set(whole[:offset]) == {7}


class Tagged(np.ndarray):
    """A subclass of ndarray."""


def test_arrays_in_any_order(loaded: weft.Model, tmp_path: Path) -> None:
    expected = loaded.run({"x": X})["y"]
    mapped = np.memmap(tmp_path / "y.bin", np.float32, "w+", shape=X.shape)
    places = [np.zeros((16, 3), np.float32).T, np.zeros((6, 32), np.float32)[::2, ::2], mapped, X.copy().view(Tagged),
              np.zeros((3, 16), np.float32)[::-1], memoryview(np.zeros((3, 16), np.float32))]  # fmt: skip
    for place in places * 2:
        assert loaded.run({"x": X}, into={"y": place})["y"] is place
        np.testing.assert_array_equal(np.asarray(place), expected)


def test_input_may_be_used_as_output(loaded: weft.Model) -> None:
    """As a whole or in part: a kernel must not read what another has overwritten."""
    expected = loaded.run({"x": X})["y"]
    for _ in range(3):
        x = X.copy()
        loaded.run({"x": x}, into={"y": x})
        np.testing.assert_array_equal(x, expected)
        memory = np.zeros((4, 16), np.float32)
        memory[:3] = X
        loaded.run({"x": memory[:3]}, into={"y": memory[1:]})
        np.testing.assert_array_equal(memory[1:], expected)


def test_device_tensors_are_not_overwritten(loaded: weft.Model) -> None:
    device_tensor = loaded.run({"x": X}, keep=True)["y"]
    before = device_tensor.numpy()
    loaded.run({"x": device_tensor}, into={"y": np.empty_like(X)})
    np.testing.assert_array_equal(device_tensor.numpy(), before)


def passing() -> onnx.ModelProto:
    """Build outputs that no kernel computes: an input, a constant, one output twice."""
    return model(
        [node("Identity", ["x"], ["same"]), node("Identity", ["c"], ["fixed"]), node("Neg", ["x"], ["y"]),
         node("Identity", ["y"], ["again"])],
        [value("x", ["n"])],
        [value("same", ["n"]), value("fixed", [2]), value("y", ["n"]), value("again", ["n"])],
        [tensor("c", np.array([3, 4], np.float32))],
    )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_that_no_kernel_computes(device: str) -> None:
    loaded = weft.load(passing(), device=device)
    x = np.arange(5, dtype=np.float32)
    for _ in range(3):
        into = {name: np.full(2 if name == "fixed" else 5, 9, np.float32) for name in ("same", "fixed", "y", "again")}
        results = loaded.run({"x": x}, into=into)
        assert [results[name] is into[name] for name in into] == [True] * 4
        assert into["fixed"].tolist() == [3, 4]
        assert into["same"].tolist() == x.tolist()
        assert into["y"].tolist() == into["again"].tolist() == (-x).tolist()
    into["fixed"][:] = 0
    assert loaded.run({"x": x})["fixed"].tolist() == [3, 4]


def counted() -> onnx.ModelProto:
    """Build kernels before and after a host step; all three have an output."""
    return model(
        [node("Mul", ["x", "x"], ["early"]), node("NonZero", ["early"], ["places"]),
         node("Cast", ["places"], ["p"], to=TensorProto.FLOAT), node("Exp", ["p"], ["late"])],
        [value("x", ["n"])],
        [value("early", ["n"]), value("places", [1, "m"], TensorProto.INT64), value("late", [1, "m"])],
    )  # fmt: skip


def test_outputs_of_several_sections_are_computed_in_place(copies: list[Any]) -> None:

    loaded = weft.load(counted(), device="cpu")
    x = np.array([1, 0, 2, 0, 3], np.float32)
    expected = loaded.run({"x": x})
    for _ in range(10):
        copies.clear()
        into = {name: np.zeros_like(array) for name, array in expected.items()}
        results = loaded.run({"x": x}, into=into)
        for name, array in expected.items():
            assert results[name] is into[name]
            np.testing.assert_array_equal(into[name], array)
    assert not any(place is into["early"] for place in copies)
    with pytest.raises(weft.InputError, match="has shape"):
        loaded.run({"x": np.ones(5, np.float32)}, into=into)


def test_some_of_the_outputs(loaded: weft.Model) -> None:
    place = np.empty_like(X)
    results = loaded.run({"x": X}, outputs=["t", "y"], into={"t": place})
    np.testing.assert_array_equal(results["t"], loaded.run({"x": X}, ["t"])["t"])
    assert results["t"] is place
    assert results["y"] is not place


def test_sizes_that_depend_on_data(loaded: weft.Model) -> None:
    graph = model([node("NonZero", ["x"], ["y"])], [value("x", ["n"])], [value("y", [1, "m"], TensorProto.INT64)])
    counting = weft.load(graph, device=loaded.device)
    x = np.array([1, 0, 2, 0, 3], np.float32)
    for _ in range(2):
        place = np.zeros((1, 3), np.int64)
        counting.run({"x": x}, into={"y": place})
        assert place.tolist() == [[0, 2, 4]]
        with pytest.raises(weft.InputError, match=r"'y' has shape \(1, 3\), the array for it \(1, 4\)"):
            counting.run({"x": x}, into={"y": np.zeros((1, 4), np.int64)})


def test_strings_go_into_arrays_of_objects(loaded: weft.Model) -> None:
    graph = model(
        [node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER")],
        [value("x", ["n"], TensorProto.STRING)],
        [value("y", ["n"], TensorProto.STRING)],
    )
    upper = weft.load(graph, device=loaded.device)
    place = np.empty(2, object)
    upper.run({"x": ["a", "bc"]}, into={"y": place})
    assert place.tolist() == ["A", "BC"]
    with pytest.raises(weft.InputError, match="dtype=object"):
        upper.run({"x": ["a", "bc"]}, into={"y": np.empty(2, "U2")})


def frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


BAD: list[tuple[Any, str]] = [
    ([X], "into must be a dict"),
    ({"z": X}, "into names 'z'"),
    ({1: X}, "into names 1"),
    ({"y": X[0]}, r"has shape \(n, 16\), the array for it \(16,\)"),
    ({"y": X[:, :15]}, r"has shape \(n, 16\)"),
    ({"y": X[:2]}, r"has shape \(3, 16\), the array for it \(2, 16\)"),
    ({"y": X.astype(np.float64)}, "is float32, the array for it float64"),
    ({"y": X.astype(">f4")}, "the array for it >f4"),
    ({"y": np.zeros((3, 16), "M8[s]")}, "the array for it datetime64"),
    ({"y": frozen(X.copy())}, "may not be written to"),
    ({"y": np.ma.masked_array(X, X > 0)}, "masked"),
    ({"y": None}, "NoneType"),
    ({"y": X.tolist()}, "is a list"),
    ({"y": np.float32(1)}, "may not be written to|cannot be shared"),
    ({"y": object()}, "whose memory is not accessible"),
]


@pytest.mark.parametrize(("into", "message"), BAD, ids=[message for _, message in BAD])
def test_arrays_that_do_not_fit_are_refused(loaded: weft.Model, into: Any, message: str) -> None:
    for _ in range(2):
        with pytest.raises(weft.InputError, match=message):
            loaded.run({"x": X.copy()}, into=into)
        loaded.run({"x": X})


def test_overlapping_output_arrays_are_refused(loaded: weft.Model) -> None:
    both = weft.load(passing(), device=loaded.device)
    memory = np.zeros(8, np.float32)
    x = np.ones(5, np.float32)
    with pytest.raises(weft.InputError, match="'same' and 'y' share memory"):
        both.run({"x": x}, into={"same": memory[:5], "y": memory[3:]})
    woven = np.zeros((5, 2), np.float32)
    both.run({"x": x}, into={"same": woven[:, 0], "y": woven[:, 1]})
    assert woven.tolist() == [[1, -1]] * 5


def test_keep_and_into_exclude_each_other(loaded: weft.Model) -> None:
    for keep in (True, ["y"]):
        with pytest.raises(weft.InputError, match="either kept"):
            loaded.run({"x": X}, keep=keep, into={"y": np.empty_like(X)})
    tensor = loaded.to_device(X)
    with pytest.raises(weft.InputError, match="never changes"):
        loaded.run({"x": X}, into={"y": tensor})


def test_index_out_of_range_writes_nothing_else() -> None:
    loaded = weft.load(picking(), device="cpu")
    x, good = np.arange(5, dtype=np.float32), np.array([0, 4, -1])
    for _ in range(3):
        place, whole = fenced((3,))
        loaded.run({"x": x, "i": good}, into={"y": place})
        assert place.tolist() == [0, 8, 8]
        with pytest.raises(weft.ExecutionError, match=r"Gather|range"):
            loaded.run({"x": x, "i": np.array([0, 5, 1])}, into={"y": place})
        assert set(whole[:64]) == set(whole[-64:]) == {7}


def test_long_blocks_are_not_computed_in_place(copies: list[Any]) -> None:
    loaded = weft.load(sort(), device="cpu")
    x = np.random.default_rng(0).standard_normal(1 << 19).astype(np.float32)
    expected = loaded.run({"x": x})["y"]
    place = np.empty_like(x)
    loaded.run({"x": x}, into={"y": place})
    np.testing.assert_array_equal(place, expected)
    assert len(copies) == 1


def test_threads_with_their_own_arrays() -> None:
    loaded = weft.load(layers(), device="cpu")
    inputs = [X * np.float32(number) for number in range(8)]
    expected = [loaded.run({"x": x})["y"] for x in inputs]

    def turn(number: int) -> bool:
        place = np.empty_like(X)
        for _ in range(50):
            place[:] = 0
            loaded.run({"x": inputs[number]}, into={"y": place})
            if not np.array_equal(place, expected[number]):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(turn, range(8)))
