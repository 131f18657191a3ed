"""What a model's file declares of its inputs and outputs, and says of itself: NodeArg and ModelMetadata.

weft's own signature has what it traced, under names of its own where a file leaves a size open. Programs written for
onnxruntime look for what the file says, so that is read again, field by field: nothing large is touched.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from weft.compat.onnxruntime.naming import STATE, known_as
from weft.errors import InputError, WeftError
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

UNSTATED_VERSION = (1 << 63) - 1  # what onnxruntime says of a model without a version
_DEEPEST = 64
_INITIALIZERS_APART = 4  # the version of the format from which initializers need not be inputs
_ELEMENTS = {DType.float32: "float", DType.float64: "double"}  # the others are called as here


@known_as(STATE)
@dataclass(frozen=True, slots=True, eq=False)
class NodeArg:
    """An input or output as onnxruntime describes it: `shape` holds numbers, names of dims, and None."""

    name: str
    type: str
    sizes: Sizes

    @property
    def shape(self) -> list[Size]:
        """A new list: who fills in sizes changes his own."""
        return list(self.sizes)

    def __str__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"

    __repr__ = __str__


@known_as(STATE)
@dataclass(frozen=True, slots=True, eq=False)
class ModelMetadata:
    """What a file says of itself."""

    producer_name: str = ""
    domain: str = ""
    description: str = ""
    graph_name: str = ""
    graph_description: str = ""
    version: int = UNSTATED_VERSION
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def custom_metadata_map(self) -> dict[str, str]:
        """A new dict each time."""
        return dict(self.properties)


@dataclass(frozen=True, slots=True)
class Declarations:
    """Shapes of inputs and outputs by name, None where a file gives none; and the file's metadata."""

    inputs: Mapping[str, Sizes | None]
    outputs: Mapping[str, Sizes | None]
    metadata: ModelMetadata
    denotations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the dims of inputs
    may_override: bool = True  # initializers, which files of old versions list among the inputs


def type_text(type: Type) -> str:
    """A type as onnxruntime writes it."""
    match type:
        case TensorType():
            return tensor_text(type.dtype)
        case SequenceType():
            return f"seq({type_text(type.element)})"
        case OptionalType():
            return f"optional({type_text(type.element)})"
        case MapType():
            return f"map({_element(type.key)},{type_text(type.value)})"
        case AnyType():
            return ""


def tensor_text(dtype: DType) -> str:
    return f"tensor({_element(dtype)})"


def _element(dtype: DType) -> str:
    return _ELEMENTS.get(dtype) or str(dtype)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What is told of all that a model takes and gives."""

    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    initializers: tuple[NodeArg, ...]  # that may be overridden


def fix_sizes(
    model: Model, declared: Declarations, by_name: Mapping[str, int], by_denotation: Mapping[str, int]
) -> dict[str, int]:
    """Give the dims that overrides fix their sizes, by the names of the file and of the trace.

    InputError where an override contradicts the file or another override.
    """
    sizes = dict(by_name)
    for spec in model.inputs if by_denotation else ():
        shape = declared.inputs.get(spec.name) or ()
        traced = spec.type.shape if isinstance(spec.type, TensorType) else None
        for at, denotation in enumerate(declared.denotations.get(spec.name, ())):
            size = by_denotation.get(denotation)
            if size is None:
                continue
            names = [shape[at], *([] if traced is None else [str(traced[at])])]
            if isinstance(shape[at], int):
                names = []
                if shape[at] != size:
                    raise InputError(f"dimension {at} of input {spec.name!r} is {shape[at]}, not {size}")
            for name in names:
                if isinstance(name, str) and sizes.setdefault(name, size) != size:
                    raise InputError(f"dimension {at} of input {spec.name!r} is to be {sizes[name]} and {size}")
    return sizes


def described(model: Model, declared: Declarations, fixed: Mapping[str, int]) -> Arguments:
    """What is told of a model; dims of the names in `fixed` have these sizes."""

    def arguments(specs: Sequence[TensorSpec], shapes: Mapping[str, Sizes | None]) -> tuple[NodeArg, ...]:
        return tuple(_node_arg(spec, {**declared.inputs, **shapes}, fixed) for spec in specs)

    return Arguments(
        arguments(model.inputs, declared.inputs),
        arguments(model.outputs, declared.outputs),
        arguments(model.defaults, declared.inputs) if declared.may_override else (),
    )


def _node_arg(spec: TensorSpec, declared: Mapping[str, Sizes | None], fixed: Mapping[str, int]) -> NodeArg:
    type = spec.type
    while isinstance(type, OptionalType):
        type = type.element
    traced = type.shape if isinstance(type, TensorType) else None
    shape = declared.get(spec.name)
    if traced is None and shape is None:
        return NodeArg(spec.name, type_text(spec.type), ())
    sizes: list[Size] = []
    for at in range(len(shape if traced is None else traced)):  # type: ignore[arg-type]
        found = traced[at] if traced is not None else None
        stated = shape[at] if shape is not None and len(shape) > at else None
        if isinstance(found, int):
            stated = found
        elif stated is None and found is not None:
            stated = _own_name(str(found), declared)
        stated = fixed.get(stated, stated) if isinstance(stated, str) else stated
        sizes.append(stated if isinstance(stated, int) else fixed.get(str(found), stated))
    return NodeArg(spec.name, type_text(spec.type), tuple(sizes))


def _own_name(name: str, declared: Mapping[str, Sizes | None]) -> str | None:
    """A dim's name, if its file gave it; None for names that weft made up, and for expressions."""
    if declared:
        return name if any(name in sizes for sizes in declared.values() if sizes) else None
    return name if name.isidentifier() else None


