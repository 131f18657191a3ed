"""Test that code computes dims as Python does or reports a fault, and that live blocks never overlap."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from weft.backends.host.codegen import load_code
from weft.backends.host.machine import host
from weft.backends.llvm.compilation import compile_module
from weft.export.arithmetic import CHECKED, SizeWriter
from weft.export.functions import FunctionText
from weft.ir import dims
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.dims import Dim
from weft.plan.layout import LayoutPlanner
from weft.plan.plan import ALIGNMENT
from weft.plan.storage import MemoryBlock

NAMES = ("a", "b", "c")
SEEDS = range(6)


def _dim(source: random.Random, depth: int) -> Dim:
    if depth == 0 or source.random() < 0.2:
        low = source.choice((None, 0, 1))
        name = source.choice(NAMES)
        return source.choice((dims.symbol(name, low), source.randint(-9, 99)))
    left, right = _dim(source, depth - 1), _dim(source, depth - 1)
    match source.choice("+-*/%<>"):
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left if right == 0 else dims.floordiv(left, right)
        case "%":
            return left if right == 0 else dims.mod(left, right)
        case "<":
            return dims.minimum(left, right)
        case _:
            return dims.maximum(left, right)


def _compile(expressions: list[Dim]) -> tuple[object, object]:
    """Compile a function from sizes to the values of dims and their faults."""
    text = FunctionText()
    write = SizeWriter(text.emit, text.name)
    for number, name in enumerate(NAMES):
        place = text.assign(f"getelementptr i64, ptr %sizes, i64 {number}")
        write.symbols[name] = text.assign(f"load i64, ptr {place}")
    for number, dim in enumerate(expressions):
        value, fault = write.value(dim), write.fault(dim) or "false"
        place = text.assign(f"getelementptr i64, ptr %values, i64 {number}")
        text.emit(f"store i64 {value}, ptr {place}")
        place = text.assign(f"getelementptr i8, ptr %faults, i64 {number}")
        text.emit(f"store i8 {text.assign(f'zext i1 {fault} to i8')}, ptr {place}")
    text.emit("ret void")
    function = text.definition("define void @compute(ptr %sizes, ptr %values, ptr %faults)")
    code = load_code([compile_module("\n".join((*CHECKED.values(), function)), host())], ["compute"])
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(code.addresses["compute"]), code


@pytest.mark.parametrize("seed", SEEDS)
def test_dims_are_computed_as_in_python_or_have_a_fault(seed: int) -> None:
    source = random.Random(seed)
    expressions = [_dim(source, 4) for _ in range(60)]
    call, code = _compile(expressions)
    assert callable(call)
    assert code
    for _ in range(40):
        sizes = np.array([source.choice((1, 2, 3, 7, 64, 1000, 10**9 - 1)) for _ in NAMES], np.int64)
        values, faults = np.zeros(len(expressions), np.int64), np.zeros(len(expressions), np.uint8)
        call(sizes.ctypes.data, values.ctypes.data, faults.ctypes.data)
        number = DimEvaluator(dict(zip(NAMES, map(int, sizes))))
        for dim, value, fault in zip(expressions, values.tolist(), faults.tolist()):
            try:
                expected = number(dim)
            except ZeroDivisionError:
                assert fault, f"seed {seed}: {dim} for {sizes}"
                continue
            assert fault or value == expected, f"seed {seed}: {dim} for {sizes}"
            assert not fault or not _is_small(dim, number), f"seed {seed}: {dim} for {sizes} must not have a fault"


def _is_small(dim: Dim, number: DimEvaluator) -> bool:
    """Whether no intermediate value is large or divided by zero."""
    if isinstance(dim, int):
        return abs(dim) < 2**31
    parts = [part for atom in dims.atoms(dim) if isinstance(atom, dims.Compound) for part in (atom.left, atom.right)]
    largest = max(map(int, number.sizes.values()))
    longest = max((len(monomial) for part in (dim, *parts) if not isinstance(part, int) for monomial, _ in part.terms))
    return largest < 100 and longest < 5


@pytest.mark.parametrize("seed", SEEDS)
def test_live_blocks_never_overlap(seed: int) -> None:
    source = random.Random(seed)
    steps = 12
    blocks = []
    for number in range(30):
        first = source.randrange(steps)
        last = min(steps - 1, first + source.randrange(5))
        size: Dim = source.choice(
            (source.randrange(500), 4 * dims.symbol("a") * dims.symbol("b"), 8 * dims.symbol("c"))
        )
        blocks.append(MemoryBlock((number,), size, first, last))
    planner = LayoutPlanner([{"a": 3, "b": 50, "c": 7}], ALIGNMENT)
    stack = planner.stack(blocks)
    offsets = {block.owner: offset for block, offset in zip(blocks, stack.offsets)}
    for _ in range(30):
        number = DimEvaluator({name: source.choice((0, 1, 5, 100, 4000)) for name in NAMES})
        for definition in planner.definitions:
            number.bind(definition.name, max(map(number, definition.parts)))
        for block in blocks:
            start, end = number(offsets[block.owner]), number(offsets[block.owner]) + number(block.size)
            assert start % ALIGNMENT == 0
            assert end <= number(stack.total)
            for other in blocks:
                together = block.first <= other.last and other.first <= block.last
                begin = number(offsets[other.owner])
                apart = end <= begin or begin + number(other.size) <= start
                assert block is other or not together or apart, f"seed {seed}: {block} and {other} for {number.sizes}"
