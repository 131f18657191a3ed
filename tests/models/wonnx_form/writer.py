"""Build the new model: nodes, constants, and the shape of every value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from models.wonnx_form.network import Array, Network, NoForm, Shape

OPSET = 13
IR_VERSION = 8
SMALL = 64  # elements
LARGEST_BUFFER = 128 << 20  # bytes; wonnx uses the default limits of the device


@dataclass(frozen=True, slots=True)
class Step:
    """A node of the network, with the names of its inputs in the new model."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    opset: int

    @property
    def output(self) -> str:
        if len(self.outputs) > 1:
            raise NoForm(f"{self.op} with {len(self.outputs)} outputs")
        return self.outputs[0]

    def input(self, position: int) -> str:
        """Return the name of an input, empty if omitted."""
        return self.inputs[position] if position < len(self.inputs) else ""


class Writer:
    """Collects nodes. Callers state the shape of each result; the checker verifies them at the end."""

    def __init__(self, network: Network) -> None:
        self.shapes = dict(network.shapes)
        self.plain_convolutions: set[str] = set()  # results of the kernel that ignores a fused LeakyRelu
        self._network = network
        self._constants = dict(network.constants)
        self._nodes: list[NodeProto] = []
        self._small: dict[tuple[str, Shape, bytes], str] = {}
        self._transposed: dict[tuple[str, Shape], str] = {}
        self._same: dict[str, str] = {}
        self._number = 0

    # -- values --------------------------------------------------------------------------------------------------------

    def name(self, value: str) -> str:
        """Return the name of a value in the new model."""
        return self._same.get(value, value)

    def constant_of(self, value: str) -> Array | None:
        return self._constants.get(value)

    def require_constant(self, value: str, what: str) -> Array:
        array = self.constant_of(value)
        if array is None:
            raise NoForm(f"{what} depends on data")
        return array

    def constant(self, array: Array) -> str:
        """Add a constant. Equal small ones are shared; large ones are not, because random weights may all be equal."""
        whole = np.ascontiguousarray(array).reshape(array.shape)
        key = (whole.dtype.str, whole.shape, whole.tobytes()) if whole.size <= SMALL else None
        name = self._small.get(key) if key else None
        if name is None:
            name = self._fresh("constant")
            self._constants[name] = whole
            self.shapes[name] = whole.shape
        if key:
            self._small[key] = name
        return name

    def scalar(self, number: float) -> str:
        return self.constant(np.array([number], np.float32))

    def _fresh(self, stem: str) -> str:
        self._number += 1
        return f"{stem}_for_wonnx_{self._number}"

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def emit(self, op: str, inputs: Sequence[str], shape: Sequence[int], output: str = "", **attributes: Any) -> str:
        """Add a node with one result, and return its name."""
        name = output or self._fresh(op)
        self.shapes[name] = tuple(shape)
        self._nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def emit_several(
        self, op: str, inputs: Sequence[str], output: str, others: Sequence[Sequence[int]], **attributes: Any
    ) -> list[str]:
        """Add a node whose first result is `output`; name the others, of these shapes, and return their names."""
        names = [self._fresh(op) for _ in others]
        self.shapes |= {name: tuple(shape) for name, shape in zip(names, others, strict=True)}
        self._nodes.append(helper.make_node(op, list(inputs), [output, *names], **attributes))
        return names

    def forward(self, value: str, output: str) -> str:
        """Define `output` as `value`, reshaped if necessary."""
        if self.shapes[value] == self.shapes[output] and output not in self._network.outputs:
            self._same[output] = value
            return value
        return self.reshape(value, self.shapes[output], output)

    def reshape(self, value: str, shape: Sequence[int], output: str = "") -> str:
        if not output and self.shapes[value] == tuple(shape):
            return value
        array = self.constant_of(value)
        if array is not None and not output:
            return self.constant(array.reshape(shape))
        return self.emit("Reshape", [value, self.constant(np.array(shape, np.int64))], shape, output)

    def transpose(self, value: str, order: Sequence[int], output: str = "") -> str:
        array = self.constant_of(value)
        if array is not None and not output:
            key = (value, tuple(order))
            if key not in self._transposed:
                self._transposed[key] = self.constant(array.transpose(order))
            return self._transposed[key]
        shape = [self.shapes[value][axis] for axis in order]
        return self.emit("Transpose", [value], shape, output, perm=list(order))

    def pair(self, op: str, left: str, right: str, output: str = "") -> str:
        """Add an elementwise op of two values that broadcast."""
        shape = np.broadcast_shapes(self.shapes[left], self.shapes[right])
        return self.emit(op, [left, right], shape, output)

    # -- the model -----------------------------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        outputs = {name for node in self._nodes for name in node.output}
        used = {name for node in self._nodes for name in node.input if name and name not in outputs}
        for name in [*outputs, *used]:
            if math.prod(self.shapes[name]) * 4 > LARGEST_BUFFER:
                raise NoForm(f"{name!r} is larger than wonnx's buffers")
            if 0 in self.shapes[name]:
                raise NoForm(f"{name!r} is empty")
        graph = helper.make_graph(
            self._nodes,
            "wonnx_form",
            [self._info(name) for name in self._network.inputs if name in used],
            [self._info(name) for name in self._network.outputs],
            [numpy_helper.from_array(self._constants[name], name) for name in sorted(used & self._constants.keys())],
            value_info=[self._info(name) for name in sorted(outputs.difference(self._network.outputs))],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return model

    def _info(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name])


Form = Callable[[Writer, Step], object]
"""Writes the nodes of a step; the last computes its output."""
