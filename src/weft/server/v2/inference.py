"""Requests of inference and their results, whether JSON or messages of gRPC carry them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.errors import short_repr
from weft.server.http import HttpError
from weft.server.sequences import SequenceStep
from weft.server.served_model import ServedModel
from weft.server.settings import ServerSettings
from weft.server.v2.classification import classify
from weft.server.v2.interface import ModelInterface
from weft.server.v2.text import TextRequest, generate, text_array

LARGEST_TIMEOUT = 1 << 53  # microseconds


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """An output that a request names: as bytes or as JSON, or the likeliest classes of it."""

    name: str
    is_binary: bool
    classes: int = 0


@dataclass(slots=True)
class InferenceRequest:
    """A request whose inputs fit the interface of a model.

    compute: the outputs to compute; None for all. outputs: those that the client named, in its order.
    """

    arrays: dict[str, Any]
    compute: tuple[str, ...] | None
    outputs: Sequence[OutputRequest] = ()
    id: str = ""
    is_binary: bool = False  # the outputs, unless they say so themselves
    timeout: float | None = None
    sequence: SequenceStep | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


def read_flag(parameters: Mapping[str, Any], name: str, place: str, default: bool = False) -> bool:
    """Return a parameter that is true or false."""
    flag = parameters.get(name, default)
    if not isinstance(flag, bool):
        raise HttpError(400, f"{place}: {name} must be true or false, not {short_repr(flag)}")
    return flag


def read_classes(count: Any, name: str) -> int:
    """Return how many classes of an output a request wants; 0 for the output itself."""
    if type(count) is not int or count < 0:
        raise HttpError(400, f"output {name!r}: classification must be a number of classes, not {short_repr(count)}")
    return count


def read_timeout(parameters: Mapping[str, Any]) -> float | None:
    """Return the seconds that a request may take; its parameter is in microseconds."""
    timeout = parameters.get("timeout")
    if timeout is None:
        return None
    if type(timeout) is not int or not 0 <= timeout < LARGEST_TIMEOUT:
        raise HttpError(400, f"timeout must be a number of microseconds, not {short_repr(timeout)}")
    return timeout / 1e6 or None


def read_sequence(parameters: Mapping[str, Any]) -> SequenceStep | None:
    """Return the sequence that a request continues; None if it belongs to none."""
    key = parameters.get("sequence_id", 0)
    if type(key) not in (int, str):
        raise HttpError(400, f"sequence_id must be a number or a string, not {short_repr(key)}")
    if key in (0, ""):
        return None
    starts = read_flag(parameters, "sequence_start", "the request")
    return SequenceStep(key, starts, read_flag(parameters, "sequence_end", "the request"))


def refuse_shared_memory(parameters: Mapping[str, Any], place: str) -> None:
    """Raise HttpError if a tensor is to be in shared memory."""
    if "shared_memory_region" in parameters:
        raise HttpError(400, f"{place}: shared memory is not offered; requests and responses carry the data")


def check_loading(settings: ServerSettings, model: str, parameters: Any) -> None:
    """Raise HttpError if a client may not load or unload a model, or not with these parameters."""
    if not settings.allow_loading:
        raise HttpError(403, "this server does not let clients load and unload models")
    if isinstance(parameters, Mapping) and any(name == "config" or name.startswith("file:") for name in parameters):
        raise HttpError(400, f"failed to load {model!r}: the files and the configuration of a model are the server's")


async def answer(served: ServedModel, request: InferenceRequest, settings: ServerSettings) -> Mapping[str, Any]:
    """Run a model, or generate a whole text; return the outputs by name."""
    timeout = settings.timeout if request.timeout is None else request.timeout
    if served.generator is not None:
        text = TextRequest(request.arrays, request.parameters)
        pieces = [piece async for piece in generate(served, text, settings.max_queue, timeout)]
        return {"text_output": text_array("".join(pieces))}
    if request.sequence is not None and served.sequences is None:
        raise HttpError(400, f"model {served.name!r} has no state: it takes no sequence_id")
    return await served.infer(request.arrays, request.compute, timeout, request.sequence)


def list_outputs(
    request: InferenceRequest, results: Mapping[str, Any], interface: ModelInterface
) -> Iterator[tuple[OutputRequest, str, np.ndarray[Any, Any]]]:
    """Iterate over the outputs that a request named, or all, with their datatypes and tensors."""
    for output in request.outputs or [
        OutputRequest(name, request.is_binary) for name in interface.outputs if name in results
    ]:
        array = np.asarray(results[output.name])
        if output.classes:
            yield output, "BYTES", classify(array, output.classes, output.name)
        else:
            yield output, interface.outputs[output.name].datatype, array
