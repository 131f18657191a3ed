"""onnx's backend interface, which onnx's test runner and other programs use, on top of weft.

onnx's names of devices ("CPU", "CUDA:1") mean weft's devices of the same name, if available. "CPU" always works: it
falls back to the last of weft's devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, shape_inference
from onnx.backend.base import Backend, BackendRep, namedtupledict

import weft
from weft.compat.positional import bind_inputs
from weft.errors import DeviceError, InputError, UnsupportedModelError

_LOAD_OPTIONS = ("threads", "precision", "cache")
_CPU = "CPU"

OutputInfo = Sequence[tuple[Any, tuple[int, ...]]]


class WeftBackendRep(BackendRep):
    """A loaded model with positional inputs."""

    def __init__(self, proto: onnx.ModelProto, model: Any) -> None:
        self._graph = proto.graph
        self._model = model
        self._names = [output.name for output in proto.graph.output]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ARG002 - onnx's signature
        """Run on a list of inputs, a dict by name, or a single array. Return a tuple that can be indexed by name."""
        if isinstance(inputs, Mapping):
            named = dict(inputs)
        else:
            named = bind_inputs(self._graph, inputs if isinstance(inputs, (list, tuple)) else [inputs])
        results = self._model.run(named)
        return namedtupledict("Outputs", self._names)(*(results[name] for name in self._names))


class WeftBackend(Backend):
    """onnx's backend interface on top of `weft.load`."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = _CPU, **kwargs: Any) -> bool:
        """Whether weft supports the model."""
        try:
            cls.prepare(model, device, **kwargs)
        except UnsupportedModelError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = _CPU, **kwargs: Any) -> WeftBackendRep:
        """Load a model. Keywords that are options of `weft.load` are passed on; others are ignored."""
        options = {name: kwargs[name] for name in _LOAD_OPTIONS if name in kwargs}
        return WeftBackendRep(model, weft.load(model, device=_device_name(device), **options))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = _CPU, **kwargs: Any) -> tuple[Any, ...]:
        """Load a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = _CPU,
        outputs_info: OutputInfo | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node of the opset `opset_version` (default: the newest) ; `inputs` has no entry for omitted ones."""
        values = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs)
        model = _make_node_model(node, values, outputs_info, kwargs.get("opset_version"))
        return cls.run_model(model, values, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is available."""
        try:
            _device_name(device)
        except DeviceError:
            return False
        return True


def _device_name(device: str) -> str:
    if not isinstance(device, str):
        raise DeviceError(f"the device must be a string, not a {type(device).__name__}")
    kind, _, number = device.partition(":")
    available = [candidate.name for candidate in weft.devices() if candidate.available]
    if device.lower() in available:
        return device.lower()
    if number in ("", "0"):
        for name in (kind.lower(), f"{kind.lower()}:0"):
            if name in available:
                return name
        if kind == _CPU:
            return available[-1]
    raise DeviceError(f"no device {device!r}", hint="weft.devices() lists the available devices")


def _make_node_model(
    node: onnx.NodeProto, values: list[Any], outputs_info: OutputInfo | None, opset: int | None
) -> onnx.ModelProto:
    names = [name for name in node.input if name]
    if len(names) != len(values):
        raise InputError(
            f"{len(values)} inputs were given, the node takes {len(names)}", node=node.name or node.op_type
        )
    inputs = [helper.make_value_info(name, _infer_type(value)) for name, value in zip(names, values, strict=True)]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    if outputs_info is not None:
        for output, (dtype, shape) in zip(outputs, outputs_info, strict=True):
            element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            output.type.CopyFrom(helper.make_tensor_type_proto(element, shape))
    domain = "" if node.domain == "ai.onnx" else node.domain
    imports = [helper.make_opsetid(domain, opset or _newest_opset(domain))]
    graph = helper.make_graph([node], node.name or node.op_type, inputs, outputs)
    return shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports))


def _newest_opset(domain: str) -> int:
    versions = [schema.since_version for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == domain]
    return max(versions, default=1)


def _infer_type(value: Any) -> onnx.TypeProto:
    match value:
        case None:
            raise UnsupportedModelError(
                "an empty optional has no type", hint="make a model of the node that declares its input's type"
            )
        case list() | tuple():
            element = _infer_type(value[0]) if value else helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
            if element.HasField("tensor_type"):
                element.tensor_type.ClearField("shape")
            return helper.make_sequence_type_proto(element)
        case _:
            array = np.asarray(value)
            return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
