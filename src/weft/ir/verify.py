"""Check that a tensor program keeps the rules that every pass relies on."""

from __future__ import annotations

from weft.errors import InternalError
from weft.ir.dims import Axis, atoms
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Convolve, Map, Scatter, Step, TensorProgram, Value, bodies, tensor_dtype
from weft.ir.scalar import FUNCTIONS, Apply, FlatLoad, Held, Index, Load, Scalar, walk
from weft.ir.types import TensorType

Verified = dict[int, Step]
"""Steps by their ids, which belong to no others as long as these are kept."""


def verify(program: TensorProgram, before: Verified | None = None) -> Verified:
    """Raise InternalError unless values are defined once and before use, and expressions fit their operands.

    The result is to be given as `before` after the next pass: steps that it left as they are, which are most, are not
    looked into again.
    """
    before = {} if before is None else before
    verified: Verified = {}
    defined: dict[int, Value] = {value.number: value for value in (*program.inputs, *program.constants)}
    if len(defined) != len(program.inputs) + len(program.constants):
        raise InternalError("inputs and constants share a number")
    for step in program.steps:
        for operand in step.operands:
            found = defined.get(operand.number)
            if found is not operand and found != operand:
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
            if not isinstance(result.type, TensorType) or result.type.shape is None:
                raise InternalError(f"a map must have a tensor with a shape as its result, not {result.type}")
            if expression.dtype is not result.type.dtype:
                raise InternalError(f"a map of {expression.dtype} gives {result.type}", node=step.origin)
            _verify_scalar(expression, step, len(result.type.shape))
        case Contract() | Convolve():
            left, right, result_dtype = map(tensor_dtype, (*step.operands, *step.results))
            mixed = {left, right} == {DType.uint8, DType.int8} and result_dtype is DType.int32
            rounded = {left, right} == {DType.bfloat16, DType.float32} and result_dtype is DType.float32
            if not mixed and not rounded and not left is right is result_dtype:
                raise InternalError(f"a product of {left} and {right} gives {result_dtype}", node=step.origin)
        case Scatter(domain, indices, update):
            for scalar in (*indices, update):
                _verify_scalar(scalar, step, len(domain))


def _verify_scalar(scalar: Scalar, step: Step, rank: int) -> None:
    for node in walk(scalar):
        match node:
            case Load(operand, indices, dtype):
                if operand >= len(step.operands):
                    raise InternalError(f"operand ${operand} does not exist", node=step.origin)
                type = step.operands[operand].type
                if not isinstance(type, TensorType) or type.dtype is not dtype:
                    raise InternalError(f"a load of {dtype} from {type}", node=step.origin)
                if type.shape is None or len(type.shape) != len(indices):
                    raise InternalError(f"{len(indices)} indices into {type}", node=step.origin)
            case Apply(function, arguments):
                if FUNCTIONS.get(function) != len(arguments):
                    raise InternalError(f"{function} of {len(arguments)} arguments", node=step.origin)
            case Held() | FlatLoad():
                raise InternalError(f"{node} is for kernels, not for programs", node=step.origin)
            case Index(value):
                if any(isinstance(atom, Axis) and atom.position >= rank for atom in atoms(value)):
                    raise InternalError(f"index {value} reaches past rank {rank}", node=step.origin)
