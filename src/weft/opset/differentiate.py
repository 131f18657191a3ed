"""Reverse-mode gradients: a function is traced as a separate program, whose steps are visited backwards.

In: a function of tensors and the point to take its gradient at. Out: the derivative of the sum of its result by the
first tensors. A primitive without a rule raises UnsupportedModelError with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.errors import UnsupportedModelError
from weft.ir import dims
from weft.ir.program import (
    Concat,
    Contract,
    Convolve,
    Cumulate,
    Map,
    Pool,
    Reduce,
    Reshape,
    Sort,
    Step,
    TensorProgram,
    Value,
)
from weft.ir.scalar import Index, Load, Scalar, identity_indices, rebuild
from weft.ir.types import Shape
from weft.opset.derivatives import adjoints
from weft.opset.functions import cast, equal, where
from weft.opset.language import (
    Element,
    Tensor,
    build,
    contract,
    convolve,
    cumulate,
    elementwise,
    full,
    pool,
    reduce,
    reshape,
    scatter,
    slice_axis,
    transpose,
)
from weft.opset.tensor import current_trace, emit_map

Adjoint = tuple[int, Tensor]  # the position of an operand, and a part of its adjoint


def compute_gradients(function: Callable[..., Sequence[Tensor]], point: Sequence[Tensor], count: int) -> list[Tensor]:
    """Compute the derivatives by the first `count` tensors of the point."""
    sources, fixed = point[:count], point[count:]
    types = [(tensor.type, "point") for tensor in sources]
    traced = current_trace.get().body(types, lambda *inputs: function(*inputs, *fixed))
    program = traced.program
    tensors = _replay(program, [*sources, *traced.captures])
    varying = _find_varying(program, count)
    target = program.outputs[0]
    adjoint_of: dict[Value, Tensor] = {}
    if target in varying:
        adjoint_of[target] = full(tensors[target].shape, 1.0, tensors[target].dtype)
    for step in reversed(program.steps):
        if not any(result in adjoint_of for result in step.results):
            continue
        operands = [tensors[operand] for operand in step.operands]
        results = [tensors[result] for result in step.results]
        for position, part in _step_adjoints(step, operands, results, adjoint_of.get(step.results[0])):
            operand = step.operands[position]
            if operand in varying:
                adjoint_of[operand] = adjoint_of[operand] + part if operand in adjoint_of else part
    return [
        adjoint_of[value] if value in adjoint_of else full(x.shape, 0.0, x.dtype)
        for value, x in zip(program.inputs, sources)
    ]


def _replay(program: TensorProgram, inputs: Sequence[Tensor]) -> dict[Value, Tensor]:
    """Emit the program's steps in the current trace, and return its values as tensors there."""
    trace = current_trace.get()
    tensors = dict(zip(program.inputs, inputs, strict=True))
    for value, content in program.constants.items():
        tensors[value] = trace.constant(content, value.type, value.name)
    trace.guards.extend(program.guards)
    for step in program.steps:
        operands = [tensors[operand] for operand in step.operands]
        results = trace.emit(step.primitive, operands, [result.type for result in step.results])
        tensors.update(zip(step.results, results))
    return tensors


def _find_varying(program: TensorProgram, count: int) -> set[Value]:
    """Return the values that may depend smoothly on the first `count` inputs."""
    varying = {value for value in program.inputs[:count] if _may_vary(value)}
    for step in program.steps:
        if any(operand in varying for operand in step.operands):
            varying.update(result for result in step.results if _may_vary(result))
    return varying


def _may_vary(value: Value) -> bool:
    return not value.is_tensor or value.dtype.is_float


def _step_adjoints(
    step: Step, operands: Sequence[Tensor], results: Sequence[Tensor], g: Tensor | None
) -> Sequence[Adjoint]:
    """Compute the adjoints of a step's operands from that of its first result, `g`."""
    if g is None:
        return []
    match step.primitive:
        case Map(expression):
            return _map_adjoints(expression, operands, g)
        case Reshape():
            return [(0, reshape(g, operands[0].shape))]
        case Concat(axis):
            return _concat_adjoints(axis, operands, g)
        case Reduce() as primitive:
            return [(0, _reduce_adjoint(primitive, operands[0], results[0], g))]
        case Contract() as primitive:
            return _contract_adjoints(primitive, operands, g)
        case Convolve() as primitive:
            return _convolve_adjoints(primitive, operands, g)
        case Pool(kind="sum" | "maximum") as primitive:
            return [(0, _pool_adjoint(primitive, operands[0], g))]
        case Cumulate("sum", axis, exclusive, reverse):
            return [(0, cumulate("sum", g, axis, exclusive=exclusive, reverse=not reverse))]
        case Sort(axis=axis):
            return [(0, _sort_adjoint(axis, operands[0], results[1], g))]
        case primitive:
            raise UnsupportedModelError(f"weft has no gradient of {type(primitive).__name__.lower()}", node=step.origin)


