"""Ops of onnxruntime's domain with random legal attributes, shapes and types, against its CPU kernels.

Where onnxruntime is wrong, or refuses what its schema allows, a numpy statement in float64 is the judge. What neither
of them answers, weft may refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from attack.contrib_attention_cases import ATTENTION_GENERATORS
from attack.contrib_cases import GENERATORS, NOT_DRAWN, Draw, NodeCase
from attack.peer import Peer
from attack.verdict import Payload, Verdict, refused, right, wrong
from opset.oracle import node_model

import weft
from weft.errors import InternalError, WeftError
from weft.opset.registry import definitions

SECONDS = 60.0
SHARE = 20
DOMAIN = "com.microsoft"
ALL = GENERATORS | ATTENTION_GENERATORS
FORMS = ("static", "symbolic", "constant")
TOLERANCES = {np.dtype(np.float16): 5e-3, np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-9}
_PEER = Peer()


def op_names() -> list[str]:
    """Return the ops of the domain that are drawn; an op that weft has and no table names is an error."""
    names = {definition.name for definition in definitions() if definition.domain == DOMAIN}
    unknown = names - ALL.keys() - NOT_DRAWN.keys()
    assert not unknown, f"no generator in contrib_cases.py for {sorted(unknown)}"
    return sorted(names & ALL.keys())


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    """Draw ops in turn, in random order, without end."""
    assert device
    names = op_names()
    while True:
        for number in random.permutation(len(names)):
            seed, form = int(random.integers(1 << 31)), FORMS[int(random.integers(len(FORMS)))]
            yield {"name": f"{names[number]} {seed} {form}", "op": names[number], "seed": seed, "form": form}


def attack(payload: Payload, device: str) -> Verdict:
    case = ALL[payload["op"]](Draw(payload["seed"]))
    model, feeds = _model(payload["op"], case, payload["form"])
    try:
        outputs = list(weft.load(model, device=device, cache=False).run(feeds).values())
    except InternalError:
        raise
    except WeftError as error:
        answers = _ask_onnxruntime(payload["op"], case)
        if answers is None:
            return refused(f"{type(error).__name__}: {error}")
        return wrong(f"refused, though onnxruntime answers: {type(error).__name__}: {error}")
    expected = case.expected or _ask_onnxruntime(payload["op"], case)
    return right() if expected is None else _compare(case, outputs, expected)


def _model(op: str, case: NodeCase, form: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    present = [number for number, array in enumerate(case.inputs) if array is not None]
    constants = present[1:] if form == "constant" else [number for number in present if number in case.constants]
    model = node_model(
        op,
        case.inputs,
        opset=1,
        domain=DOMAIN,
        outputs=case.outputs,
        symbolic=form == "symbolic",
        constants=[number for number in constants if case.inputs[number].dtype != object],  # type: ignore[union-attr]
    )
    model.graph.node[0].attribute.extend(onnx.helper.make_attribute(*pair) for pair in case.attributes.items())
    input_names = {value.name for value in model.graph.input}
    feeds = {f"x{number}": case.inputs[number] for number in present}
    return model, {name: array for name, array in feeds.items() if name in input_names}


def _ask_onnxruntime(op: str, case: NodeCase) -> Sequence[Any] | None:
    """Return onnxruntime's outputs for fixed sizes, since some of its ops need these; None where it refuses."""
    answers = _PEER.ask(*_model(op, case, "static"))
    return list(answers[0].values()) if answers else None


def _compare(case: NodeCase, outputs: Sequence[Any], expected: Sequence[Any]) -> Verdict:
    for number, (actual, expected_output) in enumerate(zip(outputs, expected, strict=True)):
        if expected_output is None:
            continue
        if actual.shape != expected_output.shape or (
            actual.dtype != expected_output.dtype and expected_output.dtype != object
        ):
            return wrong(
                f"output {number} is {actual.dtype}{actual.shape}, not {expected_output.dtype}{expected_output.shape}"
            )
        away = _differences(case, actual, expected_output) & case.defined.get(
            number, np.ones(expected_output.shape, bool)
        )
        if away.any():
            place = tuple(int(axis) for axis in np.argwhere(away)[0])
            values = f"{actual[place]}, not {expected_output[place]}"
            return wrong(f"output {number}: {int(away.sum())} of {away.size} differ; at {list(place)} {values}")
    return right()


def _differences(case: NodeCase, actual: Any, expected: Any) -> np.ndarray[Any, Any]:
    """Mark the elements that differ by more than rounding explains."""
    if expected.dtype == object or expected.dtype == bool:
        return np.asarray(actual != expected)
    if expected.dtype.kind in "iu":
        return np.asarray(np.abs(actual.astype(np.int64) - expected.astype(np.int64)) > case.steps)
    types = (expected.dtype, *(array.dtype for array in case.inputs if array is not None))
    tolerance = case.tolerance or max(TOLERANCES.get(dtype, 0.0) for dtype in types)
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.abs(expected[np.isfinite(expected)])
        close = np.abs(actual - expected) <= tolerance * max(1.0, float(finite.max(initial=0)))
        return np.asarray(~(close | (actual == expected) | (np.isnan(actual) & np.isnan(expected))))
