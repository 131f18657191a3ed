"""Requests and responses of inference over HTTP: JSON, with tensors as JSON or as bytes behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from weft.errors import short_repr
from weft.server.http import HttpError, Response, json_kind, json_response, parse_json
from weft.server.v2.datatypes import NUMPY_TYPES, check_shape, find_dtype, from_bytes, from_json, to_bytes, to_json
from weft.server.v2.inference import (
    InferenceRequest,
    OutputRequest,
    list_outputs,
    read_classes,
    read_flag,
    read_sequence,
    read_timeout,
    refuse_shared_memory,
)
from weft.server.v2.interface import ModelInterface, TensorInfo, select_outputs

LENGTH_HEADER = b"inference-header-content-length"
OCTETS_TYPE = (b"content-type", b"application/octet-stream")


def read_request(body: bytes | bytearray, length: str, interface: ModelInterface) -> InferenceRequest:
    """Read the body of a request; `length` is the header that says where its JSON ends."""
    if not length:
        return _read_json(parse_json(body), memoryview(b""), interface)
    size = int(length) if length.isascii() and length.isdecimal() else -1
    if not 0 <= size <= len(body):
        problem = f"Inference-Header-Content-Length is {short_repr(length)}, and the body has {len(body)} bytes"
        raise HttpError(400, problem)
    view = memoryview(body)
    if size == 0:
        return _read_raw(view, interface)
    return _read_json(parse_json(view[:size]), view[size:], interface)


def _read_json(content: Any, tail: memoryview, interface: ModelInterface) -> InferenceRequest:
    if not isinstance(content, dict):
        raise HttpError(400, f"the body must be a JSON object, not {json_kind(content)}")
    arrays: dict[str, Any] = {}
    position = 0
    for entry in _list_of_objects(content, "inputs", is_required=True):
        name, datatype = entry.get("name"), entry.get("datatype")
        if not isinstance(name, str):
            raise HttpError(400, f"the name of an input must be a string, not {json_kind(name)}")
        if name in arrays:
            raise HttpError(400, f"input {name!r} comes twice")
        find_dtype(datatype, name)
        shape = check_shape(entry.get("shape"), name)
        info = interface.find_input(name, datatype, shape)
        parameters = _parameters(entry, f"input {name!r}")
        refuse_shared_memory(parameters, f"input {name!r}")
        size = parameters.get("binary_data_size")
        if size is None:
            if "data" not in entry:
                raise HttpError(400, f"input {name!r} has no data")
            arrays[name] = from_json(entry["data"], info.datatype, shape, name)
            continue
        if type(size) is not int or not 0 <= size <= len(tail) - position:
            problem = f"binary_data_size is {short_repr(size)}, and {len(tail) - position} bytes are left"
            raise HttpError(400, f"input {name!r}: {problem}")
        arrays[name] = from_bytes(tail[position : position + size], info.datatype, shape, name)
        position += size
    if position != len(tail):
        raise HttpError(400, f"{len(tail) - position} bytes follow the data of the last input")
    parameters = _parameters(content, "the request")
    is_binary = read_flag(parameters, "binary_data_output", "the request")
    outputs = [_read_output(entry, is_binary) for entry in _list_of_objects(content, "outputs")]
    identifier = content.get("id", "")
    if not isinstance(identifier, str):
        raise HttpError(400, f"id must be a string, not {json_kind(identifier)}")
    return InferenceRequest(
        arrays,
        select_outputs(interface, [each.name for each in outputs]),
        outputs,
        identifier,
        is_binary,
        read_timeout(parameters),
        read_sequence(parameters),
        parameters,
    )


def _read_raw(content: memoryview, interface: ModelInterface) -> InferenceRequest:
    """Read a body that is the bytes of the only input: a batch of one, with at most one size to find out."""
    required = [info for info in interface.inputs.values() if not info.is_optional]
    if len(required) != 1:
        raise HttpError(400, f"a raw body is for models with one input, and this one has {len(required)}")
    info = required[0]
    shape = _find_raw_shape(info, len(content))
    array = from_bytes(content, info.datatype, shape, info.name)
    return InferenceRequest({info.name: array}, interface.default_outputs, is_binary=True)


def _find_raw_shape(info: TensorInfo, size: int) -> tuple[int, ...]:
    dynamic = [] if info.shape is None else [axis for axis, dim in enumerate(info.shape) if dim is None]
    if info.shape is None or len(dynamic) > 2 or (len(dynamic) == 2 and dynamic[0] != 0):
        raise HttpError(400, f"a raw body does not tell the shape of input {info.name!r}, {info.wire_shape}")
    shape = [1 if dim is None else dim for dim in info.shape]
    row = prod(shape) * NUMPY_TYPES[info.datatype].itemsize
    if dynamic and row and info.datatype != "BYTES":
        shape[dynamic[-1]] = size // row
    return tuple(shape)


def _list_of_objects(content: Mapping[str, Any], name: str, is_required: bool = False) -> list[dict[str, Any]]:
    entries = content.get(name)
    if entries is None and not is_required:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise HttpError(400, f"{name} must be a list of objects")
    return entries


def _parameters(entry: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise HttpError(400, f"{place}: parameters must be an object, not {json_kind(parameters)}")
    return parameters


def _read_output(entry: Mapping[str, Any], is_binary: bool) -> OutputRequest:
    name = entry.get("name")
    if not isinstance(name, str):
        raise HttpError(400, f"the name of an output must be a string, not {json_kind(name)}")
    place = f"output {name!r}"
    parameters = _parameters(entry, place)
    refuse_shared_memory(parameters, place)
    return OutputRequest(
        name,
        read_flag(parameters, "binary_data", place, is_binary),
        read_classes(parameters.get("classification", 0), name),
    )


# -- responses -------------------------------------------------------------------------------------------------------


def render_response(
    name: str, version: str, request: InferenceRequest, results: Mapping[str, Any], interface: ModelInterface
) -> Response:
    """Write the outputs that a request named, or all, in the form that it asked for."""
    entries: list[dict[str, Any]] = []
    chunks: list[Any] = []
    for output, datatype, array in list_outputs(request, results, interface):
        entry: dict[str, Any] = {"name": output.name, "datatype": datatype, "shape": list(array.shape)}
        if output.is_binary:
            content = to_bytes(array)
            entry["parameters"] = {"binary_data_size": len(content)}
            chunks.append(content)
        else:
            entry["data"] = to_json(array, output.name)
        entries.append(entry)
    header: dict[str, Any] = {"model_name": name, "model_version": version}
    if request.id:
        header["id"] = request.id
    header["outputs"] = entries
    if not chunks:
        return json_response(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    headers = (OCTETS_TYPE, (LENGTH_HEADER, str(len(text)).encode()))
    return Response([text, *chunks], headers=headers)
