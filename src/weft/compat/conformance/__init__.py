"""Run the ONNX conformance suite in worker processes and compare with its expected outputs.

`run_suite` returns a `ConformanceReport`. Only the workers import onnx, so a crash in a library fails a single case.
"""

from weft.compat.conformance.known_failures import is_known, new_failures, read_known_failures, stale_entries
from weft.compat.conformance.records import KINDS, CaseResult, ConformanceReport, Tally
from weft.compat.conformance.run import run_suite

__all__ = [
    "KINDS",
    "CaseResult",
    "ConformanceReport",
    "Tally",
    "is_known",
    "new_failures",
    "read_known_failures",
    "run_suite",
    "stale_entries",
]
