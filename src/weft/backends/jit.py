"""Trace and compile late steps during a run, once their operands' ranks and types are known.

Consecutive late steps become one program, cached by the kind of its operands. Sizes stay symbolic in it, unless they
are 0 or 1 or the steps need a number, so that tensors may grow from iteration to iteration. Which program runs depends
on the operands alone and not on earlier runs: results keep their bits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.device import Executable
from weft.backends.reference.sizes import GuardError, in_order
from weft.errors import InternalError, WeftError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import from_numpy
from weft.ir.graph import Graph
from weft.ir.program import Late, Loop, Step, TensorProgram, Value, bodies
from weft.ir.types import AnyType, SequenceType, TensorType, Type
from weft.threads import make_lock

MOST_PROGRAMS = 32  # cached for the same steps
MOST_NODES = 10_000  # traced for one program


CompileLate = Callable[[TensorProgram], Executable]
FixedSizes = tuple[tuple[int, int, int], ...]  # operand, axis, and its required size
Sizes = Mapping[tuple[int, int], Dim]  # by operand and axis


class LateSteps:
    """Consecutive late steps. Several threads may run them at once."""

    def __init__(
        self,
        steps: Sequence[Step],
        operands: Sequence[Value],
        results: Sequence[Value],
        constants: Mapping[Value, Any],
        compile: CompileLate,
    ) -> None:
        """`operands` come from outside, `results` are read there; `constants` are those of the enclosing program."""
        self.steps = tuple(steps)
        self.results = tuple(results)
        self.constants = {value: constants[value] for value in operands if value in constants}
        self._operands = tuple(operands)
        self._variable = [number for number, value in enumerate(operands) if value not in self.constants]
        self._compile = compile
        self._executables: OrderedDict[Any, tuple[Executable, FixedSizes] | None] = (
            OrderedDict()
        )  # None: run node by node
        self._lock = make_lock()

    def run(self, operands: list[Any]) -> list[Any]:
        """Return the results; steps that cannot be compiled run node by node."""
        inputs = [in_order(operands[number]) for number in self._variable]
        kind = tuple([_kind_of(content) for content in inputs])
        compiled: tuple[Executable, FixedSizes] | None = self._executables.get(kind, _UNSEEN)
        if compiled is _UNSEEN:
            compiled = self._compile_for(kind, inputs)
        if compiled is not None:
            executable, fixed = compiled
            if all(inputs[number].shape[axis] == size for number, axis, size in fixed):
                try:
                    return executable.run(inputs)
                except (GuardError, ArithmeticError):
                    pass
        return self._run_eagerly(operands)

    def _compile_for(self, kind: Any, inputs: Sequence[Any]) -> tuple[Executable, FixedSizes] | None:
        """Compile the steps for a new kind of operands."""
        with self._lock:
            if kind not in self._executables:
                program = self._trace(inputs, {})
                sizes = {} if program is None else _find_needed_sizes(program)
                if sizes:  # with these, loops may have known trip counts and products be static
                    program = self._trace(inputs, sizes) or program
                self._executables[kind] = (
                    None if program is None else (self._compile(program), _fixed_sizes(program, inputs))
                )
                if len(self._executables) > MOST_PROGRAMS:
                    self._executables.popitem(last=False)
            return self._executables[kind]

    def _trace(self, inputs: Sequence[Any], sizes: Sizes) -> TensorProgram | None:
        """Trace the steps for inputs like these, some with fixed sizes; None if a step would be late again."""
        from weft.backends.reference.interpret import Interpreter
        from weft.opset.trace import Trace

        trace = Trace(Interpreter(), budget=MOST_NODES)
        scope: dict[Value, Any] = {}
        for value, content in self.constants.items():
            scope[value] = trace.constant(content, name=value.name)
        for number, (position, content) in enumerate(zip(self._variable, inputs)):
            value = self._operands[position]
            scope[value] = trace.input(_type_of(content, number, sizes), value.name)
        try:
            with trace.active():
                for step in self.steps:
                    trace.origin = step.origin
                    outputs = call_late(step, [scope[operand] for operand in step.operands])
                    scope.update(zip(step.results, outputs))
                program = trace.program([scope[value] for value in self.results])
        except (WeftError, ArithmeticError, AttributeError):  # running it node by node gives a better message
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
    """Call the definition of a late op on tensors of the active trace."""
    from weft.opset import registry
    from weft.opset.lower import Scope, Subgraph

    late = step.primitive
    assert isinstance(late, Late)
    definition = registry.find(late.domain, late.op, late.version)
    if definition is None:
        raise InternalError(f"{late.op} is late but has no definition")
    remaining = iter(operands)
    inputs = [next(remaining) if present else None for present in late.present]
    scope: Scope = {name: next(remaining) for name in late.captures}
    attributes = {
        name: Subgraph(value, scope) if isinstance(value, Graph) else value for name, value in late.attributes.items()
    }
    return list(registry.call(definition, inputs, attributes, len(step.results), late.version))


def _kind_of(content: Any) -> Any:
    """Return everything about an operand that its program depends on."""
    if isinstance(content, np.ndarray):
        return content.dtype, tuple([size if size < 2 else -1 for size in content.shape])
    if isinstance(content, list):
        return list, frozenset((item.dtype, item.shape) for item in content if isinstance(item, np.ndarray))
    return type(content)


def _type_of(content: Any, number: int, sizes: Sizes) -> Type:
    """Return the type of an operand: sizes above 1 are symbolic unless `sizes` has them."""
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


def _find_needed_sizes(program: TensorProgram) -> Sizes:
    """Find the sizes of operands that guards fix: those of the program, or of a loop body for carried values."""
    needed: dict[tuple[int, int], Dim] = {}
    axes: dict[str, tuple[int, int]] = {}  # the operand and axis of each symbol
    for number, value in enumerate(program.inputs):
        axes.update((name, (number, axis)) for axis, name in _symbol_axes(value))
    pending = [program]
    while pending:
        current = pending.pop()
        for guard in [guard for guard in current.guards if not guard.at_least]:
            for side, other in ((guard.left, guard.right), (guard.right, guard.left)):
                symbol = dims.as_symbol(side)
                if symbol is not None and symbol.name in axes and isinstance(other, int) and other > 1:
                    needed.setdefault(axes[symbol.name], other)
        for step in current.steps:
            pending += bodies(step.primitive)
            for body in bodies(step.primitive) if isinstance(step.primitive, Loop) else ():
                for inner, outer in zip(body.inputs[2:], step.operands[2:]):
                    outside = dict(_symbol_axes(outer))
                    pairs = [(name, outside.get(axis)) for axis, name in _symbol_axes(inner)]
                    axes.update((name, axes[same]) for name, same in pairs if same in axes)
    return needed


def _symbol_axes(value: Value) -> list[tuple[int, str]]:
    """List the axes of a tensor whose size is a single symbol."""
    shape = value.known_shape or ()
    named = [(axis, dims.as_symbol(size)) for axis, size in enumerate(shape)]
    return [(axis, symbol.name) for axis, symbol in named if symbol is not None]


def _fixed_sizes(program: TensorProgram, inputs: Sequence[Any]) -> FixedSizes:
    """List the fixed sizes above 1 of a program's inputs; smaller ones are part of the kind."""
    return tuple(
        (number, axis, size)
        for number, (value, content) in enumerate(zip(program.inputs, inputs))
        if isinstance(content, np.ndarray)
        for axis, size in enumerate(value.known_shape or ())
        if isinstance(size, int) and size > 1
    )


_UNSEEN: Any = object()
