"""Call builders of products with the parts of a contraction or convolution, for the tests of both families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.vector.works import tensor_of

from weft.ir.program import Contract, Convolve
from weft.kernels.build.contraction import Contraction
from weft.kernels.build.convolution import Convolution
from weft.kernels.lower.tensors import Epilogue, StoredTensor, Work


def build_contract(
    build: Callable[..., Work],
    primitive: Contract,
    left: StoredTensor,
    right: StoredTensor,
    result: StoredTensor,
    epilogue: Epilogue | None,
    target: Any,
    **constants: Any,
) -> Work:
    return build(Contraction(primitive, left, right, result, epilogue, **constants), target)


def build_convolve(
    build: Callable[..., Any],
    primitive: Convolve,
    x: StoredTensor,
    w: StoredTensor,
    result: StoredTensor,
    epilogue: Epilogue | None,
    target: Any,
    *,
    constant_w: Any = None,
    order: Any = None,
) -> Any:
    return build(Convolution(primitive, x, w, result, epilogue, constant_w, order), target)


def build_transformed(
    build: Callable[..., Any],
    primitive: Convolve,
    x: StoredTensor,
    w: Any,
    result: StoredTensor,
    epilogue: Epilogue | None,
    *target: Any,
) -> Any:
    """Build a convolution with constant weights; the target and further arguments of the builder come last."""
    return build(Convolution(primitive, x, tensor_of(w), result, epilogue, w), *target)
