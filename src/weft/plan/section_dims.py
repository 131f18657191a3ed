"""All dims of a native section, computed at once: what a section that meets size after size is planned with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.ir.dims import Dim, Expr, symbols
from weft.ir.formulas import compile_dims
from weft.ir.types import TensorType
from weft.ir.work import NativeSection, Task


class SectionDims:
    """The dims that a plan of a section asks for, as one compiled function of its sizes."""

    def __init__(self, section: NativeSection, sizes: Mapping[str, int]) -> None:
        """`sizes` are some that it has met: of dims of others, which scans show inside, nothing is known here."""
        found = dict.fromkeys(dim for dim in _dims(section) if isinstance(dim, Expr))
        self._dims = [dim for dim in found if all(symbol.name in sizes for symbol in symbols(dim))]
        self._compute = compile_dims(self._dims)

    def numbers(self, sizes: Mapping[str, int]) -> dict[Expr, int]:
        """Their values; none where one of them divides by a size of 0, and may not be wanted."""
        try:
            return dict(zip(self._dims, self._compute(sizes)))
        except ArithmeticError:
            return {}


def _dims(section: NativeSection) -> Iterator[Dim]:
    for task in section.tasks:
        for value in (*task.operands, *task.results):
            if isinstance(value.type, TensorType):
                yield from value.type.shape or ()
        if isinstance(task, Task):
            yield from (task.effort.flops, task.effort.bytes)
            yield from (workspace.size for workspace in task.work.workspaces)
            for launch in task.work.launches:
                yield launch.blocks
                yield from launch.values
            for copy in task.work.copies:
                yield from (copy.source, copy.target, copy.size, copy.pieces)
