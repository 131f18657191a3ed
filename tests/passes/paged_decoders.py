"""Small attention layers with a cache, as exporters write them, and their programs over pools of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from frontend.samples import model, node, tensor, value

import weft
from weft.fuse.inline import inline_maps
from weft.ir.program import TensorProgram
from weft.ir.state import StatePair
from weft.passes.dead_code import with_outputs
from weft.passes.hold_state import hold_state
from weft.passes.page_state import page_state
from weft.runtime.paged_program import PagedForm, load_paged_program

Array = np.ndarray[Any, Any]
LOWEST = float(np.finfo(np.float32).min)
PAIRS = (StatePair("past_key", "present_key", 2), StatePair("past_value", "present_value", 2))
FORMS = ["grouped", "window", "sinks", "concat", "concat -inf", "causal", "causal -inf"]
WINDOW = 40


def decoder(form: str, heads: int, key_heads: int, size: int) -> onnx.ModelProto:
    """Build an attention layer: GroupQueryAttention, or products after Concat, masked by positions or by sizes."""
    integers = onnx.TensorProto.INT64
    inputs = [
        value("q", ["b", "s", heads * size]),
        value("k", ["b", "s", key_heads * size]),
        value("v", ["b", "s", key_heads * size]),
        value("past_key", ["b", key_heads, "p", size]),
        value("past_value", ["b", key_heads, "p", size]),
    ]
    outputs = [value("y", ["b", "s", heads * size]), value("present_key", None), value("present_value", None)]
    if form in ("grouped", "window", "sinks"):
        sinks = ["", "", "", "", "sinks"] if form == "sinks" else []  # after tables, positions and bias
        attributes: dict[str, Any] = {"local_window_size": WINDOW} if form == "window" else {}
        nodes = [
            node("Shape", ["mask"], ["sizes"], start=1, end=2),
            node("Squeeze", ["sizes"], ["longest"]),
            node("Cast", ["longest"], ["total"], to=onnx.TensorProto.INT32),
            node("ReduceSum", ["mask", "one_axis"], ["lengths"], keepdims=0),
            node("Sub", ["lengths", "one"], ["last"]),
            node("Cast", ["last"], ["seqlens"], to=onnx.TensorProto.INT32),
            node(
                "GroupQueryAttention",
                ["q", "k", "v", "past_key", "past_value", "seqlens", "total", *sinks],
                ["y", "present_key", "present_value"],
                domain="com.microsoft",
                num_heads=heads,
                kv_num_heads=key_heads,
                **attributes,
            ),
        ]
        inputs.append(value("mask", ["b", "t"], integers))
    else:
        nodes = _concat_nodes(form.split()[0])
        if form.startswith("concat"):
            inputs.append(value("positions", ["b", "s"], integers))
    low = -np.inf if form.endswith("-inf") else LOWEST
    constants = {
        "one_axis": np.array([1]), "one": np.int64(1), "zero": np.int64(0), "nothing": np.float32(0),
        "low": np.float32(low), "scale": np.float32(size**-0.5),
        "row_axes": np.array([1, 3]), "column_axes": np.array([0, 1, 2]), "group_axis": np.array([2]),
        "query_shape": np.array([0, 0, heads, size]), "key_shape": np.array([0, 0, key_heads, size]),
        "group_shape": np.array([1, 1, heads // key_heads, 1, 1]), "head_shape": np.array([0, heads, -1, size]),
        "result_shape": np.array([0, 0, heads * size]), "sinks": sinks_of(heads),
    }  # fmt: skip
    used = {name for each in nodes for name in each.input}
    initializers = [tensor(name, array) for name, array in constants.items() if name in used]
    return model(nodes, inputs, outputs, initializers, opsets={"": 18, "com.microsoft": 1})


def sinks_of(heads: int) -> Array:
    """Return a score for each head that takes part in its softmax."""
    return np.linspace(-4, 4, heads).astype(np.float32)


def _concat_nodes(form: str) -> list[onnx.NodeProto]:
    nodes = [
        node("Reshape", ["q", "query_shape"], ["q4"]),
        node("Transpose", ["q4"], ["queries"], perm=[0, 2, 1, 3]),
    ]
    for short, name in (("k", "key"), ("v", "value")):
        nodes += [
            node("Reshape", [short, "key_shape"], [f"{short}4"]),
            node("Transpose", [f"{short}4"], [f"new_{name}"], perm=[0, 2, 1, 3]),
            node("Concat", [f"past_{name}", f"new_{name}"], [f"present_{name}"], axis=2),
            node("Unsqueeze", [f"present_{name}", "group_axis"], [f"{short}5"]),
            node("Expand", [f"{short}5", "group_shape"], [f"{short}_expanded"]),
            node("Reshape", [f"{short}_expanded", "head_shape"], [f"{name}s"]),
        ]
    nodes += [
        node("Shape", ["present_key"], ["total_size"], start=2, end=3),
        node("Squeeze", ["total_size"], ["total"]),
        node("Range", ["zero", "total", "one"], ["all_keys"]),
        node("Unsqueeze", ["all_keys", "column_axes"], ["columns"]),
    ]
    if form == "concat":
        nodes.append(node("Unsqueeze", ["positions", "row_axes"], ["rows"]))
    else:
        nodes += [
            node("Shape", ["past_key"], ["past_size"], start=2, end=3),
            node("Squeeze", ["past_size"], ["past"]),
            node("Range", ["past", "total", "one"], ["new"]),
            node("Unsqueeze", ["new", "one_axis"], ["rows"]),
        ]
    return [
        *nodes,
        node("LessOrEqual", ["columns", "rows"], ["visible"]),
        node("Where", ["visible", "nothing", "low"], ["bias"]),
        node("Transpose", ["keys"], ["turned"], perm=[0, 1, 3, 2]),
        node("MatMul", ["queries", "turned"], ["products"]),
        node("Mul", ["products", "scale"], ["scaled"]),
        node("Add", ["scaled", "bias"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "values"], ["mixed"]),
        node("Transpose", ["mixed"], ["mixed4"], perm=[0, 2, 1, 3]),
        node("Reshape", ["mixed4", "result_shape"], ["y"]),
    ]


def paged_program(form: str, heads: int, key_heads: int, size: int, block_size: int) -> TensorProgram:
    """Return the program over pools, before fusion."""
    built = decoder(form, heads, key_heads, size)
    pipeline = weft.load(built, device="cpu", cache=False).session().pipeline
    names = ("y", *(pair.output for pair in PAIRS))
    axes = {pair.input: pair.axis for pair in PAIRS if pair.axis is not None}
    program = pipeline.optimise(pipeline.trace(None, (), names, axes))
    values, inputs = dict(zip(names, program.outputs)), {value.name: value for value in program.inputs}
    triples = [(inputs[pair.input], values[pair.output], axes[pair.input]) for pair in PAIRS]
    state = hold_state(program, triples, [values["y"]])
    paged = page_state(replace(state, program=with_outputs(state.program, (values["y"],))), block_size)
    assert paged is not None
    return inline_maps(paged.program)


class PagedDecoder:
    """An attention layer over pools; a sequence is the list of its blocks."""

    def __init__(
        self, form: str, heads: int, key_heads: int, size: int, *, block_size: int = 16, threads: int = 1,
        blocks: int = 128, device: str = "cpu", seed: int = 0,
    ) -> None:  # fmt: skip
        self.form, self.block_size = form, block_size
        self.heads, self.key_heads, self.size = heads, key_heads, size
        self.blocks, self.rng = blocks, np.random.default_rng(seed)
        session = weft.load(decoder(form, heads, key_heads, size), device=device, threads=threads).session()
        executable = load_paged_program(session, PagedForm(PAIRS, "y", block_size))
        assert executable is not None
        self.executable: Any = executable
        self.pools = {
            name: 1e4 * self.rng.standard_normal((blocks, key_heads, block_size, size)).astype(np.float32)
            for name in ("past_key", "past_value")
        }
        driver: Any = session.pipeline.driver
        self.stored: dict[str, Any] = dict(self.pools)
        if driver.has_memory:  # the device writes to its own copies
            self.stored = {name: driver.place(pool) for name, pool in self.pools.items()}
        self.free = self.rng.permutation(blocks).tolist()

    def allocate(self, length: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-length // self.block_size))]

    def release(self, table: Sequence[int]) -> None:
        self.free += table

    def run(self, tables: Sequence[Sequence[int]], lengths: Sequence[int], new: Sequence[dict[str, Array]]) -> Array:
        """Append to sequences with these lengths; return the rows of all new elements."""
        feeds: dict[str, Any] = dict(self.stored)
        feeds |= {name: np.stack([each[name] for each in new]) for name in "qkv"}
        count, longest = feeds["q"].shape[1], max(lengths)
        total = longest + count
        feeds["mask"] = np.array([[1] * (n + count) + [0] * (total - n - count) for n in lengths])
        feeds["positions"] = np.array([list(range(n, n + count)) for n in lengths])
        width = max(map(len, tables))
        feeds["weft.block_table"] = np.array([[*t, *[self.blocks] * (width - len(t))] for t in tables])
        feeds["weft.starts"] = np.array(lengths)
        feeds["weft.selected_rows"] = np.tile(np.arange(count), (len(tables), 1))
        sizes = {page.length: longest for page in self.executable.program.state.pages}
        (result,) = self.executable.run([feeds[name] for name in self.executable.input_names], (), sizes)
        return np.array(result).reshape(len(tables), count, *result.shape[1:])

    def random_sequence(self, length: int) -> dict[str, Array]:
        widths = {"q": self.heads, "k": self.key_heads, "v": self.key_heads}
        return {
            name: self.rng.standard_normal((length, heads * self.size)).astype(np.float32)
            for name, heads in widths.items()
        }

    def run_alone(self, sequence: dict[str, Array], chunks: Sequence[int]) -> Array:
        """Compute a sequence in chunks of these sizes, in blocks of its own."""
        table, start, rows = self.allocate(len(sequence["q"])), 0, []
        for count in chunks:
            rows.append(self.run([table], [start], [slice_sequence(sequence, start, start + count)])[0])
            start += count
        self.release(table)
        return np.concatenate(rows)

    def exact(self, sequence: dict[str, Array]) -> Array:
        """Compute a sequence in float64."""
        length = len(sequence["q"])
        q, k, v = (sequence[name].astype(np.float64).reshape(length, -1, self.size).swapaxes(0, 1) for name in "qkv")
        k, v = (np.repeat(each, self.heads // self.key_heads, axis=0) for each in (k, v))
        rows, columns = np.arange(length)[:, None], np.arange(length)
        hidden = columns > rows
        if self.form == "window":
            hidden |= columns <= rows - WINDOW
        scores = np.where(hidden, -np.inf, q @ k.swapaxes(1, 2) * self.size**-0.5)
        if self.form == "sinks":
            last = np.broadcast_to(sinks_of(self.heads)[:, None, None], (self.heads, length, 1))
            scores, v = np.concatenate([scores, last], 2), np.concatenate([v, 0 * v[:, :1]], 1)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray((powers / powers.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(length, -1))


def slice_sequence(sequence: dict[str, Array], start: int, stop: int) -> dict[str, Array]:
    return {name: array[start:stop] for name, array in sequence.items()}


def random_chunks(rng: np.random.Generator, length: int, largest: int) -> list[int]:
    """Split a length into random chunks, many of them of one element."""
    chunks: list[int] = []
    while sum(chunks) < length:
        size = 1 if rng.random() < 0.5 else int(rng.integers(1, largest + 1))
        chunks.append(min(size, length - sum(chunks)))
    return chunks
