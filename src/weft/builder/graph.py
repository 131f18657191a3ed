"""`weft.Graph`: a model that is written in Python.

    graph = weft.Graph("dense")
    x = graph.input("x", ("batch", 4), "float32")
    y = weft.ops.relu(x @ graph.parameter("w", w) + graph.parameter("b", b))
    graph.output(y, "y")
    model = graph.compile()

Every call runs the definition of its op on symbolic tensors, so that shapes and dtypes are known at once, and what
does not fit is an error at that line.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Union

from weft.backends.reference.interpret import Interpreter
from weft.builder.arguments import as_array, as_dtype
from weft.builder.draft import Draft
from weft.builder.finish import finished
from weft.builder.functions import blaming_the_caller
from weft.builder.handle import Handle
from weft.builder.tensor import ArrayLike, DTypeLike, GraphTensor
from weft.errors import GraphError, short_repr
from weft.frontend.schemas import newest_known, newest_opsets
from weft.frontend.source import OpenedModel
from weft.frontend.write import ModelProto, is_one_message, write_file, write_model
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.graph import OnnxModel
from weft.ir.types import Shape, TensorType, Type
from weft.loading import load
from weft.quantities import format_plural, shorten
from weft.runtime.model import Model
from weft.tables import ShownAsTables, Table

Size = Union[int, str, None]
Given = ParamSpec("Given")


def _compiling(
    load: Callable[Concatenate[Any, Given], Model],
) -> Callable[Concatenate[GraphBuilder, Given], Model]:
    """`compile`, whose keywords are those of `weft.load`."""

    def compile(self: GraphBuilder, /, *unnamed: Given.args, **given: Given.kwargs) -> Model:
        """Compile the graph: the model that `weft.load` gives for its file, with the same options."""
        proto = self.to_onnx()
        if not is_one_message(proto):
            hint = "write it with graph.to_onnx(path), and weft.load that file"
            raise GraphError(f"the weights of graph {self.name!r} are more than 2 GB", hint=hint)
        content = memoryview(proto.SerializeToString())
        return load(OpenedModel(content, f"<graph {self.name}>"), *unnamed, **given)

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    options = list(inspect.signature(load).parameters.values())[1:]
    compile.__signature__ = inspect.Signature([first, *options], return_annotation=Model)  # type: ignore[attr-defined]
    return compile


class GraphBuilder(ShownAsTables):
    """A model in the making: inputs, parameters and constants, and what functions of `weft.ops` make of them.

    name: the name of the model's graph.
    opset: the opset of ai.onnx, or a mapping of domains to theirs; by default the newest that onnxruntime reads
        on every Python that weft is for.
    """

    @blaming_the_caller
    def __init__(self, name: str = "graph", opset: int | Mapping[str, int] | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise GraphError(f"a name must be a text that is not empty, not {short_repr(name)}")
        self.name = name
        self._draft = Draft(name, _opsets(opset), Interpreter(), GraphTensor)
        self._named: set[str] = set()  # values whose names are the user's
        self._outputs: dict[str, tuple[GraphTensor, Type]] = {}
        self._entered: list[ExitStack] = []

    @blaming_the_caller
    def input(self, name: str, shape: Sequence[Size], dtype: DTypeLike = "float32") -> GraphTensor:
        """A new input. A size is an int, a name, or None for any."""
        return self.input_of(name, TensorType(as_dtype(dtype), _shape(name, shape)))

    @blaming_the_caller
    def input_of(self, name: str, type: Type) -> GraphTensor:
        """A new input of any type, sequences, optionals and maps included (`weft.ir.types`)."""
        if self._draft.level is not self._draft.top:
            raise GraphError(f"the input {name!r} is made inside of a body", hint="make it before, and use it there")
        return self._tensor(self._draft.input(self._take(name), type))

    @blaming_the_caller
    def parameter(self, name: str, array: ArrayLike) -> GraphTensor:
        """A weight: an initializer of this name, with a copy of the array."""
        content = as_array(array, f"parameter {name!r}")
        return self._tensor(self._draft.initializer(self._take(name), content))

    @blaming_the_caller
    def constant(self, value: ArrayLike, dtype: DTypeLike | None = None) -> GraphTensor:
        """A constant without a name; Python floats are float32 and ints int64 unless a dtype is given."""
        content = as_array(value, "the constant", None if dtype is None else as_dtype(dtype))
        return self._tensor(self._draft.initializer(self._draft.fresh_name("constant"), content))

    @blaming_the_caller
    def output(
        self,
        tensor: GraphTensor,
        name: str | None = None,
        *,
        shape: Sequence[Size] | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        """Make a tensor an output, by default under the name that it has.

        shape, dtype: what it is, where nothing is known of it before a run; else they are not needed.
        """
        if not isinstance(tensor, Handle):
            raise GraphError(f"an output must be a tensor, not {short_repr(tensor)}", hint="graph.constant makes one")
        if self._draft.level is not self._draft.top:
            raise GraphError("an output cannot be set inside of a body", hint="let the body return it")
        self._draft.check(tensor)
        name = tensor.name if name is None else name
        if name in self._outputs:
            raise GraphError(f"there is an output {name!r} already")
        if name != tensor.name:
            self._take(name)
        self._outputs[name] = (tensor, self._declared(tensor, name, shape, dtype))

    @blaming_the_caller
    def outputs(self, *tensors: GraphTensor, **named: GraphTensor) -> None:
        """Make tensors outputs: `graph.outputs(logits=x, hidden=h)`."""
        for tensor in tensors:
            self.output(tensor)
        for name, tensor in named.items():
            self.output(tensor, name)

    @blaming_the_caller
    def to_onnx(self, path: str | os.PathLike[str] | None = None) -> ModelProto:
        """The model as protobuf; with a path also as a file, beside which weights lie if they are more than 2 GB."""
        if not self._outputs:
            raise GraphError(f"graph {self.name!r} has no output", hint="set one: graph.output(tensor, name)")
        draft = self._draft
        opsets = {domain: draft.version(domain) for domain in {"", *draft.used_domains}}
        graph = finished(draft, self._outputs, self._named | draft.user_named)
        model = OnnxModel(graph, opsets, 0, "weft", f"<graph {self.name}>", {})
        proto = write_model(model)
        if path is not None:
            write_file(model, proto, Path(path))
        return proto

    compile = _compiling(load)

    def __enter__(self) -> GraphBuilder:
        """Functions without tensors among their inputs, such as random numbers, belong to this graph."""
        stack = ExitStack()
        stack.enter_context(self._draft.current())
        self._entered.append(stack)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.pop().close()

    def __repr__(self) -> str:
        counts = f"{format_plural(len(self._draft.top.nodes), 'node')}, {format_plural(len(self._outputs), 'output')}"
        return f"Graph({shorten(self.name)!r}: {counts})"

    def _tables(self) -> Iterator[Table]:
        level = self._draft.top
        types = {name: tensor.type for name, tensor in level.values.items() if tensor is not None}
        values = [("input", value.name, value.type) for value in level.inputs]
        values += [("parameter", name, types.get(name)) for name in self._draft.initializers if name in self._named]
        for name, (tensor, type) in self._outputs.items():
            values.append(("output", name if name == tensor.name else f"{name} = {tensor.name}", type))
        yield Table(values, ("value", "name", "type"), title=repr(self))
        if level.nodes:
            nodes = [
                (node.op, *map(", ".join, (node.inputs, node.outputs, (str(types.get(n)) for n in node.outputs))))
                for node in level.nodes
            ]
            yield Table(nodes, ("op", "inputs", "outputs", "type"))

    def _declared(self, tensor: Handle, name: str, shape: Sequence[Size] | None, dtype: DTypeLike | None) -> Type:
        """The type of an output: what is known, and what the user says of the rest."""
        known = tensor.type
        if isinstance(known, TensorType) and known.shape is not None:
            return known
        if dtype is None and isinstance(known, TensorType):
            dtype = known.dtype
        if dtype is None:
            return known
        return TensorType(as_dtype(dtype), None if shape is None else _shape(name, shape))

    def _take(self, name: str) -> str:
        self._named.add(self._draft.take_name(name))
        return name

    def _tensor(self, handle: Handle) -> GraphTensor:
        assert isinstance(handle, GraphTensor)
        return handle


def _opsets(given: int | Mapping[str, int] | None) -> dict[str, int]:
    """The opset of each domain: those asked for, and the newest of others."""
    asked = {} if given is None else dict(given) if isinstance(given, Mapping) else {"": given}
    for domain, version in asked.items():
        most = newest_known().get(domain)
        if not isinstance(version, int) or version < 1 or (most is not None and version > most):
            known = f"; the installed onnx knows 1 to {most}" if most is not None else ""
            raise GraphError(f"there is no opset {short_repr(version)} of {domain or 'ai.onnx'}{known}")
    if "ai.onnx" in asked:
        asked[""] = asked.pop("ai.onnx")
    return {**newest_opsets(), **asked}


def _shape(name: str, given: Sequence[Size]) -> Shape:
    if not isinstance(given, Sequence) or isinstance(given, str):
        hint = 'for instance ("batch", 3, 224, 224), and () for a scalar'
        raise GraphError(f"{name!r}: a shape is a list of sizes, not {short_repr(given)}", hint=hint)
    return tuple(_size(name, at, size) for at, size in enumerate(given))


def _size(name: str, at: int, given: Size) -> Dim:
    if given is None:
        return dims.symbol(f"{name}.{at}")
    if isinstance(given, str):
        if not given.isidentifier():
            raise GraphError(f"{name!r}: {given!r} is no name for a size", hint='use letters and digits, as in "batch"')
        return dims.symbol(given)
    if isinstance(given, bool) or not hasattr(given, "__index__") or int(given) < 0:
        raise GraphError(f"{name!r}: a size is an int, a name or None, not {short_repr(given)}")
    return int(given)


Graph = GraphBuilder
