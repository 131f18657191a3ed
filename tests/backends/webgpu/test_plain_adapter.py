"""An adapter with only WebGPU's guaranteed features: no 64-bit types, no float16, eight buffers per kernel.

64-bit integers are pairs of words there, float16 is packed, float64 is left to the host. Cases of onnx's suite are the
test, some of them, chosen by a seed.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from weft.backends.webgpu import adapters, gpu
from weft.backends.webgpu.adapters import Adapter
from weft.backends.webgpu.library import Abilities
from weft.compat.conformance.cases import Case, collect_cases
from weft.compat.conformance.worker import evaluate

SEED = 20261115
COUNT = 150
KNOWN_FAILURES = Path(__file__).parents[2] / "conformance" / "known_failures_webgpu.txt"


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return collect_cases(["node"])


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    find = adapters.find_adapter

    def find_plain(selector: str = "") -> Adapter:
        adapter = find(selector)
        limits = replace(adapter.limits, max_bindings=8, shared_bytes=16384, max_lanes=256)
        return replace(adapter, abilities=Abilities(int64=False, float64=False, float16=False), limits=limits)

    for module in (adapters, gpu):
        monkeypatch.setattr(module, "find_adapter", find_plain)
    monkeypatch.setattr(gpu, "_open", {})


@pytest.mark.usefixtures("plain")
def test_cases_of_the_suite(cases: dict[str, Case]) -> None:
    failures = {
        line.split()[0] for line in KNOWN_FAILURES.read_text().splitlines() if line and not line.startswith("#")
    }
    names = sorted(set(cases) - failures)
    random.Random(SEED).shuffle(names)
    print("seed", SEED)
    failed = {}
    for name in names[:COUNT]:
        status, reason = evaluate(cases[name], weft.load, "webgpu:0")
        if status != "passed":
            failed[name] = reason
    assert not failed


@pytest.mark.usefixtures("plain")
def test_host_steps_are_named(cases: dict[str, Case]) -> None:
    name = "test_reduce_log_sum_exp_default_axes_keepdims_random"
    steps = weft.load(cases[name].source, device="webgpu:0").explain()
    assert steps
    assert all("float64" in step.reason for step in steps)
