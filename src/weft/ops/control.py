"""Control flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ir.dtypes import DType
from weft.ops.functions import cast
from weft.ops.language import Tensor, branch, flip, loop, reshape, scan, transpose
from weft.ops.registry import REQUIRED, normalize_axis, op, require


@op("If")
def if_(condition: Tensor, *, then_branch: Any = REQUIRED, else_branch: Any = REQUIRED) -> list[Tensor]:
    return branch(condition, then_branch, else_branch)


@op("Loop")
def loop_(trips: Tensor | None = None, condition: Tensor | None = None, *carries: Tensor, body: Any = REQUIRED) -> Any:
    def step(iteration: Tensor, going: Tensor, *inputs: Tensor) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
        results = body(iteration, going, *inputs)
        require(len(results) > len(carries), "the body of a loop must give a condition and every carried value")
        return results[0], results[1 : 1 + len(carries)], results[1 + len(carries) :]

    trips = None if trips is None else reshape(cast(trips, DType.int64), ())
    condition = None if condition is None else reshape(condition, ())
    final, outputs = loop(trips, condition, carries, step)
    return [*final, *outputs]


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

    final, outputs = scan(step, inputs[:count], sequences)
    stacked = []
    for number, output in enumerate(outputs):
        reverse = bool(scan_output_directions and scan_output_directions[number])
        output = flip(output, 0) if reverse else output
        axis = normalize_axis(scan_output_axes[number] if scan_output_axes else 0, output.rank)
        stacked.append(_move_axis(output, 0, axis))
    return [*final, *stacked]


def _move_axis(x: Tensor, source: int, target: int) -> Tensor:
    order = [axis for axis in range(x.rank) if axis != source]
    order.insert(target, source)
    return transpose(x, order)
