"""What a template is: a way to build the kernels of a group, with what it is asked for and what it gives.

A family of kernels is a table from primitives, or kinds of groups, to templates in the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from weft.ir.groups import FusedMap, KernelGroup
from weft.ir.program import Value
from weft.ir.target import Target
from weft.kernels.build.in_place import overwritable
from weft.kernels.lower.tensors import Epilogue, StoredTensor, Work
from weft.records import dataclass

AnyGroup = TypeVar("AnyGroup", bound=KernelGroup, covariant=True)
AnyTarget = TypeVar("AnyTarget", bound=Target, covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class Request(Generic[AnyGroup, AnyTarget]):
    """A group, and its values as kernels meet them; `tile` is the size of a convolution's transformed tiles, if any."""

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
    """Work on some of a group's operands, by their positions, that makes a tensor for the part after it."""

    work: Work
    operands: tuple[int, ...]
    result: StoredTensor


Built = Work | tuple[Part, ...]
"""The work, whose references count the group's inputs; or parts in order, of which the last takes what those before
it made as operands after its own.
"""


@dataclass(frozen=True, slots=True)
class Template:
    """`build` gives None where it is not for a group; `reason` says why it comes before those after it."""

    name: str
    reason: str
    build: Callable[[Request[Any, Any]], Built | None]


Templates = Mapping[type, tuple[Template, ...]]


def overwriting(work: Work, epilogue: Epilogue | None, result: StoredTensor) -> Work:
    """A product that may write where its epilogue reads: operands of that come after the two of the product."""
    if epilogue is None:
        return work
    found = overwritable(epilogue.expression, epilogue.operands, result)
    return replace(work, overwritable=tuple(2 + number for number in found))
