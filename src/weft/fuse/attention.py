"""Match attention: a contraction for the scores, a softmax along the keys, and a contraction with the values.

Exporters write this in many forms: scaled before or after the product, masked, guarded against rows without visible
keys, with reshapes and transposes in between. The softmax is therefore matched from its end, with every map inlined
into one expression, which must be exp(score - largest) / total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from weft.fuse.causal import find_causal_bounds, find_loaded_bounds, find_loaded_starts
from weft.fuse.elements import Definitions, NotFoundError, require_shape
from weft.ir import dims
from weft.ir.access import axes_of_shape, find_axes, find_nonlinear_axes, substitute_axes
from weft.ir.attention import Attention, CausalBound
from weft.ir.dims import Compound, Dim
from weft.ir.dtypes import DType
from weft.ir.program import Contract, Map, Reduce, Reshape, Step, TensorProgram, Value
from weft.ir.scalar import ELEMENT, Apply, Index, Literal, Load, Placeholder, Scalar, loads, rebuild, walk
from weft.ir.target import Float32Products, Target, ThreadTarget, VectorTarget
from weft.ir.types import Shape
from weft.records import dataclass

NARROW = (DType.float16, DType.bfloat16)
LONGEST_PATH = 40  # steps between the two contractions
FEWEST_ROWS = 4  # with fewer, products are memory-bound, and keys are better read in place
WIDEST = 256  # elements of a query, or of a value
FEW_LOADS, MANY = 2, 1 << 30
RESERVED_BUFFERS = 5  # of a kernel: its result, and others besides its operands


@dataclass(frozen=True, slots=True)
class AttentionSupport:
    """The attentions for which a target has kernels.

    `fewest_rows` is for float32; `most_loads` limits the loads in the expression of a key or value, which every block
    evaluates again. With `pages`, keys and values may be in blocks of a cache that a table lists, with any number of
    loads. With `gathers`, any loads may compute the queries of such attentions (a rotary embedding reads its tables at
    positions in memory), since blocks keep them, if the kernel reads no more than `most_operands` tensors.
    """

    types: frozenset[DType] = frozenset({DType.float32})
    fewest_rows: int = FEWEST_ROWS
    most_loads: int = MANY
    pages: bool = False
    gathers: bool = False
    most_operands: int = MANY


DEFAULT_SUPPORT = AttentionSupport()


def attention_support(target: Target) -> AttentionSupport:
    """Return what a target supports; tensor cores also take narrow types, and split keys, so that one row is enough."""
    if isinstance(target, VectorTarget):
        return AttentionSupport(pages=not target.narrow_products)
    if not isinstance(target, ThreadTarget):
        return DEFAULT_SUPPORT
    most_operands = target.most_buffers - RESERVED_BUFFERS
    if not target.tile_products:
        return AttentionSupport(pages=True, gathers=True, most_operands=most_operands)
    narrow = {dtype for dtype in NARROW if target.tile_product(dtype, dtype) is not None}
    exact = target.float32_products is Float32Products.EXACT
    types, fewest_rows = frozenset({DType.float32, *narrow}), FEWEST_ROWS if exact else 1
    return AttentionSupport(types, fewest_rows, FEW_LOADS, pages=True, gathers=True, most_operands=most_operands)


def find_attention(
    program: TensorProgram, support: AttentionSupport = DEFAULT_SUPPORT
) -> list[tuple[tuple[Step, ...], Attention]]:
    """Find all attentions with their steps in program order; only the last step's result is used elsewhere.

    Loads refer to values by number (see `number_loads`).
    """
    used: set[int] = set()
    matches: list[tuple[tuple[Step, ...], Attention]] = []
    definitions = Definitions(program.steps, program.outputs, program.constants)
    for step in program.steps:
        match = _match_attention(definitions, step, support) if isinstance(step.primitive, Contract) else None
        if match is not None and not any(id(member) in used for member in match[1]):
            members = {id(member) for member in match[1]}
            used |= members
            matches.append((tuple(member for member in program.steps if id(member) in members), match[0]))
    return matches


def number_loads(attention: Attention, operands: Sequence[Value]) -> Attention:
    """Rewrite loads to refer to operands by position."""
    numbers = {value.number: position for position, value in enumerate(operands)}
    return map_loads(attention, lambda load: Load(numbers[load.operand], load.indices, load.dtype))


def map_loads(attention: Attention, function: Callable[[Load], Scalar]) -> Attention:
    """Replace all loads of an attention."""

    def map_optional(expression: Scalar | None) -> Scalar | None:
        return None if expression is None else rebuild(expression, function)

    return replace(
        attention,
        query=rebuild(attention.query, function),
        key=rebuild(attention.key, function),
        value=rebuild(attention.value, function),
        score=rebuild(attention.score, function),
        loaded_bounds=tuple(rebuild(bound, function) for bound in attention.loaded_bounds),
        loaded_starts=tuple(rebuild(start, function) for start in attention.loaded_starts),
        sink=map_optional(attention.sink),
        epilogue=map_optional(attention.epilogue),
    )


def _match_attention(
    program: Definitions, step: Step, support: AttentionSupport
) -> tuple[Attention, tuple[Step, ...]] | None:
    """Match the attention that ends with a contraction; return it with its steps.

    Products with constants do not match: constants are packed at compile time.
    """
    for side in (0, 1):
        weights, values = step.operands[side], step.operands[1 - side]
        if not isinstance(program.primitive_of(weights), (Map, Reshape)) or weights.dtype not in support.types:
            continue
        if program.is_constant(values):
            continue
        for product in _find_products(program, weights, support.types):
            fallbacks = [replace(support, gathers=False)] if support.gathers else []
            fallbacks += [replace(support, gathers=False, pages=False)] if support.pages else []
            for each in (support, *fallbacks):
                try:
                    return _Matcher(program, product, step, side, each).match()
                except NotFoundError:
                    continue
    return None


def _find_products(program: Definitions, weights: Value, types: frozenset[DType]) -> list[Step]:
    """Find the contractions from which maps and reductions compute the weights."""
    pending, visited, products = [weights], {weights}, []
    while pending and len(visited) < LONGEST_PATH:
        step = program.makers.get(pending.pop())
        if step is None:
            continue
        if isinstance(step.primitive, Contract) and step.results[0].dtype in types:
            if not any(map(program.is_constant, step.operands)):
                products.append(step)
        elif isinstance(step.primitive, (Map, Reduce, Reshape)):
            pending += [value for value in step.operands if value not in visited]
            visited.update(step.operands)
    return products


class _Matcher:
    """Matches from a contraction with values back to the product of queries and keys."""

    def __init__(self, program: Definitions, product: Step, final: Step, side: int, support: AttentionSupport) -> None:
        self.program, self.support = program, support
        self.product, self.final = product, final
        self.weights, self.values = final.operands[side], final.operands[1 - side]
        assert isinstance(final.primitive, Contract)
        self.weight_labels = (final.primitive.left, final.primitive.right)[side]
        self.value_labels = (final.primitive.left, final.primitive.right)[1 - side]
        self.output = final.primitive.output
        self.shape = require_shape(self.weights)
        self.inside = program.find_dependents(product.results[0])
        self.steps: dict[int, Step] = {id(product): product, id(final): final}

    def match(self) -> tuple[Attention, tuple[Step, ...]]:
        score, sink, divisor, shifts_nothing, drops_nan = self.match_softmax()
        query, key, depth, key_axes = self.match_product(score)
        value, width, value_axes = self.match_values()
        rows = tuple(axis for axis in range(len(self.shape) - 1) if axis not in key_axes | value_axes)
        rows, bounds = self.find_visible_rows(
            widen_expression(score), tuple(axis for axis in rows if self.shape[axis] != 1)
        )
        count = dims.product(self.shape[axis] for axis in rows)
        fewest = 1 if self.weights.dtype in NARROW else self.support.fewest_rows
        _require(not isinstance(count, int) or count >= fewest)
        axes, epilogue = self.match_epilogue()
        element = Placeholder(ELEMENT, self.product.results[0].dtype)
        scores = self.product.results[0].number
        attention = Attention(
            shape=self.shape,
            depth=depth,
            width=width,
            rows=rows,
            query=query,
            key=key,
            value=value,
            score=widen_expression(rebuild(score, lambda load: element if load.operand == scores else load)),
            divisor=rebuild(divisor, lambda _: Placeholder(ELEMENT, DType.float32)),
            shifts_nothing=shifts_nothing,
            drops_nan=drops_nan,
            causal_bounds=bounds,
            loaded_bounds=find_loaded_bounds(widen_expression(score), len(self.shape) - 1),
            loaded_starts=find_loaded_starts(widen_expression(score), len(self.shape) - 1),
            sink=None if sink is None else widen_expression(sink),
            axes=axes,
            epilogue=epilogue,
            block_size=self.require_block_size(key, value),
        )
        steps = tuple(self.steps.values())
        _require(self.program.is_closed(steps, self.result))
        expressions = [query, key, value, score, *(each for each in (sink, epilogue) if each is not None)]
        all_loads = [load for expression in expressions for load in loads(expression)]
        _require(not any(load.checked for load in all_loads))
        _require(not self.support.gathers or len({load.operand for load in all_loads}) <= self.support.most_operands)
        return attention, steps

    # -- softmax -----------------------------------------------------------------------------------------------------

    def match_softmax(self) -> tuple[Scalar, Scalar | None, Scalar, bool, bool]:
        """Match the softmax; return score, sink, divisor, and how it treats rows of only -inf."""
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
                largest, shifts_nothing = _match_shift(shift)
                sink, divisor = _match_sink(shift, divisor)
                if sink is not None:
                    _require(not {load.operand for load in loads(sink)} & {value.number for value in self.inside})
                    _require(len(self.shape) - 1 not in find_axes(sink))
                self.require_reduced(largest, "maximum", score)
                totals = set(loads(divisor))
                _require(len(totals) == 1)
                self.require_reduced(totals.pop(), "sum", power)
                return score, sink, divisor, shifts_nothing, drops_nan
        raise NotFoundError

    def element(self, value: Value, positions: Sequence[Dim]) -> Scalar:
        """Expand a value to an expression of the product, of row values and of unrelated values."""
        inlined: list[Step] = []
        expression = self.program.element(value, positions, self.is_inlined, inlined)
        self.steps.update({id(step): step for step in inlined})
        return expression

    def is_inlined(self, value: Value) -> bool:
        maker = self.program.primitive_of(value)
        if isinstance(maker, Map) and any(load.checked for load in loads(maker.expression)):
            return False  # a checked load must stay in its own step
        return value in self.inside and isinstance(maker, (Map, Reshape))

    def require_reduced(self, load: Load, kind: str, element: Scalar) -> None:
        """Require that a load reads the reduction of this element along the keys."""
        step = self.program.step_of(load.operand)
        _require(step is not None and isinstance(step.primitive, Reduce))
        assert step is not None and isinstance(step.primitive, Reduce)
        _require(step.primitive.kind == kind and len(step.primitive.axes) == 1)
        positions = [index.value for index in load.indices if isinstance(index, Index)]
        positions.insert(step.primitive.axes[0], dims.axis(len(self.shape) - 1, self.shape[-1]))
        _require(len(positions) == len(require_shape(step.operands[0])))
        _require(self.element(step.operands[0], positions) == element)
        self.steps[id(step)] = step

    def find_visible_rows(
        self, score: Scalar, rows: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[CausalBound, ...]]:
        """Return the axes of rows that see about the same keys (only the innermost if masked), and causal bounds."""
        if not rows:
            return rows, ()
        masks = rebuild(score, self.program.expand_load)
        bounds = find_causal_bounds(masks, len(self.shape) - 1, rows[-1])
        return (rows[-1:] if bounds else rows), bounds

    # -- operands ----------------------------------------------------------------------------------------------------

    def match_product(self, score: Scalar) -> tuple[Scalar, Scalar, int, set[int]]:
        """Match the product; return query, key, depth, and the axes along which keys change."""
        contract = self.product.primitive
        assert isinstance(contract, Contract)
        product_loads = {load for load in loads(score) if load.operand == self.product.results[0].number}
        others = {load.operand for load in loads(score)} - {self.product.results[0].number}
        _require(len(product_loads) == 1 and not others & {value.number for value in self.inside})
        positions = [index.value for index in product_loads.pop().indices if isinstance(index, Index)]
        _require(len(positions) == len(contract.output) and len(set(contract.output)) == len(contract.output))
        last = len(self.shape) - 1
        numbers = {dims.axis(axis, size): axis for axis, size in enumerate(self.shape) if size != 1}
        at = {label: numbers[position] for label, position in zip(contract.output, positions) if position in numbers}
        _require(len(set(at.values())) == len(numbers) and all(p in numbers or p == 0 for p in positions))
        sides = list(zip((contract.left, contract.right), self.product.operands))
        holds_keys = [any(at.get(label) == last for label in labels) for labels, _ in sides]
        _require(sum(holds_keys) == 1)
        (key_labels, keys), (query_labels, queries) = sides if holds_keys[0] else sides[::-1]
        summed = {label for label in (*key_labels, *query_labels) if label not in contract.output}
        _require(len(summed) == 1 and summed <= set(key_labels) and summed <= set(query_labels))
        (label,) = summed
        depth = require_shape(keys)[key_labels.index(label)]
        _require(isinstance(depth, int) and depth <= WIDEST)
        assert isinstance(depth, int)
        at[label] = last + 1
        axes = axes_of_shape((*self.shape, depth))
        key, changing = self.expand_operand(keys, key_labels, at, axes, self.support.most_loads)
        gathers = self.support.gathers and find_block_size(key, last) is not None
        query, _ = self.expand_operand(queries, query_labels, at, axes, MANY, gathers=gathers)
        return query, key, depth, changing - {last, last + 1}

    def match_values(self) -> tuple[Scalar, int, set[int]]:
        """Match the contraction with values; return value, width, and the axes along which values change."""
        last = len(self.shape) - 1
        *row_labels, summed = self.weight_labels
        _require(len(set(self.weight_labels)) == len(self.shape) and summed not in self.output)
        _require(set(row_labels) <= set(self.output) and summed in self.value_labels)
        columns = [label for label in self.value_labels if label not in self.weight_labels]
        _require(len(columns) == 1 and columns[0] in self.output)
        width = require_shape(self.values)[self.value_labels.index(columns[0])]
        _require(isinstance(width, int) and width <= WIDEST and len(set(self.value_labels)) == len(self.value_labels))
        assert isinstance(width, int)
        at = {label: axis for axis, label in enumerate((*self.weight_labels, columns[0]))}
        axes = axes_of_shape((*self.shape, width))
        value, changing = self.expand_operand(self.values, self.value_labels, at, axes, self.support.most_loads)
        return value, width, changing - {last, last + 1}

    def expand_operand(
        self,
        value: Value,
        labels: Sequence[int],
        at: Mapping[int, int],
        axes: Sequence[Dim],
        most_loads: int,
        *,
        gathers: bool = False,
    ) -> tuple[Scalar, set[int]]:
        """Expand an operand through maps without other readers; return its element and the axes it varies along.

        `gathers`: its loads may have any indices, not only linear ones.
        """
        sizes = require_shape(value)
        used = [at[label] if size != 1 and label in at else None for label, size in zip(labels, sizes)]
        _require(all(size == 1 or label in at for label, size in zip(labels, sizes)))
        positions = [0 if axis is None else axes[axis] for axis in used]
        changing = {axis for axis in used if axis is not None}
        last = len(self.shape) - 1
        for can_inline in (self.program.is_private, self.is_moved, lambda _: False):
            inlined: list[Step] = []
            try:
                expression = self.program.element(value, positions, can_inline, inlined)
            except NotFoundError:
                continue
            pages = self.support.pages and find_block_size(expression, last) is not None
            is_linear = pages or gathers or _is_linear(expression, {last, last + 1})
            if is_linear and (pages or len(set(loads(expression))) <= most_loads):
                self.steps.update({id(step): step for step in inlined})
                return expression, changing
        raise NotFoundError

    def require_block_size(self, key: Scalar, value: Scalar) -> int | None:
        """Return the size of blocks, which must be the same for keys and values; None if there are no blocks."""
        last = len(self.shape) - 1
        sizes = {find_block_size(expression, last) for expression in (key, value)}
        _require(len(sizes) == 1)
        return sizes.pop()

    def is_moved(self, value: Value) -> bool:
        """Whether a value has one reader, and each element comes from one element of another tensor."""
        maker = self.program.primitive_of(value)
        several = isinstance(maker, Map) and sum(bool(load.indices) for load in set(loads(maker.expression))) > 1
        return not several and self.program.is_private(value)

    # -- result ------------------------------------------------------------------------------------------------------

    @property
    def result(self) -> Value:
        return self._result

    def match_epilogue(self) -> tuple[tuple[int, ...], Scalar | None]:
        """Match a map after the contraction; return the result's axes, possibly permuted, and its epilogue."""
        last = len(self.shape) - 1
        numbers = {label: axis for axis, label in enumerate(self.weight_labels)}
        axes = tuple(numbers.get(label, last + 1) for label in self.output)
        self._result = self.final.results[0]
        step = self.program.only_reader(self._result)
        if step is None or not isinstance(step.primitive, Map):
            return axes, None
        result = self._result.number
        numbers_of_operands = [value.number for value in step.operands]
        expression = rebuild(
            step.primitive.expression,
            lambda load: replace(load, operand=numbers_of_operands[load.operand]),
        )
        index_sets = {load.indices for load in loads(expression) if load.operand == result}
        order = _match_permutation(index_sets, require_shape(self._result), require_shape(step.results[0]))
        if order is None:
            return axes, None
        self.steps[id(step)] = step
        self._result = step.results[0]
        element = Placeholder(ELEMENT, self.final.results[0].dtype)
        epilogue = rebuild(expression, lambda load: element if load.operand == result else load)
        result_axes = [0] * len(axes)
        for axis, source_axis in enumerate(order):
            result_axes[source_axis] = axes[axis]
        return tuple(result_axes), None if epilogue == element else epilogue


