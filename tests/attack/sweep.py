"""Run a finite family to its end: `python -m attack.sweep FAMILY --device D --state FILE [--minutes N]`.

Every verdict is a line of FILE; what is in it already is not run again, but for what was found (`--again`). At the end
come the counts, the reasons for refusals and what was found, most frequent first.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attack.engine import Arena, Child, cases_of, signature
from attack.families import Family, load_family
from attack.verdict import FINDINGS, REFUSED, Verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--state", type=Path, required=True, help="the file that is written, and gone on with")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--select", default="", help="only cases whose name this regular expression finds")
    parser.add_argument("--jobs", type=int, default=1, help="children at once (default 1)")
    parser.add_argument("--again", action="store_true", help="run again what was found")
    arguments = parser.parse_args()
    family = load_family(arguments.family)
    done = read_state(arguments.state)
    if arguments.again:
        done = {name: entry for name, entry in done.items() if entry["kind"] not in FINDINGS}
    with arguments.state.open("a", encoding="utf-8") as state:
        end = time.monotonic() + 60 * arguments.minutes
        whole = _run(family, arguments, done, state, end)
    summarize(family, read_state(arguments.state), whole)


def read_state(path: Path) -> dict[str, dict[str, Any]]:
    """Read the last verdict on each case."""
    if not path.exists():
        return {}
    entries = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {entry["name"]: entry for entry in entries}


def _run(family: Family, arguments: argparse.Namespace, done: dict[str, Any], state: Any, end: float) -> bool:
    """Run the cases that are not done yet; whether all are done now."""
    device, lock = arguments.device, threading.Lock()
    cases = _selected(cases_of(family, arguments.seed, device), arguments.select, done)
    unfinished = threading.Event()

    def work(arena: Arena) -> None:
        with Child(family, device, arena) as child:
            while True:
                with lock:
                    payload = next(cases, None)
                if payload is None:
                    return
                if time.monotonic() > end:
                    unfinished.set()
                    return
                begin = time.monotonic()
                verdict = child.run(payload)
                entry = {"name": payload["name"], "kind": verdict.kind, "detail": verdict.detail}
                with lock:
                    state.write(json.dumps({**entry, "seconds": round(time.monotonic() - begin, 3)}) + "\n")
                    state.flush()

    with Arena() as arena:
        workers = [threading.Thread(target=work, args=(arena,)) for _ in range(arguments.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return not unfinished.is_set()


def _selected(cases: Iterator[dict[str, Any]], pattern: str, done: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (case for case in cases if case["name"] not in done and re.search(pattern, case["name"]))


def summarize(family: Family, state: dict[str, dict[str, Any]], whole: bool) -> None:
    kinds = Counter(entry["kind"] for entry in state.values())
    print(f"{len(state)} cases{'' if whole else ' (there are more)'}: {dict(kinds)}")
    for reason, count in Counter(e["detail"] for e in state.values() if e["kind"] == REFUSED).most_common():
        print(f"  refused {count} ×: {reason}")
    groups = defaultdict(list)
    for name, entry in state.items():
        if entry["kind"] in FINDINGS:
            groups[signature(family.name, Verdict(entry["kind"], entry["detail"]))].append((name, entry["detail"]))
    for key, entries in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(entries)} × {key}")
        for name, detail in entries[:3]:
            print(f"    {name}\n        {detail[:400]}")


if __name__ == "__main__":
    main()
