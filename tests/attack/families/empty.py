"""Sizes of 0: each dimension of each input of each op, alone and together, and real models.

Nothing in gives what onnxruntime gives, or onnx's evaluator where that does not know the op: the same shapes, and the
same numbers where something comes of nothing. What they refuse weft may refuse; what they take it must take.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from attack.node_cases import case_arrays, case_inputs, node_cases, reshaped_model
from attack.peer import Peer
from attack.verdict import Payload, Verdict, refused, right, wrong
from models.catalog import FETCHED

import weft
from weft.errors import InternalError, WeftError

SECONDS = 120.0
SHARE = 15
MODEL_BYTES = 40 << 20  # larger ones take too long for a case
_PEER = Peer()


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    """All of them, in random order."""
    payloads = [*_node_payloads(), *_model_payloads()]
    for number in random.permutation(len(payloads)):
        yield payloads[number]


def _node_payloads() -> Iterator[Payload]:
    for name in node_cases():
        if any(part in name for part in FAULTS):
            continue
        arrays = case_arrays(name)
        ways: dict[str, dict[str, list[int]]] = {}
        for key, array in arrays.items():
            for axis in range(array.ndim):
                ways[f"{key}[{axis}]"] = {key: [0 if i == axis else s for i, s in enumerate(array.shape)]}
        sizes = sorted({size for array in arrays.values() for size in array.shape if size})
        for size in sizes:
            ways[f"all {size}"] = {k: [0 if s == size else s for s in a.shape] for k, a in arrays.items()}
        ways["first axes"] = {k: [0, *a.shape[1:]] for k, a in arrays.items() if a.ndim}
        for way, shapes in ways.items():
            for symbolic in (False, True):
                kind = "symbolic" if symbolic else "static"
                yield {"name": f"{name} {way} {kind}", "case": name, "shapes": shapes, "symbolic": symbolic}


def _model_payloads() -> Iterator[Payload]:
    for path in sorted(FETCHED.glob("*.onnx")):
        if path.stat().st_size <= MODEL_BYTES:
            yield {"name": f"{path.stem} with a batch of 0", "model": path.name, "all": False}
            yield {"name": f"{path.stem} with all dynamic sizes 0", "model": path.name, "all": True}


def attack(payload: Payload, device: str) -> Verdict:
    if "model" in payload:
        return _attack_model(payload, device)
    arrays = case_arrays(payload["case"])
    for key, shape in payload["shapes"].items():
        arrays[key] = np.ascontiguousarray(arrays[key][tuple(slice(0, size) for size in shape)])
    model = reshaped_model(payload["case"], arrays, payload["symbolic"])
    return _compare(model, {**case_inputs(payload["case"]), **arrays}, device)


def _compare(model: onnx.ModelProto, inputs: dict[str, Any], device: str) -> Verdict:
    return _judged(lambda: weft.load(model, device=device, cache=False).run(inputs), model, inputs)


def _judged(run: Callable[[], dict[str, Any]], model: onnx.ModelProto, inputs: dict[str, Any]) -> Verdict:
    """Accept a result that any peer agrees with: each has its own faults with empty tensors."""
    try:
        outputs = run()
    except InternalError:
        raise
    except WeftError as error:
        expected = _PEER.ask(model, inputs)
        if not expected or _is_excused(error):
            return refused(f"{type(error).__name__}: {error}")
        return wrong(f"refused, though {_shapes(expected[0])} would come of it: {error}")
    verdicts = [_same(outputs, expected, _takes_mean(model)) for expected in _PEER.ask(model, inputs) or ()]
    return next((verdict for verdict in verdicts if not verdict.is_finding), verdicts[0] if verdicts else right())


def _is_excused(error: WeftError) -> bool:
    """Whether weft may refuse what others run: inconsistent sizes, which they do not check."""
    return any(re.search(pattern, str(error)) for pattern in EXCUSED)


EXCUSED = (
    r"sizes .+ and .+ differ",  # that must agree and do not: where nothing is read, others look no closer
    r"without elements",  # onnxruntime has a position of the greatest of nothing
    r"must hold one number",  # onnxruntime reads it from nowhere
    r"has no meaning for these sizes",  # a transform of no points: numpy refuses it too
    r"parts .+ do not add up",
    r"\d+ (sizes|repeats) for (rank|\d+)",  # a vector of sizes that is shorter than the axes
    r"must be equally many",
    r"heads need at least one head",  # of keys or values
    r"index \S+ is out of range",  # a condition that is longer than the data
    r"Split has 0 outputs",  # sizes of no parts, where the others leave the outputs that there are empty
    r"must have size \d+ in dimension",  # an optional's element, whose type stays as it was declared
)
FAULTS = ("argmin_negative_axis", "argmax_negative_axis")
"""Cases where onnxruntime forgets that a reduced axis is 1, and onnx's evaluator refuses."""


def _takes_mean(model: onnx.ModelProto) -> bool:
    """Whether a loss is the mean of others, as it is unless the model says something else."""
    ops = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
    losses = [node for node in model.graph.node if node.op_type in ops]
    kinds = [next((a.s for a in node.attribute if a.name == "reduction"), b"mean") for node in losses]
    return b"mean" in kinds


def _same(outputs: dict[str, Any], expected_outputs: dict[str, Any], takes_mean: bool) -> Verdict:
    for name, expected in expected_outputs.items():
        actual = outputs[name]
        if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
            continue
        if actual.shape != expected.shape or (
            actual.dtype != expected.dtype and object not in (actual.dtype, expected.dtype)
        ):
            return wrong(f"{name} is {actual.dtype}{actual.shape}, not {expected.dtype}{expected.shape}")
        if expected.size and expected.dtype.kind in "fiub":
            numbers = actual.astype(np.float64), expected.astype(np.float64)
            if takes_mean and np.isnan(numbers[0]).all() and not numbers[1].any():
                continue  # a mean of nothing, which is 0/0 or 0
            if not np.allclose(*numbers, rtol=1e-3, atol=1e-3, equal_nan=True):
                return wrong(f"{name} is {actual.flat[:4]}, not {expected.flat[:4]}")
    return right()


def _shapes(outputs: dict[str, Any]) -> str:
    return ", ".join(f"{name} {getattr(value, 'shape', type(value).__name__)}" for name, value in outputs.items())


def _attack_model(payload: Payload, device: str) -> Verdict:
    """Only the shapes of what comes of nothing can be wrong; the numbers are those of no elements."""
    path = FETCHED / payload["model"]
    model = weft.load(path, device=device, cache=False)
    inputs: dict[str, Any] = {}
    for spec in model.inputs:
        shape = getattr(spec.type, "shape", None)
        if shape is None or not any(not isinstance(size, int) for size in shape):
            return refused("no dynamic sizes")
        batched = not isinstance(shape[0], int)
        sizes = [
            size if isinstance(size, int) else 0 if payload["all"] or (batched and axis == 0) else 32
            for axis, size in enumerate(shape)
        ]
        inputs[spec.name] = np.zeros(sizes, spec.type.dtype.numpy)
    return _judged(lambda: model.run(inputs), onnx.load(path), inputs)
