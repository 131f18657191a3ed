"""Predicted times on a device with round numbers, computed by hand."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from cost.calibrations import PLAIN

from weft.cost.calibration import (
    LIGHT_WORK_FACTOR,
    REACHED_BANDWIDTH,
    Amount,
    Seconds,
    Transfer,
    WorkKind,
    from_record,
    to_record,
    transfer_seconds,
    work_seconds,
)
from weft.cost.roofline import Peak
from weft.ir.dtypes import DType


def product(flops: float, bytes: float = 0.0, **more: Any) -> Amount:
    return Amount(WorkKind.PRODUCT, DType.float32, flops, bytes, **more)


def test_the_longer_of_arithmetic_and_memory_counts() -> None:
    assert work_seconds(product(2e6, 1e6), PLAIN) == Seconds(arithmetic=2e-3, launches=1e-6)
    assert work_seconds(product(1e6, 3e6), PLAIN) == Seconds(memory=3e-3, launches=1e-6)


def test_types_and_kinds_have_their_own_rates() -> None:
    bytes_ = Amount(WorkKind.PRODUCT, DType.int8, 4e6, 0.0)
    assert work_seconds(bytes_, PLAIN).arithmetic == pytest.approx(1e-3)
    assert work_seconds(replace(bytes_, dtype=DType.float64), PLAIN).arithmetic == pytest.approx(4e-3)  # as float32
    assert work_seconds(Amount(WorkKind.MAP, DType.float32, 1e6, 0.0), PLAIN).arithmetic == pytest.approx(2e-3)


def test_launches_in_a_scan_cost_an_iteration() -> None:
    assert work_seconds(product(0.0, launches=5), PLAIN).launches == pytest.approx(5e-6)
    assert work_seconds(product(0.0, launches=5), PLAIN, iterated=True).launches == pytest.approx(1e-5)


def test_caches_are_faster_and_uncached_weights_add_latency() -> None:
    cached = replace(PLAIN, peak=replace(PLAIN.peak, cache_bytes=1e6, cache_bandwidth=1e10 / REACHED_BANDWIDTH))
    assert work_seconds(product(0.0, 1e6), cached).memory == pytest.approx(1e-4)
    assert work_seconds(product(0.0, 2e6), cached).memory == pytest.approx(2e-3)
    far = work_seconds(product(5e6, 1.5e6, far=1e6), cached)
    assert (far.arithmetic, far.memory) == (pytest.approx(5e-3), pytest.approx(1e-3))


def test_little_work_leaves_threads_idle_until_they_are_saturated() -> None:
    gpu = replace(PLAIN, saturation=1e-2)
    assert work_seconds(product(1e5), gpu).arithmetic == pytest.approx(1e-3)  # 0.1 ms of work
    assert work_seconds(product(4e7), gpu).arithmetic == pytest.approx(4e-2)
    light = Amount(WorkKind.MAP, DType.float32, 5e4, 0.0)
    assert work_seconds(light, gpu).arithmetic == pytest.approx((1e-4 * 1e-2 * LIGHT_WORK_FACTOR) ** 0.5)


def test_work_is_parallel_only_if_that_is_faster() -> None:
    cpu = replace(PLAIN, units=4, share_seconds=1e-5)
    assert work_seconds(product(1e3), cpu).arithmetic == pytest.approx(4e-6)  # one of them is quicker alone
    assert work_seconds(product(1e6), cpu).arithmetic == pytest.approx(1.01e-3)


def test_sequential_sums_are_slow() -> None:
    gpu = replace(PLAIN, serial_seconds=1e-6)
    assert work_seconds(product(1e3, serial=500), gpu).arithmetic == pytest.approx(5e-4)


def test_transfers_cost_nothing_on_the_host() -> None:
    assert transfer_seconds(1e9, PLAIN, "up") == transfer_seconds(1e9, PLAIN, "down") == 0.0
    far = replace(PLAIN, upload=Transfer(1e-5, 1e9), download=Transfer(2e-5, 2e9))
    assert transfer_seconds(1e6, far, "up") == pytest.approx(1.01e-3)
    assert transfer_seconds(1e6, far, "down") == pytest.approx(5.2e-4)


def test_more_work_never_takes_less_time() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        device = replace(
            PLAIN,
            peak=Peak(1e9, 10 ** chance.uniform(8, 11), 10 ** chance.uniform(4, 8), 10 ** chance.uniform(8, 12)),
            saturation=chance.choice((0.0, 10 ** chance.uniform(-6, -2))),
            units=chance.choice((1, 2, 16)),
            share_seconds=10 ** chance.uniform(-7, -5),
            serial_seconds=chance.choice((0.0, 1e-7)),
        )
        kind = chance.choice(list(WorkKind))
        amount = Amount(
            kind, DType.float32, 10 ** chance.uniform(0, 9), 10 ** chance.uniform(0, 8), chance.randint(1, 9)
        )
        for field in ("flops", "launches", "serial"):
            more = replace(amount, **{field: getattr(amount, field) * 2 + 1})
            assert work_seconds(more, device).total >= work_seconds(amount, device).total, (field, amount, device)


def test_calibration_round_trip() -> None:
    device = replace(PLAIN, upload=Transfer(1e-5, 1e9), saturation=1e-4, units=16, share_seconds=1e-6)
    assert from_record(json.loads(json.dumps(to_record(device)))) == device
    assert from_record(json.loads(json.dumps(to_record(PLAIN)))).download.bandwidth == inf


@pytest.mark.parametrize(
    "damage",
    [
        {"launch_seconds": -1.0},
        {"launch_seconds": "1"},
        {"run_seconds": None},
        {"units": True},
        {"peak": {"flops": 0.0, "bandwidth": 1.0, "cache_bytes": 0.0, "cache_bandwidth": 0.0}},
        {"products": [["float33", 1.0]]},
        {"products": [["float32", float("nan")]]},
        {"reached": [["sorcery", 1.0]]},
        {"upload": {"seconds": 1.0}},
        {"device": 3},
    ],
)
def test_invalid_calibrations_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        from_record({**to_record(PLAIN), **damage})
    for other in ([], None, 3, {}):
        with pytest.raises((ValueError, TypeError, KeyError)):
            from_record(other)
