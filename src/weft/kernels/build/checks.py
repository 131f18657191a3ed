"""Kernels that find the data at fault: conditions are gathered, and one number tells the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Call, Code, Number, Statement, When
from weft.ir.scalar import Scalar, loads
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.kernel_builder import ERRORS, KernelBuilder, assign, define, put


def is_checked(*expressions: Scalar) -> bool:
    """Whether a load tells of indices that are out of range."""
    return any(load.checked for expression in expressions for load in loads(expression))


class FaultReport:
    """A register of a kernel that gathers faults of the data, and is handed on at the kernel's end."""

    def __init__(self, builder: KernelBuilder) -> None:
        self._builder = builder
        self._wrong = builder.register("wrong", DType.bool)

    def gather(self, checks: Iterable[Code]) -> list[Statement]:
        """What adds conditions of faults to those gathered so far."""
        return [assign(self._wrong, Call("logical_or", (self._wrong, check), DType.bool)) for check in checks]

    def around(self, body: Sequence[Statement]) -> Body:
        """The body of a kernel with what begins and hands on the register."""
        errors = self._builder.output("errors", DType.int32, ERRORS)
        tell = put(errors, 0, Number(1, DType.int32))
        begin = define(self._wrong, Number(False, DType.bool))
        return (begin, *body, When(Across("maximum", self._wrong), (tell,)))
