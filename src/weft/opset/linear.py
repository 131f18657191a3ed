"""Matrix products, Einsum, determinants."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from weft.ir import dims
from weft.ir.dims import Dim
from weft.opset.flow import scan
from weft.opset.functions import absolute, cast, equal, where, wide_dtype
from weft.opset.language import (
    Element,
    Tensor,
    arg_reduce,
    assume_equal,
    broadcast_shapes,
    build,
    contract,
    elementwise,
    full,
    matmul,
    reduce,
    reshape,
    transpose,
)
from weft.opset.registry import REQUIRED, op, require


@op("MatMul")
def matmul_(a: Tensor, b: Tensor) -> Tensor:
    return matmul(a, b)


@op("Gemm")
def gemm_1(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    return gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)


@op("Gemm", since=7)
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    require(a.rank == 2 and b.rank == 2, f"operands {a.type} and {b.type} must be matrices")
    product = contract(a, b, "km" if transA else "mk", "nk" if transB else "kn", "mn")
    if c is None or beta == 0.0:
        return product if alpha == 1.0 else elementwise(lambda v: v * alpha, product)
    require(c.rank <= 2, f"the addend {c.type} does not broadcast to a matrix")
    return elementwise(lambda v, w: _scale(v, alpha) + _scale(w, beta), product, c)


def _scale(value: Element, factor: float) -> Element:
    return value if factor == 1.0 else value * factor


@op("Einsum", since=12)
def einsum(*inputs: Tensor, equation: str = REQUIRED) -> Tensor:
    terms, output = _parse_equation(equation, [tensor.rank for tensor in inputs])
    operands = [_take_diagonals(tensor, labels) for tensor, labels in zip(inputs, terms)]
    sizes = _find_label_sizes(operands)
    operands = [_drop_ones(tensor, labels, sizes) for tensor, labels in operands]
    while len(operands) > 1:
        (left, a), (right, b), *rest = operands
        needed = {*output, *(label for _, labels in rest for label in labels)}
        labels = "".join(dict.fromkeys(label for label in a + b if label in needed))
        operands = [(contract(left, right, a, b, labels), labels), *rest]
    tensor, labels = operands[0]
    summed = [axis for axis, label in enumerate(labels) if label not in output]
    tensor = reduce("sum", tensor, summed)
    labels = "".join(label for label in labels if label in output)
    return transpose(tensor, [labels.index(label) for label in output])


def _parse_equation(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return one label per dimension of each operand and the output; an ellipsis becomes distinct labels."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    require(len(terms) == len(ranks), f"equation {equation!r} has {len(terms)} terms for {len(ranks)} inputs")
    covered = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks)]
    for term, count in zip(terms, covered):
        fits = count >= 0 if "..." in term else count == 0
        require(fits, f"term {term!r} of equation {equation!r} does not fit an input's rank")
    hidden = "".join(chr(0xE000 + number) for number in range(max(covered, default=0)))
    expanded = [term.replace("...", hidden[len(hidden) - count :]) for term, count in zip(terms, covered)]
    letters = "".join(expanded)
    if arrow:
        output = right.replace("...", hidden)
    else:
        once = sorted(label for label in set(letters) if letters.count(label) == 1 and label not in hidden)
        output = hidden + "".join(once)
    for label in output:
        require(output.count(label) == 1 and label in letters, f"output of equation {equation!r} is not valid")
    require(set(letters) - set(hidden) <= set(string.ascii_letters), f"equation {equation!r} is not valid")
    return expanded, output


def _take_diagonals(x: Tensor, labels: str) -> tuple[Tensor, str]:
    """Take the diagonal of dimensions with the same label."""
    distinct = "".join(dict.fromkeys(labels))
    if len(distinct) == len(labels):
        return x, labels
    sizes: dict[str, Dim] = {}
    for label, size in zip(labels, x.shape):
        assume_equal(sizes.setdefault(label, size), size, "dimensions of a diagonal")
    shape = [sizes[label] for label in distinct]
    return build(shape, lambda *i: x.at(*(i[distinct.index(label)] for label in labels))), distinct


def _find_label_sizes(operands: Sequence[tuple[Tensor, str]]) -> dict[str, Dim]:
    sizes: dict[str, Dim] = {}
    for tensor, labels in operands:
        for label, size in zip(labels, tensor.shape):
            sizes[label] = broadcast_shapes((sizes.get(label, 1),), (size,))[0]
    return sizes


def _drop_ones(x: Tensor, labels: str, sizes: dict[str, Dim]) -> tuple[Tensor, str]:
    """Remove the dimensions of size 1 that other operands broadcast."""
    axes = [axis for axis, label in enumerate(labels) if x.shape[axis] != 1 or sizes[label] == 1]
    return reshape(x, [x.shape[axis] for axis in axes]), "".join(labels[axis] for axis in axes)


@op("Det", since=11)
def determinant(x: Tensor) -> Tensor:
    """Multiply the pivots of a Gaussian elimination, negated for each exchange of rows."""
    require(x.rank >= 2, f"a determinant of {x.type}")
    *batch, size, columns = x.shape
    assume_equal(size, columns, "a determinant is of a square matrix")
    count = dims.product(batch)
    wide = wide_dtype(x.dtype)

    def eliminate(matrix: Tensor, product: Tensor, step: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        k = step.at()
        candidates = build((count, size), lambda b, i: where(i >= k, absolute(matrix.at(b, i, k)), -1.0))
        best = arg_reduce("maximum", candidates, 1)

        def exchanged(b: Element, i: Element, j: Element | Dim) -> Element:
            row = where(equal(i, k), best.at(b), where(equal(i, best.at(b)), k, i))
            return matrix.at(b, row, j)

        swapped = build((count, size, size), exchanged)
        pivot = build((count,), lambda b: swapped.at(b, k, k))

        def reduced(b: Element, i: Element, j: Element) -> Element:
            divisor = where(equal(pivot.at(b), 0.0), 1.0, pivot.at(b))
            factor = where(i > k, swapped.at(b, i, k) / divisor, 0.0)
            return swapped.at(b, i, j) - factor * swapped.at(b, k, j)

        signed = build((count,), lambda b: product.at(b) * where(equal(best.at(b), k), pivot.at(b), -pivot.at(b)))
        return [build((count, size, size), reduced), signed], []

    matrices = reshape(cast(x, wide), (count, size, size))
    steps = build((size,), lambda i: i)
    (_, result), _ = scan(eliminate, [matrices, full((count,), 1.0, wide)], [steps])
    return reshape(cast(result, x.dtype), batch)
