"""Primitives on the reference against numpy in float64, Python's integers, math and onnxruntime."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from frontend.samples import model, node, tensor, value
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import onnxruntime_run

import weft
from weft.backends.reference import reductions
from weft.backends.reference.interpret import Interpreter
from weft.backends.reference.special import erf
from weft.ir import dims
from weft.ir.dtypes import DType, from_numpy
from weft.ir.program import ArgReduce, Contract, Convolve, Cumulate, Pool, Random, Reduce, Scatter, Sort
from weft.ir.scalar import Index, Load
from weft.ir.types import TensorType

seeds = st.integers(0, 2**32 - 1)
many = settings(max_examples=150)


def evaluate(primitive: Any, operands: list[np.ndarray], *shapes: tuple[int, ...], dtype: DType | None = None) -> Any:
    actual = dtype or from_numpy(operands[0].dtype)
    types = [TensorType(actual, shape) for shape in shapes]
    results = Interpreter().evaluate(primitive, operands, types)
    return results[0] if len(results) == 1 else results


# -- convolution -----------------------------------------------------------------------------------------------------


def direct_convolution(x: np.ndarray, w: np.ndarray, primitive: Convolve, spatial: tuple[int, ...]) -> np.ndarray:
    """Compute a convolution by definition in float64; outside of x there are zeros."""
    groups = primitive.groups
    result = np.zeros((x.shape[0], w.shape[0], *spatial))
    per_group_in, per_group_out = x.shape[1] // groups, w.shape[0] // groups
    for place in np.ndindex(*result.shape):
        image, out, *position = place
        first = out // per_group_out * per_group_in
        for offset in np.ndindex(*w.shape[2:]):
            source = [
                p * stride + k * dilation - before
                for p, stride, k, dilation, (before, _) in zip(
                    position, primitive.strides, offset, primitive.dilations, primitive.pads
                )
            ]
            if all(0 <= s < size for s, size in zip(source, x.shape[2:])):
                chosen = x[(image, slice(first, first + per_group_in), *source)].astype(np.float64)
                result[place] += chosen @ w[(out, slice(None), *offset)].astype(np.float64)
    return result


def cropped(x: np.ndarray, pads: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Crop x by negative pads."""
    index = [slice(max(-a, 0), size - max(-b, 0)) for size, (a, b) in zip(x.shape[2:], pads)]
    return x[(slice(None), slice(None), *index)]


