"""Compute all dims of a native section at once, for sections that are planned for many sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.ir.dims import Dim, Expr, symbols
from weft.ir.formulas import compile_dims
from weft.ir.work import NativeSection, Task


class SectionDims:
    """The dims that planning a section needs, as one compiled function of its sizes."""

    def __init__(self, section: NativeSection, sizes: Mapping[str, int]) -> None:
        """`sizes` is an example: dims with other symbols, which only scan bodies bind, are left out."""
        unique = dict.fromkeys(dim for dim in _dims(section) if isinstance(dim, Expr))
        self._dims = [dim for dim in unique if all(symbol.name in sizes for symbol in symbols(dim))]
        self._compute = compile_dims(self._dims)

    def numbers(self, sizes: Mapping[str, int]) -> dict[Expr, int]:
        """Compute their values; none if one divides by a size of 0, since the plan may not need it."""
        try:
            return dict(zip(self._dims, self._compute(sizes)))
        except ArithmeticError:
            return {}


def _dims(section: NativeSection) -> Iterator[Dim]:
    for task in section.tasks:
        for value in (*task.operands, *task.results):
            yield from value.known_shape or ()
        if isinstance(task, Task):
            yield from (task.effort.flops, task.effort.bytes)
            yield from (workspace.size for workspace in task.work.workspaces)
            for launch in task.work.launches:
                yield launch.blocks
                yield from launch.values
            for copy in task.work.copies:
                yield from (copy.source, copy.target, copy.size, copy.pieces)
