"""Find the axes along which rows of several requests can be joined into one batch.

A model takes batches if one dynamic dim leads through all its outputs, and no step computes a row from other rows. The
steps of the tensor program show reductions and products over the batch, even if results hide them (a class that is the
same although its scores changed). A small run then checks that no row moves, and that rows have the same bits alone and
joined, since some kernels choose their order of summation by the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from weft.errors import WeftError
from weft.ir import dims
from weft.ir.dims import Dim, symbol_names
from weft.ir.program import (
    HOST_STEPS,
    ArgReduce,
    Contract,
    Convolve,
    Cumulate,
    Pool,
    Random,
    Reduce,
    Scan,
    Sort,
    Step,
    TensorProgram,
    Value,
    bodies,
    step_name,
)
from weft.records import dataclass
from weft.runtime.random_inputs import random_inputs
from weft.threads import make_lock

if TYPE_CHECKING:
    from weft.runtime.model import Model

PROBE_ROWS = (1, 3, 1)  # of three requests that are joined; one row and several may run in different programs


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """The axis of the batch in inputs and outputs, by name.

    inputs: inputs that have a row for each element of the batch; all rows share the other inputs.
    reason: why rows of several requests cannot be joined; "" if they can.
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    reason: str = ""

    @property
    def can_join(self) -> bool:
        """Whether a row has the same bits alone and in any batch."""
        return not self.reason

    @property
    def leads_all(self) -> bool:
        """Whether the batch is axis 0 of all inputs that have one, and of all outputs."""
        return not any(self.inputs.values()) and not any(self.outputs.values())

    def count_rows(self, arrays: Mapping[str, Any]) -> int:
        """Return the number of rows of a request."""
        for name, axis in self.inputs.items():
            if name in arrays:
                size: int = arrays[name].shape[axis]
                return size
        return 1


_known_axes: WeakKeyDictionary[Model, BatchAxes] = WeakKeyDictionary()
_lock = make_lock()


def find_batch_axes(model: Model) -> BatchAxes:
    """Find the batch axes of a model; the first call runs it a few times on random inputs."""
    with _lock:
        axes = _known_axes.get(model)
    if axes is None:
        axes = _find_batch_axes(model)
        with _lock:
            _known_axes[model] = axes
    return axes


def _find_batch_axes(model: Model) -> BatchAxes:
    try:
        program = model.session().program
    except WeftError as error:
        return _unbatchable(f"its graph is not available: {error.problem}")
    axes = _declared_axes(program, model)
    if axes is None:
        return _unbatchable("no dynamic dim leads all inputs and outputs")
    names = _equal_symbols(program, axes)
    step = _find_mixing(program, names)
    if step is not None:
        return _unbatchable(f"{_describe(step)} may compute a row from other rows", axes)
    return probe_rows(model, axes)


def _unbatchable(reason: str, axes: BatchAxes | None = None) -> BatchAxes:
    return BatchAxes({} if axes is None else axes.inputs, {} if axes is None else axes.outputs, reason)


# -- dims ------------------------------------------------------------------------------------------------------------


def _declared_axes(program: TensorProgram, model: Model) -> BatchAxes | None:
    """Return the axes of the first dim that every output has once; dims that lead an input are tried first."""
    inputs = [value for value in program.inputs if value.has_shape]
    if not all(value.has_shape for value in program.outputs):
        return None
    output_names = [spec.name for spec in model.outputs]
    leading = [value.shape[0] for value in inputs if value.rank]
    for candidate in dict.fromkeys([*leading, *(dim for value in inputs for dim in value.shape)]):
        if dims.as_symbol(candidate) is None:
            continue
        names = find_equal_names(program, str(candidate))
        input_axes = {value.name: _axes_of(value, names) for value in inputs}
        output_axes = [_axes_of(value, names) for value in program.outputs]
        if all(len(axes) <= 1 for axes in input_axes.values()) and all(len(axes) == 1 for axes in output_axes):
            return BatchAxes(
                {name: axes[0] for name, axes in input_axes.items() if axes},
                {name: axes[0] for name, axes in zip(output_names, output_axes)},
            )
    return None


def find_equal_names(program: TensorProgram, name: str) -> frozenset[str]:
    """Return the names of all dims that the program's guards require to be equal to this one."""
    names = {name}
    pairs = [
        (str(guard.left), str(guard.right))
        for guard in program.guards
        if not guard.at_least and dims.as_symbol(guard.left) is not None and dims.as_symbol(guard.right) is not None
    ]
    while True:
        more = {other for pair in pairs if names & set(pair) for other in pair}
        if more <= names:
            return frozenset(names)
        names |= more


