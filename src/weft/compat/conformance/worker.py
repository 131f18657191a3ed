"""A process that runs cases one at a time: `python -m weft.compat.conformance.worker`.

Its first line on stdout is a JSON object with the onnx version and the catalogue of cases. Then, for each line with a
case's name on stdin, it writes one JSON object with the status and the reason. The end of stdin ends it.
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

from weft.cli.process import orders
from weft.compat.conformance.cases import Case, collect, data_sets
from weft.compat.conformance.compare import difference
from weft.compat.conformance.records import Status
from weft.errors import WeftError

_LONGEST_REASON = 300

Loader = Callable[..., Any]


def evaluate(case: Case, load: Loader, device: str) -> tuple[Status, str]:
    """Run a case and compare; the status, and the reason where it is not a pass."""
    if case.source is None:
        return "skipped", case.missing
    try:
        model = load(case.source, device=device)
        for data in data_sets(case):
            results = model.run(data.inputs)
            for name, expected in data.outputs.items():
                found = difference(results[name], expected, rtol=case.test.rtol, atol=case.test.atol)
                if found:
                    return "failed", f"output {name!r} {found}"
    except Exception as error:
        return "failed", _describe(error)
    return "passed", ""


def find_loader(name: str) -> Loader:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    found: Loader = getattr(importlib.import_module(module), function)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--loader", required=True)
    parser.add_argument("--kind", action="append", required=True)
    arguments = parser.parse_args()
    requests, answers = _take_over_pipes()
    asked = orders(lambda: requests.readline() or None)
    load = find_loader(arguments.loader)
    cases = collect(arguments.kind)
    _write(answers, {"onnx_version": onnx.__version__, "cases": [asdict(case.info) for case in cases.values()]})
    for line in asked:
        status, reason = evaluate(cases[line.strip()], load, arguments.device)
        _write(answers, {"status": status, "reason": reason})


def _take_over_pipes() -> tuple[TextIO, TextIO]:
    """Keep stdin and stdout to ourselves: what a library prints goes to stderr, and it reads nothing."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return requests, answers


def _write(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _describe(error: Exception) -> str:
    text = str(error)
    if isinstance(error, WeftError):
        text = text.removeprefix(f"{error.file}: ").partition("\n  hint: ")[0]
    line = " ".join(text.split())
    if len(line) > _LONGEST_REASON:
        line = line[:_LONGEST_REASON] + "…"
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


if __name__ == "__main__":
    main()
