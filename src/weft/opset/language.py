"""The primitives as functions of tensors, for op definitions.

Elementwise functions are in `functions`, control flow in `flow`; data movement, reductions, the heavy primitives and
host steps are here. Everything works on symbolic shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.errors import InvalidModelError
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import (
    ArgReduce,
    Concat,
    Contract,
    Convolve,
    Cumulate,
    Host,
    Pool,
    Random,
    Reduce,
    Reshape,
    Scatter,
    Sort,
)
from weft.ir.scalar import Load, Scalar, rebuild
from weft.ir.types import Shape, TensorType, Type
from weft.opset.functions import cast, where
from weft.opset.registry import normalize_axes, normalize_axis
from weft.opset.tensor import (
    Element,
    Number,
    Tensor,
    broadcast_shapes,
    build,
    current_trace,
    elementwise,
    index,
    literal,
)
from weft.opset.trace import is_symbolic

__all__ = [
    "Element", "Number", "Tensor", "arg_reduce", "assume_at_least", "assume_equal", "broadcast_shapes", "build",
    "check_range", "concat", "constant", "contract", "convolve", "cumulate", "dims_tensor", "elementwise", "expand",
    "expand_dims", "flip", "fresh_symbol", "full", "gather", "host", "index", "literal", "matmul", "mean",
    "observe", "pad", "pool", "random", "reduce", "reshape", "scatter", "slice_axis", "sort", "specialize_shape",
    "split", "squeeze", "stack", "transpose",
]  # fmt: skip


# -- creating tensors ------------------------------------------------------------------------------------------------


def constant(content: Any, dtype: DType | None = None) -> Tensor:
    """Create a constant tensor."""
    array = np.asarray(content) if dtype is None else np.asarray(content, dtype=dtype.numpy)
    return current_trace.get().constant(array)


def full(shape: Sequence[Dim], value: Number, dtype: DType) -> Tensor:
    """Create a tensor filled with one number."""
    return build(shape, lambda *_: value, dtype)


def dims_tensor(values: Sequence[Dim], shape: Sequence[int] | None = None, dtype: DType = DType.int64) -> Tensor:
    """Convert sizes to an integer tensor (one-dimensional without `shape`)."""
    return current_trace.get().dims_tensor(values, (len(values),) if shape is None else shape, dtype)


def fresh_symbol(hint: str, low: int | None = 0) -> Dim:
    """Create a size that is known only at run time: for the result types of host steps."""
    return current_trace.get().fresh_symbol(hint, low)


def observe(x: Tensor, hint: str) -> tuple[Dim, ...]:
    """Return the elements of an integer tensor as sizes, bound at run time where they are not static."""
    return current_trace.get().observe(x, hint)


def assume_equal(left: Dim, right: Dim, why: str) -> None:
    """Require that two sizes are equal: raise an error if they never are, add a guard if it depends on the run."""
    current_trace.get().assume_equal(left, right, why)


def assume_at_least(left: Dim, right: Dim, why: str) -> None:
    """Require that left >= right: raise an error if it never holds, add a guard if it depends on the run."""
    current_trace.get().assume_at_least(left, right, why)


# -- data movement ---------------------------------------------------------------------------------------------------


def is_held(x: Tensor) -> bool:
    """Whether a tensor is an input whose memory a state holds, so that rows may be written after its own."""
    return x.trace.parent is None and x.value.name in x.trace.state_inputs and x.value in x.trace.inputs


def holds_state(x: Tensor) -> bool:
    """Whether the program of a tensor holds a state between runs."""
    return x.trace.holds_state


def reshape(x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Reshape to a shape with the same number of elements."""
    shape = tuple(shape)
    if shape == x.shape:
        return x
    assume_equal(dims.product(shape), x.size, f"reshape from {_format_shape(x.shape)} to {_format_shape(shape)}")
    return _emit(Reshape(), [x], x.dtype, shape)


def specialize_shape(x: Tensor, sizes: Sequence[Dim]) -> Tensor:
    """Replace dynamic sizes of a tensor by numbers that they are assumed to equal (`sizes` of another operand)."""
    shape = tuple(size if isinstance(size, int) else old for old, size in zip(x.shape, sizes))
    return x if shape == x.shape else _emit(Reshape(), [x], x.dtype, shape)


def squeeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Drop dimensions of size 1."""
    if axes and not x.rank:  # `normalize_axes` lets axis 0 of a scalar pass, for reductions
        raise InvalidModelError(f"axis {axes[0]} is out of range for rank 0")
    axes = normalize_axes(axes, x.rank)
    for axis in axes:
        assume_equal(x.shape[axis], 1, f"only a dimension of size 1 can be squeezed from {_format_shape(x.shape)}")
    return reshape(x, [size for axis, size in enumerate(x.shape) if axis not in axes])


def expand_dims(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Insert dimensions of size 1 at `axes` of the result."""
    axes = normalize_axes(axes, x.rank + len(axes))
    sizes = iter(x.shape)
    return reshape(x, [1 if axis in axes else next(sizes) for axis in range(x.rank + len(axes))])


def transpose(x: Tensor, permutation: Sequence[int]) -> Tensor:
    """Permute dimensions: result.shape[k] == x.shape[permutation[k]]."""
    permutation = normalize_axes(permutation, x.rank)
    if len(permutation) != x.rank:
        raise InvalidModelError(f"permutation {tuple(permutation)} does not fit rank {x.rank}")
    return build(
        [x.shape[axis] for axis in permutation],
        lambda *i: x.at(*(i[permutation.index(axis)] for axis in range(x.rank))),
    )


