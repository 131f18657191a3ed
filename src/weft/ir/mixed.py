"""A program in pieces for several devices, compiled, with the record of what was placed where and why.

Pieces come in an order that the data allows: a piece reads inputs of the program and outputs of pieces before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.ir.compiled import CompiledProgram
from weft.ir.program import Guard, Value
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class PieceRecord:
    """A piece of a program: its device, what it consists of, and the seconds that it was expected to take."""

    device: str
    steps: int
    kernels: int  # launches, those of bodies once
    seconds: float


@dataclass(frozen=True, slots=True)
class MovedStep:
    """A step that runs elsewhere than on the primary device: its node, what it is, where it runs, and why.

    `lacking`: the primary device has no kernel for it. The seconds are what it was expected to take here and there.
    """

    node: str
    step: str
    device: str
    reason: str
    lacking: bool
    seconds: float  # on its device
    primary_seconds: float  # had it stayed


@dataclass(frozen=True, slots=True)
class CrossingValue:
    """A value that goes from one memory to another in every run; an empty name stands for the host's."""

    value: str
    source: str
    device: str
    bytes: int


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """Where the parts of a program run, as it was decided once; `sizes` are those that it was decided for.

    The primary device is the one that steps are moved from: that of the user's choice, or the best one alone.
    `seconds` is what a run was expected to take, `alone` what it was expected to take on each device alone.
    `side_by_side`: pieces on different devices that do not need each other are worth a thread. `measured` is what it
    took, on several devices or on one alone, where that was tried before it was decided. `assignment` names the device
    of each unit of the program in order, for whoever divides it again.
    """

    primary: str
    pieces: tuple[PieceRecord, ...]
    moved: tuple[MovedStep, ...]
    crossings: tuple[CrossingValue, ...]
    seconds: float
    alone: tuple[tuple[str, float], ...]
    sizes: tuple[tuple[str, int], ...]
    side_by_side: bool = False
    measured: tuple[tuple[str, float], ...] = ()
    assignment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPiece:
    """A piece for one device, and the numbers of those that make what it reads or find sizes that it needs.

    `shown` are sizes that its host steps find and others need: its last output holds them. Sizes that none of its own
    inputs show are given to it with each run.
    """

    device: str
    program: CompiledProgram
    after: tuple[int, ...] = ()
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class MixedProgram:
    """Pieces that together do what one program says; `constants` are those that are outputs as they are.

    `home` is the device on which outputs are kept if that is asked for.
    Without slots it can be referred to weakly, as a `CompiledProgram` can.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    guards: tuple[Guard, ...]
    constants: Mapping[Value, Any]
    pieces: tuple[CompiledPiece, ...]
    home: str
    placement: PlacementRecord

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that it needs, its home first."""
        return tuple(dict.fromkeys((self.home, *(piece.device for piece in self.pieces))))
