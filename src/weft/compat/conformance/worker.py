"""A process that runs one case at a time: `python -m weft.compat.conformance.worker`.

Its first line on stdout is a JSON object with the version of onnx and the cases. Then it reads names of cases from
stdin, one a line, and writes a JSON object with status and reason for each. It ends at the end of stdin.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TextIO

import onnx

from weft.cli.process import read_requests
from weft.compat.conformance.cases import Case, collect_cases, read_data_sets
from weft.compat.conformance.compare import find_difference
from weft.compat.conformance.records import Status
from weft.errors import WeftError

_MAX_REASON_LENGTH = 300

Loader = Callable[..., Any]


def evaluate(case: Case, load: Loader, device: str) -> tuple[Status, str]:
    """Run a case and compare its outputs. Return the status, and the reason if it did not pass."""
    if case.source is None:
        return "skipped", case.missing
    try:
        model = load(case.source, device=device)
        for data in read_data_sets(case):
            results = model.run(data.inputs)
            for name, expected in data.outputs.items():
                difference = find_difference(results[name], expected, rtol=case.test.rtol, atol=case.test.atol)
                if difference:
                    return "failed", f"output {name!r} {difference}"
    except Exception as error:
        return "failed", _describe_error(error)
    return "passed", ""


def import_loader(name: str) -> Loader:
    """Import the function that `module:function` names."""
    module, _, function = name.partition(":")
    loader: Loader = getattr(importlib.import_module(module), function)
    return loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--loader", required=True)
    parser.add_argument("--kind", action="append", required=True)
    arguments = parser.parse_args()
    requests, answers = _redirect_standard_streams()
    lines = read_requests(lambda: requests.readline() or None)
    load = import_loader(arguments.loader)
    cases = collect_cases(arguments.kind)
    _write(answers, {"onnx_version": onnx.__version__, "cases": [asdict(case.info) for case in cases.values()]})
    for line in lines:
        status, reason = evaluate(cases[line.strip()], load, arguments.device)
        _write(answers, {"status": status, "reason": reason})


def _redirect_standard_streams() -> tuple[TextIO, TextIO]:
    """Return stdin and stdout for the worker alone: libraries print to stderr instead, and their stdin is empty."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    os.close(empty)
    return requests, answers


def _write(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _describe_error(error: Exception) -> str:
    text = str(error)
    if isinstance(error, WeftError):
        text = text.removeprefix(f"{error.file}: ").partition("\n  hint: ")[0]
    line = " ".join(text.split())
    if len(line) > _MAX_REASON_LENGTH:
        line = line[:_MAX_REASON_LENGTH] + "…"
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


if __name__ == "__main__":
    main()
