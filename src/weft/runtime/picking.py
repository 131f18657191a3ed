"""Which device of a route comes first: what the policy's `pick` says, done for one model.

In: a route with several devices, and the model on its way to them. Out: the same route with the best device first, and
the ranking that says why. What was found before is remembered (choice.py): then nothing is traced, compiled or run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from weft.cost.calibration import to_record
from weft.errors import ExecutionError, InputError, WeftError
from weft.logs import DEVICES
from weft.records import dataclass
from weft.runtime.calibrate import device_identity, known_calibration
from weft.runtime.choice import (
    Ranking,
    RememberedRankings,
    by_benchmark,
    by_cost,
    calibrations_of,
    likely_sizes,
    with_reasons,
)
from weft.runtime.deployment import Deployment
from weft.runtime.memory import bind_shapes
from weft.runtime.policy import BENCHMARK, COST, Route

Shapes = dict[str, tuple[int, ...]]


def picked(way: Route, deployment: Deployment, *, at_once: bool = False) -> Route:
    """The route with the best device first; `at_once`: only if that is known without any measuring or compiling."""
    if way.pick not in (COST, BENCHMARK) or way.preferred or len(way.devices) < 2:
        return way
    picking = _Picking(way, deployment)
    ranking = picking.at_once() if at_once else picking.ranking()
    if ranking is None:
        return replace(way, said="the first of those that are here")
    for entry in ranking.entries:
        DEVICES.info("%s: by %s, %s: %s", deployment.opener.file, ranking.by, entry.device, entry.reason)
    said = f"the best by {ranking.by}: {ranking.entries[0].reason}"
    return replace(way, devices=ranking.devices, said=said, ranking=ranking)


@dataclass(frozen=True, slots=True)
class _Picking:
    """A choice to be made."""

    way: Route
    deployment: Deployment

    def ranking(self) -> Ranking:
        """The devices in the order in which the policy wants them."""
        if self.way.pick == COST:
            return self._by_cost()
        known = self._machine()
        found = self._remembered().get(BENCHMARK, self.way.devices, self._shapes(), known)
        if found is None:
            try:
                found = self._by_benchmark()
            except (InputError, ExecutionError):
                if self.deployment.opener.sample is not None:
                    raise
                return self._by_cost()  # no data can be made up that the model takes
            self._remembered().put(found, self.way.devices, self._shapes(), known)
        return found

    def at_once(self) -> Ranking | None:
        """What is remembered."""
        devices, threads = self.way.devices, self.deployment.opener.threads
        found = self._remembered().get(BENCHMARK, devices, self._shapes(), self._machine())
        if found is not None or self.way.pick == BENCHMARK:
            return found
        records: dict[str, Any] = {}
        for device in devices:
            with suppress(WeftError):  # it cannot be used; whoever tries says so
                calibration = known_calibration(device, threads)
                records |= {} if calibration is None else {device: to_record(calibration)}
        return self._remembered().get(COST, devices, self._shapes(), self._known(records))

    def _by_cost(self) -> Ranking:
        opener, devices = self.deployment.opener, self.way.devices
        opener.tell("measuring devices")
        calibrations, problems = calibrations_of(devices, opener.threads)
        records = {device: to_record(found) for device, found in calibrations.items()}
        known, shapes = self._known(records), self._shapes()
        found = self._remembered().get(COST, devices, shapes, known)
        if found is None:
            program = opener.program()
            taken = {value.name for value in program.inputs}
            given = {name: shape for name, shape in (shapes or {}).items() if name in taken}
            sizes = likely_sizes(program, bind_shapes(program.inputs, given, opener.file)[0])
            found = with_reasons(by_cost(devices, opener, sizes, calibrations), problems)
            self._remembered().put(found, devices, shapes, known)
        return found

    def _by_benchmark(self) -> Ranking:
        deployment = self.deployment
        deployment.opener.tell("timing it on devices")
        found = by_benchmark(self.way.devices, deployment.trial, self.way.runs)
        for entry in found.entries[1:]:
            deployment.drop(entry.device)
        return found

    def _known(self, records: Mapping[str, Any]) -> str:
        """The calibrations that a prediction holds for."""
        return json.dumps(records, sort_keys=True)

    def _remembered(self) -> RememberedRankings:
        return RememberedRankings(self.deployment.opener.content())

    def _machine(self) -> str:
        """What a benchmark holds for."""
        threads = self.deployment.opener.threads
        return " ".join(_identity(device, threads) for device in self.way.devices)

    def _shapes(self) -> Shapes | None:
        """The shapes of the sample, if there is one."""
        sample = self.deployment.opener.sample
        return None if sample is None else shapes_of(sample)


def _identity(device: str, threads: int | None) -> str:
    """What measurements of a device hold for; its name where it cannot be used, as a GPU in a forked child."""
    try:
        return device_identity(device, threads)
    except WeftError:
        return device


def shapes_of(sample: Mapping[str, Any]) -> Shapes:
    """The shapes of inputs like those to come; InputError where one is no array."""
    shapes: Shapes = {}
    for name in sorted(sample, key=str):
        try:
            shapes[name] = tuple(map(int, np.shape(sample[name])))
        except WeftError:
            raise
        except Exception as error:  # whatever a class of someone else's raises
            raise InputError(f"the sample's {name!r} is no array: {error}", value=name) from error
    return shapes
