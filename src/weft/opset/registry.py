"""Definition and lookup of ops: an op is a function whose signature is its schema.

Positional parameters are inputs (`| None`: optional; `*name`: variadic), keyword-only parameters are attributes
(a default of `REQUIRED` makes them mandatory). An input annotated `Static` arrives as a numpy array and must be a
constant; one annotated `Sizes` arrives as a tuple of dims, bound at run time where they are not static. A keyword-only
`output_count` receives the number of outputs that the node uses, and `enclosing` the graph around the node, for an op
that refers to other nodes. `**ignored` allows attributes without a meaning. The return annotation says how many outputs
there are; `op(outputs=…)` does where a node may omit the last of them.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import numpy as np

from weft.errors import FallbackWarning, InvalidModelError, MalformedNodeError, OpDefinitionError, WeftError, short_repr
from weft.ir.dims import Dim, UndecidedError
from weft.ir.program import Late
from weft.ir.types import AnyType
from weft.opset.definition_errors import check_results, describe_source, explain_failure, find_place, is_own
from weft.opset.tensor import NotStaticError, OnlyAtRunError, Tensor, current_trace
from weft.opset.trace import is_symbolic
from weft.records import dataclass

Function = TypeVar("Function", bound=Callable[..., Any])
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
    outputs: tuple[int, int] | None  # the fewest and the most; None: inputs and attributes decide
    ignores_attributes: bool

    @property
    def qualified_name(self) -> str:
        return f"{self.domain}.{self.name}" if self.domain else self.name


class _Registration:
    """A registered function; its definition is described when it is first needed."""

    __slots__ = ("_definition", "_schema", "function", "since")

    def __init__(
        self, function: Callable[..., Any], name: str, domain: str, outputs: tuple[int, int] | None, since: int
    ) -> None:
        self.function = function
        self.since = since
        self._schema = (name, domain, outputs)
        self._definition: Definition | None = None

    def definition(self) -> Definition:
        definition = self._definition
        if definition is None:
            definition = self._definition = _describe(self.function, *self._schema, since=self.since)
        return definition


_registrations: dict[tuple[str, str], list[_Registration]] = {}
_PACKAGES = {"com.microsoft": "weft.opset.microsoft", "ai.onnx.ml": "weft.opset.ml"}
"""The packages that define the ops of a domain, or of domains whose names continue it."""


def _define_domain(domain: str) -> None:
    """Define weft's own ops of a domain, if they are in a package of their own."""
    for prefix, package in _PACKAGES.items():
        if domain.startswith(prefix):
            import_module(package)  # waits if another thread imports it


def op(
    name: str, since: int = 1, domain: str = "", outputs: tuple[int, int] | None = None
) -> Callable[[Function], Function]:
    """Register the decorated function as the meaning of `name` from opset version `since` on.

    `outputs`: the fewest and the most outputs of a node, where the return annotation does not say.
    """

    def register(function: Function) -> Function:
        registration = _Registration(function, name, domain, outputs, since)
        if not is_own(function):
            _define_domain(domain)
            _check_return_annotation(registration.definition())
        versions = _registrations.setdefault((domain, name), [])
        if any(version.since == since for version in versions):
            raise ValueError(f"{domain}.{name} is defined twice for opset {since}")
        versions.append(registration)
        versions.sort(key=lambda version: version.since)
        return function

    return register


def _check_return_annotation(definition: Definition) -> None:
    if definition.outputs is not None:
        return
    annotation = inspect.signature(definition.function).return_annotation
    text = "" if annotation is inspect.Signature.empty else _annotation_text(annotation)
    if text and text.rpartition(".")[2] not in ("None", "bool", "int", "float", "str", "ndarray", "Element"):
        return
    problem = f"its return value is annotated as {text}" if text else "it has no return annotation"
    raise OpDefinitionError(
        f"{definition.qualified_name} ({describe_source(definition.function)}): {problem}",
        hint="annotate its outputs: `-> Tensor`, `-> tuple[Tensor, Tensor]`, or `-> list[Tensor]` for any number",
    )


def find(domain: str, name: str, version: int) -> Definition | None:
    """Find the definition that is in force at an opset version."""
    _define_domain(domain)
    versions = _registrations.get((domain, name), ())
    return next((entry.definition() for entry in reversed(versions) if entry.since <= version), None)


def known_attributes(domain: str, name: str, version: int) -> frozenset[str] | None:
    """Return the attributes of an op that ignores others; None for an op that does not."""
    definition = find(domain, name, version)
    if definition is None or not definition.ignores_attributes:
        return None
    return frozenset(attribute.name for attribute in definition.attributes)


def definitions() -> list[Definition]:
    """Return all definitions by domain, name and version."""
    for domain in _PACKAGES:
        _define_domain(domain)
    return select_definitions(lambda _: True)


def select_definitions(with_function: Callable[[Callable[..., Any]], bool]) -> list[Definition]:
    """Return the definitions of some functions, of those that have been defined, by domain, name and version."""
    entries = [entry for key in sorted(_registrations) for entry in _registrations[key]]
    return [entry.definition() for entry in entries if with_function(entry.function)]


