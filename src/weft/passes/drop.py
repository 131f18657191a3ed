"""Dead code: steps whose results nothing needs, and constants that no step reads.

Steps that bind sizes (observations, host steps with sizes of their own) stay while anything left mentions those sizes.
"""

from __future__ import annotations

from dataclasses import replace

from weft.ir import dims
from weft.ir.program import Guard, Observe, Primitive, Scan, Step, TensorProgram, Value, bodies
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, walk
from weft.ir.types import TensorType, Type
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere


def drop_unused(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Keep what the outputs need, in bodies too; a scan takes only what its body reads."""
    program = everywhere(drop_unused, program, evaluator)
    return with_outputs(replace(program, steps=tuple(map(_without_unread, program.steps))), program.outputs)


def _without_unread(step: Step) -> Step:
    """A scan without the sequences and captures that its body does not read."""
    scan = step.primitive
    if not isinstance(scan, Scan):
        return step
    read = {*scan.body.outputs, *(operand for inner in scan.body.steps for operand in inner.operands)}
    first_capture = scan.carries + scan.sequences
    kept = [n for n, value in enumerate(scan.body.inputs) if n < scan.carries or value in read]
    body = replace(scan.body, inputs=tuple(scan.body.inputs[number] for number in kept))
    sequences = sum(scan.carries <= number < first_capture for number in kept)
    operands = tuple(step.operands[number] for number in kept)
    return replace(step, primitive=replace(scan, body=body, sequences=sequences), operands=operands)


def with_outputs(program: TensorProgram, outputs: tuple[Value, ...]) -> TensorProgram:
    """The part of a program that some of its outputs need.

    Guards stay, with the steps that bind their sizes: each may be all that is left of an op without effect.
    """
    bound_by_inputs = set().union(*(type_symbols(value.type) for value in program.inputs))
    needed: set[Value] = set(outputs)
    sizes = set().union(*map(guard_symbols, program.guards), *(type_symbols(output.type) for output in outputs))
    binding = [bound_symbols(step) - bound_by_inputs for step in program.steps]
    some_bind = any(binding)  # else no step is kept for the sizes that it shows, and it does not matter which those are
    kept: list[Step] = []
    for step, binds in zip(reversed(program.steps), reversed(binding)):
        if needed.intersection(step.results) or binds & sizes:
            kept.append(step)
            needed.update(step.operands)
            if some_bind:
                sizes |= step_symbols(step)
    constants = {value: content for value, content in program.constants.items() if value in needed}
    return replace(program, outputs=outputs, steps=tuple(reversed(kept)), constants=constants)


def bound_symbols(step: Step) -> set[str]:
    """Sizes that a step may be the first to show."""
    if isinstance(step.primitive, Observe):
        return {str(symbol) for symbol in step.primitive.symbols}
    found = set()
    for value in step.results:
        if isinstance(value.type, TensorType):
            found |= {str(dim) for dim in value.type.shape or () if dims.as_symbol(dim) is not None}
    return found


def step_symbols(step: Step) -> set[str]:
    """The sizes that a step mentions, in the programs inside it too."""
    found = primitive_symbols(step.primitive)
    for value in (*step.operands, *step.results):
        found |= type_symbols(value.type)
    return found


def primitive_symbols(primitive: Primitive) -> set[str]:
    """The sizes that a primitive mentions."""
    found: set[str] = set()
    for body in bodies(primitive):
        for step in body.steps:
            found |= step_symbols(step)
        for guard in body.guards:
            found |= guard_symbols(guard)
    for slot in primitive.__slots__:
        found |= _content_symbols(getattr(primitive, slot))
    return found


def _content_symbols(content: object) -> set[str]:
    match content:
        case dims.Expr():
            return set(dims.symbol_names(content))
        case tuple():
            return set().union(*(_content_symbols(item) for item in content))
        case Literal() | Index() | Load() | Apply():
            return _scalar_symbols(content)
        case _:
            return set()


def _scalar_symbols(scalar: Scalar) -> set[str]:
    return set().union(*[dims.symbol_names(node.value) for node in walk(scalar) if isinstance(node, Index)])


def type_symbols(type: Type) -> set[str]:
    """The sizes that a tensor's shape is made of."""
    if not isinstance(type, TensorType) or type.shape is None:
        return set()
    return set().union(*map(dims.symbol_names, type.shape))


def guard_symbols(guard: Guard) -> set[str]:
    """The sizes that a guard is about."""
    return {*dims.symbol_names(guard.left), *dims.symbol_names(guard.right)}
