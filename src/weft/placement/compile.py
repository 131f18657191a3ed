"""Pieces -> compiled pieces, each by the usual stages for its device."""

from __future__ import annotations

from weft.backends.device import CompilingDriver, Progress
from weft.fuse import fuse
from weft.ir.mixed import CompiledPiece
from weft.kernels.sections import build_sections
from weft.placement.pieces import Piece


def compile_piece(
    piece: Piece, driver: CompilingDriver, precision: str, cache: bool, progress: Progress
) -> CompiledPiece:
    """A piece for its device."""
    target = driver.target(precision)
    sections = build_sections(fuse(piece.program, target), target, lambda part: progress("building kernels", part))
    compiled = driver.compile(piece.program, sections, cache, progress)
    return CompiledPiece(piece.device, compiled, piece.after, piece.shown)
