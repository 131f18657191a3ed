"""Products of rows that a reshape has put into one dimension, as products of the rows as they were.

Exporters write x [batch, length, k] as [batch * length, k], multiply it with a matrix, and put the result back into
shape: what follows the product cannot become a part of it then. Here the product, and maps between it and the second
reshape, keep the dimensions that they came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.program import Contract, Map, Reshape, Step, TensorProgram, Value, tensor_dtype
from weft.ir.scalar import Index, Scalar, loads, rebuild
from weft.ir.types import Shape, TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere, next_number


def restore_rows(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Products between two reshapes of their rows without these."""
    program = everywhere(restore_rows, program, evaluator)
    makers = {result: step for step in program.steps for result in step.results}
    readers: dict[Value, list[Step]] = {}
    for step in program.steps:
        for operand in dict.fromkeys(step.operands):
            readers.setdefault(operand, []).append(step)
    numbers = count(next_number(program))
    changed: dict[int, list[Step]] = {}
    for step in program.steps:
        source = _flattened(step, makers)
        chain = None if source is None else _chain(step, readers, set(program.outputs))
        rows = None if source is None or chain is None else _common_rows(_shape(source), chain)
        if source is not None and chain is not None and rows is not None:
            changed |= _restored(source, rows, chain, numbers)
    if not changed:
        return program
    return replace(program, steps=tuple(new for step in program.steps for new in changed.get(id(step), [step])))


def _flattened(step: Step, makers: Mapping[Value, Step]) -> Value | None:
    """What the left operand of a product was before its rows were one dimension."""
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


def _chain(step: Step, readers: Mapping[Value, list[Step]], outputs: set[Value]) -> list[Step] | None:
    """The product, maps of its elements, and the reshape after them."""
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
    """The dimensions that rows have on both sides of a chain: more than one."""
    after, count_of_rows = _shape(chain[-1].results[0]), _shape(chain[0].operands[0])[0]
    for number in range(2, min(len(before), len(after)) + 1):
        if before[:number] != after[:number]:
            return None
        if dims.product(before[:number]) == count_of_rows:
            return before[:number]
    return None


def _is_elementwise(expression: Scalar, step: Step, value: Value) -> bool:
    """Whether each element comes from the one at its place in `value`, and nothing else has to do with rows."""
    shape = _shape(value)
    if _shape(step.results[0]) != shape:
        return False
    own = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(shape))
    if any(load.indices != own for load in loads(expression) if step.operands[load.operand] == value):
        return False
    used: set[int] = set()

    def seen(atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            used.add(atom.position)
            return dims.axis(atom.position, atom.size)
        return dims.symbol(atom.name, atom.low, atom.high)

    zero = Index(0)
    others = rebuild(expression, lambda load: zero if step.operands[load.operand] == value else load)
    rebuild(others, atom=seen)
    return 0 not in used


def _restored(source: Value, rows: Shape, chain: list[Step], numbers: Iterator[int]) -> dict[int, list[Step]]:
    """The steps that take the place of those of a chain, by identity."""
    product, *maps, back = chain
    contract = product.primitive
    assert isinstance(contract, Contract)
    more = len(rows) - 1
    free = max((*contract.left, *contract.right, *contract.output)) + 1
    labels = (contract.left[0], *range(free, free + more))
    wider = Contract((*labels, *contract.left[1:]), contract.right, (*labels, *contract.output[1:]))

    def like(value: Value) -> Value:
        return Value(next(numbers), TensorType(tensor_dtype(value), (*rows, *_shape(value)[1:])), value.name)

    before, now = product.results[0], like(product.results[0])
    left, shaped = source, []
    if _shape(source) != (*rows, *_shape(product.operands[0])[1:]):
        left = like(product.operands[0])
        shaped = [Step(Reshape(), (source,), (left,), product.origin)]
    multiplied = replace(product, primitive=wider, operands=(left, product.operands[1]), results=(now,))
    found: dict[int, list[Step]] = {id(product): [*shaped, multiplied]}

    def moved(atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return dims.axis(atom.position + more, atom.size)
        return dims.symbol(atom.name, atom.low, atom.high)

    for step in maps:
        assert isinstance(step.primitive, Map)
        shape = (*rows, *_shape(before)[1:])
        places = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(shape))
        own = step.operands.index(before)
        expression = rebuild(step.primitive.expression, atom=moved)
        expression = rebuild(expression, lambda load: replace(load, indices=places) if load.operand == own else load)  # noqa: B023
        operands = tuple(now if operand == before else operand for operand in step.operands)
        before, now = step.results[0], like(step.results[0])
        found[id(step)] = [replace(step, primitive=Map(expression), operands=operands, results=(now,))]
    found[id(back)] = [replace(back, operands=(now,))]
    return found


def _shape(value: Value) -> Shape:
    assert isinstance(value.type, TensorType)
    return value.type.shape or ()
