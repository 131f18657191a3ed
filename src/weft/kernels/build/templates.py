"""Templates, which build the kernels of a group: their request, their result, and the table of a family.

The table of a family maps primitives, or kinds of groups, to templates in the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from weft.ir.groups import FusedMap, KernelGroup
from weft.ir.program import Value
from weft.ir.target import Target
from weft.kernels.build.in_place import find_overwritable
from weft.kernels.lower.tensors import Epilogue, StoredTensor, Work
from weft.records import dataclass

AnyGroup = TypeVar("AnyGroup", bound=KernelGroup, covariant=True)
AnyTarget = TypeVar("AnyTarget", bound=Target, covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class Request(Generic[AnyGroup, AnyTarget]):
    """A group with its tensors and constants; `tile` is the size of a convolution's Winograd tiles, if any."""

    group: AnyGroup
    tensors: Mapping[Value, StoredTensor]
    constants: Mapping[Value, Any]
    target: AnyTarget
    tile: int | None = None

    @property
    def result(self) -> StoredTensor:
        return self.tensors[self.group.results[0]]

    def take(self, values: Sequence[Value]) -> list[StoredTensor]:
        return [self.tensors[value] for value in values]

    def epilogue(self, fused: FusedMap | None) -> Epilogue | None:
        return None if fused is None else Epilogue(fused.expression, tuple(self.take(fused.operands)))


@dataclass(frozen=True, slots=True)
class Part:
    """Work on some of a group's operands, by position, whose result is an operand of the last part."""

    work: Work
    operands: tuple[int, ...]
    result: StoredTensor


Built = Work | tuple[Part, ...]
"""Work whose references number the group's inputs; or parts in order, of which the last has the results of the others
as operands after its own.
"""


@dataclass(frozen=True, slots=True)
class Template:
    """`build` returns None if it does not apply to a group; `reason` says why it comes before later templates."""

    name: str
    reason: str
    build: Callable[[Request[Any, Any]], Built | None]


Templates = Mapping[type, tuple[Template, ...]]


def mark_overwritable(work: Work, epilogue: Epilogue | None, result: StoredTensor, sources: int = 2) -> Work:
    """Mark the epilogue's operands that a product may overwrite; they come after the product's own, `sources`."""
    if epilogue is None:
        return work
    operands = find_overwritable(epilogue.expression, epilogue.operands, result)
    return replace(work, overwritable=tuple(sources + number for number in operands))
