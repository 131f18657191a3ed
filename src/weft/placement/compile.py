"""A problem and its schedule -> a program in pieces, each compiled by the usual stages for its device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.ir.compiled import CompiledProgram
from weft.ir.mixed import CompiledPiece, MixedProgram
from weft.ir.program import TensorProgram
from weft.ir.work import count_launches
from weft.placement.place import pieces_of, record_of
from weft.placement.schedule import Schedule
from weft.placement.units import HOME, Problem

CompilePiece = Callable[[str, TensorProgram], CompiledProgram]
"""Takes a program through all stages for the device of a name."""


def compile_pieces(
    problem: Problem, schedule: Schedule, sizes: Mapping[str, int], compile_piece: CompilePiece
) -> MixedProgram:
    """All pieces with their code, and the record of the placement, which was decided for these sizes."""
    pieces = tuple(
        CompiledPiece(piece.device, compile_piece(piece.device, piece.program), piece.after, piece.shown)
        for piece in pieces_of(problem, schedule)
    )
    program = problem.program
    return MixedProgram(
        program.inputs,
        program.outputs,
        program.guards,
        {value: program.constants[value] for value in program.outputs if value in program.constants},
        pieces,
        problem.candidates[HOME].name,
        record_of(problem, schedule, sizes, [count_launches(piece.program.sections) for piece in pieces]),
    )
