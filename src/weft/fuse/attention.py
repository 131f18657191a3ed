"""Attention in a program: scores from a contraction, a softmax along the keys, and a contraction with the values.

Exporters write this in many ways: scaled before or after the product, masked, guarded against rows without a visible
key, with reshapes and transpositions between. The softmax is therefore found from its end, with every map inlined
into one expression, which must be exp(score - largest) / total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from weft.fuse.causal import causal_bounds
from weft.fuse.elements import NotFoundError, Program, shape_of
from weft.ir import dims
from weft.ir.access import axes_of_shape, nonlinear_axes
from weft.ir.attention import Attention, CausalBound
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Map, Reduce, Reshape, Step, TensorProgram, Value, tensor_dtype
from weft.ir.scalar import AT_HAND, Apply, Held, Index, Literal, Load, Scalar, loads, rebuild
from weft.ir.target import Float32Products, Target, ThreadTarget
from weft.ir.types import Shape
from weft.records import dataclass

NARROW = (DType.float16, DType.bfloat16)
LONGEST_PATH = 40  # steps between the two contractions
FEWEST_ROWS = 4  # below, products are bound by memory, and keys are better read in place
WIDEST = 256  # numbers of a query, or of a value
FEW_LOADS, MANY = 2, 1 << 30


@dataclass(frozen=True, slots=True)
class Sought:
    """What attentions a target has kernels for: of which types, of float32 with how many rows at least, and with how
    many loads at most in what a key or value is computed from again by each block.
    """

    types: frozenset[DType] = frozenset({DType.float32})
    fewest_rows: int = FEWEST_ROWS
    most_loads: int = MANY


USUAL = Sought()


def sought_by(target: Target) -> Sought:
    """Where tiles are multiplied together, narrow types too; and keys may be split, so that one row is enough."""
    if not isinstance(target, ThreadTarget) or not target.tile_products:
        return USUAL
    narrow = {dtype for dtype in NARROW if target.tile_product(dtype, dtype) is not None}
    exact = target.float32_products is Float32Products.EXACT
    return Sought(frozenset({DType.float32, *narrow}), FEWEST_ROWS if exact else 1, FEW_LOADS)


def find_attention(program: TensorProgram, sought: Sought = USUAL) -> list[tuple[tuple[Step, ...], Attention]]:
    """Each attention with its steps in the program's order; nobody else reads what they make, but for the last.

    Loads name values by number (see `numbered`).
    """
    taken: set[int] = set()
    found: list[tuple[tuple[Step, ...], Attention]] = []
    known = Program(program.steps, program.outputs, program.constants)
    for step in program.steps:
        match = _match(known, step, sought) if isinstance(step.primitive, Contract) else None
        if match is not None and not any(id(member) in taken for member in match[1]):
            members = {id(member) for member in match[1]}
            taken |= members
            found.append((tuple(other for other in program.steps if id(other) in members), match[0]))
    return found


def numbered(attention: Attention, operands: Sequence[Value]) -> Attention:
    """The attention with loads from operands by their position."""
    numbers = {value.number: position for position, value in enumerate(operands)}

    def renumber(load: Load) -> Scalar:
        return Load(numbers[load.operand], load.indices, load.dtype)

    return replace(
        attention,
        query=rebuild(attention.query, renumber),
        key=rebuild(attention.key, renumber),
        value=rebuild(attention.value, renumber),
        score=rebuild(attention.score, renumber),
        epilogue=None if attention.epilogue is None else rebuild(attention.epilogue, renumber),
    )


def _match(program: Program, step: Step, sought: Sought) -> tuple[Attention, tuple[Step, ...]] | None:
    """The attention that ends with a contraction, and its steps.

    Products with constants are none: those are packed when compiling, not in every run.
    """
    for side in (0, 1):
        weights, values = step.operands[side], step.operands[1 - side]
        if not isinstance(program.maker(weights), (Map, Reshape)) or tensor_dtype(weights) not in sought.types:
            continue
        if values in program.constants:
            continue
        for product in _products(program, weights, sought.types):
            try:
                return _Matcher(program, product, step, side, sought).match()
            except NotFoundError:
                continue
    return None


def _products(program: Program, weights: Value, types: frozenset[DType]) -> list[Step]:
    """The contractions that weights are made from by maps and reductions."""
    pending, seen, found = [weights], {weights}, []
    while pending and len(seen) < LONGEST_PATH:
        step = program.makers.get(pending.pop())
        if step is None:
            continue
        if isinstance(step.primitive, Contract) and tensor_dtype(step.results[0]) in types:
            if not any(operand in program.constants for operand in step.operands):
                found.append(step)
        elif isinstance(step.primitive, (Map, Reduce, Reshape)):
            pending += [value for value in step.operands if value not in seen]
            seen.update(step.operands)
    return found


class _Matcher:
    """The search from a contraction with values back to the product of queries and keys."""

    def __init__(self, program: Program, product: Step, final: Step, side: int, sought: Sought) -> None:
        self.program, self.sought = program, sought
        self.product, self.final = product, final
        self.weights, self.values = final.operands[side], final.operands[1 - side]
        assert isinstance(final.primitive, Contract)
        self.weight_labels = (final.primitive.left, final.primitive.right)[side]
        self.value_labels = (final.primitive.left, final.primitive.right)[1 - side]
        self.output = final.primitive.output
        self.shape = shape_of(self.weights)
        self.inside = program.made_from(product.results[0])
        self.steps: dict[int, Step] = {id(product): product, id(final): final}

    def match(self) -> tuple[Attention, tuple[Step, ...]]:
        score, divisor, shifts_nothing, drops_nan = self.softmax()
        query, key, depth, key_axes = self.factors(score)
        value, width, value_axes = self.weighed()
        rows = tuple(axis for axis in range(len(self.shape) - 1) if axis not in key_axes | value_axes)
        rows, bounds = self.visible_rows(widened(score), tuple(axis for axis in rows if self.shape[axis] != 1))
        count = dims.product(self.shape[axis] for axis in rows)
        fewest = 1 if tensor_dtype(self.weights) in NARROW else self.sought.fewest_rows
        _require(not isinstance(count, int) or count >= fewest)
        axes, epilogue = self.after()
        at_hand = Held(AT_HAND, tensor_dtype(self.product.results[0]))
        own = self.product.results[0].number
        attention = Attention(
            shape=self.shape,
            depth=depth,
            width=width,
            rows=rows,
            query=query,
            key=key,
            value=value,
            score=widened(rebuild(score, lambda load: at_hand if load.operand == own else load)),
            divisor=rebuild(divisor, lambda _: Held(AT_HAND, DType.float32)),
            shifts_nothing=shifts_nothing,
            drops_nan=drops_nan,
            causal_bounds=bounds,
            axes=axes,
            epilogue=epilogue,
        )
        steps = tuple(self.steps.values())
        _require(self.program.is_closed(steps, self.result))
        expressions = [query, key, value, score, *([] if epilogue is None else [epilogue])]
        _require(not any(load.checked for expression in expressions for load in loads(expression)))
        return attention, steps

    # -- softmax -----------------------------------------------------------------------------------------------------

    def softmax(self) -> tuple[Scalar, Scalar, bool, bool]:
        """The score, the divisor, and how the softmax treats rows of nothing but -inf."""
        weight = self.element(self.weights, axes_of_shape(self.shape))
        drops_nan = False
        match weight:
            case Apply("select", (Apply("is_nan", (tested,)), Literal(value), weight)) if (
                tested == weight and value == 0
            ):
                drops_nan = True
        match weight:
            case Apply("cast", (Apply("divide") as whole,), dtype) if dtype in NARROW:
                weight = whole
        match weight:
            case Apply("divide", (Apply("exp", (Apply("subtract", (score, shift)),)) as power, divisor)):
                _require(score.dtype is DType.float32)
                largest, shifts_nothing = _shift(shift)
                self.require_reduced(largest, "maximum", score)
                totals = set(loads(divisor))
                _require(len(totals) == 1)
                self.require_reduced(totals.pop(), "sum", power)
                return score, divisor, shifts_nothing, drops_nan
        raise NotFoundError

    def element(self, value: Value, places: Sequence[Dim]) -> Scalar:
        """A value as an expression of the products, of numbers of rows and of what has nothing to do with either."""
        passed: list[Step] = []
        expression = self.program.element(value, places, self.is_passed, passed)
        self.steps.update({id(step): step for step in passed})
        return expression

    def is_passed(self, value: Value) -> bool:
        maker = self.program.maker(value)
        if isinstance(maker, Map) and any(load.checked for load in loads(maker.expression)):
            return False  # a step of its own tells of faults of the data
        return value in self.inside and isinstance(maker, (Map, Reshape))

    def require_reduced(self, load: Load, kind: str, element: Scalar) -> None:
        """That a row's number is the reduction of this element along the keys."""
        step = self.program.maker_of(load.operand)
        _require(step is not None and isinstance(step.primitive, Reduce))
        assert step is not None and isinstance(step.primitive, Reduce)
        _require(step.primitive.kind == kind and len(step.primitive.axes) == 1)
        places = [index.value for index in load.indices if isinstance(index, Index)]
        places.insert(step.primitive.axes[0], dims.axis(len(self.shape) - 1, self.shape[-1]))
        _require(len(places) == len(shape_of(step.operands[0])))
        _require(self.element(step.operands[0], places) == element)
        self.steps[id(step)] = step

    def visible_rows(self, score: Scalar, rows: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[CausalBound, ...]]:
        """Rows that see about as many keys (only the innermost where keys are hidden), and where that ends."""
        if not rows:
            return rows, ()
        masks = rebuild(score, self.program.inside_map)
        bounds = causal_bounds(masks, len(self.shape) - 1, rows[-1])
        return (rows[-1:] if bounds else rows), bounds

    # -- operands ----------------------------------------------------------------------------------------------------

    def factors(self, score: Scalar) -> tuple[Scalar, Scalar, int, set[int]]:
        """Query, key, the length of their products, and the axes along which keys change."""
        contract = self.product.primitive
        assert isinstance(contract, Contract)
        own = {load for load in loads(score) if load.operand == self.product.results[0].number}
        others = {load.operand for load in loads(score)} - {self.product.results[0].number}
        _require(len(own) == 1 and not others & {value.number for value in self.inside})
        places = [index.value for index in own.pop().indices if isinstance(index, Index)]
        _require(len(places) == len(contract.output) and len(set(contract.output)) == len(contract.output))
        last = len(self.shape) - 1
        numbers = {dims.axis(axis, size): axis for axis, size in enumerate(self.shape) if size != 1}
        at = {label: numbers[place] for label, place in zip(contract.output, places) if place in numbers}
        _require(len(set(at.values())) == len(numbers) and all(p in numbers or p == 0 for p in places))
        sides = list(zip((contract.left, contract.right), self.product.operands))
        holds_keys = [any(at.get(label) == last for label in labels) for labels, _ in sides]
        _require(sum(holds_keys) == 1)
        (key_labels, keys), (query_labels, queries) = sides if holds_keys[0] else sides[::-1]
        summed = {label for label in (*key_labels, *query_labels) if label not in contract.output}
        _require(len(summed) == 1 and summed <= set(key_labels) and summed <= set(query_labels))
        (label,) = summed
        depth = shape_of(keys)[key_labels.index(label)]
        _require(isinstance(depth, int) and depth <= WIDEST)
        assert isinstance(depth, int)
        at[label] = last + 1
        axes = [dims.axis(axis, size) for axis, size in enumerate((*self.shape, depth))]
        query, _ = self.operand(queries, query_labels, at, axes, MANY)
        key, changing = self.operand(keys, key_labels, at, axes, self.sought.most_loads)
        return query, key, depth, changing - {last, last + 1}

    def weighed(self) -> tuple[Scalar, int, set[int]]:
        """The value, the length of the results, and the axes along which values change."""
        last = len(self.shape) - 1
        *places, summed = self.weight_labels
        _require(len(set(self.weight_labels)) == len(self.shape) and summed not in self.output)
        _require(set(places) <= set(self.output) and summed in self.value_labels)
        columns = [label for label in self.value_labels if label not in self.weight_labels]
        _require(len(columns) == 1 and columns[0] in self.output)
        width = shape_of(self.values)[self.value_labels.index(columns[0])]
        _require(isinstance(width, int) and width <= WIDEST and len(set(self.value_labels)) == len(self.value_labels))
        assert isinstance(width, int)
        at = {label: axis for axis, label in enumerate((*self.weight_labels, columns[0]))}
        axes = [dims.axis(axis, size) for axis, size in enumerate((*self.shape, width))]
        value, changing = self.operand(self.values, self.value_labels, at, axes, self.sought.most_loads)
        return value, width, changing - {last, last + 1}

    def operand(
        self, value: Value, labels: Sequence[int], at: Mapping[int, int], axes: Sequence[Dim], most_loads: int
    ) -> tuple[Scalar, set[int]]:
        """An operand's element, through maps that nobody else reads, and the axes along which it changes."""
        sizes = shape_of(value)
        used = [at[label] if size != 1 and label in at else None for label, size in zip(labels, sizes)]
        _require(all(size == 1 or label in at for label, size in zip(labels, sizes)))
        places = [0 if axis is None else axes[axis] for axis in used]
        changing = {axis for axis in used if axis is not None}
        last = len(self.shape) - 1
        for passed_by in (self.program.is_private, self.is_moved, lambda _: False):
            passed: list[Step] = []
            try:
                expression = self.program.element(value, places, passed_by, passed)
            except NotFoundError:
                continue
            if _is_even(expression, {last, last + 1}) and len(set(loads(expression))) <= most_loads:
                self.steps.update({id(step): step for step in passed})
                return expression, changing
        raise NotFoundError

    def is_moved(self, value: Value) -> bool:
        """Whether a value is made for one reader alone, each element from one of another tensor."""
        maker = self.program.maker(value)
        several = isinstance(maker, Map) and sum(bool(load.indices) for load in set(loads(maker.expression))) > 1
        return not several and self.program.is_private(value)

    # -- result ------------------------------------------------------------------------------------------------------

    @property
    def result(self) -> Value:
        return self._result

    def after(self) -> tuple[tuple[int, ...], Scalar | None]:
        """The axes of the result, and what a map does to each element, maybe in another order of axes."""
        last = len(self.shape) - 1
        numbers = {label: axis for axis, label in enumerate(self.weight_labels)}
        axes = tuple(numbers.get(label, last + 1) for label in self.output)
        self._result = self.final.results[0]
        step = self.program.only_reader(self._result)
        if step is None or not isinstance(step.primitive, Map):
            return axes, None
        own = self._result.number
        numbered = [value.number for value in step.operands]
        expression = rebuild(
            step.primitive.expression,
            lambda load: replace(load, operand=numbered[load.operand]),
        )
        places = {load.indices for load in loads(expression) if load.operand == own}
        order = _permutation(places, shape_of(self._result), shape_of(step.results[0]))
        if order is None:
            return axes, None
        self.steps[id(step)] = step
        self._result = step.results[0]
        at_hand = Held(AT_HAND, tensor_dtype(self.final.results[0]))
        epilogue = rebuild(expression, lambda load: at_hand if load.operand == own else load)
        moved = [0] * len(axes)
        for axis, place in enumerate(order):
            moved[place] = axes[axis]
        return tuple(moved), None if epilogue == at_hand else epilogue


