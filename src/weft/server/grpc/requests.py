"""Requests and responses of inference as messages: tensors as bytes, or as lists of elements."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from weft.server.grpc.messages import load_inference_messages
from weft.server.http import HttpError
from weft.server.served_model import ServedModel
from weft.server.settings import ServerSettings
from weft.server.v2.datatypes import NUMPY_TYPES, Shape, check_shape, find_dtype, from_bytes, to_bytes
from weft.server.v2.inference import (
    InferenceRequest,
    OutputRequest,
    list_outputs,
    read_classes,
    read_sequence,
    read_timeout,
    refuse_shared_memory,
)
from weft.server.v2.interface import ModelInterface, select_outputs

MOST_OUTPUT = (1 << 31) - (1 << 20)  # bytes: a message of protobuf has less than 2 GiB
CONTENTS = {  # the fields of InferTensorContents that datatypes use
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def read_request(message: Any, interface: ModelInterface) -> InferenceRequest:
    """Read a ModelInferRequest: its inputs are all bytes in `raw_input_contents`, or all lists in `contents`."""
    for tensor in message.inputs:
        refuse_shared_memory(tensor.parameters, f"input {tensor.name!r}")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise HttpError(
            400, f"raw_input_contents has {len(raw)} tensors, and the request has {len(message.inputs)} inputs"
        )
    arrays: dict[str, Any] = {}
    for index, tensor in enumerate(message.inputs):
        name = tensor.name
        if name in arrays:
            raise HttpError(400, f"input {name!r} comes twice")
        find_dtype(tensor.datatype, name)
        shape = check_shape(list(tensor.shape), name)
        info = interface.find_input(name, tensor.datatype, shape)
        if not raw:
            arrays[name] = _read_contents(tensor.contents, info.datatype, shape, name)
        elif tensor.HasField("contents"):
            problem = "the request has raw_input_contents, so that no input may have contents"
            raise HttpError(400, f"input {name!r}: {problem}")
        else:
            arrays[name] = from_bytes(raw[index], info.datatype, shape, name)
    parameters = read_parameters(message.parameters, "the request")
    outputs = [_read_output(output) for output in message.outputs]
    return InferenceRequest(
        arrays,
        select_outputs(interface, [each.name for each in outputs]),
        outputs,
        message.id,
        is_binary=True,
        timeout=read_timeout(parameters),
        sequence=read_sequence(parameters),
        parameters=parameters,
    )


def read_parameters(entries: Any, place: str) -> Mapping[str, Any]:
    """Return the parameters of a request or an output by name."""
    parameters = {}
    for name, entry in entries.items():
        choice = entry.WhichOneof("parameter_choice")
        if choice is None:
            raise HttpError(400, f"{place}: parameter {name!r} has no value")
        parameters[name] = getattr(entry, choice)
    return parameters


def _read_output(output: Any) -> OutputRequest:
    parameters = read_parameters(output.parameters, f"output {output.name!r}")
    refuse_shared_memory(parameters, f"output {output.name!r}")
    classes = read_classes(parameters.get("classification", 0), output.name)
    return OutputRequest(output.name, is_binary=True, classes=classes)


def _read_contents(contents: Any, datatype: str, shape: Shape, name: str) -> np.ndarray[Any, Any]:
    """Read a tensor from the list for its datatype; the other lists must be empty."""
    place = f"input {name!r}, {datatype}{list(shape)}"
    field = CONTENTS.get(datatype)
    if field is None:
        raise HttpError(400, f"{place}: contents has no list for {datatype}; send the tensor in raw_input_contents")
    others = [descriptor.name for descriptor, _ in contents.ListFields() if descriptor.name != field]
    if others:
        raise HttpError(400, f"{place}: its elements belong in {field}, and the request has some in {others[0]}")
    elements = getattr(contents, field)
    count = prod(shape)
    if len(elements) != count:
        raise HttpError(400, f"{place}: needs {count} elements, and {field} has {len(elements)}")
    dtype = NUMPY_TYPES[datatype]
    if datatype == "BYTES":
        array = np.empty(count, object)
        array[:] = [text.decode("utf-8", "surrogateescape") for text in elements]
        return array.reshape(shape)
    if dtype.itemsize < 4 and dtype.kind in "iu":
        array = np.fromiter(elements, np.int64, count)
        limits = np.iinfo(dtype)
        wrong = array[(array < limits.min) | (array > limits.max)]
        if wrong.size:
            raise HttpError(400, f"{place}: {wrong[0]} is out of range")
        return array.astype(dtype).reshape(shape)
    return np.fromiter(elements, dtype, count).reshape(shape)


def render_response(served: ServedModel, request: InferenceRequest, results: Mapping[str, Any]) -> Any:
    """Make the ModelInferResponse with the outputs that a request named, or all, as bytes."""
    message = load_inference_messages()["ModelInferResponse"](
        model_name=served.name, model_version=served.version, id=request.id
    )
    size = 0
    for output, datatype, array in list_outputs(request, results, served.interface):
        content = to_bytes(array)
        size += len(content)
        if size > MOST_OUTPUT:
            raise HttpError(
                413, "the outputs are larger than a message of gRPC may be, 2 GiB; request fewer, or use HTTP"
            )
        message.outputs.add(name=output.name, datatype=datatype, shape=array.shape)
        message.raw_output_contents.append(bytes(content))
    return message


def limit_time(request: InferenceRequest, context: Any, settings: ServerSettings) -> None:
    """Let a request take no longer than its call may."""
    left = context.time_remaining()
    if left is None:
        return
    timeout = settings.timeout if request.timeout is None else request.timeout
    request.timeout = left if timeout is None else min(left, timeout)
