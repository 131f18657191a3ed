"""Projections into heads become one product; products of flattened rows keep their dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from passes.test_passes import check, kinds

from weft.ir.program import Contract, TensorProgram, Value
from weft.ir.types import TensorType

RNG = np.random.default_rng(21)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def widths(program: TensorProgram) -> list[Any]:
    """The last dimension of each product."""
    return [shape(step.results[0])[-1] for step in program.steps if isinstance(step.primitive, Contract)]


def shape(of: Value) -> tuple[Any, ...]:
    assert isinstance(of.type, TensorType)
    assert of.type.shape is not None
    return of.type.shape


def projecting(
    sizes: Sequence[int], biased: Sequence[bool], rows: Sequence[Any] = ("b", "n"), deep: int = 12
) -> onnx.ModelProto:
    """x [rows, deep] into heads of 4, one product for each size."""
    nodes, constants, outputs = [], {}, []
    for number, (size, has_bias) in enumerate(zip(sizes, biased)):
        constants |= {f"w{number}": random(deep, size), f"b{number}": random(size)}
        constants[f"s{number}"] = np.array([0, 0, -1, 4])
        nodes.append(node("MatMul", ["x", f"w{number}"], [f"p{number}"]))
        if has_bias:
            nodes.append(node("Add", [f"b{number}", f"p{number}"], [f"a{number}"]))
        nodes.append(node("Reshape", [f"a{number}" if has_bias else f"p{number}", f"s{number}"], [f"h{number}"]))
        nodes.append(node("Transpose", [f"h{number}"], [f"y{number}"], perm=[0, 2, 1, 3]))
        outputs.append(value(f"y{number}", None))
    initializers = [tensor(name, array) for name, array in constants.items()]
    return model(nodes, [value("x", [*rows, deep])], outputs, initializers)


@pytest.mark.parametrize("rows", [("b", "n"), (2, 16), (1, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_projections_are_one_product(biased: bool, rows: tuple[Any, ...]) -> None:
    built = projecting((16, 8, 8), [biased] * 3, rows)
    sizes = [size if isinstance(size, int) else 5 for size in rows]
    assert widths(check(built, x=random(*sizes, 12))) == [32]


def test_projections_without_bias() -> None:
    assert widths(check(projecting((16, 8, 8), [True, False, True]), x=random(2, 5, 12))) == [32]


@pytest.mark.parametrize(("scale", "expected"), [(0.25, [24]), (0.3, [8, 16]), (-0.5, [8, 16]), (2.0**-20, [8, 16])])
@pytest.mark.parametrize("first", [False, True])
def test_powers_of_two_are_folded_into_constants(scale: float, expected: list[int], first: bool) -> None:
    """The first product, with something added, is scaled before it is split; the others are not."""
    built = projecting((8, 8, 8), [True, True, False])
    built.graph.initializer.append(tensor("scale", np.float32(scale)))
    for each in built.graph.node:
        for number, name in enumerate(each.input):
            if name == "a0":
                each.input[number] = "scaled"
    place = next(number for number, each in enumerate(built.graph.node) if "a0" in each.output) + 1
    built.graph.node.insert(place, node("Mul", ["scale", "a0"] if first else ["a0", "scale"], ["scaled"]))
    assert sorted(widths(check(built, x=random(2, 5, 12)))) == expected


def test_products_that_are_not_split_stay() -> None:
    """Two products joined by a map, which is fused into the second."""
    nodes = [
        node("MatMul", ["x", "u"], ["a"]),
        node("MatMul", ["x", "v"], ["b"]),
        node("Sigmoid", ["a"], ["s"]),
        node("Mul", ["s", "b"], ["y"]),
    ]
    constants = [tensor("u", random(12, 8)), tensor("v", random(12, 8))]
    built = model(nodes, [value("x", ["b", "n", 12])], [value("y", None)], constants)
    assert widths(check(built, x=random(2, 5, 12))) == [8, 8]


def test_products_with_other_readers_stay() -> None:
    built = projecting((8, 8), [True, True])
    built.graph.output.append(value("a0", None))
    assert widths(check(built, x=random(2, 5, 12))) == [8, 8]


def flattened(back: Sequence[int], rows: Sequence[Any] = ("b", "n"), heads: bool = False) -> onnx.ModelProto:
    """x [rows, 8] as a matrix, times one, with constants added, in the shape `back`, times itself."""
    nodes = [
        node("Reshape", ["x", "flat"], ["f"]),
        node("Gemm", ["f", "w", "bias"], ["g"]),
        node("Reshape", ["g", "back"], ["r"]),
        node("Tanh", ["r"], ["t"]),
        node("Mul", ["t", "r"], ["y"]),
    ]
    constants = {"flat": np.array([-1, 8]), "w": random(8, 6), "bias": random(6), "back": np.array(back)}
    inputs = [value("x", [*rows, *((2, 4) if heads else (8,))])]
    return model(nodes, inputs, [value("y", None)], [tensor(name, array) for name, array in constants.items()])


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize(("rows", "back"), [((3, 5), (3, 5, 6)), ((3, "n"), (3, -1, 6)), ((3, 5), (3, 5, 2, 3))])
def test_rows_keep_their_dimensions(rows: tuple[Any, ...], back: tuple[int, ...], heads: bool) -> None:
    program = check(flattened(back, rows, heads), x=random(3, 5, *((2, 4) if heads else (8,))))
    (product,) = [step for step in program.steps if isinstance(step.primitive, Contract)]
    assert shape(product.results[0])[0] == 3
    assert len(shape(product.results[0])) == 3
    assert kinds(program)["Reshape"] == int(heads) + int(len(back) == 4)


@pytest.mark.parametrize("back", [(5, 3, 6), (15, 6), (15, 2, 3)])
def test_regrouped_rows_stay_one_dimension(back: tuple[int, ...]) -> None:
    program = check(flattened(back, (3, 5)), x=random(3, 5, 8))
    (product,) = [step for step in program.steps if isinstance(step.primitive, Contract)]
    assert shape(product.results[0]) == (15, 6)


@pytest.mark.parametrize(("size", "joined"), [(1e-38, False), (1.0, True)])
def test_factors_that_make_weights_subnormal_are_not_folded(size: float, joined: bool) -> None:
    built = projecting((16, 8), [False] * 2, (2, 3))
    half = tensor("half", np.float32(2.0**-6))
    scaled = node("Mul", ["p0", "half"], ["m0"])
    for place, each in enumerate(built.graph.node):
        if list(each.input) == ["p0", "s0"]:
            each.input[0] = "m0"
            built.graph.node.insert(place, scaled)
            break
    weights = next(each for each in built.graph.initializer if each.name == "w0")
    weights.CopyFrom(tensor("w0", random(12, 16) * np.float32(size)))
    built.graph.initializer.append(half)
    scale = np.float32(0.1 / size)  # results near 1, where the absolute tolerance of `check` means something
    assert (widths(check(built, x=random(2, 3, 12) * scale)) == [24]) is joined
