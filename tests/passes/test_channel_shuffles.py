"""Channel shuffles are merged into their neighbours, with onnxruntime's results."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from peers import onnxruntime_run

import weft
from weft.backends.host.machine import host
from weft.fuse import fuse
from weft.ir.program import Map, Reshape, TensorProgram
from weft.ir.work import NativeSection
from weft.kernels.sections import build_sections

RNG = np.random.default_rng(5)
ENDS = 2  # maps that bring what comes in into the order of channels, and what goes out of it


def weights(name: str, *shape: int) -> onnx.TensorProto:
    return tensor(name, (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))


def shuffle(source: str, result: str, channels: int, groups: int, *size: int) -> tuple[list[Any], list[Any]]:
    """Reshape, transpose, reshape; a size of -1 joins the spatial axes."""
    split, joined = f"{result}_split", f"{result}_joined"
    order = [0, 2, 1, *range(3, 3 + len(size))]
    nodes = [
        node("Reshape", [source, split], [f"{result}_a"]),
        node("Transpose", [f"{result}_a"], [f"{result}_b"], perm=order),
        node("Reshape", [f"{result}_b", joined], [result]),
    ]
    shapes = [tensor(split, [0, groups, channels // groups, *size]), tensor(joined, [0, channels, 6, 5])]
    return nodes, shapes


def unit(channels: int, groups: int, end: int, *, stride: int = 1, batch: Any = 2) -> onnx.ModelProto:
    """A shuffle, a depthwise convolution with an activation, and one with `end` groups."""
    nodes, shapes = shuffle("x", "s", channels, groups, 6, 5)
    nodes += [
        node("Conv", ["s", "w1", "b1"], ["d"], group=channels, pads=[1] * 4, strides=[stride] * 2),
        node("Relu", ["d"], ["r"]),
        node("Conv", ["r", "w2", "b2"], ["y"], group=end),
    ]
    constants = [weights("w1", channels, 1, 3, 3), weights("b1", channels)]
    constants += [weights("w2", channels, channels // end, 1, 1), weights("b2", channels)]
    ends = [(size - 1) // stride + 1 for size in (6, 5)]
    inputs, outputs = [value("x", (batch, channels, 6, 5))], [value("y", (batch, channels, *ends))]
    return model(nodes, inputs, outputs, [*shapes, *constants])


def check(built: onnx.ModelProto, channels: int) -> TensorProgram:
    feeds = {"x": RNG.standard_normal((2, channels, 6, 5)).astype(np.float32)}
    (expected,) = onnxruntime_run(built, feeds)
    for device in ("cpu", "reference"):
        (actual,) = weft.load(built, device=device).run(feeds).values()
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    program = weft.load(built, device="reference").program
    assert not any(isinstance(step.primitive, Reshape) for step in program.steps)
    return program


def kernels(program: TensorProgram) -> Counter[str]:
    (section,) = build_sections(fuse(program, host().target), host().target)
    assert isinstance(section, NativeSection)
    works = [task.work for task in section.tasks]  # type: ignore[union-attr]
    return Counter(launch.kernel.name for work in works for launch in work.launches)


@pytest.mark.parametrize(
    ("channels", "groups", "end"), [(12, 4, 4), (136, 4, 4), (24, 3, 2), (20, 5, 4), (30, 2, 15), (80, 4, 2)]
)
@pytest.mark.parametrize("stride", [1, 2])
def test_before_groups(channels: int, groups: int, end: int, stride: int) -> None:
    program = check(unit(channels, groups, end, stride=stride), channels)
    actual = kernels(program)
    assert actual["map"] == ENDS
    assert actual["depthwise"] == 1


def test_permutation_with_a_long_period() -> None:
    """Such a permutation is still one map."""
    program = check(unit(72, 24, 2), 72)
    assert kernels(program)["map"] == ENDS + 1


def test_before_one_group() -> None:
    program = check(unit(12, 3, 1), 12)
    shuffled = [step for step in program.steps if isinstance(step.primitive, Map) and "%" in str(step.primitive)]
    assert not shuffled


def test_dynamic_batch() -> None:
    assert kernels(check(unit(12, 4, 4, batch="n"), 12))["map"] == ENDS


def test_joined_spatial_axes() -> None:
    nodes, shapes = shuffle("x", "s", 12, 4, -1)
    nodes.append(node("Conv", ["s", "w"], ["y"], group=2))
    inputs, outputs = [value("x", (2, 12, 6, 5))], [value("y", (2, 8, 6, 5))]
    check(model(nodes, inputs, outputs, [*shapes, weights("w", 8, 6, 1, 1)]), 12)


def test_shuffle_with_other_readers_stays() -> None:
    """It remains one map."""
    nodes, shapes = shuffle("x", "s", 12, 4, 6, 5)
    nodes += [node("Conv", ["s", "w"], ["c"], group=12, pads=[1] * 4), node("Mul", ["c", "s"], ["y"])]
    inputs, outputs = [value("x", (2, 12, 6, 5))], [value("y", (2, 12, 6, 5))]
    check(model(nodes, inputs, outputs, [*shapes, weights("w", 12, 1, 3, 3)]), 12)


def test_maps_that_mix_channels_stop_it() -> None:
    nodes, shapes = shuffle("x", "s", 12, 4, 6, 5)
    flip = [tensor(name, [number]) for name, number in (("start", -1), ("end", -100), ("axis", 1), ("step", -1))]
    nodes += [
        node("Slice", ["s", "start", "end", "axis", "step"], ["f"]),
        node("Mul", ["f", "m"], ["g"]),
        node("Conv", ["g", "w"], ["y"], group=3),
    ]
    inputs, outputs = [value("x", (2, 12, 6, 5))], [value("y", (2, 6, 6, 5))]
    constants = [weights("w", 6, 4, 1, 1), weights("m", 12, 1, 5)]
    check(model(nodes, inputs, outputs, [*shapes, *flip, *constants]), 12)


@pytest.mark.parametrize("step", [1, 2])
def test_slices_of_channels_are_read_in_place(step: int) -> None:
    cut = [
        tensor(name, [number]) for name, number in (("start", 3), ("end", 3 + 8 * step), ("axis", 1), ("step", step))
    ]
    nodes = [
        node("Conv", ["x", "w0"], ["a"]),
        node("Slice", ["a", "start", "end", "axis", "step"], ["s"]),
        node("Conv", ["s", "w"], ["y"], strides=[2, 1]),
    ]
    inputs, outputs = [value("x", (2, 20, 6, 5))], [value("y", (2, 7, 3, 5))]
    program = check(model(nodes, inputs, outputs, [*cut, weights("w0", 20, 20, 1, 1), weights("w", 7, 8, 1, 1)]), 20)
    assert kernels(program)["map"] == ENDS
