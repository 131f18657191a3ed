"""The launches of a plan for all sizes, filled in with the numbers for some, without a Python step per launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from weft.backends.cuda.gpu import CudaFunction
from weft.backends.cuda.graphs import Waits, list_waits
from weft.backends.cuda.launch_table import BLOCKS, FUNCTION, LANES, PARAMETERS, SHARED_BYTES, LaunchTable
from weft.backends.llvm.thread_lanes import LARGEST_ACCESS
from weft.backends.resident.device import BufferSlice, Find
from weft.errors import ExecutionError
from weft.ir.arrays import Array
from weft.ir.kernel import Buffer, Kernel
from weft.ir.work import Place
from weft.plan.plan import ABSOLUTE
from weft.plan.plan_numbers import PlanNumbers, SizedNumbers
from weft.records import dataclass

_MOST_SHORT = 2**31 - 2**16  # largest size with 32-bit indices: idle lanes beyond the end need indices too
_MOST_BLOCKS = 2**31 - 1
_NOT_USED = -1  # instead of an address


class LoadedKernel(NamedTuple):
    """A kernel's function for usual buffers, and the widths of its runs (see `find_run_widths`)."""

    function: CudaFunction
    runs: Mapping[str, int]


class UnusualLaunch(NamedTuple):
    """A launch that needs another variant of its kernel's code."""

    number: int
    kernel: Kernel
    is_large: bool  # some index does not fit into 32 bits
    unaligned: frozenset[str]  # buffers


@dataclass(frozen=True, slots=True, eq=False)
class MovableWords:
    """The words that are addresses in regions which may be rebound."""

    words: Array  # their numbers
    launches: Array
    regions: Array
    offsets: Array  # from the start of the region
    starts: Mapping[int, int]  # the address of each region at first


_NO_WORDS = np.zeros(0, np.int64)
NO_MOVABLE_WORDS = MovableWords(_NO_WORDS, _NO_WORDS, _NO_WORDS, _NO_WORDS, {})


class _Layout:
    """The launches of a run, those of loops in every iteration, and where the words of each are.

    `launch`, `buffer` and `parameter` are numbers in the plan, which has the launches of loops once.
    """

    def __init__(self, form: LaunchForm, counts: Sequence[int]) -> None:
        launches, iterations, stop = [], [], 0
        for (first, end), count in zip(form.loops, counts):
            launches += [np.arange(stop, first), np.tile(np.arange(first, end), count)]
            iterations += [np.zeros(first - stop, np.int64), np.arange(count).repeat(end - first)]
            stop = end
        self.launch = np.concatenate([*launches, np.arange(stop, len(form.buffers))])
        iteration = np.concatenate([*iterations, np.zeros(len(form.buffers) - stop, np.int64)])
        buffers, parameters = form.buffers[self.launch], form.parameters[self.launch]
        words = buffers + parameters
        self.first_word = words.cumsum() - words
        self.word_count = int(words.sum())
        self.buffer_launch = np.arange(len(words)).repeat(buffers)  # the launch of this run that has the buffer
        self.buffer = _count_within(buffers) + form.first_buffer[self.launch].repeat(buffers)
        self.buffer_word = _count_within(buffers) + self.first_word.repeat(buffers)
        self.buffer_iteration = iteration.repeat(buffers)
        self.parameter = _count_within(parameters) + form.first_parameter[self.launch].repeat(parameters)
        self.parameter_word = _count_within(parameters) + (self.first_word + buffers).repeat(parameters)


def _count_within(counts: Array) -> Array:
    """Return 0, 1, ... for each of several groups, given how many members each has."""
    numbers: Array = np.arange(int(counts.sum())) - (counts.cumsum() - counts).repeat(counts)
    return numbers


