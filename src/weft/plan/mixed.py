"""The memory of a program in pieces: that of all pieces, which have arenas and weights of their own, added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.errors import OutOfMemoryError
from weft.ir.mixed import MixedProgram
from weft.ir.numbers import Numbers
from weft.ir.program import Value
from weft.plan.program import ProgramPlan, known_bytes


def plan_pieces(
    program: MixedProgram,
    plans: Sequence[ProgramPlan],
    sizes: Mapping[str, int],
    places: Mapping[Value, int],
    together: bool,
) -> ProgramPlan:
    """The plan of the whole, from those of its pieces. `places`: on how many devices each value lies that passes
    between pieces. `together`: pieces may run at the same time, and all that they make is there until the end.
    """
    number = Numbers(sizes)
    held = _held(program, together)
    beside = [
        max(plan.beside, plan.outputs) + sum(places.get(value, 1) * size for value, size in _bytes(values, number))
        for plan, values in zip(plans, held)
    ]
    return ProgramPlan(
        tuple(replace(part, arena=arena) for arena, plan in enumerate(plans) for part in plan.sections),
        sum(plan.weights for plan in plans),
        sum(plan.workspace for plan in plans),
        sum(known_bytes(program.inputs, number)),
        sum(known_bytes(program.outputs, number)),
        max(beside, default=0),
        tuple(dict.fromkeys(node for plan in plans for node in plan.unplanned)),
    )


def check_limit(plan: ProgramPlan, limit: int) -> None:
    """Raise OutOfMemoryError unless all pieces fit into a limit together."""
    arrays = max(plan.beside, plan.outputs)
    needed = plan.weights + plan.arena + plan.workspace + arrays
    if needed > limit:
        raise OutOfMemoryError(
            f"a run for these sizes needs {needed:,} bytes, more than the memory_limit of {limit:,}: "
            f"{plan.weights:,} of weights, {plan.arena + plan.workspace:,} of arenas and workspace, "
            f"{arrays:,} of outputs and what passes between devices",
            hint="allow more, use smaller inputs, or keep the model on one device",
        )


def _held(program: MixedProgram, together: bool) -> list[list[Value]]:
    """For each piece, what others have made that is there while it runs."""
    made = {value: number for number, piece in enumerate(program.pieces) for value in piece.program.outputs}
    last = {value: number for number, piece in enumerate(program.pieces) for value in piece.program.inputs}
    last.update((value, len(program.pieces)) for value in program.outputs)
    return [
        [value for value, maker in made.items() if maker != number and (together or maker < number <= last[value])]
        for number in range(len(program.pieces))
    ]


def _bytes(values: Sequence[Value], number: Numbers) -> Sequence[tuple[Value, int]]:
    return list(zip(values, known_bytes(values, number)))
