"""The pieces of a program at run time, each on its device.

A piece runs once all that it reads is there; pieces that do not need each other, on different devices, run side by
side where that is worth a thread. What a piece makes stays on its device where a later piece there reads it, and goes
over the host once where one elsewhere does. Results of a piece depend on nothing but what it reads, so the order in
which pieces end changes no bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from weft.backends.device import NO_SIZES, Driver, Runner, RunOptions
from weft.backends.mixed.routes import HOST, ValueRoute, last_reads, routes
from weft.backends.reference.sizes import bind_sizes, check_guards
from weft.errors import DeviceError, OutOfMemoryError
from weft.ir.mixed import MixedProgram
from weft.ir.program import Guard, Value
from weft.ir.tensors import DeviceTensor
from weft.plan.mixed import check_limit, plan_pieces
from weft.plan.program import ProgramPlan
from weft.records import dataclass
from weft.threads import PendingTask, Team

REMEMBERED_SHAPES = 256  # sets of them, for which a program keeps the sizes that they bind

Forms = dict[str, Any]
"""A value at all places where it lies: HOST, or devices with memory of their own."""


@dataclass(frozen=True, slots=True)
class MixedState:
    """What is there for a piece to run on: values, and sizes. A piece gives what there is after it alone."""

    values: Mapping[Value, Forms]
    sizes: Mapping[str, int]


class MixedRunner:
    """Runs one program in pieces. Several threads may call `run` at once."""

    def __init__(self, program: MixedProgram, drivers: Mapping[str, Driver], options: RunOptions) -> None:
        """A memory limit is for all pieces together: each is planned without one, and the sum is checked."""
        self.program = program
        self._drivers = drivers
        self._limit = options.memory_limit
        each = RunOptions(options.threads, None, options.may_grow and options.memory_limit is None)
        self._runners: list[Runner] = [drivers[piece.device].start(piece.program, each) for piece in program.pieces]
        self._routes = routes(program, {name for name, driver in drivers.items() if driver.has_memory})
        self._places = {value: len(route.places) for value, route in self._routes.items()}
        self._threads = len(program.devices) if program.placement.side_by_side else 1
        self._last_reads = last_reads(program)
        self._bound: dict[Any, tuple[dict[str, int], tuple[Guard, ...]]] = {}  # by the shapes and sizes that say it

    def run(self, inputs: Sequence[Any], keep: Sequence[int] = (), sizes: Mapping[str, int] = NO_SIZES) -> list[Any]:
        """The outputs for these inputs; those whose numbers are in `keep` stay on the program's home device, where they
        were computed there. GuardError where the program does not apply to the inputs' sizes.
        """
        bound, pending = self._bind(inputs, sizes)
        kept = frozenset(self.program.outputs[number] for number in keep)
        values: dict[Value, Forms] = {value: {HOST: content} for value, content in self.program.constants.items()}
        for value, content in zip(self.program.inputs, inputs):
            values[value] = self._placed(value, content, stays=True)
        given = MixedState(values, bound)
        run = self._run_side_by_side if self._threads > 1 else self._run_in_order
        made = run(given, pending, kept)
        return [self._output(made[output], output in kept) for output in self.program.outputs]

    def shortcut(self, inputs: Sequence[Any]) -> None:  # noqa: ARG002
        """There is none: what a call costs here is not Python's checks."""
        return

    def plan(self, sizes: Mapping[str, int]) -> ProgramPlan | None:
        """The memory of a run with these sizes, of all pieces together; None where one of the devices plans none.

        GuardError where the program does not apply to them, OutOfMemoryError where it would take more than it may.
        """
        check_guards(self.program.guards, sizes)
        plans = [runner.plan(sizes) for runner in self._runners]
        known = [plan for plan in plans if plan is not None]
        if len(known) < len(plans):
            return None
        whole = plan_pieces(self.program, known, sizes, self._places, together=self._threads > 1)
        if self._limit is not None:
            check_limit(whole, self._limit)
        return whole

    # -- a run -------------------------------------------------------------------------------------------------------

    def _bind(self, inputs: Sequence[Any], outer: Mapping[str, int]) -> tuple[dict[str, int], tuple[Guard, ...]]:
        """The sizes that inputs show, and the guards that cannot be checked yet; for new sizes, whether a run fits."""
        key = (tuple([getattr(content, "shape", None) for content in inputs]), tuple(outer.items()))
        found = self._bound.get(key)
        if found is None:
            sizes = dict(outer)
            for value, content in zip(self.program.inputs, inputs, strict=True):
                bind_sizes(value.type, content, sizes, rebind=True)
            found = sizes, check_guards(self.program.guards, sizes)
            if self._limit is not None:
                self.plan(sizes)
            if len(self._bound) >= REMEMBERED_SHAPES:
                self._bound.clear()
            self._bound[key] = found
        return found

    def _run_in_order(
        self, given: MixedState, pending: tuple[Guard, ...], kept: frozenset[Value]
    ) -> dict[Value, Forms]:
        values, sizes = dict(given.values), given.sizes
        for number in range(len(self._runners)):
            after = self._run_piece(number, MixedState(values, sizes), kept)
            values.update(after.values)
            sizes = after.sizes
            pending = check_guards(pending, sizes) if pending else pending
            for value in self._last_reads.get(number, ()):
                values.pop(value, None)
        return values

    def _run_side_by_side(
        self, given: MixedState, pending: tuple[Guard, ...], kept: frozenset[Value]
    ) -> dict[Value, Forms]:
        """Pieces in order on several threads, each waiting for those that it needs; the first failure is raised once
        no piece is at work any more.
        """
        tasks: list[PendingTask[MixedState]] = []

        def run(number: int) -> MixedState:
            before = [tasks[other].result() for other in self.program.pieces[number].after]
            return self._run_piece(number, _joined(given, before), kept)

        with Team(self._threads) as team:
            for number in range(len(self._runners)):
                tasks.append(team.submit(run, number))  # noqa: PERF401 (each looks there for those before it)
            for task in tasks:
                with suppress(Exception):  # raised below, once all have ended
                    task.result()
        whole = _joined(given, [task.result() for task in tasks])
        check_guards(pending, whole.sizes)
        return dict(whole.values)

    def _run_piece(self, number: int, state: MixedState, kept: frozenset[Value]) -> MixedState:
        """A piece on what is there before it; what is there after it alone, and sizes."""
        piece = self.program.pieces[number]
        device, outputs = piece.device, piece.program.outputs
        own = kept if device == self.program.home else frozenset()
        keep = [n for n, value in enumerate(outputs) if value in own or device in self._route(value).devices]
        inputs = [_at(device, state.values[value]) for value in piece.program.inputs]
        try:
            results = self._runners[number].run(inputs, keep, state.sizes)
        except (DeviceError, OutOfMemoryError) as error:
            error.problem = f"{device}: {error.problem}"
            raise
        sizes = dict(state.sizes)
        if piece.shown:
            sizes.update(zip(piece.shown, map(int, results[-1])))
        for value, content in zip(outputs, results):
            bind_sizes(value.type, content, sizes, rebind=False)
        made = {value: self._placed(value, content, value in own) for value, content in zip(outputs, results)}
        return MixedState(made, sizes)

    # -- values ------------------------------------------------------------------------------------------------------

    def _route(self, value: Value) -> ValueRoute:
        return self._routes.get(value, _NOWHERE)

    def _placed(self, value: Value, content: Any, stays: bool) -> Forms:
        """A value at all places where it is going to be read; `stays`: whoever asked for it takes it where it is."""
        route = self._route(value)
        if isinstance(content, DeviceTensor):
            forms: Forms = {content.device: content}
            if route.leaves(content.device) or (route.is_output and not stays):
                forms[HOST] = content.numpy()
        else:
            forms = {HOST: content}
        array = forms.get(HOST)
        if isinstance(array, np.ndarray) and array.dtype != object:
            forms.update((device, self._drivers[device].place(array)) for device in route.often - forms.keys())
        return forms

    def _output(self, forms: Forms, stays: bool) -> Any:
        """What the caller gets of an output: what is at home if it stays there, or else an array."""
        if stays and self.program.home in forms:
            return forms[self.program.home]
        return forms[HOST] if HOST in forms else next(iter(forms.values())).numpy()


_NOWHERE = ValueRoute()


def _at(device: str, forms: Forms) -> Any:
    return forms[device] if device in forms else forms[HOST]


def _joined(given: MixedState, results: Sequence[MixedState]) -> MixedState:
    values, sizes = dict(given.values), dict(given.sizes)
    for result in results:
        values.update(result.values)
        sizes.update(result.sizes)
    return MixedState(values, sizes)
