"""Extreme numbers: NaN, infinities, zeros of either sign, the largest and smallest of each type, in each input.

Each element is onnxruntime's, or that of onnx's evaluator: each has faults of its own at the edges, so that one that
agrees is enough, and where they disagree float64 may decide; where a sum or a product leaves the type's range, any side
of it will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from attack.float64 import Exact
from attack.node_cases import case_arrays, case_inputs, node_cases, reshaped_model
from attack.peer import IR_VERSION, Peer
from attack.verdict import Payload, Verdict, right, wrong

import weft

SECONDS = 60.0
SHARE = 15
LARGE = 1e-3  # of a type's largest number: beyond it sums may differ in whether they overflow
_PEER = Peer()

FLOATS = ("nan", "inf", "-inf", "-0.0", "largest", "-largest", "smallest", "subnormal")
INTEGERS = ("largest", "-largest")
DECISIONS = {
    ("maxpool", "x"): ("nan",),  # weft hands NaN on, as numpy and frameworks do; onnxruntime drops it
    ("convtranspose", "W"): ("nan", "inf", "-inf"),  # times the zeros around the input, as in a Conv's padding
    ("dft", "x"): ("inf", "-inf"),  # times a cosine that is 0 but for rounding: NaN or infinite, as it is summed
    ("stft", "signal"): ("inf", "-inf"),
    ("pow_types_int", "y"): ("nan", "inf", "-inf", "largest"),  # as an integer, which ONNX leaves open
    ("onehot", "values"): ("nan", "inf", "-inf"),  # onnx's evaluator adds and multiplies where there is a choice
    ("onehot", "depth"): ("smallest", "subnormal"),  # no whole number
    ("gridsample", "Grid"): ("nan", "inf", "-inf"),  # a place between elements that are infinitely far: NaN
    ("attention_local_window", "K"): ("nan", "inf", "-inf"),  # weft leaves out what no window sees, others add -inf
    ("flexattention", "Q"): ("inf", "-inf"),  # rows of nothing but -inf: zeros, as Attention has it
    ("flexattention", "K"): ("inf", "-inf"),
    ("quantizelinear", "y_zero_point"): ("nan", "inf", "-inf"),
    # weft saturates, as the specification says; others convert what no integer can hold. NaN is open
    ("quantizelinear", "x"): ("nan", "inf", "-inf", "largest", "-largest"),
    ("quantizelinear", "y_scale"): ("nan", "inf", "-inf", "smallest", "subnormal", "0.0", "-0.0"),
    ("dynamicquantizelinear", "x"): ("nan", "inf", "-inf"),  # a range without end has no scale
    ("resize", "X"): ("inf", "-inf"),  # times a weight of 0 or below: NaN, where others leave an element out
    ("attention_", "attn_mask"): ("nan", "inf"),  # weft leaves out what no window sees, others add -inf
    ("window", "K"): ("nan", "inf", "-inf"),
    ("roialign_mode_max", "X"): ("nan",),  # the larger of NaN and a number is a choice
    ("deform_conv", "offset"): ("nan", "inf", "-inf"),  # no place
    ("onehot", "indices"): ("smallest", "subnormal"),  # no whole number
}
"""Numbers whose meaning for an op's input is a choice, by parts of names of cases and the input."""


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    """All of them, in random order."""
    assert device
    payloads = list(_payloads())
    for number in random.permutation(len(payloads)):
        yield payloads[number]


def _payloads() -> Iterator[Payload]:
    for name in node_cases():
        for key, array in case_arrays(name).items():
            kind = array.dtype.kind
            if not array.size or kind not in "fiu" or "loop" in name or (kind in "iu" and array.ndim < 2):
                continue
            for number in FLOATS if kind == "f" else INTEGERS:
                if any(op in name and key == x and number in ns for (op, x), ns in DECISIONS.items()):
                    continue
                yield {"name": f"{name} {key} with {number}", "case": name, "input": key, "number": number}


def attack(payload: Payload, device: str) -> Verdict:
    name, key = payload["case"], payload["input"]
    arrays = case_arrays(name)
    changed = np.array(arrays[key])
    changed.flat[changed.size // 2] = _number(payload["number"], changed.dtype)
    model = reshaped_model(name, arrays, symbolic=False)
    inputs: dict[str, Any] = {**case_inputs(name), key: changed}
    outputs = weft.load(model, device=device, cache=False).run(inputs)
    answers = _PEER.ask(model, inputs)
    if not answers:
        return right()
    problem = _difference(outputs, answers, payload["number"])
    if problem and len(answers) == 2 and _difference(answers[0], answers[1:], payload["number"]):
        exact = _exact(model, inputs, answers[0])
        problem = problem if exact is None else _difference(outputs, [*answers, exact], payload["number"])
    return wrong(problem) if problem else right()


def _exact(model: onnx.ModelProto, inputs: dict[str, Any], like: dict[str, Any]) -> dict[str, Any] | None:
    """What onnxruntime makes of it in float64, rounded at the end; nothing where it cannot."""
    exact = Exact(model)
    exact.model.ir_version = min(exact.model.ir_version, IR_VERSION)
    results = exact.run(inputs)
    if not exact.by_onnxruntime:
        return None
    with np.errstate(all="ignore"):
        return {
            name: result.astype(array.dtype) if isinstance(array, np.ndarray) else result
            for result, (name, array) in zip(results, like.items(), strict=True)
        }


def _number(number: str, dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.max if number == "largest" else info.min
    limits = ml_dtypes.finfo(dtype)
    named_numbers = {
        "largest": limits.max,
        "-largest": limits.min,
        "smallest": limits.smallest_normal,
        "subnormal": limits.smallest_subnormal,
    }
    return named_numbers[number] if number in named_numbers else float(number)


def _difference(outputs: dict[str, Any], answers: list[dict[str, Any]], number: str) -> str:
    """Describe elements that differ from all answers; each may agree with any of them."""
    for name, expected in answers[0].items():
        if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "fiub" or not expected.size:
            continue
        actual, expected_arrays = outputs[name], [answer[name] for answer in answers]
        if all(actual.shape != array.shape for array in expected_arrays):
            return f"{name} has shape {actual.shape}, not {expected.shape}"
        close = np.logical_or.reduce(
            [_close(actual, array, number) for array in expected_arrays if array.shape == actual.shape]
        )
        if not close.all():
            place = int(np.flatnonzero(~close)[0])
            others = " or ".join(str(array.flat[place]) for array in expected_arrays if array.shape == actual.shape)
            return f"{name} is {actual.flat[place]} at {place}, not {others}"
    return ""


def _close(actual: Any, expected: Any, number: str) -> Any:
    ours, theirs = actual.astype(np.float64), expected.astype(np.float64)
    loose = expected.dtype.kind == "f" and expected.dtype.itemsize < 4
    close = np.isclose(ours, theirs, rtol=2e-2 if loose else 1e-3, atol=2e-2 if loose else 1e-4, equal_nan=True)
    if expected.dtype.kind == "f":
        limit = LARGE * float(ml_dtypes.finfo(expected.dtype).max)
        close |= (np.abs(ours) > limit) & (np.abs(theirs) > limit)
        if "largest" in number:  # what overflows on the way may end as anything
            close |= ~np.isfinite(ours) | ~np.isfinite(theirs)
    return close
