"""Every node case of the ONNX suite in every form: the plain form's bits, or what is expected, or a listed refusal.

Where the expected values are coarser than their tolerance, as float32 computed them, those of onnx's own evaluator in
float64 will do as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from attack.forms import COMPILED, EXACT, FORMS
from attack.forms.calls import DifferentError, same_bits
from attack.forms.sample import Sample
from attack.refusals import listed
from attack.verdict import Payload, Verdict, no_case, refused, right, wrong
from onnx.reference import ReferenceEvaluator

from weft.compat.conformance.cases import Case, collect_cases, read_data_sets
from weft.compat.conformance.compare import DIFFERS, find_difference
from weft.compat.conformance.known_failures import read_known_failures
from weft.errors import InternalError, WeftError

SECONDS = 60
SHARE = 40
CONFORMANCE = Path(__file__).parents[2] / "conformance"


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    """All pairs of a case and a form, in random order; not every form applies to every case."""
    names = list(_suite())
    forms = [form for form in FORMS if device != "reference" or form not in COMPILED]
    for pair in random.permutation(len(names) * len(forms)):
        case, form = names[int(pair) // len(forms)], forms[int(pair) % len(forms)]
        yield payload(case, form)


def payload(case: str, form: str) -> Payload:
    return {"name": f"{case}: {form}", "case": case, "form": form}


def attack(payload: Payload, device: str) -> Verdict:
    case, form = payload["case"], payload["form"]
    sample = FORMS[form](_sample(case))
    if sample is None:
        return no_case()
    reason = listed(device).get((case, form))
    before = {name: value.copy() for name, value in sample.tensors.items()}
    try:
        results = sample.run(device)
    except WeftError as error:
        if isinstance(error, InternalError):
            raise
        if reason is None:
            return wrong(f"refused, and not listed: {type(error).__name__}: {error}")
        return refused(reason)
    except DifferentError as error:
        return right() if case in _known_failures(device) else wrong(str(error))
    if reason is not None:
        return wrong("is not refused any more: take it from tests/attack/refusals.txt")
    for name, value in before.items():
        if not same_bits(np.asarray(sample.inputs[name]), value):
            return wrong(f"the run changed its input {name!r}")
    return _compared(case, form, sample, results, device)


def _compared(case: str, form: str, sample: Sample, results: dict[str, Any], device: str) -> Verdict:
    test, unsteady = _suite()[case].test, case in _known_failures(device)
    for name, expected in sample.expected.items():
        if name not in results:
            return wrong(f"there is no output {name!r}")
        problem = find_difference(results[name], expected, rtol=test.rtol, atol=test.atol)
        if problem and DIFFERS in problem and not unsteady:
            truth = _truth(case, form)
            if truth is not None and not find_difference(results[name], truth[name], rtol=test.rtol, atol=test.atol):
                problem = None
        if problem and not (unsteady and DIFFERS in problem):
            return wrong(f"output {name!r} {problem}")
        if form in EXACT and not unsteady:
            plain = _plain(case, device)[sample.origins.get(name, name)]
            if not same_bits(results[name], plain):
                return wrong(f"output {name!r} has other bits than in the plain form: {_bits(results[name], plain)}")
    return right()


def _bits(actual: Any, plain: Any) -> str:
    return find_difference(actual, plain, rtol=0.0, atol=0.0) or "in the sign of a zero or a NaN"


def _truth(case: str, form: str) -> Mapping[str, Any] | None:
    """What the form must give, by onnx's evaluator in float64; None where it cannot tell."""
    plain = _sample(case)
    model = onnx.ModelProto()
    model.CopyFrom(plain.model)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    inputs = {name: _wide(value) for name, value in plain.inputs.items()}
    try:
        computed = dict(zip(plain.expected, ReferenceEvaluator(model).run(list(plain.expected), inputs), strict=True))
        narrow = {name: np.asarray(computed[name]).astype(value.dtype) for name, value in plain.expected.items()}
    except Exception:  # whatever keeps it from telling
        return None
    sample = FORMS[form](replace(plain, expected=narrow))
    return None if sample is None else sample.expected


def _wide(value: Any) -> Any:
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value


@cache
def _known_failures(device: str) -> dict[str, str]:
    """Cases whose values say nothing: draws of random numbers, and what the suite itself has wrong."""
    kind = device.partition(":")[0]
    name = "known_failures.txt" if kind == "reference" else f"known_failures_{kind}.txt"
    return read_known_failures(CONFORMANCE / name)


@cache
def _suite() -> dict[str, Case]:
    return collect_cases(["node"])


@cache
def _sample(case: str) -> Sample:
    test = _suite()[case]
    assert test.model is not None
    (data,) = read_data_sets(test)
    return Sample(test.model, data.inputs, data.outputs)


@lru_cache(maxsize=64)
def _plain(case: str, device: str) -> dict[str, Any]:
    return _sample(case).run(device)
