"""Shaders whose lanes communicate through shared memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.backends.webgpu.bindings import write_module
from weft.backends.webgpu.emit import emit
from weft.backends.webgpu.gpu import open_gpu
from weft.backends.webgpu.recordings import UNIFORM, WRITE, Dispatch, Recording, ShaderSource
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    AcrossGroup,
    Assign,
    Barrier,
    Buffer,
    Call,
    Define,
    Fetch,
    Kernel,
    Put,
    Register,
    Repeat,
    Statement,
    lane,
    variable,
)
from weft.ir.kernel_verify import verify_kernel
from weft.kernels.lower.barriers import insert_barriers

F32 = DType.float32
LANES = 32
ME = lane(LANES)
NEXT = dims.mod(ME + 1, LANES)
X = Register("x", F32, True)


def test_lanes_pass_values_on() -> None:
    """100 times, every lane reads its neighbour's value through shared memory."""
    gpu = open_gpu("llvmpipe")
    more = Assign("x", Call("add", (X, Fetch("io", ME, F32)), F32))
    turn = Repeat("i", 0, variable("n"), 1, (Put("shared", ME, X), Assign("x", Fetch("shared", NEXT, F32)), more))
    buffers = (Buffer("io", F32, True), Buffer("shared", F32, True, LANES))
    body = (Define("x", Fetch("io", ME, F32), True), turn, Put("io", ME, X))
    built_kernel = insert_barriers(Kernel("made_up", buffers, ("n",), LANES, body))
    verify_kernel(built_kernel)
    text = write_module(built_kernel, emit(built_kernel, gpu.abilities), {}, gpu.abilities)
    pipeline = gpu.pipelines({"made_up": ShaderSource(text, (UNIFORM, WRITE))})["made_up"]
    start = np.random.default_rng(5).integers(-9, 9, LANES).astype(np.float32)
    memory, parameters = gpu.buffer(4 * LANES), gpu.uniform(256)
    gpu.write(memory, 0, start)
    gpu.write(parameters, 0, np.array([1, 0, 100], np.int32))
    group = gpu.bind_group(pipeline, [(parameters, 0, 256), (memory, 0, 4 * LANES)])
    actual = gpu.run(Recording([Dispatch(pipeline, group, 1)]), [(memory, 0, 4 * LANES)])[0].view(np.float32)
    expected = start.copy()
    for _ in range(100):
        expected = np.roll(expected, -1) + start
    np.testing.assert_array_equal(actual, expected)


def test_no_bools_in_shared_memory() -> None:
    """NVIDIA's drivers corrupt them there, and with them reports of indices out of range."""
    there = Register("there", DType.bool, True)
    statements: tuple[Statement, ...] = (
        Define("there", Call("less", (Fetch("in", ME, F32), Fetch("in", NEXT, F32)), DType.bool), True),
        Put("held", ME, there),
        Barrier(),
        Assign("there", Fetch("held", NEXT, DType.bool)),
        Define("any", Across("maximum", there), False),
        Put("out", ME, Call("logical_and", (there, Register("any", DType.bool, False)), DType.bool)),
    )
    buffers = (
        Buffer("in", F32, False),
        Buffer("held", DType.bool, True, LANES),
        Buffer("out", DType.bool, True),
    )
    kernel = Kernel("bools", buffers, (), LANES, statements)
    verify_kernel(kernel)
    text = emit(kernel, open_gpu("llvmpipe").abilities).text
    assert "var<workgroup>" in text
    assert "array<bool" not in text


GROUPS = [(64, 64, 1), (64, 4, 1), (64, 4, 8), (64, 2, 32), (32, 32, 1), (4, 4, 1), (256, 16, 16), (96, 96, 1)]


@pytest.mark.parametrize("has_subgroups", [True, False])
@pytest.mark.parametrize("dtype", [F32, DType.int32, DType.float64, DType.bool])
def test_reductions(dtype: DType, has_subgroups: bool) -> None:
    """Lanes reduce all values, or those of groups; the order of additions is a binary tree with subgroups."""
    gpu = open_gpu("llvmpipe")
    abilities = replace(gpu.abilities, subgroups=has_subgroups)
    random = np.random.default_rng(7)
    for lanes, members, step in GROUPS:
        me, kind = lane(lanes), "maximum" if dtype is DType.bool else "sum"
        value = Fetch("in", me, dtype)
        total = Across(kind, value) if members == lanes else AcrossGroup(kind, value, members, step)
        body = tuple(Put("out", me + number * lanes, total) for number in range(2))
        kernel = Kernel("groups", (Buffer("in", dtype, False), Buffer("out", dtype, True)), (), lanes, body)
        verify_kernel(kernel)
        text = write_module(kernel, emit(kernel, abilities), {}, abilities)
        assert ("subgroupShuffleXor" in text) == (has_subgroups and dtype in (F32, DType.int32) and lanes != 96)
        pipeline = gpu.pipelines({text: ShaderSource(text, (UNIFORM, WRITE, WRITE))})[text]
        values = random.normal(0, 9, lanes).astype(dtype.numpy)
        size = 4 * -(-2 * values.nbytes // 4)
        source, out, parameters = gpu.buffer(size), gpu.buffer(size), gpu.uniform(256)
        gpu.write(source, 0, values)
        gpu.write(parameters, 0, np.array([1, 0, 0], np.int32))
        group = gpu.bind_group(pipeline, [(parameters, 0, 256), (source, 0, size), (out, 0, size)])
        actual = gpu.run(Recording([Dispatch(pipeline, group, 1)]), [(out, 0, size)])[0][: 2 * values.nbytes]
        groups = values.reshape(-1, members, step)
        expected = np.broadcast_to(groups.sum(1, keepdims=True, dtype=dtype.numpy), groups.shape).reshape(-1)
        if "subgroupShuffleXor" in text:
            expected = np.broadcast_to(_fold_tree(groups)[:, None], groups.shape).reshape(-1)
            np.testing.assert_array_equal(actual.view(dtype.numpy), np.tile(expected, 2))
        np.testing.assert_allclose(
            actual.view(dtype.numpy), np.tile(expected, 2), rtol=1e-5, atol=1e-5, err_msg=str((lanes, members, step))
        )


def _fold_tree(groups: Array) -> Array:
    """Add the elements of axis 1 in the order of a binary tree."""
    while groups.shape[1] > 1:
        groups = groups[:, ::2] + groups[:, 1::2]
    return groups[:, 0]
