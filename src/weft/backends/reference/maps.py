"""Maps and scatters: scalar expressions evaluated for all elements at once.

Each subexpression becomes an array with size 1 along the axes it does not depend on, so that work is shared by
broadcasting. Loads at plain strided positions are views; others use numpy's indexing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.reference.scalars import apply_function, apply_symbolic
from weft.errors import ExecutionError, InternalError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Axis, Dim, Expr, Symbol, UndecidedError
from weft.ir.program import Map, Scatter
from weft.ir.scalar import Apply, FlatLoad, Index, Literal, Load, Placeholder, Scalar

_ARRAY_FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": np.minimum,
    "max": np.maximum,
}


def evaluate_map(primitive: Map, operands: Sequence[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """Evaluate a map; the result may be a view of an operand, or repeat elements with stride 0."""
    if 0 in shape:  # nothing is loaded, so that no index is out of range
        return np.empty(shape, primitive.expression.dtype.numpy)
    result = _Evaluation(operands, shape, sizes).scalar(primitive.expression)
    return np.broadcast_to(result, shape)


def evaluate_map_symbolic(primitive: Map, operands: Sequence[Array], shape: tuple[int, ...]) -> Array:
    """Evaluate a map whose operands may hold dims, into an object array."""
    if 0 in shape:
        return np.empty(shape, object)
    boxed = [operand if operand.dtype == object else operand.astype(object) for operand in operands]
    result = _SymbolicEvaluation(boxed, shape, {}).scalar(primitive.expression)
    return np.broadcast_to(result.astype(object), shape)


def evaluate_scatter(primitive: Scatter, operands: Sequence[Array], sizes: Mapping[str, int]) -> Array:
    """Copy operand 0, unless the scatter is in place, and apply the updates, in row-major order of the domain."""
    domain = tuple(dims.evaluate(size, sizes) for size in primitive.domain)
    result = operands[0] if primitive.in_place else np.array(operands[0])
    if 0 in domain:
        return result
    evaluation = _Evaluation(operands, domain, sizes)
    indices = [np.broadcast_to(evaluation.scalar(index), domain) for index in primitive.indices]
    update = np.broadcast_to(evaluation.scalar(primitive.update), domain)
    inside = np.ones(domain, bool)
    for index, size in zip(indices, result.shape):
        inside &= (index >= 0) & (index < size)
    if not inside.all():
        if primitive.checked:
            raise ExecutionError("a scatter index is out of range")
        indices = [index[inside] for index in indices]
        update = update[inside]
    if primitive.distinct:
        _require_distinct(indices, result.shape)
    combine = _COMBINE.get(primitive.reduction)
    if combine is None:
        result[tuple(indices)] = update
        return result
    if result.dtype.kind == "V" or result.dtype == np.float16:
        wide = result.astype(np.float32)
        combine.at(wide, tuple(indices), update.astype(np.float32))
        return wide.astype(result.dtype)
    combine.at(result, tuple(indices), update)
    return result


def _require_distinct(indices: Sequence[Array], shape: tuple[int, ...]) -> None:
    """Raise InternalError if two points of a scatter update the same element."""
    elements = np.ravel_multi_index([index.ravel() for index in indices], shape)
    if np.unique(elements).size < elements.size:
        raise InternalError("two points of a scatter with distinct points update the same element")


_COMBINE: dict[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
}


class _Evaluation:
    """One walk over an expression; shared subtrees are computed once."""

    def __init__(self, operands: Sequence[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> None:
        self.operands = operands
        self.shape = shape
        self.sizes = sizes
        self.results: dict[int, Array] = {}  # by the id of the subtree

    def scalar(self, scalar: Scalar) -> Array:
        result = self.results.get(id(scalar))
        if result is None:
            match scalar:
                case Literal(value, dtype):
                    result = np.array(value, dtype.numpy)
                case Index(value):
                    result = self.index(value)
                case Load():
                    result = self.load(scalar)
                case Apply(function, arguments, dtype):
                    result = self.apply(function, [self.scalar(argument) for argument in arguments], dtype)
                case Placeholder() | FlatLoad():
                    raise InternalError(f"{scalar} may occur only in kernels, not in programs")
            self.results[id(scalar)] = result
        return result

    def apply(self, function: str, arguments: list[Array], dtype: Any) -> Array:
        return apply_function(function, arguments, dtype)

    def index(self, value: Dim) -> Array:
        return np.asarray(dims.fold(value, self.leaf, _ARRAY_FUNCTIONS), np.int64)

    def leaf(self, atom: Symbol | Axis) -> Any:
        if isinstance(atom, Symbol):
            return self.sizes[atom.name]
        return np.arange(self.shape[atom.position]).reshape(
            [-1 if position == atom.position else 1 for position in range(len(self.shape))]
        )

    def load(self, load: Load) -> Array:
        source = self.operands[load.operand]
        if source.size == 0 and not load.checked:  # an unchecked load outside its range is not used
            return np.full([1] * len(self.shape), "" if source.dtype == object else 0, source.dtype)
        strided = [self.strided(index, size) for index, size in zip(load.indices, source.shape)]
        used = [position for _, position in (entry for entry in strided if entry) if position is not None]
        if len(set(used)) != len(used):
            strided = [None] * len(strided)
        if all(entry is not None for entry in strided):
            return self.view(source, [entry for entry in strided if entry is not None])
        gathered = [axis for axis, entry in enumerate(strided) if entry is None]
        positions = {axis: self.numeric(self.scalar(load.indices[axis])) for axis in gathered}
        for axis, position in positions.items():
            positions[axis] = self.in_range(position, source.shape[axis], load.checked)
        if len(gathered) == 1 and source.ndim > 1:
            elements = self.take(source, gathered[0], positions[gathered[0]], strided)
            if elements is not None:
                return elements
        full = [
            positions[axis] if axis in positions else self.in_range(self.numeric(self.scalar(index)), size, False)
            for axis, (index, size) in enumerate(zip(load.indices, source.shape))
        ]
        return np.asarray(source[tuple(full)], source.dtype)

    def strided(self, index: Scalar, size: int) -> tuple[slice | int, int | None] | None:
        """Return an index along one axis as (slice, output axis) or (number, None); None if it is neither."""
        if not isinstance(index, Index):
            return None
        axes = [atom for atom in dims.atoms(index.value) if isinstance(atom, Axis)]
        if not axes:
            number = self.number(index.value)
            return (number, None) if number is not None and 0 <= number < size else None
        if len({atom.position for atom in axes}) != 1 or not isinstance(index.value, Expr):
            return None
        position, count = axes[0].position, self.shape[axes[0].position]
        if not _is_linear(index.value):
            return None
        offset, step = self.number_at(index.value, 0), self.number_at(index.value, 1)
        if offset is None or step is None:
            return None
        step -= offset
        last = offset + step * (count - 1)
        if count == 0 or step == 0 or not (0 <= offset < size and 0 <= last < size):
            return None
        stop = last + (1 if step > 0 else -1)
        return slice(offset, None if stop < 0 else stop, step), position

    def number(self, value: Dim) -> int | None:
        return dims.evaluate(value, self.sizes)

    def number_at(self, value: Dim, axis: int) -> int | None:
        """Evaluate an index with its (only) axis at a position."""
        return int(
            dims.fold(value, lambda atom: axis if isinstance(atom, Axis) else self.sizes[atom.name], _ARRAY_FUNCTIONS)
        )

    def view(self, source: Array, entries: Sequence[tuple[slice | int, int | None]]) -> Array:
        elements = np.asarray(source[tuple(entry for entry, _ in entries)], source.dtype)  # one string is not an array
        return self.arrange(elements, [position for _, position in entries if position is not None])

    def arrange(self, elements: Array, positions: Sequence[int]) -> Array:
        """Transpose axes to their output positions, with size 1 for all others."""
        elements = elements.transpose(np.argsort(positions)) if positions else elements
        present = set(positions)
        sizes = iter(elements.shape)
        return elements.reshape([next(sizes) if position in present else 1 for position in range(len(self.shape))])

    def take(
        self, source: Array, axis: int, position: Array, strided: Sequence[tuple[slice | int, int | None] | None]
    ) -> Array | None:
        """Gather along one axis, with all others strided, by np.take; None unless their output axes are distinct."""
        others = [p for entry in strided if entry is not None and (p := entry[1]) is not None]
        axes = [p for p, size in enumerate(position.shape) if size != 1]
        if set(axes) & set(others) or position.ndim not in (0, len(self.shape)):
            return None
        source = source[tuple(slice(None) if entry is None else entry[0] for entry in strided)]
        before = sum(1 for entry in strided[:axis] if entry is not None and entry[1] is not None)
        elements = np.take(source, position.reshape([position.shape[p] for p in axes]), axis=before)
        return self.arrange(np.asarray(elements, source.dtype), [*others[:before], *axes, *others[before:]])

    def numeric(self, position: Array) -> Array:
        return position

    def in_range(self, position: Array, size: int, checked: bool) -> Array:
        if position.size and (position.min() < 0 or position.max() >= size):
            if checked:
                bad = position[(position < 0) | (position >= size)].reshape(-1)[0]
                raise ExecutionError(f"index {bad} is out of range for a dimension of size {size}")
            if size == 0:
                raise ExecutionError("an empty tensor is indexed")
            return np.clip(position, 0, size - 1)
        return position


class _SymbolicEvaluation(_Evaluation):
    """An evaluation in which loaded elements and indices may be dims."""

    def apply(self, function: str, arguments: list[Array], dtype: Any) -> Array:
        return apply_symbolic(function, [argument.astype(object) for argument in arguments], dtype)

    def index(self, value: Dim) -> Array:
        if not dims.symbols(value):
            return super().index(value).astype(object)
        axes = [atom for atom in dims.atoms(value) if isinstance(atom, Axis)]
        if axes:
            raise UndecidedError("indices that depend on sizes")
        result = np.empty((), object)
        result[()] = value
        return result

    def number(self, value: Dim) -> int | None:
        if isinstance(value, int):
            return value
        raise UndecidedError(f"an index {value}")

    def number_at(self, value: Dim, axis: int) -> int | None:
        if dims.symbols(value):
            raise UndecidedError(f"an index {value}")
        return super().number_at(value, axis)

    def numeric(self, position: Array) -> Array:
        if any(isinstance(element, Expr) for element in position.flat):
            raise UndecidedError("an index that depends on sizes")
        return position.astype(np.int64)


def _is_linear(value: Expr) -> bool:
    """Whether an index is linear in its axes."""
    for monomial, _ in value.terms:
        loops = [atom for atom in monomial if isinstance(atom, Axis)]
        if len(loops) > 1:
            return False
        for atom in monomial:
            if not isinstance(atom, (Axis, Symbol)) and any(
                isinstance(inner, Axis) for side in (atom.left, atom.right) for inner in dims.atoms(side)
            ):
                return False
    return True
