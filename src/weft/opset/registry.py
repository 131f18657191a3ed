"""How an op is defined and found: a function whose signature is its schema.

Positional parameters are inputs (`| None`: optional; `*name`: variadic), keyword-only parameters are attributes
(a default of `REQUIRED` makes them mandatory). An input annotated `Static` arrives as a numpy array that must be known
while compiling; one annotated `Sizes` as a tuple of dims, bound at run time where they are not known earlier. A
keyword-only `output_count` receives the number of outputs that the node asks for, and `enclosing` the graph that the
node stands in, for an op that speaks about other nodes. `**ignored` lets a node have attributes that mean nothing. The
return annotation tells the outputs, `op(outputs=…)` where a node may leave the last of them out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import numpy as np

from weft.errors import InvalidModelError, MalformedNodeError, WeftError, shown
from weft.ir.dims import Dim, UndecidedError
from weft.ir.program import Late
from weft.ir.types import AnyType
from weft.opset.tensor import NotStaticError, OnlyAtRunError, Tensor, current_trace
from weft.opset.trace import is_symbolic
from weft.records import dataclass

Static = Annotated[np.ndarray[Any, Any], "static"]
Sizes = Annotated[tuple[Dim, ...], "sizes"]
ElementType = int  # an attribute that names an element type by ONNX's number
REQUIRED: Any = object()

_ATTRIBUTE_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "ElementType": (int,),
    "float": (float, int),
    "str": (str,),
    "tuple[int, ...]": (tuple,),
    "tuple[float, ...]": (tuple,),
    "tuple[str, ...]": (tuple,),
    "np.ndarray[Any, Any]": (np.ndarray,),
    "Array": (np.ndarray,),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kind: str  # "tensor", "static", "sizes"
    optional: bool


@dataclass(frozen=True, slots=True)
class AttributeParameter:
    name: str
    annotation: str  # without "| None"
    default: Any


@dataclass(frozen=True, slots=True)
class Definition:
    """One op from one opset version on."""

    domain: str
    name: str
    since: int
    function: Callable[..., Any]
    inputs: tuple[Parameter, ...]
    variadic: bool
    attributes: tuple[AttributeParameter, ...]
    counts_outputs: bool
    sees_graph: bool
    outputs: tuple[int, int] | None  # the fewest and the most; None: as many as inputs and attributes make them
    ignores_attributes: bool

    @property
    def qualified_name(self) -> str:
        return f"{self.domain}.{self.name}" if self.domain else self.name


class _Stated:
    """A function that was stated to be an op's meaning, and its definition once somebody asks for it."""

    __slots__ = ("_definition", "_others", "function", "since")

    def __init__(self, function: Callable[..., Any], *others: Any, since: int) -> None:
        self.function = function
        self._others = others
        self.since = since
        self._definition: Definition | None = None

    def definition(self) -> Definition:
        found = self._definition
        if found is None:
            found = self._definition = _describe(self.function, *self._others, since=self.since)
        return found


_definitions: dict[tuple[str, str], list[_Stated]] = {}


