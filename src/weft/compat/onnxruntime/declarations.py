"""The inputs, outputs and metadata that a model's file declares: NodeArg and ModelMetadata.

weft's signature has traced shapes, with generated names for dims that the file leaves unnamed. Programs written for
onnxruntime expect the file's own names, so these are read from the protobuf, without touching weights.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Union

from weft.compat.onnxruntime.naming import STATE, set_module
from weft.errors import InputError, WeftError
from weft.frontend.wire import read_field
from weft.ir.dtypes import DType
from weft.ir.types import AnyType, MapType, OptionalType, SequenceType, TensorType, Type
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.ir.specs import TensorSpec
    from weft.runtime.model import Model

Size = Union[int, str, None]
Sizes = tuple[Size, ...]
DeclaredDims = tuple[tuple[Size, str], ...]
"""The dims of a shape: each a size and a denotation, which is usually empty."""

DEFAULT_VERSION = (1 << 63) - 1  # onnxruntime's version of a model that has none
_MAX_NESTING = 64  # of optional types
_SEPARATE_INITIALIZERS = 4  # the IR version from which initializers need not be inputs
_ELEMENT_NAMES = {DType.float32: "float", DType.float64: "double"}  # where they differ from weft's


@set_module(STATE)
@dataclass(frozen=True, slots=True, eq=False)
class NodeArg:
    """An input or output as onnxruntime describes it: `shape` holds numbers, names of dims, and None."""

    name: str
    type: str
    sizes: Sizes

    @property
    def shape(self) -> list[Size]:
        """A new list, which callers may modify."""
        return list(self.sizes)

    def __str__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"

    __repr__ = __str__


@set_module(STATE)
@dataclass(frozen=True, slots=True, eq=False)
class ModelMetadata:
    """The metadata of a model's file."""

    producer_name: str = ""
    domain: str = ""
    description: str = ""
    graph_name: str = ""
    graph_description: str = ""
    version: int = DEFAULT_VERSION
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def custom_metadata_map(self) -> dict[str, str]:
        """A new dict, which callers may modify."""
        return dict(self.properties)


@dataclass(frozen=True, slots=True)
class Declarations:
    """Shapes of inputs and outputs by name (None where the file has no shape), and the file's metadata."""

    inputs: Mapping[str, Sizes | None]
    outputs: Mapping[str, Sizes | None]
    metadata: ModelMetadata
    denotations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the dims of inputs
    has_overridable_initializers: bool = True  # False before IR version 4, where all initializers are inputs


def format_type(type: Type) -> str:
    """Return a type as onnxruntime writes it."""
    match type:
        case TensorType():
            return format_dtype(type.dtype)
        case SequenceType():
            return f"seq({format_type(type.element)})"
        case OptionalType():
            return f"optional({format_type(type.element)})"
        case MapType():
            return f"map({_element_name(type.key)},{format_type(type.value)})"
        case AnyType():
            return ""


def format_dtype(dtype: DType) -> str:
    return f"tensor({_element_name(dtype)})"


def _element_name(dtype: DType) -> str:
    return _ELEMENT_NAMES.get(dtype) or str(dtype)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The NodeArgs of a model."""

    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    initializers: tuple[NodeArg, ...]  # the overridable ones


def resolve_overrides(
    model: Model, declared: Declarations, by_name: Mapping[str, int], by_denotation: Mapping[str, int]
) -> dict[str, int]:
    """Return the sizes that free dimension overrides fix, by the dims' names in the file and in the trace.

    Raise InputError where an override contradicts the file or another override.
    """
    sizes = dict(by_name)
    for spec in model.inputs if by_denotation else ():
        shape = declared.inputs.get(spec.name) or ()
        traced = spec.type.shape if isinstance(spec.type, TensorType) else None
        for axis, denotation in enumerate(declared.denotations.get(spec.name, ())):
            size = by_denotation.get(denotation)
            if size is None:
                continue
            names = [shape[axis], *([] if traced is None else [str(traced[axis])])]
            if isinstance(shape[axis], int):
                names = []
                if shape[axis] != size:
                    raise InputError(f"dimension {axis} of input {spec.name!r} is {shape[axis]}, not {size}")
            for name in names:
                if isinstance(name, str) and sizes.setdefault(name, size) != size:
                    raise InputError(
                        f"dimension {axis} of input {spec.name!r} is overridden with {sizes[name]} and with {size}"
                    )
    return sizes


def describe_arguments(model: Model, declared: Declarations, fixed: Mapping[str, int]) -> Arguments:
    """Describe a model's inputs and outputs; dims whose names are in `fixed` have these sizes."""

    def make_node_args(specs: Sequence[TensorSpec], shapes: Mapping[str, Sizes | None]) -> tuple[NodeArg, ...]:
        return tuple(_make_node_arg(spec, {**declared.inputs, **shapes}, fixed) for spec in specs)

    return Arguments(
        make_node_args(model.inputs, declared.inputs),
        make_node_args(model.outputs, declared.outputs),
        make_node_args(model.defaults, declared.inputs) if declared.has_overridable_initializers else (),
    )


