"""The engine distinguishes crashes, hangs and errors, continues after each, and minimises findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from attack.campaign import run_campaign
from attack.engine import Arena, Child, cases_of
from attack.families import load_family
from attack.minimise import Finding, minimised, read_finding
from attack.verdict import CRASH, FOREIGN, HANG, INTERNAL, REFUSED, RIGHT, WRONG

PRETENDED = load_family("attack.pretended")


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Arena() as arena, Child(PRETENDED, "none", arena) as child:
        yield child


@pytest.mark.parametrize(
    ("do", "kind", "message"),
    [
        ("right", RIGHT, ""),
        ("crash", CRASH, "SIGSEGV"),
        ("foreign", FOREIGN, "KeyError"),
        ("internal", INTERNAL, "broken"),
        ("leave", FOREIGN, "SystemExit"),
        ("memory", FOREIGN, "MemoryError"),
        ("input", REFUSED, "InputError"),
        ("refuse", REFUSED, "since"),
        ("print", RIGHT, ""),
    ],
)
def test_verdicts(do: str, kind: str, message: str, child: Child) -> None:
    verdict = child.run({"name": do, "do": do})
    assert verdict.kind == kind
    assert message in verdict.detail
    assert child.run({"name": "after", "do": "right"}).kind == RIGHT


def test_hang() -> None:
    """Of a family without patience, which only this case is asked for."""
    with Arena() as arena, Child(replace(PRETENDED, seconds=0.5), "none", arena) as child:
        child.run({"name": "before", "do": "right"})
        verdict = child.run({"name": "hang", "do": "hang"})
        assert verdict.kind == HANG
        assert "no answer" in verdict.detail
        assert child.run({"name": "after", "do": "right"}).kind == RIGHT


def test_findings_are_minimised(child: Child, tmp_path: Path) -> None:
    payload = {"name": "large", "do": "wrong", "size": 100}
    small = minimised(Finding(PRETENDED.name, "none", payload, child.run(payload)), child)
    assert small.payload["size"] == 6
    assert small.verdict.kind == WRONG
    assert read_finding(small.write(tmp_path)) == small


def test_seed_determines_the_cases() -> None:
    first, again, other = (list(islice(cases_of(PRETENDED, seed, "none"), 20)) for seed in (1, 1, 2))
    assert first == again != other


def test_campaign_counts_verdicts(tmp_path: Path) -> None:
    (tally,) = run_campaign([PRETENDED], "none", 0, 2.0, 1, tmp_path, lambda *_: None)
    assert tally.verdicts[RIGHT] == tally.total > 0
    assert not tally.findings