def _equal_symbols(program: TensorProgram, axes: BatchAxes) -> frozenset[str]:
    shapes = {value.name: value.shape for value in program.inputs if value.has_shape}
    name, axis = next(iter(axes.inputs.items()))
    return find_equal_names(program, str(shapes[name][axis]))


def _axes_of(value: Value, names: frozenset[str]) -> list[int]:
    return [axis for axis, dim in enumerate(value.shape) if dims.as_symbol(dim) is not None and str(dim) in names]


# -- steps -----------------------------------------------------------------------------------------------------------


def _find_mixing(program: TensorProgram, names: frozenset[str]) -> Step | None:
    """Return the first step that may compute a row from others: one that reduces over the batch, or that is opaque."""
    return next((step for step in program.steps if _mixes(step, names)), None)


def _mixes(step: Step, names: frozenset[str]) -> bool:
    def has_rows(*sizes: Dim) -> bool:
        return any(names & symbol_names(size) for size in sizes)

    primitive = step.primitive
    match primitive:
        case Reduce(_, axes):
            return has_rows(*(step.operands[0].shape[axis] for axis in axes))
        case ArgReduce(_, axis, _) | Cumulate(_, axis, _, _) | Sort(axis, _, _):
            return has_rows(step.operands[0].shape[axis])
        case Contract(left, right, output):
            sizes = dict(zip((*left, *right), (*step.operands[0].shape, *step.operands[1].shape)))
            return has_rows(*(size for label, size in sizes.items() if label not in output))
        case Convolve():
            return has_rows(*step.operands[0].shape[1:], *step.operands[1].shape)
        case Pool():
            return has_rows(*step.operands[0].shape[2:])
        case Scan(length=length):
            return has_rows(length) or any(_find_mixing(body, names) for body in bodies(primitive))
        case Random():
            return True
        case _:
            return isinstance(primitive, HOST_STEPS)


def _describe(step: Step) -> str:
    return f"{step_name(step)} of node {step.origin}" if step.origin else step_name(step)


# -- bits ------------------------------------------------------------------------------------------------------------


def probe_rows(model: Model, axes: BatchAxes, rows: Sequence[int] = PROBE_ROWS) -> BatchAxes:
    """Return the axes, with a reason if the rows of random requests differ alone and joined."""
    try:
        requests = [_probe_inputs(model, axes, count, seed) for seed, count in enumerate(rows)]
        joined = model.run(join_rows(requests, axes))
        alone = [model.run(request) for request in requests]
    except WeftError as error:
        return _unbatchable(f"a batch of random inputs failed: {error.problem}", axes)
    for results, parts in zip(alone, split_rows(joined, axes, rows)):
        for name, array in results.items():
            if not has_same_bits(array, parts[name]):
                return _unbatchable(f"rows of output {name!r} differ alone and in a batch", axes)
    return axes


def _probe_inputs(model: Model, axes: BatchAxes, rows: int, seed: int) -> dict[str, Any]:
    """Generate inputs with this number of rows; shared inputs are the same for every seed."""
    specs = {spec.name: spec for spec in model.inputs}
    sizes = {str((specs[name].shape or ())[axis]): rows for name, axis in axes.inputs.items() if name in specs}
    inputs = random_inputs(model, shapes=sizes, seed=seed)
    shared = inputs if seed == 0 else random_inputs(model, shapes=sizes, seed=0)
    return {name: array if name in axes.inputs else shared[name] for name, array in inputs.items()}


def join_rows(requests: Sequence[Mapping[str, Any]], axes: BatchAxes) -> dict[str, Any]:
    """Concatenate the inputs of requests with the same shared inputs."""
    first = requests[0]
    if len(requests) == 1:
        return dict(first)
    return {
        name: np.concatenate([request[name] for request in requests], axes.inputs[name]) if name in axes.inputs else own
        for name, own in first.items()
    }


def split_rows(outputs: Mapping[str, Any], axes: BatchAxes, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Split the outputs of a batch into those of requests with these numbers of rows."""
    parts: list[dict[str, Any]] = [{} for _ in rows]
    for name, array in outputs.items():
        axis = axes.outputs[name]
        start = 0
        for part, count in zip(parts, rows):
            part[name] = array[index_rows(axis, start, start + count)]
            start += count
    return parts


def index_rows(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    """Return the index of a range along an axis."""
    return *[slice(None)] * axis, slice(start, stop)


def has_same_bits(left: Any, right: Any) -> bool:
    if left.dtype == object:
        return bool(left.shape == right.shape and (left == right).all())
    return bool(left.shape == right.shape and left.tobytes() == right.tobytes())
