"""Make the state of a model: find its pairs, and the dims along which they grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.errors import InputError, short_repr
from weft.ir import dims
from weft.ir.program import Branch, bodies
from weft.ir.state import StatePair
from weft.opset.equal_sizes import find_equal_sizes, replace_sizes
from weft.quantities import join_few
from weft.runtime.arguments import whole_number
from weft.runtime.state import State
from weft.runtime.state_pairs import check_pairs, find_pairs

if TYPE_CHECKING:
    from weft.ir.program import TensorProgram, Value
    from weft.runtime.model import Model


def make_state(model: Model, capacity: int | Mapping[str, int] | None, user_pairs: Mapping[str, str] | None) -> State:
    """Make an empty state; InputError if the model has none, or if a capacity is missing."""
    session = model.session()
    program = session.program
    if user_pairs is None:
        pairs = find_pairs(model.inputs, model.outputs, program, model.file)
    else:
        pairs = check_pairs(user_pairs, model.inputs, model.outputs, model.file)
    inputs = {value.name: value for value in program.inputs}
    outputs = dict(zip((spec.name for spec in model.outputs), program.outputs))
    growth = _Growth(program)
    grown = {name: growth.find_axes(inputs[name], outputs[output]) for name, output in pairs.items()}
    sizes = _check_capacity(capacity, [inputs[name] for name in pairs], grown, model.file)
    return State(
        model,
        tuple(
            StatePair(name, output, next((axis for axis, dim, _ in grown[name] if dim in sizes), None))
            for name, output in pairs.items()
        ),
        sizes,
    )


class _Growth:
    """Which dims of inputs differ in outputs, as far as the program tells."""

    def __init__(self, program: TensorProgram) -> None:
        self._program = program
        self._equal_sizes = find_equal_sizes(program, only_sums=True)

    def find_axes(self, source: Value, output: Value) -> list[tuple[int, str, bool]]:
        """List the axes along which an input may grow, the names of the dims, and whether it certainly grows."""
        axes = []
        results = list(_find_results(self._program, output))
        for axis, dim in enumerate(source.shape if source.has_shape else ()):
            if dims.as_symbol(dim) is None:
                continue
            before = replace_sizes(dim, self._equal_sizes)
            sizes = [
                replace_sizes(value.shape[axis], self._equal_sizes)
                for value in results
                if value.has_shape and value.rank == source.rank
            ]
            if len(sizes) < len(results) or any(after != before for after in sizes):
                certain = any(
                    after != before and dims.symbol_names(before) <= dims.symbol_names(after) for after in sizes
                )
                axes.append((axis, str(dim), certain))
        return axes


def _find_results(program: TensorProgram, output: Value) -> Iterator[Value]:
    """Yield what may become an output: the value itself, or the results of the branches that compute it."""
    for step in program.steps:
        if isinstance(step.primitive, Branch) and output in step.results:
            number = step.results.index(output)
            for body in bodies(step.primitive):
                yield from _find_results(body, body.outputs[number])
            return
    yield output


def _check_capacity(
    capacity: int | Mapping[str, int] | None,
    inputs: Sequence[Value],
    grown: Mapping[str, Sequence[tuple[int, str, bool]]],
    file: str,
) -> dict[str, int]:
    """Return the capacity by dim; InputError for unknown dims, and if no dim that grows is named."""
    growing = sorted({dim for axes in grown.values() for _, dim, certain in axes if certain})
    shapes = [value.shape for value in inputs if value.has_shape]
    dynamic = dict.fromkeys(str(dim) for shape in shapes for dim in shape if dims.as_symbol(dim) is not None)
    if isinstance(capacity, Mapping):
        sizes = {name: whole_number(size, f"the capacity of {name!r}", file) for name, size in capacity.items()}
        for name in sizes:
            if name not in dynamic:
                hint = f"its dims are {join_few(dynamic, 8)}" if dynamic else "all its sizes are fixed"
                raise InputError(f"the state has no dim {short_repr(name)}", file=file, hint=hint)
    else:
        sizes = {} if capacity is None else dict.fromkeys(growing, whole_number(capacity, "capacity", file))
    missing = [dim for dim in growing if dim not in sizes]
    if missing:
        problem = f"the state grows along {join_few(map(repr, missing), 8)}: say how far"
        raise InputError(problem, file=file, hint=f"for instance model.state(capacity={{{missing[0]!r}: 4096}})")
    return sizes
