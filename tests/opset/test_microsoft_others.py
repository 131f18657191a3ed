"""The rest of onnxruntime's domain, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_onnxruntime, run_weft

from weft.errors import WeftError

MICROSOFT = {"opset": 1, "domain": "com.microsoft"}
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


@pytest.mark.parametrize("bidirectional", [0, 1])
def test_relative_position_bias(bidirectional: int) -> None:
    buckets, heads, queries, keys, farthest = 32, 3, 60, 70, 64
    table = random_array(0, (buckets, heads))
    relative = np.arange(keys)[None] - np.arange(queries)[:, None]
    behind, start, usable = -relative, 0, buckets
    if bidirectional:
        usable //= 2
        start = (behind < 0) * usable
        behind = np.abs(behind)
    behind = np.maximum(behind, 0)
    near = usable // 2
    far = near + (np.log(np.maximum(behind, 1) / near) / np.log(farthest / near) * (usable - near)).astype(int)
    bucket = start + np.where(behind < near, behind, np.minimum(far, usable - 1))
    by_columns = np.ascontiguousarray(table.T).reshape(buckets, heads)
    inputs = [by_columns, np.array([queries], np.int64), np.array([keys], np.int64)]
    attributes = {"max_distance": farthest, "is_bidirectional": bidirectional}
    expected = [table[bucket].transpose(2, 0, 1)[None]]
    check("RelativePositionBias", inputs, expected=expected, constants=[0], **attributes, **MICROSOFT)


@pytest.mark.parametrize("packed", [False, True])
def test_gated_relative_position_bias(packed: bool) -> None:
    batch, length, heads, size, columns = 2, 4, 3, 6, 8
    x, shift = random_array(0, (batch, length, heads * size)), random_array(1, (heads * size,))
    places, weight = random_array(2, (1, heads, length, length)), random_array(3, (size, columns))
    bias, eco = random_array(4, (columns,)), random_array(5, (1, heads, 1, 1))
    offsets = np.array([[0, 1, 4, 5], [6, 7, 2, 3]], np.int32)
    if packed:
        x.reshape(8, -1)[[2, 3]] = 0
    query = (x + shift).reshape(batch, length, heads, size).transpose(0, 2, 1, 3).astype(np.float64)
    sums = (query @ weight + bias).reshape(batch, heads, length, 2, columns // 2).sum(-1)
    update, reset = np.split(1 / (1 + np.exp(-sums)), 2, -1)
    expected = [((update * (reset * eco - 1) + 2) * places).astype(np.float32)]
    arguments = [x.reshape(8, -1)[offsets.reshape(-1)[:6]]] if packed else [x]
    inputs = [*arguments, shift, places, weight, bias, eco, *([offsets] if packed else [])]
    check("GatedRelativePositionBias", inputs, expected=expected, num_heads=heads, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("shape", [(4, 4), (3, 5, 5), (2, 3, 1, 1), (1, 7, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inverse(shape: tuple[int, ...], dtype: Any) -> None:
    check("Inverse", [random_array(0, shape, dtype)], atol=1e-3, rtol=1e-3, **MICROSOFT)


def test_inverse_needs_other_pivots() -> None:
    x = np.array([[0, 2, 0], [3, 0, 0], [0, 0, 4]], np.float32)
    check("Inverse", [x], **MICROSOFT)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("columns", [(), (1,), (3,)])
def test_solve(columns: tuple[int, ...], transposed: int) -> None:
    a, y = random_array(0, (5, 5), np.float64), random_array(1, (5, *columns), np.float64)
    expected = np.linalg.solve(a.T if transposed else a, y)
    check("Solve", [a, y], transposed=transposed, expected=[expected], **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances(metric: str, dtype: Any) -> None:
    inputs = [random_array(0, (4, 6), dtype), random_array(1, (5, 6), dtype)]
    check("CDist", inputs, metric=metric, atol=1e-3, rtol=1e-3, **MICROSOFT)


@pytest.mark.parametrize("axis", [0, 2, -1, -3])
def test_expand_dims(axis: int) -> None:
    check("ExpandDims", [random_array(0, (2, 3)), np.array(axis, np.int32)], constants=[1], **MICROSOFT)


@pytest.mark.parametrize("indices", [[[0, 0], [1, 2]], [[1], [0]], [[[0, 1]], [[1, 0]]]])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather_nd(indices: Any, dtype: Any) -> None:
    check("GatherND", [random_array(0, (2, 3, 4)), np.array(indices, dtype)], constants=[1], **MICROSOFT)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("value", [False, True])
def test_pad(mode: str, value: bool) -> None:
    inputs = [random_array(0, (3, 4)), np.array([1, 2, 0, 1], np.int64)]
    inputs = [*inputs, np.array([1.5], np.float32)] if value else inputs
    for constants in ([], [1]):
        check("Pad", inputs, mode=mode, constants=constants, **MICROSOFT)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("bounds", [(1, 9), (1, 10, 3), (9, 1, -2), (3, 3)])
def test_range(dtype: Any, bounds: tuple[int, ...]) -> None:
    inputs = [np.array(bound, dtype) for bound in bounds]
    for constants in ([], list(range(len(inputs)))):
        check("Range", inputs, constants=constants, **MICROSOFT)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, -2, 1])
def test_trilu(upper: int, k: int | None) -> None:
    inputs = [random_array(0, (2, 4, 5)), *([] if k is None else [np.array(k, np.int64)])]
    check("Trilu", inputs, upper=upper, **MICROSOFT)


def test_unique() -> None:
    check("Unique", [np.array([2, 1, 1, 3, 4, 3], np.float32)], outputs=3, **MICROSOFT)


@pytest.mark.parametrize("attributes", [{"size": 2}, {"size": 3, "step": 2, "dim": 1}, {"size": 1, "dim": 0}])
def test_unfold(attributes: dict[str, Any]) -> None:
    check("UnfoldTensor", [random_array(0, (3, 7, 4))], **attributes, **MICROSOFT)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode: str, padding: str, corners: int) -> None:
    inputs = [random_array(0, (2, 3, 5, 6)), random_array(1, (2, 4, 3, 2), low=-1.2, high=1.2)]
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    check("GridSample", inputs, **attributes, atol=1e-4, **MICROSOFT)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 5), (7, 1)])
def test_crop_and_resize(mode: str, size: tuple[int, int]) -> None:
    x = random_array(0, (2, 3, 6, 7))
    rois = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.72, 0.9], [0.8, 0.9, 0.2, 0.1], [-0.3, 0, 1.2, 1.1]], np.float32)
    inputs = [x, rois, np.array([0, 1, 1, 0], np.int32), np.array(size, np.int32)]
    for constants in ([], [3]):
        check("CropAndResize", inputs, mode=mode, extrapolation_value=0.5, constants=constants, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 9), {"kernel_shape": [3]}),
        ((2, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
        ((2, 3, 5, 7), {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1]}),
    ],
)
def test_max_pool_with_mask(shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    mask = np.ones((1, 1, *shape[2:]), np.int32)
    mask[..., -3:] = 0
    mask.reshape(-1)[4] = 0
    x = random_array(0, shape)
    reference = run_onnxruntime(node_model("MaxpoolWithMask", [x, mask], **attributes, **MICROSOFT), [x, mask])[0]
    reference = np.where(reference <= np.finfo(np.float32).min, -np.inf, reference).astype(np.float32)
    check("MaxpoolWithMask", [x, mask], expected=[reference], constants=[1], **attributes, **MICROSOFT)


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("size", [8, 6])
def test_real_transforms(ndim: int, size: int) -> None:
    x = random_array(0, (3, 5, size))
    axes = tuple(range(-ndim, 0))
    spectrum = np.fft.rfftn(x, axes=axes)
    pairs = np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)
    check("Rfft", [x], expected=[pairs], signal_ndim=ndim, onesided=1, normalized=0, atol=1e-4, **MICROSOFT)
    check("Irfft", [pairs], expected=[x], signal_ndim=ndim, onesided=1, normalized=0, atol=1e-4, **MICROSOFT)


def test_complex_products() -> None:
    a, b = random_array(0, (2, 3, 4, 2)), random_array(1, (3, 1, 2))
    left, right = a[..., 0] + 1j * a[..., 1], b[..., 0] + 1j * b[..., 1]
    for op, result in (("ComplexMul", left * right), ("ComplexMulConj", left * right.conj())):
        expected = [np.stack([result.real, result.imag], -1).astype(np.float32)]
        check(op, [a, b], expected=expected, constants=[1], atol=1e-5, **MICROSOFT)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64, object])
@pytest.mark.parametrize("attributes", [{}, {"seed": 42}, {"positive": 0, "seed": 7}])
def test_murmur_hash(dtype: Any, attributes: dict[str, Any]) -> None:
    if dtype is object:
        x = np.array([["", "a", "ab"], ["abc", "abcd", "naïve café"]], object)
    else:
        low = 0 if np.dtype(dtype).kind == "u" else -1000
        x = random_array(0, (2, 5), dtype, low, 1000)
    check("MurmurHash3", [x], **attributes, **MICROSOFT)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_n_gram_repeat_block(size: int) -> None:
    ids = np.array([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4], [5, 6, 7, 8, 9]], np.int64)
    check("NGramRepeatBlock", [ids, random_array(0, (3, 10))], ngram_size=size, **MICROSOFT)


def test_word_conv_embedding() -> None:
    words = np.array([[3, 1, 2, 0, 0], [1, 0, 0, 0, 0], [1, 2, 3, 4, 5]], np.int32)
    inputs = [words, random_array(0, (4, 1, 3, 6)), random_array(1, (4,)), random_array(2, (8, 6))]
    check("WordConvEmbedding", inputs, **CLOSE, **MICROSOFT)


@pytest.mark.parametrize("attributes", [{}, {"isinf_only": 1}, {"isnan_only": 1}])
@pytest.mark.parametrize("bad", [None, np.inf, np.nan])
def test_is_all_finite(attributes: dict[str, Any], bad: float | None) -> None:
    x, y = random_array(0, (2, 3)), random_array(1, (4,))
    if bad is not None:
        y[2] = bad
    watched = {"isinf_only": np.isinf, "isnan_only": np.isnan}.get(
        next(iter(attributes), ""), lambda v: ~np.isfinite(v)
    )
    expected = [np.array(not watched(y).any())]
    check("IsAllFinite", [x, y], expected=expected, **attributes, **MICROSOFT)


def test_dropout_of_inference() -> None:
    x, bias, residual = random_array(0, (2, 3)), random_array(1, (3,)), random_array(2, (2, 3))
    check("BiasDropout", [x, bias, residual], expected=[x + bias + residual], **MICROSOFT)


EXPERTS, HIDDEN, INNER = 4, 16, 32


@pytest.mark.parametrize("shape", [(5, HIDDEN), (2, 3, HIDDEN), (1, 2, HIDDEN)])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize("bias", [False, True])
def test_mixture_of_experts(shape: tuple[int, ...], k: int, normalize: int, kind: str, bias: bool) -> None:
    width = INNER * 2 if kind == "swiglu" else INNER
    tokens = int(np.prod(shape[:-1]))
    inputs = [
        random_array(0, shape, low=-1, high=1),
        random_array(1, (tokens, EXPERTS)),
        random_array(2, (EXPERTS, width, HIDDEN), low=-1, high=1),
        random_array(3, (EXPERTS, width)) if bias else None,
        random_array(4, (EXPERTS, HIDDEN, INNER), low=-1, high=1),
        random_array(5, (EXPERTS, HIDDEN)) if bias else None,
    ]
    attributes: dict[str, Any] = {"k": k, "normalize_routing_weights": normalize, "activation_type": kind}
    if kind == "swiglu":
        attributes |= {"swiglu_fusion": 1, "swiglu_limit": 1.5, "activation_alpha": 1.7, "activation_beta": 1.0}
    check("MoE", inputs, **attributes, atol=1e-4, rtol=1e-3, constants=[2, 4], **MICROSOFT)


@pytest.mark.parametrize("tokens", [1, 4])
def test_experts_that_nobody_chose_are_not_computed(tokens: int) -> None:
    """NaN in their weights would show in the results."""
    inputs = [
        random_array(0, (tokens, HIDDEN), low=-1, high=1),
        np.tile(np.array([0, 3, 1, 2], np.float32), (tokens, 1)),
        random_array(2, (EXPERTS, INNER, HIDDEN), low=-1, high=1),
        random_array(3, (EXPERTS, INNER)),
        random_array(4, (EXPERTS, HIDDEN, INNER), low=-1, high=1),
        random_array(5, (EXPERTS, HIDDEN)),
    ]
    for array in inputs[2:]:
        array[[0, 2, 3]] = np.nan
    check("MoE", inputs, constants=[2, 4], atol=1e-4, rtol=1e-3, **MICROSOFT)


@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize(
    ("number", "axis"), [(n, axis) for n, rank in enumerate((2, 2, 3, 2, 3, 2)) for axis in range(rank)]
)
def test_experts_of_sizes_that_do_not_fit_are_refused(tokens: int, number: int, axis: int) -> None:
    shapes = [[tokens, HIDDEN], [tokens, EXPERTS], [EXPERTS, INNER, HIDDEN], [EXPERTS, INNER], [EXPERTS, HIDDEN, INNER]]
    shapes.append([EXPERTS, HIDDEN])
    shapes[number][axis] += 1
    inputs = [random_array(n, shape) for n, shape in enumerate(shapes)]
    for symbolic in (False, True):
        with pytest.raises(WeftError, match=r"differ"):
            run_weft(node_model("MoE", inputs, symbolic=symbolic, **MICROSOFT), inputs)


@pytest.mark.parametrize("tokens", [5, 2])
def test_mixture_of_gated_experts(tokens: int) -> None:
    x, router = random_array(0, (tokens, HIDDEN), low=-1, high=1), random_array(1, (tokens, EXPERTS))
    first, third = (random_array(n, (EXPERTS, INNER, HIDDEN), low=-1, high=1) for n in (2, 3))
    second = random_array(4, (EXPERTS, HIDDEN, INNER), low=-1, high=1)
    chances = np.exp(router) / np.exp(router).sum(1, keepdims=True)
    chances = np.where(chances == chances.max(1, keepdims=True), chances, 0)
    gate, value = (np.einsum("tk,eik->tei", x.astype(np.float64), w) for w in (first, third))
    result = np.einsum("te,tei,ehi->th", chances, gate / (1 + np.exp(-gate)) * value, second)
    for kind in ("silu", "swiglu"):
        inputs = [x, router, first, None, second, None, third]
        check("MoE", inputs, expected=[result.astype(np.float32)], activation_type=kind, atol=1e-4, **MICROSOFT)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize(("normalize", "tokens"), [(0, 5), (1, 5), (0, 1), (1, 2)])
def test_quantized_mixture_of_experts(bits: int, block: int, points: bool, normalize: int, tokens: int) -> None:
    packing = 8 // bits
    rng = np.random.default_rng(bits)

    def layer(rows: int, columns: int) -> tuple[Any, Any, Any]:
        blocks = columns // block if block else 1
        packed = rng.integers(0, 256, (EXPERTS, rows, columns // packing)).astype(np.uint8)
        steps = rng.uniform(0.001, 0.01, (EXPERTS, rows, blocks)).astype(np.float32)
        shape = (EXPERTS, rows, -(-blocks // packing)) if block else (EXPERTS, -(-rows // packing))
        zero = rng.integers(0, 256, shape).astype(np.uint8) if points else None
        return packed, steps if block else steps[..., 0], zero

    first, second = layer(INNER * 2, HIDDEN), layer(HIDDEN, INNER)
    inputs = [
        random_array(0, (tokens, HIDDEN), low=-1, high=1),
        random_array(1, (tokens, EXPERTS)),
        *first[:2],
        None,
        *second[:2],
        *[None] * 4,
        first[2],
        second[2],
    ]
    attributes: dict[str, Any] = {
        "k": 2,
        "normalize_routing_weights": normalize,
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "expert_weight_bits": bits,
        "accuracy_level": 0,
    }
    if block:
        attributes["block_size"] = block
    expected = expected_mixture(
        *inputs[:2], *(unpack_experts(*part, bits, block) for part in (first, second)), normalize
    )
    check("QMoE", inputs, expected=[expected], **attributes, **CLOSE, constants=[2, 3, 5, 6], **MICROSOFT)
    if normalize:  # which onnxruntime's CPU always does, with numbers of fewer bits on the way
        reference = run_onnxruntime(
            node_model("QMoE", inputs, constants=[2, 3, 5, 6], **attributes, **MICROSOFT), inputs
        )[0]
        assert np.abs(reference - expected).max() < 0.03 * np.abs(expected).max()


def unpack_experts(packed: Any, steps: Any, zero: Any, bits: int, block: int) -> Any:
    spread = lambda x: (x[..., None] >> np.arange(0, 8, bits) & 2**bits - 1).reshape(*x.shape[:-1], -1)  # noqa: E731
    codes = spread(packed).astype(np.float64)
    steps = steps if block else steps[..., None]
    middle = np.full(steps.shape, 2.0 ** (bits - 1))
    if zero is not None:
        middle = spread(zero)[..., : steps.shape[2]] if block else spread(zero)[..., : steps.shape[1], None]
    size = codes.shape[2] // steps.shape[2]
    return (codes - np.repeat(middle, size, 2)) * np.repeat(steps, size, 2)


def expected_mixture(x: Any, router: Any, first: Any, second: Any, normalize: int) -> Any:
    chances = np.exp(router.astype(np.float64))
    chances /= chances.sum(1, keepdims=True)
    chances = np.where(chances >= np.sort(chances, 1)[:, -2:-1], chances, 0)
    chances = chances / chances.sum(1, keepdims=True) if normalize else chances
    inner = np.einsum("tk,eik->tei", x.astype(np.float64), first)
    gate, value = inner[..., ::2], inner[..., 1::2]
    return np.einsum("te,tei,ehi->th", chances, gate / (1 + np.exp(-gate)) * value, second).astype(np.float32)


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize(
    "ways",
    [
        {"tokenexp": "[a-zA-Z0-9_]+"},
        {"tokenexp": r"\b\w\w+\b"},
        {"tokenexp": "a*b?"},
        {"separators": [" ", ";"]},
        {"separators": ["a+", " "]},
        {"separators": [""]},
    ],
)
def test_tokenizer(ways: dict[str, Any], least: int, mark: int) -> None:
    least = 1 if ways == {"separators": [""]} else least  # onnxruntime takes single characters only if they are tokens
    rng = np.random.default_rng(8)
    attributes = {"mark": mark, "mincharnum": least, "pad_value": "#", **ways}
    for shape in [(1,), (3,), (1, 2), (2, 3)]:
        count = int(np.prod(shape))
        texts = ["".join(rng.choice(list("ab ;cdé_"), rng.integers(0, 9))) for _ in range(count)]
        check("Tokenizer", [np.array(texts, object).reshape(shape)], **attributes, **MICROSOFT)
    check("Tokenizer", [np.array([""], object)], **attributes, **MICROSOFT)
