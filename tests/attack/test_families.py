"""Run the first cases of every family of attacks; `scripts/attack` runs more."""

from __future__ import annotations

from itertools import islice

import pytest
from attack.devices import DEVICES, missing
from attack.engine import Arena, Child, cases_of
from attack.families import family_names, load_family

SEED = 0


@pytest.mark.attack
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", family_names())
def test_first_cases(name: str, device: str) -> None:
    reason = missing(device)
    if reason:
        pytest.skip(reason)
    family = load_family(name)
    findings = []
    with Arena() as arena, Child(family, device, arena) as child:
        for payload in islice(cases_of(family, SEED, device), family.share):
            verdict = child.run(payload)
            if verdict.is_finding:
                findings.append(f"{payload['name']}: {verdict.kind}: {verdict.detail}")
    assert not findings, f"seed {SEED}, {len(findings)} findings:\n" + "\n".join(findings)
