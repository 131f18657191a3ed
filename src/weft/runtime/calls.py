"""What a call of a model brings beside plain inputs: arguments in order, arrays for results, a watch, a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, RunCancelledError, RunTimeoutError, WeftError, shown
from weft.interrupts import Cancellation, watched
from weft.ir.specs import TensorSpec
from weft.ir.tensors import DeviceTensor
from weft.quantities import few
from weft.runtime.arguments import seconds_to_run
from weft.runtime.named import Outputs
from weft.runtime.preallocated import Destinations, destinations, separate_arrays
from weft.runtime.session import Session

if TYPE_CHECKING:
    from weft.runtime.model import Model

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


def run_into(model: Model, arguments: tuple[Any, ...], into: Mapping[str, Any]) -> dict[str, Any]:
    """A run with arrays for its outputs; `arguments` are those of `run`, up to `into`.

    A run under a watch works on arrays of its own: the caller may go before it, and then use his again.
    """
    inputs, outputs, keep, stream, timeout, cancel = arguments
    if outputs is None and keep is False and stream is None and timeout is None and cancel is None:
        results = _results_in_place(model, inputs, into)
        if results is not None:
            return results
    places = places_of(model, outputs, keep, into)
    results = places.fill(model.run(inputs, outputs, places.kept or False, stream, timeout, cancel))
    if places.tensors and stream is not None:
        model.session().driver.lead(stream)
    return results


def _results_in_place(model: Model, inputs: Any, into: Any) -> dict[str, Any] | None:
    """A run that has its outputs where the caller wants them; None where it did not come to that."""
    session = model.session()
    arrays = session.bind.plain(inputs) if type(inputs) is type(into) is dict else None
    if arrays is None:
        return None
    names = [spec.name for spec in model.outputs]
    shortcut = session.shortcuts.get(tuple([array.shape for array in arrays]))
    offered = None if shortcut is None else separate_arrays(into, names, arrays, model.file)
    if shortcut is None or offered is None:
        return None
    try:
        results = shortcut(arrays, [offered.get(name) for name in names])
    except Exception:
        return None  # it is raised again, with what there is to say about it
    found = Outputs(zip(names, results))
    if any(found[name] is not array for name, array in offered.items()):
        return places_of(model, None, False, into).fill(found)
    found.update(into)
    return found


def places_of(
    model: Model, outputs: Sequence[str] | None, keep: bool | Sequence[str], into: Mapping[str, Any]
) -> Destinations:
    """Where the wanted outputs of a run go."""
    session = model.session()
    wanted = [spec.name for spec in model.outputs] if outputs is None else session.wanted(outputs)
    kept = () if keep is False else wanted if keep is True else session.wanted(keep, "keep")
    return destinations(into, wanted, kept, model.outputs, model.file, session.driver.adopt)


def run_on_stream(model: Model, session: Session, arguments: tuple[Any, ...], stream: int) -> dict[str, Any]:
    """A run between what a stream was given before and what it is given afterwards."""
    if not isinstance(stream, int):
        raise InputError(f"stream must be the number of a CUDA stream, not {shown(stream)}", file=model.file)
    session.driver.follow(stream)
    results = model.run(*arguments)
    session.driver.lead(stream)
    return results


def run_watched(
    model: Model, arguments: tuple[Any, ...], timeout: float | None, cancel: Cancellation | None
) -> dict[str, Any]:
    """A run that another thread, or a clock, may end."""
    seconds = checked_patience(timeout, cancel, model.file)
    try:
        return watched(model.run, *arguments, timeout=seconds, cancel=cancel)
    except (RunTimeoutError, RunCancelledError) as error:
        raise error.at(file=model.file) from None


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
