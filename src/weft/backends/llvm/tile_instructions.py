"""PTX instructions of NVIDIA's tensor cores, and of the copies to shared memory that feed them."""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.builder import IRBuilder
from weft.backends.llvm.instructions import Value, intrinsic
from weft.backends.llvm.types import INT32, INT64
from weft.ir.dtypes import DType

_VOID = ir.VoidType()
PTX_TYPES = {
    DType.float16: "f16",
    DType.bfloat16: "bf16",
    DType.float32: "tf32",
    DType.int8: "s8",
    DType.uint8: "u8",
    DType.float8e4m3fn: "e4m3",
    DType.float8e5m2: "e5m2",
}


def is_imprecise(dtype: DType) -> bool:
    """Tell whether tensor cores keep only about 13 bits of the sums of a type, which are then accumulated apart."""
    return dtype.is_float and dtype.bits == 8


def _effect(builder: IRBuilder, text: str, values: Sequence[Value] = (), constraints: Sequence[str] = ()) -> None:
    """Append an instruction without a result that is not reordered with memory accesses."""
    signature = ir.FunctionType(_VOID, [value.type for value in values])
    builder.asm(signature, text, ",".join((*constraints, "~{memory}")), values, effects=True)


def shared_address(builder: IRBuilder, pointer: Value) -> Value:
    """Convert a pointer to shared memory to 32 bits."""
    return builder.trunc(builder.ptrtoint(pointer, INT64), INT32)


def broadcast_first_thread(builder: IRBuilder, word: Value) -> Value:
    """Broadcast the first thread's 32 bits in a warp, so that ptxas knows that the value is uniform."""
    return intrinsic(builder, "llvm.nvvm.shfl.sync.idx.i32", [], INT32, [INT32(-1), word, INT32(0), INT32(31)])


# -- asynchronous copies ---------------------------------------------------------------------------------------------


def copy_chunk(builder: IRBuilder, to: Value, source: Value, size: Value) -> None:
    """Copy 16 bytes from global to shared memory; those from `size` on are not read but set to 0."""
    text = "cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;"
    _effect(builder, text, [to, builder.ptrtoint(source, INT64), size], "rlr")


def commit_copies(builder: IRBuilder) -> None:
    _effect(builder, "cp.async.commit_group;")


def await_copies(builder: IRBuilder, left: int) -> None:
    """Wait until at most `left` groups of copies are running."""
    _effect(builder, f"cp.async.wait_group {left};")


def fence_tensor_cores(builder: IRBuilder) -> None:
    """Make this thread's writes to shared memory visible to wgmma, after the next barrier."""
    _effect(builder, "fence.proxy.async.shared::cta;")


# -- mma.sync --------------------------------------------------------------------------------------------------------


def load_matrices(builder: IRBuilder, address: Value, count: int, transposed: bool) -> list[Value]:
    """Load matrices of 8 lines of 16 bytes; each thread provides the address of a line."""
    results = ", ".join(f"${number}" for number in range(count))
    suffix = ".trans" if transposed else ""
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{suffix}.shared.b16 {{{results}}}, [${count}];"
    kind: ir.Type = INT32 if count == 1 else ir.LiteralStructType([INT32] * count)
    constraints = ",".join((*["=r"] * count, "r", "~{memory}"))
    words = builder.asm(ir.FunctionType(kind, [INT32]), text, constraints, [address], effects=True)
    return [words] if count == 1 else [builder.extract_value(words, number) for number in range(count)]


def multiply_fragments(
    builder: IRBuilder, types: tuple[DType, DType], left: Sequence[Value], right: Sequence[Value], sums: list[Value]
) -> list[Value]:
    """Add the product of 16 rows and 8 columns of 32 bytes to a fragment of sums."""
    depth = 32 * 8 // types[0].bits
    kind, letter = ("s32", "r") if types[0].is_integer else ("f32", "f")
    operands = ".".join(PTX_TYPES[dtype] for dtype in types)
    text = (
        f"mma.sync.aligned.m16n8k{depth}.row.col.{kind}.{operands}.{kind} {{$0, $1, $2, $3}}, "
        "{$8, $9, $10, $11}, {$12, $13}, {$4, $5, $6, $7};"
    )
    element = sums[0].type
    values = [*sums, *left, *right]
    signature = ir.FunctionType(ir.LiteralStructType([element] * 4), [value.type for value in values])
    constraints = ",".join([f"={letter}"] * 4 + [str(number) for number in range(4)] + ["r"] * 6)
    result = builder.asm(signature, text, constraints, values)
    return [builder.extract_value(result, number) for number in range(4)]


_PAIR_FUNCTIONS = {
    "fma_bfloat16x2": "fma.rn.bf16x2 $0, $1, $2, $3;",
    "fma_float16x2": "fma.rn.f16x2 $0, $1, $2, $3;",
    "and_or": "lop3.b32 $0, $1, $2, $3, 0xEA;",
}


def compute_pairs(builder: IRBuilder, function: str, values: Sequence[Value]) -> Value:
    """Compute a function of three words, each with a pair of 16-bit floats."""
    return builder.asm(ir.FunctionType(INT32, [INT32] * 3), _PAIR_FUNCTIONS[function], "=r,r,r,r", values)


# -- wgmma -----------------------------------------------------------------------------------------------------------