def op(
    name: str, since: int = 1, domain: str = "", outputs: tuple[int, int] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the meaning of `name` from opset version `since` on.

    `outputs`: the fewest and the most that a node may have, where the return annotation does not tell.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        versions = _definitions.setdefault((domain, name), [])
        if any(known.since == since for known in versions):
            raise ValueError(f"{domain}.{name} is defined twice for opset {since}")
        versions.append(_Stated(function, name, domain, outputs, since=since))
        versions.sort(key=lambda stated: stated.since)
        return function

    return register


def find(domain: str, name: str, version: int) -> Definition | None:
    """The definition in force at an opset version."""
    versions = _definitions.get((domain, name), ())
    return next((stated.definition() for stated in reversed(versions) if stated.since <= version), None)


def known_attributes(domain: str, name: str, version: int) -> frozenset[str] | None:
    """Return the attributes of an op that ignores others; None for an op that does not."""
    definition = find(domain, name, version)
    if definition is None or not definition.ignores_attributes:
        return None
    return frozenset(attribute.name for attribute in definition.attributes)


def definitions(with_function: Callable[[Callable[..., Any]], bool] = lambda _: True) -> list[Definition]:
    """All definitions, or those with certain functions, by domain, name and version."""
    found = [stated for key in sorted(_definitions) for stated in _definitions[key]]
    return [stated.definition() for stated in found if with_function(stated.function)]


def call(
    definition: Definition,
    inputs: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    output_count: int | None,
    version: int,
    enclosing: Any = None,
) -> list[Tensor | None]:
    """Run a definition on traced tensors. Where it needs what only the run knows, the whole op is put off to then.

    `output_count`: how many outputs are wanted; None: all that the definition gives.
    """
    keywords = _check_attributes(definition, attributes)
    if definition.counts_outputs:
        keywords["output_count"] = output_count
    if definition.sees_graph:
        keywords["enclosing"] = enclosing
    guards = len(current_trace.get().guards)
    try:
        result = definition.function(*_bind_inputs(definition, inputs), **keywords)
    except (NotStaticError, UndecidedError) as reason:
        trace = current_trace.get()
        if trace.eager:
            raise InvalidModelError(f"{definition.qualified_name}: {reason}") from reason
        if definition.sees_graph:
            raise OnlyAtRunError(f"{definition.qualified_name}: {reason}") from reason
        if output_count is None:
            problem = f"how many outputs {definition.qualified_name} has depends on the run: {reason}"
            raise InvalidModelError(problem) from reason
        del trace.guards[guards:]
        return _put_off(definition, inputs, attributes, output_count, version)
    except WeftError:
        raise
    except RecursionError:
        raise
    except ZeroDivisionError as error:
        shapes = ", ".join(str(tensor.type) for tensor in inputs if tensor is not None)
        problem = f"{definition.qualified_name} has no meaning for these sizes, one of which is 0: {shapes}"
        raise InvalidModelError(problem) from error
    except Exception as error:  # a definition may trip over attributes and shapes that no valid model has
        raise InvalidModelError(
            f"{definition.qualified_name} cannot be applied here: {type(error).__name__}: {error}"
        ) from error
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    if output_count is not None and len(outputs) < output_count:
        raise InvalidModelError(f"{definition.qualified_name} has {len(outputs)} outputs, not {output_count}")
    return outputs[:output_count]


def _put_off(
    definition: Definition,
    inputs: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    output_count: int,
    version: int,
) -> list[Tensor | None]:
    present = tuple(tensor is not None for tensor in inputs)
    captured: dict[str, Tensor] = {}
    bare: dict[str, Any] = {}
    for name, value in attributes.items():
        bare[name] = value.graph if callable(value) else value
        captured.update(value.captured() if callable(value) else {})
    late = Late(definition.domain, definition.name, version, bare, present, tuple(captured))
    operands = [*(tensor for tensor in inputs if tensor is not None), *captured.values()]
    return list(current_trace.get().emit(late, operands, [AnyType()] * output_count))


def _bind_inputs(definition: Definition, inputs: Sequence[Tensor | None]) -> list[Any]:
    if len(inputs) > len(definition.inputs) and not definition.variadic:
        raise MalformedNodeError(
            f"{definition.qualified_name} takes at most {len(definition.inputs)} inputs, not {len(inputs)}"
        )
    bound: list[Any] = []
    for position, parameter in enumerate(definition.inputs):
        tensor = inputs[position] if position < len(inputs) else None
        if tensor is None and not parameter.optional:
            raise MalformedNodeError(f"{definition.qualified_name} needs its input {parameter.name!r}")
        bound.append(None if tensor is None else _resolve(parameter, tensor))
    return [*bound, *inputs[len(definition.inputs) :]]


def _resolve(parameter: Parameter, tensor: Tensor) -> Any:
    if parameter.kind == "static":
        if tensor.known is None and 0 in tensor.shape:
            return np.empty([size if isinstance(size, int) else 0 for size in tensor.shape], tensor.dtype.numpy)
        if tensor.known is None or is_symbolic(tensor):
            raise NotStaticError(f"input {parameter.name!r} must be known when compiling")
        return tensor.known
    if parameter.kind == "sizes":
        return current_trace.get().observe(tensor, parameter.name)
    return tensor


def _check_attributes(definition: Definition, attributes: Mapping[str, Any]) -> dict[str, Any]:
    known = {parameter.name: parameter for parameter in definition.attributes}
    unknown = sorted(set(attributes) - set(known))
    if unknown:
        raise MalformedNodeError(
            f"{definition.qualified_name} has no attribute {', '.join(map(repr, unknown))} at this opset",
            hint=f"its attributes are {', '.join(known) or 'none'}",
        )
    for name, value in attributes.items():
        kinds = _ATTRIBUTE_KINDS.get(known[name].annotation)
        if kinds is not None and not isinstance(value, kinds):
            raise MalformedNodeError(
                f"{definition.qualified_name}: attribute {name!r} must be {known[name].annotation}, not {shown(value)}"
            )
        if known[name].annotation == "tuple[int, ...]" and not all(isinstance(item, int) for item in value):
            raise MalformedNodeError(f"{definition.qualified_name}: attribute {name!r} must hold integers")
    for parameter in known.values():
        if parameter.default is REQUIRED and parameter.name not in attributes:
            raise MalformedNodeError(f"{definition.qualified_name} needs its attribute {parameter.name!r}")
    return dict(attributes)


def _describe(
    function: Callable[..., Any], name: str, domain: str, outputs: tuple[int, int] | None, *, since: int
) -> Definition:
    inputs: list[Parameter] = []
    attributes: list[AttributeParameter] = []
    variadic = counts_outputs = sees_graph = ignores_attributes = False
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        stated = _stated(parameter.annotation)
        annotation = stated.replace(" | None", "")
        match parameter.kind:
            case inspect.Parameter.VAR_POSITIONAL:
                variadic = True
            case inspect.Parameter.VAR_KEYWORD:
                ignores_attributes = True
            case inspect.Parameter.KEYWORD_ONLY if parameter.name == "output_count":
                counts_outputs = True
            case inspect.Parameter.KEYWORD_ONLY if parameter.name == "enclosing":
                sees_graph = True
            case inspect.Parameter.KEYWORD_ONLY:
                attributes.append(AttributeParameter(parameter.name, annotation, parameter.default))
            case _:
                kind = {"Static": "static", "Sizes": "sizes"}.get(annotation, "tensor")
                optional = parameter.default is None or stated.endswith("| None")
                inputs.append(Parameter(parameter.name, kind, optional))
    outputs = outputs or _outputs(_stated(signature.return_annotation))
    schema = (tuple(inputs), variadic, tuple(attributes), counts_outputs, sees_graph, outputs, ignores_attributes)
    return Definition(domain, name, since, function, *schema)


def _stated(annotation: Any) -> str:
    """An annotation as its text, which it is only in modules that put its evaluation off."""
    if isinstance(annotation, str):
        return annotation
    for name, known in (
        ("Static", Static),
        ("Sizes", Sizes),
        ("None", type(None)),
        ("np.ndarray[Any, Any]", np.ndarray),
    ):
        if annotation == known:
            return name
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(sorted(map(_stated, get_args(annotation)), key="None".__eq__))
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


def _outputs(text: str) -> tuple[int, int] | None:
    """How many outputs a return annotation tells of; None where that is open."""
    if text.rpartition(".")[2] == "Tensor":
        return (1, 1)
    if text.startswith("tuple[") and "..." not in text:
        count = text.count(",") + 1
        return (count, count)
    return None


def require(condition: bool, problem: str, hint: str | None = None) -> None:
    """Raise InvalidModelError unless the model keeps a rule of the op."""
    if not condition:
        raise InvalidModelError(problem, hint=hint)


def normalize_axis(axis: int, rank: int) -> int:
    """An axis counted from the front, checked."""
    if not -rank <= axis < max(rank, 1):
        raise InvalidModelError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank if rank else 0


def normalize_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, checked, each once."""
    result = tuple(normalize_axis(int(axis), rank) for axis in axes)
    if len(set(result)) != len(result):
        raise InvalidModelError(f"axes {result} name a dimension twice")
    return result
