"""Weights of 16 bits: recognise maps that cast a constant to float32 for a product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.ir.dtypes import DType
from weft.ir.program import Contract, Map, Step, Value
from weft.ir.scalar import Apply, Load, identity_indices

HALVES = (DType.float16, DType.bfloat16)


def widens_weights(contract: Step, maker: Step, constants: Mapping[Value, Any]) -> bool:
    """Whether a map casts a constant matrix to float32, and a product multiplies it by a value that is not constant."""
    if not isinstance(contract.primitive, Contract) or not isinstance(maker.primitive, Map):
        return False
    result = maker.results[0]
    others = [value for value in contract.operands if value != result]
    if len(contract.operands) != 2 or len(others) != 1 or others[0] in constants or len(maker.operands) != 1:
        return False
    if others[0].dtype is not DType.float32 or result.rank != 2:
        return False
    if not isinstance(constants.get(maker.operands[0]), np.ndarray) or maker.operands[0].known_shape != result.shape:
        return False
    match maker.primitive.expression:
        case Apply("cast", (Load(0, indices, dtype),), DType.float32):
            return dtype in HALVES and indices == identity_indices(result.shape)
    return False
