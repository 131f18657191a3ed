"""A finding made small, and written down for tests/attack/test_findings.py, which keeps watch over it from then on."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from attack.engine import Child, signature
from attack.verdict import Payload, Verdict

FINDINGS_FOLDER = Path(__file__).parent / "findings"
MOST_TRIES = 300
MOST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A case that went wrong on a device, and how."""

    family: str
    device: str
    payload: Payload
    verdict: Verdict

    @property
    def signature(self) -> str:
        return signature(self.family, self.verdict)

    def write(self, folder: Path) -> Path:
        text = json.dumps({**asdict(self)}, indent=1, sort_keys=True) + "\n"
        digest = hashlib.sha256(json.dumps(self.payload, sort_keys=True).encode()).hexdigest()[:10]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.family}-{digest}.json"
        path.write_text(text, encoding="utf-8")
        return path


def read_finding(path: Path) -> Finding:
    fields = json.loads(path.read_text(encoding="utf-8"))
    return Finding(fields["family"], fields["device"], fields["payload"], Verdict(**fields["verdict"]))


def minimised(finding: Finding, child: Child) -> Finding:
    """The smallest case found that shows a fault of the same kind; takes the first smaller one that does, again and
    again.
    """
    tries, end = 0, time.monotonic() + MOST_SECONDS
    while True:
        for payload in child.family.smaller(finding.payload):
            tries += 1
            if tries > MOST_TRIES or time.monotonic() > end:
                return finding
            verdict = child.run(payload)
            if verdict.kind == finding.verdict.kind:
                finding = Finding(finding.family, finding.device, payload, verdict)
                break
        else:
            return finding
