"""The memory of a run that continues a state, and the state itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.errors import DeviceError, ExecutionError, InputError, OutOfMemoryError
from weft.ir import dims
from weft.ir.dim_evaluator import DimEvaluator
from weft.plan.usual_sizes import usual_sizes
from weft.runtime.arguments import whole_shapes
from weft.runtime.memory import Memory, bind_shapes, summarize
from weft.runtime.programs import UNFIT
from weft.runtime.session import Session
from weft.runtime.state import state_layout

if TYPE_CHECKING:
    from weft.backends.device import Executable
    from weft.ir.program import Guard, Value


def plan_stateful_run(
    session: Session,
    executable: Executable | None,
    shapes: Mapping[str, int | Sequence[int]] | None,
    lengths: Mapping[str, int],
    capacity: Mapping[str, int],
) -> Memory:
    """Compute the memory of a run with a state of these lengths, or of those in `shapes`, and of the state."""
    if executable is None:
        hint = "model.memory() without a state computes what such a run needs"
        raise DeviceError("this state is copied in every run, without a plan", file=session.file, hint=hint)
    layout, inputs = state_layout(executable), executable.program.inputs
    user_sizes = whole_shapes(shapes, session.file)
    own = {name: size for name, size in user_sizes.items() if name in lengths and isinstance(size, int)}
    others = {name: size for name, size in user_sizes.items() if name not in own}
    shown = [value for value in inputs if value.name not in {entry.name for entry in layout.inputs}]
    bound, _ = bind_shapes(shown, others, session.file)
    fixed = {name: size for name, size in capacity.items() if name not in lengths}
    first_error: Exception | None = None
    for sizes in _candidates(executable.program.guards, shown, {**fixed, **bound}, {**lengths, **own}):
        number = DimEvaluator(sizes)
        try:
            rooms = {
                room: capacity[entry.length] - number(after) for entry in layout.inputs for room, after in entry.rooms
            }
            if min(rooms.values(), default=0) < 0:
                raise ExecutionError(f"the capacity of the state is exceeded by {-min(rooms.values()):,}")
            rooms |= {f"{name}.capacity": capacity[name] for name in lengths}
            plan = executable.plan({**sizes, **rooms})
        except (*UNFIT, ExecutionError) as error:
            first_error = first_error or error
            continue
        if plan is None:
            raise DeviceError(f"device {session.device!r} has no memory plan", file=session.file)
        memory = summarize(plan, sizes, [name for name in sizes if name not in {**bound, **fixed, **lengths}])
        number = DimEvaluator({**sizes, **rooms})
        state_bytes = sum(number(value.nbytes) for value in inputs if value not in shown)
        return replace(memory, state=state_bytes, peak=memory.peak + state_bytes, inputs=memory.inputs - state_bytes)
    hint = "pass sizes that the model accepts"
    raise InputError(f"there is no plan for these shapes: {first_error}", file=session.file, hint=hint)


def check_limit(executable: Executable, sizes: Mapping[str, int], state_bytes: int, limit: int, file: str) -> None:
    """Raise OutOfMemoryError if a run and the state do not fit into the memory limit together."""
    plan = executable.plan(sizes)
    needed = state_bytes + (0 if plan is None else summarize(plan, sizes, ()).peak)
    if needed > limit:
        problem = (
            f"a run for these sizes needs {needed:,} bytes, more than the memory_limit of {limit:,}: "
            f"{state_bytes:,} of them hold the state"
        )
        raise OutOfMemoryError(problem, file=file, hint="raise the limit, or use a smaller capacity")


def _candidates(
    guards: Sequence[Guard], shown: Sequence[Value], user_sizes: Mapping[str, int], lengths: Mapping[str, int]
) -> list[dict[str, int]]:
    """List sizes of all dims; those that guards relate to others follow them."""
    fixed = {**user_sizes, **lengths}
    candidates = []
    for usual in usual_sizes(shown, guards, user_sizes):
        sizes = {**usual, **lengths}
        for guard in guards:
            difference = guard.left - guard.right
            for symbol in dims.symbols(difference):
                if symbol.name in fixed:
                    continue
                atom = dims.from_atom(symbol)
                solved = [
                    side
                    for side in (atom - difference, atom + difference)
                    if dims.symbol_names(side) <= sizes.keys() - {symbol.name}
                ]
                if solved and dims.evaluate(solved[0], sizes) > 0:
                    sizes[symbol.name] = dims.evaluate(solved[0], sizes)
                    break
        candidates.append(sizes)
    return candidates