def multiply_by_descriptors(
    builder: IRBuilder,
    types: tuple[DType, DType],
    transposed: tuple[bool, bool],
    products: Sequence[tuple[Value, Value, Sequence[tuple[int, int]], list[Value]]],
    fresh: bool = False,
) -> list[list[Value]]:
    """Start one group of asynchronous products of 64 rows, and return their sums.

    A product has descriptors of its operands, the numbers added to both in each step, and sums. If `fresh`, sums start
    at 0, and only the count of `sums` is used.
    """
    count = len(products[0][3])
    total = count * len(products)
    columns = count * 2
    is_integer = types[0].is_integer
    kind, letter = ("s32", "r") if is_integer else ("f32", "f")
    depth = 32 * 8 // types[0].bits
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{kind}.{PTX_TYPES[types[0]]}.{PTX_TYPES[types[1]]}"
    flags = "" if is_integer else ", 1, 1"
    if types[0].bits == 16:
        flags += f", {int(transposed[0])}, {int(transposed[1])}"
    steps = [(number, step) for number, product in enumerate(products) for step in product[2]]
    lines = [
        "{",
        ".reg .pred first, added;",
        f".reg .b64 left<{len(steps)}>, right<{len(steps)}>;",
        f"setp.{'ne' if fresh else 'eq'}.b32 first, 0, 0;",
        "setp.eq.b32 added, 0, 0;",
    ]
    before = total if fresh else 2 * total  # operands that are sums
    for at, (number, (left, right)) in enumerate(steps):
        lines.append(f"add.s64 left{at}, ${before + 2 * number}, {left};")
        lines.append(f"add.s64 right{at}, ${before + 2 * number + 1}, {right};")
    lines.append("wgmma.fence.sync.aligned;")
    for at, (number, _) in enumerate(steps):
        sums = ", ".join(f"${number * count + place}" for place in range(count))
        test = "added" if at % len(products[0][2]) else "first"
        lines.append(f"{name} {{{sums}}}, left{at}, right{at}, {test}{flags};")
    lines += ["wgmma.commit_group.sync.aligned;", "}"]
    values = [] if fresh else [value for product in products for value in product[3]]
    values += [descriptor for product in products for descriptor in product[:2]]
    element = products[0][3][0].type
    signature = ir.FunctionType(ir.LiteralStructType([element] * total), [value.type for value in values])
    tied = [] if fresh else [str(number) for number in range(total)]
    constraints = [f"={letter}"] * total + tied + ["l"] * (2 * len(products))
    result = builder.asm(signature, " ".join(lines), ",".join((*constraints, "~{memory}")), values, effects=True)
    results = [builder.extract_value(result, number) for number in range(total)]
    return [results[first : first + count] for first in range(0, total, count)]


def multiply_by_registers(
    builder: IRBuilder,
    dtype: DType,
    transposed: bool,
    left: Sequence[Value],
    right: Value,
    steps: Sequence[int],
    sums: list[Value],
) -> list[Value]:
    """Multiply 64 rows of a 16-bit type in registers by a tile, and wait for the sums.

    `left` has four words for each step, `right` is a descriptor to which each of `steps` is added.
    """
    count = len(sums)
    fresh = all(isinstance(value, ir.Constant) for value in sums)  # all 0
    kind = PTX_TYPES[dtype]
    name = f"wgmma.mma_async.sync.aligned.m64n{2 * count}k16.f32.{kind}.{kind}"
    values = [*([] if fresh else sums), *left, right]
    before = count + len(values) - len(left) - 1
    lines = [
        "{",
        ".reg .pred first, added;",
        f".reg .b64 right<{len(steps)}>;",
        f"setp.{'ne' if fresh else 'eq'}.b32 first, 0, 0;",
        "setp.eq.b32 added, 0, 0;",
    ]
    lines += [f"add.s64 right{at}, ${before + len(left)}, {step};" for at, step in enumerate(steps)]
    lines.append("wgmma.fence.sync.aligned;")
    places = ", ".join(f"${number}" for number in range(count))
    for at in range(len(steps)):
        words = ", ".join(f"${before + 4 * at + number}" for number in range(4))
        test = "added" if at else "first"
        lines.append(f"{name} {{{places}}}, {{{words}}}, right{at}, {test}, 1, 1, {int(transposed)};")
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;", "}"]
    signature = ir.FunctionType(ir.LiteralStructType([sums[0].type] * count), [value.type for value in values])
    tied = [] if fresh else [str(number) for number in range(count)]
    constraints = ["=f"] * count + tied + ["r"] * len(left) + ["l"]
    result = builder.asm(signature, " ".join(lines), ",".join((*constraints, "~{memory}")), values, effects=True)
    return [builder.extract_value(result, number) for number in range(count)]


def await_products(builder: IRBuilder, left: int) -> None:
    """Wait until at most `left` groups of products are running."""
    _effect(builder, f"wgmma.wait_group.sync.aligned {left};")


def await_sums(builder: IRBuilder, sums: Sequence[Value], left: int = 0) -> list[Value]:
    """Wait until at most `left` groups of products are running, and return the sums."""
    letters = ["f" if isinstance(value.type, ir.FloatType) else "r" for value in sums]
    kind = ir.LiteralStructType([value.type for value in sums])
    ties = [*(f"={letter}" for letter in letters), *(str(number) for number in range(len(sums))), "~{memory}"]
    signature = ir.FunctionType(kind, [value.type for value in sums])
    result = builder.asm(signature, f"wgmma.wait_group.sync.aligned {left};", ",".join(ties), sums, effects=True)
    return [builder.extract_value(result, number) for number in range(len(sums))]
