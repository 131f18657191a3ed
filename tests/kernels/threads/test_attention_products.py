"""Attention on expanded tile products, whole and with split keys, against softmax(q k) v in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from kernels.threads.emulation import run_work, with_products
from kernels.threads.test_attention import Alone
from kernels.vector import test_attention as written
from kernels.vector.test_attention import Array, attention_model, close, exact, qkv, sink_inputs, sink_model

import weft
from weft.backends.reference.interpret import run as run_program
from weft.fuse import fuse
from weft.fuse.attention import attention_support
from weft.ir.dtypes import DType
from weft.ir.groups import AttentionGroup, MapGroup
from weft.ir.kernel import MoveRun, Statement, TilePipeline, inner_bodies
from weft.ir.layout import row_major
from weft.ir.target import Float32Products, ThreadTarget
from weft.ir.types import TensorType
from weft.ir.work import Launch
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.threads.attention_work import build_attention

PARTS, TF32, HALVES = Float32Products.PARTS, Float32Products.TF32, Float32Products.HALVES
WITHIN = {PARTS: 4e-6, TF32: 4e-3, HALVES: 2e-3}
SIZES = [
    # batch, heads, queries, keys, depth, width
    (1, 2, 64, 64, 64, 64),
    (2, 1, 70, 130, 32, 32),
    (1, 2, 13, 31, 15, 15),
    (1, 1, 12, 33, 17, 40),
    (1, 1, 7, 130, 1, 1),
    (1, 1, 65, 65, 80, 128),
]


def launches_of(alone: Alone, target: ThreadTarget) -> tuple[Launch, ...]:
    (part,) = build_attention(alone.attention, alone.tensors[:-1], alone.tensors[-1], target)
    return part.work.launches


def emulated(alone: Alone, target: ThreadTarget, tile_products: str = "") -> Array:
    (part,) = build_attention(alone.attention, alone.tensors[:-1], alone.tensors[-1], target)
    memory = [alone.arrays[alone.operands[number]] for number in part.operands]
    operands = [(array, row_major(array.ndim)) for array in memory]
    (result,) = run_work(part.work, operands, [part.result], alone.sizes, tile_products)
    return result


def statements_of(body: Sequence[Statement]) -> list[Statement]:
    return [statement for one in body for statement in (one, *(s for b in inner_bodies(one) for s in statements_of(b)))]


def busy(target: ThreadTarget) -> ThreadTarget:
    """Return a target that a single block keeps busy, so that nothing is split."""
    return replace(target, rates=replace(target.rates, compute_units=0))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("products", [PARTS, TF32, HALVES])
def test_sizes(products: Float32Products, sizes: tuple[int, ...]) -> None:
    inputs = qkv(np.random.default_rng(1), *sizes)
    alone = Alone(attention_model({name: array.shape for name, array in inputs.items()}), inputs)
    target = with_products(products)
    assert any(
        isinstance(statement, TilePipeline) for statement in statements_of(launches_of(alone, target)[0].kernel.body)
    )
    close(emulated(alone, target), exact(inputs), WITHIN[products])


@pytest.mark.parametrize("tile_products", ["mma.sync", "wgmma"])
@pytest.mark.parametrize("sizes", [(1, 1, 20, 70, 64, 15), (1, 1, 9, 40, 17, 80)], ids=str)
def test_scores_stay_in_registers(sizes: tuple[int, ...], tile_products: str) -> None:
    """Tensor cores, as emulated, give what the expanded products do."""
    inputs = qkv(np.random.default_rng(13), *sizes)
    alone = Alone(attention_model({name: array.shape for name, array in inputs.items()}), inputs)
    target = with_products(HALVES)
    (launch,) = launches_of(alone, target)
    local = {buffer.name for buffer in launch.kernel.buffers if buffer.local_size and not (buffer.tile or buffer.late)}
    assert local == {"factors"}
    actual = emulated(alone, target, tile_products)
    close(actual, emulated(alone, target), 2e-4)  # sums in another order may round a weight differently
    close(actual, exact(inputs), WITHIN[HALVES])


@pytest.mark.parametrize("products", [PARTS, HALVES])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 600, 64, 64), (1, 2, 5, 513, 9, 6), (1, 1, 70, 512, 16, 8)], ids=str)
def test_split_keys(products: Float32Products, sizes: tuple[int, ...]) -> None:
    inputs = qkv(np.random.default_rng(2), *sizes)
    shapes: dict[str, Sequence[Any]] = {name: array.shape for name, array in inputs.items()}
    shapes["q"] = [sizes[0], "n", sizes[1], sizes[4]]
    alone = Alone(attention_model(shapes), inputs)
    target = with_products(products)
    assert len(launches_of(alone, target)) == 3  # whole, split and joined: the run decides
    close(emulated(alone, target), exact(inputs), WITHIN[products])


@pytest.mark.parametrize("products", [PARTS, HALVES])
@pytest.mark.parametrize("sizes", [(1, 3, 5, 600, 16, 8), (1, 3, 70, 40, 16, 8)], ids=str)
def test_sinks(products: Float32Products, sizes: tuple[int, ...]) -> None:
    inputs, expected = sink_inputs(*sizes)
    alone = Alone(sink_model({name: array.shape for name, array in inputs.items()}), inputs)
    assert alone.attention.sink is not None
    for fixed_order in (False, True):
        close(emulated(alone, replace(with_products(products), fixed_order=fixed_order)), expected, WITHIN[products])


@pytest.mark.parametrize("products", [PARTS, HALVES])
def test_bits_do_not_depend_on_other_rows_in_a_fixed_order(products: Float32Products) -> None:
    """Splits of the keys have one length, whatever the batch and the number of queries."""
    target = replace(with_products(products), fixed_order=True)
    inputs = qkv(np.random.default_rng(5), 2, 1, 66, 1100, 16, 8)

    def run(batch: slice, rows: slice) -> Array:
        chosen = {name: array[batch, rows] if name == "q" else array[batch] for name, array in inputs.items()}
        shapes = {name: array.shape for name, array in chosen.items()}
        alone = Alone(attention_model(shapes), chosen, attention_support(target))
        assert len(launches_of(alone, target)) == 2
        return emulated(alone, target)

    every = run(slice(2), slice(66))
    close(every, exact(inputs), WITHIN[products])
    for row in (0, 65):
        assert run(slice(1, 2), slice(row, row + 1)).tobytes() == every[1:2, row : row + 1].tobytes()
    assert run(slice(1), slice(3, 9)).tobytes() == every[:1, 3:9].tobytes()


@pytest.mark.parametrize(("queries", "keys"), [(3, 700), (70, 100), (1, 1), (64, 512)])
def test_all_sizes_dynamic(queries: int, keys: int) -> None:
    inputs = qkv(np.random.default_rng(3), 1, 2, queries, keys, 24, 20)
    shapes: dict[str, Sequence[Any]] = {"q": ["b", "n", 2, 24], "k": ["b", "m", 2, 24], "v": ["b", "m", 2, 20]}
    close(emulated(Alone(attention_model(shapes), inputs), with_products(PARTS)), exact(inputs))


def test_keys_in_memory_order_are_moved_into_tiles() -> None:
    inputs = qkv(np.random.default_rng(4), 1, 1, 64, 64, 64, 64)
    alone = Alone(attention_model({name: array.shape for name, array in inputs.items()}), inputs)
    (launch,) = launches_of(alone, with_products(TF32))
    assert any(isinstance(statement, MoveRun) for statement in statements_of(launch.kernel.body))


def test_little_shared_memory() -> None:
    """Tiles of one stage, and no tile products if these do not fit either."""
    inputs = qkv(np.random.default_rng(5), 1, 1, 30, 70, 64, 64)
    alone = Alone(attention_model({name: array.shape for name, array in inputs.items()}), inputs)
    target = replace(with_products(HALVES), shared_bytes=60000)
    (launch,) = launches_of(alone, target)
    assert all(buffer.tile is None or buffer.tile.stages == 1 for buffer in launch.kernel.buffers)
    assert any(buffer.tile is not None for buffer in launch.kernel.buffers)
    close(emulated(alone, target), exact(inputs), WITHIN[HALVES])
    (launch,) = launches_of(alone, replace(target, shared_bytes=16384))
    assert all(buffer.tile is None for buffer in launch.kernel.buffers)


@pytest.mark.parametrize("bad", [np.inf, 1e6])
def test_values_outside_of_float16(bad: float) -> None:
    inputs = qkv(np.random.default_rng(6), 1, 1, 20, 30, 8, 8)
    inputs["v"][0, 3, 0, 2] = bad
    actual = emulated(Alone(attention_model({n: a.shape for n, a in inputs.items()}), inputs), with_products(HALVES))
    columns = [column for column in range(8) if column != 2]
    close(actual[..., columns], exact(inputs)[..., columns], WITHIN[HALVES])
    assert np.all(actual[..., 2] > 100)


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16])
@pytest.mark.parametrize(
    "sizes", [(1, 2, 70, 130, 64, 64), (1, 1, 13, 31, 20, 12), (1, 1, 3, 600, 32, 32), (1, 1, 9, 70, 16, 32)], ids=str
)
def test_narrow_types(dtype: DType, sizes: tuple[int, ...]) -> None:
    """Operands of the tiles' type, with a mask that hides keys."""
    rng = np.random.default_rng(11)
    wide = qkv(rng, *sizes)
    mask = np.where(rng.random((sizes[2], sizes[3])) < 0.3, -np.inf, rng.standard_normal((sizes[2], sizes[3])))
    inputs = {name: array.astype(dtype.numpy) for name, array in {**wide, "mask": mask}.items()}
    kind = onnx.TensorProto.FLOAT16 if dtype is DType.float16 else onnx.TensorProto.BFLOAT16
    node, value = written.node, written.value
    nodes = [
        written.heads_first("q", "queries"),
        node("Transpose", ["k"], ["keys"], perm=[0, 2, 3, 1]),
        written.heads_first("v", "values"),
        node("MatMul", ["queries", "keys"], ["qk"]),
        node("Add", ["qk", "mask"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "values"], ["o"]),
        written.heads_first("o", "t"),
        node("Relu", ["t"], ["y"]),
    ]
    inputs_info = [value(name, array.shape, kind) for name, array in inputs.items()]
    built = written.model(nodes, inputs_info, [value("y", None, kind)], opsets={"": 22})
    target = with_products(Float32Products.EXACT)
    alone = Alone(built, inputs, attention_support(target))
    kernel = launches_of(alone, target)[0].kernel
    moved = [run.tile for run in statements_of(kernel.body) if isinstance(run, MoveRun)]
    assert bool(moved) == (sizes[4] % 8 == 0)
    actual = emulated(alone, target)
    assert actual.dtype == dtype.numpy
    rounded = {name: array.astype(np.float64) for name, array in inputs.items()}
    expected = np.maximum(exact(rounded, rounded["mask"], scale=1.0), 0)
    if sizes[2] == 9:
        for tile_products in ("mma.sync", "wgmma"):
            close(emulated(alone, target, tile_products).astype(np.float64), actual.astype(np.float64), 1e-2)
    close(actual.astype(np.float64), expected, 3e-3 if dtype is DType.float16 else 2e-2)
    without = replace(target, shared_bytes=16384)  # the same group, where tiles do not fit
    close(emulated(alone, without).astype(np.float64), expected, 3e-3 if dtype is DType.float16 else 2e-2)


