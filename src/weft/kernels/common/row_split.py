"""Row groups of few long rows as works of their own, one for each reduction: what rows come to is kept in between.

One block for a row would leave a device idle. A reduction alone can be cut into pieces; the next one reads what it came
to from memory, and what is written for each element is a map. Each of them goes along memory in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.layout import Layout, channels_last, row_major
from weft.ir.scalar import Held, Index, Load, Scalar, walk, with_held
from weft.kernels.build.accumulators import Fold
from weft.kernels.build.checks import is_checked
from weft.kernels.build.row_passes import Pass, Result, Single, Sweep, Write
from weft.kernels.common.reduce import memory_order
from weft.kernels.lower.tensors import Launch, Reference, StoredTensor, Work, Workspace
from weft.records import dataclass

MapOf = Callable[[Scalar, Sequence[StoredTensor], StoredTensor], Launch]  # of an expression, operands and a result


def can_split(sweep: Sweep) -> bool:
    """Whether every reduction can be a work of its own, and every full result a map."""
    passes = [part for part in sweep.passes if part.elements]
    plain = all(fold.position is None for part in passes for fold in part.folds)
    writes = [write for part in passes for write in part.writes]
    known = all(write.key is None and _tensor(sweep, write.result) is not None for write in writes)
    before = [action for part in sweep.passes if not part.folds for action in part.then]
    checked = is_checked(*(expression for part in sweep.passes for expression in part.expressions))
    return len(passes) > 1 and plain and known and not checked and all(isinstance(a, Single) for a in before)


def split_work(sweep: Sweep, lone_work: Callable[[Sweep], Work], map_launch: MapOf) -> Work:
    """`lone_work` makes the kernels of a sweep with one reduction, `map_launch` that of a map."""
    split = _Split(sweep, lone_work)
    for number, part in enumerate(sweep.passes):
        for write in part.writes:
            tensor = _tensor(sweep, write.result)
            assert tensor is not None
            value = with_held(write.value, split.known)
            launch = map_launch(value, split.operands, tensor)
            split.add(Work((launch,)), [Reference("result", write.result)])
        later = {
            node.key
            for after in sweep.passes[number + 1 :]
            for expression in after.expressions
            for node in walk(expression)
            if isinstance(node, Held)
        }
        if not part.folds:
            for action in part.then:
                assert isinstance(action, Single)
                split.known[action.key] = with_held(action.value, split.known)
            continue
        *others, last = part.folds
        for fold in others:
            split.reduce(fold, (), {fold.key})
        split.reduce(last, part.then, later)
    return Work(tuple(split.launches), tuple(split.spaces))


def _tensor(sweep: Sweep, number: int) -> StoredTensor | None:
    """A full result as a tensor, where it lies in the sweep's order, row-major, or with channels last."""
    result, rank = sweep.results[number], len(sweep.domain)
    for layout in (Layout(sweep.order), row_major(rank), channels_last(rank)):
        tensor = StoredTensor(result.dtype, sweep.domain, layout)
        if result.strides == tensor.strides:
            return tensor
    return None


@dataclass(slots=True)
class _Split:
    """A work in the making; `known` is what passes before have found, as expressions over the domain."""

    sweep: Sweep
    lone_work: Callable[[Sweep], Work]
    known: dict[str | int, Scalar] = field(default_factory=dict)
    rows: list[StoredTensor] = field(default_factory=list)  # what is kept for each row, after the sweep's operands
    row_spaces: list[int] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    spaces: list[Workspace] = field(default_factory=list)

    @property
    def operands(self) -> tuple[StoredTensor, ...]:
        return (*self.sweep.operands, *self.rows)

    def add(self, work: Work, results: Sequence[Reference]) -> None:
        """The kernels of a work on the operands, with its results where they belong."""
        count = len(self.sweep.operands)
        moved = {
            Reference("workspace", n): Reference("workspace", len(self.spaces) + n) for n in range(len(work.workspaces))
        }
        moved |= {Reference("operand", count + n): Reference("workspace", at) for n, at in enumerate(self.row_spaces)}
        moved |= {Reference("result", number): reference for number, reference in enumerate(results)}
        self.launches += [launch.rebound(moved) for launch in work.launches]
        self.spaces += work.workspaces

    def reduce(self, fold: Fold, then: Sequence[Single | Write], kept: set[str | int]) -> None:
        """One reduction with what follows from it alone; what is held under the keys `kept` stays in memory."""
        actions: list[Single | Write] = []
        held: dict[int, Scalar] = {fold.key: Held(fold.key, fold.dtype)}
        results: list[Result] = []
        references: list[Reference] = []
        for action in then:
            value = with_held(action.value, self.known)
            if isinstance(action, Single):
                held[action.key] = Held(action.key, value.dtype)
                actions.append(Single(action.key, value))
            else:
                actions.append(Write(len(results), value))
                results.append(self.sweep.results[action.result])
                references.append(Reference("result", action.result))
        element = with_held(fold.element, self.known)
        order = memory_order(element, self.sweep.domain, self.operands)
        kept_axes = [axis for axis in order if axis not in self.sweep.reduced]
        shape = tuple(self.sweep.domain[axis] for axis in kept_axes)
        made = [key for key in held if key in kept]
        tensors = [StoredTensor(held[key].dtype, shape, row_major(len(shape))) for key in made]
        for key, tensor in zip(made, tensors):
            strides: list[Dim] = [0] * len(self.sweep.domain)
            for axis, stride in zip(kept_axes, tensor.strides, strict=True):
                strides[axis] = stride
            actions.append(Write(len(results), held[key]))
            results.append(Result(tensor.dtype, tuple(strides)))
            references.append(Reference("workspace", len(self.spaces)))
            self.spaces.append(Workspace(tensor.dtype, dims.product(shape)))
        only = Pass((replace(fold, element=element),), then=tuple(actions))
        self.add(
            self.lone_work(
                replace(self.sweep, order=order, passes=(only,), operands=self.operands, results=tuple(results))
            ),
            references,
        )
        indices = tuple(Index(dims.axis(axis, self.sweep.domain[axis])) for axis in kept_axes)
        for key, tensor, reference in zip(made, tensors, references[len(references) - len(made) :]):
            self.known[key] = Load(len(self.operands), indices, tensor.dtype)
            self.rows.append(tensor)
            self.row_spaces.append(reference.number)
