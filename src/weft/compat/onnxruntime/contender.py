"""The real onnxruntime as a contender in comparisons of a model's outputs and intermediate values.

It loads the file at its default optimization level, with the requested values as additional outputs. A value that it
cannot return (a type that numpy lacks, a value inside a function) is `Unavailable`, with onnxruntime's message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper

from weft.compat.installation import is_installed
from weft.errors import ExecutionError, InputError
from weft.report.contenders import Content, NodeInputs, Unavailable, collect_available
from weft.report.isolation import isolated_name

PEER = "onnxruntime"
FATAL_ONLY = 4  # log severity


class OnnxruntimeContender:
    """A model in onnxruntime on the CPU."""

    def __init__(self, name: str, path: str, inputs: Mapping[str, Any]) -> None:
        if find_spec(PEER) is None:
            raise InputError(f"{PEER} is not installed", hint=f"pip install {PEER}, or leave it out of --devices")
        if is_installed():
            raise InputError(
                f"{PEER} means weft in this process: there is nothing to compare", hint="unset WEFT_COMPAT"
            )
        self.name = name
        self._path = path
        self._inputs = inputs
        self._proto = onnx.load(path, load_external_data=False)
        self._graph = self._proto.graph
        self._node_outputs = {output for node in self._graph.node for output in node.output if output}

    def outputs(self) -> dict[str, Any]:
        return self._run(self._proto, [output.name for output in self._graph.output], self._inputs)

    def values(self, names: Sequence[str]) -> dict[str, Content]:
        def run_part(part: Sequence[str]) -> dict[str, Any]:
            model = _copy_without_graph(self._proto)
            model.graph.CopyFrom(self._graph)
            declared = {output.name for output in self._graph.output}
            model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in part if name not in declared)
            return self._run(model, part, self._inputs)

        graph_inputs = {value.name for value in (*self._graph.input, *self._graph.initializer)}
        feeds = {name: self._inputs[name] for name in names if name in graph_inputs and name in self._inputs}
        return {**self._missing(names), **feeds, **collect_available(self._computed_names(names), run_part)}

    def run_isolated(self, names: Sequence[str], inputs: NodeInputs) -> dict[str, Content]:
        def run_part(part: Sequence[str]) -> dict[str, Any]:
            model, input_names = self._isolate_nodes(set(part), inputs)
            feeds = {name: inputs.values[name] for name in input_names}
            results = self._run(model, [isolated_name(name) for name in part], feeds)
            return {name: results[isolated_name(name)] for name in part}

        return {**self._missing(names), **collect_available(self._computed_names(names), run_part)}

    def _isolate_nodes(self, outputs: set[str], inputs: NodeInputs) -> tuple[onnx.ModelProto, list[str]]:
        """Return a model of the nodes of these outputs, each on its own, and its inputs (see `report.isolation`)."""
        model = _copy_without_graph(self._proto)
        graph = model.graph
        graph.name = self._graph.name
        operands: set[str] = set()
        for node in self._graph.node:
            if outputs.intersection(node.output):
                copy = graph.node.add()
                copy.CopyFrom(node)
                for index, name in enumerate(node.output):
                    copy.output[index] = name and isolated_name(name)
                operands |= _operand_names(node)
        input_names = sorted(operands.intersection(inputs.values))
        for name in input_names:
            array = inputs.values[name]
            element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(helper.make_tensor_value_info(name, element_type, array.shape))
        fixed = operands.intersection(inputs.fixed)
        graph.initializer.extend(numpy_helper.from_array(inputs.fixed[name], name) for name in sorted(fixed))
        others = operands.difference(input_names, fixed)
        graph.initializer.extend(tensor for tensor in self._graph.initializer if tensor.name in others)
        graph.sparse_initializer.extend(t for t in self._graph.sparse_initializer if t.values.name in others)
        graph.output.extend(onnx.ValueInfoProto(name=isolated_name(name)) for name in sorted(outputs))
        return model, input_names

    def _computed_names(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self._node_outputs]

    def _missing(self, names: Sequence[str]) -> dict[str, Content]:
        reason = f"{PEER} has no value of this name"
        return {
            name: Unavailable(reason) for name in names if name not in self._node_outputs and name not in self._inputs
        }

    def _run(self, model: onnx.ModelProto, names: Sequence[str], inputs: Mapping[str, Any]) -> dict[str, Any]:
        onnxruntime = import_module(PEER)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = FATAL_ONLY
        folder = str(Path(self._path).resolve().parent)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
            accepted = {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}
            feeds = {name: content for name, content in inputs.items() if name in accepted}
            return dict(zip(names, session.run(list(names), feeds)))
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise ExecutionError(f"{PEER}: {' '.join(str(error).split())}", file=self._path) from error


def _copy_without_graph(proto: onnx.ModelProto) -> onnx.ModelProto:
    model = onnx.ModelProto(ir_version=proto.ir_version)
    model.opset_import.extend(proto.opset_import)
    model.functions.extend(proto.functions)
    return model


def _operand_names(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node and its subgraphs read; names that subgraphs define themselves may be among them."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                names |= _operand_names(inner)
            names.update(output.name for output in graph.output)
    return names