@many
@given(seeds)
def test_convolution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    groups = int(rng.choice([1, 1, 2, 3]))
    channels, filters = groups * int(rng.integers(1, 3)), groups * int(rng.integers(1, 3))
    kernel = tuple(int(k) for k in rng.integers(1, 4, rank))
    strides, dilations = (tuple(int(k) for k in rng.integers(1, 3, rank)) for _ in range(2))
    pads = tuple((int(a), int(b)) for a, b in rng.integers(-1, 3, (rank, 2)))
    sizes = tuple(int(k) for k in rng.integers(5, 7 if rank == 3 else 9, rank))
    x = rng.standard_normal((int(rng.integers(1, 3)), channels, *sizes)).astype(np.float32)
    w = rng.standard_normal((filters, channels // groups, *kernel)).astype(np.float32)
    spatial = tuple(
        (size + a + b - dilation * (k - 1) - 1) // stride + 1
        for size, (a, b), k, stride, dilation in zip(sizes, pads, kernel, strides, dilations)
    )
    if min(spatial) <= 0:
        return
    actual = evaluate(Convolve(strides, dilations, pads, groups), [x, w], (x.shape[0], filters, *spatial))
    positive = tuple((max(a, 0), max(b, 0)) for a, b in pads)
    expected = direct_convolution(cropped(x, pads), w, Convolve(strides, dilations, positive, groups), spatial)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@many
@given(seeds)
def test_transposed_convolution_is_the_adjoint(seed: int) -> None:
    """<conv(x), y> == <x, transposed(y)> for all x and y."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    groups = int(rng.choice([1, 2, 3]))
    channels, filters = groups * int(rng.integers(1, 3)), groups * int(rng.integers(1, 3))
    kernel = tuple(int(k) for k in rng.integers(1, 4, rank))
    strides, dilations = (tuple(int(k) for k in rng.integers(1, 3, rank)) for _ in range(2))
    pads = tuple((int(a), int(b)) for a, b in rng.integers(0, 2, (rank, 2)))
    sizes = tuple(int(k) for k in rng.integers(5, 7, rank))
    spatial = tuple(
        (size + a + b - dilation * (k - 1) - 1) // stride + 1
        for size, (a, b), k, stride, dilation in zip(sizes, pads, kernel, strides, dilations)
    )
    if min(spatial) <= 0:
        return
    x = rng.standard_normal((2, channels, *sizes))
    w = rng.standard_normal((filters, channels // groups, *kernel))
    y = rng.standard_normal((2, filters, *spatial))
    forward = direct_convolution(x, w, Convolve(strides, dilations, pads, groups), spatial)
    back = evaluate(Convolve(strides, dilations, pads, groups, transposed=True), [y, w], x.shape)
    np.testing.assert_allclose(np.vdot(forward, y), np.vdot(x, back), rtol=1e-9, atol=1e-9)


def test_integer_convolution_is_exact() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**31), 2**31, (1, 2, 6)).astype(np.int64)
    w = rng.integers(-(2**20), 2**20, (3, 2, 3)).astype(np.int64)
    actual = evaluate(Convolve((1,), (1,), ((0, 0),), 1), [x, w], (1, 3, 4))
    for out, position in product(range(3), range(4)):
        total = sum(int(x[0, c, position + k]) * int(w[out, c, k]) for c in range(2) for k in range(3))
        assert int(actual[0, out, position]) == total


# -- pooling ---------------------------------------------------------------------------------------------------------


def windows(x: np.ndarray, primitive: Pool, place: tuple[int, ...]) -> list[tuple[int, Any]]:
    """Yield (position in the plane, element) inside one window."""
    image, channel, *position = place
    actual = []
    for offset in np.ndindex(*primitive.window):
        source = [
            p * stride + k * dilation - before
            for p, stride, k, dilation, (before, _) in zip(
                position, primitive.strides, offset, primitive.dilations, primitive.pads
            )
        ]
        if all(0 <= s < size for s, size in zip(source, x.shape[2:])):
            actual.append((int(np.ravel_multi_index(source, x.shape[2:])), x[(image, channel, *source)]))
    return actual


@many
@given(seeds, st.sampled_from([np.float32, np.float64, np.float16, np.int8, np.uint8, ml_dtypes.bfloat16]))
def test_pooling(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    window = tuple(int(k) for k in rng.integers(1, 4, rank))
    strides, dilations = (tuple(int(k) for k in rng.integers(1, 3, rank)) for _ in range(2))
    pads = tuple((int(rng.integers(0, k)), int(rng.integers(0, k))) for k in window)
    x = rng.integers(-9 if dtype is not np.uint8 else 0, 9, (1, 2, *rng.integers(4, 7, rank))).astype(dtype)
    spatial = tuple(
        (size + a + b - dilation * (k - 1) - 1) // stride + 1
        for size, (a, b), k, stride, dilation in zip(x.shape[2:], pads, window, strides, dilations)
    )
    if min(spatial) <= 0:
        return
    shape = (1, 2, *spatial)
    for kind in ("maximum", "sum", "argmax"):
        if kind == "sum" and dtype in (np.int8, np.uint8):
            continue
        primitive = Pool(kind, window, strides, dilations, pads)
        actual = evaluate(primitive, [x], shape, dtype=DType.int64 if kind == "argmax" else None)
        assert actual.shape == shape
        for place in np.ndindex(*shape):
            inside = windows(x, primitive, place)
            if not inside:
                continue
            match kind:
                case "maximum":
                    assert actual[place] == max(element for _, element in inside)
                case "sum":
                    np.testing.assert_allclose(float(actual[place]), sum(float(e) for _, e in inside), rtol=1e-2)
                case "argmax":
                    best = max(element for _, element in inside)
                    assert actual[place] == next(position for position, element in inside if element == best)


# -- contraction -----------------------------------------------------------------------------------------------------


@many
@given(seeds)
def test_contraction_is_einsum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.integers(1, 5, 6)]
    left, right = ([int(label) for label in rng.integers(0, 6, rng.integers(0, 5))] for _ in range(2))
    used = list(dict.fromkeys([*left, *right]))
    output = [int(label) for label in rng.permutation(used)[: rng.integers(0, len(used) + 1)]]
    a, b = (rng.standard_normal([sizes[label] for label in labels]) for labels in (left, right))
    actual = evaluate(Contract(tuple(left), tuple(right), tuple(output)), [a, b], tuple(sizes[k] for k in output))
    np.testing.assert_allclose(actual, np.einsum(a, left, b, right, output), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_integer_products_are_exact(dtype: Any) -> None:
    """Modulo the width of the type, compared with Python's integers."""
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    for low, high in ((limits.min, limits.max), (max(limits.min, -7), 7), (limits.max - 5, limits.max)):
        a = rng.integers(low, high, (3, 9), dtype, endpoint=True)
        b = rng.integers(low, high, (9, 4), dtype, endpoint=True)
        actual = evaluate(Contract((0, 1), (1, 2), (0, 2)), [a, b], (3, 4))
        for row, column in product(range(3), range(4)):
            total = sum(int(a[row, k]) * int(b[k, column]) for k in range(9))
            assert (int(actual[row, column]) - total) % (1 << (8 * np.dtype(dtype).itemsize)) == 0


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_products_are_summed_in_a_wider_type(dtype: Any) -> None:
    a, b = np.ones((1, 4096), dtype), np.ones((4096, 1), dtype)
    assert float(evaluate(Contract((0, 1), (1, 2), (0, 2)), [a, b], (1, 1))[0, 0]) == 4096


# -- reductions, running sums, sorting -------------------------------------------------------------------------------


@many
@given(seeds, st.sampled_from([np.float32, np.float16, np.int32, np.uint8, ml_dtypes.bfloat16]))
def test_reductions(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 4, rng.integers(1, 5, rng.integers(1, 4))).astype(dtype)
    axes = tuple(sorted(int(axis) for axis in rng.permutation(x.ndim)[: rng.integers(1, x.ndim + 1)]))
    shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
    wide = x.astype(np.float64)
    for kind, expected in (("sum", wide.sum(axes)), ("maximum", wide.max(axes)), ("minimum", wide.min(axes))):
        actual = evaluate(Reduce(kind, axes), [x], shape)
        assert actual.dtype == x.dtype
        assert actual.shape == shape
        np.testing.assert_array_equal(actual.astype(np.float64), expected)
    for axis, last in product(range(x.ndim), (False, True)):
        actual = evaluate(ArgReduce("maximum", axis, last), [x], shape, dtype=DType.int64)
        flipped = np.flip(wide, axis) if last else wide
        expected = np.argmax(flipped, axis)
        np.testing.assert_array_equal(actual, x.shape[axis] - 1 - expected if last else expected)


def test_empty_reductions() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert evaluate(Reduce("sum", (0,)), [empty], (3,)).tolist() == [0, 0, 0]
    assert evaluate(Reduce("product", (0,)), [empty], (3,)).tolist() == [1, 1, 1]
    assert evaluate(Reduce("maximum", (0,)), [empty], (3,)).tolist() == [-np.inf] * 3
    assert evaluate(Reduce("minimum", (0,)), [empty.astype(np.int8)], (3,)).tolist() == [127] * 3


def test_maximum_propagates_nan() -> None:
    x = np.float32([[1, np.nan], [2, 3]])
    assert np.isnan(evaluate(Reduce("maximum", (1,)), [x], (2,))).tolist() == [True, False]


@many
@given(seeds, st.booleans(), st.booleans(), st.sampled_from(["sum", "product"]))
def test_cumulative_sums(seed: int, exclusive: bool, reverse: bool, kind: str) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, rng.integers(1, 5, rng.integers(1, 4)))
    axis = int(rng.integers(x.ndim))
    actual = evaluate(Cumulate(kind, axis, exclusive, reverse), [x], x.shape)
    for place in np.ndindex(*x.shape):
        line = [int(e) for e in x[tuple(slice(None) if k == axis else p for k, p in enumerate(place))]]
        here = place[axis]
        if reverse:
            line, here = line[::-1], len(line) - 1 - here
        part = line[: here + (0 if exclusive else 1)]
        assert actual[place] == (sum(part) if kind == "sum" else math.prod(part))


@many
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0, math.inf, -math.inf]), min_size=1, max_size=9), st.booleans()
)
def test_sorting_keeps_ties_in_order(numbers: list[float], descending: bool) -> None:
    x = np.array(numbers, np.float32)
    count = (len(numbers) + 1) // 2
    values, positions = evaluate(Sort(0, count, descending), [x], (count,), (count,))
    expected = sorted(range(len(numbers)), key=lambda k: -numbers[k] if descending else numbers[k])[:count]
    assert positions.tolist() == expected
    np.testing.assert_array_equal(values, x[expected])


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, ml_dtypes.bfloat16, np.bool_])
def test_sorting_of_every_type(dtype: Any) -> None:
    x = np.array([[3, 1, 2, 0], [0, 0, 1, 1]]).astype(dtype)
    values, positions = evaluate(Sort(1, 4, True), [x], (2, 4), (2, 4))
    np.testing.assert_array_equal(values, np.take_along_axis(x, positions, 1))
    assert positions[1].tolist() == [2, 3, 0, 1]


