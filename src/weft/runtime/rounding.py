"""How far a model that narrows its products is from itself in float32: outputs of both, on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from weft.ir.tensors import DeviceTensor
from weft.runtime.session import Session

Array = np.ndarray[Any, Any]


def output_deviations(results: Mapping[str, Any], exact: Session, inputs: Mapping[str, Any]) -> dict[str, float]:
    """By output, the largest difference from a run of `exact`, as a part of the largest magnitude there.

    Outputs that are no tensors of floats are left out, and so is what is not finite in both alike.
    """
    wanted = exact.answer(exact.request(inputs))
    found = {}
    for name, result in results.items():
        pair = [_array(each) for each in (result, wanted[name])]
        if all(each is not None and np.issubdtype(each.dtype, np.floating) for each in pair):
            found[name] = _deviation(*pair)
    return found


def _array(content: Any) -> Array | None:
    if isinstance(content, DeviceTensor):
        return content.numpy()
    return content if isinstance(content, np.ndarray) else None


def _deviation(result: Any, wanted: Any) -> float:
    result, wanted = result.astype(np.float64), wanted.astype(np.float64)
    if result.shape != wanted.shape:
        return inf
    alike = (result == wanted) | (np.isnan(result) & np.isnan(wanted))
    largest = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        difference = float(np.abs(result - wanted)[~alike].max(initial=0.0))
    return difference / largest if largest else (inf if difference else 0.0)