def expand(x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Broadcast to exactly `shape`."""
    shape = tuple(shape)
    aligned = len(shape) - x.rank
    if aligned < 0:
        raise InvalidModelError(
            f"{_format_shape(x.shape)} has more dimensions than {_format_shape(shape)}, to which it is expanded"
        )
    for size, target in zip(x.shape, shape[aligned:]):
        if size != 1:
            certain = isinstance(size, int) or dims.is_at_least(size, 2)  # else it may be 1 in a run
            why = f"broadcast of {_format_shape(x.shape)} to {_format_shape(shape)}"
            current_trace.get().assume_equal(size, target, why, certain=certain)
    return build(shape, lambda *i: x.at(*(0 if size == 1 else k for size, k in zip(x.shape, i[aligned:]))))


def slice_axis(x: Tensor, axis: int, start: Dim, count: Dim, step: Dim = 1) -> Tensor:
    """Take `count` elements along `axis`: those at start, start + step, ..., all of which must exist."""
    axis = normalize_axis(axis, x.rank)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return build(shape, lambda *i: x.at(*i[:axis], i[axis] * step + start, *i[axis + 1 :]))


def flip(x: Tensor, axis: int) -> Tensor:
    axis = normalize_axis(axis, x.rank)
    return build(x.shape, lambda *i: x.at(*i[:axis], x.shape[axis] - 1 - i[axis], *i[axis + 1 :]))


def split(x: Tensor, axis: int, sizes: Sequence[Dim]) -> list[Tensor]:
    """Split into consecutive parts along `axis`."""
    axis = normalize_axis(axis, x.rank)
    total: Dim = 0
    for size in sizes:
        total = total + size
    assume_equal(total, x.shape[axis], "the parts of a split must add up")
    parts: list[Tensor] = []
    start: Dim = 0
    for size in sizes:
        parts.append(slice_axis(x, axis, start, size))
        start = start + size
    return parts


def concat(tensors: Sequence[Tensor], axis: int) -> Tensor:
    first = tensors[0]
    axis = normalize_axis(axis, first.rank)
    total: Dim = 0
    shape = list(first.shape)
    for tensor in tensors:
        if tensor.rank != first.rank or tensor.dtype is not first.dtype:
            raise InvalidModelError(f"tensors {first.type} and {tensor.type} cannot be concatenated")
        for position in range(first.rank):
            if position != axis:
                assume_equal(shape[position], tensor.shape[position], "concatenated tensors must agree")
                if isinstance(tensor.shape[position], int):
                    shape[position] = tensor.shape[position]
        total = total + tensor.shape[axis]
    shape[axis] = total
    return tensors[0] if len(tensors) == 1 else _emit(Concat(axis), tensors, first.dtype, tuple(shape))


def stack(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Join along a new dimension."""
    return concat([expand_dims(tensor, [axis]) for tensor in tensors], axis)


def pad(x: Tensor, pads: Sequence[tuple[Dim, Dim]], value: Element | Number = 0) -> Tensor:
    """Grow (or, with negative numbers, crop) each dimension by (before, after), filled with `value`."""
    shape = tuple(before + size + after for size, (before, after) in zip(x.shape, pads))

    def element(*i: Element) -> Element:
        source = [k - before for k, (before, _) in zip(i, pads)]
        tests = [k >= 0 for k, (before, _) in zip(source, pads) if not _never_positive(before)]
        tests += [k < size for k, size, (_, after) in zip(source, x.shape, pads) if not _never_positive(after)]
        if not tests:
            return x.at(*source)
        inside = tests[0]
        for test in tests[1:]:
            inside = inside & test
        return where(inside, x.at(*source), value)

    return build(shape, element)


def _never_positive(dim: Dim) -> bool:
    return isinstance(dim, int) and dim <= 0


def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Replace dimension `axis` of x by the dimensions of `indices`; negative indices count from the end."""
    if not indices.dtype.is_integer:
        raise InvalidModelError(f"indices must be integers, not {indices.dtype}")
    axis = normalize_axis(axis, x.rank)
    size = x.shape[axis]
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    static_index = indices.static_value.item() if indices.static_value is not None and indices.size == 1 else None

    def element(*i: Element) -> Element:
        if isinstance(static_index, int):
            position = index(static_index + size if static_index < 0 else static_index)
        else:
            position = wrap_index(indices.at(*i[axis : axis + indices.rank]), size)
        return x.at(*i[:axis], position, *i[axis + indices.rank :], checked=True)

    return build(shape, element)


def wrap_index(position: Element, size: Dim) -> Element:
    """Count a position that may be negative from the front."""
    position = cast(position, DType.int64)
    return where(position < 0, position + index(size), position)


def check_range(x: Tensor, low: Dim, high: Dim, name: str) -> Tensor:
    """Convert the integers of x to int64; a run fails on those outside low..high."""
    if not x.dtype.is_integer:
        raise InvalidModelError(f"{name} must hold integers, not {x.dtype}")
    if x.static_value is not None and not is_symbolic(x) and isinstance(low, int) and isinstance(high, int):
        outside = x.static_value[(x.static_value < low) | (x.static_value > high)]
        if outside.size:
            raise InvalidModelError(f"{name} must lie between {low} and {high}, which {outside.flat[0]} does not")
        return cast(x, DType.int64)
    zero = constant(np.zeros(1, np.int64))  # loading beyond its only element is the error

    def element(v: Element) -> Element:
        wide = cast(v, DType.int64)
        outside = cast((wide < index(low)) | (wide > index(high)), DType.int64)
        return wide + zero.at(outside, checked=True)

    return elementwise(element, x)


# -- reductions and heavy primitives ---------------------------------------------------------------------------------


def reduce(kind: str, x: Tensor, axes: Sequence[int], keep: bool = False) -> Tensor:
    """Reduce by sum, product, maximum or minimum along `axes`; `keep` leaves them with size 1."""
    axes = tuple(sorted(normalize_axes(axes, x.rank)))
    if not axes:
        return x
    shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
    result = _emit(Reduce(kind, axes), [x], x.dtype, shape)
    return reshape(result, [1 if axis in axes else size for axis, size in enumerate(x.shape)]) if keep else result


def mean(x: Tensor, axes: Sequence[int], keep: bool = False) -> Tensor:
    """Average along `axes`, in x's dtype."""
    axes = normalize_axes(axes, x.rank)
    count = dims.product(x.shape[axis] for axis in axes)
    total = reduce("sum", x, axes, keep)
    return total / (float(count) if isinstance(count, int) and x.dtype.is_float else cast_dim(count, x.dtype))


def cast_dim(value: Dim, dtype: DType) -> Tensor:
    """Convert a size to a scalar tensor of any dtype."""
    return build((), lambda: cast(index(value), dtype))


def arg_reduce(kind: str, x: Tensor, axis: int, keep: bool = False, last: bool = False) -> Tensor:
    """Find the int64 position of the `maximum` or `minimum` along an axis."""
    axis = normalize_axis(axis, x.rank)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    _assume_countable(x.shape[axis])
    result = _emit(ArgReduce(kind, axis, last), [x], DType.int64, shape)
    return expand_dims(result, [axis]) if keep else result


def _assume_countable(size: Dim) -> None:
    """Guard that 32 bits hold the positions along an axis; a static size is checked elsewhere."""
    if not isinstance(size, int):
        assume_at_least(dims.LARGEST_POSITION, size, "more elements than a position can count")


def contract(left: Tensor, right: Tensor, left_labels: str, right_labels: str, output_labels: str) -> Tensor:
    """Sum products over the labels that `output_labels` lacks: contract(a, b, "mk", "kn", "mn")."""
    if left.dtype is not right.dtype:
        raise InvalidModelError(f"a product of {left.dtype} and {right.dtype}")
    sizes: dict[str, Dim] = {}
    for tensor, labels in ((left, left_labels), (right, right_labels)):
        if len(labels) != tensor.rank:
            raise InvalidModelError(f"labels {labels!r} do not fit shape {_format_shape(tensor.shape)}")
        for label, size in zip(labels, tensor.shape):
            assume_equal(sizes.setdefault(label, size), size, f"both tensors of a product must agree, {label!r}")
            if isinstance(size, int):
                sizes[label] = size
    left = specialize_shape(left, [sizes[label] for label in left_labels])
    right = specialize_shape(right, [sizes[label] for label in right_labels])
    numbers = {label: number for number, label in enumerate(sizes)}
    encoded = (tuple(numbers[label] for label in labels) for labels in (left_labels, right_labels, output_labels))
    primitive = Contract(*encoded)
    return _emit(primitive, [left, right], left.dtype, tuple(sizes[label] for label in output_labels))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices like numpy.matmul: batches broadcast, one-dimensional operands are row or column."""
    if a.rank == 0 or b.rank == 0:
        raise InvalidModelError("a matrix product of scalars")
    row, column = a.rank == 1, b.rank == 1
    a = expand_dims(a, [0]) if row else a
    b = expand_dims(b, [1]) if column else b
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    letters = "abcdefghijlopqrstuvwxyz"[: len(batch)]
    a, a_labels = _align_batch(a, letters, batch)
    b, b_labels = _align_batch(b, letters, batch)
    result = contract(a, b, a_labels + "mk", b_labels + "kn", letters + "mn")
    if row or column:
        shape = [*result.shape[:-2], *([] if row else [result.shape[-2]]), *([] if column else [result.shape[-1]])]
        result = reshape(result, shape)
    return result


def _align_batch(x: Tensor, letters: str, batch: Shape) -> tuple[Tensor, str]:
    """Label x's batch dimensions; those of size 1 that broadcast are dropped, so that nothing is copied."""
    first = len(batch) - (x.rank - 2)
    axes = [i for i, size in enumerate(x.shape[:-2]) if size != 1 or batch[first + i] == 1]
    return reshape(x, [*(x.shape[i] for i in axes), *x.shape[-2:]]), "".join(letters[first + i] for i in axes)


def convolve(
    x: Tensor,
    w: Tensor,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[tuple[Dim, Dim]],
    groups: Dim = 1,
    spatial: Sequence[Dim] | None = None,
    transposed_shape: Sequence[Dim] | None = None,
) -> Tensor:
    """Convolve [N, C, *S] with [M, C/groups, *K]; with `transposed_shape` (the result's *S) the adjoint of that.

    `spatial` is the result's *S where the caller has it in a simpler form than the number of windows that fit.
    """
    if x.dtype is not w.dtype:
        raise InvalidModelError(f"a convolution of {x.dtype} with weights of {w.dtype}")
    transposed = transposed_shape is not None
    primitive = Convolve(tuple(strides), tuple(dilations), tuple(pads), groups, transposed)
    if transposed_shape is not None:
        inputs = w.shape[0]
        channels, spatial = w.shape[1] * groups, tuple(transposed_shape)
    else:
        inputs, channels = w.shape[1] * groups, w.shape[0]
        if spatial is None:
            spatial = [window_count(*sizes) for sizes in zip(x.shape[2:], w.shape[2:], strides, dilations, pads)]
    assume_equal(x.shape[1], inputs, "input channels")
    x = specialize_shape(x, (x.shape[0], inputs, *x.shape[2:]))
    return _emit(primitive, [x, w], x.dtype, (x.shape[0], channels, *spatial))


def window_count(size: Dim, window: Dim, stride: int, dilation: int, pad: tuple[Dim, Dim]) -> Dim:
    """Count the windows that fit into a padded axis; where that depends on sizes, at least one is assumed to."""
    room = size + pad[0] + pad[1] - (dilation * (window - 1) + 1)
    if isinstance(room, int):
        if room < 0 and size != 0:
            problem = f"a window of {window} elements is larger than the padded input of {size + pad[0] + pad[1]}"
            raise InvalidModelError(problem + (f", with dilations of {dilation}" if dilation > 1 else ""))
        return max(room // stride + 1, 0)
    assume_at_least(room, 0, "a window must not be larger than the padded input")
    return dims.floordiv(room, stride) + 1


def pool(
    kind: str,
    x: Tensor,
    *,
    window: Sequence[Dim],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[tuple[Dim, Dim]],
    spatial: Sequence[Dim] | None = None,
) -> Tensor:
    """Reduce windows of [N, C, *S] by maximum, sum or argmax; `spatial` overrides the result's *S."""
    if spatial is None:
        spatial = [window_count(*sizes) for sizes in zip(x.shape[2:], window, strides, dilations, pads)]
    if kind == "argmax":
        _assume_countable(dims.product(x.shape[2:]))
    primitive = Pool(kind, tuple(window), tuple(strides), tuple(dilations), tuple(pads))
    return _emit(primitive, [x], DType.int64 if kind == "argmax" else x.dtype, (*x.shape[:2], *spatial))


def cumulate(kind: str, x: Tensor, axis: int, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Compute the running sum or product along an axis."""
    return _emit(Cumulate(kind, normalize_axis(axis, x.rank), exclusive, reverse), [x], x.dtype, x.shape)


def sort(x: Tensor, axis: int, *, count: Dim | None = None, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Return the first `count` (default: all) elements in order, and their positions; ties keep their order."""
    axis = normalize_axis(axis, x.rank)
    count = x.shape[axis] if count is None else count
    _assume_countable(x.shape[axis])
    assume_at_least(x.shape[axis], count, "there are fewer elements than are to be selected")
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    types = [TensorType(x.dtype, shape), TensorType(DType.int64, shape)]
    values, positions = current_trace.get().emit(Sort(axis, count, descending), [x], types)
    return values, positions


def scatter(
    x: Tensor,
    domain: Sequence[Dim],
    place: Callable[..., tuple[Sequence[Element | Dim], Element]],
    *,
    reduction: str = "none",
    checked: bool = True,
) -> Tensor:
    """Update x for each point of `domain`: place(i, j, ...) returns the indices to update and the new element.

    Reductions: none, add, multiply, minimum, maximum.
    """
    axes = [index(dims.axis(position, size)) for position, size in enumerate(domain)]
    indices, update = place(*axes)
    target = x.at(*indices).scalar
    assert isinstance(target, Load)
    operands: list[int] = [x.value.number]

    def renumber(load: Load) -> Scalar:
        if load.operand not in operands:
            operands.append(load.operand)
        return Load(operands.index(load.operand), load.indices, load.dtype, load.checked)

    primitive = Scatter(
        tuple(domain),
        tuple(rebuild(scalar, renumber) for scalar in target.indices),
        rebuild(update.scalar, renumber),
        reduction,
        checked,
    )
    trace = current_trace.get()
    return trace.emit(primitive, [trace.find(number) for number in operands], [x.type])[0]


def random(kind: str, shape: Sequence[Dim], seed: int | None, dtype: DType = DType.float32) -> Tensor:
    """Draw `uniform` numbers in [0, 1) or standard `normal` ones; see `Random` for what a seed guarantees."""
    return _emit(Random(kind, seed), [], dtype, tuple(shape))


# -- control flow and the host ---------------------------------------------------------------------------------------


def host(function: str, operands: Sequence[Tensor], types: Sequence[Type], **attributes: Any) -> list[Tensor]:
    """Call a host function by name; sizes of its result `types` that depend on data are `fresh_symbol`s."""
    return current_trace.get().emit(Host(function, tuple(sorted(attributes.items()))), operands, types)


def _emit(primitive: Any, operands: Sequence[Tensor], dtype: DType, shape: Shape) -> Tensor:
    return current_trace.get().emit(primitive, operands, [TensorType(dtype, shape)])[0]


def _format_shape(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"
