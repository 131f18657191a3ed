"""Steps that are traced late, once a run shows ranks and types: compiled together, and kept by what came in.

What follows each other and is late becomes one program. Sizes that were seen to differ stay open in it, unless they are
0 or 1, so that tensors may grow from turn to turn; constants of the program around it are its own. A kind of operands
that is met for the first time is computed node by node, since it may never come again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from weft.backends.reference.sizes import GuardError, in_order
from weft.errors import InternalError, WeftError
from weft.ir import dims
from weft.ir.dtypes import from_numpy
from weft.ir.graph import Graph
from weft.ir.program import Late, Step, TensorProgram, Value
from weft.ir.types import AnyType, SequenceType, TensorType, Type
from weft.threads import lock

FIRST_COMPILED = 2  # how often operands of a kind come before a program is compiled for them
MOST_PROGRAMS = 8  # for the same steps
MOST_KINDS = 256
MOST_NODES = 10_000  # that are traced for one of them
KNOWN_ELEMENTS = 16  # of whole numbers that a program may be made for, where sizes and axes depend on them


class LateRunner(Protocol):
    """What runs a program that was compiled late."""

    def run(self, inputs: Sequence[Any]) -> list[Any]: ...


CompileLate = Callable[[TensorProgram], LateRunner]
Shapes = tuple[tuple["int | None", ...], ...]


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
        loops = any(isinstance(item, Graph) for step in steps for item in _attributes(step))
        self._first = 1 if loops else FIRST_COMPILED  # a loop is long enough to be compiled at once
        self._seen: dict[Any, int] = {}
        self._runners: dict[Any, LateRunner | None] = {}  # None: these are computed node by node
        self._levels = 0  # how much of the operands a kind tells: ranks, small contents too, all sizes too
        self._usual: dict[Any, Shapes] = {}  # by kind: sizes that were always the same; None: others were met
        self._lock = lock()

    def run(self, operands: list[Any]) -> list[Any]:
        """The results; what cannot be compiled is computed node by node."""
        given = [in_order(operands[number]) for number in self._taken]
        kind = self._kind(given)
        runner = self._runners.get(kind)
        if runner is None and kind not in self._runners:
            runner = self._meet(kind, given)
        if runner is not None:
            try:
                return runner.run(given)
            except (GuardError, ArithmeticError):
                self._next_level(kind)
        return self._run_eagerly(operands)

    def _kind(self, given: Sequence[Any]) -> Any:
        level = self._levels
        kind = (level, *[_kind_of(content, level) for content in given])
        shapes = tuple([getattr(content, "shape", ()) for content in given])
        usual = self._usual.get(kind)
        if usual is None or not _fits(usual, shapes):
            usual = self._usual[kind] = shapes if usual is None else _widened(usual, shapes)
            if len(self._usual) > MOST_KINDS:
                self._usual.clear()
        return (*kind, usual)

    def _meet(self, kind: Any, given: Sequence[Any]) -> LateRunner | None:
        """What runs operands of a kind, if they came before, and so may come again."""
        count = self._seen.get(kind, 0) + 1
        if len(self._seen) >= MOST_KINDS:
            self._seen.clear()
        self._seen[kind] = count
        if count < self._first or len(self._runners) >= MOST_PROGRAMS:
            return None
        with self._lock:
            if kind not in self._runners:
                program = self._traced(given, kind[0], kind[-1])
                if program is None:
                    self._next_level(kind)
                    self._runners[kind] = None
                else:
                    self._runners[kind] = self._compile(program)
            return self._runners[kind]

    def _next_level(self, kind: Any) -> None:
        if kind[0] == self._levels < 2:
            self._levels += 1

    def _traced(self, given: Sequence[Any], level: int, usual: Shapes) -> TensorProgram | None:
        """The steps as a program for operands like these; None where that would again be late."""
        from weft.backends.reference.interpret import Interpreter
        from weft.opset.trace import Trace

        trace = Trace(Interpreter(), budget=MOST_NODES)
        scope: dict[Value, Any] = {}
        for value, content in self.constants.items():
            scope[value] = trace.constant(content, name=value.name)
        for number, (position, content) in enumerate(zip(self._taken, given)):
            value = self._operands[position]
            if level and _is_small(content):
                trace.input(_type_of(content, number, usual[number]), value.name)
                scope[value] = trace.constant(content, name=value.name)
            else:
                scope[value] = trace.input(_type_of(content, number, usual[number]), value.name)
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


def _attributes(step: Step) -> list[Any]:
    return list(step.primitive.attributes.values()) if isinstance(step.primitive, Late) else []


def _is_small(content: Any) -> bool:
    return isinstance(content, np.ndarray) and content.dtype.kind in "iub" and content.size <= KNOWN_ELEMENTS


def _kind_of(content: Any, level: int) -> Any:
    """What a program for it depends on."""
    if isinstance(content, np.ndarray):
        shape = content.shape
        sizes = shape if level > 1 else tuple([size if size < 2 else -1 for size in shape])
        return (content.dtype, sizes, content.tobytes()) if level and _is_small(content) else (content.dtype, sizes)
    if isinstance(content, list):
        return list, frozenset(_kind_of(item, 2)[:2] for item in content if isinstance(item, np.ndarray))
    return type(content)


def _fits(usual: Shapes, shapes: Shapes) -> bool:
    """Whether shapes have the usual sizes."""
    if usual == shapes:
        return True
    pairs = zip(usual, shapes)
    return all(known is None or known == size for one, other in pairs for known, size in zip(one, other))


def _widened(usual: Shapes, shapes: Shapes) -> Shapes:
    """The usual sizes where shapes have the same ones."""
    return tuple(
        tuple(known if known == size else None for known, size in zip(one, other)) for one, other in zip(usual, shapes)
    )


def _type_of(content: Any, number: int, usual: Sequence[int | None]) -> Type:
    """The type of an operand, of which sizes are open that are not always the same."""
    if isinstance(content, np.ndarray):
        sizes = enumerate(usual)
        shape = [dims.symbol(f"late.{number}.{axis}", 2) if size is None else size for axis, size in sizes]
        return TensorType(from_numpy(content.dtype), tuple(shape))
    if isinstance(content, list) and content and all(isinstance(item, np.ndarray) for item in content):
        shapes, dtypes = {item.shape for item in content}, {item.dtype for item in content}
        if len(dtypes) == 1:
            return SequenceType(TensorType(from_numpy(dtypes.pop()), shapes.pop() if len(shapes) == 1 else None))
    return SequenceType(AnyType()) if isinstance(content, list) else AnyType()