class LaunchForm:
    """The tables of a plan's launches without the numbers that depend on sizes."""

    def __init__(self, slots: PlanNumbers, kernels: Mapping[str, LoadedKernel]) -> None:
        self.entries = slots.plan.launches
        self.launches = slots.launches
        self.loop_slots = slots.loops
        self.loops = [(loop.first, loop.stop) for loop in slots.loops]
        self.buffers, self.parameters, self.regions = slots.buffers, slots.parameters, slots.regions
        self.first_buffer = self.buffers.cumsum() - self.buffers
        self.first_parameter = self.parameters.cumsum() - self.parameters
        loaded = [kernels[launch.kernel.name] for launch in self.launches]
        self.functions = [kernel.function for kernel in loaded]
        self._rows = np.zeros((len(loaded), 5), np.int64)
        self._rows[:, FUNCTION] = [function.handle for function in self.functions]
        self._rows[:, LANES] = [launch.kernel.lanes for launch in self.launches]
        self._rows[:, SHARED_BYTES] = [function.shared_bytes for function in self.functions]
        self._launch_of_buffer = np.arange(len(loaded)).repeat(self.buffers)
        self._launch_of_parameter = np.arange(len(loaded)).repeat(self.parameters)
        arguments = [(b, k.runs) for n, k in zip(self.launches, loaded) for b in list_arguments(n.kernel)]
        self._names = [buffer.name for buffer, _ in arguments]
        self._element_bytes = np.array([buffer.dtype.numpy.itemsize for buffer, _ in arguments], np.int64)
        self._access_bytes = np.array([_access_bytes(buffer, runs) for buffer, runs in arguments], np.int64)
        self._constants = np.flatnonzero(self.regions == ABSOLUTE)
        self._constant_places = np.zeros((3, 0), np.int64)  # host addresses, device addresses, bytes
        self._layout: tuple[list[int], _Layout] | None = None  # by the counts of loops
        self.latest: object = None  # the recording that ran last

    def count_loops(self, numbers: SizedNumbers) -> list[int]:
        return [numbers.loop_count(loop) for loop in self.loop_slots]

    def fill(
        self, numbers: SizedNumbers, find: Find, movable: range
    ) -> tuple[LaunchTable, MovableWords, list[UnusualLaunch]]:
        """Build the table for some sizes, and list the launches whose function has to be replaced."""
        counts = self.count_loops(numbers)
        self._check_blocks(numbers)
        if self._layout is None or self._layout[0] != counts:
            self._layout = counts, _Layout(self, counts)
        layout = self._layout[1]
        bases, sizes = self._find_memory(numbers, counts, find)
        shifts = self._list_shifts(numbers)
        offsets = numbers.offsets if shifts is None else numbers.offsets[layout.buffer]
        if shifts is not None:
            offsets += layout.buffer_iteration * shifts[layout.buffer]
        addresses = bases[layout.buffer] + offsets
        words = np.zeros(layout.word_count, np.uint64)
        words[layout.buffer_word] = addresses.view(np.uint64)
        words[layout.parameter_word] = numbers.parameters.view(np.uint64)[layout.parameter]
        rows = self._rows[layout.launch]
        rows[:, BLOCKS] = numbers.blocks[layout.launch]
        rows[:, PARAMETERS] = layout.first_word
        unusual = self._list_unusual(layout, rows, addresses, self._are_large(numbers, sizes))
        regions = self.regions[layout.buffer]
        moved = np.flatnonzero((regions >= movable.start) & (regions < movable.stop))
        movable_words = MovableWords(
            layout.buffer_word[moved],
            layout.buffer_launch[moved],
            regions[moved],
            offsets[moved],
            {region: _address(find(Place(region, 0), 0)) for region in movable},
        )
        return LaunchTable.build(rows, words, self.functions), movable_words, unusual

    def list_waits(self, counts: Sequence[int], table: LaunchTable) -> Waits:
        """List the waits of the launches of a table that have blocks; `counts` are those of loops."""
        return list_waits(self.entries, counts, (table.rows[:, BLOCKS] > 0).tolist())

    def describe(self, counts: Sequence[int], number: int) -> str:
        """Return the nodes that a launch of a run computes."""
        return self.launches[int(_Layout(self, counts).launch[number])].origin

    def _check_blocks(self, numbers: SizedNumbers) -> None:
        if numbers.blocks.max(initial=0) > _MOST_BLOCKS:
            number = int(numbers.blocks.argmax())
            problem = f"a launch with {numbers.blocks[number]:,} blocks: CUDA allows {_MOST_BLOCKS:,}"
            raise ExecutionError(problem, node=self.launches[number].origin or None)

    def _find_memory(self, numbers: SizedNumbers, counts: Sequence[int], find: Find) -> tuple[Array, Array]:
        """Return, for each buffer, the difference of its address and its offset, and its bytes."""
        starts = np.zeros(int(self.regions.max(initial=0)) + 1, np.int64)
        for region in set(self.regions.tolist()) - {ABSOLUTE}:
            starts[region] = _address(find(Place(region, 0), 0))
        bases = starts[self.regions]
        sizes = np.maximum(numbers.used, 4)
        runs = numbers.has_blocks.copy()  # launches that are left out may have no constants
        for (first, stop), count in zip(self.loops, counts):
            runs[first:stop] &= count > 0
        hosts = np.where(runs[self._launch_of_buffer[self._constants]], numbers.offsets[self._constants], _NOT_USED)
        if not np.array_equal(hosts, self._constant_places[0]):
            slices = {host: find(Place(ABSOLUTE, host), 0) for host in set(hosts.tolist()) - {_NOT_USED}}
            places = {host: (_address(memory), memory.size) for host, memory in slices.items()}
            table = np.array([places.get(host, (0, 0)) for host in hosts.tolist()], np.int64).reshape(-1, 2)
            self._constant_places = np.stack([hosts, table[:, 0], table[:, 1]])
        bases[self._constants] = self._constant_places[1] - numbers.offsets[self._constants]
        sizes[self._constants] = self._constant_places[2]
        return bases, sizes

    def _list_shifts(self, numbers: SizedNumbers) -> Array | None:
        """Return by how many bytes each buffer moves with an iteration of its loop; None without loops."""
        if not self.loops:
            return None
        shifts = np.zeros(len(self.regions), np.int64)
        for loop in self.loop_slots:
            start = int(self.first_buffer[loop.first])
            by_buffer = numbers.loop_shifts(loop)
            shifts[start : start + len(by_buffer)] = by_buffer
        return shifts

    def _are_large(self, numbers: SizedNumbers, sizes: Array) -> Array:
        """Tell for each launch of the plan whether an index does not fit into 32 bits."""
        are_large = numbers.blocks > _MOST_SHORT
        are_large[self._launch_of_buffer[sizes // self._element_bytes > _MOST_SHORT]] = True
        are_large[self._launch_of_parameter[np.abs(numbers.parameters) > _MOST_SHORT]] = True
        return are_large

    def _list_unusual(self, layout: _Layout, rows: Array, addresses: Array, are_large: Array) -> list[UnusualLaunch]:
        unaligned = np.flatnonzero(addresses % self._access_bytes[layout.buffer])
        is_unusual = are_large[layout.launch]
        is_unusual[layout.buffer_launch[unaligned]] = True
        is_unusual &= rows[:, BLOCKS] > 0
        if not is_unusual.any():
            return []
        names: dict[int, set[str]] = {}
        for buffer in unaligned.tolist():
            names.setdefault(int(layout.buffer_launch[buffer]), set()).add(self._names[layout.buffer[buffer]])
        launches = [(int(number), int(layout.launch[number])) for number in np.flatnonzero(is_unusual)]
        return [
            UnusualLaunch(
                number, self.launches[launch].kernel, bool(are_large[launch]), frozenset(names.get(number, ()))
            )
            for number, launch in launches
        ]


def list_arguments(kernel: Kernel) -> list[Buffer]:
    """List the buffers of a kernel that launches bind."""
    return [buffer for buffer in kernel.buffers if buffer.local_size is None]


def _access_bytes(buffer: Buffer, runs: Mapping[str, int]) -> int:
    """Return the bytes of which a buffer's address must be a multiple."""
    return min(runs.get(buffer.name, 1) * buffer.dtype.numpy.itemsize, LARGEST_ACCESS) if buffer.name in runs else 1


def _address(memory: BufferSlice) -> int:
    return int(memory.buffer.address + memory.offset)
