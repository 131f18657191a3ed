"""Indexing: reading and writing at positions that tensors hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.types import TensorType
from weft.ops.language import Element, Tensor, build, fresh_symbol, gather, host, reshape, scatter
from weft.ops.language import wrap_index
from weft.ops.registry import normalize_axis, op, require
from weft.ops.trace import is_symbolic


@op("Gather")
def gather_(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return gather(x, indices, axis)
