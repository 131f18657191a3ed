"""Steps that are traced late, once a run shows ranks and types: compiled together, and kept by what came in.

What follows each other and is late becomes one program. Sizes stay open in it, unless they are 0 or 1 or the steps ask
for one, so that tensors may grow from turn to turn; constants of the program around it are its own. Which program runs
depends on the operands alone, never on those before: results keep their bits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from weft.backends.reference.sizes import GuardError, in_order
from weft.errors import InternalError, WeftError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import from_numpy
from weft.ir.graph import Graph
from weft.ir.program import Late, Loop, Step, TensorProgram, Value, bodies
from weft.ir.types import AnyType, SequenceType, TensorType, Type
from weft.threads import lock

MOST_PROGRAMS = 32  # for the same steps
MOST_NODES = 10_000  # that are traced for one of them


class LateRunner(Protocol):
    """What runs a program that was compiled late."""

    def run(self, inputs: Sequence[Any]) -> list[Any]: ...


CompileLate = Callable[[TensorProgram], LateRunner]
Fixed = tuple[tuple[int, int, int], ...]  # operands, axes, and the sizes that these must have
Sizes = Mapping[tuple[int, int], Dim]  # by operand and axis


class LateSteps:
    """A row of late steps. Several threads may run it at once."""

    def __init__(
        self,
        steps: Sequence[Step],
        operands: Sequence[Value],
        results: Sequence[Value],
        constants: Mapping[Value, Any],
        compile: CompileLate,
    ) -> None:
        """`operands` come from outside, `results` are seen there; `constants` are those of the program around."""
        self.steps = tuple(steps)
        self.results = tuple(results)
        self.constants = {value: constants[value] for value in operands if value in constants}
        self._operands = tuple(operands)
        self._taken = [number for number, value in enumerate(operands) if value not in self.constants]
        self._compile = compile
        self._runners: OrderedDict[Any, tuple[LateRunner, Fixed] | None] = OrderedDict()  # None: node by node
        self._lock = lock()

    def run(self, operands: list[Any]) -> list[Any]:
        """The results; what cannot be compiled is computed node by node."""
        given = [in_order(operands[number]) for number in self._taken]
        kind = tuple([_kind_of(content) for content in given])
        found: tuple[LateRunner, Fixed] | None = self._runners.get(kind, _UNKNOWN)
        if found is _UNKNOWN:
            found = self._meet(kind, given)
        if found is not None:
            runner, fixed = found
            if all(given[number].shape[axis] == size for number, axis, size in fixed):
                try:
                    results: list[Any] = runner.run(given)
                    return results
                except (GuardError, ArithmeticError):
                    pass
        return self._run_eagerly(operands)

    def _meet(self, kind: Any, given: Sequence[Any]) -> tuple[LateRunner, Fixed] | None:
        """What runs operands of a kind that is met for the first time."""
        with self._lock:
            if kind not in self._runners:
                traced = self._traced(given, {})
                sizes = {} if traced is None else _asked_for(traced)
                if sizes:  # with what is known of them, loops in it may count, and products be static
                    traced = self._traced(given, sizes) or traced
                self._runners[kind] = None if traced is None else (self._compile(traced), _fixed(traced, given))
                if len(self._runners) > MOST_PROGRAMS:
                    self._runners.popitem(last=False)
            return self._runners[kind]

    def _traced(self, given: Sequence[Any], sizes: Sizes) -> TensorProgram | None:
        """The steps as a program for operands like these, of some sizes; None where that would again be late."""
        from weft.backends.reference.interpret import Interpreter
        from weft.opset.trace import Trace

        trace = Trace(Interpreter(), budget=MOST_NODES)
        scope: dict[Value, Any] = {}
        for value, content in self.constants.items():
            scope[value] = trace.constant(content, name=value.name)
        for number, (position, content) in enumerate(zip(self._taken, given)):
            value = self._operands[position]
            scope[value] = trace.input(_type_of(content, number, sizes), value.name)
        try:
            with trace.active():
                for step in self.steps:
                    trace.origin = step.origin
                    outputs = call_late(step, [scope[operand] for operand in step.operands])
                    scope.update(zip(step.results, outputs))
                program = trace.program([scope[value] for value in self.results])
        except (WeftError, ArithmeticError, AttributeError):  # whoever computes it node by node says more
            return None
        finally:
            trace.end()
        if any(isinstance(step.primitive, Late) for step in program.steps):
            return None
        return program

    def _run_eagerly(self, operands: list[Any]) -> list[Any]:
        from weft.backends.host_steps import run_on_host

        values = dict(zip(self._operands, operands))
        for step in self.steps:
            results = run_on_host(step, [values[operand] for operand in step.operands], {})
            values.update(zip(step.results, results))
        return [values[value] for value in self.results]


def call_late(step: Step, operands: Sequence[Any]) -> list[Any]:
    """The definition of a late op on tensors of the present trace."""
    from weft.opset import registry
    from weft.opset.lower import Scope, Subgraph

    late = step.primitive
    assert isinstance(late, Late)
    definition = registry.find(late.domain, late.op, late.version)
    if definition is None:
        raise InternalError(f"{late.op} was put off but is not defined")
    given = iter(operands)
    inputs = [next(given) if present else None for present in late.present]
    scope: Scope = {name: next(given) for name in late.captures}
    attributes = {
        name: Subgraph(value, scope) if isinstance(value, Graph) else value for name, value in late.attributes.items()
    }
    return list(registry.call(definition, inputs, attributes, len(step.results), late.version))


def _kind_of(content: Any) -> Any:
    """What a program for it depends on."""
    if isinstance(content, np.ndarray):
        return content.dtype, tuple([size if size < 2 else -1 for size in content.shape])
    if isinstance(content, list):
        return list, frozenset((item.dtype, item.shape) for item in content if isinstance(item, np.ndarray))
    return type(content)


def _type_of(content: Any, number: int, sizes: Sizes) -> Type:
    """The type of an operand: sizes above 1 are open unless they are given."""
    if isinstance(content, np.ndarray):
        shape = [
            size if size < 2 else sizes.get((number, axis), _open_size(number, axis))
            for axis, size in enumerate(content.shape)
        ]
        return TensorType(from_numpy(content.dtype), tuple(shape))
    if isinstance(content, list) and content and all(isinstance(item, np.ndarray) for item in content):
        shapes, dtypes = {item.shape for item in content}, {item.dtype for item in content}
        if len(dtypes) == 1:
            return SequenceType(TensorType(from_numpy(dtypes.pop()), shapes.pop() if len(shapes) == 1 else None))
    return SequenceType(AnyType()) if isinstance(content, list) else AnyType()


def _open_size(number: int, axis: int) -> Dim:
    return dims.symbol(f"late.{number}.{axis}", 2)


def _asked_for(program: TensorProgram) -> Sizes:
    """The sizes of operands that a program takes for granted, or a loop in it of what it carries."""
    found: dict[tuple[int, int], Dim] = {}
    known: dict[str, tuple[int, int]] = {}  # symbols that are sizes of operands
    for number, value in enumerate(program.inputs):
        known.update((name, (number, axis)) for axis, name in _symbols(value))
    pending = [program]
    while pending:
        current = pending.pop()
        for guard in [guard for guard in current.guards if not guard.at_least]:
            for one, other in ((guard.left, guard.right), (guard.right, guard.left)):
                symbol = dims.as_symbol(one)
                if symbol is not None and symbol.name in known and isinstance(other, int) and other > 1:
                    found.setdefault(known[symbol.name], other)
        for step in current.steps:
            pending += bodies(step.primitive)
            for body in bodies(step.primitive) if isinstance(step.primitive, Loop) else ():
                for inner, outer in zip(body.inputs[2:], step.operands[2:]):
                    outside = dict(_symbols(outer))
                    pairs = [(name, outside.get(axis)) for axis, name in _symbols(inner)]
                    known.update((name, known[same]) for name, same in pairs if same in known)
    return found


def _symbols(value: Value) -> list[tuple[int, str]]:
    """The axes of a tensor that are a symbol alone."""
    shape = value.type.shape or () if isinstance(value.type, TensorType) else ()
    named = [(axis, dims.as_symbol(size)) for axis, size in enumerate(shape)]
    return [(axis, symbol.name) for axis, symbol in named if symbol is not None]


def _fixed(program: TensorProgram, given: Sequence[Any]) -> Fixed:
    """The sizes above 1 that a program is for; smaller ones belong to the kind of operands."""
    return tuple(
        (number, axis, size)
        for number, (value, content) in enumerate(zip(program.inputs, given))
        if isinstance(content, np.ndarray) and isinstance(value.type, TensorType)
        for axis, size in enumerate(value.type.shape or ())
        if isinstance(size, int) and size > 1
    )


_UNKNOWN: Any = object()
