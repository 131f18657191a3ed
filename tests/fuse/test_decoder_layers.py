"""Maps of a decoder layer that other steps compute: rotated queries, slices that are split into heads, rounded rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontend.samples import model, node, tensor, value
from generation.small_decoders import VARIANTS, write_decoder
from kernels.threads.emulation import with_products
from onnx import TensorProto

import weft
from weft.backends.reference.interpret import run
from weft.cache.code import shared_cache
from weft.fuse import fuse, grouping
from weft.fuse.attention import AttentionSupport, find_attention
from weft.fuse.inline import inline_maps
from weft.fuse.reshapes import move_maps_before_reshapes
from weft.ir.attention import Attention
from weft.ir.groups import AttentionGroup, MapGroup
from weft.ir.program import Contract, Map, Reshape, Scatter, TensorProgram
from weft.ir.scalar import Load, loads, rebuild
from weft.ir.target import Float32Products

PAGES = AttentionSupport(fewest_rows=1, pages=True, gathers=True)
RNG = np.random.default_rng(12)


@pytest.fixture
def paged_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TensorProgram:
    """The program of a small decoder over a paged cache, before attention is grouped."""
    programs: list[TensorProgram] = []
    find: Callable[..., Any] = grouping.find_attention

    def spy(program: TensorProgram, support: AttentionSupport) -> Any:
        programs.append(program)
        return find(program, support)

    monkeypatch.setattr(grouping, "find_attention", spy)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    shared_cache.cache_clear()
    file = write_decoder(VARIANTS["llama"], tmp_path / "decoder.onnx")
    with weft.Generator(file, device="cpu", max_length=64, speculate=False):
        pass
    shared_cache.cache_clear()
    return next(p for p in programs if any(isinstance(step.primitive, Scatter) for step in p.steps))


def match_first(program: TensorProgram, support: AttentionSupport) -> Attention:
    return find_attention(program, support)[0][1]


def test_attention_rotates_its_queries(paged_program: TensorProgram) -> None:
    """Positions are trusted, so that the kernel of attention looks the angles up."""
    rotated = match_first(paged_program, PAGES)
    assert rotated.block_size is not None
    assert len({load.operand for load in loads(rotated.query)}) == 4  # the product, positions, cosines and sines
    assert not any(load.checked for load in loads(rotated.query))


def test_queries_that_attention_cannot_rotate(paged_program: TensorProgram) -> None:
    """Without blocks, with few buffers, or with checks, which kernels of attention cannot report."""
    for support in (replace(PAGES, pages=False), replace(PAGES, most_operands=5), replace(PAGES, gathers=False)):
        assert isinstance(match_first(paged_program, support).query, Load)
    checked = tuple(
        replace(step, primitive=Map(rebuild(step.primitive.expression, check_gather)))
        if isinstance(step.primitive, Map)
        else step
        for step in paged_program.steps
    )
    assert isinstance(match_first(replace(paged_program, steps=checked), PAGES).query, Load)


def check_gather(load: Load) -> Load:
    return replace(load, checked=any(map(loads, load.indices)))


def trace(built: Any) -> TensorProgram:
    program = weft.load(built, device="reference").program
    assert isinstance(program, TensorProgram)
    return program


def test_slices_are_split_into_heads_by_their_reader() -> None:
    nodes = [
        node("Slice", ["x", "start", "stop", "axis"], ["part"]),
        node("Reshape", ["part", "heads"], ["split"]),
        node("Transpose", ["split"], ["moved"], perm=[0, 2, 1, 3]),
        node("Exp", ["moved"], ["y"]),
    ]
    constants = {
        "start": np.array([8]), "stop": np.array([20]), "axis": np.array([2]), "heads": np.array([0, 0, 3, 4]),
    }  # fmt: skip
    initializers = [tensor(name, array) for name, array in constants.items()]
    built = model(nodes, [value("x", ["b", "s", 24])], [value("y", None)], initializers)
    program = trace(built)
    inlined = inline_maps(program)
    assert [type(step.primitive) for step in inlined.steps] == [Map]
    x = RNG.standard_normal((2, 5, 24)).astype(np.float32)
    (actual,) = run(inlined, [x])
    np.testing.assert_array_equal(actual, np.exp(x[..., 8:20].reshape(2, 5, 3, 4).transpose(0, 2, 1, 3)))


def test_attention_rounds_its_result() -> None:
    """A cast behind the reshape of a product becomes its epilogue."""
    nodes = [
        node("MatMul", ["q", "k"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["mixed"]),
        node("Transpose", ["mixed"], ["moved"], perm=[0, 2, 1, 3]),
        node("Reshape", ["moved", "rows"], ["joined"]),
        node("Cast", ["joined"], ["y"], to=TensorProto.FLOAT16),
    ]
    inputs = [value("q", [2, 3, 9, 8]), value("k", [2, 3, 8, 11]), value("v", [2, 3, 11, 8])]
    built = model(nodes, inputs, [value("y", None, TensorProto.FLOAT16)], [tensor("rows", np.array([0, 0, 24]))])
    program = trace(built)
    fused = fuse(program, with_products(Float32Products.PARTS))
    (attention,) = (group for group in fused.groups if isinstance(group, AttentionGroup))
    assert attention.attention.epilogue is not None
    assert not any(isinstance(group, MapGroup) for group in fused.groups)
    moved = move_maps_before_reshapes(program, of_maps=False)
    arrays = [RNG.standard_normal(each.shape).astype(np.float32) for each in program.inputs]
    np.testing.assert_array_equal(run(moved, arrays)[0], run(program, arrays)[0])


def test_rows_in_blocks_are_scaled_before_they_are_joined() -> None:
    """A map that reads a scale per block moves before the reshape from blocks to rows, and another stays behind."""
    nodes = [
        node("Mul", ["x", "x"], ["squares"]),
        node("Reshape", ["squares", "rows"], ["joined"]),
        node("Mul", ["joined", "weights"], ["scaled"]),
        node("MatMul", ["scaled", "matrix"], ["y"]),
    ]
    weights, matrix = (RNG.standard_normal(size).astype(np.float32) for size in ((32,), (32, 5)))
    constants = {"rows": np.array([0, 32]), "weights": weights, "matrix": matrix}
    initializers = [tensor(name, array) for name, array in constants.items()]
    program = trace(model(nodes, [value("x", [6, 4, 8])], [value("y", None)], initializers))
    moved = move_maps_before_reshapes(program, of_maps=True)
    kinds = [type(step.primitive) for step in moved.steps]
    assert kinds == [Map, Map, Reshape, Contract]
    assert [type(step.primitive) for step in move_maps_before_reshapes(program, of_maps=False).steps] == [
        Map,
        Reshape,
        Map,
        Contract,
    ]
    x = RNG.standard_normal((6, 4, 8)).astype(np.float32)
    np.testing.assert_array_equal(run(moved, [x])[0], run(program, [x])[0])
