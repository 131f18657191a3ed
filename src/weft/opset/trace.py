"""The trace: records the steps that an op's definition emits.

Static values are computed while tracing: constants up to a size, and the integer tensors that shapes are computed with,
whose elements are symbolic. In an eager trace all inputs are static, so everything is computed: that is the reference
meaning of a model, one op at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from itertools import count
from math import inf
from typing import Any, Protocol

import numpy as np

from weft.errors import InvalidModelError, UnsupportedModelError
from weft.ir import dims
from weft.ir.dims import Axis, Dim, Equality, Expr, Symbol, UndecidedError
from weft.ir.dtypes import DType, from_numpy
from weft.ir.program import (
    HOST_STEPS,
    Concat,
    Dims,
    Guard,
    Host,
    Map,
    Observe,
    Primitive,
    Random,
    Reduce,
    Reshape,
    Scan,
    Step,
    TensorProgram,
    Value,
)
from weft.ir.scalar import Index, Load, Scalar, identity_indices, rebuild, walk
from weft.ir.types import AnyType, OptionalType, SequenceType, Shape, TensorType, Type
from weft.opset.tensor import NotStaticError, Tensor, current_trace
from weft.opset.type_rules import check_primitive
from weft.records import dataclass

FOLDED_ELEMENTS = 4096  # constants up to this size are computed while tracing; larger ones by the folding pass
SYMBOLIC_ELEMENTS = 512
MOST_ELEMENTS = 1 << 38  # of a tensor, also of one that is never stored: a run would take hours


class Evaluator(Protocol):
    """Evaluates primitives with numpy; passed in by the compiler, so that ops depend on no backend."""

    def evaluate(self, primitive: Primitive, operands: Sequence[Any], types: Sequence[Type]) -> list[Any]:
        """Compute the results for concrete operands and static result types (an eager caller may leave types open)."""

    def evaluate_symbolic(self, primitive: Primitive, operands: Sequence[Any], types: Sequence[Type]) -> list[Any]:
        """Compute the results where operands hold symbolic integers; raise UndecidedError where that is impossible."""


@dataclass
class Trace:
    evaluator: Evaluator
    eager: bool = False
    parent: Trace | None = None
    origin: str = ""
    inputs: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    constants: dict[Value, Any] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    captured: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # outer number -> (outer, inner)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    symbol_names: set[str] = field(default_factory=set)
    observed: set[str] = field(default_factory=set)  # symbols that stand for elements of tensors (outermost trace only)
    budget: float = inf  # how many nodes may still be traced
    is_void: bool = False  # a guard can never hold: the program runs for no sizes, and each run traces its own
    inner: list[Trace] = field(default_factory=list)  # traces of bodies
    state_inputs: frozenset[str] = frozenset()  # whose memory a state holds; see passes/hold_state.py

    # -- making tensors ----------------------------------------------------------------------------------------------

    def input(self, type: Type, name: str) -> Tensor:
        _check_sizes(type)
        value = Value(next(self.numbers), type, name)
        self.inputs.append(value)
        return self._register(Tensor(self, value))

    def constant(self, content: Any, type: Type | None = None, name: str = "") -> Tensor:
        """Add a constant: an array, or a list or None for sequences and optionals."""
        if type is None:
            type = type_of(content)
        value = Value(next(self.numbers), type, name)
        self.constants[value] = content
        return self._register(Tensor(self, value, content if isinstance(content, np.ndarray) or self.eager else None))

    def fresh_symbol(self, hint: str, low: int | None = 0) -> Expr:
        """Create a size that is known only at run time."""
        root = self._root()
        base = f"{self.origin}.{hint}" if self.origin else hint
        name = base
        for attempt in count(2):
            if name not in root.symbol_names:
                break
            name = f"{base}.{attempt}"
        root.symbol_names.add(name)
        return dims.symbol(name, low, None)

    # -- emitting steps ----------------------------------------------------------------------------------------------

    def emit(self, primitive: Primitive, operands: Sequence[Tensor], types: Sequence[Type]) -> list[Tensor]:
        """Append a step, or compute it now where its operands are static."""
        for type in types:
            _check_sizes(type)
        check_primitive(primitive, [operand.type for operand in operands])
        operands = [self.capture(operand) for operand in operands]
        computed = self._compute(primitive, operands, types)
        if computed is not None and not any(_has_equalities(content) for content in computed):
            return [self._from_static(content, type) for content, type in zip(computed, types)]
        results = tuple(Value(next(self.numbers), type) for type in types)
        self.steps.append(Step(primitive, tuple(operand.value for operand in operands), results, self.origin))
        static_values = [None] * len(results) if computed is None else computed
        return [self._register(Tensor(self, value, content)) for value, content in zip(results, static_values)]

    def emit_map(self, shape: Shape, expression: Scalar) -> Tensor:
        """Emit a map whose loads refer to values by number; they become operand positions."""
        positions: dict[int, int] = {}

        def renumber(load: Load) -> Scalar:
            position = positions.setdefault(load.operand, len(positions))
            return Load(position, load.indices, load.dtype, load.checked)

        renumbered = rebuild(expression, renumber)
        operands = [self.find(number) for number in positions]
        if operands and _is_identity(renumbered, shape, operands[0]):
            return operands[0]
        return self.emit(Map(renumbered), operands, [TensorType(expression.dtype, shape)])[0]

    def find(self, number: int) -> Tensor:
        """Find the tensor of a value number, in this trace or an enclosing one."""
        trace: Trace | None = self
        while trace is not None:
            if number in trace.tensors:
                return trace.tensors[number]
            trace = trace.parent
        raise InvalidModelError(f"value %{number} is not in scope")

    def capture(self, tensor: Tensor) -> Tensor:
        """Return the tensor as a value of this trace: one of an enclosing trace becomes an extra input."""
        if tensor.trace is self:
            return tensor
        number = tensor.value.number
        if number not in self.captured:
            if isinstance(tensor.static_value, np.ndarray) and tensor.static_value.dtype != object:
                inner = self.constant(tensor.static_value, tensor.type, tensor.value.name)
                self.captured[number] = (tensor, inner)
                return inner
            value = Value(next(self.numbers), tensor.type, tensor.value.name)
            inner = self._register(Tensor(self, value, tensor.static_value))
            inner.elements = tensor.elements
            self.captured[number] = (tensor, inner)
        return self.captured[number][1]

    def assume_equal(self, left: Dim, right: Dim, why: str, *, certain: bool = True) -> None:
        """Record that two sizes must be equal; a contradiction is an error of the model, if this is `certain`."""
        if left == right:
            return
        try:
            different = not dims.decide_equal(left, right)
        except UndecidedError:
            self.guards.append(Guard(left, right, self.origin))
            return
        if different and certain and not self._never_runs() and not _may_be_equal(left, right):
            raise InvalidModelError(f"sizes {left} and {right} differ: {why}")
        self.is_void = True
        self.guards.append(Guard(left, right, self.origin))

    def depth(self) -> int:
        """Count the enclosing bodies."""
        return 0 if self.parent is None else 1 + self.parent.depth()

    def count_node(self) -> None:
        """Charge one node to the budget: bodies of control flow may be traced several times."""
        root = self._root()
        root.budget -= 1
        if root.budget < 0:
            raise UnsupportedModelError("loops and branches nest too deeply: their bodies would be traced too often")

    def _never_runs(self) -> bool:
        """Return whether an earlier contradiction makes later ones meaningless."""
        return self.is_void or (self.parent is not None and self.parent._never_runs())

    def assume_at_least(self, left: Dim, right: Dim, why: str) -> None:
        """Record that left >= right; a certain contradiction is an error of the model."""
        if dims.is_at_least(left, right):
            return
        if dims.is_at_least(right, left + 1):
            if not self._never_runs() and dims.is_at_least(_perhaps_empty(right), _perhaps_empty(left + 1)):
                raise InvalidModelError(f"{left} is less than {right}: {why}")
            self.is_void = True
        self.guards.append(Guard(left, right, self.origin, at_least=True))

    def body(self, types: Sequence[tuple[Type, str]], function: Callable[..., Sequence[Tensor]]) -> TracedBody:
        """Trace `function` of new inputs as a separate program; values of this trace that it uses are captured."""
        inner = Trace(self.evaluator, parent=self, origin=self.origin, numbers=self.numbers)
        self.inner.append(inner)
        inputs = [inner.input(type, name) for type, name in types]
        with inner.active():
            outputs = [inner.capture(output) for output in function(*inputs)]
        captures = [(outer, tensor) for outer, tensor in inner.captured.values() if tensor.value not in inner.constants]
        program = TensorProgram(
            (*inner.inputs, *(tensor.value for _, tensor in captures)),
            tuple(output.value for output in outputs),
            tuple(inner.steps),
            inner.constants,
            tuple(inner.guards),
        )
        return TracedBody(program, tuple(outer for outer, _ in captures), tuple(outputs))

    def program(self, outputs: Sequence[Tensor]) -> TensorProgram:
        return TensorProgram(
            tuple(self.inputs),
            tuple(self.capture(output).value for output in outputs),
            tuple(self.steps),
            self.constants,
            tuple(self.guards),
        )

    def end(self) -> None:
        """Break reference cycles between tensors and the trace, which would keep its constants alive."""
        for inner in self.inner:
            inner.end()
        self.inner.clear()
        self.tensors.clear()
        self.captured.clear()

    @contextmanager
    def active(self) -> Iterator[None]:
        token = current_trace.set(self)
        try:
            yield
        finally:
            current_trace.reset(token)

    # -- static values -----------------------------------------------------------------------------------------------

    def _compute(self, primitive: Primitive, operands: Sequence[Tensor], types: Sequence[Type]) -> list[Any] | None:
        if self.eager:
            return self.evaluator.evaluate(primitive, [self._content(operand) for operand in operands], types)
        if isinstance(primitive, (Random, Dims, Scan, *HOST_STEPS)) and not isinstance(primitive, Host):
            return None
        if any(operand.static_value is None for operand in operands):
            return None
        shapes = [type.shape for type in types if type.shape is not None]
        if len(shapes) != len(types) or not all(isinstance(size, int) for shape in shapes for size in shape):
            return None
        symbolic = any(is_symbolic(operand) for operand in operands) or _has_symbols(primitive)
        limit = SYMBOLIC_ELEMENTS if symbolic else FOLDED_ELEMENTS
        if any(dims.product(shape) > limit for shape in shapes):
            return None
        if _dequantizes(operands, types):
            return None
        contents = [operand.static_value for operand in operands]
        if not symbolic:
            try:
                return self.evaluator.evaluate(primitive, contents, types)
            except KeyError:  # a size in the primitive that is known only at run time
                return None
        if not isinstance(primitive, (Map, Reshape, Concat, Reduce)):
            return None
        try:
            computed = self.evaluator.evaluate_symbolic(primitive, contents, types)
        except UndecidedError:
            return None
        if not all(_is_tractable(content) for content in computed):
            return None
        guards = [guard for content, type in zip(computed, types) for guard in self._range_guards(content, type)]
        if any(_never_holds(guard) for guard in guards):
            return None
        self.guards += guards
        return computed

    def _range_guards(self, content: Any, type: Type) -> Iterator[Guard]:
        """Yield guards that sizes fit the integer type they are computed in: others would wrap around at run time."""
        if type.dtype is None or not type.dtype.is_integer or not isinstance(content, np.ndarray):
            return
        low, high = (int(limit) for limit in type.dtype.limits)
        for size in {element for element in content.flat if isinstance(element, Expr)}:
            if type.dtype.bits == 64 and max(abs(times) for _, times in size.terms) < 1 << 62:
                continue  # a larger size exceeds any machine's memory
            if not dims.is_at_least(size, low):
                yield Guard(size, low, self.origin, at_least=True)
            if not dims.is_at_least(high, size):
                yield Guard(high, size, self.origin, at_least=True)

    def _content(self, operand: Tensor) -> Any:
        return self.constants[operand.value]

    def _from_static(self, content: Any, type: Type) -> Tensor:
        if not isinstance(content, np.ndarray) or isinstance(type, AnyType):
            return self.constant(content, type_of(content, type) if self.eager else type)
        if content.dtype != object or type.dtype is DType.string:
            return self.constant(content)
        if all(isinstance(element, (int, np.integer, np.bool_)) for element in content.flat):
            assert type.dtype is not None
            return self.constant(content.astype(type.dtype.numpy))
        value = Value(next(self.numbers), type)
        self.steps.append(Step(Dims(tuple(content.flat)), (), (value,), self.origin))
        return self._register(Tensor(self, value, content))

    def dims_tensor(self, values: Sequence[Dim], shape: Sequence[int], dtype: DType = DType.int64) -> Tensor:
        """Build an integer tensor of sizes."""
        content = np.empty(len(values), object)
        content[:] = list(values)
        return self._from_static(content.reshape(tuple(shape)), TensorType(dtype, tuple(shape)))

    def observe(self, tensor: Tensor, hint: str) -> tuple[Dim, ...]:
        """Return the elements of an integer tensor as dims, bound at run time where they are not static."""
        if not tensor.dtype.is_integer:
            raise InvalidModelError(f"{hint!r} must hold integers, not {tensor.dtype}")
        if tensor.static_value is not None:
            return tuple(e if isinstance(e, Expr) else int(e) for e in tensor.static_value.flat)
        size = tensor.size
        if not isinstance(size, int):
            raise NotStaticError(f"the number of elements of {hint!r} must be known, not {size}")
        symbols = tuple(self.fresh_symbol(f"{hint}{i}" if size > 1 else hint, None) for i in range(size))
        self.emit(Observe(symbols), [tensor], [])
        local = self.capture(tensor)
        content = np.empty(size, object)
        content[:] = symbols
        local.static_value = content.reshape(local.shape)
        self._root().observed.update(str(symbol) for symbol in symbols)
        return symbols

    def depends_on_data(self, size: Dim) -> bool:
        """Return whether a size is computed from elements of tensors, not from shapes alone."""
        observed = self._root().observed
        return any(atom.name in observed for atom in dims.symbols(size))

    @property
    def holds_state(self) -> bool:
        """Whether the whole program holds a state."""
        return bool(self._root().state_inputs)

    def _root(self) -> Trace:
        return self if self.parent is None else self.parent._root()

    def _register(self, tensor: Tensor) -> Tensor:
        self.tensors[tensor.value.number] = tensor
        return tensor


@dataclass(frozen=True, slots=True)
class TracedBody:
    """A body's program, the outer tensors it captures (its last inputs), and its output tensors."""

    program: TensorProgram
    captures: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def is_symbolic(tensor: Tensor) -> bool:
    """Return whether the static value holds symbolic sizes rather than numbers."""
    return (
        isinstance(tensor.static_value, np.ndarray)
        and tensor.static_value.dtype == object
        and tensor.dtype is not DType.string
    )


