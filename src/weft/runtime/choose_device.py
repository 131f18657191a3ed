"""Choose the device of a route that runs a model first, as the policy's `pick` says.

In: a route with several devices, and the model's sessions. Out: the same route with the best device first, and the
ranking that decided. Rankings are cached (ranking.py): with a cached one nothing is traced, compiled or run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.cost.calibration import to_record
from weft.errors import ExecutionError, InputError, WeftError
from weft.logs import DEVICES
from weft.runtime.calibrate import device_identity, known_calibration
from weft.runtime.memory import bind_shapes
from weft.runtime.policy import BENCHMARK, COST, Route
from weft.runtime.ranking import (
    Ranking,
    RankingCache,
    calibrate_devices,
    likely_sizes,
    rank_by_benchmark,
    rank_by_cost,
    with_reasons,
)

if TYPE_CHECKING:
    from weft.runtime.session_pool import SessionPool

Shapes = dict[str, tuple[int, ...]]


def choose_device(route: Route, pool: SessionPool, *, cached_only: bool = False) -> Route:
    """Return the route with the best device first; `cached_only`: only if that is known without measuring."""
    if route.pick not in (COST, BENCHMARK) or route.preferred or len(route.devices) < 2:
        return route
    choice = _DeviceChoice(route, pool)
    ranking = choice.cached_ranking() if cached_only else choice.ranking()
    if ranking is None:
        return replace(route, explicit_reason="the first that is available")
    for entry in ranking.entries:
        DEVICES.info("%s: by %s, %s: %s", pool.file, ranking.by, entry.device, entry.reason)
    reason = f"the best by {ranking.by}: {ranking.entries[0].reason}"
    return replace(route, devices=ranking.devices, explicit_reason=reason, ranking=ranking)


class _DeviceChoice:
    def __init__(self, route: Route, pool: SessionPool) -> None:
        self.route = route
        self.devices = route.devices
        self.pool = pool
        self.sample = pool.options.sample
        self.threads = pool.options.threads
        self.shapes = None if self.sample is None else sample_shapes(self.sample)
        self.cache = RankingCache(pool.cache_key())

    def ranking(self) -> Ranking:
        """Rank the devices as the policy says."""
        if self.route.pick == COST:
            return self._rank_by_cost()
        machine = self._machine_key()
        ranking = self.cache.get(BENCHMARK, self.devices, self.shapes, machine)
        if ranking is None:
            try:
                ranking = self._rank_by_benchmark()
            except (InputError, ExecutionError):
                if self.sample is not None:
                    raise
                return self._rank_by_cost()  # the model takes no random inputs
            self.cache.put(ranking, self.devices, self.shapes, machine)
        return ranking

    def cached_ranking(self) -> Ranking | None:
        """Return the cached ranking, by benchmark if there is one."""
        ranking = self.cache.get(BENCHMARK, self.devices, self.shapes, self._machine_key())
        if ranking is not None or self.route.pick == BENCHMARK:
            return ranking
        records: dict[str, Any] = {}
        for device in self.devices:
            with suppress(WeftError):  # the device cannot be used; a load reports that
                calibration = known_calibration(device, self.threads)
                if calibration is not None:
                    records[device] = to_record(calibration)
        return self.cache.get(COST, self.devices, self.shapes, _to_json(records))

    def _rank_by_cost(self) -> Ranking:
        pool = self.pool
        pool.report_stage("measuring devices")
        calibrations, problems = calibrate_devices(self.devices, self.threads)
        records = _to_json({device: to_record(calibration) for device, calibration in calibrations.items()})
        ranking = self.cache.get(COST, self.devices, self.shapes, records)
        if ranking is None:
            program = pool.program()
            names = {value.name for value in program.inputs}
            shapes = {name: shape for name, shape in (self.shapes or {}).items() if name in names}
            sizes = likely_sizes(program, bind_shapes(program.inputs, shapes, pool.file)[0])
            ranking = with_reasons(rank_by_cost(self.devices, pool, sizes, calibrations), problems)
            self.cache.put(ranking, self.devices, self.shapes, records)
        return ranking

    def _rank_by_benchmark(self) -> Ranking:
        self.pool.report_stage("timing devices")
        ranking = rank_by_benchmark(self.devices, self.pool.prepare_trial, self.route.runs)
        for entry in ranking.entries[1:]:
            self.pool.drop(entry.device)
        return ranking

    def _machine_key(self) -> str:
        """Return the identities of the devices that a benchmark is valid for."""
        return " ".join(_measurement_key(device, self.threads) for device in self.devices)


def _to_json(records: Mapping[str, Any]) -> str:
    return json.dumps(records, sort_keys=True)


def _measurement_key(device: str, threads: int | None) -> str:
    """Return the key of a device's measurements; its name if the device cannot be used (a GPU after a fork)."""
    try:
        return device_identity(device, threads)
    except WeftError:
        return device


def sample_shapes(sample: Mapping[str, Any]) -> Shapes:
    """Return the shapes of sample inputs; InputError if one is not an array."""
    shapes: Shapes = {}
    for name in sorted(sample, key=str):
        try:
            shapes[name] = tuple(map(int, np.shape(sample[name])))
        except WeftError:
            raise
        except Exception as error:  # any error of a foreign class
            raise InputError(f"the sample's {name!r} is not an array: {error}", value=name) from error
    return shapes
