"""onnxruntime as a contender in comparisons: the outputs of a model, and inner values of it as added outputs.

The file is given to it as it is, at its usual level of optimisation, with more outputs. What it cannot give as an
output (a type that numpy lacks, a value of a function) is `Unavailable`, with its own words.
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
from weft.report.contenders import Content, Known, Unavailable, all_possible
from weft.report.isolation import alone

PEER = "onnxruntime"
QUIET = 4  # the least that it says


class InOnnxruntime:
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
        self._made = {output for node in self._graph.node for output in node.output if output}

    def outputs(self) -> dict[str, Any]:
        return self._run(self._proto, [output.name for output in self._graph.output], self._inputs)

    def values(self, names: Sequence[str]) -> dict[str, Content]:
        given = {value.name for value in (*self._graph.input, *self._graph.initializer)}

        def give(part: Sequence[str]) -> dict[str, Any]:
            model = _emptied(self._proto)
            model.graph.CopyFrom(self._graph)
            declared = {output.name for output in self._graph.output}
            model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in part if name not in declared)
            return self._run(model, part, self._inputs)

        shown = [name for name in names if name in self._made]
        held = {name: self._inputs[name] for name in names if name in given and name in self._inputs}
        return {**self._missing(names), **held, **all_possible(shown, give)}

    def alone(self, names: Sequence[str], known: Known) -> dict[str, Content]:
        def give(part: Sequence[str]) -> dict[str, Any]:
            model, read = self._isolated(set(part), known)
            given = {name: known.given[name] for name in read}
            results = self._run(model, [alone(name) for name in part], given)
            return {name: results[alone(name)] for name in part}

        return {**self._missing(names), **all_possible([name for name in names if name in self._made], give)}

    def _isolated(self, wanted: set[str], known: Known) -> tuple[onnx.ModelProto, list[str]]:
        """The model of nodes on their own, as `report.isolation` has it, and the names of its inputs."""
        model = _emptied(self._proto)
        graph = model.graph
        graph.name = self._graph.name
        read: set[str] = set()
        for node in self._graph.node:
            if wanted.intersection(node.output):
                copy = graph.node.add()
                copy.CopyFrom(node)
                for place, name in enumerate(node.output):
                    copy.output[place] = name and alone(name)
                read |= _read_names(node)
        given = sorted(read.intersection(known.given))
        for name in given:
            array = known.given[name]
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
        fixed = read.intersection(known.fixed)
        graph.initializer.extend(numpy_helper.from_array(known.fixed[name], name) for name in sorted(fixed))
        others = read.difference(given, fixed)
        graph.initializer.extend(tensor for tensor in self._graph.initializer if tensor.name in others)
        graph.sparse_initializer.extend(t for t in self._graph.sparse_initializer if t.values.name in others)
        graph.output.extend(onnx.ValueInfoProto(name=alone(name)) for name in sorted(wanted))
        return model, given

    def _missing(self, names: Sequence[str]) -> dict[str, Content]:
        why = f"{PEER} has no value of this name"
        return {name: Unavailable(why) for name in names if name not in self._made and name not in self._inputs}

    def _run(self, model: onnx.ModelProto, names: Sequence[str], inputs: Mapping[str, Any]) -> dict[str, Any]:
        onnxruntime = import_module(PEER)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = QUIET
        folder = str(Path(self._path).resolve().parent)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
            taken = {value.name for value in session.get_inputs()} | {
                value.name for value in session.get_overridable_initializers()
            }
            feeds = {name: content for name, content in inputs.items() if name in taken}
            return dict(zip(names, session.run(list(names), feeds)))
        except Exception as error:  # each of its errors is a class of its own
            raise ExecutionError(f"{PEER}: {' '.join(str(error).split())}", file=self._path) from error


def _emptied(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without its graph."""
    model = onnx.ModelProto(ir_version=proto.ir_version)
    model.opset_import.extend(proto.opset_import)
    model.functions.extend(proto.functions)
    return model


def _read_names(node: onnx.NodeProto) -> set[str]:
    """What a node reads, its subgraphs' share included; names that these define themselves do no harm."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                names |= _read_names(inner)
            names.update(output.name for output in graph.output)
    return names
