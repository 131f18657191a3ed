"""Control flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.errors import MalformedNodeError
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.graph import GraphValue
from weft.ir.types import AnyType, SequenceType, TensorType
from weft.opset.flow import branch, loop, scan
from weft.opset.functions import cast, where
from weft.opset.language import Tensor, build, check_range, dims_tensor, expand, flip, host, reshape, transpose
from weft.opset.registry import REQUIRED, normalize_axis, op, require
from weft.opset.sequences import construct, empty_sequence, sequence_at, sequence_insert, sequence_length


@op("If")
def if_(condition: Tensor, *, then_branch: Any = REQUIRED, else_branch: Any = REQUIRED) -> list[Tensor]:
    counts = len(then_branch.outputs), len(else_branch.outputs)
    require(counts[0] == counts[1], f"the branches have {counts[0]} and {counts[1]} outputs")
    return branch(condition, then_branch, else_branch)


@op("Loop")
def loop_(trips: Tensor | None = None, condition: Tensor | None = None, *carries: Tensor, body: Any = REQUIRED) -> Any:
    require(
        len(body.inputs) == 2 + len(carries),
        f"the body must take {2 + len(carries)} inputs (iteration, condition, carried values), not {len(body.inputs)}",
    )
    require(len(body.outputs) > len(carries), "the body of a loop must return a condition and every carried value")
    shapes = [_shape_of_one(value) for value in body.inputs[:2]]

    def step(
        iteration: Tensor, condition_in: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
        counters = [reshape(x, shape) for x, shape in zip((iteration, condition_in), shapes)]
        results = body(*counters, *inputs)
        proceed = results[0].type
        if not isinstance(proceed, AnyType) and proceed.dtype is not DType.bool:
            raise MalformedNodeError(f"the condition must be a bool, not {proceed}")
        return results[0], results[1 : 1 + len(carries)], results[1 + len(carries) :]

    trips = None if trips is None else cast(_scalar(trips, DType.int64), DType.int64)
    condition = None if condition is None else _scalar(condition, DType.bool)
    final, outputs = loop(trips, condition, carries, step, [value.type for value in body.outputs[1 + len(carries) :]])
    return [*final, *outputs]


def _shape_of_one(value: GraphValue) -> tuple[int, ...]:
    """Return the shape of a single element with the declared rank; exporters such as spox declare `[1]`."""
    return () if value.type is None else (1,) * len(value.type.shape or ())


def _scalar(x: Tensor, dtype: DType) -> Tensor:
    """Return the only element of a tensor, as `dtype` if its type is known only at run time."""
    if x.value.has_shape:
        return reshape(x, ())
    return host("scalar", [x], [TensorType(x.type.dtype or dtype, ())])[0]


@op("Scan", since=9)
def scan_(
    *inputs: Tensor,
    body: Any = REQUIRED,
    num_scan_inputs: int = REQUIRED,
    scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None,
    scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None,
) -> list[Tensor]:
    require(0 < num_scan_inputs <= len(inputs), f"num_scan_inputs is {num_scan_inputs} with {len(inputs)} inputs")
    count = len(inputs) - num_scan_inputs
    sequences = []
    for number, sequence in enumerate(inputs[count:]):
        axis = normalize_axis(scan_input_axes[number] if scan_input_axes else 0, sequence.rank)
        sequence = _move_axis(sequence, axis, 0)
        reverse = bool(scan_input_directions and scan_input_directions[number])
        sequences.append(flip(sequence, 0) if reverse else sequence)

    def step(*arguments: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        results = body(*arguments)
        return results[:count], results[count:]

    declared = [value.type for value in body.outputs[count:]]
    final, outputs = scan(step, inputs[:count], sequences, declared=declared)
    stacked = []
    for number, output in enumerate(outputs):
        reverse = bool(scan_output_directions and scan_output_directions[number])
        output = flip(output, 0) if reverse else output
        axis = normalize_axis(scan_output_axes[number] if scan_output_axes else 0, output.rank)
        stacked.append(_move_axis(output, 0, axis))
    return [*final, *stacked]


@op("Scan", since=8)
def scan_8(
    lengths: Tensor | None = None,
    *inputs: Tensor,
    body: Any = REQUIRED,
    num_scan_inputs: int = REQUIRED,
    directions: tuple[int, ...] | None = None,
) -> list[Tensor]:
    """Scan over the batch with a body that scans along time; states do not change once a sequence has ended."""
    require(0 < num_scan_inputs <= len(inputs), f"num_scan_inputs is {num_scan_inputs} with {len(inputs)} inputs")
    count = len(inputs) - num_scan_inputs
    batch, longest = inputs[-1].shape[:2]
    ends = dims_tensor([longest], ()) if lengths is None else check_range(lengths, 0, longest, "sequence_lens")
    ends = expand(ends, (batch,))
    times = build((longest,), lambda t: t)

    def one_sequence(end: Tensor, *parts: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        sequences = [
            _reverse_until(part, end, longest) if directions and directions[number] else part
            for number, part in enumerate(parts[count:])
        ]

        def step(*arguments: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            states, time, slices = arguments[:count], arguments[count], arguments[count + 1 :]
            results = body(*states, *slices)
            if lengths is None:
                return results[:count], results[count:]
            is_running = time < end
            new_states = [where(is_running, new, old) for new, old in zip(results, states)]
            return new_states, [where(is_running, output, 0) for output in results[count:]]

        final, outputs = scan(step, parts[:count], [times, *sequences])
        return (), [*final, *outputs]

    _, results = scan(one_sequence, (), [ends, *inputs])
    return results


def _reverse_until(x: Tensor, end: Tensor, longest: Dim) -> Tensor:
    """Reverse the first `end` rows; the rows after them are unspecified."""
    return build((longest, *x.shape[1:]), lambda t, *i: x.at(end.at() - 1 - t, *i))


@op("SequenceMap", since=17)
def sequence_map(sequence: Tensor, *others: Tensor, body: Any = REQUIRED) -> list[Tensor]:
    inputs = (sequence, *others)
    lists = [isinstance(x.type, SequenceType) for x in inputs]
    declared = [AnyType() if value.type is None else value.type for value in body.outputs]
    if all(x.elements is not None for x, is_list in zip(inputs, lists) if is_list):
        rows = [
            body(*(x.elements[i] if x.elements is not None and is_list else x for x, is_list in zip(inputs, lists)))
            for i in range(len(sequence.elements or ()))
        ]
        columns: Any = zip(*rows) if rows else [()] * len(declared)
        return [construct(column, type) for column, type in zip(columns, declared)]

    def step(
        number: Tensor, condition_in: Tensor, *results: Tensor
    ) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
        arguments = [sequence_at(x, number) if is_list else x for x, is_list in zip(inputs, lists)]
        return condition_in, [sequence_insert(row, new) for row, new in zip(results, body(*arguments))], ()

    final, _ = loop(sequence_length(sequence), None, [empty_sequence(type) for type in declared], step)
    return final


def _move_axis(x: Tensor, source: int, target: int) -> Tensor:
    order = [axis for axis in range(x.rank) if axis != source]
    order.insert(target, source)
    return transpose(x, order)
