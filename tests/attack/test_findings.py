"""Replay every fault that an attack found, in its minimised form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attack.devices import missing
from attack.engine import Arena, Child
from attack.families import load_family
from attack.minimise import FINDINGS_FOLDER, read_finding


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena() as arena:
        yield arena


@pytest.mark.parametrize("path", sorted(FINDINGS_FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_finding_stays_fixed(path: Path, arena: Arena) -> None:
    finding = read_finding(path)
    reason = missing(finding.device)
    if reason:
        pytest.skip(reason)
    with Child(load_family(finding.family), finding.device, arena) as child:
        verdict = child.run(finding.payload)
    assert not verdict.is_finding, f"{finding.payload['name']}: {verdict.kind}: {verdict.detail}"