def undeclared(model: Model) -> Declarations:
    """What there is to say of a model that is no plain ONNX file."""
    told = model.metadata
    version = told.model_version or UNSTATED_VERSION
    texts = (told.producer_name, told.domain, told.description, told.graph_name, told.graph_description)
    return Declarations({}, {}, ModelMetadata(*texts, version, dict(told.properties)))


def read_declarations(source: str | bytes) -> Declarations | None:
    """What the file at a path, or a file's bytes, declares; None where that is no plain ONNX file."""
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


# -- protobuf: the numbers of fields are those of onnx.proto ----------------------------------------------------------


def _read_model(file: memoryview) -> Declarations:
    graph = (0, 0)
    texts = {2: "", 4: "", 6: ""}
    version = UNSTATED_VERSION
    format_version = 0
    custom: dict[str, str] = {}
    for number, start, stop in _fields(file, 0, len(file)):
        if number == 7:
            graph = (start, stop)
        elif number in texts:
            texts[number] = _text(file, start, stop)
        elif number == 1:
            format_version = _number(file, start, stop)
        elif number == 5:
            version = _signed(_number(file, start, stop))
        elif number == 14:
            entry = {part: _text(file, first, last) for part, first, last in _fields(file, start, stop)}
            custom[entry.get(1, "")] = entry.get(2, "")
    if graph == (0, 0):
        raise ValueError("no graph")
    names = {2: "", 10: ""}
    declared: dict[int, dict[str, Sizes | None]] = {11: {}, 12: {}}
    denotations: dict[str, tuple[str, ...]] = {}
    for number, start, stop in _fields(file, *graph):
        if number in names:
            names[number] = _text(file, start, stop)
        elif number in declared:
            name, dims = _read_value(file, start, stop)
            declared[number][name] = None if dims is None else tuple(size for size, _ in dims)
            if number == 11 and dims is not None:
                denotations[name] = tuple(denotation for _, denotation in dims)
    metadata = ModelMetadata(texts[2], texts[4], texts[6], names[2], names[10], version, custom)
    return Declarations(declared[11], declared[12], metadata, denotations, format_version >= _INITIALIZERS_APART)


def _read_value(file: memoryview, start: int, stop: int) -> tuple[str, DeclaredDims | None]:
    name, shape = "", None
    for number, first, last in _fields(file, start, stop):
        if number == 1:
            name = _text(file, first, last)
        elif number == 2:
            shape = _read_shape(file, first, last, _DEEPEST)
    return name, shape


def _read_shape(file: memoryview, start: int, stop: int, depth: int) -> DeclaredDims | None:
    """The shape in a TypeProto: of a tensor, or of the tensor in an optional."""
    for number, first, last in _fields(file, start, stop):
        for inner, begin, end in _fields(file, first, last) if number in (1, 9) and depth else ():
            if number == 1 and inner == 2:
                return tuple(_read_dim(file, *place[1:]) for place in _fields(file, begin, end) if place[0] == 1)
            if number == 9 and inner == 1:
                return _read_shape(file, begin, end, depth - 1)
    return None


def _read_dim(file: memoryview, start: int, stop: int) -> tuple[Size, str]:
    size: Size = None
    denotation = ""
    for number, first, last in _fields(file, start, stop):
        if number == 1:
            value = _signed(_number(file, first, last))
            size = value if value >= 0 else None
        elif number == 2:
            size = _text(file, first, last) or None
        elif number == 3:
            denotation = _text(file, first, last)
    return size, denotation


def _fields(file: memoryview, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    from weft.frontend.wire import read_field

    while start < stop:
        number, _, first, start = read_field(file, start, stop, "message")
        yield number, first, start


def _text(file: memoryview, start: int, stop: int) -> str:
    return bytes(file[start:stop]).decode("utf-8", "replace")


def _number(file: memoryview, start: int, stop: int) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(file[start:stop]))


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def python_value(content: Any, type: Type) -> Any:
    """A result as onnxruntime gives it: plain Python values in maps, lists for sequences."""
    match type:
        case OptionalType():
            return None if content is None else python_value(content, type.element)
        case SequenceType():
            return [python_value(item, type.element) for item in content]
        case MapType():
            return {plain_number(key): plain_number(value) for key, value in content.items()}
    return content


def plain_number(value: Any) -> Any:
    """Python's own number for one of numpy's; all else stays as it is."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
