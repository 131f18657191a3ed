"""Fusion: after each stage every step is in one group, and the program prints and verifies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from frontend.samples import model, node, tensor, value
from kernels.vector.works import TARGET
from onnx import TensorProto

import weft
from weft.errors import InternalError
from weft.fuse import PIPELINE, fuse
from weft.fuse.host import NATIVE_PRIMITIVES
from weft.fuse.verify import verify_groups
from weft.ir.groups import FusedProgram, HeavyGroup, HostGroup, ReduceGroup, RowGroup, ScanGroup, group_name
from weft.ir.layout import Layout, channels_last
from weft.ir.program import Reshape, TensorProgram
from weft.ir.work import NativeSection, Task
from weft.kernels.sections import build_sections
from weft.kernels.threads.templates import TEMPLATES as THREAD_TEMPLATES
from weft.kernels.vector.templates import TEMPLATES as VECTOR_TEMPLATES


def traced(built: Any) -> TensorProgram:
    program = weft.load(built, device="reference").program
    assert isinstance(program, TensorProgram)
    return program


@pytest.fixture
def program() -> TensorProgram:
    """Build a convolution with bias and clamp, a softmax over its channels, and its argmax."""
    rng = np.random.default_rng(0)
    weights = [
        tensor("w", rng.standard_normal((16, 8, 3, 3)).astype(np.float32)),
        tensor("b", rng.standard_normal(16).astype(np.float32)),
    ]
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("Softmax", ["r"], ["s"], axis=1),
        node("ArgMax", ["s"], ["y"], axis=1),
    ]
    return traced(model(nodes, [value("x", [1, 8, 10, 12])], [value("y", [1, 1, 10, 12], TensorProto.INT64)], weights))


def test_parts_of_groups(program: TensorProgram) -> None:
    fused = fuse(program, TARGET)
    (convolve,) = (group for group in fused.groups if isinstance(group, HeavyGroup))
    assert convolve.epilogue is not None
    assert group_name(convolve) == "convolve with epilogue"
    assert set(convolve.inputs) == set(convolve.operands)
    (rows,) = (group for group in fused.groups if isinstance(group, RowGroup))
    assert rows.frame.reduced == {1}
    (largest,) = (group for group in fused.groups if isinstance(group, ReduceGroup))
    assert largest.inputs == rows.results
    assert fused.layouts[convolve.results[0]] == channels_last(4)


def test_every_stage_prints(program: TensorProgram) -> None:
    stages: dict[str, FusedProgram] = {}
    fused = fuse(program, TARGET, stages.__setitem__)
    assert list(stages) == [stage.__name__ for stage in PIPELINE]
    for state in stages.values():
        assert sum(len(group.steps) for group in state.groups) == len(state.program.steps)
        assert str(state).count("group ") == len(state.groups)
    text = str(fused)
    assert "convolve with epilogue" in text
    assert "rows; along the axes 1" in text
    assert "in the order (0, 2, 3, 1)" in text


def test_tasks_name_their_template(program: TensorProgram) -> None:
    (section,) = build_sections(fuse(program, TARGET), TARGET)
    assert isinstance(section, NativeSection)
    tasks = [task for task in section.tasks if isinstance(task, Task)]
    assert all(task.template and task.reason for task in tasks)
    assert "row passes" in {task.template for task in tasks}


def test_host_steps_have_a_reason() -> None:
    nodes = [node("NonZero", ["x"], ["y"])]
    fused = fuse(traced(model(nodes, [value("x", [4, 5])], [value("y", [2, "n"], TensorProto.INT64)])), TARGET)
    on_host = [group for group in fused.groups if isinstance(group, HostGroup)]
    assert on_host
    assert all(group.reason in str(fused) for group in on_host)


def test_both_families_have_templates_for_all_primitives() -> None:
    needed = set(NATIVE_PRIMITIVES) - {Reshape}
    assert needed <= VECTOR_TEMPLATES.keys()
    assert VECTOR_TEMPLATES.keys() == THREAD_TEMPLATES.keys()


@pytest.mark.parametrize("damage", ["twice", "missing", "late", "layout", "rank"])
def test_verifier_finds_faults(program: TensorProgram, damage: str) -> None:
    fused = fuse(program, TARGET)
    verify_groups(fused)
    first, *rest = fused.groups
    assert not isinstance(first, (HostGroup, ScanGroup))
    value = first.results[0]
    match damage:
        case "twice":
            fused = replace(fused, groups=(*fused.groups, first))
        case "missing":
            fused = replace(fused, groups=tuple(rest))
        case "late":
            fused = replace(fused, groups=(*rest, first))
        case "layout":
            fused = replace(fused, layouts={v: layout for v, layout in fused.layouts.items() if v != value})
        case "rank":
            fused = replace(fused, layouts={**fused.layouts, value: Layout((0,))})
    with pytest.raises(InternalError):
        verify_groups(fused)
