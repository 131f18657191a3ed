"""Merge neighbouring axes that all loads and stores step through uniformly.

In: expressions over a domain, with the layouts of operands and results. Out: the same expressions, with loads that are
provably in bounds as flat loads, and a list of merged axes, outermost first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weft.ir import dims
from weft.ir.access import find_axes, find_nonlinear_axes, stride_along
from weft.ir.dims import Axis, Dim
from weft.ir.kernel import Buffer
from weft.ir.layout import offset
from weft.ir.scalar import Apply, FlatLoad, Index, Load, Scalar, flat_loads, rebuild
from weft.ir.types import Shape
from weft.kernels.lower.expressions import Operand
from weft.kernels.lower.kernel_builder import KernelBuilder
from weft.kernels.lower.tensors import Reference, StoredTensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class MergedAxes:
    """Groups of the domain's axes, outermost first, each with its size; provably in-bounds loads are flat."""

    expressions: tuple[Scalar, ...]
    axes: tuple[tuple[int, ...], ...]
    sizes: tuple[Dim, ...]

    def axis_positions(self, groups: Sequence[Dim]) -> dict[int, Dim]:
        """Return a position per axis of the domain: the last axis of a group has the group's, the others have 0."""
        positions: dict[int, Dim] = {}
        for members, position in zip(self.axes, groups, strict=True):
            for axis in members:
                positions[axis] = 0
            positions[members[-1]] = position
        return positions

    def strides(self, strides: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return a result's strides along the groups."""
        return tuple(strides[group[-1]] for group in self.axes)

    def offsets(self) -> list[Dim]:
        """Return the offsets of all flat loads."""
        return _offsets(self.expressions)


def merge_axes(
    expressions: Sequence[Scalar],
    operands: Sequence[StoredTensor],
    domain: Shape,
    order: Sequence[int],
    results: Sequence[Sequence[Dim]],
    apart: Iterable[int] = (),
    starts: Iterable[int] = (),
) -> MergedAxes:
    """Merge the axes of a domain; `order` lists them outermost first, `results` are strides along all of them.

    Axes in `apart` do not merge with the others, and axes in `starts` do not merge with the axis before them.
    """
    flat = tuple(flatten_loads(expression, operands) for expression in expressions)
    offsets = _offsets(flat)
    pinned = pinned_axes(flat)
    separate, first = set(apart), set(starts)
    groups: list[list[int]] = []
    sizes: list[Dim] = []
    for axis in order:
        if domain[axis] == 1:
            continue
        last = groups[-1][-1] if groups else axis
        may_join = last != axis and axis not in first and (axis in separate) == (last in separate)
        if may_join and not pinned & {axis, last} and _can_merge(last, axis, domain[axis], offsets, results):
            groups[-1].append(axis)
            sizes[-1] = sizes[-1] * domain[axis]
        else:
            groups.append([axis])
            sizes.append(domain[axis])
    return MergedAxes(flat, tuple(map(tuple, groups)), tuple(sizes))


def operand_inputs(
    operands: Sequence[StoredTensor], builder: KernelBuilder, numbers: Iterable[int] | None = None
) -> dict[int, Buffer]:
    """Create the input buffers of operands (all, or those with the given numbers), by number."""
    chosen = range(len(operands)) if numbers is None else numbers
    return {n: builder.input(f"in{n}", operands[n].dtype, Reference("operand", n)) for n in chosen}


def operand_views(
    operands: Sequence[StoredTensor], buffers: Mapping[int, Buffer], builder: KernelBuilder
) -> dict[int, Operand]:
    """Return the operands that have buffers, with strides as parameters."""
    views: dict[int, Operand] = {}
    for number, operand in enumerate(operands):
        strides = tuple(builder.size(stride) for stride in operand.strides)
        if number in buffers:
            views[number] = Operand(buffers[number], operand.shape, strides)
    return views


def flatten_loads(expression: Scalar, operands: Sequence[StoredTensor]) -> Scalar:
    """Turn loads that are provably in bounds into flat loads."""

    def flatten(load: Load) -> Scalar:
        operand = operands[load.operand]
        positions: list[Dim] = []
        for index, size in zip(load.indices, operand.shape, strict=True):
            if not isinstance(index, Index):
                return load
            if not (dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)):
                return load
            positions.append(index.value)
        return FlatLoad(load.operand, offset(operand.strides, positions), load.dtype)

    return rebuild(expression, flatten)


def _offsets(expressions: Iterable[Scalar]) -> list[Dim]:
    return [load.offset for expression in expressions for load in flat_loads(expression)]


def pinned_axes(expressions: Iterable[Scalar]) -> set[int]:
    """Return the axes that occur other than as linear terms of flat offsets, and so cannot merge."""
    pinned: set[int] = set()
    pending = list(expressions)
    visited: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        match node:
            case FlatLoad(_, value):
                pinned |= find_nonlinear_axes(value)
            case Load(_, indices):
                for index in indices:
                    pinned |= find_axes(index)
            case Index(value):
                pinned |= {atom.position for atom in dims.atoms(value) if isinstance(atom, Axis)}
            case Apply(_, arguments):
                pending.extend(arguments)
    return pinned


def _can_merge(outer: int, inner: int, size: Dim, offsets: Sequence[Dim], results: Sequence[Sequence[Dim]]) -> bool:
    if any(strides[outer] != strides[inner] * size for strides in results):
        return False
    return all(stride_along(value, outer) == stride_along(value, inner) * size for value in offsets)