# -- scatter ---------------------------------------------------------------------------------------------------------


@many
@given(seeds, st.sampled_from(["none", "add", "multiply", "minimum", "maximum"]),
       st.sampled_from([np.float32, np.int32, np.float16, ml_dtypes.bfloat16]))  # fmt: skip
def test_scatter(seed: int, reduction: str, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, 5).astype(dtype)
    places = rng.integers(0, 5, 7)
    updates = rng.integers(-2, 3, 7).astype(dtype)
    axis = Index(dims.axis(0, 7))
    found_dtype = from_numpy(x.dtype)
    primitive = Scatter((7,), (Load(1, (axis,), DType.int64),), Load(2, (axis,), found_dtype), reduction)
    actual = evaluate(primitive, [x, places, updates], (5,))
    combine = {
        "none": lambda _, new: new,
        "add": lambda old, new: old + new,
        "multiply": lambda old, new: old * new,
        "minimum": min,
        "maximum": max,
    }[reduction]
    expected = [float(element) for element in x]
    for place, update in zip(places, updates):
        expected[place] = combine(expected[place], float(update))
    np.testing.assert_array_equal(actual.astype(np.float64), expected)
    assert actual.dtype == x.dtype


# -- erf -------------------------------------------------------------------------------------------------------------


def test_erf() -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), np.logspace(-300, 2, 2000), -np.logspace(-300, 2, 2000)])
    expected = np.array([math.erf(number) for number in x])
    np.testing.assert_allclose(erf(x), expected, rtol=1e-14, atol=0)
    assert erf(np.array([np.inf, -np.inf, 0.0, -0.0])).tolist() == [1, -1, 0, 0]
    assert math.copysign(1, erf(np.array(-0.0))) == -1
    assert np.isnan(erf(np.array(np.nan)))
    single = x.astype(np.float32)
    actual = erf(single)
    assert actual.dtype == np.float32
    np.testing.assert_array_max_ulp(actual, np.array([math.erf(number) for number in single], np.float32), 1)