def widen_expression(expression: Scalar) -> Scalar:
    """Compute float16 and bfloat16 expressions in float32, without intermediate rounding."""
    copies: dict[int, Scalar] = {}

    def widen(node: Scalar) -> Scalar:
        copy = copies.get(id(node))
        if copy is None:
            copy = copies[id(node)] = _widen_node(node, widen)
        return copy

    return widen(expression)


def _widen_node(node: Scalar, widen: Callable[[Scalar], Scalar]) -> Scalar:
    is_narrow = node.dtype in NARROW
    match node:
        case Literal(value) if is_narrow:
            return Literal(value, DType.float32)
        case Placeholder(key) if is_narrow:
            return Placeholder(key, DType.float32)
        case Load() if is_narrow:
            return Apply("cast", (node,), DType.float32)
        case Apply("bitcast"):
            return node
        case Apply("cast", (inner,), dtype) if inner.dtype in NARROW:
            return widen(inner) if is_narrow or dtype is DType.float32 else Apply("cast", (widen(inner),), dtype)
        case Apply("cast", (Apply() | Placeholder() as inner,), _) if is_narrow and inner.dtype is DType.float32:
            return widen(inner)
        case Apply(function, arguments, dtype):
            return Apply(function, tuple(map(widen, arguments)), DType.float32 if is_narrow else dtype)
        case _:
            return node


