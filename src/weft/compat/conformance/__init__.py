"""The ONNX conformance suite: its cases run in worker processes and compared with the suite's expected outputs.

`run_suite` goes in, a `Report` comes out. Only the workers import onnx, so a crash of any library costs one case.
"""

from weft.compat.conformance.known import is_known, judge, new_failures, read_known_failures, stale_entries
from weft.compat.conformance.records import KINDS, CaseResult, ConformanceReport, Tally
from weft.compat.conformance.run import run_suite

__all__ = [
    "KINDS",
    "CaseResult",
    "ConformanceReport",
    "Tally",
    "is_known",
    "judge",
    "new_failures",
    "read_known_failures",
    "run_suite",
    "stale_entries",
]