# -- random numbers --------------------------------------------------------------------------------------------------


def philox_by_hand(counter: list[int], key: list[int]) -> list[int]:
    """Compute Philox 4x32-10 as in its paper, with Python's integers."""
    mask = 0xFFFFFFFF
    for _ in range(10):
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & mask,
            (first >> 32) ^ counter[3] ^ key[1],
            first & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


PHILOX_VECTORS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
     [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "expected"), PHILOX_VECTORS)
def test_published_vectors(counter: list[int], key: list[int], expected: list[int]) -> None:
    assert philox_by_hand(counter, key) == expected


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1, 0x299F31D0A4093822])
def test_philox(seed: int) -> None:
    expected = [
        word for number in range(5) for word in philox_by_hand([number, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32])
    ]
    actual = reductions._philox(seed, 18)
    assert [int(word) for word in actual] == expected[:18]
    if seed == 0:
        assert [int(word) for word in actual[:4]] == PHILOX_VECTORS[0][2]


def test_uniform_numbers() -> None:
    actual = evaluate(Random("uniform", 7), [], (200_000,), dtype=DType.float32)
    assert actual.dtype == np.float32
    assert actual.min() >= 0
    assert actual.max() < 1
    assert abs(actual.mean(dtype=np.float64) - 1 / 2) < 4 * math.sqrt(1 / 12 / actual.size)
    assert abs(actual.var(dtype=np.float64) - 1 / 12) < 0.001
    counts = np.histogram(actual, 64, (0, 1))[0]
    chi = ((counts - actual.size / 64) ** 2 / (actual.size / 64)).sum()
    assert 20 < chi < 125  # 63 degrees of freedom


