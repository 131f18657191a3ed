"""The process in which cases of one family run: `python -m attack.child FAMILY DEVICE`.

Takes payloads as lines of JSON, and answers each with a verdict. What a case prints goes to the standard error, which
the parent keeps for the case of a crash; so does the place where a case is shortly before its time is up.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from attack.families import Family, load_family
from attack.verdict import Payload, Verdict, judge_exception

import weft.backends.cpu.device  # noqa: F401 (its library is in memory before that is limited)

WARNING_SHARE = 0.9  # of a case's time, after which the child says where it is


def main() -> None:
    family, device = load_family(sys.argv[1]), sys.argv[2]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()
    _limit_memory(family.memory)
    for line in sys.stdin:
        faulthandler.dump_traceback_later(WARNING_SHARE * family.seconds)
        verdict = _run(family, json.loads(line), device)
        faulthandler.cancel_dump_traceback_later()
        answers.write(json.dumps(asdict(verdict)) + "\n")
        answers.flush()


def _run(family: Family, payload: Payload, device: str) -> Verdict:
    try:
        verdict = family.attack(payload, device)
    except BaseException as error:
        return judge_exception(error)
    assert isinstance(verdict, Verdict), verdict
    return verdict


def _limit_memory(more: int) -> None:
    """Limit the address space to the current size plus `more` bytes."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