def widened(expression: Scalar) -> Scalar:
    """What is computed in float16 or bfloat16 as float32, so that nothing is rounded on the way."""
    done: dict[int, Scalar] = {}

    def wide(node: Scalar) -> Scalar:
        known = done.get(id(node))
        if known is None:
            known = done[id(node)] = _widened(node, wide)
        return known

    return wide(expression)


def _widened(node: Scalar, wide: Callable[[Scalar], Scalar]) -> Scalar:
    is_narrow = node.dtype in NARROW
    match node:
        case Literal(value) if is_narrow:
            return Literal(value, DType.float32)
        case Held(key) if is_narrow:
            return Held(key, DType.float32)
        case Load() if is_narrow:
            return Apply("cast", (node,), DType.float32)
        case Apply("bitcast"):
            return node
        case Apply("cast", (inner,), dtype) if inner.dtype in NARROW:
            return wide(inner) if is_narrow or dtype is DType.float32 else Apply("cast", (wide(inner),), dtype)
        case Apply("cast", (Apply() | Held() as inner,), _) if is_narrow and inner.dtype is DType.float32:
            return wide(inner)
        case Apply(function, arguments, dtype):
            return Apply(function, tuple(map(wide, arguments)), DType.float32 if is_narrow else dtype)
        case _:
            return node


