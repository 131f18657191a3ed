"""Run families of attacks in time slices, until the time is over or all cases have run."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attack.engine import Arena, Child, cases_of
from attack.families import Family
from attack.minimise import Finding, minimised
from attack.verdict import Payload

SLICE_SECONDS = 45.0


@dataclass(slots=True)
class Tally:
    """The verdicts on a family's cases so far."""

    family: Family
    cases: Iterator[Payload]
    verdicts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)  # by what they look like, the first of each
    alike: Counter[str] = field(default_factory=Counter)
    files: list[Path] = field(default_factory=list)
    seconds: float = 0.0
    exhausted: bool = False

    @property
    def total(self) -> int:
        return sum(self.verdicts.values())


def run_campaign(
    families: Sequence[Family],
    device: str,
    seed: int,
    seconds: float,
    jobs: int,
    folder: Path,
    show: Callable[[Sequence[Tally], str], None],
) -> list[Tally]:
    """Attack for some time, `jobs` families at once; findings are minimised and written as they come."""
    tallies = [Tally(family, cases_of(family, seed, device)) for family in families]
    waiting, lock, end = deque(tallies), threading.Lock(), time.monotonic() + seconds
    waiting.rotate(-seed)  # where time is short, another seed begins with another family

    def work(arena: Arena) -> None:
        while time.monotonic() < end:
            with lock:
                if not waiting:
                    return
                tally = waiting.popleft()
            until = min(end, time.monotonic() + SLICE_SECONDS)
            _attack(tally, device, arena, until, folder, lambda case: show(tallies, case))
            with lock:
                if not tally.exhausted:
                    waiting.append(tally)

    with Arena() as arena:
        workers = [threading.Thread(target=work, args=(arena,)) for _ in range(jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return tallies


def _attack(tally: Tally, device: str, arena: Arena, until: float, folder: Path, show: Callable[[str], None]) -> None:
    """Run cases of one family until its slice of time is over."""
    start = time.monotonic()
    with Child(tally.family, device, arena) as child:
        while time.monotonic() < until:
            payload = next(tally.cases, None)
            if payload is None:
                tally.exhausted = True
                break
            show(f"{tally.family.name}: {payload['name']}")
            verdict = child.run(payload)
            tally.verdicts[verdict.kind] += 1
            if verdict.is_finding:
                _keep(tally, Finding(tally.family.name, device, payload, verdict), child, folder)
            elif verdict.detail:
                tally.reasons[verdict.detail.partition(":")[0]] += 1
    tally.seconds += time.monotonic() - start


def _keep(tally: Tally, finding: Finding, child: Child, folder: Path) -> None:
    key = finding.signature
    tally.alike[key] += 1
    if key not in tally.findings:
        small = minimised(finding, child)
        tally.findings[key] = small
        tally.files.append(small.write(folder))
