"""`weft.Graph`: a model that is written in Python.

    graph = weft.Graph("dense")
    x = graph.input("x", ("batch", 4), "float32")
    y = weft.ops.relu(x @ graph.parameter("w", w) + graph.parameter("b", b))
    graph.output(y, "y")
    model = graph.compile()

Every call runs the definition of its op on symbolic tensors, so shapes and dtypes are known at once, and a mistake is
an error at the line of the call.
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
from weft.builder.finish import finish_graph
from weft.builder.functions import report_at_caller
from weft.builder.handle import Handle
from weft.builder.tensor import ArrayLike, DTypeLike, GraphTensor
from weft.errors import GraphError, short_repr
from weft.frontend.schemas import newest_installed_opsets, newest_opsets
from weft.frontend.source import OpenedModel
from weft.frontend.write import ModelProto, fits_one_message, write_file, write_model
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.graph import OnnxModel
from weft.ir.types import Shape, TensorType, Type
from weft.loading import load
from weft.quantities import format_plural, shorten
from weft.runtime.model import Model
from weft.tables import ShownAsTables, Table

Size = Union[int, str, None]
Options = ParamSpec("Options")


def _make_compile(
    load: Callable[Concatenate[Any, Options], Model],
) -> Callable[Concatenate[GraphBuilder, Options], Model]:
    """Make the method `compile`, with the keywords of `weft.load`."""

    def compile(self: GraphBuilder, /, *unnamed: Options.args, **options: Options.kwargs) -> Model:
        """Compile the graph: return the model that `weft.load` returns for its file, with the same options."""
        proto = self.to_onnx()
        if not fits_one_message(proto):
            hint = "write it with graph.to_onnx(path), and load that file with weft.load"
            raise GraphError(f"the weights of graph {self.name!r} are larger than 2 GB", hint=hint)
        content = memoryview(proto.SerializeToString())
        return load(OpenedModel(content, f"<graph {self.name}>"), *unnamed, **options)

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = list(inspect.signature(load).parameters.values())[1:]
    compile.__signature__ = inspect.Signature([first, *parameters], return_annotation=Model)  # type: ignore[attr-defined]
    return compile


class GraphBuilder(ShownAsTables):
    """A model under construction: inputs, parameters and constants, and the nodes that functions of `weft.ops` add.

    name: the name of the model's graph.
    opset: the opset of ai.onnx, or a mapping from domains to opsets; by default the newest that onnxruntime reads
        on every Python version that weft supports.
    """

    @report_at_caller
    def __init__(self, name: str = "graph", opset: int | Mapping[str, int] | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise GraphError(f"a name must be a string that is not empty, not {short_repr(name)}")
        self.name = name
        self._draft = Draft(name, _resolve_opsets(opset), Interpreter(), GraphTensor)
        self._user_names: set[str] = set()
        self._outputs: dict[str, tuple[GraphTensor, Type]] = {}
        self._entered: list[ExitStack] = []

    @report_at_caller
    def input(self, name: str, shape: Sequence[Size], dtype: DTypeLike = "float32") -> GraphTensor:
        """Add an input. A size is an int, the name of a dynamic size, or None for a dynamic size without a name."""
        return self.input_of(name, TensorType(as_dtype(dtype), _parse_shape(name, shape)))

    @report_at_caller
    def input_of(self, name: str, type: Type) -> GraphTensor:
        """Add an input of any type, including sequences, optionals and maps (`weft.ir.types`)."""
        if self._draft.level is not self._draft.top:
            problem = f"the input {name!r} cannot be added inside of a body"
            raise GraphError(problem, hint="add it before, and use it in the body")
        return self._as_tensor(self._draft.input(self._take_name(name), type))

    @report_at_caller
    def parameter(self, name: str, array: ArrayLike) -> GraphTensor:
        """Add a weight: an initializer of this name, with a copy of the array."""
        content = as_array(array, f"parameter {name!r}")
        return self._as_tensor(self._draft.initializer(self._take_name(name), content))

    @report_at_caller
    def constant(self, value: ArrayLike, dtype: DTypeLike | None = None) -> GraphTensor:
        """Add a constant without a name; by default Python floats become float32 and ints int64."""
        content = as_array(value, "the constant", None if dtype is None else as_dtype(dtype))
        return self._as_tensor(self._draft.initializer(self._draft.fresh_name("constant"), content))

    @report_at_caller
    def output(
        self,
        tensor: GraphTensor,
        name: str | None = None,
        *,
        shape: Sequence[Size] | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        """Make a tensor an output, by default under its own name.

        shape, dtype: needed only if they are not known before a run.
        """
        if not isinstance(tensor, Handle):
            raise GraphError(
                f"an output must be a tensor, not {short_repr(tensor)}", hint="make one with graph.constant"
            )
        if self._draft.level is not self._draft.top:
            raise GraphError("an output cannot be set inside of a body", hint="return it from the body")
        self._draft.check(tensor)
        name = tensor.name if name is None else name
        if name in self._outputs:
            raise GraphError(f"the graph already has an output {name!r}")
        if name != tensor.name:
            self._take_name(name)
        self._outputs[name] = (tensor, _output_type(tensor, name, shape, dtype))

    @report_at_caller
    def outputs(self, *tensors: GraphTensor, **named: GraphTensor) -> None:
        """Make tensors outputs: `graph.outputs(logits=x, hidden=h)`."""
        for tensor in tensors:
            self.output(tensor)
        for name, tensor in named.items():
            self.output(tensor, name)

    @report_at_caller
    def to_onnx(self, path: str | os.PathLike[str] | None = None) -> ModelProto:
        """Return the model as protobuf, and write it to a file if there is a path.

        Weights of more than 2 GB are written to a second file.
        """
        if not self._outputs:
            raise GraphError(f"graph {self.name!r} has no output", hint="add one: graph.output(tensor, name)")
        draft = self._draft
        opsets = {domain: draft.version(domain) for domain in {"", *draft.used_domains}}
        graph = finish_graph(draft, self._outputs, self._user_names | draft.user_names)
        model = OnnxModel(graph, opsets, 0, "weft", f"<graph {self.name}>", {})
        proto = write_model(model)
        if path is not None:
            write_file(model, proto, Path(path))
        return proto

    compile = _make_compile(load)

    def __enter__(self) -> GraphBuilder:
        """Make this the graph of functions without tensors among their inputs, such as random numbers."""
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
        values += [
            ("parameter", name, types.get(name)) for name in self._draft.initializers if name in self._user_names
        ]
        for name, (tensor, type) in self._outputs.items():
            values.append(("output", name if name == tensor.name else f"{name} = {tensor.name}", type))
        yield Table(values, ("value", "name", "type"), title=repr(self))
        if level.nodes:
            nodes = [
                (node.op, *map(", ".join, (node.inputs, node.outputs, (str(types.get(n)) for n in node.outputs))))
                for node in level.nodes
            ]
            yield Table(nodes, ("op", "inputs", "outputs", "type"))

    def _take_name(self, name: str) -> str:
        self._user_names.add(self._draft.take_name(name))
        return name

    def _as_tensor(self, handle: Handle) -> GraphTensor:
        assert isinstance(handle, GraphTensor)
        return handle


def _output_type(tensor: Handle, name: str, shape: Sequence[Size] | None, dtype: DTypeLike | None) -> Type:
    """Return the type of an output; the user's shape and dtype complete what is unknown."""
    type = tensor.type
    if type.shape is not None:
        return type
    if dtype is None and isinstance(type, TensorType):
        dtype = type.dtype
    if dtype is None:
        return type
    return TensorType(as_dtype(dtype), None if shape is None else _parse_shape(name, shape))


