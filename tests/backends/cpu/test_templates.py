"""Sections filled in from templates for changing sizes equal the plans for these sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser
from onnx.numpy_helper import from_array
from peers import onnxruntime_run

import weft
from weft.backends.cpu import templates
from weft.backends.cpu.section import CpuPlan
from weft.cost.launches import (
    blocks_between_checks,
    find_sequences,
    is_long,
    is_worth_sharing,
    is_worth_waking,
    may_block,
)
from weft.cost.many_launches import LaunchArrays
from weft.cost.roofline import Peak
from weft.ir.work import Kernel, PlannedLaunch

Array = np.ndarray[Any, Any]
SEED = 14
RNG = np.random.default_rng(SEED)

BRANCHES = """
<ir_version: 8, opset_import: ["" : 18]>
agraph (float[N, 8, H, W] x) => (float[N, 8, p, q] y, float[N, 16, a] z) {
  wide = Conv<pads = [1, 1, 1, 1]>(x, w)
  kept = Relu(wide)
  pooled = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)
  joined = Concat<axis = 1>(kept, pooled)
  mixed = Conv(joined, v)
  gate = GlobalAveragePool(mixed)
  part = Sigmoid(gate)
  scaled = Mul(mixed, part)
  y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(scaled)
  flat = Constant<value_ints = [0, 16, -1]>()
  rows = Reshape(kept, flat)
  z = Softmax<axis = -1>(rows)
}
"""
SIZES = [
    (1, 16, 16),
    (1, 24, 16),
    (2, 16, 40),
    (1, 33, 18),
    (3, 18, 33),
    (1, 64, 50),
    (2, 10, 10),
    (1, 2, 2),
    (1, 96, 96),
]


def _model() -> Any:
    model = parser.parse_model(BRANCHES)
    for name, shape in (("w", (16, 8, 3, 3)), ("v", (8, 24, 1, 1))):
        model.graph.initializer.append(from_array(RNG.standard_normal(shape).astype(np.float32), name))
    return model


@pytest.mark.parametrize("threads", [1, 2])
def test_templates_equal_plans(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    plans: list[tuple[templates.Key, CpuPlan | None]] = []
    find = templates.SectionTemplates.find

    def noted(self: templates.SectionTemplates, key: templates.Key) -> CpuPlan | None:
        filled = find(self, key)
        if filled is not None:
            plan = self.section.make_plan(dict(zip(self.section.symbols, key)))
            assert filled.arena_bytes == plan.arena_bytes
            assert filled.tape.does_the_same(self.section.make_tape(plan))
        plans.append((key, filled))
        return filled

    monkeypatch.setattr(templates.SectionTemplates, "find", noted)
    loaded = weft.load(model.SerializeToString(), device="cpu", threads=threads)
    inputs = [RNG.standard_normal((n, 8, h, w)).astype(np.float32) for n, h, w in SIZES]
    results = [loaded.run({"x": x}) for x in (*inputs, *inputs)]
    hits = sum(plan is not None for _, plan in plans)  # how many there are depends on the machine's threads
    assert hits >= 2, f"seed {SEED}"
    monkeypatch.setattr(templates, "MOST_MISSES", 0)
    planned = weft.load(model.SerializeToString(), device="cpu", threads=threads)
    for number, x in enumerate(inputs):
        expected = onnxruntime_run(model, {"x": x})
        exact = planned.run({"x": x})
        for name, own in exact.items():
            np.testing.assert_array_equal(results[number][name], own)
            np.testing.assert_array_equal(results[len(inputs) + number][name], own)
        for own, other in zip(exact.values(), expected):
            np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


def test_cost_of_many_launches_equals_their_sum() -> None:
    peak = Peak(1e11, 2e10)
    kernel = Kernel.__new__(Kernel)
    amounts = [(int(b), float(f), float(m)) for b, f, m in 10 ** RNG.uniform(0, 8, (200, 3))]
    amounts += [(0, 1e6, 1e6), (0, 0.0, 0.0), (7, 0.0, 1e5), (1, 0.0, 1e9)]
    launches = [
        PlannedLaunch(kernel, b, (), (), flops=f, bytes=m, after=(number - 1,) if number % 3 else ())
        for number, (b, f, m) in enumerate(amounts)
    ]
    for some in (
        launches,
        launches[:1],
        launches[-4:-2],
        [*launches[:4], PlannedLaunch(kernel, 700, (), (), after=())],
    ):
        blocks, flops, moved = (np.array([getattr(one, name) for one in some]) for name in ("blocks", "flops", "bytes"))
        many = LaunchArrays(blocks, flops, moved, peak)
        assert many.worth_sharing.tolist() == [is_worth_sharing(one, peak) for one in some]
        assert many.blocks_between_checks.tolist() == [max(blocks_between_checks(one, peak), 1) for one in some]
        assert many.find_sequences([one.after or () for one in some]) == find_sequences(some, peak)
        assert (many.is_long, many.may_block) == (is_long(some, peak), may_block(some, peak))
        assert many.is_worth_waking == is_worth_waking(some, peak)
