"""Models with dynamic sizes or ranks, as exporters write them: named, unnamed, without rank."""

from __future__ import annotations

import numpy as np
import pytest
from frontend.samples import model, node, tensor, value
from open_sizes import ARITHMETIC, FIXED, IMAGE, KERNELS, RANKS, random

import weft
from weft.runtime.explain import explain

DEVICES = ("reference", "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FIXED)
def test_constants_determine_sizes(name: str, device: str) -> None:
    FIXED[name].check("names", device)


@pytest.mark.parametrize("form", ["nothing", "no rank"])
def test_sizes_without_a_name(form: str) -> None:
    FIXED["convolution"].check(form, "cpu")


@pytest.mark.parametrize("device", DEVICES)
def test_sizes_that_contradict_the_weights(device: str) -> None:
    loaded = weft.load(FIXED["convolution"].built("names"), device=device)
    with pytest.raises(weft.InputError, match="channels"):
        loaded.run({"x": IMAGE[:, :7]})
    assert loaded.run({"x": IMAGE})["y"].shape == (2, 4, 6, 7)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KERNELS)
def test_transposed_convolutions_with_kernels_of_dynamic_size(name: str, device: str) -> None:
    KERNELS[name].check("names", device)


@pytest.mark.parametrize("form", ["names", "nothing"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_on_shapes(name: str, form: str) -> None:
    ARITHMETIC[name].check(form, "reference")


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_on_shapes_of_which_one_is_known(name: str) -> None:
    case = ARITHMETIC[name]
    built = case.built("names")
    built.graph.input[0].type.tensor_type.shape.dim[1].dim_value = case.feeds["x"].shape[1]
    expected = weft.load(case.built("shapes"), device="reference").run(case.feeds)["y"]
    y = weft.load(built, device="cpu").run(case.feeds)["y"]
    assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RANKS)
def test_ranks_known_only_at_run_time(name: str, device: str) -> None:
    RANKS[name].check("no rank", device)


def test_one_program_is_compiled_for_each_rank() -> None:
    """A model without ranks runs as native code once its ranks are known, for all sizes of these ranks."""
    loaded = weft.load(FIXED["convolution"].built("no rank"), device="cpu")
    loaded.run({"x": IMAGE})
    loaded.run({"x": IMAGE[:1, :, 1:]})
    (prepared,) = loaded.session().programs
    assert explain(prepared.program) == ()
    assert loaded.memory({"x": (2, 8, 6, 7)}).unplanned == ()


def test_causal_convolutions_of_dynamic_size() -> None:
    x, w = random(2, 4, 6), random(4, 1, 3)
    built = model([node("CausalConvWithState", ["x", "w"], ["y", "s"])], [value("x", ["n", "c", "t"])],
                  [value("y", None), value("s", None)], [tensor("w", w)], opsets={"": 27})  # fmt: skip
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (2, 0)))
    expected = sum(padded[:, :, k : k + 6] * w[:, 0, k, None] for k in range(3))
    y, state = weft.load(built, device="cpu")(x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state, x[:, :, -2:])
