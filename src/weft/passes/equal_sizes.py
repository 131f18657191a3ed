"""Write sizes that a guard declares equal in one form, so that later stages see that they are equal.

An attention mask of `total` keys that is added to scores of `past + new` keys makes the guard `total == past + new`.
With `past + new` in place of `total` in all steps, the scores have one shape from the product to the softmax. Sizes
that equal one other size stay: each input shows its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim, Expr
from weft.ir.program import HOST_STEPS, Reshape, Scan, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Index, Literal, Load, rebuild
from weft.ir.types import TensorType
from weft.opset.equal_sizes import find_equal_sizes, replace_sizes
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere, next_number

Substitute = Callable[[Dim], Dim]


def unify_sizes(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Replace sizes of inputs by sums that guards say they equal; a reshape gives such an input its new shape."""
    program = everywhere(unify_sizes, program, evaluator)
    sizes = find_equal_sizes(program, only_sums=True)
    if not sizes:
        return program

    def substitute(dim: Dim) -> Dim:
        return replace_sizes(dim, sizes)

    values: dict[Value, Value] = {}
    inputs = frozenset(program.inputs)
    reshapes: list[Step] = []
    for number, value in enumerate(program.inputs, next_number(program)):
        shape = tuple(map(substitute, value.shape)) if value.has_shape else None
        if shape is not None and shape != value.shape:
            values[value] = Value(number, TensorType(value.dtype, shape))
            reshapes.append(Step(Reshape(), (value,), (values[value],), "equal sizes"))
    steps = [_rewrite_step(step, substitute, values, inputs) for step in program.steps]
    outputs = tuple(value if value in inputs else values.get(value, value) for value in program.outputs)
    return replace(program, steps=(*reshapes, *steps), outputs=outputs)


def _rewrite_step(step: Step, substitute: Substitute, values: dict[Value, Value], inputs: frozenset[Value]) -> Step:
    if isinstance(step.primitive, (*HOST_STEPS, Scan)):  # their bodies bind the sizes of their inputs
        operands = tuple(value if value in inputs else values.get(value, value) for value in step.operands)
        return step if operands == step.operands else replace(step, operands=operands)
    operands = tuple(values.get(value, value) for value in step.operands)
    results = []
    for value in step.results:
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            shape = tuple(map(substitute, value.type.shape))
            if shape != value.type.shape:
                values[value] = replace(value, type=TensorType(value.type.dtype, shape))
        results.append(values.get(value, value))
    fields = {slot: getattr(step.primitive, slot) for slot in step.primitive.__slots__}
    changed = {slot: new for slot, old in fields.items() if (new := _rewrite_content(old, substitute)) is not old}
    if not changed and operands == step.operands and tuple(results) == step.results:
        return step
    primitive = replace(step.primitive, **changed) if changed else step.primitive
    return replace(step, primitive=primitive, operands=operands, results=tuple(results))


def _rewrite_content(content: Any, substitute: Substitute) -> Any:
    """Rewrite dims, scalars and tuples of them; return the content itself if nothing changes."""
    match content:
        case Expr():
            return substitute(content)
        case tuple():
            items = tuple(_rewrite_content(item, substitute) for item in content)
            return content if all(new is old for new, old in zip(items, content)) else items
        case Literal() | Index() | Load() | Apply():
            new = rebuild(content, atom=lambda atom: substitute(dims.from_atom(atom)))
            return content if new == content else new
        case _:
            return content
