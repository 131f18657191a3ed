"""Control flow as functions of tensors: scans, branches and loops, whose bodies are traced as separate programs.

An eager trace runs the bodies itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from weft.errors import (
    ExecutionError,
    InvalidModelError,
    MalformedNodeError,
    OnlyAtRunError,
    OpDefinitionError,
    WeftError,
)
from weft.ir import dims
from weft.ir.dims import Dim, Equality, UndecidedError
from weft.ir.dtypes import DType
from weft.ir.program import Branch, Host, Loop, Scan, Step, TensorProgram, Value
from weft.ir.types import AnyType, OptionalType, SequenceType, TensorType, Type
from weft.opset.counting import CountedLoop, Counter, Unchanged, count_iterations
from weft.opset.language import assume_equal, constant, dims_tensor, reshape, slice_axis, squeeze, stack
from weft.opset.tensor import NotStaticError, Tensor, apply, build, current_trace
from weft.opset.trace import Trace, TracedBody

DEEPEST_COUNTED = 4  # loops in more bodies are not traced again as scans: every level would double the work


def scan(
    body: Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]],
    carries: Sequence[Tensor],
    sequences: Sequence[Tensor],
    length: Dim | None = None,
    declared: Sequence[Type | None] = (),
) -> tuple[list[Tensor], list[Tensor]]:
    """Run body(*carries, *slices) -> (carries, outputs) along axis 0 of the sequences.

    Return the last carries and the stacked outputs. Carries keep their type. `declared` are the types of the body's
    outputs, for a scan of length 0 whose body does not fit.
    """
    trace = current_trace.get()
    if length is None:
        length = sequences[0].shape[0]
    for sequence in sequences:
        assume_equal(sequence.shape[0], length, "scanned tensors must have the same length")
    if trace.eager:
        return _scan_eagerly(body, list(carries), sequences, length, declared)
    slices = [TensorType(sequence.dtype, sequence.shape[1:]) for sequence in sequences]
    types = [(carry.type, "carry") for carry in carries] + [(type, "slice") for type in slices]
    count = len(carries)

    def flat_body(*inputs: Tensor) -> list[Tensor]:
        new, outputs = body(*inputs)
        for carry, replacement in zip(inputs, new):
            _check_same_type(carry, replacement)
        return [*new, *outputs]

    try:
        traced = trace.body(types, flat_body)
    except (InvalidModelError, ExecutionError) as error:
        _raise_unless_deferrable(error)
        if dims.is_at_least(length, 1):
            raise
        trips, condition = dims_tensor([length], ()), constant(np.bool_(True))
        return _emit_failing_loop(trace, trips, condition, carries, declared, error)
    invariant = [before == after for before, after in zip(traced.program.inputs[:count], traced.program.outputs)]
    if any(invariant) and trace.depth() < DEEPEST_COUNTED:
        return _scan_without_invariants(body, carries, invariant, sequences, length)
    result_types: list[Type] = [carry.type for carry in carries]
    result_types.extend(TensorType(output.dtype, (length, *output.shape)) for output in traced.outputs[count:])
    primitive = Scan(traced.program, count, len(sequences), length)
    results = trace.emit(primitive, [*carries, *sequences, *traced.captures], result_types)
    return results[:count], results[count:]


def _scan_without_invariants(
    body: Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]],
    carries: Sequence[Tensor],
    invariant: Sequence[bool],
    sequences: Sequence[Tensor],
    length: Dim,
) -> tuple[list[Tensor], list[Tensor]]:
    """Scan with a body that captures the carries it does not change."""

    def reduced_body(*arguments: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        varying = iter(arguments)
        inputs = [carry if is_invariant else next(varying) for carry, is_invariant in zip(carries, invariant)]
        new, outputs = body(*inputs, *varying)
        return [value for value, is_invariant in zip(new, invariant) if not is_invariant], outputs

    final, outputs = scan(
        reduced_body, [c for c, is_invariant in zip(carries, invariant) if not is_invariant], sequences, length
    )
    last = iter(final)
    return [carry if is_invariant else next(last) for carry, is_invariant in zip(carries, invariant)], outputs


def _scan_eagerly(
    body: Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]],
    carries: list[Tensor],
    sequences: Sequence[Tensor],
    length: Dim,
    declared: Sequence[Type | None],
) -> tuple[list[Tensor], list[Tensor]]:
    assert isinstance(length, int)
    rows: list[Sequence[Tensor]] = []
    for step in range(length):
        slices = [squeeze(slice_axis(sequence, 0, step, 1), [0]) for sequence in sequences]
        new, outputs = body(*carries, *slices)
        carries = list(new)
        rows.append(outputs)
    if not rows:
        types = [*(carry.type for carry in carries), *(TensorType(s.dtype, s.shape[1:]) for s in sequences)]
        return carries, _build_empty_outputs(types, lambda *inputs: body(*inputs)[1], declared)
    return carries, [stack(column, 0) for column in zip(*rows)]


def _build_empty_outputs(
    types: Sequence[Type], outputs: Callable[..., Sequence[Tensor]], declared: Sequence[Type | None]
) -> list[Tensor]:
    """Build the stacked outputs of a body that never runs; their types come from tracing it, and open sizes are 0."""
    rows: list[TensorType]
    try:
        traced = current_trace.get().body([(type, "input") for type in types], outputs)
        rows = [TensorType(output.dtype, output.shape) for output in traced.outputs]
    except (InvalidModelError, ExecutionError) as error:
        _raise_unless_deferrable(error)
        rows = [_declared_row(type, error) for type in declared]
    shapes = [[size if isinstance(size, int) else 0 for size in row.shape or ()] for row in rows]
    return [constant(np.empty([0, *shape], row.dtype.numpy)) for row, shape in zip(rows, shapes)]


def _check_same_type(carry: Tensor, replacement: Tensor) -> None:
    if carry.dtype is not replacement.dtype or carry.rank != replacement.rank:
        raise InvalidModelError(f"a carried value changes from {carry.type} to {replacement.type}")
    for before, after in zip(carry.shape, replacement.shape):
        assume_equal(before, after, "a carried value must keep its shape")


def branch(
    condition: Tensor, then: Callable[[], Sequence[Tensor]], otherwise: Callable[[], Sequence[Tensor]]
) -> list[Tensor]:
    """Run one of two functions; a static condition leaves only one of them in the program.

    Where the condition is the equality of two sizes, and the two functions return tensors of different rank (as in
    "squeeze if this dimension is 1"), equality is assumed and guarded, so that the ranks after it are static.
    """
    trace = current_trace.get()
    equality = None
    if condition.static_value is not None:
        flags = list(condition.static_value.flat)
        equality = flags[0] if len(flags) == 1 and isinstance(flags[0], Equality) else None
        if not any(isinstance(flag, Equality) for flag in flags):
            return list(then() if all(flags) else otherwise())
    first, second = _trace_branch(trace, then), _trace_branch(trace, otherwise)
    if isinstance(first, WeftError) or isinstance(second, WeftError):
        return _emit_failing_branch(trace, condition, first, second)
    types = [join_types(a.type, b.type, trace, set()) for a, b in zip(first.outputs, second.outputs)]
    of_data = equality is not None and any(map(trace.depends_on_data, (equality.left, equality.right)))
    open_rank = any(isinstance(type, TensorType) and type.shape is None for type in types)
    if equality is not None and open_rank and not of_data:
        assume_equal(equality.left, equality.right, "a condition on sizes")
        return list(otherwise() if equality.negated else then())
    primitive = Branch(first.program, second.program)
    return trace.emit(primitive, [condition, *first.captures, *second.captures], types)


def _trace_branch(trace: Trace, function: Callable[[], Sequence[Tensor]]) -> TracedBody | WeftError:
    """Trace one branch, or return the error that says why its nodes do not fit these shapes."""
    try:
        return trace.body([], function)
    except (InvalidModelError, ExecutionError) as error:
        _raise_unless_deferrable(error)
        return error


def _raise_unless_deferrable(error: WeftError) -> None:
    """Raise an error that holds for all shapes; others matter only if the body runs."""
    if isinstance(error, (MalformedNodeError, OnlyAtRunError, OpDefinitionError)):
        raise error


def _emit_failing_branch(
    trace: Trace, condition: Tensor, first: TracedBody | WeftError, second: TracedBody | WeftError
) -> list[Tensor]:
    """Emit a branch of which one side raises its error when it is taken; results have the types of the other side."""
    valid = second if isinstance(first, WeftError) else first
    if isinstance(valid, WeftError):
        assert isinstance(first, WeftError)
        raise first  # neither side fits: no run could succeed
    outer = _symbols_in_scope(trace)
    types = [_rebind_sizes(output.type, trace, outer) for output in valid.outputs]
    programs = [
        _build_failing_program(trace, side, [], types) if isinstance(side, WeftError) else side.program
        for side in (first, second)
    ]
    return trace.emit(Branch(*programs), [condition, *valid.captures], types)


def _build_failing_program(
    trace: Trace, error: WeftError, inputs: Sequence[Type], outputs: Sequence[Type]
) -> TensorProgram:
    """Build the program of a body that only raises the error of its trace."""
    attributes = (("problem", error.problem), ("hint", error.hint), ("node", error.node), ("value", error.value))
    results = tuple(Value(next(trace.numbers), type) for type in outputs)
    step = Step(Host("refuse", attributes), (), results, trace.origin)
    return TensorProgram(tuple(Value(next(trace.numbers), type) for type in inputs), results, (step,))


def _symbols_in_scope(trace: Trace) -> set[str]:
    """Return the names of the sizes that tensors of a trace and of those around it have."""
    names: set[str] = set()
    current: Trace | None = trace
    while current is not None:
        for tensor in current.tensors.values():
            names.update(atom.name for size in tensor.type.shape or () for atom in dims.symbols(size))
        current = current.parent
    return names


def _rebind_sizes(type: Type, trace: Trace, outer: set[str] | None) -> Type:
    """Replace sizes that are computed from others than the `outer` ones by fresh sizes; None: replace all."""
    match type:
        case TensorType(dtype, shape) if shape is not None:
            are_outer = [outer is not None and all(atom.name in outer for atom in dims.symbols(size)) for size in shape]
            sizes = [size if is_outer else trace.fresh_symbol("size") for size, is_outer in zip(shape, are_outer)]
            return TensorType(dtype, tuple(sizes))
        case SequenceType(element):
            return SequenceType(_rebind_sizes(element, trace, outer))
        case OptionalType(element):
            return OptionalType(_rebind_sizes(element, trace, outer))
        case _:
            return type


def loop(
    trips: Tensor | None,
    condition: Tensor | None,
    carries: Sequence[Tensor],
    body: Callable[..., tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]],
    declared: Sequence[Type | None] = (),
) -> tuple[list[Tensor], list[Tensor]]:
    """Run body(iteration, condition, *carries) -> (condition, carries, outputs) while the condition holds.

    Return the last carries and the outputs, stacked along a new first axis. A carry whose shape changes from one
    iteration to the next gets sizes (or, at worst, a type) that are known only at run time. `declared` are the types of
    the body's outputs, for a loop without iterations whose body does not fit the shapes of its carries.
    """
    trace = current_trace.get()
    if trace.eager:
        return _loop_eagerly(trips, condition, list(carries), body, declared)
    trips = constant(np.int64(np.iinfo(np.int64).max)) if trips is None else trips
    condition = constant(np.bool_(True)) if condition is None else condition
    count = len(carries)
    types: list[Type] = [carry.type for carry in carries]
    loose: set[Dim] = set()  # sizes that are bound afresh in each iteration

    def flat_body(iteration: Tensor, condition_in: Tensor, *inputs: Tensor) -> list[Tensor]:
        proceed, new, outputs = body(iteration, condition_in, *inputs)
        return [proceed, *new, *outputs]

    fixed = [(TensorType(DType.int64, ()), "iteration"), (TensorType(DType.bool, ()), "condition")]
    while True:
        try:
            traced = trace.body([*fixed, *((type, "carry") for type in types)], flat_body)
        except (InvalidModelError, ExecutionError) as error:
            _raise_unless_deferrable(error)
            if types != [carry.type for carry in carries]:  # the first iteration fits, others may not
                raise NotStaticError(f"a loop whose later iterations do not fit: {error.problem}") from error
            declared = _infer_rows(trace, fixed, types, flat_body) or declared
            return _emit_failing_loop(trace, trips, condition, carries, declared, error)
        joined = [join_types(a, b.type, trace, loose) for a, b in zip(types, traced.outputs[1 : 1 + count])]
        if joined == types:
            break
        types = joined
    for tensor in (*carries, *traced.captures):
        if _is_open(tensor.type):
            raise NotStaticError(f"a loop over {tensor.value.name or tensor.value}, a {tensor.type}")
    if trace.depth() >= DEEPEST_COUNTED:
        return _emit_loop(trace, traced, trips, condition, carries, types)
    counted = count_iterations(trace, trips, condition, carries, traced)
    if counted is not None and not loose:
        return _emit_counted_loop(counted, carries, body)
    inside = traced.program
    invariant = [before == after for before, after in zip(inside.inputs[2 : 2 + count], inside.outputs[1 : 1 + count])]
    if any(invariant):
        return _loop_without_invariants(trips, condition, carries, invariant, body)
    return _emit_loop(trace, traced, trips, condition, carries, types)


def _loop_without_invariants(
    trips: Tensor,
    condition: Tensor,
    carries: Sequence[Tensor],
    invariant: Sequence[bool],
    body: Callable[..., tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]],
) -> tuple[list[Tensor], list[Tensor]]:
    """Loop with a body that captures the carries it does not change: outside, they may be static."""

    def reduced_body(
        iteration: Tensor, condition_in: Tensor, *moving: Tensor
    ) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
        varying = iter(moving)
        proceed, new, outputs = body(
            iteration,
            condition_in,
            *(carry if is_invariant else next(varying) for carry, is_invariant in zip(carries, invariant)),
        )
        return proceed, [value for value, is_invariant in zip(new, invariant) if not is_invariant], outputs

    final, outputs = loop(
        trips, condition, [c for c, is_invariant in zip(carries, invariant) if not is_invariant], reduced_body
    )
    last = iter(final)
    return [carry if is_invariant else next(last) for carry, is_invariant in zip(carries, invariant)], outputs


def _is_open(type: Type) -> bool:
    """Return whether a type lacks its rank: such a loop is traced at run time, as a whole."""
    return isinstance(type, AnyType) or (isinstance(type, TensorType) and type.shape is None)


def _emit_loop(
    trace: Trace, traced: TracedBody, trips: Tensor, condition: Tensor, carries: Sequence[Tensor], types: Sequence[Type]
) -> tuple[list[Tensor], list[Tensor]]:
    """Emit a loop whose number of iterations is known only at run time."""
    count = len(carries)
    result_types = [*types, *(_stack_type(output.type, trace) for output in traced.outputs[1 + count :])]
    primitive = Loop(traced.program, count)
    results = trace.emit(primitive, [trips, condition, *carries, *traced.captures], result_types)
    return results[:count], results[count:]


def _emit_failing_loop(
    trace: Trace,
    trips: Tensor,
    condition: Tensor,
    carries: Sequence[Tensor],
    declared: Sequence[Type | None],
    error: WeftError,
) -> tuple[list[Tensor], list[Tensor]]:
    """Emit a loop whose body raises its error when an iteration runs; without one, the carries are the results."""
    if _certainly_runs(trips) and _certainly_runs(condition):
        raise error
    rows = [_declared_row(type, error) for type in declared]
    types = [carry.type for carry in carries]
    inputs = [TensorType(DType.int64, ()), TensorType(DType.bool, ()), *types]
    program = _build_failing_program(trace, error, inputs, [TensorType(DType.bool, ()), *types, *rows])
    result_types = [*types, *(_stack_type(row, trace) for row in rows)]
    results = trace.emit(Loop(program, len(carries)), [trips, condition, *carries], result_types)
    return results[: len(carries)], results[len(carries) :]


def _infer_rows(
    trace: Trace, fixed: Sequence[tuple[Type, str]], carries: Sequence[Type], body: Callable[..., Sequence[Tensor]]
) -> list[Type]:
    """Infer the types of a loop's outputs for carries of any sizes, as onnxruntime does; empty if that fails, too."""
    loose = [_rebind_sizes(carry, trace, None) for carry in carries]
    try:
        traced = trace.body([*fixed, *((type, "carry") for type in loose)], body)
    except (InvalidModelError, ExecutionError, NotStaticError, UndecidedError):
        return []
    return [output.type for output in traced.outputs[1 + len(carries) :]]


