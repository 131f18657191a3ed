"""Remove reshapes around products that flatten rows into one dimension and back.

Exporters reshape x [batch, length, k] to [batch * length, k], multiply it with a matrix, and reshape the result back,
which keeps the steps after it from being fused with the product. Here the product, and maps between it and the second
reshape, work on the original dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

from weft.ir import dims
from weft.ir.access import find_axes
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.program import Contract, Map, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import Index, Scalar, identity_indices, loads, rebuild
from weft.ir.types import Shape, TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere, next_number


def unflatten_rows(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Remove the reshapes before and after products of flattened rows."""
    program = everywhere(unflatten_rows, program, evaluator)
    makers = {result: step for step in program.steps for result in step.results}
    readers: dict[Value, list[Step]] = {}
    for step in program.steps:
        for operand in dict.fromkeys(step.operands):
            readers.setdefault(operand, []).append(step)
    numbers = count(next_number(program))
    changed: dict[int, list[Step]] = {}
    for step in program.steps:
        source = _match_flattened(step, makers)
        chain = None if source is None else _find_chain(step, readers, set(program.outputs))
        rows = None if source is None or chain is None else _common_rows(source.shape, chain)
        if source is not None and chain is not None and rows is not None:
            changed |= _unflatten_chain(source, rows, chain, numbers)
    if not changed:
        return program
    return replace(program, steps=tuple(new for step in program.steps for new in changed.get(id(step), [step])))


def _match_flattened(step: Step, makers: Mapping[Value, Step]) -> Value | None:
    """Return the source of the reshape that flattens the rows of a product's left operand."""
    if not isinstance(step.primitive, Contract):
        return None
    maker = makers.get(step.operands[0])
    if maker is None or not isinstance(maker.primitive, Reshape):
        return None
    contract = step.primitive
    row = contract.left[0] if contract.left else None
    if row is None or row in contract.right or contract.left.count(row) != 1 or contract.output.count(row) != 1:
        return None
    return maker.operands[0] if contract.output[0] == row else None


def _find_chain(step: Step, readers: Mapping[Value, list[Step]], outputs: set[Value]) -> list[Step] | None:
    """Return the product, the elementwise maps after it, and the final reshape."""
    chain = [step]
    while True:
        value = chain[-1].results[0]
        following = readers.get(value, [])
        if len(following) != 1 or value in outputs:
            return None
        (next_step,) = following
        chain.append(next_step)
        match next_step.primitive:
            case Reshape():
                return chain
            case Map(expression) if _is_elementwise(expression, next_step, value):
                continue
            case _:
                return None


def _common_rows(before: Shape, chain: list[Step]) -> Shape | None:
    """Return the dimensions of the rows if they agree before and after a chain, and there are several."""
    after, count_of_rows = chain[-1].results[0].shape, chain[0].operands[0].shape[0]
    for number in range(2, min(len(before), len(after)) + 1):
        if before[:number] != after[:number]:
            return None
        if dims.product(before[:number]) == count_of_rows:
            return before[:number]
    return None


def _is_elementwise(expression: Scalar, step: Step, value: Value) -> bool:
    """Whether a map is elementwise in `value`, and depends on the row in no other way."""
    shape = value.shape
    if step.results[0].shape != shape:
        return False
    identity = identity_indices(shape)
    if any(load.indices != identity for load in loads(expression) if step.operands[load.operand] == value):
        return False
    zero = Index(0)
    others = rebuild(expression, lambda load: zero if step.operands[load.operand] == value else load)
    return 0 not in find_axes(others)


def _unflatten_chain(source: Value, rows: Shape, chain: list[Step], numbers: Iterator[int]) -> dict[int, list[Step]]:
    """Build the replacements for the steps of a chain, by the ids of these."""
    product, *maps, back = chain
    contract = product.primitive
    assert isinstance(contract, Contract)
    more = len(rows) - 1
    free = max((*contract.left, *contract.right, *contract.output)) + 1
    labels = (contract.left[0], *range(free, free + more))
    wider = Contract((*labels, *contract.left[1:]), contract.right, (*labels, *contract.output[1:]))

    def unflatten(value: Value) -> Value:
        return Value(next(numbers), TensorType(value.dtype, (*rows, *value.shape[1:])), value.name)

    before, now = product.results[0], unflatten(product.results[0])
    left, reshape = source, []
    if source.shape != (*rows, *product.operands[0].shape[1:]):
        left = unflatten(product.operands[0])
        reshape = [Step(Reshape(), (source,), (left,), product.origin)]
    multiplied = replace(product, primitive=wider, operands=(left, product.operands[1]), results=(now,))
    replacements: dict[int, list[Step]] = {id(product): [*reshape, multiplied]}

    def shift_axis(atom: Symbol | Axis) -> Dim:
        return dims.axis(atom.position + more, atom.size) if isinstance(atom, Axis) else dims.from_atom(atom)

    for step in maps:
        assert isinstance(step.primitive, Map)
        shape = (*rows, *before.shape[1:])
        identity = identity_indices(shape)
        position = step.operands.index(before)
        expression = rebuild(step.primitive.expression, atom=shift_axis)
        expression = rebuild(
            expression,
            lambda load: replace(load, indices=identity) if load.operand == position else load,  # noqa: B023
        )
        operands = tuple(now if operand == before else operand for operand in step.operands)
        before, now = step.results[0], unflatten(step.results[0])
        replacements[id(step)] = [replace(step, primitive=Map(expression), operands=operands, results=(now,))]
    replacements[id(back)] = [replace(back, operands=(now,))]
    return replacements
