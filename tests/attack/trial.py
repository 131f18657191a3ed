"""Compare one model on a device with onnxruntime: weft must run what onnxruntime runs, with the same results.

A payload has "model" (see drawn.py) and "runs", a list of draws by input, which one loaded model serves in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from attack import rival
from attack.drawn import Draw, draw, filled, unpacked
from attack.judge import difference, has_steps
from attack.limits import documented, onnxruntime_is_wrong
from attack.verdict import Payload, Verdict, refused, right, wrong

import weft

Array = np.ndarray[Any, Any]
TRIES = 3
"""Inputs that a difference in a model with steps must show with: numbers at the edge of a step are no fault."""


def attacked(payload: Payload, device: str) -> Verdict:
    model = filled(unpacked(payload["model"]))
    verdict = _tried(model, payload["runs"], device)
    for attempt in range(1, TRIES if has_steps(model) else 1):
        if not (verdict.is_finding and " differ; " in verdict.detail):
            break
        verdict = _tried(model, [_redrawn(run, attempt) for run in payload["runs"]], device)
    return verdict


def _tried(model: onnx.ModelProto, runs: list[dict[str, Draw]], device: str) -> Verdict:
    feeds = [{name: draw(drawn) for name, drawn in run.items()} for run in runs]
    onnxruntime_bug = onnxruntime_is_wrong(model)
    peer_results = [_onnxruntime(model, feed) for feed in feeds]
    try:
        loaded = weft.load(model, device=device, cache=False)
    except weft.WeftError as error:
        if isinstance(error, weft.InternalError):
            raise
        return _refusal(error, model, peer_results, onnxruntime_bug)
    outcome = right()
    for feed, theirs in zip(feeds, peer_results, strict=True):
        try:
            ours = list(loaded.run(feed).values())
        except weft.WeftError as error:
            if isinstance(error, weft.InternalError):
                raise
            outcome = _refusal(error, model, [theirs], onnxruntime_bug)
        else:
            outcome = _compared(model, loaded, feed, ours, theirs, onnxruntime_bug)
        if outcome.is_finding:
            break
    return outcome


def _compared(
    model: onnx.ModelProto,
    loaded: weft.Model,
    feed: Mapping[str, Array],
    ours: list[Any],
    theirs: Any,
    onnxruntime_bug: str,
) -> Verdict:
    again = list(loaded.run(feed).values())
    if not all(_same_bits(first, second) for first, second in zip(ours, again, strict=True)):
        return wrong("a second run with the same inputs gives other bits")
    if isinstance(theirs, Exception) or onnxruntime_bug:
        reference = list(weft.load(model, device="reference").run(feed).values())
        problem = difference(model, feed, ours, reference)
        return wrong(f"other than the reference: {problem}") if problem else right()
    problem = difference(model, feed, ours, theirs)
    return wrong(problem) if problem else right()


def _refusal(error: weft.WeftError, model: onnx.ModelProto, peer_results: list[Any], onnxruntime_bug: str) -> Verdict:
    message = f"{type(error).__name__}: {error}"
    if onnxruntime_bug or any(isinstance(theirs, Exception) for theirs in peer_results) or documented(error, model):
        return refused(message)
    return wrong(f"refuses what onnxruntime runs: {message}")


def _onnxruntime(model: onnx.ModelProto, feed: Mapping[str, Array]) -> Any:
    """Return onnxruntime's results, or its error."""
    try:
        return rival.run(model, feed)
    except rival.RivalError as error:
        return error


def _same_bits(first: Any, second: Any) -> bool:
    if isinstance(first, list):
        return len(first) == len(second) and all(map(_same_bits, first, second))
    if first is None or first.dtype.kind in "OUS":
        return first is second or bool((first == second).all())
    return bool(first.shape == second.shape and first.tobytes() == second.tobytes())


def _redrawn(run: Mapping[str, Draw], attempt: int) -> dict[str, Draw]:
    """Draw other floats of the same distribution."""
    redrawn = {}
    for name, drawn in run.items():
        other = dict(drawn)
        if "seed" in drawn:
            other["seed"] = drawn["seed"] + 1000 * attempt
        elif "float" in drawn["dtype"]:
            other["values"] = [
                value * (1 + 0.01 * attempt * ((place * 7) % 5 - 2)) for place, value in enumerate(drawn["values"])
            ]
        redrawn[name] = other
    return redrawn
