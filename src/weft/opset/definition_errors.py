"""Explain what is wrong with the Python definition of an op: its name, the file and line, and what to do."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from weft.errors import InvalidModelError, OpDefinitionError, short_repr
from weft.ir.dims import Expr
from weft.opset.tensor import Element, Tensor, TracedValueError
from weft.quantities import format_plural

_PACKAGE = str(Path(__file__).parent.parent)
_PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, ImportError, SyntaxError)
_NUMPY_COUNTERPARTS = {
    "abs": "absolute", "argmax": "arg_reduce", "argmin": "arg_reduce", "clip": "clamp", "concatenate": "concat",
    "max": "reduce", "min": "reduce", "prod": "reduce", "rint": "round_half_even", "sum": "reduce", "take": "gather",
}  # fmt: skip
_TENSOR_HINT = (
    "a tensor has no values while its op is traced: compute with weft.opset.functions and weft.opset.language, "
    "or annotate the input as Static if it is always a constant"
)
_SIZE_HINT = (
    "a dynamic size is symbolic while its op is traced: compute with + - * and weft.ir.dims, "
    "or make it an element with weft.opset.language.index(size)"
)


def explain_failure(name: str, function: Callable[..., Any], error: Exception) -> InvalidModelError:
    """Return the error to raise for an exception that a definition raised.

    weft's own definitions fail on attributes and shapes that no valid model has; a user's may also be wrong.
    """
    location = find_place(function, error)
    if isinstance(error, TracedValueError):
        return OpDefinitionError(f"{name}{location}: {error}", hint=error.hint or _find_hint(error))
    if not location:
        return InvalidModelError(f"{name} cannot be applied here: {type(error).__name__}: {error}")
    kind = OpDefinitionError if isinstance(error, _PROGRAMMING_ERRORS) else InvalidModelError
    return kind(f"{name}{location}: {type(error).__name__}: {error}", hint=_find_hint(error))


def check_results(name: str, function: Callable[..., Any], results: list[Any], counts: tuple[int, int] | None) -> None:
    """Raise OpDefinitionError unless a definition returned tensors, as many as its schema says.

    None is an optional output that a definition omits.
    """
    for number, result in enumerate(results):
        if not isinstance(result, Tensor) and (result is not None or (len(results) == 1 and counts == (1, 1))):
            where = f"output {number}" if len(results) > 1 else "its result"
            problem = f"{name} ({describe_source(function)}) returned {_describe_kind(result)} as {where}, not a Tensor"
            raise OpDefinitionError(problem, hint=_find_conversion(result))
    if counts is None:
        return
    fewest, most = counts
    if len(results) < fewest or (fewest == most and len(results) > most):  # of optional ones, there may be more
        expected = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        returned = f"{name} ({describe_source(function)}) returned {format_plural(len(results), 'output')}"
        problem = f"{returned}; its signature says {expected}"
        hint = "return as many, or annotate -> Tensor, -> tuple[Tensor, Tensor], or -> list[Tensor] for any number"
        raise OpDefinitionError(problem, hint=hint)


def describe_source(function: Callable[..., Any]) -> str:
    """Return `FILE:LINE` of a definition."""
    code = _find_code(function)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def is_own(function: Callable[..., Any]) -> bool:
    """Return whether a definition is weft's own."""
    code = _find_code(function)
    return code is not None and code.co_filename.startswith(_PACKAGE)


def find_place(function: Callable[..., Any], error: BaseException) -> str:
    """Return ` (FILE:LINE)`, the innermost line of a user's definition in a traceback; empty for weft's own."""
    code = _find_code(function)
    if code is None or is_own(function):
        return ""
    line = code.co_firstlineno
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == code.co_filename:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f" ({code.co_filename}:{line})"


def _find_code(function: Callable[..., Any]) -> CodeType | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _find_hint(error: Exception) -> str | None:
    from weft.opset import functions, language  # `language` needs the registry, which needs this module

    text = str(error)
    called = re.match(r"numpy\.(\w+) was called", text)
    if called is not None:
        counterpart = _NUMPY_COUNTERPARTS.get(called[1], called[1])
        for module in (functions, language):
            if callable(getattr(module, counterpart, None)):
                return f"use {module.__name__}.{counterpart}"
        return _TENSOR_HINT
    if "not subscriptable" in text and "'Tensor'" in text:
        return "take elements with gather, slice_axis or split of weft.opset.language, or x.at(i, j) inside of build"
    if isinstance(error, TracedValueError) or re.search(r"\b(Tensor|Element)\b", text):
        return _TENSOR_HINT
    return _SIZE_HINT if re.search(r"\bExpr\b", text) else None


def _describe_kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "a numpy array"
    if isinstance(value, Element):
        return "an element"
    if isinstance(value, Expr):
        return f"the size {value}"
    return "None" if value is None else f"the {type(value).__name__} {short_repr(value)}"


def _find_conversion(value: Any) -> str | None:
    if value is None:
        return "end it with a return statement"
    if isinstance(value, Expr):
        return "make it a tensor with weft.opset.language.dims_tensor([size])"
    if isinstance(value, Element):
        return "compute elements inside of weft.opset.language.elementwise or build"
    if isinstance(value, (bool, int, float, np.ndarray, np.generic)):
        return "make it a tensor with weft.opset.language.constant(...)"
    return None
