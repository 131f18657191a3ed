"""Dead code elimination: drop steps whose results are unused, and constants that no step reads.

Steps that bind symbols (`Observe`, host steps with data-dependent sizes) stay while anything else uses the symbols.
"""

from __future__ import annotations

from dataclasses import replace

from weft.ir import dims
from weft.ir.program import Guard, Observe, Primitive, Scan, Scatter, Step, TensorProgram, Value, bodies
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, walk
from weft.ir.types import Type
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere


def drop_unused(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Keep only what the outputs need, including in bodies; drop operands of scans that their bodies do not read."""
    program = everywhere(drop_unused, program, evaluator)
    return with_outputs(replace(program, steps=tuple(map(_drop_unread_operands, program.steps))), program.outputs)


def _drop_unread_operands(step: Step) -> Step:
    """Drop the sequences and captures of a scan that its body does not read."""
    scan = step.primitive
    if not isinstance(scan, Scan):
        return step
    read = {*scan.body.outputs, *(operand for inner in scan.body.steps for operand in inner.operands)}
    first_capture = scan.carries + scan.sequences
    used = [n for n, value in enumerate(scan.body.inputs) if n < scan.carries or value in read]
    body = replace(scan.body, inputs=tuple(scan.body.inputs[number] for number in used))
    sequences = sum(scan.carries <= number < first_capture for number in used)
    operands = tuple(step.operands[number] for number in used)
    return replace(step, primitive=replace(scan, body=body, sequences=sequences), operands=operands)


def with_outputs(program: TensorProgram, outputs: tuple[Value, ...]) -> TensorProgram:
    """Keep only the steps that some outputs need.

    Guards stay, with the steps that bind their symbols: a guard may be all that remains of an op. So do scatters in
    place, which change an input.
    """
    bound_by_inputs = set().union(*(type_symbols(value.type) for value in program.inputs))
    needed: set[Value] = set(outputs)
    sizes = set().union(*map(guard_symbols, program.guards), *(type_symbols(output.type) for output in outputs))
    binding = [bound_symbols(step) - bound_by_inputs for step in program.steps]
    has_binding_steps = any(binding)  # otherwise it does not matter which sizes the steps use
    steps: list[Step] = []
    for step, binds in zip(reversed(program.steps), reversed(binding)):
        in_place = isinstance(step.primitive, Scatter) and step.primitive.in_place
        if needed.intersection(step.results) or binds & sizes or in_place:
            steps.append(step)
            needed.update(step.operands)
            if has_binding_steps:
                sizes |= step_symbols(step)
    constants = {value: content for value, content in program.constants.items() if value in needed}
    return replace(program, outputs=outputs, steps=tuple(reversed(steps)), constants=constants)


def bound_symbols(step: Step) -> set[str]:
    """Return the symbols that a step may bind."""
    if isinstance(step.primitive, Observe):
        return {str(symbol) for symbol in step.primitive.symbols}
    names = set()
    for value in step.results:
        names |= {str(dim) for dim in value.known_shape or () if dims.as_symbol(dim) is not None}
    return names


def step_symbols(step: Step) -> set[str]:
    """Return the symbols that a step uses, including those in its bodies."""
    names = primitive_symbols(step.primitive)
    for value in (*step.operands, *step.results):
        names |= type_symbols(value.type)
    return names


def primitive_symbols(primitive: Primitive) -> set[str]:
    """Return the symbols that a primitive uses."""
    names: set[str] = set()
    for body in bodies(primitive):
        for step in body.steps:
            names |= step_symbols(step)
        for guard in body.guards:
            names |= guard_symbols(guard)
    for slot in primitive.__slots__:
        names |= _content_symbols(getattr(primitive, slot))
    return names


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
    """Return the symbols in a tensor's shape."""
    return set().union(*map(dims.symbol_names, type.shape or ()))


def guard_symbols(guard: Guard) -> set[str]:
    """Return the symbols that a guard compares."""
    return {*dims.symbol_names(guard.left), *dims.symbol_names(guard.right)}
