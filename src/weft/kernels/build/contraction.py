"""The contraction that templates build: its operands by label, and the order in which labels are summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import Contract
from weft.ir.scalar import Apply, Index, Literal, Scalar
from weft.kernels.lower.tensors import Epilogue, StoredTensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class ContractOperand:
    """An operand with a label for each dimension; a label that occurs twice means the diagonal."""

    number: int
    tensor: StoredTensor
    labels: tuple[int, ...]
    constant: Array | None

    def size(self, label: int) -> Dim:
        return self.tensor.shape[self.labels.index(label)]

    def stride(self, label: int) -> Dim:
        strides = self.tensor.strides
        total: Dim = 0
        for axis, own_label in enumerate(self.labels):
            if own_label == label and self.tensor.shape[axis] != 1:
                total = total + strides[axis]
        return total


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """Operands of its work are left, right, then those of the epilogue; constants have the logical shape."""

    primitive: Contract
    left: StoredTensor
    right: StoredTensor
    result: StoredTensor
    epilogue: Epilogue | None = None
    constant_left: Array | None = None
    constant_right: Array | None = None
    prepare: Callable[[Array], Array] | None = None  # applied to the constant operand before it is packed
    has_wide_result: bool = False  # float32, before the epilogue, though operands are narrower floats

    def operands(self) -> tuple[ContractOperand, ContractOperand]:
        if len(set(self.primitive.output)) != len(self.primitive.output):
            raise InternalError("a contraction has the same label twice in its result")
        left = ContractOperand(0, self.left, self.primitive.left, self.constant_left)
        return left, ContractOperand(1, self.right, self.primitive.right, self.constant_right)


def order_sums(left: ContractOperand, right: ContractOperand, output: Sequence[int]) -> list[int]:
    """List the summed labels, with those that are contiguous in the left operand innermost."""
    labels = [label for label in dict.fromkeys((*left.labels, *right.labels)) if label not in output]

    def memory_rank(label: int) -> tuple[int, int]:
        for side in (left, right):
            if label in side.labels:
                return int(side is left), side.tensor.layout.order.index(side.labels.index(label))
        return 0, 0

    return sorted(labels, key=memory_rank)


def zero_before(load: Scalar, index: Dim) -> Scalar:
    """Return the element where index >= 0, and 0 elsewhere."""
    if dims.is_at_least(index, 0):
        return load
    inside = Apply("greater_equal", (Index(index), Index(0)), DType.bool)
    return Apply("select", (inside, load, Literal(0, load.dtype)), load.dtype)


def zero_outside(load: Scalar, index: Dim, size: Dim) -> Scalar:
    """Return the element where index < size, and 0 elsewhere."""
    if dims.is_at_least(size - 1, index):
        return load
    inside = Apply("less", (Index(index), Index(size)), DType.bool)
    return Apply("select", (inside, load, Literal(0, load.dtype)), load.dtype)