def _match_shift(shift: Scalar) -> tuple[Load, bool]:
    """Match the row maximum in the subtrahend; return it and whether 0 replaces a maximum of -inf."""
    match shift:
        case Load():
            return shift, False
        case Apply("select", (Apply("equal", (Load() as tested, Literal(low))), Literal(other), Load() as largest)):
            if tested == largest and low == -inf and other == 0:
                return largest, True
        case Apply("maximum", (Load() as largest, _)):  # with a sink, which is not -inf
            return largest, True
    raise NotFoundError


def _match_sink(shift: Scalar, divisor: Scalar) -> tuple[Scalar | None, Scalar]:
    """Match the score of a sink in the subtrahend and the divisor; return it, and the divisor without it."""
    match shift, divisor:
        case Apply("maximum", (Load(), sink)), Apply("add", (Load() as total, Apply("exp", (difference,)))):
            negative = Apply("negate", (shift,), DType.float32)
            is_zero = isinstance(sink, Literal) and sink.value == 0
            if difference == Apply("subtract", (sink, shift), DType.float32) or (is_zero and difference == negative):
                return sink, total
        case Apply("maximum"), _:
            pass
        case _:
            return None, divisor
    raise NotFoundError


def find_block_size(expression: Scalar, key: int) -> int | None:
    """Return the size of the blocks of keys for which an expression is linear in the block and the place there.

    A block may index a table, whose elements may index what the expression loads. `key` is the axis of the keys, and
    the one after it that of the depth. None if the expression has no blocks.
    """
    atoms = {
        atom for node in walk(expression) if isinstance(node, Index) for atom in dims.atoms(node.value)
        if isinstance(atom, Compound) and key in find_nonlinear_axes(dims.from_atom(atom))
    }  # fmt: skip
    sizes = {atom.right for atom in atoms}
    size = sizes.pop() if len(sizes) == 1 else None
    if not isinstance(size, int):
        return None
    others = find_axes(expression)
    block, place = dims.axis(key + 2, dims.symbol("blocks")), dims.axis(key + 3, size)
    axes: dict[int, Dim] = {axis: dims.axis(axis, dims.symbol(f"size{axis}")) for axis in others}
    in_blocks = substitute_axes(expression, {**axes, key: size * block + place})
    streamed = {key + 1, key + 2, key + 3}
    for load in loads(in_blocks):
        for index in load.indices:
            if isinstance(index, Index):
                if find_nonlinear_axes(index.value) & streamed:
                    return None
            elif not isinstance(index, Load) or find_axes(index) & {key + 1, key + 3}:
                return None
    return size


def _is_linear(expression: Scalar, axes: set[int]) -> bool:
    """Whether the indices of all loads are linear in the given axes."""
    return all(
        isinstance(index, Index) and not find_nonlinear_axes(index.value) & axes
        for load in loads(expression)
        for index in load.indices
    )


def _match_permutation(index_sets: set[tuple[Scalar, ...]], source: Shape, result: Shape) -> list[int] | None:
    """Return the result's axis for each axis of the source if the map only permutes axes."""
    if len(index_sets) != 1 or sorted(map(str, source)) != sorted(map(str, result)):
        return None
    (indices,) = index_sets
    free = list(range(len(result)))
    order: list[int] = []
    for index, size in zip(indices, source):
        matching = [a for a in free if result[a] == size and index == Index(dims.axis(a, result[a]))]
        if not matching:
            return None
        order.append(matching[0])
        free.remove(matching[0])
    return order


def _require(fact: bool) -> None:
    if not fact:
        raise NotFoundError
