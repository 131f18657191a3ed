"""Integers that are indices, lengths, axes, counts or sizes, far out of range: right as others have it, or refused.

Each integer input of each node case takes numbers at and beyond the edges. Where onnxruntime and onnx's evaluator both
refuse and weft answers, it must have cut something into shape in silence; where it refuses, it names the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from attack.node_cases import case_arrays, case_inputs, node_cases, reshaped_model
from attack.peer import Peer
from attack.verdict import Payload, Verdict, refused, right, wrong
from onnx import numpy_helper

import weft
from weft.errors import InputError, InternalError, OutOfMemoryError, WeftError

SECONDS = 60.0
LARGE = 1 << 30  # bytes of a result
SHARE = 20
_PEER = Peer()

STRICT = ("nllloss", "sce_")  # whose labels must not be negative: others count them from the end
UNDEFINED = (
    "name a dimension twice",  # "Behavior is undefined if an axis is repeated", says Pad
    "too large to convert",  # a Resize with a limit of 2**63 - 1, compared as a product
)
ROUNDED = ("crop_and_resize_extrapolation",)  # where a coordinate is on the edge of the image but for rounding
OPEN = (
    "pow_types_int",  # powers that no integer holds
    "reshape_allowzero",  # a -1 where there is nothing is 0 to weft and numpy, refused by others
)
CROPPED = ("edge_pad", "reflect_pad", "wrap_pad")  # an axis cropped to nothing is nothing; others take no such pads
NUMBERS = ("-2**63", "-2**31", "-size-1", "-size", "-1", "0", "size", "size+1", "2**31", "2**63-1")


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    """All of them, in random order."""
    assert device
    payloads = list(_payloads())
    for number in random.permutation(len(payloads)):
        yield payloads[number]


def _payloads() -> Iterator[Payload]:
    for name in node_cases():
        if "loop" in name or any(
            part in name for part in (*ROUNDED, *OPEN)
        ):  # a loop would run for this many iterations
            continue
        arrays = case_arrays(name)
        sizes = sorted({size for array in arrays.values() for size in array.shape if size > 1}) or [1]
        for key, array in arrays.items():
            if array.dtype not in (np.int32, np.int64) or not array.size:
                continue
            for number in NUMBERS:
                for size in sizes[:3] if "size" in number else sizes[:1]:
                    for form in ("static", "symbolic", "constant"):
                        yield {
                            "name": f"{name} {key}={number} {form} {size}",
                            "case": name,
                            "input": key,
                            "number": number,
                            "size": size,
                            "form": form,
                        }


def attack(payload: Payload, device: str) -> Verdict:
    name, key = payload["case"], payload["input"]
    arrays = case_arrays(name)
    changed = np.array(arrays[key])
    edge = int(eval(payload["number"], {}, {"size": payload["size"]}))
    info = np.iinfo(changed.dtype)
    changed.flat[changed.size // 2] = min(max(edge, info.min), info.max)
    arrays[key] = changed
    model = reshaped_model(name, arrays, payload["form"] == "symbolic")
    inputs: dict[str, Any] = {**case_inputs(name), key: changed}
    if payload["form"] == "constant":
        remaining = [value for value in model.graph.input if value.name != key]
        del model.graph.input[:]
        model.graph.input.extend(remaining)
        model.graph.initializer.append(numpy_helper.from_array(changed, key))
        del inputs[key]
    try:
        outputs = weft.load(model, device=device, cache=False).run(inputs)
    except (InternalError, OutOfMemoryError):
        raise
    except WeftError as error:
        if any(text in str(error) for text in UNDEFINED):
            return refused(f"{type(error).__name__}: {error}")
        if error.node is None and not isinstance(error, InputError):
            return wrong(f"an error that names no node: {error}")
        answers = _PEER.ask(model, inputs) or ()
        if len(answers) == 2 and _agrees(*answers) and not any(part in name for part in STRICT):
            return wrong(f"refused, though others agree on {_shown(answers[0])}: {error}")
        return refused(f"{type(error).__name__}: {error}")
    answers = _PEER.ask(model, inputs)
    if answers is None:
        return right()
    if not answers and any(part in name for part in CROPPED) and not any(array.size for array in outputs.values()):
        return right()
    if not answers and any(array.nbytes > LARGE for array in outputs.values()):
        return right()  # the others run with less memory than such a Range takes
    if not answers:
        return wrong(f"answered, though no peer does: {_shown(outputs)}")
    if any(_agrees(outputs, answer) for answer in answers):
        return right()
    return wrong(f"{_shown(outputs)}, not {_shown(answers[0])}")


def _agrees(outputs: dict[str, Any], answer: dict[str, Any]) -> bool:
    for name, expected in answer.items():
        actual = outputs[name]
        if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
            continue
        if actual.shape != expected.shape:
            return False
        if expected.dtype.kind in "fiub" and expected.size:
            numbers = actual.astype(np.float64), expected.astype(np.float64)
            if not np.allclose(*numbers, rtol=1e-2, atol=1e-2, equal_nan=True):
                return False
    return True


def _shown(outputs: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value.shape} {value.reshape(-1)[:4]}" if isinstance(value, np.ndarray) else f"{name} {value!r:.60}"
        for name, value in outputs.items()
    )
