"""Row groups of real programs, computed as one kernel each, in any layout, against the reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from kernels.vector.works import TARGET, Array, run_work
from onnx import TensorProto, helper

from weft.backends.reference.interpret import Interpreter, evaluate
from weft.frontend import read_model
from weft.fuse.row_groups import find_row_frame, find_row_groups
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.groups import RowGroup
from weft.ir.layout import Layout, row_major
from weft.ir.program import Map, Reduce, Step, TensorProgram, Value
from weft.ir.scalar import Index, Load
from weft.ir.target import Target
from weft.ir.types import TensorType
from weft.kernels.build.templates import Request
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.select import select_kernels
from weft.opset.lower import lower
from weft.passes import PIPELINE

F32 = DType.float32


def program_of(
    nodes: Sequence[Any], inputs: dict[str, Sequence[Any]], weights: dict[str, Array], dtype: int = 1
) -> TensorProgram:
    graph_inputs = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()]
    outputs = [helper.make_tensor_value_info("y", dtype, None)]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", graph_inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    evaluator = Interpreter()
    program = lower(read_model(model.SerializeToString(), is_defined=lambda *_: True).graph, evaluator)
    for apply in PIPELINE:
        program = apply(program, evaluator)
    return program


def run_groups(
    program: TensorProgram,
    inputs: Sequence[Array],
    sizes: dict[str, int],
    rng: np.random.Generator,
    threads: int = 1,
    target: Target = TARGET,
    run: Callable[..., tuple[list[Array], int]] = run_work,
) -> tuple[list[Array], int]:
    """Run row groups as kernels and all else on the reference; return the outputs and the number of groups."""
    groups = find_row_groups(program)
    owner = {id(step): group for group in groups for step in group}
    values: dict[Value, Array] = dict(program.constants)
    values.update(zip(program.inputs, inputs, strict=True))
    for step in program.steps:
        group = owner.get(id(step))
        if group is None:
            types = [value.type for value in step.results]
            values.update(zip(step.results, evaluate(step.primitive, [values[v] for v in step.operands], types, sizes)))
        elif step is group[-1]:
            work, pairs, results = group_work(program, group, values, rng, target)
            options = {} if run is not run_work else {"threads": threads, "at_start": bool(rng.integers(2))}
            arrays, _ = run(work, pairs, list(results.values()), sizes, **options)
            values.update(zip(results, arrays, strict=True))
    return [values[value] for value in program.outputs], len(groups)


def group_work(
    program: TensorProgram,
    group: tuple[Step, ...],
    values: dict[Value, Array],
    rng: np.random.Generator,
    target: Target,
) -> tuple[Work, list[tuple[Array, Layout]], dict[Value, StoredTensor]]:
    """Build the work of a group, with its operands and results in random layouts."""
    group_results = {value for step in group for value in step.results}
    read = list(dict.fromkeys(value for step in group for value in step.operands if value not in group_results))
    outside = {value for step in program.steps if step not in group for value in step.operands} | {*program.outputs}
    read_outside = [value for step in group for value in step.results if value in outside]
    operands = {value: tensor_for(value, rng) for value in read}
    results = {value: tensor_for(value, rng) for value in read_outside}
    frame = find_row_frame(group)
    assert frame is not None
    rows = RowGroup(tuple(group), tuple(operands), tuple(results), frame)
    (part,) = select_kernels(Request(rows, {**operands, **results}, {}, target)).parts
    return part.work, [(np.asarray(values[value]), tensor.layout) for value, tensor in operands.items()], results


def tensor_for(value: Value, rng: np.random.Generator) -> StoredTensor:
    assert isinstance(value.type, TensorType)
    assert value.type.shape is not None
    rank = len(value.type.shape)
    layout = row_major(rank) if rng.random() < 0.6 else Layout(tuple(int(axis) for axis in rng.permutation(rank)))
    return StoredTensor(value.type.dtype, value.type.shape, layout)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


CASES: dict[str, tuple[list[Any], int]] = {
    "softmax": ([node("Softmax", "x", "y", axis=-1)], 1),
    "softmax_of_middle": ([node("Softmax", "x", "y", axis=1)], 1),
    "log_softmax": ([node("LogSoftmax", "x", "y", axis=-1)], 1),
    "layer": ([node("LayerNormalization", "x w b", "y")], 1),
    "residual_layer": ([node("Add", "x r", "t"), node("LayerNormalization", "t w b", "y")], 1),
    "costly_before": (
        [node("Exp", "x", "e"), node("LayerNormalization", "e w b", "l"), node("Tanh", "l", "y")], 1,
    ),
    "norm": ([node("LpNormalization", "x", "y", axis=1, p=2)], 1),
    "mean": ([node("ReduceMean", "x", "y", keepdims=0)], 1),
    "log_sum_exp": ([node("ReduceLogSumExp", "x", "y", keepdims=1)], 1),
    "instance": ([node("InstanceNormalization", "x s s", "y")], 1),
    "mean_variance": ([node("MeanVarianceNormalization", "x", "y", axes=[0, 2])], 1),
}  # fmt: skip


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 17, 64), (4, 3, 129), (1, 8, 5), (5, 33, 16), (2, 2, 1000)])
@pytest.mark.parametrize("name", CASES)
def test_normalisations(name: str, shape: tuple[int, ...], symbolic: bool) -> None:
    nodes, count = CASES[name]
    rng = np.random.default_rng(len(name) * 1000 + shape[-1])
    used = {value for each in nodes for value in each.input}
    named = ["n", "m", shape[2]] if symbolic else list(shape)
    if name == "instance":
        named[1] = shape[1]
    weights = {"w": rng.normal(size=shape[-1]), "b": rng.normal(size=shape[-1]), "s": rng.normal(size=shape[1])}
    constants = {key: value.astype(np.float32) for key, value in weights.items() if key in used}
    program = program_of(nodes, {key: named for key in ("x", "r") if key in used}, constants)
    inputs = [rng.normal(0, 2, shape).astype(np.float32) for _ in program.inputs]
    sizes = {"n": shape[0], "m": shape[1]}
    (ours,), group_count = run_groups(program, inputs, sizes, rng)
    assert group_count == count or (name == "log_sum_exp" and symbolic)  # a long row is shared by threads
    expected = onnx_in_float64(nodes, dict(zip([v.name for v in program.inputs], inputs)), constants)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(ours, expected, 1e-4, 1e-5 * scale + 1e-7)


def onnx_in_float64(nodes: Sequence[Any], inputs: dict[str, Array], weights: dict[str, Array]) -> Array:
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    program = program_of(nodes, {name: array.shape for name, array in inputs.items()}, wide, TensorProto.DOUBLE)
    values: dict[Value, Any] = dict(program.constants)
    values.update((value, inputs[value.name].astype(np.float64)) for value in program.inputs)
    for step in program.steps:
        types = [value.type for value in step.results]
        values.update(zip(step.results, evaluate(step.primitive, [values[v] for v in step.operands], types, {})))
    result: Array = values[program.outputs[0]]
    return result


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16, DType.float64])
def test_softmax_of_other_types(dtype: DType) -> None:
    number = {DType.float16: 10, DType.bfloat16: 16, DType.float64: 11}[dtype]
    program = program_of([node("Softmax", "x", "y")], {"x": [6, 70]}, {}, number)
    x = np.random.default_rng(0).normal(0, 3, (6, 70)).astype(dtype.numpy)
    (ours,), group_count = run_groups(program, [x], {}, np.random.default_rng(1))
    assert group_count == 1
    wide = x.astype(np.float64)
    expected = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    tolerance = {DType.float16: 1e-2, DType.bfloat16: 8e-2, DType.float64: 1e-12}[dtype]
    np.testing.assert_allclose(ours.astype(np.float64), expected, tolerance, 1e-6 if dtype is DType.float16 else 0)


def test_rows_with_infinities_and_nan() -> None:
    program = program_of([node("Softmax", "x", "y")], {"x": [4, 40]}, {})
    x = np.random.default_rng(0).normal(size=(4, 40)).astype(np.float32)
    x[0, 3:] = -np.inf
    x[1, 7] = np.nan
    x[2] = -np.inf
    (ours,), _ = run_groups(program, [x], {}, np.random.default_rng(6))
    with np.errstate(invalid="ignore"):
        wide = np.exp(x - x.max(axis=1, keepdims=True))
        np.testing.assert_allclose(ours, wide / wide.sum(axis=1, keepdims=True), 1e-5)


def test_intermediate_values_that_others_read_are_written() -> None:
    """The sum before a normalisation and its mean are outputs as well."""
    nodes = [
        node("Add", "x r", "t"),
        node("ReduceMean", "t k", "m"),
        node("Sub", "t m", "d"),
        node("Exp", "d", "e"),
        node("ReduceSum", "e k", "s", keepdims=0),
        node("ReduceSum", "d k", "u", keepdims=1),
        node("Mul", "e u", "y"),
    ]
    graph_inputs = [helper.make_tensor_value_info(name, 1, [9, 70]) for name in ("x", "r")]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in ("t", "m", "e", "s", "y")]
    axes = onnx.numpy_helper.from_array(np.array([1]), "k")
    model = helper.make_model(
        helper.make_graph(nodes, "g", graph_inputs, outputs, [axes]), opset_imports=[helper.make_opsetid("", 21)]
    )
    evaluator = Interpreter()
    program = lower(read_model(model.SerializeToString(), is_defined=lambda *_: True).graph, evaluator)
    for apply in PIPELINE:
        program = apply(program, evaluator)
    rng = np.random.default_rng(2)
    x, r = rng.normal(size=(2, 9, 70)).astype(np.float32)
    for _ in range(4):
        ours, group_count = run_groups(program, [x, r], {}, rng)
        assert group_count == 1
        t = (x + r).astype(np.float64)
        m = t.mean(axis=1, keepdims=True)
        e = np.exp(t - m)
        expected = [t, m, e, e.sum(axis=1), e * (t - m).sum(axis=1, keepdims=True)]
        for actual, reference in zip(ours, expected, strict=True):
            np.testing.assert_allclose(actual, reference, 1e-4, 2e-4)


def test_boundaries_of_groups() -> None:
    """Other axes, other shapes and readers in between keep steps out of a group."""
    a, b = TensorType(F32, (4, 6)), TensorType(F32, (4,))
    x, total, turned, sums = (
        Value(0, a),
        Value(1, b),
        Value(2, TensorType(F32, (6, 4))),
        Value(3, TensorType(F32, (6,))),
    )
    place = tuple(dims.axis(axis, size) for axis, size in enumerate((6, 4)))
    steps = (
        Step(Reduce("sum", (1,)), (x,), (total,), "first"),
        Step(Map(Load(0, (Index(place[1]), Index(place[0])), F32)), (x,), (turned,), "turn"),
        Step(Reduce("sum", (1,)), (turned,), (sums,), "second"),
    )
    program = TensorProgram((x,), (total, sums), steps)
    assert [tuple(step.origin for step in group) for group in find_row_groups(program)] == [("turn", "second")]


def test_same_bits_for_any_threads() -> None:
    program = program_of([node("Softmax", "x", "y")], {"x": [50, 333]}, {})
    x = np.random.default_rng(0).normal(size=(50, 333)).astype(np.float32)
    runs = [run_groups(program, [x], {}, np.random.default_rng(3), threads)[0][0].tobytes() for threads in (1, 2, 4)]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize(("rows", "length"), [(300, 40), (131, 64), (520, 17)])
def test_rows_that_are_transposed(rows: int, length: int) -> None:
    """Elements of a row that are far apart in the operand and contiguous in the result: no vector gathers them."""
    nodes = [node("LayerNormalization", "x w", "y", axis=-1)]
    rng = np.random.default_rng(rows)
    x, w = rng.standard_normal((1, rows, length), np.float32), rng.standard_normal(length, np.float32)
    program = program_of(nodes, {"x": x.shape}, {"w": w})
    (group,) = find_row_groups(program)
    frame = find_row_frame(group)
    assert frame is not None
    group_results = {value for step in group for value in step.results}
    read = list(dict.fromkeys(value for step in group for value in step.operands if value not in group_results))
    tensors = {value: tensor_in(value, transposed=value in program.inputs) for value in (*read, *program.outputs)}
    request = Request(RowGroup(tuple(group), tuple(read), program.outputs, frame), tensors, {}, TARGET)
    (part,) = select_kernels(request).parts
    assert len(part.work.launches) > 1
    values = dict(program.constants) | {program.inputs[0]: x}
    operands = [(np.asarray(values[value]), tensors[value].layout) for value in read]
    (actual,), _ = run_work(part.work, operands, [tensors[value] for value in program.outputs])
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def tensor_in(value: Value, transposed: bool) -> StoredTensor:
    assert isinstance(value.type, TensorType)
    assert value.type.shape is not None
    rank = len(value.type.shape)
    layout = Layout((*range(rank - 2), rank - 1, rank - 2)) if transposed else row_major(rank)
    return StoredTensor(value.type.dtype, value.type.shape, layout)
