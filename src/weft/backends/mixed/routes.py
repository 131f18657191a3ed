"""What is known of the pieces of a program before any run: who waits for whom, and where each value is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import field

from weft.ir.mixed import MixedProgram
from weft.ir.program import Value
from weft.records import dataclass

HOST = ""  # the place of what lies in the host's memory; other places are devices with memory of their own


@dataclass(frozen=True, slots=True)
class ValueRoute:
    """Where a value is read: by pieces on devices with memory, by more than one of them there, on the host."""

    devices: frozenset[str] = field(default_factory=frozenset)
    often: frozenset[str] = field(default_factory=frozenset)
    on_host: bool = False
    is_output: bool = False

    @property
    def places(self) -> frozenset[str]:
        """Where it lies at most, while it is needed."""
        return self.devices | ({HOST} if self.on_host or self.is_output or not self.devices else set())

    def leaves(self, device: str) -> bool:
        """Whether a piece reads it that is not on this device."""
        return self.on_host or bool(self.devices - {device})


def routes(program: MixedProgram, resident: Set[str]) -> dict[Value, ValueRoute]:
    """Of all values that pieces read or the program gives; `resident` are the devices with memory of their own."""
    readers: dict[Value, Counter[str]] = {value: Counter() for value in program.outputs}
    for piece in program.pieces:
        for value in piece.program.inputs:
            readers.setdefault(value, Counter())[piece.device] += 1
    return {
        value: ValueRoute(
            frozenset(counts.keys() & resident),
            frozenset(device for device in counts.keys() & resident if counts[device] > 1),
            bool(counts.keys() - resident),
            value in program.outputs,
        )
        for value, counts in readers.items()
    }


def last_reads(program: MixedProgram) -> Mapping[int, Sequence[Value]]:
    """For each piece, the values that nothing needs after it, where pieces run in order."""
    last: dict[Value, int] = {}
    for number, piece in enumerate(program.pieces):
        for value in (*piece.program.inputs, *piece.program.outputs):
            last[value] = number
    ends: dict[int, list[Value]] = {}
    for value, number in last.items():
        if value not in program.outputs:
            ends.setdefault(number, []).append(value)
    return ends
