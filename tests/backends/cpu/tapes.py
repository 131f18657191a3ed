"""Tapes built in Python, launch by launch: the oracle of native code, and a way to run single kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.backends.cpu.tape import ARENA_BYTES, FLAGS, HEAD_WORDS, SHARED, Tape
from weft.backends.host.addresses import DATA_AT, address
from weft.ir.work import Place

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TapeLaunch:
    """Blocks 0..blocks-1 of a kernel.

    A `parallel` launch is spread over threads, `grain` blocks or more at a time. `after` are the indices of the tape's
    entries that must be done before it starts; None: all before it. A `joined` launch is run by the same thread as the
    one before it, right after it, and neither is spread.
    """

    function: int  # the kernel's address
    blocks: int
    buffers: tuple[Place, ...]
    parameters: tuple[int, ...] = ()
    parallel: bool = True
    grain: int = 1
    after: tuple[int, ...] | None = None
    joined: bool = False
    most: int | None = None  # blocks between two points where a run can be interrupted; None: all
    origin: str = ""  # the node that it computes

    @property
    def parts(self) -> int:
        """The number of parts that threads can share."""
        return max(self.blocks // self.grain, 1) if self.parallel else 1


@dataclass(frozen=True)
class TapeLoop:
    """Launches in order, `count` times; each time, buffers move by `shifts` bytes (per launch and buffer)."""

    launches: tuple[TapeLaunch, ...]
    shifts: tuple[tuple[int, ...], ...]
    count: int


VISIBLE = 32  # the window of steps that threads look at; a step can wait only for steps in it
FUNCTION, BLOCKS, FIRST_PLACE, BUFFERS, PARAMETERS_AT, MOST = range(6)  # columns of a launch's row
_PARTS = 4  # column of a step's row
_ALL = (1 << VISIBLE) - 1


def build_tape(launches: Sequence[TapeLaunch | TapeLoop], keep: object = None) -> Tape:
    """Build the tables of a tape in Python."""
    flat = [launch for entry in launches for launch in _entry_launches(entry)]
    parameters = np.array([number for launch in flat for number in launch.parameters], np.int64)
    rows, places = _build_rows(flat, 0)
    firsts, total = [], 0
    for entry in launches:
        firsts.append(total)
        total += entry.count * len(entry.launches) if isinstance(entry, TapeLoop) else 1
    loops = [(n, entry) for n, entry in enumerate(launches) if isinstance(entry, TapeLoop)]
    for number, loop in reversed(loops):
        first = sum(len(_entry_launches(entry)) for entry in launches[:number])
        shifts = np.array([shift for by_buffer in loop.shifts for shift in by_buffer], np.int64)
        rows, places = unroll_loop(rows, places, first, len(loop.launches), shifts, loop.count)
    steps = build_steps(launches)
    head = np.zeros(HEAD_WORDS, np.int64)
    words = np.concatenate(
        [part.reshape(-1) for part in (head, np.array(firsts, np.int64), rows, places, parameters, steps)]
    )
    rows_at = address(words) + 8 * (HEAD_WORDS + len(firsts))
    places_at = rows_at + 8 * rows.size
    parameters_at = places_at + 8 * places.size
    most_buffers = max((len(launch.buffers) for launch in flat), default=0)
    regions = 1 + max((place.region for launch in flat for place in launch.buffers), default=-1)
    is_shared = bool((steps[:, _PARTS] > 1).any())
    addresses = (parameters_at + 8 * parameters.size, len(steps), rows_at, places_at)
    words[:HEAD_WORDS] = [*addresses, most_buffers, regions, DATA_AT, len(rows), 0, SHARED * is_shared]
    words[HEAD_WORDS + len(firsts) :][: rows.size].reshape(-1, 6)[:, PARAMETERS_AT] += parameters_at
    return Tape(words, [[launch.origin for launch in _entry_launches(entry)] for entry in launches], keep)


@dataclass(frozen=True)
class TapeTables:
    """The content of a tape: rows of launches without addresses, their parameters, places, and steps."""

    launches: list[list[int]]  # function, blocks, first place, buffers, most blocks between two checks
    parameters: list[list[int]]  # of each launch
    places: list[list[int]]
    steps: list[list[int]]
    arena_bytes: int
    flags: int


def read_tables(tape: Tape, parameters: Sequence[int]) -> TapeTables:
    """Read the tables of a tape whose launches have this many parameters each."""
    words: Array = tape._table
    steps_at, steps, rows_at, places_at = words[:4].tolist()

    def table(at: int, rows: int, columns: int) -> Array:
        first = (at - tape.address) // 8
        assert (at - tape.address) % 8 == 0
        assert 0 <= first <= first + rows * columns <= len(words)
        return words[first : first + rows * columns].reshape(rows, columns)

    rows = table(rows_at, tape.count, 6)
    numbers = [
        table(at, 1, count)[0].tolist() for at, count in zip(rows[:, PARAMETERS_AT].tolist(), parameters, strict=True)
    ]
    places = int((rows[:, FIRST_PLACE] + rows[:, BUFFERS]).max(initial=0))
    return TapeTables(
        np.delete(rows, PARAMETERS_AT, 1).tolist(),
        numbers,
        table(places_at, places, 2).tolist(),
        table(steps_at, steps, 6).tolist(),
        words.item(ARENA_BYTES),
        words.item(FLAGS),
    )


def _entry_launches(entry: TapeLaunch | TapeLoop) -> tuple[TapeLaunch, ...]:
    return entry.launches if isinstance(entry, TapeLoop) else (entry,)


def _build_rows(launches: Sequence[TapeLaunch], parameters_at: int) -> tuple[Array, Array]:
    """Build a row for each launch, and a (region, offset) row for each buffer."""
    rows = []
    first_place = 0
    for launch in launches:
        buffers = len(launch.buffers)
        most = max(launch.blocks if launch.most is None else launch.most, 1)
        rows.append((launch.function, launch.blocks, first_place, buffers, parameters_at, most))
        first_place += buffers
        parameters_at += 8 * len(launch.parameters)
    places = [(place.region, place.offset) for launch in launches for place in launch.buffers]
    return np.array(rows, np.int64).reshape(-1, 6), np.array(places, np.int64).reshape(-1, 2)


def unroll_loop(
    rows: Array, places: Array, first: int, launches: int, shifts: Array, count: int
) -> tuple[Array, Array]:
    """Repeat the rows of launches, and their places, `count` times; each time, buffers move by `shifts` bytes.

    Loops are unrolled from the last to the first, so that the launches before them keep their numbers.
    """
    stop = first + launches
    start = int(rows[first, FIRST_PLACE]) if launches else 0
    end = start + int(rows[first:stop, BUFFERS].sum())
    times = np.arange(count)
    loop_rows = np.tile(rows[first:stop], (count, 1))
    loop_rows[:, FIRST_PLACE] += np.repeat(times * (end - start), launches)
    loop_places = np.tile(places[start:end], (count, 1))
    loop_places[:, 1] += (times[:, None] * shifts[None]).reshape(-1)
    rest = rows[stop:].copy()
    rest[:, FIRST_PLACE] += (count - 1) * (end - start)
    return np.concatenate([rows[:first], loop_rows, rest]), np.concatenate([places[:start], loop_places, places[end:]])


def build_steps(entries: Sequence[TapeLaunch | TapeLoop]) -> Array:
    """Build a row for each step: first launch, number of launches, blocks, grain, parts, wait mask."""
    steps: list[list[int]] = []
    step_of: list[int] = []  # the step that each entry ends with
    launches = 0
    for entry in entries:
        match entry:
            case TapeLaunch() if entry.joined and steps and steps[-1][4] == entry.parts == 1:
                steps[-1][1] += 1
                steps[-1][5] |= _wait_mask(entry, len(steps) - 1, step_of)
                launches += 1
            case TapeLaunch():
                steps.append(_step(entry, launches, _wait_mask(entry, len(steps), step_of)))
                launches += 1
            case TapeLoop():
                steps += _loop_steps(entry, launches)
                launches += entry.count * len(entry.launches)
        step_of.append(len(steps) - 1)
    return np.array(steps, np.int64).reshape(-1, 6)


def _step(launch: TapeLaunch, number: int, waits: int) -> list[int]:
    if launch.parts == 1:
        return [number, 1, 1, 1, 1, waits]
    return [number, 1, launch.blocks, launch.grain, launch.parts, waits]


def _wait_mask(launch: TapeLaunch, step: int, step_of: Sequence[int]) -> int:
    """Return the bits of the earlier steps that a launch waits for; the highest bit is the step before it."""
    if launch.after is None:
        return _ALL
    before = {step - step_of[number] for number in launch.after}
    return sum(1 << (VISIBLE - distance) for distance in before if 0 < distance <= VISIBLE)


def _loop_steps(loop: TapeLoop, number: int) -> list[list[int]]:
    """Build the steps of a loop: each waits for the one before it; launches that are not spread are joined."""
    launches: Sequence[TapeLaunch] = loop.launches
    if all(launch.parts == 1 for launch in launches):
        return [[number, loop.count * len(loop.launches), 1, 1, 1, _ALL]]
    once: list[list[int]] = []
    for index, launch in enumerate(launches):
        if once and once[-1][4] == launch.parts == 1:
            once[-1][1] += 1
        else:
            once.append(_step(launch, index, _ALL))
    length = len(loop.launches)
    return [[number + time * length + first, *rest] for time in range(loop.count) for first, *rest in once]
