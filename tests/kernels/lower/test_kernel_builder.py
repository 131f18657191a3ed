"""A KernelBuilder makes unique names; launches bind all arguments of a kernel by name."""

from __future__ import annotations

import pytest

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.kernel import Number, block, lane
from weft.ir.kernel_verify import verify_kernel
from weft.ir.work import Launch, Reference
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, put, repeat

F32 = DType.float32
OPERAND, RESULT, SPACE = Reference("operand", 0), Reference("result", 0), Reference("workspace", 0)


def build_doubling() -> Launch:
    """Build y = 2 x, four elements per block."""
    builder = KernelBuilder("doubled")
    x, y = builder.input("x", F32, OPERAND), builder.output("y", F32, RESULT)
    count = builder.parameter("count", dims.symbol("n", 0))
    at = builder.variable("i")
    defined, element = builder.keep("x", fetch(x, at + lane(4)))
    body = [defined, put(y, at + lane(4), element)]
    return builder.launch(4, [repeat(at, block() * 4, count, 4, body)], 1)


def test_names_are_unique() -> None:
    builder = KernelBuilder("names")
    registers = [builder.register("t", F32) for _ in range(3)]
    variables = builder.variables("k", 2) + builder.variables("k", 2)
    buffers = [builder.local("t", F32, 8) for _ in range(2)]
    for names in ([r.name for r in registers], [str(v) for v in variables], [b.name for b in buffers]):
        assert len(set(names)) == len(names)
    assert registers[0].name == buffers[0].name == "t"  # registers and buffers have separate names


def test_suffixed_names_do_not_clash_with_hints() -> None:
    builder = KernelBuilder("names")
    names = [builder.register(hint, F32).name for hint in ("t_1", "t", "t", "t", "t_1")]
    assert len(set(names)) == len(names)


def test_variables_and_parameters_are_distinct() -> None:
    builder = KernelBuilder("names")
    assert builder.variable("rows") != builder.parameter("rows", dims.symbol("n", 0))
    assert builder.parameter("rows", dims.symbol("n", 0)) == builder.parameter("rows", dims.symbol("n", 0))
    with pytest.raises(InternalError, match="parameter rows has two values, n and 7"):
        builder.parameter("rows", 7)


def test_equal_requests_give_equal_kernels() -> None:
    assert build_doubling() == build_doubling()
    verify_kernel(build_doubling().kernel)


def test_inputs_come_before_outputs_before_local_memory() -> None:
    builder = KernelBuilder("order")
    builder.local("shared", F32, 4)
    builder.output("y", F32, RESULT)
    builder.input("x", F32, OPERAND)
    launch = builder.launch(1, (), 1)
    assert [buffer.name for buffer in launch.kernel.buffers] == ["x", "y", "shared"]
    assert launch.buffers == (("x", OPERAND), ("y", RESULT))


def test_registers_keep_whether_they_vary() -> None:
    builder = KernelBuilder("registers")
    register = builder.register("sum", F32, varying=False)
    zero = Number(0.0, F32)
    assert (define(register, zero).varying, assign(register, zero).register) == (False, register.name)


def test_launches_bind_by_name() -> None:
    launch = build_doubling()
    reordered = Launch(launch.kernel, 1, launch.parameters, launch.buffers[::-1])
    assert reordered == launch
    assert reordered.references == (OPERAND, RESULT)
    assert launch.rebound({RESULT: SPACE}).references == (OPERAND, SPACE)
    assert launch.rebound({SPACE: RESULT}) is launch


@pytest.mark.parametrize("buffers", [(), (("x", OPERAND),), (("x", OPERAND), ("z", RESULT)), (("x", OPERAND),) * 2])
def test_launches_bind_exactly_what_the_kernel_takes(buffers: tuple[tuple[str, Reference], ...]) -> None:
    launch = build_doubling()
    with pytest.raises(InternalError, match="doubled takes x, y"):
        Launch(launch.kernel, 1, launch.parameters, buffers)
    with pytest.raises(InternalError, match="doubled takes count"):
        Launch(launch.kernel, 1, (), launch.buffers)