def _map_adjoints(expression: Scalar, operands: Sequence[Tensor], g: Tensor) -> list[Adjoint]:
    """Add each load's adjoint to the element that it read: by a sum over broadcast axes, or by scattering."""
    gradient_operand = len(operands)  # the position under which the expressions below load from g

    def rename(load: Load) -> Scalar:
        tensor = g if load.operand == gradient_operand else operands[load.operand]
        return Load(tensor.value.number, load.indices, load.dtype, load.checked)

    axes = identity_indices(g.shape)
    parts = []
    for load, share in adjoints(expression, Element(Load(gradient_operand, axes, g.dtype))):
        element = Element(rebuild(share.scalar, rename))
        indices = [Element(rebuild(index, rename)) for index in load.indices]
        parts.append((load.operand, _accumulate_loads(operands[load.operand], indices, element, g.shape)))
    return parts


def _accumulate_loads(x: Tensor, indices: Sequence[Element], element: Element, shape: Shape) -> Tensor:
    """Compute the adjoint of x where, over `shape`, the element at `indices` has the adjoint `element`."""
    sources = [_source_axis(index, size, shape) for index, size in zip(indices, x.shape)]
    used = [axis for axis in sources if axis is not None and axis >= 0]
    if None in sources or len(set(used)) != len(used):
        return scatter(
            full(x.shape, 0.0, x.dtype), shape, lambda *_: (indices, element), reduction="add", checked=False
        )
    total = reduce("sum", emit_map(shape, element), [axis for axis in range(len(shape)) if axis not in used])
    order = sorted(used)
    return reshape(transpose(total, [order.index(axis) for axis in used]), x.shape)


def _source_axis(index: Element, size: dims.Dim, shape: Shape) -> int | None:
    """Return the axis that an index consists of; -1 for an index into a dimension of size 1; None for others."""
    if size == 1:
        return -1
    for axis, extent in enumerate(shape):
        if size == extent and index.scalar == Index(dims.axis(axis, extent)):
            return axis
    return None


def _concat_adjoints(axis: int, operands: Sequence[Tensor], g: Tensor) -> list[Adjoint]:
    parts = []
    start: dims.Dim = 0
    for position, operand in enumerate(operands):
        parts.append((position, slice_axis(g, axis, start, operand.shape[axis])))
        start = start + operand.shape[axis]
    return parts


def _reduce_adjoint(primitive: Reduce, x: Tensor, result: Tensor, g: Tensor) -> Tensor:
    spread_g, spread_result = (_spread(tensor, x, primitive.axes) for tensor in (g, result))
    if primitive.kind == "sum":
        return spread_g
    if primitive.kind == "product":
        return elementwise(lambda a, b: a * b, spread_g, _multiply_others(x, primitive.axes))
    hits = elementwise(lambda v, r: cast(equal(v, r), x.dtype), x, spread_result)
    shared = _spread(reduce("sum", hits, primitive.axes), x, primitive.axes)
    return elementwise(lambda a, hit, n: a * hit / n, spread_g, hits, shared)


def _spread(tensor: Tensor, x: Tensor, axes: Sequence[int]) -> Tensor:
    """Repeat along the reduced axes of x."""
    return build(x.shape, lambda *i: tensor.at(*(k for axis, k in enumerate(i) if axis not in axes)))


