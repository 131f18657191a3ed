"""Run tensor programs step by step.

In: a program and its inputs as arrays (lists, None, dicts for sequences, optionals, maps). Out: its outputs. Sizes
are bound as values appear; a broken guard raises GuardError: the program does not apply to these sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.backends.reference import products, reductions
from weft.backends.reference.host import HOST_FUNCTIONS
from weft.backends.reference.maps import evaluate_map, evaluate_map_symbolic, evaluate_scatter
from weft.backends.reference.scalars import convert_symbolic, wrap
from weft.backends.reference.sizes import GuardError, bind_sizes, check_guards, physical_memory
from weft.errors import ExecutionError, InternalError, OutOfMemoryError, WeftError
from weft.interrupts import current_watch, is_large, raise_if_abandoned, run_interruptibly
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.graph import Graph
from weft.ir.program import (
    ArgReduce,
    Branch,
    Concat,
    Contract,
    Convolve,
    Cumulate,
    Dims,
    Host,
    Late,
    Loop,
    Map,
    Observe,
    Pool,
    Primitive,
    Random,
    Reduce,
    Reshape,
    Scan,
    Scatter,
    Sort,
    Step,
    TensorProgram,
    Value,
)
from weft.ir.types import Type
from weft.opset import registry
from weft.opset.lower import Scope, Subgraph
from weft.opset.trace import Trace

Sizes = dict[str, int]
RunBody = Callable[[TensorProgram, Sequence[Any], Mapping[str, int]], list[Any]]


class Interpreter:
    """The evaluator that tracing and folding use."""

    def evaluate(self, primitive: Primitive, operands: Sequence[Any], types: Sequence[Type]) -> list[Any]:
        return evaluate(primitive, operands, types, {})

    def evaluate_symbolic(self, primitive: Primitive, operands: Sequence[Any], types: Sequence[Type]) -> list[Any]:
        match primitive:
            case Map():
                return [evaluate_map_symbolic(primitive, operands, _evaluate_shape(types[0], {}))]
            case Reduce() | Reshape() | Concat():
                boxed = [operand.astype(object) for operand in operands]
                return [convert_symbolic(evaluate(primitive, boxed, types, {})[0], _dtype_of(types[0]))]
            case _:
                raise InternalError(f"{type(primitive).__name__} of symbolic integers")


def run(program: TensorProgram, inputs: Sequence[Any], sizes: Mapping[str, int] | None = None) -> list[Any]:
    """Return the program's outputs for these inputs; `sizes` are those of an enclosing program."""
    bound: Sizes = dict(sizes or {})
    values: dict[Value, Any] = dict(program.constants)
    for value, content in zip(program.inputs, inputs, strict=True):
        bind_sizes(value.type, content, bound, rebind=True)
        values[value] = content
    pending = check_guards(program.guards, bound)
    last_use = _last_uses(program)
    for number, step in enumerate(program.steps):
        operands = [values[operand] for operand in step.operands]
        results = run_step(step, operands, bound)
        for value, content in zip(step.results, results, strict=True):
            bind_sizes(value.type, content, bound, rebind=False)
            values[value] = content
        del operands, results
        if pending:
            pending = check_guards(pending, bound)
        for value in last_use.get(number, ()):
            values.pop(value, None)
    return [values[output] for output in program.outputs]


def evaluate(
    primitive: Primitive,
    operands: Sequence[Any],
    types: Sequence[Type],
    sizes: Mapping[str, int],
    run_body: RunBody | None = None,
) -> list[Any]:
    """Evaluate one primitive. Result types may be open where the operands determine the result (host steps).

    `run_body` runs the bodies inside it; by default they are interpreted too.
    """
    if not isinstance(primitive, Branch):  # whose bodies compute its results and check them
        for type in types:
            _check_memory(type, sizes)
    with np.errstate(all="ignore"):
        return _evaluate(primitive, operands, types, sizes, run if run_body is None else run_body)


