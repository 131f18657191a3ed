"""Control flow with Python functions as bodies, and other ops whose functions differ from their definitions.

A body is called once with tensors of its input types, and again with wider types if a loop's state changes its shape.
It may use tensors of the enclosing graph; its return values are the outputs of the node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from weft.builder.arguments import as_attribute, as_inputs
from weft.builder.bodies import write_body
from weft.builder.draft import Draft
from weft.builder.functions import NodeCall, add, find_draft, report_at_caller
from weft.builder.handle import Handle
from weft.builder.naming import function_names
from weft.builder.signatures import bind_arguments
from weft.errors import GraphError, short_repr
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.graph import Attribute
from weft.ir.types import AnyType, SequenceType, TensorType, Type
from weft.opset.flow import join_types
from weft.opset.registry import Definition

if TYPE_CHECKING:
    from weft.builder.tensor import Tensor, TensorLike

Params = ParamSpec("Params")
Result = TypeVar("Result")


def control_flow(function: Callable[Concatenate[Draft, Params], Result]) -> Callable[Params, Result]:
    """Make the public form of a function that takes the draft first; an error removes all nodes that it added."""
    with_draft = inspect.signature(function)
    signature = with_draft.replace(parameters=list(with_draft.parameters.values())[1:])

    @report_at_caller
    @wraps(function)
    def call(*arguments: Params.args, **keywords: Params.kwargs) -> Result:
        bind_arguments(function.__name__, signature, arguments, keywords)
        draft = find_draft((*arguments, *keywords.values()))
        with draft.transaction():
            return function(draft, *arguments, **keywords)

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__module__ = "weft.ops"
    return call


@control_flow
def if_(
    draft: Draft,
    condition: TensorLike,
    then: Callable[[], TensorLike],
    otherwise: Callable[[], TensorLike],
    *,
    name: str | None = None,
) -> Any:
    """Run `then` if `condition` is true, else `otherwise`; neither takes arguments.

    Both must return the same number of tensors, of the same dtypes; shapes may differ. The result is a tensor if both
    return a single tensor instead of a list, else a tuple.
    """
    definition = _find_definition(draft, "if_")
    first, second = (write_body(draft, key, (), _check_body(each, key))
                     for key, each in (("then", then), ("otherwise", otherwise)))  # fmt: skip
    if len(first.types) != len(second.types):
        raise GraphError(
            f"if_: `then` returns {len(first.types)} tensors, `otherwise` {len(second.types)}",
            hint="return the same number of tensors from both",
        )
    for number, (a, b) in enumerate(zip(first.types, second.types)):
        if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype is not b.dtype:
            raise GraphError(f"if_: result {number} is {a} in one branch and {b} in the other", hint="cast one of them")
    branches: dict[str, Attribute] = {"then_branch": first.graph, "else_branch": second.graph}
    results = add(draft, NodeCall(definition, (condition,), branches, len(first.types), name))
    return results[0] if first.single and second.single else tuple(results)


@control_flow
def loop(
    draft: Draft,
    trip_count: TensorLike | None,
    condition: TensorLike | None,
    states: Sequence[TensorLike],
    body: Callable[..., Sequence[TensorLike | None]],
    *,
    name: str | None = None,
) -> tuple[Tensor, ...]:
    """Run `body(iteration, *states)` in a loop, and return the last states and the collected tensors.

    trip_count: the largest number of iterations; None: no limit.
    condition: whether to run the first iteration; None: yes.
    body: returns whether to continue (None: yes), the next states, and then tensors to collect, which are stacked along
        a new first axis. A state may change its shape from one iteration to the next, but not its dtype.
    """
    definition = _find_definition(draft, "loop")
    inputs = as_inputs(draft, definition, (trip_count, condition, *_check_list(states, "states")))
    types = [_check_tensor(handle).type for handle in inputs[2:]]
    loose: set[Dim] = set()  # sizes that differ between iterations
    checked_body = _check_body(body, "body")

    def step(iteration: Handle, _: Handle, *arguments: Handle) -> list[Any]:
        returned = checked_body(iteration, *arguments)
        results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        if len(results) <= len(types):
            raise GraphError(
                f"loop: the body returns {len(results)} values; with {len(types)} states it must return at least "
                f"{1 + len(types)}",
                hint="return whether to continue (None: yes), each next state, and then the tensors to collect",
            )
        return [True if results[0] is None else results[0], *results[1:]]

    fixed = [("iteration", TensorType(DType.int64, ())), ("condition", TensorType(DType.bool, ()))]
    while True:
        with draft.transaction() as rollback:
            named = [(f"state{number}", type) for number, type in enumerate(types)]
            traced = write_body(draft, "loop", [*fixed, *named], step)
            joined = [_join_state(draft, loose, *pair) for pair in enumerate(zip(types, traced.types[1:]))]
            if joined == types:
                break
            rollback()
            types = joined
    attributes: dict[str, Attribute] = {"body": traced.graph}
    return _as_tensors(add(draft, NodeCall(definition, tuple(inputs), attributes, len(traced.types) - 1, name)))


@control_flow
def scan(
    draft: Draft,
    states: Sequence[TensorLike],
    sequences: Sequence[TensorLike],
    body: Callable[..., TensorLike],
    *,
    axes: Sequence[int] | None = None,
    reverse: Sequence[bool] | None = None,
    name: str | None = None,
) -> tuple[Tensor, ...]:
    """Run `body(*states, *slices)` along the sequences, and return the last states and the collected tensors.

    axes: the axis along which each sequence is sliced; None: the first of each.
    reverse: whether each sequence is traversed from its end; None: none is.
    body: returns the next states, of the same types, and then tensors to collect, which are stacked along a new first
        axis.
    """
    definition = _find_definition(draft, "scan")
    operands = (*_check_list(states, "states"), *_check_list(sequences, "sequences"))
    inputs = [_check_tensor(handle) for handle in as_inputs(draft, definition, operands)]
    count = len(states)
    attributes: dict[str, Attribute] = {"num_scan_inputs": len(sequences)}
    parameters = {parameter.name: parameter for parameter in definition.attributes}
    for title, attribute, values in (("axes", "scan_input_axes", axes), ("reverse", "scan_input_directions", reverse)):
        if values is not None:
            if len(_check_list(values, title)) != len(sequences):
                raise GraphError(f"scan: {title} has {len(values)} entries for {len(sequences)} sequences")
            attributes[attribute] = as_attribute(definition, parameters[attribute], list(values))
    slice_axes = axes or [0] * len(sequences)
    types = [(f"state{number}", handle.type) for number, handle in enumerate(inputs[:count])]
    types += [(f"slice{number}", _slice_type(handle.type, axis))
              for number, (handle, axis) in enumerate(zip(inputs[count:], slice_axes))]  # fmt: skip
    traced = write_body(draft, "scan", types, _check_body(body, "body"))
    if len(traced.types) < count:
        raise GraphError(
            f"scan: the body returns {len(traced.types)} values for {count} states",
            hint="return each next state, and then the tensors to collect",
        )
    call = NodeCall(definition, tuple(inputs), {**attributes, "body": traced.graph}, len(traced.types), name)
    return _as_tensors(add(draft, call))


@control_flow
def sequence_map(
    draft: Draft, sequence: Tensor, *others: TensorLike, body: Callable[..., TensorLike], name: str | None = None
) -> tuple[Tensor, ...]:
    """Run `body` for each element of a sequence, and return sequences of its results.

    others: more inputs of `body`: the elements of sequences of the same length, and tensors, which every call gets as
        they are.
    """
    definition = _find_definition(draft, "sequence_map")
    inputs = [_check_tensor(handle) for handle in as_inputs(draft, definition, (sequence, *others))]
    types = [
        (f"element{number}", handle.type.element if isinstance(handle.type, SequenceType) else handle.type)
        for number, handle in enumerate(inputs)
    ]
    traced = write_body(draft, "sequence_map", types, _check_body(body, "body"))
    call = NodeCall(definition, tuple(inputs), {"body": traced.graph}, len(traced.types), name)
    return _as_tensors(add(draft, call))


@control_flow
def split(
    draft: Draft,
    x: TensorLike,
    split: TensorLike | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    name: str | None = None,
) -> tuple[Tensor, ...]:
    """Split a tensor along an axis into parts of the sizes in `split`, or into `num_outputs` equal parts."""
    definition = _find_definition(draft, "split")
    attributes: dict[str, Attribute] = {} if axis == 0 else {"axis": axis}
    parameters = {parameter.name: parameter for parameter in definition.attributes}
    if (split is None) == (num_outputs is None):
        raise GraphError("split: pass either `split`, the sizes of the parts, or `num_outputs`")
    if num_outputs is not None and "num_outputs" in parameters:
        attributes["num_outputs"] = num_outputs
    count = _count_parts(split) if num_outputs is None else num_outputs
    inputs = [x]
    if split is not None and "split" in parameters:  # an attribute of old opsets
        attributes["split"] = as_attribute(definition, parameters["split"], split)
    elif split is not None:
        inputs.append(split)
    return _as_tensors(add(draft, NodeCall(definition, tuple(inputs), attributes, count, name)))


SPECIAL: dict[str, Callable[..., Any]] = {each.__name__: each for each in (if_, loop, scan, sequence_map, split)}
"""The functions that replace those made from the definitions."""


def _find_definition(draft: Draft, function: str) -> Definition:
    return draft.definition("", function_names("")[function])


def _check_body(function: Any, role: str) -> Callable[..., Any]:
    """Wrap the function of a body so that a call with the wrong number of arguments is a GraphError."""
    if not callable(function):
        raise GraphError(f"{role} must be a function, not {short_repr(function)}", hint="def body(...): return ...")

    def call(*tensors: Any) -> Any:
        try:
            inspect.signature(function).bind(*tensors)
        except TypeError as error:
            hint = f"{role} is called with {len(tensors)} arguments; see help() of this function"
            raise GraphError(f"{role} does not accept its arguments: {error}", hint=hint) from None
        except ValueError:  # builtins may have no signature
            pass
        return function(*tensors)

    return call


def _check_list(value: Sequence[Any], name: str) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise GraphError(f"{name} must be a list, not {short_repr(value)}", hint="put even a single one in a list")
    return value


def _as_tensors(handles: Sequence[Handle]) -> tuple[Tensor, ...]:
    """The draft creates its handles as tensors, see `Draft.__init__`."""
    return cast("tuple[Tensor, ...]", tuple(handles))


def _check_tensor(handle: Handle | None) -> Handle:
    if handle is None:
        raise GraphError("a state or sequence is None", hint="pass a tensor, an array or a number")
    return handle


def _join_state(draft: Draft, loose: set[Dim], number: int, types: tuple[Type, Type]) -> Type:
    """Return the type that covers a state before and after an iteration."""
    before, after = types
    if isinstance(before, TensorType) and isinstance(after, TensorType) and before.dtype is not after.dtype:
        raise GraphError(f"loop: state {number} changes from {before} to {after}", hint="cast it in the body")
    return join_types(before, after, draft.level.trace, loose)


def _slice_type(type: Type, axis: int) -> Type:
    if not isinstance(type, TensorType):
        return AnyType()
    if type.shape is None:
        return TensorType(type.dtype, None)
    if not -len(type.shape) <= axis < len(type.shape):
        raise GraphError(f"scan: axis {axis} is out of range for {type}")
    shape = tuple(size for position, size in enumerate(type.shape) if position != axis % len(type.shape))
    return TensorType(type.dtype, shape)


def _count_parts(sizes: Any) -> int:
    if isinstance(sizes, Handle):
        shape = sizes.type.shape
        if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
            raise GraphError(f"split: {sizes.type} does not tell the number of parts", hint="pass a list of sizes")
        return shape[0]
    return len(_check_list(sizes.tolist() if isinstance(sizes, np.ndarray) else sizes, "split"))