def _shift(shift: Scalar) -> tuple[Load, bool]:
    """The largest score of a row in what is subtracted, and whether that is 0 where the largest is -inf."""
    match shift:
        case Load():
            return shift, False
        case Apply("select", (Apply("equal", (Load() as tested, Literal(low))), Literal(other), Load() as largest)):
            if tested == largest and low == -inf and other == 0:
                return largest, True
    raise NotFoundError


def _is_even(expression: Scalar, axes: set[int]) -> bool:
    """Whether all loads are at places that are linear in the given axes."""
    return all(
        isinstance(index, Index) and not nonlinear_axes(index.value) & axes
        for load in loads(expression)
        for index in load.indices
    )


def _permutation(places: set[tuple[Scalar, ...]], source: Shape, result: Shape) -> list[int] | None:
    """The axis of the result that each axis of the source becomes, where elements are read at one place each."""
    if len(places) != 1 or sorted(map(str, source)) != sorted(map(str, result)):
        return None
    (indices,) = places
    free = list(range(len(result)))
    order: list[int] = []
    for index, size in zip(indices, source):
        fits = [a for a in free if result[a] == size and index == Index(dims.axis(a, result[a]))]
        if not fits:
            return None
        order.append(fits[0])
        free.remove(fits[0])
    return order


def _require(fact: bool) -> None:
    if not fact:
        raise NotFoundError
