"""Attention over a paged cache on threads: close to float64, and the same bits for any tile, chunks and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generation.schedules import check_schedules
from generation.small_decoders import VARIANTS, VOCABULARY, write_decoder
from kernels.threads.emulation import SHARING
from kernels.threads.emulation import run_work as run_emulated
from kernels.threads.works import run_on_cpu, run_work, targets
from kernels.vector.test_paged_attention import paged_attention
from passes.paged_decoders import FORMS, PagedDecoder, random_chunks, slice_sequence

import weft
from weft.backends.webgpu import targets as targets_module
from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dtypes import DType
from weft.ir.kernel import Barrier, Kernel, When, inner_bodies
from weft.ir.layout import row_major
from weft.ir.scalar import Apply, Literal, Load, Scalar
from weft.ir.target import ThreadTarget
from weft.ir.work import all_works
from weft.kernels.build.templates import Part
from weft.kernels.lower.barriers import insert_barriers
from weft.kernels.lower.tensors import StoredTensor
from weft.kernels.threads import attention_work

Array = np.ndarray[Any, Any]
Rows = tuple[int, int, int]
"""Rows of a batch: the sequence, and the first and last position."""

BLOCK = 16
WITHIN = 4e-6
LEAST = 16384  # bytes that a block can share on every device
SCALE = 0.03125  # of an int8 cache


class PagedCache:
    """Random queries, keys and values of sequences, and a paged cache of them among other blocks."""

    def __init__(
        self, lengths: Sequence[int], heads: int, key_heads: int, size: int, dtype: DType = DType.float32
    ) -> None:
        rng = np.random.default_rng(7)
        self.heads, self.key_heads, self.size, self.dtype = heads, key_heads, size, dtype
        query = DType.float32 if dtype is DType.int8 else dtype
        self.q = [rng.standard_normal((heads, length, size)).astype(query.numpy) for length in lengths]
        self.kv = [self.random_keys(rng, (2, key_heads, length, size)) for length in lengths]
        counts = [-(-length // BLOCK) for length in lengths]
        numbers = rng.permutation(sum(counts) + 3)
        self.unused = numbers[sum(counts) :]
        self.pools = [np.full((len(numbers), key_heads, BLOCK, size), 99, dtype.numpy) for _ in range(2)]
        self.tables = np.split(numbers, np.cumsum(counts))[:-1]
        for array, table in zip(self.kv, self.tables):
            for position in range(array.shape[2]):
                for pool, each in zip(self.pools, array):
                    pool[table[position // BLOCK], :, position % BLOCK] = each[:, position]

    def random_keys(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        if self.dtype is DType.int8:
            return rng.integers(-100, 100, shape).astype(np.int8)
        return rng.standard_normal(shape).astype(self.dtype.numpy)

    def attention(self) -> Attention:
        attention = paged_attention(self.heads, self.key_heads, self.size, BLOCK)
        assert isinstance(attention.query, Load)
        query = replace(attention.query, dtype=DType.float32 if self.dtype is DType.int8 else self.dtype)
        return replace(attention, query=query, key=self.convert(attention.key), value=self.convert(attention.value))

    def convert(self, load: Scalar) -> Scalar:
        assert isinstance(load, Load)
        load = replace(load, dtype=self.dtype)
        if self.dtype is not DType.int8:
            return load
        scale = Literal(SCALE, DType.float32)
        return Apply("multiply", (Apply("cast", (load,), DType.float32), scale), DType.float32)

    def build(self, target: ThreadTarget) -> tuple[Part, StoredTensor]:
        names = ("b", "s", "t", "blocks", "width")
        batch, rows, _, blocks, width = (dims.symbol(name, 1) for name in names)
        pool = (blocks, self.key_heads, BLOCK, self.size)
        shapes = [(batch, self.heads, rows, self.size), pool, pool, (batch, width), (batch,)]
        attention = self.attention()
        kinds = [attention.query.dtype, self.dtype, self.dtype, DType.int64, DType.int64]
        tensors = [StoredTensor(kind, shape, row_major(len(shape))) for kind, shape in zip(kinds, shapes)]
        result = StoredTensor(DType.float32, shapes[0], row_major(4))
        (part,) = attention_work.build_attention(attention, tensors, result, target)
        return part, result

    def run(self, target: ThreadTarget, rows: Sequence[Rows], padding: int = 0, run: Any = run_emulated) -> Array:
        """Run rows of sequences as a batch, with keys up to the longest and more; [batch, heads, rows, size]."""
        part, result = self.build(target)
        q = np.stack([self.q[number][:, start:stop] for number, start, stop in rows])
        keys = max(stop for _, _, stop in rows) + padding
        table = np.full((len(rows), -(-keys // BLOCK)), len(self.pools[0]), np.int64)
        for line, (number, _, _) in zip(table, rows):
            own = self.tables[number][: len(line)]
            line[: len(own)] = own
        arrays = [q, *self.pools, table, np.array([start for _, start, _ in rows])]
        sizes = {"b": len(rows), "s": q.shape[2], "t": keys, "blocks": len(self.pools[0]), "width": table.shape[1]}
        memory = [(arrays[number], row_major(arrays[number].ndim)) for number in part.operands]
        results = run(part.work, memory, [result], sizes)
        return np.asarray(results[0] if run is run_emulated else results[0][0])

    def exact(self, number: int) -> Array:
        """Compute a sequence in float64."""
        scale = SCALE if self.dtype is DType.int8 else 1.0
        q, (k, v) = self.q[number].astype(np.float64), self.kv[number].astype(np.float64) * scale
        k, v = (np.repeat(each, self.heads // self.key_heads, axis=0) for each in (k, v))
        scores = np.where(np.tri(q.shape[1], dtype=bool), q @ k.swapaxes(1, 2) * self.size**-0.5, -inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True) @ v)


def check(computed: Array, expected: Array) -> None:
    assert np.abs(computed - expected).max() <= WITHIN * np.abs(expected).max()


def check_rows(cache: PagedCache, target: ThreadTarget, run: Any) -> None:
    """Compare rows with float64, and with the same rows in other batches, chunks and paddings."""
    length = cache.q[0].shape[1]
    whole = cache.run(target, [(0, 0, length)], run=run)[0]
    check(whole, cache.exact(0))
    for start, stop, padding in ((length - 1, length, 0), (length - 1, length, 140), (length - 9, length, 1)):
        assert np.array_equal(cache.run(target, [(0, start, stop)], padding, run)[0], whole[:, start:stop])
    batch = cache.run(target, [(1, 3, 5), (0, length - 2, length)], 30, run)
    check(batch[0], cache.exact(1)[:, 3:5])
    assert np.array_equal(batch[1], whole[:, -2:])


@pytest.mark.parametrize("shape", [(7, 1, 64), (4, 4, 32), (2, 1, 80), (3, 1, 33), (4, 2, 128), (1, 1, 256)], ids=str)
def test_same_bits_for_any_chunks_batch_and_padding(shape: tuple[int, int, int]) -> None:
    check_rows(PagedCache([140, 20], *shape), targets()["sharing"], run_work)


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16, DType.int8])
def test_types_of_caches(dtype: DType) -> None:
    check_rows(PagedCache([70, 9], 3, 1, 16, dtype), SHARING, run_emulated)


@pytest.mark.parametrize("shape", [(5, 1, 64), (2, 2, 20)], ids=str)
def test_all_variants_have_the_same_bits(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles for few and for many rows, of one chunk or of all, with much and with little shared memory."""
    cache, sharing = PagedCache([150], *shape), targets()["sharing"]
    results = []
    for few_rows, units, shared_bytes in ((1 << 30, 0, LEAST), (0, 1 << 20, LEAST), (0, 0, LEAST), (0, 0, 2 * LEAST)):
        monkeypatch.setattr(attention_work, "FEW_ROWS", few_rows)
        rates = replace(sharing.rates, compute_units=units)
        target = replace(sharing, rates=rates, shared_bytes=shared_bytes)
        results.append(cache.run(target, [(0, 40, 150)], 50, run_work))
    check(results[0][0], cache.exact(0)[:, 40:])
    assert all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("bad", [3e38, np.nan])
