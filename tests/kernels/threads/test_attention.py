"""Attention on tiles in shared memory, and as products without shared memory, against softmax(q k) v in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from kernels.threads.works import run_on_cpu, run_work, targets
from kernels.vector import test_attention as written
from kernels.vector.test_attention import (
    Array,
    attention_model,
    close,
    exact,
    node,
    program_of,
    qkv,
    sink_inputs,
    sink_model,
)

import weft
from weft.backends.webgpu import targets as targets_module
from weft.fuse.attention import DEFAULT_SUPPORT, AttentionSupport, find_attention, number_loads
from weft.ir.attention import Attention
from weft.ir.layout import row_major
from weft.ir.program import Reshape
from weft.ir.target import ThreadTarget
from weft.ir.types import TensorType
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.threads.attention_tiles import choose_attention_tile
from weft.kernels.threads.attention_work import build_attention

LEAST = 16384  # bytes that a block can share on every device
SIZES = [
    # batch, heads, queries, keys, depth, width
    (1, 2, 64, 64, 64, 64),
    (2, 3, 70, 197, 32, 32),
    (1, 2, 13, 31, 15, 15),
    (1, 1, 12, 33, 17, 40),
    (1, 1, 7, 130, 1, 1),
    (1, 1, 33, 40, 96, 24),
]


class Alone:
    """A model of one attention, with its kernel's operands."""

    def __init__(
        self, built: onnx.ModelProto, inputs: Mapping[str, Array], sought: AttentionSupport = DEFAULT_SUPPORT
    ) -> None:
        program = program_of(built)
        ((steps, attention),) = find_attention(program, sought)
        inner = {result for step in steps for result in step.results}
        self.operands = list(dict.fromkeys(v for step in steps for v in step.operands if v not in inner))
        self.attention: Attention = number_loads(attention, self.operands)
        self.tensors = []
        for operand in (*self.operands, steps[-1].results[0]):
            assert isinstance(operand.type, TensorType)
            assert operand.type.shape is not None
            self.tensors.append(
                StoredTensor(operand.type.dtype, operand.type.shape, row_major(len(operand.type.shape)))
            )
        self.arrays = {**program.constants, **dict(zip(program.inputs, inputs.values()))}
        for step in program.steps:
            if isinstance(step.primitive, Reshape) and step.operands[0] in self.arrays:
                shape = step.results[0].type.shape  # type: ignore[union-attr]
                self.arrays[step.results[0]] = self.arrays[step.operands[0]].reshape(shape)
        self.sizes = {
            str(size): length
            for input_value in program.inputs
            if isinstance(input_value.type, TensorType)
            for size, length in zip(input_value.type.shape or (), self.arrays[input_value].shape)
            if not isinstance(size, int)
        }

    def run(self, target: ThreadTarget, *, at_start: bool | None = None) -> Array:
        """Return the result; with `at_start`, on CPU vectors, at the start or end of accessible memory."""
        (part,) = build_attention(self.attention, self.tensors[:-1], self.tensors[-1], target)
        arrays = [self.arrays[self.operands[number]] for number in part.operands]
        memory = [(array, row_major(array.ndim)) for array in arrays]
        if at_start is not None:
            (result,), _ = run_on_cpu(part.work, memory, [part.result], self.sizes, at_start=at_start)
        else:
            (result,), _ = run_work(part.work, memory, [part.result], self.sizes)
        return result


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes: tuple[int, ...]) -> None:
    inputs = qkv(np.random.default_rng(1), *sizes)
    built = attention_model({name: array.shape for name, array in inputs.items()})
    close(Alone(built, inputs).run(targets()["sharing"]), exact(inputs))


@pytest.mark.parametrize("fixed_order", [False, True])
@pytest.mark.parametrize("at_start", [None, False, True])
def test_sinks(fixed_order: bool, at_start: bool | None) -> None:
    inputs, expected = sink_inputs(2, 3, 7, 600, 16, 9)
    target = replace(targets()["sharing"], fixed_order=fixed_order, most_block_threads=16)
    alone = Alone(sink_model({name: array.shape for name, array in inputs.items()}), inputs)
    assert alone.attention.sink is not None
    close(alone.run(target, at_start=at_start), expected)