def _evaluate(
    primitive: Primitive, operands: Sequence[Any], types: Sequence[Type], sizes: Mapping[str, int], run_body: RunBody
) -> list[Any]:
    def number(dim: Dim) -> int:
        return dims.evaluate(dim, sizes)

    match primitive:
        case Map():
            return [evaluate_map(primitive, operands, _evaluate_shape(types[0], sizes), sizes)]
        case Reshape():
            return [operands[0].reshape(_evaluate_shape(types[0], sizes))]
        case Concat(axis):
            return [np.concatenate(operands, axis)]
        case Dims(values):
            dtype = _dtype_of(types[0])
            return [
                np.array([wrap(number(v), dtype) for v in values], dtype.numpy).reshape(
                    _evaluate_shape(types[0], sizes)
                )
            ]
        case Reduce():
            return [reductions.reduce(primitive, operands[0])]
        case ArgReduce():
            return [reductions.arg_reduce(primitive, operands[0])]
        case Contract():
            left, right = _widen_factors(operands, types[0])
            return [products.contract(primitive, left, right)]
        case Convolve():
            pads = [(number(a), number(b)) for a, b in primitive.pads]
            shape = _evaluate_shape(types[0], sizes)
            x, w = _widen_factors(operands, types[0])
            return [products.convolve(primitive, x, w, number(primitive.groups), pads, shape)]
        case Pool():
            pads = [(number(a), number(b)) for a, b in primitive.pads]
            window = [number(size) for size in primitive.window]
            return [reductions.pool(primitive, operands[0], window, pads, _evaluate_shape(types[0], sizes))]
        case Cumulate():
            return [reductions.cumulate(primitive, operands[0])]
        case Sort():
            return list(reductions.sort(primitive, operands[0], number(primitive.count)))
        case Scatter():
            return [evaluate_scatter(primitive, operands, sizes)]
        case Random():
            return [reductions.random(primitive, _evaluate_shape(types[0], sizes), _dtype_of(types[0]))]
        case Host(function, attributes):
            return list(HOST_FUNCTIONS[function](*operands, **dict(attributes)))
        case Scan():
            return _scan(primitive, operands, types, sizes, run_body)
        case Branch():
            return _branch(primitive, operands, sizes, run_body)
        case Loop():
            return _loop(primitive, operands, types, sizes, run_body)
        case Observe() | Late():
            raise InternalError(f"{type(primitive).__name__} has no meaning outside a program")


def _widen_factors(operands: Sequence[Any], result: Type) -> Sequence[Any]:
    """Return the operands of a product in the type of its result if they are narrower than float32 or int32."""
    if result.dtype not in (DType.float32, DType.int32):
        return operands
    return [operand.astype(result.dtype.numpy) if operand.dtype.itemsize < 4 else operand for operand in operands]


def run_step(step: Step, operands: list[Any], sizes: Sizes, run_body: RunBody | None = None) -> list[Any]:
    """Run one step; `run_body` runs the bodies of its primitive."""
    watch = current_watch()
    if watch is not None:
        raise_if_abandoned()
        watch.describe_position = partial(_describe_place, step)
    elif is_large(operands):
        return run_interruptibly(_run_step, step, operands, sizes, run_body)
    return _run_step(step, operands, sizes, run_body)


def _describe_place(step: Step) -> str:
    return f"at {step.origin}" if step.origin else f"at a step of its {type(step.primitive).__name__}"


def _run_step(step: Step, operands: list[Any], sizes: Sizes, run_body: RunBody | None) -> list[Any]:
    try:
        if isinstance(step.primitive, Observe):
            for symbol, element in zip(step.primitive.symbols, np.asarray(operands[0]).flat, strict=True):
                sizes[str(symbol)] = int(element)
            return []
        if isinstance(step.primitive, Late):
            return _run_late(step.primitive, operands, len(step.results))
        return evaluate(step.primitive, operands, [value.type for value in step.results], sizes, run_body)
    except WeftError as error:
        raise error.at(node=step.origin) from error.__cause__
    except GuardError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError("not enough memory for this step", node=step.origin) from error
    except RecursionError as error:
        raise ExecutionError("the model's control flow is nested too deeply", node=step.origin) from error
    except (ValueError, IndexError, KeyError, ArithmeticError, TypeError, AttributeError) as error:
        raise ExecutionError(f"failed on this data: {type(error).__name__}: {error}", node=step.origin) from error


def _run_late(late: Late, operands: Sequence[Any], output_count: int) -> list[Any]:
    """Compute a late op by tracing it eagerly on its operands."""
    definition = registry.find(late.domain, late.op, late.version)
    if definition is None:
        raise InternalError(f"{late.op} is late but has no definition")
    trace = Trace(Interpreter(), eager=True)
    remaining = iter(operands)
    inputs = [trace.constant(next(remaining)) if present else None for present in late.present]
    scope: Scope = {name: trace.constant(next(remaining)) for name in late.captures}
    attributes = {
        name: Subgraph(value, scope) if isinstance(value, Graph) else value for name, value in late.attributes.items()
    }
    with trace.active():
        outputs = registry.call(definition, inputs, attributes, output_count, late.version)
    return [None if output is None else trace.constants[output.value] for output in outputs]