def test_bad_numbers_in_blocks_that_no_row_sees(bad: float) -> None:
    cache, target = PagedCache([100, 30], 4, 2, 32), targets()["sharing"]
    rows = [(1, 29, 30), (0, 99, 100)]
    expected = cache.run(target, rows, 64, run_work)
    for pool in cache.pools:
        pool[cache.unused] = bad
        pool[cache.tables[1][-1], :, 30 % BLOCK :] = bad
    assert np.array_equal(cache.run(target, rows, 64, run_work), expected)


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("shape", [(3, 1, 16), (2, 2, 9)], ids=str)
def test_stays_inside_its_memory(shape: tuple[int, int, int], at_start: bool) -> None:
    """Operands end, or start, at a page without access."""
    cache, target = PagedCache([70], *shape), replace(targets()["vectors"], most_block_threads=16, sharing_pays=True)

    def run(*arguments: Any) -> Any:
        return run_on_cpu(*arguments, at_start=at_start)

    check(cache.run(target, [(0, 0, 70)], run=run)[0], cache.exact(0))
    check(cache.run(target, [(0, 69, 70)], run=run)[0], cache.exact(0)[:, 69:])


def test_few_barriers() -> None:
    """Lanes wait before scores, weights and sums, but not between the parts of a chunk that they bring."""
    part, _ = PagedCache([20], 7, 1, 64).build(SHARING)
    assert [count_barriers(insert_barriers(launch.kernel)) for launch in part.work.launches] == [4, 4, 4, 0]


