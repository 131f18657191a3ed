"""Split a row group of few long rows into one work per reduction, with the rows' values in memory between them.

One block per row would leave a device idle. A single reduction can be split into chunks, the next one reads its result
from memory, and writes of every element are maps. Each kernel chooses the memory order that suits it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

from weft.ir import dims
from weft.ir.layout import Layout, channels_last, row_major
from weft.ir.scalar import Index, Load, Placeholder, Scalar, bind_placeholders, walk
from weft.kernels.build.accumulators import Fold
from weft.kernels.build.error_flag import has_checked_loads
from weft.kernels.build.row_passes import Pass, Result, RowValue, Sweep, Write
from weft.kernels.common.reduce import memory_order, spread_strides
from weft.kernels.lower.tensors import Launch, Reference, StoredTensor, Work, Workspace
from weft.records import dataclass

MapBuilder = Callable[
    [Scalar, Sequence[StoredTensor], StoredTensor], Launch
]  # takes an expression, operands and a result


def can_split(sweep: Sweep) -> bool:
    """Return whether every reduction can be a separate work, and every full result a map."""
    passes = [part for part in sweep.passes if part.elements]
    plain = all(fold.position is None for part in passes for fold in part.folds)
    writes = [write for part in passes for write in part.writes]
    are_maps = all(write.key is None and _find_tensor(sweep, write.result) is not None for write in writes)
    before = [action for part in sweep.passes if not part.folds for action in part.then]
    checked = has_checked_loads(*(expression for part in sweep.passes for expression in part.expressions))
    return len(passes) > 1 and plain and are_maps and not checked and all(isinstance(a, RowValue) for a in before)


def build_split_work(sweep: Sweep, build_single: Callable[[Sweep], Work], build_map_launch: MapBuilder) -> Work:
    """Build one work per reduction (`build_single`) and one launch per full result (`build_map_launch`)."""
    split = _SplitWork(sweep, build_single)
    for number, part in enumerate(sweep.passes):
        for write in part.writes:
            tensor = _find_tensor(sweep, write.result)
            assert tensor is not None
            launch = build_map_launch(bind_placeholders(write.value, split.expressions), split.operands, tensor)
            split.add(Work((launch,)), [Reference("result", write.result)])
        later = {
            node.key
            for after in sweep.passes[number + 1 :]
            for expression in after.expressions
            for node in walk(expression)
            if isinstance(node, Placeholder)
        }
        if not part.folds:
            for action in part.then:
                assert isinstance(action, RowValue)
                split.expressions[action.key] = bind_placeholders(action.value, split.expressions)
            continue
        *others, last = part.folds
        for fold in others:
            split.reduce(fold, (), {fold.key})
        split.reduce(last, part.then, later)
    return Work(tuple(split.launches), tuple(split.spaces))


def _find_tensor(sweep: Sweep, number: int) -> StoredTensor | None:
    """Return a full result as a tensor in the sweep's order, row-major or channels-last; None if it is neither."""
    result, rank = sweep.results[number], len(sweep.domain)
    for layout in (Layout(sweep.order), row_major(rank), channels_last(rank)):
        tensor = StoredTensor(result.dtype, sweep.domain, layout)
        if result.strides == tensor.strides:
            return tensor
    return None


@dataclass(slots=True)
class _SplitWork:
    """Collects launches; `expressions` are the values of earlier passes, over the domain."""

    sweep: Sweep
    build_single: Callable[[Sweep], Work]
    expressions: dict[str | int, Scalar] = field(default_factory=dict)
    rows: list[StoredTensor] = field(default_factory=list)  # values per row, operands after the sweep's own
    row_spaces: list[int] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    spaces: list[Workspace] = field(default_factory=list)

    @property
    def operands(self) -> tuple[StoredTensor, ...]:
        return (*self.sweep.operands, *self.rows)

    def add(self, work: Work, results: Sequence[Reference]) -> None:
        """Add the launches of a work on `operands`, with its results rebound."""
        count = len(self.sweep.operands)
        moved = {
            Reference("workspace", n): Reference("workspace", len(self.spaces) + n) for n in range(len(work.workspaces))
        }
        moved |= {Reference("operand", count + n): Reference("workspace", at) for n, at in enumerate(self.row_spaces)}
        moved |= {Reference("result", number): reference for number, reference in enumerate(results)}
        self.launches += [launch.rebound(moved) for launch in work.launches]
        self.spaces += work.workspaces

    def reduce(self, fold: Fold, then: Sequence[RowValue | Write], needed: set[str | int]) -> None:
        """Add one reduction and the actions after it; values under the keys `needed` are stored in memory."""
        actions: list[RowValue | Write] = []
        values: dict[int, Scalar] = {fold.key: Placeholder(fold.key, fold.dtype)}
        results: list[Result] = []
        references: list[Reference] = []
        for action in then:
            value = bind_placeholders(action.value, self.expressions)
            if isinstance(action, RowValue):
                values[action.key] = Placeholder(action.key, value.dtype)
                actions.append(RowValue(action.key, value))
            else:
                actions.append(Write(len(results), value))
                results.append(self.sweep.results[action.result])
                references.append(Reference("result", action.result))
        element = bind_placeholders(fold.element, self.expressions)
        order = memory_order(element, self.sweep.domain, self.operands)
        row_axes = [axis for axis in order if axis not in self.sweep.reduced]
        shape = tuple(self.sweep.domain[axis] for axis in row_axes)
        stored_keys = [key for key in values if key in needed]
        tensors = [StoredTensor(values[key].dtype, shape, row_major(len(shape))) for key in stored_keys]
        for key, tensor in zip(stored_keys, tensors):
            actions.append(Write(len(results), values[key]))
            results.append(Result(tensor.dtype, spread_strides(len(self.sweep.domain), row_axes, tensor.strides)))
            references.append(Reference("workspace", len(self.spaces)))
            self.spaces.append(Workspace(tensor.dtype, dims.product(shape)))
        passes = (Pass((replace(fold, element=element),), then=tuple(actions)),)
        single = replace(self.sweep, order=order, passes=passes, operands=self.operands, results=tuple(results))
        self.add(self.build_single(single), references)
        indices = tuple(Index(dims.axis(axis, self.sweep.domain[axis])) for axis in row_axes)
        for key, tensor, reference in zip(stored_keys, tensors, references[len(references) - len(stored_keys) :]):
            self.expressions[key] = Load(len(self.operands), indices, tensor.dtype)
            self.rows.append(tensor)
            self.row_spaces.append(reference.number)