def _scan(
    primitive: Scan, operands: Sequence[Any], types: Sequence[Type], sizes: Mapping[str, int], run_body: RunBody
) -> list[Any]:
    count, sequences = primitive.carries, primitive.sequences
    carries = list(operands[:count])
    scanned = operands[count : count + sequences]
    captures = operands[count + sequences :]
    rows: list[list[Any]] = []
    for step in range(dims.evaluate(primitive.length, sizes)):
        slices = [np.asarray(sequence[step]) for sequence in scanned]
        outputs = run_body(primitive.body, [*carries, *slices, *captures], sizes)
        carries, row = outputs[:count], outputs[count:]
        rows.append(row)
    return [*carries, *_stack_rows(rows, types[count:], sizes)]


def _branch(primitive: Branch, operands: Sequence[Any], sizes: Mapping[str, int], run_body: RunBody) -> list[Any]:
    split = 1 + len(primitive.then.inputs)
    if _is_true(operands[0]):
        return run_body(primitive.then, operands[1:split], sizes)
    return run_body(primitive.otherwise, operands[split:], sizes)


def _is_true(condition: Any) -> bool:
    array = np.asarray(condition)
    return bool(array.item() if array.size == 1 else array.all())


def _loop(
    primitive: Loop, operands: Sequence[Any], types: Sequence[Type], sizes: Mapping[str, int], run_body: RunBody
) -> list[Any]:
    trips, going = int(np.asarray(operands[0]).item()), np.asarray(operands[1])
    carries = list(operands[2 : 2 + primitive.carries])
    captures = operands[2 + primitive.carries :]
    rows: list[list[Any]] = []
    iteration = 0
    while iteration < trips and _is_true(going):
        inputs = [np.asarray(iteration, np.int64), going.reshape(()), *carries, *captures]
        outputs = run_body(primitive.body, inputs, sizes)
        going = np.asarray(outputs[0])
        carries, row = outputs[1 : 1 + primitive.carries], outputs[1 + primitive.carries :]
        rows.append(row)
        iteration += 1
    return [*carries, *_stack_rows(rows, types[primitive.carries :], sizes)]


def _stack_rows(rows: list[list[Any]], types: Sequence[Type], sizes: Mapping[str, int]) -> list[Array]:
    if rows:
        return [np.stack(column) for column in zip(*rows, strict=True)]
    return [_stack_nothing(type, sizes) for type in types]


def _stack_nothing(type: Type, sizes: Mapping[str, int]) -> Array:
    """Stack no iterations: sizes that were never bound are 0."""
    if type.shape is None:
        raise ExecutionError("a loop ran no iteration, so the shapes of its outputs are unknown")
    shape = [0]
    for dim in type.shape[1:]:
        try:
            shape.append(dims.evaluate(dim, sizes))
        except KeyError:
            shape.append(0)
    return np.empty(shape, type.dtype.numpy)


def _last_uses(program: TensorProgram) -> dict[int, list[Value]]:
    """List, for each step number, the values that nothing reads afterwards; constants belong to the program."""
    last: dict[Value, int] = {}
    for number, step in enumerate(program.steps):
        for value in (*step.operands, *step.results):
            last[value] = number
    never_released = {*program.outputs, *program.constants}
    uses: dict[int, list[Value]] = {}
    for value, number in last.items():
        if value not in never_released:
            uses.setdefault(number, []).append(value)
    return uses


def _evaluate_shape(type: Type, sizes: Mapping[str, int]) -> tuple[int, ...]:
    if type.shape is None:
        raise InternalError(f"a tensor of known rank is needed, not {type}")
    return tuple(_size(dim, sizes) for dim in type.shape)


def _size(dim: Dim, sizes: Mapping[str, int]) -> int:
    size = dims.evaluate(dim, sizes)
    if size < 0:
        raise ExecutionError(f"a dimension of negative size: {dim} = {size}")
    return size


def _dtype_of(type: Type) -> DType:
    assert type.dtype is not None
    return type.dtype


def _check_memory(type: Type, sizes: Mapping[str, int]) -> None:
    if type.shape is None:
        return
    try:
        size = dims.evaluate(dims.product(type.shape), sizes) * type.dtype.numpy.itemsize
    except KeyError:
        return
    if size > physical_memory():
        raise OutOfMemoryError(
            f"a tensor {type} needs {size:,} bytes, more than this machine's memory of {physical_memory():,}",
            hint="check the sizes of the inputs and the shapes in the model",
        )
