"""Verify the invariants of tensor programs that every pass relies on."""

from __future__ import annotations

from weft.errors import InternalError
from weft.ir.dims import Axis, atoms
from weft.ir.dtypes import DType
from weft.ir.float8_products import FLOAT8
from weft.ir.program import Contract, Convolve, Map, Scatter, Step, TensorProgram, Value, bodies
from weft.ir.scalar import FUNCTIONS, Apply, FlatLoad, Index, Load, Placeholder, Scalar, walk

Verified = dict[int, Step]
"""Verified steps by id; holding the steps keeps their ids unique."""

_ROUNDED_TYPES = ({DType.float16, DType.float32}, {DType.bfloat16, DType.float32})


def verify(program: TensorProgram, before: Verified | None = None) -> Verified:
    """Raise InternalError unless values are defined once and before use, and expressions fit their operands.

    Pass the result as `before` when verifying after the next pass: steps that it left unchanged are not checked again.
    """
    before = {} if before is None else before
    verified: Verified = {}
    defined: dict[int, Value] = {value.number: value for value in (*program.inputs, *program.constants)}
    if len(defined) != len(program.inputs) + len(program.constants):
        raise InternalError("inputs and constants share a number")
    for step in program.steps:
        for operand in step.operands:
            definition = defined.get(operand.number)
            if definition is not operand and definition != operand:
                raise InternalError(f"{operand} is used before it is defined", node=step.origin)
        if id(step) not in before:
            _verify_step(step)
        verified[id(step)] = step
        for result in step.results:
            if result.number in defined:
                raise InternalError(f"{result} is defined twice", node=step.origin)
            defined[result.number] = result
        for body in bodies(step.primitive):
            verified |= verify(body, before)
    for output in program.outputs:
        if defined.get(output.number) != output:
            raise InternalError(f"output {output} is never defined")
    return verified


def _verify_step(step: Step) -> None:
    match step.primitive:
        case Map(expression):
            (result,) = step.results
            if not result.has_shape:
                raise InternalError(f"the result of a map must be a tensor of known rank, not {result.type}")
            if expression.dtype is not result.dtype:
                raise InternalError(f"a map of {expression.dtype} has a result of {result.type}", node=step.origin)
            _verify_scalar(expression, step, result.rank)
        case Contract() | Convolve():
            left, right, result_dtype = (value.dtype for value in (*step.operands, *step.results))
            mixed = {left, right} <= {DType.uint8, DType.int8} and result_dtype is DType.int32
            is_narrow = {left, right, result_dtype} in _ROUNDED_TYPES or {left, right} <= {*FLOAT8}
            widened = is_narrow and result_dtype is DType.float32
            if not mixed and not widened and not left is right is result_dtype:
                raise InternalError(f"a product of {left} and {right} has a result of {result_dtype}", node=step.origin)
        case Scatter(domain, indices, update):
            for scalar in (*indices, update):
                _verify_scalar(scalar, step, len(domain))


def _verify_scalar(scalar: Scalar, step: Step, rank: int) -> None:
    for node in walk(scalar):
        match node:
            case Load(operand, indices, dtype):
                if operand >= len(step.operands):
                    raise InternalError(f"operand ${operand} does not exist", node=step.origin)
                source = step.operands[operand]
                if not source.is_tensor or source.dtype is not dtype:
                    raise InternalError(f"a load of {dtype} from {source.type}", node=step.origin)
                if not source.has_shape or source.rank != len(indices):
                    raise InternalError(f"{len(indices)} indices into {source.type}", node=step.origin)
            case Apply(function, arguments):
                if FUNCTIONS.get(function) != len(arguments):
                    raise InternalError(f"{function} of {len(arguments)} arguments", node=step.origin)
            case Placeholder() | FlatLoad():
                raise InternalError(f"{node} may occur only in kernels, not in programs", node=step.origin)
            case Index(value):
                if any(isinstance(atom, Axis) and atom.position >= rank for atom in atoms(value)):
                    raise InternalError(f"index {value} reaches past rank {rank}", node=step.origin)