def count_barriers(kernel: Kernel) -> int:
    pending, count = list(kernel.body), 0
    while pending:
        statement = pending.pop()
        count += isinstance(statement, Barrier)
        pending += [inner for body in inner_bodies(statement) for inner in body]
    return count


def test_blocks_of_hidden_chunks_end_at_once() -> None:
    part, _ = PagedCache([20], 7, 1, 64).build(SHARING)
    few = part.work.launches[0].kernel
    assert isinstance(few.body[-1], When)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """A software adapter as a target whose threads share memory."""
    own = targets_module.build_target

    def build_target(*arguments: Any) -> ThreadTarget:
        return replace(own(*arguments), shared_bytes=LEAST, sharing_pays=True)

    monkeypatch.setattr(targets_module, "build_target", build_target)
    return "webgpu:llvmpipe"


def list_kernels(paged: PagedDecoder) -> list[str]:
    works = [work for section in paged.executable.program.sections for work in all_works(section)]
    return [launch.kernel.name for work in works for launch in work.launches]


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, device: str) -> None:
    """A sequence at once and in chunks, with every form of mask; nothing gathers keys or values."""
    paged = PagedDecoder(form, 4, 2, 32, device=device)
    assert sum(name.startswith("attention") for name in list_kernels(paged)) == 4
    sequence = paged.random_sequence(200)
    whole = paged.run_alone(sequence, [200])
    check(whole, paged.exact(sequence))
    assert np.array_equal(whole, paged.run_alone(sequence, [120, 1, 7, 40, 1, 1, 30]))


@pytest.mark.parametrize("form", ["grouped", "window", "concat"])
def test_same_bits_in_any_batch(form: str, device: str) -> None:
    """Sequences of different lengths step together, in blocks of any order."""
    paged = PagedDecoder(form, 6, 2, 64, blocks=100, device=device)
    lengths = (3, 40, 150)
    sequences = [paged.random_sequence(length + 5) for length in lengths]
    alone = [paged.run_alone(each, random_chunks(paged.rng, len(each["q"]), 64)) for each in sequences]
    tables = [paged.allocate(length + 5) for length in lengths]
    for table, length, sequence in zip(tables, lengths, sequences):
        paged.run([table], [0], [slice_sequence(sequence, 0, length)])
    starts = list(lengths)
    for count in (1, 3, 1):
        new = [slice_sequence(each, start, start + count) for each, start in zip(sequences, starts)]
        for row, expected, start in zip(paged.run(tables, starts, new), alone, starts):
            assert np.array_equal(row, expected[start : start + count])
        starts = [start + count for start in starts]


@pytest.mark.parametrize("name", ["llama-int4", "optimum-window"])
def test_schedules_give_the_bits_of_requests_alone(name: str, device: str, tmp_path: Path) -> None:
    file = write_decoder(VARIANTS[name], tmp_path / "decoder.onnx")
    with weft.Generator(file, device=device, max_length=128) as generator:
        check_schedules(generator, range(2), VOCABULARY, 60)
