"""`model.deviation()`: how far the outputs of a model with narrowed products are from those in float32."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.tensors import DeviceTensor
from weft.runtime.session import Session


def output_deviations(results: Mapping[str, Any], exact: Session, inputs: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest difference of each output from a run of `exact`, divided by the largest magnitude there.

    Outputs that are not float tensors are left out, as are elements that are equally infinite or NaN in both.
    """
    exact_results = exact.answer(exact.request(inputs))
    deviations = {}
    for name, result in results.items():
        pair = [_to_array(content) for content in (result, exact_results[name])]
        if all(array is not None and np.issubdtype(array.dtype, np.floating) for array in pair):
            deviations[name] = _relative_difference(*pair)
    return deviations


def _to_array(content: Any) -> Array | None:
    if isinstance(content, DeviceTensor):
        return content.numpy()
    return content if isinstance(content, np.ndarray) else None


def _relative_difference(result: Any, expected: Any) -> float:
    result, expected = result.astype(np.float64), expected.astype(np.float64)
    if result.shape != expected.shape:
        return inf
    equal = (result == expected) | (np.isnan(result) & np.isnan(expected))
    largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        difference = float(np.abs(result - expected)[~equal].max(initial=0.0))
    return difference / largest if largest else (inf if difference else 0.0)
