"""Plans for all sizes: they are valid at every size, and native code computes their numbers."""

from __future__ import annotations

import operator
import random

import numpy as np
import pytest
from models.catalog import CatalogModel, dim_groups, load_catalog
from onnx import parser

import weft
from weft.backends.cpu.section import CpuSection
from weft.backends.host.numbers import compute_natively
from weft.backends.reference.sizes import GuardError
from weft.errors import WeftError
from weft.ir import dims
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.dims import Dim
from weft.plan.numbers import INVALID, NumberTableBuilder
from weft.plan.usual_sizes import dynamic_dims, fixed_sizes
from weft.plan.verify import verify_plan

NAMES = ("a", "b", "c")
SEEDS = range(8)
SIZES = (1, 2, 3, 31, 32, 48, 64, 97, 320, 1280)
LARGEST_ARENA = 1 << 30  # verification replays every launch on as many labels


def random_dim(source: random.Random, depth: int) -> Dim:
    if not depth or source.random() < 0.2:
        return source.choice((dims.symbol(source.choice(NAMES), 0), source.randrange(-9, 99)))
    left, right = random_dim(source, depth - 1), random_dim(source, depth - 1)
    match source.randrange(7):
        case 0:
            return left + right
        case 1:
            return left - right
        case 2:
            return left * right
        case 3:
            return dims.floordiv(left, source.randrange(1, 9))
        case 4:
            return dims.floordiv(left, dims.symbol(source.choice(NAMES), 0))
        case 5:
            return dims.mod(left, source.randrange(1, 9))
        case _:
            return dims.maximum(left, right)


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_compute_dims(seed: int) -> None:
    """Native code, Python and dims agree; divisions by zero and numbers beyond 64 bits are invalid."""
    print(f"seed {seed}")
    source = random.Random(seed)
    expressions = [random_dim(source, 4) for _ in range(60)]
    write = NumberTableBuilder(NAMES, ())
    slots = write.slots(expressions)
    table, slots = write.build(), write.resolve(slots)
    for _ in range(40):
        sizes = [source.choice((0, 1, 2, 7, 1000, 2**31, 2**62)) for _ in NAMES]
        native, plain = table.start(sizes), table.start(sizes)
        assert compute_natively(table, native)
        assert table.compute(plain)
        np.testing.assert_array_equal(native, plain)
        for dim, result in zip(expressions, native[slots].tolist()):
            if result != INVALID:
                assert result == DimEvaluator(dict(zip(NAMES, sizes)))(dim), (dim, sizes)
            else:
                assert max(sizes) > 1000 or 0 in sizes, (dim, sizes)


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_check_dims(seed: int) -> None:
    """Native code and Python agree with the relations of dims; invalid numbers pass only checks that are lifted."""
    print(f"seed {seed}")
    source = random.Random(seed)
    compare = {">=": operator.ge, "==": operator.eq, "!=": operator.ne}
    outcomes = set()
    for _ in range(60):
        write = NumberTableBuilder(NAMES, ())
        checks = [(random_dim(source, 2), source.choice(list(compare)), source.choice((0, 1, 7))) for _ in range(2)]
        valid, lifting = random_dim(source, 3), random_dim(source, 1)
        for dim, relation, number in checks:
            write.check(write.slot(dim), relation, number)
        write.check_valid([write.slot(valid)], unless=write.slot(lifting))
        dims_of = [*[dim for dim, _, _ in checks], valid, lifting]
        slots = [write.slot(dim) for dim in dims_of]
        table, resolved = write.build(), write.resolve(slots)
        for _ in range(10):
            sizes = [source.choice((0, 1, 7, 2**62)) for _ in NAMES]
            native, plain = table.start(sizes), table.start(sizes)
            holds = compute_natively(table, native)
            assert table.compute(plain) == holds
            first, second, checked, lifted = native[resolved].tolist()
            expected = checked != INVALID or lifted == 0
            for value, (_, relation, number) in zip((first, second), checks):
                expected &= value != INVALID and compare[relation](value, number)
            assert holds == expected, (checks, valid, lifting, sizes)
            outcomes.add(holds)
    assert outcomes == {False, True}


def sections_of(model: weft.Model) -> list[CpuSection]:
    executable = model.session().whole
    return [section for section in executable.all_sections() if isinstance(section, CpuSection)]


SCANNED = """
<ir_version: 8, opset_import: ["" : 18]>
agraph (float[T, B, 4] x, float[1, 20, 4] w, float[1, 20, 5] r) => (float[T, 1, B, 5] y, float[1, B, 5] last) {
  y, last = RNN<hidden_size = 5>(x, w, r)
}
"""
JOINED = """
<ir_version: 8, opset_import: ["" : 18]>
agraph (float[N, 8, H, W] x) => (float[N, 16, H, W] y, float[N, 8, H, V] z) {
  a = Relu(x)
  b = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)
  y = Concat<axis = 1>(a, b)
  c = Sigmoid(y)
  d, e = Split<axis = 1, num_outputs = 2>(c)
  f = Softmax<axis = 1>(d)
  z = Concat<axis = 3>(f, e)
}
"""


@pytest.mark.parametrize("text", [SCANNED.replace("20", "5"), JOINED], ids=["scan", "joined"])
def test_plans_are_valid_at_every_size(text: str) -> None:
    model = weft.load(parser.parse_model(text), device="cpu")
    plans: dict[int, object] = {}
    for section in sections_of(model):
        for first in (1, 2, 3, 4, 5, 6, 7, 8, 9, 40, 41):
            for others in (1, 2, 33):
                sizes = {name: first if number == 0 else others for number, name in enumerate(section.symbols)}
                verify_plan(section.section, section.make_plan(sizes), section.constants, sizes)
        plans.update((id(slots.plan), slots.plan) for slots in section._variants)
    assert len(plans) <= 8, "a few classes of sizes suffice"


@pytest.mark.models
@pytest.mark.usefixtures("unverified")
@pytest.mark.parametrize("entry", [pytest.param(m, id=m.name) for m in load_catalog() if dim_groups(m)])
def test_plans_of_models_are_valid_at_other_sizes(entry: CatalogModel) -> None:
    """Random sizes and corners; some are impossible for a model."""
    if entry.missing:
        pytest.skip(entry.missing)
    seed = 26
    print(f"seed {seed}")
    source = random.Random(seed)
    checked = 0
    executable = weft.load(entry.file, device="cpu").session().whole
    for number in range(12):
        names = dynamic_dims(executable.program.inputs)
        same = source.choice(SIZES)
        sizes = {name: same if number % 2 else source.choice(SIZES) for name in names}
        sizes |= fixed_sizes(executable.program.guards)
        try:
            plan = executable.plan(sizes)
        except (WeftError, GuardError, ArithmeticError):
            continue
        if plan.arena > LARGEST_ARENA:
            continue
        for part in plan.sections:
            verify_plan(part.section, part.plan, part.constants, sizes)
            checked += 1
    assert checked
