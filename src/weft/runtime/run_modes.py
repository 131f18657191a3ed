"""Runs with options: positional inputs, preallocated outputs, a timeout or cancellation, a CUDA stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, RunCancelledError, RunTimeoutError, WeftError, short_repr
from weft.interrupts import Cancellation, run_watched
from weft.ir.specs import TensorSpec
from weft.ir.tensors import DeviceTensor
from weft.quantities import join_few
from weft.runtime.arguments import seconds_to_run
from weft.runtime.named_values import Outputs
from weft.runtime.preallocated import Destinations, check_destinations, separate_arrays
from weft.runtime.session import Session

if TYPE_CHECKING:
    from weft.runtime.model import Model
    from weft.runtime.state import State

OPTIONS = {
    "outputs": None,
    "keep": None,
    "stream": None,
    "timeout": None,
    "cancel": None,
    "into": None,
    "state": None,
}.keys()
"""The options of `Model.run`."""


def inputs_by_name(
    arguments: Sequence[Any], keywords: Mapping[str, Any], specs: Sequence[TensorSpec], names: Sequence[str], file: str
) -> dict[str, Any]:
    """Name the inputs of a call with arrays by position or name; `names` are those of the specs."""
    if len(arguments) > len(specs):
        problem = f"{len(arguments)} inputs for a model that takes {len(specs)}"
        raise InputError(problem, file=file, hint=f"it takes {join_few(map(str, specs), 8) or 'none'}")
    if any(type(content) is dict and spec.element is not None for content, spec in zip(arguments, specs)):
        from weft.runtime.suggestions import dict_as_argument

        raise dict_as_argument(names, file)
    if not keywords.keys().isdisjoint(OPTIONS) and not keywords.keys() <= set(names):
        from weft.runtime.suggestions import run_option_in_call

        raise run_option_in_call(next(name for name in keywords if name in OPTIONS), names, file)
    inputs = dict(zip(names, arguments))
    for name, content in keywords.items():
        if name in inputs:
            raise InputError(f"input {name!r} is given twice", file=file)
        inputs[name] = content
    return inputs


def run_into(
    model: Model, arguments: tuple[Any, ...], into: Mapping[str, Any], state: State | None = None
) -> dict[str, Any]:
    """Run with arrays for the outputs; `arguments` are those of `run` before `into`.

    A run with a timeout or cancellation computes into arrays of its own: the caller may return first and reuse these.
    """
    inputs, outputs, keep, stream, timeout, cancel = arguments
    if outputs is None and keep is False and stream is None and timeout is None and cancel is None:
        results = _run_in_place(model, inputs, into)
        if results is not None:
            return results
    destinations = find_destinations(model, outputs, keep, into)
    keep = destinations.keep_names or False
    results = destinations.fill(model.run(inputs, outputs, keep, stream, timeout, cancel, state=state))
    if destinations.tensors and stream is not None:
        model.session().driver.lead(stream)
    return results


def _run_in_place(model: Model, inputs: Any, into: Any) -> dict[str, Any] | None:
    """Run the shortcut with the caller's output arrays; None if that is not possible."""
    session = model.session()
    arrays = session.bind.plain(inputs) if type(inputs) is type(into) is dict else None
    if arrays is None:
        return None
    names = [spec.name for spec in model.outputs]
    shortcut = session.shortcuts.get(tuple([array.shape for array in arrays]))
    arrays_by_name = None if shortcut is None else separate_arrays(into, names, arrays, model.file)
    if shortcut is None or arrays_by_name is None:
        return None
    try:
        results = shortcut(arrays, [arrays_by_name.get(name) for name in names])
    except Exception:
        return None  # the full path raises it again, with details
    outputs = Outputs(zip(names, results))
    if any(outputs[name] is not array for name, array in arrays_by_name.items()):
        return find_destinations(model, None, False, into).fill(outputs)
    outputs.update(into)
    return outputs


def find_destinations(
    model: Model, outputs: Sequence[str] | None, keep: bool | Sequence[str], into: Mapping[str, Any]
) -> Destinations:
    """Check `into` and return where each output goes."""
    session = model.session()
    names = [spec.name for spec in model.outputs] if outputs is None else session.check_names(outputs)
    keep_names = () if keep is False else names if keep is True else session.check_names(keep, "keep")
    return check_destinations(into, names, keep_names, model.outputs, model.file, session.driver.adopt)


def run_on_stream(
    model: Model, session: Session, arguments: tuple[Any, ...], stream: int, state: State | None = None
) -> dict[str, Any]:
    """Run after the work on a stream so far, and order later work on it after the run."""
    if not isinstance(stream, int):
        raise InputError(
            f"stream must be the handle of a CUDA stream as a number, not {short_repr(stream)}", file=model.file
        )
    session.driver.follow(stream)
    feeds, outputs, keep = arguments
    results = model.run(feeds, outputs, keep, state=state)
    session.driver.lead(stream)
    return results


def run_with_limits(
    model: Model,
    arguments: tuple[Any, ...],
    timeout: float | None,
    cancel: Cancellation | None,
    state: State | None = None,
) -> dict[str, Any]:
    """Run with a timeout or a cancellation."""
    seconds = validate_timeout(timeout, cancel, model.file)
    try:
        return run_watched(partial(model.run, state=state), *arguments, timeout=seconds, cancel=cancel)
    except (RunTimeoutError, RunCancelledError) as error:
        raise error.at(file=model.file) from None


def validate_timeout(timeout: float | None, cancel: Cancellation | None, file: str) -> float | None:
    """Return the seconds that a run may take; None for no limit."""
    if cancel is not None and not isinstance(cancel, Cancellation):
        raise InputError(f"cancel must be a weft.Cancellation, not {short_repr(cancel)}", file=file)
    return None if timeout is None else seconds_to_run(timeout, file)


def bring_to_host(inputs: Mapping[str, Any], devices: frozenset[str], file: str) -> dict[str, Any]:
    """Copy the inputs that are on these devices to the host."""
    feeds = {}
    for name, content in inputs.items():
        try:
            feeds[name] = _copy_from(devices, content)
        except WeftError as error:
            raise error.at(file=file, value=name) from error.__cause__
    return feeds


def _copy_from(devices: frozenset[str], content: Any) -> Any:
    if isinstance(content, (list, tuple)):
        return [_copy_from(devices, item) for item in content]
    return content.numpy() if isinstance(content, DeviceTensor) and content.device in devices else content
