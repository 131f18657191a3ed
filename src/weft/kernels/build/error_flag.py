"""Report out-of-range indices: a kernel collects the conditions and sets one flag at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Code, Number, Statement, When
from weft.ir.scalar import Scalar, loads
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.kernel_builder import ERRORS, KernelBuilder, assign, define, put
from weft.kernels.lower.operations import logical_or


def has_checked_loads(*expressions: Scalar) -> bool:
    """Return whether any load reports indices that are out of range."""
    return any(load.checked for expression in expressions for load in loads(expression))


class ErrorFlag:
    """A register that collects error conditions, written to the run's error buffer at the end of the kernel."""

    def __init__(self, builder: KernelBuilder) -> None:
        self._builder = builder
        self._failed = builder.register("wrong", DType.bool)

    def collect(self, checks: Iterable[Code]) -> list[Statement]:
        return [assign(self._failed, logical_or(self._failed, check)) for check in checks]

    def wrap(self, body: Sequence[Statement]) -> Body:
        """Wrap the body of a kernel in the definition of the register and the write at the end."""
        errors = self._builder.output("errors", DType.int32, ERRORS)
        report = put(errors, 0, Number(1, DType.int32))
        begin = define(self._failed, Number(False, DType.bool))
        return (begin, *body, When(Across("maximum", self._failed), (report,)))