def test_split_keys_in_a_fixed_order() -> None:
    """Splits have one length: a row has the same bits in any batch, among any rows, and before keys that are hidden."""
    target = replace(targets()["sharing"], fixed_order=True)
    inputs = qkv(np.random.default_rng(5), 2, 2, 40, 1100, 16, 9)
    bias = np.zeros((1, 1, 1, 1100), np.float32)

    def run(batch: slice, rows: slice, keys: int, visible: int) -> Array:
        chosen = {name: array[batch, rows if name == "q" else slice(keys)] for name, array in inputs.items()}
        chosen["bias"] = np.where(np.arange(keys) < visible, bias[..., :keys], np.float32(-np.inf))
        scores = [node("Mul", ["qk", "scale"], ["scaled"]), node("Add", ["scaled", "bias"], ["s"])]
        shapes = {name: array.shape for name, array in chosen.items()}
        return Alone(attention_model(shapes, scores), chosen, AttentionSupport(fewest_rows=1)).run(target)

    every = run(slice(2), slice(40), 1100, 1100)
    close(every, exact(inputs))
    for row in (0, 39):
        assert run(slice(1, 2), slice(row, row + 1), 1100, 1100).tobytes() == every[1:2, row : row + 1].tobytes()
    assert run(slice(1), slice(3, 12), 1100, 1100).tobytes() == every[:1, 3:12].tobytes()
    for visible in (300, 600):
        short = run(slice(1), slice(8), visible, visible)
        assert short.tobytes() == run(slice(1), slice(8), 1100, visible).tobytes()


@pytest.mark.parametrize("queries", ["gone", "kept"])
def test_several_rows_per_lane(queries: str) -> None:
    """Enough heads for two and four rows, with queries in shared memory and without."""
    inputs = qkv(np.random.default_rng(2), 2, 64, 70, 45, 64, 8)
    alone = Alone(attention_model({name: array.shape for name, array in inputs.items()}), inputs)
    target = replace(targets()["sharing"], shared_bytes=LEAST if queries == "gone" else 2 * LEAST)
    shape = choose_attention_tile(alone.attention, target)
    assert (shape.rows > 1, shape.keeps_queries) == (True, queries == "kept")
    close(alone.run(target), exact(inputs))


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("queries", "keys", "depth", "width"), [(5, 33, 7, 16), (40, 70, 16, 9)])
def test_stays_inside_its_memory(
    queries: int, keys: int, depth: int, width: int, symbolic: bool, at_start: bool
) -> None:
    inputs = qkv(np.random.default_rng(13), 1, 2, queries, keys, depth, width)
    shapes: dict[str, Sequence[Any]] = {name: array.shape for name, array in inputs.items()}
    if symbolic:
        shapes = {"q": [1, "n", 2, depth], "k": [1, "m", 2, depth], "v": [1, "m", 2, width]}
    target = replace(targets()["sharing"], most_block_threads=16)
    close(Alone(attention_model(shapes), inputs).run(target, at_start=at_start), exact(inputs))


# -- whole models ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sharing"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the programs of the CPU tests with threads that share memory; with `apart`, without."""

    def run(built: onnx.ModelProto, inputs: Mapping[str, Array], *, attentions: int = 1, threads: int = 1) -> Array:
        assert len(find_attention(program_of(built))) == attentions or threads > 1
        return weft.load(built, device="webgpu:llvmpipe", cache=False).run(dict(inputs))["y"]

    own = targets_module.build_target
    if request.param == "sharing":
        monkeypatch.setattr(
            targets_module,
            "build_target",
            lambda *arguments: replace(own(*arguments), shared_bytes=LEAST, sharing_pays=True),
        )
    monkeypatch.setattr(written, "run", run)


@pytest.mark.usefixtures("way")
class TestPrograms:
    @pytest.mark.parametrize("shape", [(2, 1, 70, 600), (600,)])
    def test_additive_mask(self, shape: tuple[int, ...]) -> None:
        written.test_additive_mask(shape)

    @pytest.mark.parametrize("guarded", [False, True])
    def test_rows_without_a_visible_key(self, guarded: bool) -> None:
        written.test_rows_without_a_visible_key(guarded)

    def test_sinks(self) -> None:
        written.test_sinks((1, 5, 7, 33, 20, 12))

    def test_nan_and_infinite_queries(self) -> None:
        written.test_nan_and_infinite_queries()

    def test_scores_that_grow_fall_and_overflow(self) -> None:
        written.test_scores_that_grow_fall_and_overflow()

    def test_softcap_and_causal_comparison(self) -> None:
        written.test_softcap_and_causal_comparison()

    @pytest.mark.parametrize("low", [-np.inf, np.finfo(np.float32).min])
    def test_hidden_keys_are_skipped(self, low: float) -> None:
        written.test_hidden_keys_are_skipped(True, low)

    @pytest.mark.parametrize(("rank", "mask", "causal"), [(3, "bool", 1), (4, "float", 0), (4, None, 1)])
    def test_the_operator(self, rank: int, mask: str | None, causal: int) -> None:
        written.test_the_operator(rank, mask, causal)

    def test_transposed_scores(self) -> None:
        written.test_transposed_scores()

    @pytest.mark.parametrize("way", ["sharing", "apart"], indirect=True)
    def test_against_onnxruntime(self) -> None:
        written.test_against_onnxruntime()