def _resolve_opsets(opset: int | Mapping[str, int] | None) -> dict[str, int]:
    """Return the opset of each domain: the requested ones, and the newest of others."""
    requested = {} if opset is None else dict(opset) if isinstance(opset, Mapping) else {"": opset}
    for domain, version in requested.items():
        newest = newest_installed_opsets().get(domain)
        if not isinstance(version, int) or version < 1 or (newest is not None and version > newest):
            supported = f"; the installed onnx supports 1 to {newest}" if newest is not None else ""
            raise GraphError(f"there is no opset {short_repr(version)} of {domain or 'ai.onnx'}{supported}")
    if "ai.onnx" in requested:
        requested[""] = requested.pop("ai.onnx")
    return {**newest_opsets(), **requested}


def _parse_shape(name: str, shape: Sequence[Size]) -> Shape:
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        hint = 'for instance ("batch", 3, 224, 224), and () for a scalar'
        raise GraphError(f"{name!r}: a shape is a list of sizes, not {short_repr(shape)}", hint=hint)
    return tuple(_parse_size(name, axis, size) for axis, size in enumerate(shape))


def _parse_size(name: str, axis: int, size: Size) -> Dim:
    if size is None:
        return dims.symbol(f"{name}.{axis}")
    if isinstance(size, str):
        if not size.isidentifier():
            problem = f"{name!r}: {size!r} is not a name for a size"
            raise GraphError(problem, hint='use letters and digits, as in "batch"')
        return dims.symbol(size)
    if isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 0:
        raise GraphError(f"{name!r}: a size is an int, a name or None, not {short_repr(size)}")
    return int(size)


Graph = GraphBuilder
