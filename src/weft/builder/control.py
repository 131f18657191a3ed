"""Control flow with Python functions as bodies, and the few other ops whose functions are not their definitions' alone.

A body is called once with tensors of the types that it will meet, or again with wider ones where a loop's state changes
its shape. It may use tensors from outside of it; what it returns are the node's results.
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
from weft.builder.functions import NodeCall, add, blaming_the_caller, draft_of
from weft.builder.handle import Handle
from weft.builder.naming import names_of
from weft.builder.signatures import bound
from weft.errors import GraphError, short_repr
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.graph import Attribute
from weft.ir.types import AnyType, SequenceType, TensorType, Type
from weft.opset.flow import join_types
from weft.opset.registry import Definition

if TYPE_CHECKING:
    from weft.builder.tensor import Tensor, TensorLike

Given = ParamSpec("Given")
Result = TypeVar("Result")


def control_flow(function: Callable[Concatenate[Draft, Given], Result]) -> Callable[Given, Result]:
    """The public form of a function that takes the draft first; where it fails, it leaves nothing behind."""
    whole = inspect.signature(function)
    signature = whole.replace(parameters=list(whole.parameters.values())[1:])

    @blaming_the_caller
    @wraps(function)
    def call(*arguments: Given.args, **keywords: Given.kwargs) -> Result:
        bound(function.__name__, signature, arguments, keywords)
        draft = draft_of((*arguments, *keywords.values()))
        with draft.attempt():
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
    """Run one of two functions without arguments, as `condition` says.

    Both must return the same number of tensors, of the same dtypes; shapes may differ. The result is a tensor if both
    return one that is not in a list, else a tuple.
    """
    definition = _definition(draft, "if_")
    first, second = (write_body(draft, key, (), _function(each, key))
                     for key, each in (("then", then), ("otherwise", otherwise)))  # fmt: skip
    if len(first.types) != len(second.types):
        raise GraphError(
            f"if_: one branch returns {len(first.types)} tensors, the other {len(second.types)}",
            hint="both must return as many",
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
    """Run `body(iteration, *states)` again and again, and give the last states and what was collected.

    trip_count: how often at most; None: without end.
    condition: whether to start at all; None: yes.
    body: returns whether to go on (None: yes), the next states, and then tensors to collect: they are stacked along a
        new first axis. A state may change its shape from one iteration to the next, but not its dtype.
    """
    definition = _definition(draft, "loop")
    inputs = as_inputs(draft, definition, (trip_count, condition, *_listed(states, "states")))
    types = [_there(handle).type for handle in inputs[2:]]
    loose: set[Dim] = set()  # sizes that are others in each iteration
    calls = _function(body, "body")

    def step(iteration: Handle, _: Handle, *arguments: Handle) -> list[Any]:
        results = calls(iteration, *arguments)
        given = list(results) if isinstance(results, (list, tuple)) else [results]
        if len(given) <= len(types):
            raise GraphError(
                f"loop: the body returns {len(given)} values, but with {len(types)} states it must be at least "
                f"{1 + len(types)}",
                hint="return whether to go on (None: yes), each next state, and then what is to be collected",
            )
        return [True if given[0] is None else given[0], *given[1:]]

    fixed = [("iteration", TensorType(DType.int64, ())), ("condition", TensorType(DType.bool, ()))]
    while True:
        with draft.attempt() as take_back:
            named = [(f"state{number}", type) for number, type in enumerate(types)]
            written = write_body(draft, "loop", [*fixed, *named], step)
            joined = [_next_state(draft, loose, *pair) for pair in enumerate(zip(types, written.types[1:]))]
            if joined == types:
                break
            take_back()
            types = joined
    attributes: dict[str, Attribute] = {"body": written.graph}
    return _tensors(add(draft, NodeCall(definition, tuple(inputs), attributes, len(written.types) - 1, name)))


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
    """Run `body(*states, *slices)` along the sequences, and give the last states and what was collected.

    axes: along which axis each sequence is cut into slices; None: the first.
    reverse: whether each sequence is gone through from its end; None: none is.
    body: returns the next states, of the same types, and then tensors to collect: they are stacked along a new first
        axis.
    """
    definition = _definition(draft, "scan")
    operands = (*_listed(states, "states"), *_listed(sequences, "sequences"))
    inputs = [_there(handle) for handle in as_inputs(draft, definition, operands)]
    count = len(states)
    given: dict[str, Attribute] = {"num_scan_inputs": len(sequences)}
    known = {parameter.name: parameter for parameter in definition.attributes}
    for title, attribute, values in (("axes", "scan_input_axes", axes), ("reverse", "scan_input_directions", reverse)):
        if values is not None:
            if len(_listed(values, title)) != len(sequences):
                raise GraphError(f"scan: {title} has {len(values)} entries for {len(sequences)} sequences")
            given[attribute] = as_attribute(definition, known[attribute], list(values))
    along = axes or [0] * len(sequences)
    types = [(f"state{number}", handle.type) for number, handle in enumerate(inputs[:count])]
    types += [(f"slice{number}", _slice_type(handle.type, axis))
              for number, (handle, axis) in enumerate(zip(inputs[count:], along))]  # fmt: skip
    written = write_body(draft, "scan", types, _function(body, "body"))
    if len(written.types) < count:
        raise GraphError(
            f"scan: the body returns {len(written.types)} values for {count} states",
            hint="return each next state, and then what is to be collected",
        )
    call = NodeCall(definition, tuple(inputs), {**given, "body": written.graph}, len(written.types), name)
    return _tensors(add(draft, call))


@control_flow
def sequence_map(
    draft: Draft, sequence: Tensor, *others: TensorLike, body: Callable[..., TensorLike], name: str | None = None
) -> tuple[Tensor, ...]:
    """Run `body` for each element of a sequence (and of others of the same length), and give sequences of its results.

    What is a tensor among the others is given to every call as it is.
    """
    definition = _definition(draft, "sequence_map")
    inputs = [_there(handle) for handle in as_inputs(draft, definition, (sequence, *others))]
    types = [
        (f"element{number}", handle.type.element if isinstance(handle.type, SequenceType) else handle.type)
        for number, handle in enumerate(inputs)
    ]
    written = write_body(draft, "sequence_map", types, _function(body, "body"))
    call = NodeCall(definition, tuple(inputs), {"body": written.graph}, len(written.types), name)
    return _tensors(add(draft, call))


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
    """Cut a tensor into parts along an axis: of the sizes in `split`, or `num_outputs` of equal size."""
    definition = _definition(draft, "split")
    attributes: dict[str, Attribute] = {} if axis == 0 else {"axis": axis}
    known = {parameter.name: parameter for parameter in definition.attributes}
    if (split is None) == (num_outputs is None):
        raise GraphError("split: either the sizes of the parts or their number must be given")
    if num_outputs is not None and "num_outputs" in known:
        attributes["num_outputs"] = num_outputs
    count = _length(split) if num_outputs is None else num_outputs
    inputs = [x]
    if split is not None and "split" in known:  # an attribute of old opsets
        attributes["split"] = as_attribute(definition, known["split"], split)
    elif split is not None:
        inputs.append(split)
    return _tensors(add(draft, NodeCall(definition, tuple(inputs), attributes, count, name)))


SPECIAL: dict[str, Callable[..., Any]] = {each.__name__: each for each in (if_, loop, scan, sequence_map, split)}
"""The functions that take the place of those made from the definitions alone."""


def _definition(draft: Draft, function: str) -> Definition:
    return draft.definition("", names_of("")[function])


def _function(given: Any, what: str) -> Callable[..., Any]:
    if not callable(given):
        raise GraphError(f"{what} must be a function, not {short_repr(given)}", hint="def body(...): return ...")

    def called(*tensors: Any) -> Any:
        try:
            inspect.signature(given).bind(*tensors)
        except TypeError as error:
            hint = f"{what} is called with {len(tensors)} arguments; help() of this function says which"
            raise GraphError(f"{what} does not take what it is called with: {error}", hint=hint) from None
        except ValueError:  # it tells nothing of its arguments
            pass
        return given(*tensors)

    return called


def _listed(given: Sequence[Any], what: str) -> Sequence[Any]:
    if not isinstance(given, (list, tuple)):
        raise GraphError(f"{what} must be a list, not {short_repr(given)}", hint="put one into a list as well")
    return given


def _tensors(handles: Sequence[Handle]) -> tuple[Tensor, ...]:
    """The handles that a draft gives out are the tensors of its graph."""
    return cast("tuple[Tensor, ...]", tuple(handles))


def _there(handle: Handle | None) -> Handle:
    if handle is None:
        raise GraphError("a state or sequence is None", hint="give a tensor, or what becomes a constant")
    return handle


def _next_state(draft: Draft, loose: set[Dim], number: int, types: tuple[Type, Type]) -> Type:
    """What a state can be, if it is the first of these types before an iteration and the second after it."""
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
    kept = [size for position, size in enumerate(type.shape) if position != axis % len(type.shape)]
    return TensorType(type.dtype, tuple(kept))


def _length(sizes: Any) -> int:
    if isinstance(sizes, Handle):
        shape = sizes.type.shape if isinstance(sizes.type, TensorType) else None
        if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
            raise GraphError(f"split: into how many parts is not known from {sizes.type}", hint="give a list of sizes")
        return shape[0]
    return len(_listed(sizes.tolist() if isinstance(sizes, np.ndarray) else sizes, "split"))
