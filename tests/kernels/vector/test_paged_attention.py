"""Attention over a paged cache: close to float64, and the same bits for any batch, chunks of a prompt and threads."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from kernels.vector.works import TARGET, run_work, tensor_of
from passes.paged_decoders import FORMS, PagedDecoder, paged_program, random_chunks, slice_sequence

from weft.fuse.attention import AttentionSupport, find_attention
from weft.fuse.causal import find_loaded_bounds
from weft.ir import dims
from weft.ir.access import axes_of_shape
from weft.ir.attention import Attention
from weft.ir.dtypes import DType
from weft.ir.layout import row_major
from weft.ir.program import Scatter
from weft.ir.scalar import ELEMENT, Apply, Index, Literal, Load, Placeholder
from weft.ir.target import VectorTarget
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.vector.attention_parts import attention_parts
from weft.kernels.vector.attention_tiles import cover_exactly, split_groups

WITHIN = 4e-6
SHAPES = [(14, 2, 64), (8, 8, 64), (4, 2, 80), (3, 1, 96), (8, 2, 128), (5, 1, 64), (6, 1, 80), (8, 1, 96), (2, 1, 256)]


@pytest.mark.parametrize("form", FORMS)
def test_reads_the_cache_in_place(form: str) -> None:
    """No step but the attention loads from the pools."""
    program = paged_program(form, 4, 2, 32, 16)
    ((steps, attention),) = find_attention(program, AttentionSupport(pages=True))
    assert attention.block_size == 16
    assert bool(attention.loaded_bounds) == (form in ("grouped", "window", "sinks"))
    assert bool(attention.loaded_starts) == (form == "window")
    assert bool(attention.causal_bounds) == form.startswith("causal")
    pools = {step.results[0] for step in program.steps if isinstance(step.primitive, Scatter)}
    readers = [step for step in program.steps if pools & set(step.operands)]
    assert {id(step) for step in readers} <= {id(step) for step in steps}
    assert all(match.block_size is None for _, match in find_attention(program))


NARROW = replace(TARGET, vector_bytes=32, vector_registers=16, fused_multiply_add=False)
SHORT = replace(TARGET, vector_bytes=16, vector_registers=32)  # fewer lanes than there are registers for rows


def paged_attention(heads: int, key_heads: int, size: int, block_size: int) -> Attention:
    """Attention over queries [b, heads, s, size], pools of keys and values, a table of blocks, and lengths before s."""
    shape = (dims.symbol("b"), heads, dims.symbol("s"), dims.symbol("t"))
    batch, head, row, key, depth = axes_of_shape((*shape, size))
    block = Load(3, (Index(batch), Index(dims.floordiv(key, block_size))), DType.int64)
    head_index = dims.floordiv(head, heads // key_heads)
    place = (block, Index(head_index), Index(dims.mod(key, block_size)), Index(depth))
    last = Apply("add", (Index(row), Load(4, (Index(batch),), DType.int64)), DType.int64)
    scaled = Apply("multiply", (Placeholder(ELEMENT, DType.float32), Literal(size**-0.5, DType.float32)), DType.float32)
    visible = Apply("less_equal", (Index(key), last), DType.bool)
    score = Apply("select", (visible, scaled, Literal(-inf, DType.float32)), DType.float32)
    return Attention(
        shape=shape,
        depth=size,
        width=size,
        rows=(2,),
        query=Load(0, tuple(map(Index, (batch, head, row, depth))), DType.float32),
        key=Load(1, place, DType.float32),
        value=Load(2, place, DType.float32),
        score=score,
        divisor=Placeholder(ELEMENT, DType.float32),
        shifts_nothing=False,
        drops_nan=False,
        causal_bounds=(),
        loaded_bounds=find_loaded_bounds(score, 3),
        loaded_starts=(),
        sink=None,
        axes=(0, 1, 2, 4),
        epilogue=None,
        block_size=block_size,
    )


@pytest.mark.parametrize("target", [TARGET, NARROW, SHORT], ids=["host", "narrow", "short"])
@pytest.mark.parametrize("block_size", [16, 5, 8])
@pytest.mark.parametrize(("heads", "key_heads", "size"), [(14, 2, 20), (3, 3, 33), (17, 1, 64)])
@pytest.mark.parametrize("at_start", [False, True])
def test_stays_inside_its_memory(
    at_start: bool, heads: int, key_heads: int, size: int, block_size: int, target: VectorTarget
) -> None:
    """Every operand ends, or starts, at a page without access; a row has the same bits in any number of rows."""
    rng = np.random.default_rng(5)
    length = 300
    table = rng.permutation(-(-length // block_size))
    q, k, v = (rng.standard_normal((count, length, size)) for count in (heads, key_heads, key_heads))
    pools = [np.zeros((key_heads, len(table) * block_size, size), np.float32) for _ in range(2)]
    for pool, array in zip(pools, (k, v)):
        pool[:, :length] = array
    blocks = [pool.reshape(key_heads, len(table), block_size, size).swapaxes(0, 1) for pool in pools]
    stored = [np.ascontiguousarray(each[np.argsort(table)]) for each in blocks]
    rows = []
    for start, stop in ((0, 290), (290, 291), (291, 300)):
        arrays = [q[None, :, start:stop].astype(np.float32), *stored, table[None], np.array([start])]
        sizes = {"b": 1, "s": stop - start, "t": stop, "blocks": len(table), "width": len(table)}
        symbols = {name: dims.symbol(name) for name in sizes}
        pool_shape = (symbols["blocks"], key_heads, block_size, size)
        query_shape = (symbols["b"], heads, symbols["s"], size)
        shapes = [query_shape, pool_shape, pool_shape, (symbols["b"], symbols["width"]), (symbols["b"],)]
        tensors = [tensor_of(array, shape=shape) for array, shape in zip(arrays, shapes)]
        result = StoredTensor(DType.float32, query_shape, row_major(4))
        (part,) = attention_parts(paged_attention(heads, key_heads, size, block_size), tensors, result, target)
        memory = [(arrays[number], row_major(arrays[number].ndim)) for number in part.operands]
        (computed,), _ = run_work(part.work, memory, [result], sizes, at_start=at_start)
        rows.append(computed[0])
        if not start:  # all rows at once, for comparison
            arrays[0], sizes = q[None].astype(np.float32), {**sizes, "s": length, "t": length}
            memory = [(arrays[number], row_major(arrays[number].ndim)) for number in part.operands]
            (whole,), _ = run_work(part.work, memory, [result], sizes, at_start=at_start)
    assert np.array_equal(np.concatenate(rows, axis=1), whole[0])
    k, v = (np.repeat(each, heads // key_heads, axis=0) for each in (k, v))
    scores = np.where(np.tri(length, dtype=bool), q @ k.swapaxes(1, 2) * size**-0.5, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    expected = powers / powers.sum(-1, keepdims=True) @ v
    assert np.abs(whole[0] - expected).max() <= WITHIN * np.abs(expected).max()


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    """A long sequence at once, and in chunks."""
    paged = PagedDecoder(form, 4, 2, 32)
    sequence = paged.random_sequence(530)
    whole = paged.run_alone(sequence, [530])
    expected = paged.exact(sequence)
    assert np.abs(whole - expected).max() <= WITHIN * np.abs(expected).max()
    chunks = [250, 1, 1, 7, 40, 1, 200, *[1] * 30]
    assert np.array_equal(whole, paged.run_alone(sequence, chunks))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_same_bits_for_any_chunks(shape: tuple[int, int, int]) -> None:
    paged = PagedDecoder("grouped", *shape)
    for length in (1, 2, 17, 255, 257, 600):
        sequence = paged.random_sequence(length)
        whole = paged.run_alone(sequence, [length])
        expected = paged.exact(sequence)
        assert np.abs(whole - expected).max() <= WITHIN * np.abs(expected).max()
        assert np.array_equal(whole, paged.run_alone(sequence, random_chunks(paged.rng, length, 64)))


@pytest.mark.parametrize(("form", "block_size"), [("grouped", 16), ("concat", 16), ("grouped", 5), ("window", 32)])
def test_same_bits_in_any_batch(form: str, block_size: int) -> None:
    """Sequences of different lengths step together, in blocks of any order, among blocks with other numbers."""
    paged = PagedDecoder(form, 6, 2, 64, block_size=block_size, blocks=400)
    lengths = (3, 40, 270, 590)
    sequences = [paged.random_sequence(length + 9) for length in lengths]
    alone = [paged.run_alone(sequence, [len(sequence["q"])]) for sequence in sequences]
    tables = [paged.allocate(length + 9) for length in lengths]
    for table, length, sequence in zip(tables, lengths, sequences):
        paged.run([table], [0], [slice_sequence(sequence, 0, length)])
    starts = list(lengths)
    for count in (1, 1, 3, 1, 2, 1):
        new = [slice_sequence(each, start, start + count) for each, start in zip(sequences, starts)]
        for row, expected, start in zip(paged.run(tables, starts, new), alone, starts):
            assert np.array_equal(row, expected[start : start + count])
        starts = [start + count for start in starts]


def test_same_bits_for_any_number_of_threads() -> None:
    results = []
    for threads in (1, 2, 4):
        paged = PagedDecoder("grouped", 14, 2, 64, threads=threads)
        sequence = paged.random_sequence(700)
        results.append(paged.run_alone(sequence, [100, 1, 1, 597, 1]))
    assert all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("bad", [3e38, np.nan])
def test_bad_numbers_in_blocks_that_no_query_sees(bad: float) -> None:
    """Blocks past the end of a sequence are not even read."""
    paged = PagedDecoder("grouped", 4, 2, 32)
    sequence = paged.random_sequence(300)
    first = paged.run_alone(sequence, [299, 1])
    for pool in paged.pools.values():
        pool[paged.free] = bad
    table = paged.allocate(300)
    for pool in paged.pools.values():
        pool[table] = 0
    paged.release(table)
    assert np.array_equal(first, paged.run_alone(sequence, [150, 149, 1]))


@pytest.mark.parametrize("height", [4, 6, 8, 12])
def test_tiles_cover_all_rows(height: int) -> None:
    count = dims.symbol("n")
    for group in range(1, 40):
        tiles = split_groups(group * count, height, group)
        assert all(1 <= tile.height <= height for tile in tiles)
        for n in (1, 2, 3, 5, 12, 100):
            sizes = [(t.height, *(dims.evaluate(d, {"n": n}) for d in (t.first, t.count, t.row))) for t in tiles]
            rows = [row + e for h, _, c, r in sizes for row in range(r, r + c * h, h) for e in range(h)]
            assert rows[: group * n] == list(range(group * n))
            assert len(rows) - group * n < height
            assert not cover_exactly(tiles, group * count) or len(rows) == group * n