def type_of(content: Any, declared: Type | None = None) -> Type:
    """Return the type of a run-time value; `declared` is used for empty sequences and optionals."""
    if isinstance(content, np.ndarray):
        return TensorType(from_numpy(content.dtype), content.shape)
    if isinstance(content, list):
        if content:
            return SequenceType(type_of(content[0]))
        return declared if isinstance(declared, SequenceType) else SequenceType(AnyType())
    if content is None:
        return declared if isinstance(declared, OptionalType) else OptionalType(AnyType())
    return declared or AnyType()


def _has_equalities(content: Any) -> bool:
    """Return whether a static value holds comparisons that only the run can decide."""
    if not isinstance(content, np.ndarray) or content.dtype != object:
        return False
    return any(isinstance(element, Equality) for element in content.flat)


def _may_be_equal(left: Dim, right: Dim) -> bool:
    """Return whether two sizes may be equal for an empty input, for which a model is traced again."""
    try:
        return dims.decide_equal(_perhaps_empty(left), _perhaps_empty(right))
    except UndecidedError:
        return True


def _perhaps_empty(size: Dim) -> Dim:
    """Rewrite a size so that its symbols may be 0."""

    def allow_empty(atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return dims.axis(atom.position, atom.size)
        return dims.symbol(atom.name, 0 if atom.low == 1 else atom.low, atom.high)

    return dims.substitute(size, allow_empty)


def _never_holds(guard: Guard) -> bool:
    return dims.is_at_least(guard.right, guard.left + 1)


def _is_tractable(content: Any) -> bool:
    """Return whether every element is small enough an expression to compute with."""
    if not isinstance(content, np.ndarray) or content.dtype != object:
        return True
    return all(dims.is_tractable((element,)) for element in content.flat if isinstance(element, Expr))


def _check_sizes(type: Type) -> None:
    if type.dtype is None:
        return
    count = max(type.dtype.bits // 8, 1)
    for size in type.shape or ():
        if isinstance(size, int) and size < 0:
            raise InvalidModelError(f"the result would have a negative size: {type}")
        count *= size if isinstance(size, int) and size else 1
    if count >= 1 << 63:  # even if another size is 0
        raise InvalidModelError(f"the result would have sizes that no array has: {type}")
    shape = type.shape or ()
    if all(isinstance(size, int) for size in shape) and dims.product(shape) > MOST_ELEMENTS:
        raise UnsupportedModelError(
            f"a tensor of {dims.product(shape):,} elements is more than any run could hold: {type}"
        )
    if not dims.is_tractable(shape):
        raise UndecidedError(f"the sizes of a result have more than {dims.MOST_PARTS} terms")


def _dequantizes(operands: Sequence[Tensor], types: Sequence[Type]) -> bool:
    """Return whether a matrix of bytes is widened: a product may use the bytes, and the rest is folded later."""
    matrices = [operand.dtype for operand in operands if operand.rank >= 2]
    wide = all(
        type.dtype is not None and (type.dtype.is_float or type.dtype is DType.int32) and len(type.shape or ()) >= 2
        for type in types
    )
    return wide and bool(matrices) and all(dtype in (DType.int8, DType.uint8) for dtype in matrices)


def _has_symbols(primitive: Primitive) -> bool:
    if not isinstance(primitive, Map):
        return False
    return any(dims.symbols(node.value) for node in walk(primitive.expression) if isinstance(node, Index))


def _is_identity(expression: Scalar, shape: Shape, operand: Tensor) -> bool:
    if not isinstance(expression, Load) or operand.shape != shape:
        return False
    plain = identity_indices(shape)
    return expression.indices == plain
