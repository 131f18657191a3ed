"""Decoders over a paged state: the same bits as with a state of one sequence, in any batch, chunks and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from passes.paged_decoders import Array, decoder, paged_program

import weft
from weft.ir.dtypes import DType
from weft.ir.program import Map, Scatter
from weft.ir.state import StatePair
from weft.runtime.paged_program import PagedForm, load_paged_program

HEADS, KEY_HEADS, SIZE, VOCABULARY, BLOCKS = 6, 2, 16, 50, 40
HIDDEN = HEADS * SIZE
FORMS = ["grouped", "window", "concat", "concat -inf"]


def language_model(form: str, layers: int = 2) -> onnx.ModelProto:
    """Build a decoder of random weights: attention layers between projections, with residuals."""
    rng = np.random.default_rng(3)
    weights: dict[str, Array] = {"embedding": rng.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)}
    nodes = [node("Gather", ["embedding", "ids"], ["x0"])]
    inputs = [value("ids", ["b", "s"], onnx.TensorProto.INT64)]
    outputs = [value("logits", None)]
    shared = {"mask": ["b", "t"], "positions": ["b", "s"]}
    for layer in range(layers):
        part = decoder(form, HEADS, KEY_HEADS, SIZE).graph
        widths = {"q": HEADS, "k": KEY_HEADS, "v": KEY_HEADS, "o": HEADS}
        for name, heads in widths.items():
            scale = 0.3 / np.sqrt(HIDDEN)
            weights[f"w{name}{layer}"] = (scale * rng.standard_normal((HIDDEN, heads * SIZE))).astype(np.float32)
        names = {name: name for name in shared}
        nodes += [node("MatMul", [f"x{layer}", f"w{name}{layer}"], [f"{name}.{layer}"]) for name in "qkv"]
        for each in part.node:
            copied = onnx.NodeProto()
            copied.CopyFrom(each)
            for field in (copied.input, copied.output):
                field[:] = [names.get(name, f"{name}.{layer}") for name in field]
            nodes.append(copied)
        for each in part.initializer:
            weights[f"{each.name}.{layer}"] = onnx.numpy_helper.to_array(each)
        nodes += [
            node("MatMul", [f"y.{layer}", f"wo{layer}"], [f"mixed{layer}"]),
            node("Add", [f"x{layer}", f"mixed{layer}"], [f"x{layer + 1}"]),
        ]
        inputs += [value(f"past_{kind}.{layer}", ["b", KEY_HEADS, "p", SIZE]) for kind in ("key", "value")]
        outputs += [value(f"present_{kind}.{layer}", None) for kind in ("key", "value")]
        used = {name for each in part.node for name in each.input}
    inputs += [value(name, shape, onnx.TensorProto.INT64) for name, shape in shared.items() if name in used]
    weights["head"] = rng.standard_normal((HIDDEN, VOCABULARY)).astype(np.float32)
    nodes.append(node("MatMul", [f"x{layers}", "head"], ["logits"]))
    initializers = [tensor(name, array) for name, array in weights.items()]
    return model(nodes, inputs, outputs, initializers, opsets={"": 18, "com.microsoft": 1})


class Paged:
    def __init__(self, form: str, device: str, block_size: int) -> None:
        self.model = weft.load(language_model(form), device=device)
        session = self.model.session()
        pairs = [
            StatePair(f"past_{kind}.{layer}", f"present_{kind}.{layer}", 2)
            for layer in range(2)
            for kind in ("key", "value")
        ]
        executable = load_paged_program(session, PagedForm(tuple(pairs), "logits", block_size))
        assert executable is not None
        self.executable: Any = executable
        rng = np.random.default_rng(4)
        shape = (BLOCKS, KEY_HEADS, block_size, SIZE)
        garbage = {pair.input: 1e3 * rng.standard_normal(shape).astype(np.float32) for pair in pairs}
        place = session.driver.place if session.driver.has_memory else np.array
        self.pools = {name: place(array) for name, array in garbage.items()}

    def run(self, tables: Sequence[Sequence[int]], starts: Sequence[int], tokens: Sequence[Sequence[int]]) -> Array:
        """Append tokens to sequences; return the logits of the last one of each."""
        count, longest = len(tokens[0]), max(starts)
        width = max(map(len, tables))
        feeds: dict[str, Any] = dict(self.pools)
        feeds["ids"] = np.array(tokens)
        feeds["mask"] = np.array([[1] * (n + count) + [0] * (longest - n) for n in starts])
        feeds["positions"] = np.array([list(range(n, n + count)) for n in starts])
        feeds["weft.block_table"] = np.array([[*table, *[BLOCKS] * (width - len(table))] for table in tables])
        feeds["weft.starts"] = np.array(starts)
        feeds["weft.selected_rows"] = np.full((len(tables), 1), count - 1)
        sizes = {page.length: longest for page in self.executable.program.state.pages}
        (logits,) = self.executable.run([feeds[name] for name in self.executable.input_names], (), sizes)
        return np.array(logits)


def run_with_state(loaded: weft.Model, tokens: Sequence[int], first: int) -> list[Array]:
    """Return the logits of the last token of a prompt of `first` tokens, and of each token after it."""
    state = loaded.state(capacity=len(tokens))
    names = {each.name for each in loaded.inputs}
    rows: list[Array] = []
    for stop in range(first, len(tokens) + 1):
        start = state.length
        feeds: dict[str, Any] = {"ids": np.array([tokens[start:stop]]), "mask": np.ones((1, stop), np.int64)}
        feeds["positions"] = np.arange(start, stop)[None]
        rows.append(loaded.run({n: a for n, a in feeds.items() if n in names}, state=state)["logits"][0, -1])
    return rows


@pytest.mark.parametrize("block_size", [16, 4])
@pytest.mark.parametrize("form", FORMS)
def test_same_bits_as_a_state(form: str, block_size: int) -> None:
    """Sequences of different lengths, their prompts in chunks, their blocks in any order among other numbers."""
    paged = Paged(form, "cpu", block_size)
    rng = np.random.default_rng(6)
    prompts, steps = (1, 9, 30), 5
    sequences = [rng.integers(0, VOCABULARY, count + steps).tolist() for count in prompts]
    expected = [run_with_state(paged.model, tokens, count) for tokens, count in zip(sequences, prompts)]
    free = rng.permutation(BLOCKS).tolist()
    tables = [[free.pop() for _ in range(-(-len(tokens) // block_size))] for tokens in sequences]
    for table, tokens, count, rows in zip(tables, sequences, prompts, expected):
        for start, stop in ((0, count // 3), (count // 3, count)):
            if start < stop:
                logits = paged.run([table], [start], [tokens[start:stop]])
        assert np.array_equal(logits[0], rows[0])
    for step in range(steps):
        starts = [count + step for count in prompts]
        logits = paged.run(tables, starts, [tokens[start : start + 1] for tokens, start in zip(sequences, starts)])
        for row, rows in zip(logits, expected):
            assert np.array_equal(row, rows[step + 1])


def test_sequences_share_blocks() -> None:
    """Two continuations of one prompt read the same blocks."""
    paged = Paged("grouped", "cpu", 4)
    rng = np.random.default_rng(7)
    prompt = rng.integers(0, VOCABULARY, 8).tolist()
    ends = [rng.integers(0, VOCABULARY, 3).tolist() for _ in range(2)]
    paged.run([[5, 2]], [0], [prompt])
    logits = paged.run([[5, 2, 7], [5, 2, 0]], [8, 8], ends)
    for row, end in zip(logits, ends):
        assert np.array_equal(row, run_with_state(paged.model, prompt + end, 11)[0])


@pytest.mark.parametrize("form", FORMS)
def test_updates_of_pools(form: str) -> None:
    """Their points are distinct, and they compute what they write: no map stores it before."""
    program = paged_program(form, HEADS, KEY_HEADS, SIZE, 16)
    scatters = [step for step in program.steps if isinstance(step.primitive, Scatter)]
    assert len(scatters) == 2
    maps = {step.results[0] for step in program.steps if isinstance(step.primitive, Map)}
    for step in scatters:
        assert isinstance(step.primitive, Scatter)
        assert step.primitive.distinct
        pool, new = (operand for operand in step.operands if operand.dtype is DType.float32)
        assert pool in program.inputs
        assert new not in maps
