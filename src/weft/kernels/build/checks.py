"""Kernels that find the data at fault: conditions are gathered, and one number tells the run."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    Assign,
    Call,
    Code,
    Define,
    Number,
    Put,
    Register,
    Statement,
    When,
)
from weft.ir.scalar import Scalar, loads
from weft.kernels.build.loop_nest import Body


def is_checked(*expressions: Scalar) -> bool:
    """Whether a load tells of indices that are out of range."""
    return any(load.checked for expression in expressions for load in loads(expression))


WRONG = Register("wrong", DType.bool, True)


def report_errors(body: Body) -> Body:
    """The body of a kernel with a register that gathers faults of the data, handed on at its end."""
    put = Put("errors", 0, Number(1, DType.int32))
    return (Define("wrong", Number(False, DType.bool), True), *body, When(Across("maximum", WRONG), (put,)))


def gather_errors(checks: Sequence[Code]) -> list[Statement]:
    """What adds conditions of faults to those gathered so far."""
    return [Assign("wrong", Call("logical_or", (WRONG, check), DType.bool)) for check in checks]
