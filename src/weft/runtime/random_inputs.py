"""`weft.random_inputs`: random data that a model accepts, to time it or to try it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from weft.backends.reference.sizes import GuardError, check_guards
from weft.errors import ExecutionError, InputError, ModelError, OutOfMemoryError, short_repr
from weft.ir.specs import TensorSpec
from weft.plan.usual_sizes import derive_sizes, dynamic_dims, usual_sizes
from weft.runtime.arguments import whole_number, whole_shapes
from weft.runtime.generated_inputs import generate_inputs
from weft.runtime.memory import bind_shapes

if TYPE_CHECKING:
    from weft.ir.program import Guard, Value
    from weft.runtime.model import Model

MOST_TRIES = 24  # sets of sizes
_SIZE_ERRORS = (InputError, ExecutionError, ModelError, OutOfMemoryError)  # which other sizes may not have

Shapes = Mapping[str, "int | Sequence[int]"]


def random_inputs(
    model: Model, *, batch: int | None = None, shapes: Shapes | None = None, seed: int = 0
) -> dict[str, Any]:
    """Generate random inputs for a model, by name: `model.run(weft.random_inputs(model, batch=8))`.

    Floats are standard normal, 8-bit integers cover their range, other integers are 0 or 1, strings are letters.
    Optional inputs, and those that have a default, are left out.

    batch: the size of the first dim of all inputs.
    shapes: sizes of dynamic dims, or whole shapes of inputs, by name: {"sequence": 128}, {"x": (1, 3, 640, 640)}.
        Other dims get typical sizes that the model accepts; it may be run to find those.
    seed: the same seed gives the same data.
    """
    from weft.runtime.model import Model

    if not isinstance(model, Model):
        hint = "load it first: weft.random_inputs(weft.load(path))"
        raise InputError(f"random_inputs takes a loaded model, not {short_repr(model)}", hint=hint)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed must be a whole number from 0 on, not {short_repr(seed)}", file=model.file)
    user_shapes = whole_shapes(shapes, model.file)
    sizes, _ = bind_shapes(model.inputs, user_shapes, model.file)
    if batch is not None:
        sizes = {**_batch_sizes(model, whole_number(batch, "batch", model.file)), **sizes}
    exact = {name: shape for name, shape in user_shapes.items() if not isinstance(shape, int)}
    try:
        return generate_inputs(model.inputs, fitting_sizes(model, sizes, seed, exact), seed, exact)
    except InputError as error:
        raise error.at(file=model.file) from error.__cause__


def fitting_sizes(
    model: Model, user_sizes: Mapping[str, int], seed: int = 0, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, int]:
    """Complete the sizes of dynamic dims with typical ones that the model accepts.

    The model is run with each candidate until one works; if none does, the likeliest is returned. `shapes` override the
    shapes of single inputs.
    """
    program = model.session().whole.program
    if user_sizes.keys() >= dynamic_dims(model.inputs).keys():
        return dict(user_sizes)
    fixed = {**_fixed_sizes(model.inputs, program.inputs), **user_sizes}
    candidates = list(islice(_candidates(model.inputs, program.guards, fixed), MOST_TRIES))
    candidates.sort(key=lambda sizes: _breaks_guard(program.guards, sizes))
    for sizes in candidates:
        try:
            model.run(generate_inputs(model.inputs, sizes, seed, shapes))
            return sizes
        except _SIZE_ERRORS:
            continue
    return candidates[0]


def inputs_or_random(
    model: Model, inputs: Mapping[str, Any] | None, batch: int | None, shapes: Shapes | None, seed: int
) -> Mapping[str, Any]:
    """Return the inputs, or random ones if there are none."""
    if inputs is None:
        return random_inputs(model, batch=batch, shapes=shapes, seed=seed)
    if batch is not None or shapes is not None:
        problem = "batch and shapes apply only to random inputs, but inputs were passed"
        raise InputError(problem, file=model.file, hint="leave out batch and shapes, or leave out the inputs")
    return inputs


def _fixed_sizes(specs: Sequence[TensorSpec], inputs: Sequence[Value]) -> dict[str, int]:
    """Return the sizes of dims that a saved program fixes."""
    shapes = {value.name: value.known_shape for value in inputs}
    fixed: dict[str, int] = {}
    for spec in specs:
        pairs = zip(spec.shape or (), shapes.get(spec.name) or ())
        fixed.update((dim, size) for dim, size in pairs if isinstance(dim, str) and isinstance(size, int))
    return fixed


def _batch_sizes(model: Model, batch: int) -> dict[str, int]:
    dynamic = dynamic_dims(model.inputs)
    firsts = {spec.shape[0] for spec in model.inputs if spec.shape}
    sizes = {dim: batch for dim in firsts if isinstance(dim, str) and dim in dynamic}
    if not sizes and firsts != {batch}:
        fixed = ", ".join(sorted(map(str, firsts))) or "missing"
        problem = f"the batch cannot be {batch}: the first dim of the inputs is {fixed} in the file"
        raise InputError(problem, file=model.file, hint="leave it out, or export the model with a dynamic batch")
    return sizes


def _breaks_guard(guards: Sequence[Guard], sizes: Mapping[str, int]) -> bool:
    """Whether sizes break a guard of the compiled program."""
    try:
        check_guards(guards, sizes)
    except (GuardError, ArithmeticError):
        return True
    return False


def _candidates(
    inputs: Sequence[TensorSpec], guards: Sequence[Guard], user_sizes: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Yield sizes of all dynamic dims, the likeliest first; then some in which an unnamed dim is a batch of 1."""
    yield from usual_sizes(inputs, guards, user_sizes)
    inner = [name for name, (_, axis) in dynamic_dims(inputs).items() if axis > 0 and name not in user_sizes]
    for sizes in islice(usual_sizes(inputs, guards, user_sizes), 1, 4) if len(inner) > 1 else ():
        for name in inner:
            yield derive_sizes({**sizes, name: 1}, {**user_sizes, name: 1})
