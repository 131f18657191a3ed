"""Values that only products and attentions read are stored in the 16 bits that these round them to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from kernels.threads.emulation import Array, run_fused, with_products
from peers import onnxruntime_run

import weft
from weft import fuse as fusion
from weft.fuse import fuse
from weft.fuse.round_operands import round_operands
from weft.ir.dtypes import DType
from weft.ir.groups import AttentionGroup, FusedProgram, Group, HeavyGroup, ReshapeGroup, RowGroup
from weft.ir.narrowed_products import find_narrowed_products
from weft.ir.program import ORIGINS
from weft.ir.scalar import Load
from weft.ir.target import Float32Products
from weft.kernels.sections import build_sections

_TARGET = with_products(Float32Products.HALVES)
HALVES = replace(_TARGET, rates=replace(_TARGET.rates, unit_flops=1e6))  # small products are worth tiles, too
RNG = np.random.default_rng(29)


def weights(name: str, *shape: int) -> onnx.TensorProto:
    return tensor(name, (RNG.standard_normal(shape) / shape[-2] ** 0.5).astype(np.float32))


def transformer(scale: bool = True, batch: Any = 2, length: Any = 20) -> onnx.ModelProto:
    """A transformer layer with one product for queries, keys and values, norms before products, and a residual."""
    wide, heads = 48, 3
    size = wide // heads
    query, key = ("q_s", "k_s") if scale else ("q", "k")
    nodes = [
        node("LayerNormalization", ["x", "norm1"], ["n"]),
        node("MatMul", ["n", "qkv_w"], ["p"]),
        node("Add", ["p", "qkv_b"], ["qkv"]),
        node("Reshape", ["qkv", "split"], ["parts"]),
        node("Transpose", ["parts"], ["t"], perm=[2, 0, 3, 1, 4]),
        *(node("Gather", ["t", f"{number}"], [name], axis=0) for number, name in enumerate("qkv")),
        node("Mul", ["q", "factor"], ["q_s"]),
        node("Mul", ["k", "factor"], ["k_s"]),
        node("Transpose", [key], ["k_t"], perm=[0, 1, 3, 2]),
        node("MatMul", [query, "k_t"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["attended"]),
        node("Transpose", ["attended"], ["a_t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["a_t", "joined"], ["a"]),
        node("MatMul", ["a", "out_w"], ["o"]),
        node("Add", ["o", "x"], ["r"]),
        node("LayerNormalization", ["r", "norm2"], ["m"]),
        node("MatMul", ["m", "up_w"], ["u"]),
        node("Add", ["u", "up_b"], ["u_b"]),
        node("Gelu", ["u_b"], ["g"]),
        node("MatMul", ["g", "down_w"], ["d"]),
        node("Add", ["d", "r"], ["y"]),
    ]
    constants = [
        *(weights(f"{name}_w", a * wide, b * wide) for name, a, b in (("qkv", 1, 3), ("out", 1, 1), ("up", 1, 4))),
        weights("down_w", 4 * wide, wide),
        *(tensor(name, RNG.standard_normal(n * wide).astype(np.float32)) for name, n in (("qkv_b", 3), ("up_b", 4))),
        *(tensor(name, 1 + RNG.random(wide).astype(np.float32)) for name in ("norm1", "norm2")),
        tensor("split", np.array([0, 0, 3, heads, size])),
        tensor("joined", np.array([0, 0, wide])),
        tensor("factor", np.float32(0.37)),
        *(tensor(f"{number}", np.int64(number)) for number in range(3)),
    ]
    return model(nodes, [value("x", [batch, length, wide])], [value("y", None)], constants, opsets={"": 20})


def rotated() -> onnx.ModelProto:
    """An attention whose queries and keys are multiplied by a table, so that only its values can be stored rounded."""
    nodes = [node("Relu", ["x"], ["positive"])]
    for name in "qkv":
        nodes += [
            node("MatMul", ["positive" if name == "v" else "x", f"{name}_w"], [f"{name}_p"]),
            node("Reshape", [f"{name}_p", "heads"], [f"{name}_h"]),
            node("Transpose", [f"{name}_h"], [name], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        node("Mul", ["q", "table"], ["q_r"]),
        node("Mul", ["k", "table"], ["k_r"]),
        node("Transpose", ["k_r"], ["k_t"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q_r", "k_t"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["y"]),
    ]
    constants = [
        *(weights(f"{name}_w", 48, 32) for name in "qkv"),
        tensor("heads", np.array([0, 0, 2, 16])),
        tensor("table", RNG.random((20, 16)).astype(np.float32)),
    ]
    return model(nodes, [value("x", [2, 20, 48])], [value("y", None)], constants, opsets={"": 17})


def after_norm(flat: bool) -> onnx.ModelProto:
    """A product and a residual that both read a norm, as in BERT; `flat`: products read rows of two dimensions."""
    nodes = [
        node("LayerNormalization", ["x", "scale"], ["n"]),
        node("Reshape", ["n", "rows"], ["f"]),
        node("MatMul", ["f" if flat else "n", "w"], ["p"]),
        node("Relu", ["p"], ["h"]),
        node("MatMul", ["h", "v"], ["q"]),
        node("Reshape", ["q", "whole"], ["q_w"]),
        node("Add", ["q_w", "n"], ["y"]),
    ]
    constants = [
        weights("w", 48, 64),
        weights("v", 64, 48),
        tensor("scale", np.ones(48, np.float32)),
        tensor("rows", np.array([40, 48])),
        tensor("whole", np.array([2, 20, 48])),
    ]
    return model(nodes, [value("x", [2, 20, 48])], [value("y", None)], constants, opsets={"": 17})


def convolutions() -> onnx.ModelProto:
    """Convolutions after one another, with a pool, a shuffle of channels, a grouped and a strided one."""
    nodes = [
        node("Conv", ["x", "a"], ["c1"], pads=[1] * 4),
        node("Relu", ["c1"], ["r1"]),
        node("MaxPool", ["r1"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["m", "b"], ["c2"]),
        node("Reshape", ["c2", "groups"], ["g"]),
        node("Transpose", ["g"], ["t"], perm=[0, 2, 1, 3, 4]),
        node("Reshape", ["t", "back"], ["s"]),
        node("Conv", ["s", "c"], ["c3"]),
        node("Conv", ["c3", "d"], ["c4"], group=48, pads=[1] * 4),
        node("Conv", ["c4", "e"], ["y"], strides=[2, 2]),
    ]
    constants = [
        weights("a", 40, 16, 3, 3),
        weights("b", 48, 40, 1, 1),
        weights("c", 48, 48, 1, 1),
        weights("d", 48, 1, 3, 3),
        weights("e", 16, 48, 1, 1),
        tensor("groups", np.array([1, 2, 24, 6, 6])),
        tensor("back", np.array([1, 48, 6, 6])),
    ]
    return model(nodes, [value("x", [1, 16, 12, 12])], [value("y", None)], constants, opsets={"": 17})


def fused_programs(built: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> tuple[FusedProgram, FusedProgram]:
    """Return the fused program, and one in which each product rounds its own operands."""
    program = weft.load(built, device="reference").program
    rounded = fuse(program, HALVES)
    with monkeypatch.context() as patch:
        patch.setattr(fusion, "PIPELINE", tuple(stage for stage in fusion.PIPELINE if stage is not round_operands))
        return rounded, fuse(program, HALVES)


def has_kernels(group: Group) -> bool:
    """Whether a group has kernels."""
    return not isinstance(group, ReshapeGroup)


def input_of(built: onnx.ModelProto, **sizes: int) -> dict[str, Array]:
    (source,) = built.graph.input
    shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in source.type.tensor_type.shape.dim]
    return {source.name: RNG.standard_normal(shape).astype(np.float32)}


CASES: Mapping[str, Any] = {
    "layer": transformer,
    "unscaled layer": lambda: transformer(scale=False),
    "rotated": rotated,
    "norm": lambda: after_norm(False),
    "norm of rows": lambda: after_norm(True),
    "convolutions": convolutions,
}


@pytest.mark.parametrize("case", CASES)
def test_results_have_the_bits_of_products_that_round_their_operands(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = CASES[case]()
    inputs = input_of(built)
    rounded, plain = fused_programs(built, monkeypatch)
    (actual,), (expected,) = run_fused(rounded, HALVES, inputs), run_fused(plain, HALVES, inputs)
    assert actual.dtype == np.float32
    assert actual.tobytes() == expected.tobytes()
    (oracle,) = onnxruntime_run(built, inputs)
    np.testing.assert_allclose(actual, oracle, rtol=0, atol=4e-3 * np.abs(oracle).max())


@pytest.mark.parametrize("case", CASES)
def test_the_same_products_are_reported_as_narrowed(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = fused_programs(CASES[case](), monkeypatch)
    rounded, plain = (list(find_narrowed_products(build_sections(fused, HALVES))) for fused in programs)
    assert {product.operands for product in rounded} == {"float16"}
    for one, other in zip(rounded, plain, strict=True):
        assert (one.operands, one.template) == (other.operands, other.template)
        assert sorted(one.node.split(ORIGINS)) == sorted(other.node.split(ORIGINS))


@pytest.mark.parametrize("sizes", [(2, 20), ("batch", "length")])
@pytest.mark.parametrize("scale", [False, True])
def test_a_layer_keeps_only_its_residuals_in_float32(scale: bool, sizes: tuple[Any, Any]) -> None:
    program = weft.load(transformer(scale, *sizes), device="reference").program
    fused = fuse(program, HALVES)
    kinds = [(type(group), *(v.dtype for v in group.results)) for group in fused.groups if has_kernels(group)]
    half, single = DType.float16, DType.float32
    assert kinds == [
        (RowGroup, half),
        (HeavyGroup, half),
        (AttentionGroup, half),
        (HeavyGroup, single),
        (RowGroup, half),
        (HeavyGroup, half),
        (HeavyGroup, single),
    ]
    (attention,) = (group.attention for group in fused.groups if isinstance(group, AttentionGroup))
    assert all(isinstance(role, Load) for role in (attention.query, attention.key, attention.value))


def test_values_are_stored_rounded_beside_keys_that_are_not() -> None:
    fused = fuse(weft.load(rotated(), device="reference").program, HALVES)
    (attention,) = (group.attention for group in fused.groups if isinstance(group, AttentionGroup))
    assert (attention.key.dtype, attention.value.dtype) == (DType.float32, DType.float16)


@pytest.mark.parametrize("flat", [False, True])
def test_a_norm_writes_both_what_products_and_residuals_read(flat: bool) -> None:
    fused = fuse(weft.load(after_norm(flat), device="reference").program, HALVES)
    norm, *products = (group for group in fused.groups if has_kernels(group))
    assert isinstance(norm, RowGroup)
    assert [v.dtype for v in norm.results] == [DType.float32, DType.float16]
    assert [group.results[0].dtype for group in products[:2]] == [DType.float16, DType.float32]


def test_depthwise_convolutions_and_outputs_stay_in_float32() -> None:
    fused = fuse(weft.load(convolutions(), device="reference").program, HALVES)
    read = [group.sources[0].dtype for group in fused.groups if isinstance(group, HeavyGroup)]
    half, single = DType.float16, DType.float32
    assert read == [half, single, half, half, single, single]  # the image, pool, two products, depthwise, the last


@pytest.mark.parametrize("products", [p for p in Float32Products if p is not Float32Products.HALVES])
def test_other_precisions_store_float32(products: Float32Products) -> None:
    fused = fuse(weft.load(transformer(), device="reference").program, with_products(products))
    assert {v.dtype for group in fused.groups for v in group.results} == {DType.float32}
