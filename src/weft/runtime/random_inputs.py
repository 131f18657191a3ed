"""`weft.random_inputs`: data that a model takes, where nobody has any: for timing it, and for trying it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from weft.backends.reference.sizes import GuardError, check_guards
from weft.errors import ExecutionError, InputError, ModelError, OutOfMemoryError, shown
from weft.ir.specs import TensorSpec
from weft.ir.types import TensorType
from weft.plan.usual_sizes import dynamic_dims, usual_sizes
from weft.runtime.arguments import whole_number, whole_shapes
from weft.runtime.generated_inputs import generate_inputs
from weft.runtime.memory import bind_shapes

if TYPE_CHECKING:
    from weft.ir.program import Guard, Value
    from weft.runtime.model import Model

MOST_TRIES = 24  # of sizes
_UNFIT = (InputError, ExecutionError, ModelError, OutOfMemoryError)  # for these sizes, and maybe not for others

Shapes = Mapping[str, "int | Sequence[int]"]


def random_inputs(
    model: Model, *, batch: int | None = None, shapes: Shapes | None = None, seed: int = 0
) -> dict[str, Any]:
    """Made-up inputs for a model, by name: `model.run(weft.random_inputs(model, batch=8))`.

    Floats are standard normal, 8-bit integers go over their range, other integers are 0 or 1, strings are letters.
    Optional inputs, and those that have a default, are left out.

    batch: the size of the first dim of all inputs.
    shapes: sizes of dynamic dims, or whole shapes of inputs, by name: {"sequence": 128}, {"x": (1, 3, 640, 640)}.
        Dims that are not given get usual sizes for which the model works; where there is a choice, it is run to see.
    seed: the same seed gives the same data.
    """
    from weft.runtime.model import Model

    if not isinstance(model, Model):
        hint = "load it first: weft.random_inputs(weft.load(path))"
        raise InputError(f"random_inputs takes a loaded model, not {shown(model)}", hint=hint)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed must be a whole number from 0 on, not {shown(seed)}", file=model.file)
    asked = whole_shapes(shapes, model.file)
    sizes, _ = bind_shapes(model.inputs, asked, model.file)
    if batch is not None:
        sizes = {**_batch_sizes(model, whole_number(batch, "batch", model.file)), **sizes}
    exact = {name: shape for name, shape in asked.items() if not isinstance(shape, int)}
    try:
        return generate_inputs(model.inputs, fitting_sizes(model, sizes, seed, exact), seed, exact)
    except InputError as error:
        raise error.at(file=model.file) from error.__cause__


def fitting_sizes(
    model: Model, given: Mapping[str, int], seed: int = 0, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, int]:
    """Sizes of all dynamic dims of the inputs: those given, and for the others usual ones for which the model works.

    Where there is a choice it is run to see; where it runs for none of those that are tried, they are the likeliest.
    `shapes` are those of inputs that have one of their own.
    """
    program = model.session().whole.program
    if given.keys() >= dynamic_dims(model.inputs).keys():
        return dict(given)
    fixed = {**_fixed_sizes(model.inputs, program.inputs), **given}
    candidates = list(islice(_candidates(model.inputs, program.guards, fixed), MOST_TRIES))
    candidates.sort(key=lambda sizes: _breaks(program.guards, sizes))
    for sizes in candidates:
        try:
            model.run(generate_inputs(model.inputs, sizes, seed, shapes))
            return sizes
        except _UNFIT:
            continue
    return candidates[0]


def given_or_random(
    model: Model, inputs: Mapping[str, Any] | None, batch: int | None, shapes: Shapes | None, seed: int
) -> Mapping[str, Any]:
    """Inputs that a caller has, or random ones of the sizes that he states."""
    if inputs is None:
        return random_inputs(model, batch=batch, shapes=shapes, seed=seed)
    if batch is not None or shapes is not None:
        problem = "sizes are stated for inputs that are given"
        raise InputError(problem, file=model.file, hint="leave out batch and shapes, or leave out the inputs")
    return inputs


def _fixed_sizes(specs: Sequence[TensorSpec], inputs: Sequence[Value]) -> dict[str, int]:
    """The sizes that a program was compiled for, where that is for no others."""
    types = {value.name: value.type for value in inputs}
    found: dict[str, int] = {}
    for spec in specs:
        type = types.get(spec.name)
        pairs = zip(spec.shape or (), (type.shape or ()) if isinstance(type, TensorType) else ())
        found.update((dim, size) for dim, size in pairs if isinstance(dim, str) and isinstance(size, int))
    return found


def _batch_sizes(model: Model, batch: int) -> dict[str, int]:
    known = dynamic_dims(model.inputs)
    firsts = {spec.shape[0] for spec in model.inputs if spec.shape}
    found = {dim: batch for dim in firsts if isinstance(dim, str) and dim in known}
    if not found and firsts != {batch}:
        fixed = ", ".join(sorted(map(str, firsts))) or "not there"
        problem = f"the batch cannot be {batch}: the first dim of the inputs is {fixed} in the file"
        raise InputError(problem, file=model.file, hint="leave it out, or write the file with a dynamic batch")
    return found


def _breaks(guards: Sequence[Guard], sizes: Mapping[str, int]) -> bool:
    """Whether these sizes are not among those that the model was compiled for at once."""
    try:
        check_guards(guards, sizes)
    except (GuardError, ArithmeticError):
        return True
    return False


def _candidates(
    inputs: Sequence[TensorSpec], guards: Sequence[Guard], given: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Sizes of all dynamic dims, the likeliest first; then some in which one of the dims is a batch without a name."""
    yield from usual_sizes(inputs, guards, given)
    inner = [name for name, (_, axis) in dynamic_dims(inputs).items() if axis > 0 and name not in given]
    for sizes in islice(usual_sizes(inputs, guards, given), 1, 4) if len(inner) > 1 else ():
        for name in inner:
            yield {**sizes, name: 1}