def _multiply_others(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Compute, for each element, the product of all others along `axes`, which may be zeros."""
    order = [*(axis for axis in range(x.rank) if axis not in axes), *axes]
    transposed = transpose(x, order)
    outer = x.rank - len(axes)
    rows = reshape(transposed, [*transposed.shape[:outer], dims.product(transposed.shape[outer:])])
    before = cumulate("product", rows, outer, exclusive=True)
    after = cumulate("product", rows, outer, exclusive=True, reverse=True)
    others = reshape(elementwise(lambda a, b: a * b, before, after), transposed.shape)
    return transpose(others, [order.index(axis) for axis in range(x.rank)])


def _contract_adjoints(primitive: Contract, operands: Sequence[Tensor], g: Tensor) -> list[Adjoint]:
    left, right, output = ("".join(map(chr, labels)) for labels in (primitive.left, primitive.right, primitive.output))
    parts = []
    for position, side, other in ((0, left, right), (1, right, left)):
        if len(set(side)) != len(side):
            raise UnsupportedModelError("weft has no gradient of a product over a diagonal")
        x = operands[position]
        labels = "".join(label for label in side if label in output or label in other)
        product = contract(g, operands[1 - position], output, other, labels)
        parts.append((position, _spread(product, x, [axis for axis, label in enumerate(side) if label not in labels])))
    return parts


def _convolve_adjoints(primitive: Convolve, operands: Sequence[Tensor], g: Tensor) -> list[Adjoint]:
    """Use that a convolution and its transpose are adjoint, and depend on the weights in the same way."""
    x, w = operands
    strides, dilations, pads, groups = primitive.strides, primitive.dilations, primitive.pads, primitive.groups
    spatial = x.shape[2:]
    to_x = convolve(
        g,
        w,
        strides=strides,
        dilations=dilations,
        pads=pads,
        groups=groups,
        spatial=spatial if primitive.transposed else None,
        transposed_shape=None if primitive.transposed else spatial,
    )
    wide, narrow = (g, x) if primitive.transposed else (x, g)
    return [(0, to_x), (1, _weight_adjoint(primitive, wide, narrow, w))]


def _weight_adjoint(primitive: Convolve, x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """Sum products of x's windows and g over the batch and all windows."""
    groups, rank = primitive.groups, x.rank - 2
    channels, kernel, spatial = w.shape[1], w.shape[2:], g.shape[2:]

    def window(n: Element, group: Element, c: Element, *i: Element) -> Element:
        positions = _window_positions(primitive, i[rank:], i[:rank])
        return _load_inside(x, (n, group * channels + c, *positions))

    windows = build((x.shape[0], groups, channels, *kernel, *spatial), window)
    kernel_labels, spatial_labels = "KLMNO"[:rank], "PQRST"[:rank]
    per_group = dims.floordiv(w.shape[0], groups)
    shares = reshape(g, (g.shape[0], groups, per_group, *spatial))
    result = contract(
        shares,
        windows,
        f"ngm{spatial_labels}",
        f"ngc{kernel_labels}{spatial_labels}",
        f"gmc{kernel_labels}",
    )
    return reshape(result, w.shape)


def _window_positions(
    primitive: Convolve | Pool, window: Sequence[Element], offset: Sequence[Element]
) -> list[Element]:
    steps = zip(window, offset, primitive.strides, primitive.dilations, primitive.pads)
    return [o * stride + k * dilation - before for o, k, stride, dilation, (before, _) in steps]


def _load_inside(x: Tensor, indices: Sequence[Element]) -> Element:
    """Load the element at `indices`, 0 outside the tensor."""
    inside = None
    for index, size in zip(indices[2:], x.shape[2:]):
        within = (index >= 0) & (index < size)
        inside = within if inside is None else inside & within
    loaded = x.at(*indices)
    return loaded if inside is None else where(inside, loaded, 0)


def _pool_adjoint(primitive: Pool, x: Tensor, g: Tensor) -> Tensor:
    rank = x.rank - 2
    if primitive.kind == "sum":

        def place(n: Element, c: Element, *i: Element) -> tuple[Sequence[Element], Element]:
            return (n, c, *_window_positions(primitive, i[:rank], i[rank:])), g.at(n, c, *i[:rank])

        domain = (*g.shape, *primitive.window)
        return scatter(full(x.shape, 0.0, x.dtype), domain, place, reduction="add", checked=False)
    first = pool(
        "argmax",
        x,
        window=primitive.window,
        strides=primitive.strides,
        dilations=primitive.dilations,
        pads=primitive.pads,
        spatial=g.shape[2:],
    )
    flat = full((*x.shape[:2], dims.product(x.shape[2:])), 0.0, x.dtype)
    back = scatter(flat, g.shape, lambda n, c, *i: ((n, c, first.at(n, c, *i)), g.at(n, c, *i)), reduction="add")
    return reshape(back, x.shape)


def _sort_adjoint(axis: int, x: Tensor, positions: Tensor, g: Tensor) -> Tensor:
    def place(*i: Element) -> tuple[Sequence[Element], Element]:
        return (*i[:axis], positions.at(*i), *i[axis + 1 :]), g.at(*i)

    return scatter(full(x.shape, 0.0, x.dtype), g.shape, place, reduction="add")