def call(
    definition: Definition,
    inputs: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    output_count: int | None,
    version: int,
    enclosing: Any = None,
) -> list[Tensor | None]:
    """Run a definition on traced tensors; an op that needs values known only at run time is deferred to the run.

    `output_count`: how many outputs the node uses; None: all that the definition returns.
    """
    name, function = definition.qualified_name, definition.function
    keywords = _check_attributes(definition, attributes)
    if definition.counts_outputs:
        keywords["output_count"] = output_count
    if definition.sees_graph:
        keywords["enclosing"] = enclosing
    guards = len(current_trace.get().guards)
    try:
        result = function(*_bind_inputs(definition, inputs), **keywords)
    except (NotStaticError, UndecidedError) as reason:
        trace, location = current_trace.get(), find_place(function, reason)
        if trace.eager:
            raise InvalidModelError(f"{name}{location}: {reason}") from reason
        if definition.sees_graph:
            raise OnlyAtRunError(f"{name}{location}: {reason}") from reason
        if output_count is None:
            problem = f"how many outputs {name}{location} has depends on the run: {reason}"
            raise InvalidModelError(problem) from reason
        if location:
            advice = "fix the size, or choose with weft.opset.functions.where"
            message = f"{name}{location} runs uncompiled, which is slower: {reason}; {advice}"
            warnings.warn(message, FallbackWarning, stacklevel=2)
        del trace.guards[guards:]
        return _defer(definition, inputs, attributes, output_count, version)
    except (WeftError, RecursionError):
        raise
    except ZeroDivisionError as error:
        shapes = ", ".join(str(tensor.type) for tensor in inputs if tensor is not None)
        raise InvalidModelError(f"{name} has no meaning for these sizes, one of which is 0: {shapes}") from error
    except Exception as error:
        raise explain_failure(name, function, error) from error
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    check_results(name, function, outputs, definition.outputs)
    if output_count is not None and len(outputs) < output_count:
        raise InvalidModelError(f"{name} has {len(outputs)} outputs, not {output_count}")
    return outputs[:output_count]


def _defer(
    definition: Definition,
    inputs: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
    output_count: int,
    version: int,
) -> list[Tensor | None]:
    """Emit a step that traces the op at run time; outer values that its subgraphs use become operands."""
    present = tuple(tensor is not None for tensor in inputs)
    captured: dict[str, Tensor] = {}
    plain_attributes: dict[str, Any] = {}
    for name, value in attributes.items():
        plain_attributes[name] = value.graph if callable(value) else value
        captured.update(value.captured() if callable(value) else {})
    late = Late(definition.domain, definition.name, version, plain_attributes, present, tuple(captured))
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
        bound.append(None if tensor is None else _bind_input(parameter, tensor))
    return [*bound, *inputs[len(definition.inputs) :]]


def _bind_input(parameter: Parameter, tensor: Tensor) -> Any:
    if parameter.kind == "static":
        if tensor.static_value is None and 0 in tensor.shape:
            return np.empty([size if isinstance(size, int) else 0 for size in tensor.shape], tensor.dtype.numpy)
        if tensor.static_value is None or is_symbolic(tensor):
            raise NotStaticError(f"input {parameter.name!r} must be a constant")
        return tensor.static_value
    if parameter.kind == "sizes":
        return current_trace.get().observe(tensor, parameter.name)
    return tensor


def _check_attributes(definition: Definition, attributes: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {parameter.name: parameter for parameter in definition.attributes}
    unknown = sorted(set(attributes) - set(parameters))
    if unknown:
        raise MalformedNodeError(
            f"{definition.qualified_name} has no attribute {', '.join(map(repr, unknown))} at this opset",
            hint=f"its attributes are {', '.join(parameters) or 'none'}",
        )
    for name, value in attributes.items():
        annotation = parameters[name].annotation
        kinds = _ATTRIBUTE_KINDS.get(annotation)
        if kinds is not None and not isinstance(value, kinds):
            raise MalformedNodeError(
                f"{definition.qualified_name}: attribute {name!r} must be {annotation}, not {short_repr(value)}"
            )
        if annotation == "tuple[int, ...]" and not all(isinstance(item, int) for item in value):
            raise MalformedNodeError(f"{definition.qualified_name}: attribute {name!r} must hold integers")
    for parameter in parameters.values():
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
        text = _annotation_text(parameter.annotation)
        annotation = text.replace(" | None", "")
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
                optional = parameter.default is None or text.endswith("| None")
                inputs.append(Parameter(parameter.name, kind, optional))
    outputs = outputs or _count_outputs(_annotation_text(signature.return_annotation))
    schema = (tuple(inputs), variadic, tuple(attributes), counts_outputs, sees_graph, outputs, ignores_attributes)
    return Definition(domain, name, since, function, *schema)


def _annotation_text(annotation: Any) -> str:
    """Return an annotation as its text, as modules with `from __future__ import annotations` have it."""
    if isinstance(annotation, str):
        return annotation
    names = (("Static", Static), ("Sizes", Sizes), ("None", type(None)), ("np.ndarray[Any, Any]", np.ndarray))
    for name, evaluated in names:
        if annotation == evaluated:
            return name
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(sorted(map(_annotation_text, get_args(annotation)), key="None".__eq__))
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


def _count_outputs(text: str) -> tuple[int, int] | None:
    """Return the fewest and most outputs that a return annotation allows; None for any number."""
    if text.rpartition(".")[2] == "Tensor":
        return (1, 1)
    if text.startswith("tuple[") and "..." not in text:
        count = text.count(",") + 1
        return (count, count)
    return None


def require(condition: bool, problem: str, hint: str | None = None) -> None:
    """Raise InvalidModelError unless a rule of the op holds."""
    if not condition:
        raise InvalidModelError(problem, hint=hint)


def normalize_axis(axis: int, rank: int) -> int:
    """Check an axis and count it from the front."""
    if not -rank <= axis < max(rank, 1):
        raise InvalidModelError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank if rank else 0


def normalize_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Check axes, each of which may occur once, and count them from the front."""
    result = tuple(normalize_axis(int(axis), rank) for axis in axes)
    if len(set(result)) != len(result):
        raise InvalidModelError(f"axes {result} name a dimension twice")
    return result