def _make_node_arg(spec: TensorSpec, declared: Mapping[str, Sizes | None], fixed: Mapping[str, int]) -> NodeArg:
    type = spec.type
    while isinstance(type, OptionalType):
        type = type.element
    traced = type.shape if isinstance(type, TensorType) else None
    shape = declared.get(spec.name)
    if traced is None and shape is None:
        return NodeArg(spec.name, format_type(spec.type), ())
    sizes: list[Size] = []
    for axis in range(len(shape if traced is None else traced)):  # type: ignore[arg-type]
        traced_dim = traced[axis] if traced is not None else None
        size = shape[axis] if shape is not None and len(shape) > axis else None
        if isinstance(traced_dim, int):
            size = traced_dim
        elif size is None and traced_dim is not None:
            size = _name_from_file(str(traced_dim), declared)
        size = fixed.get(size, size) if isinstance(size, str) else size
        sizes.append(size if isinstance(size, int) else fixed.get(str(traced_dim), size))
    return NodeArg(spec.name, format_type(spec.type), tuple(sizes))


def _name_from_file(name: str, declared: Mapping[str, Sizes | None]) -> str | None:
    """Return a traced dim's name if the file has it; None for names that weft generated and for expressions."""
    if declared:
        return name if any(name in sizes for sizes in declared.values() if sizes) else None
    return name if name.isidentifier() else None


def derive_declarations(model: Model) -> Declarations:
    """Return the declarations of a model that does not come from an ONNX file: its metadata, and no shapes."""
    metadata = model.metadata
    texts = (
        metadata.producer_name,
        metadata.domain,
        metadata.description,
        metadata.graph_name,
        metadata.graph_description,
    )
    version = metadata.model_version or DEFAULT_VERSION
    return Declarations({}, {}, ModelMetadata(*texts, version, dict(metadata.properties)))


def read_declarations(source: str | bytes) -> Declarations | None:
    """Read the declarations of an ONNX file from its path or bytes; None where it is not an ONNX file."""
    try:
        if isinstance(source, bytes):
            return _read_model(memoryview(source))
        with Path(source).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            view = memoryview(content)
            try:
                return _read_model(view)
            finally:
                view.release()
    except (WeftError, OSError, ValueError):
        return None


# -- protobuf: field numbers are those of onnx.proto ------------------------------------------------------------------


def _read_model(file: memoryview) -> Declarations:
    graph = (0, 0)
    texts = {2: "", 4: "", 6: ""}
    version = DEFAULT_VERSION
    ir_version = 0
    custom: dict[str, str] = {}
    for number, start, stop in _read_fields(file, 0, len(file)):
        if number == 7:
            graph = (start, stop)
        elif number in texts:
            texts[number] = _read_text(file, start, stop)
        elif number == 1:
            ir_version = _read_varint(file, start, stop)
        elif number == 5:
            version = _to_signed(_read_varint(file, start, stop))
        elif number == 14:
            entry = {part: _read_text(file, first, last) for part, first, last in _read_fields(file, start, stop)}
            custom[entry.get(1, "")] = entry.get(2, "")
    if graph == (0, 0):
        raise ValueError("no graph")
    names = {2: "", 10: ""}
    declared: dict[int, dict[str, Sizes | None]] = {11: {}, 12: {}}
    denotations: dict[str, tuple[str, ...]] = {}
    for number, start, stop in _read_fields(file, *graph):
        if number in names:
            names[number] = _read_text(file, start, stop)
        elif number in declared:
            name, dims = _read_value(file, start, stop)
            declared[number][name] = None if dims is None else tuple(size for size, _ in dims)
            if number == 11 and dims is not None:
                denotations[name] = tuple(denotation for _, denotation in dims)
    metadata = ModelMetadata(texts[2], texts[4], texts[6], names[2], names[10], version, custom)
    return Declarations(declared[11], declared[12], metadata, denotations, ir_version >= _SEPARATE_INITIALIZERS)


def _read_value(file: memoryview, start: int, stop: int) -> tuple[str, DeclaredDims | None]:
    name, shape = "", None
    for number, first, last in _read_fields(file, start, stop):
        if number == 1:
            name = _read_text(file, first, last)
        elif number == 2:
            shape = _read_shape(file, first, last, _MAX_NESTING)
    return name, shape


def _read_shape(file: memoryview, start: int, stop: int, depth: int) -> DeclaredDims | None:
    """Read the shape in a TypeProto: of a tensor, or of the tensor in an optional."""
    for number, first, last in _read_fields(file, start, stop):
        for inner, begin, end in _read_fields(file, first, last) if number in (1, 9) and depth else ():
            if number == 1 and inner == 2:
                return tuple(_read_dim(file, *dim[1:]) for dim in _read_fields(file, begin, end) if dim[0] == 1)
            if number == 9 and inner == 1:
                return _read_shape(file, begin, end, depth - 1)
    return None


def _read_dim(file: memoryview, start: int, stop: int) -> tuple[Size, str]:
    size: Size = None
    denotation = ""
    for number, first, last in _read_fields(file, start, stop):
        if number == 1:
            value = _to_signed(_read_varint(file, first, last))
            size = value if value >= 0 else None
        elif number == 2:
            size = _read_text(file, first, last) or None
        elif number == 3:
            denotation = _read_text(file, first, last)
    return size, denotation


def _read_fields(file: memoryview, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield each field of a message: its number, and where its content starts and ends."""
    while start < stop:
        number, _, first, start = read_field(file, start, stop, "message")
        yield number, first, start


def _read_text(file: memoryview, start: int, stop: int) -> str:
    return bytes(file[start:stop]).decode("utf-8", "replace")


def _read_varint(file: memoryview, start: int, stop: int) -> int:
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(file[start:stop]))


def _to_signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number