def visible_keys(queries: int, keys: int) -> Array:
    """Return a mask in which some rows see no keys at all, none at the start, or none at the end."""
    mask = np.random.default_rng(8).random((1, 1, queries, keys)) < 0.5
    mask[0, 0, 3] = False
    mask[0, 0, 5, : keys // 2] = False
    mask[0, 0, 6, keys // 3 :] = False
    return np.asarray(mask)


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize(("products", "keys"), [(PARTS, 100), (PARTS, 600), (HALVES, 100), (HALVES, 600)])
def test_rows_without_a_visible_key(products: Float32Products, keys: int, guarded: bool) -> None:
    inputs = qkv(np.random.default_rng(9), 1, 1, 30, keys, 16, 16)
    mask = visible_keys(30, keys)
    expected = exact(inputs, np.where(mask, 0.0, -np.inf))
    assert np.isnan(expected[0, 3]).all()
    built = written.boolean_mask({name: array.shape for name, array in inputs.items()}, mask, guarded=guarded)
    actual = emulated(Alone(built, {**inputs, "mask": mask}), with_products(products))
    close(actual, np.nan_to_num(expected) if guarded else expected, WITHIN[products])


@pytest.mark.parametrize("scale", [300.0, -300.0, 1e30])
def test_scores_that_grow_fall_and_overflow(scale: float) -> None:
    inputs = qkv(np.random.default_rng(10), 1, 1, 25, 520, 8, 8)
    mask = np.linspace(-1, 1, 520, dtype=np.float32) * np.float32(scale)
    shapes = {name: array.shape for name, array in {**inputs, "mask": mask}.items()}
    alone = Alone(attention_model(shapes, [written.node("Add", ["qk", "mask"], ["s"])]), {**inputs, "mask": mask})
    for target in (with_products(PARTS), busy(with_products(PARTS))):
        close(emulated(alone, target), exact(inputs, mask, scale=1.0), 1e-4)


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the programs of the CPU tests."""

    def run(built: onnx.ModelProto, inputs: Mapping[str, Array], *, attentions: int = 1, threads: int = 1) -> Array:
        assert (attentions, threads) == (1, 1)
        result = emulated(Alone(built, inputs), busy(with_products(PARTS)))
        return result if result.ndim < 5 else result.reshape(len(result), -1, *result.shape[3:])

    monkeypatch.setattr(written, "run", run)


@pytest.mark.usefixtures("whole")
class TestPrograms:
    def test_nan_and_infinite_queries(self) -> None:
        written.test_nan_and_infinite_queries()

    def test_softcap_and_causal_comparison(self) -> None:
        written.test_softcap_and_causal_comparison()

    @pytest.mark.parametrize(("mask", "causal"), [("float", 0), (None, 1)])
    def test_the_operator(self, mask: str | None, causal: int) -> None:
        written.test_the_operator(4, mask, causal)

    def test_transposed_scores(self) -> None:
        written.test_transposed_scores()


@pytest.mark.parametrize("low", [-np.inf, np.finfo(np.float32).min])
@pytest.mark.parametrize("split", [False, True])
def test_causal_masks_in_memory(low: float, split: bool) -> None:
    """Rows whose visible keys are all padding attend to keys that a finite score hides."""
    rng = np.random.default_rng(7)
    length = 512 + 8
    inputs = qkv(rng, 1, 1, length, length, 8, 8)
    padding = rng.random((1, 1, 1, length)) < 0.8
    padding[..., :70] = False
    node, value = written.node, written.value
    score = [
        node("Shape", ["q"], ["size"], start=1, end=2),
        node("Squeeze", ["size"], ["length"]),
        node("Range", ["zero", "length", "one"], ["places"]),
        node("Unsqueeze", ["places", "one_axis"], ["rows"]),
        node("LessOrEqual", ["places", "rows"], ["before"]),
        node("And", ["before", "padding"], ["seen"]),
        node("Where", ["seen", "nothing", "low"], ["mask"]),
        node("Add", ["qk", "mask"], ["s"]),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1), "one_axis": np.array([1]), "nothing": np.float32(0)}
    more = [value("padding", (1, 1, 1, "n"), onnx.TensorProto.BOOL)]
    shapes = dict.fromkeys("qkv", (1, "n", 1, 8))
    built = attention_model(shapes, score, (), more, constants={**constants, "low": np.float32(low)})
    alone = Alone(built, {**inputs, "padding": padding})
    assert alone.attention.causal_bounds
    target = with_products(HALVES)
    actual = emulated(alone, target if split else busy(target))
    mask = np.where(np.tri(length, dtype=bool) & padding, 0.0, low)
    close(actual, exact(inputs, mask, scale=1.0), WITHIN[HALVES])


def test_rotated_queries_and_keys() -> None:
    """Rotary embeddings: queries are rotated as they are read, keys once before, for all blocks."""
    rng = np.random.default_rng(12)
    inputs = qkv(rng, 1, 2, 40, 70, 16, 16)
    angles = rng.standard_normal((70, 8)).astype(np.float32)
    node, value = written.node, written.value
    nodes = [written.heads_first("v", "values"), node("Concat", ["angles", "angles"], ["all"], axis=1)]
    nodes += [node("Cos", ["all"], ["keys_cos"]), node("Sin", ["all"], ["keys_sin"])]
    for name in ("cos", "sin"):
        nodes.append(node("Slice", [f"keys_{name}", "zero", "queries"], [f"queries_{name}"]))
    for source, name in (("q", "queries"), ("k", "keys")):
        nodes += [
            written.heads_first(source, f"{name}_plain"),
            node("Split", [f"{name}_plain"], [f"{name}_low", f"{name}_high"], axis=3, num_outputs=2),
            node("Neg", [f"{name}_high"], [f"{name}_negative"]),
            node("Concat", [f"{name}_negative", f"{name}_low"], [f"{name}_turned"], axis=3),
            node("Mul", [f"{name}_plain", f"{name}_cos"], [f"{name}_a"]),
            node("Mul", [f"{name}_turned", f"{name}_sin"], [f"{name}_b"]),
            node("Add", [f"{name}_a", f"{name}_b"], [f"{name}_rotated"]),
        ]
    nodes += [
        node("Transpose", ["keys_rotated"], ["keys_last"], perm=[0, 1, 3, 2]),
        node("MatMul", ["queries_rotated", "keys_last"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "values"], ["o"]),
        written.heads_first("o", "y"),
    ]
    constants = [written.tensor("zero", np.array([0])), written.tensor("queries", np.array([40]))]
    inputs["angles"] = angles
    given_values = [value(name, array.shape) for name, array in inputs.items()]
    built = written.model(nodes, given_values, [value("y", None)], constants, opsets={"": 18})
    target = with_products(PARTS)
    fused = fuse(weft.load(built, device="reference").program, target)
    (group,) = [group for group in fused.groups if isinstance(group, AttentionGroup)]
    kinds = [type(other) for other in fused.groups if not isinstance(other, AttentionGroup)]
    assert kinds.count(MapGroup) <= 3  # cosines, sines, and the rotated keys
    before = replace(fused.program, outputs=group.operands)
    arrays = run_program(before, [inputs[entry.name] for entry in before.inputs])
    stored = []
    for operand in (*group.operands, group.results[0]):
        assert isinstance(operand.type, TensorType)
        assert operand.type.shape is not None
        stored.append(StoredTensor(operand.type.dtype, operand.type.shape, row_major(len(operand.type.shape))))
    (part,) = build_attention(group.attention, stored[:-1], stored[-1], target)
    memory = [(np.asarray(arrays[number]), row_major(np.ndim(arrays[number]))) for number in part.operands]
    (actual,) = run_work(part.work, memory, [part.result])

    def rotated(array: Array) -> Array:
        length = array.shape[1]
        both = np.concatenate([angles, angles], 1)[:length].astype(np.float64)[None, :, None]
        wide = array.astype(np.float64)
        turned = np.concatenate([-wide[..., 8:], wide[..., :8]], -1)
        return np.asarray(wide * np.cos(both) + turned * np.sin(both))

    close(actual, exact({**inputs, "q": rotated(inputs["q"]), "k": rotated(inputs["k"])}, scale=1.0))