def test_normal_numbers() -> None:
    actual = evaluate(Random("normal", 7), [], (199_999,), dtype=DType.float64)
    assert actual.shape == (199_999,)
    assert np.isfinite(actual).all()
    assert abs(actual.mean()) < 4 / math.sqrt(actual.size)
    assert abs(actual.var() - 1) < 0.02
    assert abs((actual**3).mean()) < 0.05
    assert abs((actual**4).mean() - 3) < 0.1
    assert abs((np.abs(actual) < 1).mean() - math.erf(math.sqrt(0.5))) < 0.005
    assert abs(np.corrcoef(actual[0:-1:2], actual[1::2])[0, 1]) < 0.02


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_seeds(kind: str) -> None:
    first, again, other = (evaluate(Random(kind, seed), [], (99,), dtype=DType.float32) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    unseeded = [evaluate(Random(kind, None), [], (99,), dtype=DType.float32) for _ in range(2)]
    assert not np.array_equal(*unseeded)
    longer = evaluate(Random(kind, 1), [], (200,), dtype=DType.float32)
    np.testing.assert_array_equal(longer[:99], first)


# -- against onnxruntime ---------------------------------------------------------------------------------------------


@many
@given(seeds)
def test_transposed_convolution_like_onnxruntime(seed: int) -> None:
    assert_transposed_convolution("reference", seed)


@settings(max_examples=40)  # each is compiled
@given(seeds)
def test_transposed_convolution_on_the_cpu_like_onnxruntime(seed: int) -> None:
    assert_transposed_convolution("cpu", seed)


def assert_transposed_convolution(device: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 3))
    groups = int(rng.choice([1, 2]))
    channels = groups * int(rng.integers(1, 3))
    kernel, strides, dilations = ([int(k) for k in rng.integers(1, 4, rank)] for _ in range(3))
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": groups}
    if rng.random() < 0.4 and all(k >= stride for k, stride in zip(kernel, strides)):  # else onnxruntime gives less
        attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER"]))
        attributes["dilations"] = [1] * rank
    else:
        attributes["pads"] = [int(k) for k in rng.integers(0, 2, 2 * rank)]
        attributes["output_padding"] = [int(rng.integers(0, max(s, d))) for s, d in zip(strides, dilations)]
    w = rng.standard_normal((channels, 2, *kernel)).astype(np.float32)
    x = rng.standard_normal((1, channels, *rng.integers(3, 6, rank))).astype(np.float32)
    built = model(
        [node("ConvTranspose", ["x", "w"], ["y"], **attributes)],
        [value("x", x.shape)],
        [value("y", None)],
        [tensor("w", w)],
    )
    try:
        (expected,) = onnxruntime_run(built, {"x": x})
    except Exception:  # what onnxruntime does not take is no oracle
        return
    np.testing.assert_allclose(weft.load(built, device=device)(x), expected, rtol=1e-4, atol=1e-4)
