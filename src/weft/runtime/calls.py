"""What a call of a model brings beside plain inputs: arguments in order, arrays for results, tensors from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import InputError, WeftError, shown
from weft.interrupts import Cancellation
from weft.ir.specs import TensorSpec
from weft.ir.tensors import DeviceTensor
from weft.quantities import few
from weft.runtime.arguments import seconds_to_run
from weft.runtime.named import Outputs
from weft.runtime.preallocated import Destinations, destinations, separate_arrays
from weft.runtime.session import Session

OPTIONS = {"outputs": None, "keep": None, "stream": None, "timeout": None, "cancel": None, "into": None}.keys()
"""Of runs, beside the inputs."""


def inputs_by_name(
    arguments: Sequence[Any], keywords: Mapping[str, Any], specs: Sequence[TensorSpec], takes: Sequence[str], file: str
) -> dict[str, Any]:
    """The inputs of a call with arrays by position or name; `takes` are the names of the specs."""
    if len(arguments) > len(specs):
        problem = f"{len(arguments)} inputs for a model that takes {len(specs)}"
        raise InputError(problem, file=file, hint=f"it takes {few(map(str, specs), 8) or 'none'}")
    if any(type(given) is dict and spec.element is not None for given, spec in zip(arguments, specs)):
        from weft.runtime.habits import dict_in_order

        raise dict_in_order(takes, file)
    if not keywords.keys().isdisjoint(OPTIONS) and not keywords.keys() <= set(takes):
        from weft.runtime.habits import option_of_run

        raise option_of_run(next(name for name in keywords if name in OPTIONS), takes, file)
    inputs = dict(zip(takes, arguments))
    for name, content in keywords.items():
        if name in inputs:
            raise InputError(f"input {name!r} is given twice", file=file)
        inputs[name] = content
    return inputs


def results_in_place(
    session: Session, inputs: Any, into: Any, outputs: Sequence[TensorSpec], file: str
) -> dict[str, Any] | None:
    """A run that has its outputs where the caller wants them; None where it did not come to that."""
    arrays = session.bind.plain(inputs) if type(inputs) is type(into) is dict else None
    if arrays is None:
        return None
    names = [spec.name for spec in outputs]
    shortcut = session.shortcuts.get(tuple([array.shape for array in arrays]))
    offered = None if shortcut is None else separate_arrays(into, names, arrays, file)
    if shortcut is None or offered is None:
        return None
    try:
        results = shortcut(arrays, [offered.get(name) for name in names])
    except Exception:
        return None  # it is raised again, with what there is to say about it
    found = Outputs(zip(names, results))
    if any(found[name] is not array for name, array in offered.items()):
        return places_for(session, names, (), into, outputs, file).fill(found)
    found.update(into)
    return found


def places_for(
    session: Session,
    wanted: Sequence[str],
    kept: Sequence[str],
    into: Mapping[str, Any],
    outputs: Sequence[TensorSpec],
    file: str,
) -> Destinations:
    """Where the wanted outputs of a run go."""
    return destinations(into, wanted, kept, outputs, file, session.driver.adopt)


def checked_patience(timeout: float | None, cancel: Cancellation | None, file: str) -> float | None:
    """The seconds that a run may take; None: any number."""
    if cancel is not None and not isinstance(cancel, Cancellation):
        raise InputError(f"cancel must be a weft.Cancellation, not {shown(cancel)}", file=file)
    return None if timeout is None else seconds_to_run(timeout, file)


def brought(given: Mapping[str, Any], left: frozenset[str], file: str) -> dict[str, Any]:
    """Inputs, of which tensors on devices that the model has left are brought to the host."""
    found = {}
    for name, content in given.items():
        try:
            found[name] = _from_left(content, left)
        except WeftError as error:
            raise error.at(file=file, value=name) from error.__cause__
    return found


def _from_left(content: Any, left: frozenset[str]) -> Any:
    if isinstance(content, (list, tuple)):
        return [_from_left(item, left) for item in content]
    return content.numpy() if isinstance(content, DeviceTensor) and content.device in left else content