def _certainly_runs(scalar: Tensor) -> bool:
    """Return whether a number of iterations, or a condition, certainly lets a loop run."""
    value = scalar.static_value
    return value is not None and value.dtype != object and bool(value.item() > 0)


def _declared_row(type: Type | None, error: WeftError) -> TensorType:
    """Return the declared type of a loop's output, with the sizes that onnxruntime gives those without iterations."""
    if type is None or type.dtype is None:
        raise error
    return TensorType(type.dtype, tuple(size if isinstance(size, int) else 0 for size in type.shape or ()))


def _emit_counted_loop(
    counted: CountedLoop,
    carries: Sequence[Tensor],
    body: Callable[..., tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]],
) -> tuple[list[Tensor], list[Tensor]]:
    """Emit a loop as a scan over iteration numbers that carries only values that are neither constant nor counters."""
    numbers = build((counted.length,), lambda i: i)
    carried = [carry for carry, kind in zip(carries, counted.carries) if kind is None]

    def step(*arguments: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        varying, number = iter(arguments[:-1]), arguments[-1]
        inputs = [_at_iteration(carry, kind, number, varying) for carry, kind in zip(carries, counted.carries)]
        _, new, outputs = body(number, constant(np.bool_(True)), *inputs)
        return [carry for carry, kind in zip(new, counted.carries) if kind is None], outputs

    final, outputs = scan(step, carried, [numbers], counted.length)
    last = iter(final)
    results = []
    for carry, kind in zip(carries, counted.carries):
        match kind:
            case Counter(start, step_size):
                end = dims_tensor([start + step_size * counted.length], (), carry.dtype)
                results.append(reshape(end, carry.shape))
            case Unchanged():
                results.append(carry)
            case None:
                results.append(next(last))
    return results, outputs


def _at_iteration(carry: Tensor, kind: Unchanged | Counter | None, number: Tensor, varying: Iterator[Tensor]) -> Tensor:
    """Return a carried value in an iteration: the carry itself, its count, or the next of the varying ones."""
    match kind:
        case Counter(_, step):
            counted: Tensor = carry + apply("cast", number, dtype=carry.dtype) * step
            return counted
        case Unchanged():
            return carry
        case None:
            return next(varying)


def _loop_eagerly(
    trips: Tensor | None,
    condition: Tensor | None,
    carries: list[Tensor],
    body: Callable[..., tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]],
    declared: Sequence[Type | None],
) -> tuple[list[Tensor], list[Tensor]]:
    limit = None if trips is None else int(trips.static_value.item())
    is_running = constant(np.bool_(True)) if condition is None else condition
    rows: list[Sequence[Tensor]] = []
    iteration = 0
    while bool(np.all(is_running.static_value)) and (limit is None or iteration < limit):
        is_running, new, outputs = body(constant(np.int64(iteration)), is_running, *carries)
        carries = list(new)
        rows.append(outputs)
        iteration += 1
    if not rows:
        fixed = [TensorType(DType.int64, ()), TensorType(DType.bool, ())]
        types = [*fixed, *(carry.type for carry in carries)]
        return carries, _build_empty_outputs(types, lambda *inputs: body(*inputs)[2], declared)
    return carries, [stack(column, 0) for column in zip(*rows)]


def _stack_type(type: Type, trace: Trace) -> Type:
    if type.dtype is not None:
        return TensorType(type.dtype, None if type.shape is None else (trace.fresh_symbol("trips"), *type.shape))
    return AnyType()


def join_types(a: Type, b: Type, trace: Trace, loose: set[Dim]) -> Type:
    """Return the narrowest type that holds values of both; sizes that differ become fresh ones, added to `loose`."""
    if a == b:
        return a
    match a, b:
        case TensorType(), TensorType() if a.dtype is b.dtype:
            if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
                return TensorType(a.dtype, None)
            sizes = [x if x == y or x in loose else trace.fresh_symbol("size") for x, y in zip(a.shape, b.shape)]
            loose.update(size for size, x in zip(sizes, a.shape) if size != x)
            return TensorType(a.dtype, tuple(sizes))
        case SequenceType(x), SequenceType(y):
            return SequenceType(join_types(x, y, trace, loose))
        case OptionalType(x), OptionalType(y):
            return OptionalType(join_types(x, y, trace, loose))
    return AnyType()
