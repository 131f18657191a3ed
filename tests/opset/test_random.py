"""Random numbers: distributions, seeds and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opset.oracle import check, node_model, random_array, run_weft

from weft.errors import WeftError


def draw(
    op: str, inputs: list[Any], opset: int = 22, outputs: int = 1, symbolic: bool = False, **attributes: Any
) -> Any:
    model = node_model(op, inputs, opset=opset, outputs=outputs, symbolic=symbolic, **attributes)
    results = run_weft(model, inputs)
    return results if outputs > 1 else results[0]


@pytest.mark.parametrize("dtype", [(1, "float32"), (10, "float16"), (11, "float64"), (16, "bfloat16")], ids=str)
@pytest.mark.parametrize("like", [False, True])
@pytest.mark.parametrize("opset", [7, 22])
def test_normal_and_uniform(dtype: tuple[int, str], like: bool, opset: int) -> None:
    shape = {} if like else {"shape": [100, 50]}
    inputs = [np.zeros((100, 50), np.int32)] if like else []
    suffix = "Like" if like else ""
    normal = draw(f"RandomNormal{suffix}", inputs, opset, dtype=dtype[0], mean=2.0, scale=3.0, seed=1.0, **shape)
    uniform = draw(f"RandomUniform{suffix}", inputs, opset, dtype=dtype[0], low=-1.0, high=3.0, seed=1.0, **shape)
    assert normal.dtype.name == uniform.dtype.name == dtype[1]
    assert normal.shape == uniform.shape == (100, 50)
    normal, uniform = normal.astype(np.float64), uniform.astype(np.float64)
    assert abs(normal.mean() - 2) < 0.2
    assert abs(normal.std() - 3) < 0.2
    assert uniform.min() >= -1
    assert uniform.max() <= 3
    assert abs(uniform.mean() - 1) < 0.1
    assert abs(uniform.std() - 4 / 12**0.5) < 0.1


def test_seeds() -> None:
    shape = {"shape": [64]}
    assert np.array_equal(draw("RandomNormal", [], seed=1.5, **shape), draw("RandomNormal", [], seed=1.5, **shape))
    assert not np.array_equal(draw("RandomNormal", [], seed=1.5, **shape), draw("RandomNormal", [], seed=1.25, **shape))
    assert not np.array_equal(draw("RandomNormal", [], **shape), draw("RandomNormal", [], **shape))


def test_sizes_may_be_symbolic() -> None:
    x = np.zeros((3, 4), np.float32)
    assert draw("RandomNormalLike", [x], symbolic=True).shape == (3, 4)
    assert draw("Bernoulli", [x], symbolic=True).shape == (3, 4)
    assert draw("Multinomial", [x], symbolic=True, sample_size=5).shape == (3, 5)


def test_bernoulli() -> None:
    p = np.repeat(np.array([0, 0.25, 1], np.float64), 4000)
    drawn = draw("Bernoulli", [p], dtype=7)
    assert drawn.dtype == np.int64
    never, sometimes, always = drawn.reshape(3, -1).mean(axis=1)
    assert never == 0
    assert always == 1
    assert abs(sometimes - 0.25) < 0.05
    assert draw("Bernoulli", [p.astype(np.float16)]).dtype == np.float16


@pytest.mark.parametrize("dtype", [6, 7])
def test_multinomial(dtype: int) -> None:
    probabilities = np.array([[0.1, 0.2, 0.7], [0.5, 0.0, 0.5]])
    with np.errstate(divide="ignore"):
        logits = np.log(probabilities).astype(np.float32) + 3  # need not add up to 1
    drawn = draw("Multinomial", [logits], 7, sample_size=8000, dtype=dtype)
    assert drawn.dtype == (np.int32 if dtype == 6 else np.int64)
    for row, expected in zip(drawn, probabilities):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / 8000, expected, atol=0.05)
    assert 1 not in drawn[1]


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_dropout_at_rest(opset: int) -> None:
    x = random_array(1, (3, 4))
    mask = np.ones((3, 4), np.float32 if opset < 10 else bool)
    check("Dropout", [x], opset=opset, outputs=2, expected=[x, mask])
    if opset >= 12:
        still = [x, np.array(0.9, np.float32), np.array(False)]
        check("Dropout", still, opset=opset, outputs=2, expected=[x, mask])


@pytest.mark.parametrize("constants", [(), (1, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("ratio", [None, 0.0, 0.3])
def test_dropout_in_training(ratio: float | None, dtype: Any, constants: tuple[int, ...]) -> None:
    x = random_array(2, (100, 60), dtype, low=1, high=2)
    share = None if ratio is None else np.array(ratio, np.float32)
    inputs = [x, share, np.array(True)]
    stored = [position for position in constants if inputs[position] is not None]
    y, mask = draw("Dropout", inputs, 13, 2, seed=3, constants=stored)
    keep_ratio = 1 - (0.5 if ratio is None else ratio)
    assert y.dtype == dtype
    assert mask.dtype == np.bool_
    assert abs(mask.mean() - keep_ratio) < 0.05
    expected = np.where(mask, x.astype(np.float64) / keep_ratio, 0)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=2e-3 if dtype == np.float16 else 1e-6)


def test_mistakes() -> None:
    with pytest.raises(WeftError, match="int32"):
        draw("RandomNormal", [], shape=[2], dtype=6)
    with pytest.raises(WeftError, match="batch"):
        draw("Multinomial", [np.zeros(3, np.float32)])
