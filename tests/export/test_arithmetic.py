"""Sizes as code: LLVM computes dims as Python does, or tells of a fault. Places never overlap, whatever the sizes."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from weft.backends.cpu.codegen import load_code
from weft.backends.cpu.machine import host
from weft.backends.llvm.compilation import compile_module
from weft.export.arithmetic import CHECKED, SizeWriter
from weft.export.functions import FunctionText
from weft.export.memory import ALIGNMENT, MemoryPlanner, Block
from weft.ir import dims
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.dims import Dim

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


def _compiled(wanted: list[Dim]) -> tuple[object, object]:
    """A function from sizes to the values of dims and whether each is at fault."""
    text = FunctionText()
    write = SizeWriter(text.emit, text.name)
    for number, name in enumerate(NAMES):
        place = text.assign(f"getelementptr i64, ptr %sizes, i64 {number}")
        write.symbols[name] = text.assign(f"load i64, ptr {place}")
    for number, dim in enumerate(wanted):
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
def test_sizes_are_computed_as_in_python_or_at_fault(seed: int) -> None:
    source = random.Random(seed)
    wanted = [_dim(source, 4) for _ in range(60)]
    call, code = _compiled(wanted)
    assert callable(call)
    assert code
    for _ in range(40):
        sizes = np.array([source.choice((1, 2, 3, 7, 64, 1000, 10**9 - 1)) for _ in NAMES], np.int64)
        values, faults = np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.uint8)
        call(sizes.ctypes.data, values.ctypes.data, faults.ctypes.data)
        number = DimEvaluator(dict(zip(NAMES, map(int, sizes))))
        for dim, value, fault in zip(wanted, values.tolist(), faults.tolist()):
            try:
                right = number(dim)
            except ZeroDivisionError:
                assert fault, f"seed {seed}: {dim} for {sizes}"
                continue
            assert fault or value == right, f"seed {seed}: {dim} for {sizes}"
            assert not fault or not _is_small(dim, number), f"seed {seed}: {dim} for {sizes} is no fault"


def _is_small(dim: Dim, number: DimEvaluator) -> bool:
    """Whether nothing on the way to a value is large or divided by zero."""
    if isinstance(dim, int):
        return abs(dim) < 2**31
    parts = [part for atom in dims.atoms(dim) if isinstance(atom, dims.Compound) for part in (atom.left, atom.right)]
    largest = max(map(int, number.sizes.values()))
    longest = max((len(monomial) for part in (dim, *parts) if not isinstance(part, int) for monomial, _ in part.terms))
    return largest < 100 and longest < 5


@pytest.mark.parametrize("seed", SEEDS)
def test_stretches_that_are_needed_together_never_overlap(seed: int) -> None:
    source = random.Random(seed)
    steps = 12
    stretches = []
    for number in range(30):
        first = source.randrange(steps)
        last = min(steps - 1, first + source.randrange(5))
        size: Dim = source.choice(
            (source.randrange(500), 4 * dims.symbol("a") * dims.symbol("b"), 8 * dims.symbol("c"))
        )
        stretches.append(Block(number, size, first, last))
    planner = MemoryPlanner({"a": 3, "b": 50, "c": 7})
    offsets, total = planner.place(stretches)
    for _ in range(30):
        number = DimEvaluator({name: source.choice((0, 1, 5, 100, 4000)) for name in NAMES})
        for definition in planner.definitions:
            number.bind(definition.name, max(map(number, definition.parts)))
        for one in stretches:
            start, end = number(offsets[one.owner]), number(offsets[one.owner]) + number(one.size)
            assert start % ALIGNMENT == 0
            assert end <= number(total)
            for other in stretches:
                together = one.first <= other.last and other.first <= one.last
                begin = number(offsets[other.owner])
                apart = end <= begin or begin + number(other.size) <= start
                assert one is other or not together or apart, f"seed {seed}: {one} and {other} for {number.sizes}"
