"""Workloads of small programs, counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from cost.calibrations import PLAIN

from weft.backends.host.machine import host
from weft.backends.reference.interpret import Interpreter
from weft.cost.calibration import Transfer, WorkKind
from weft.cost.prediction import ITERATED_LAUNCHES, LAUNCHES, Workload, build_workload, guess_fastest, predict
from weft.fuse import adapted, fuse
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import TensorProgram
from weft.ir.types import Shape, TensorType
from weft.opset import language
from weft.opset.flow import scan
from weft.opset.tensor import Tensor, current_trace
from weft.opset.trace import Trace

N = dims.symbol("n")


def traced(shape: Shape, function: Callable[[Tensor], Sequence[Tensor]]) -> TensorProgram:
    trace = Trace(Interpreter())
    x = trace.input(TensorType(DType.float32, shape), "x")
    with trace.active():
        outputs = function(x)
    return trace.program(outputs)


def weights(*shape: int) -> Tensor:
    return current_trace.get().constant(np.ones(shape, np.float32))


def work(shape: Shape, function: Callable[[Tensor], Sequence[Tensor]]) -> Workload:
    return build_workload(fuse(traced(shape, function), host().target))


def test_product_counts_two_operations_per_multiply_add() -> None:
    result = work((N, 64), lambda x: [language.matmul(x, weights(64, 32))])
    (product,) = result.portions
    assert (product.kind, product.dtype, product.launches) == (
        WorkKind.PRODUCT,
        DType.float32,
        LAUNCHES[WorkKind.PRODUCT],
    )
    amount = product.amount({"n": 10})
    assert amount.flops == 2 * 10 * 64 * 32
    assert amount.bytes == 4 * (10 * 64 + 64 * 32 + 10 * 32)
    assert product.weights == result.weights == 4 * 64 * 32
    assert product.amount({"n": 10}, cached=False).far == 4 * 64 * 32
    assert [dims.evaluate(bytes, {"n": 10}) for bytes in (*result.up, *result.down)] == [4 * 640, 4 * 320]


def test_convolutions_by_their_kind() -> None:
    def kinds(channels: int, in_channels: int, size: int) -> list[WorkKind]:
        def layer(x: Tensor) -> list[Tensor]:
            ones, pads = (1, 1), ((size // 2, size // 2),) * 2
            filters = weights(channels, in_channels, size, size)
            return [
                language.convolve(x, filters, strides=ones, dilations=ones, pads=pads, groups=channels // in_channels)
            ]

        return [portion.kind for portion in work((1, channels, 56, 56), layer).portions]

    assert kinds(64, 1, 3) == [WorkKind.DEPTHWISE]
    assert kinds(64, 64, 1) == [WorkKind.CONVOLUTION]
    assert kinds(64, 64, 3) == [WorkKind.TRANSFORMED]
    strict = replace(host().target, transformed_products=False)

    def layer(x: Tensor) -> list[Tensor]:
        return [language.convolve(x, weights(64, 64, 3, 3), strides=(1, 1), dilations=(1, 1), pads=((1, 1), (1, 1)))]

    fused = fuse(traced((1, 64, 56, 56), layer), host().target)
    assert [portion.kind for portion in build_workload(adapted(fused, strict)).portions] == [WorkKind.CONVOLUTION]


def test_scan_repeats_its_body() -> None:
    def body(state: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return [language.matmul(state, weights(16, 16))], []

    (portion,) = work((1, 16), lambda x: scan(body, [x], [], 7)[0]).portions
    assert (portion.times, portion.iterated, portion.launches) == (7, True, ITERATED_LAUNCHES)
    result = predict(work((1, 16), lambda x: scan(body, [x], [], 7)[0]), {}, PLAIN)
    assert result.parts.launches == pytest.approx(PLAIN.run_seconds + 7 * ITERATED_LAUNCHES * PLAIN.iteration_seconds)


def test_host_step_costs_transfers() -> None:
    def interrupted(x: Tensor) -> list[Tensor]:
        (back,) = language.host("scalar", [x + 1.0], [TensorType(DType.float32, ())])
        return [back + 1.0]

    result = work((1,), interrupted)
    (stop,) = result.interruptions
    assert (stop.down, stop.up, stop.times) == ((4,), (4,), 1)
    far = replace(PLAIN, upload=Transfer(1e-3), download=Transfer(1e-2))
    assert predict(result, {}, far).parts.host == pytest.approx(PLAIN.host_step_seconds)
    assert predict(result, {}, far).parts.transfers == pytest.approx(2 * (1e-3 + 1e-2))
    assert predict(result, {}, far, kept_outputs=(0,)).parts.transfers == pytest.approx(2e-3 + 1e-2)


def test_rows_without_shared_lanes_are_sequential() -> None:
    def serial(axis: int) -> list[dims.Dim]:
        return [portion.serial for portion in work((300, 8), lambda x: [language.reduce("sum", x, [axis])]).portions]

    assert serial(0) == [300]
    assert serial(1) == [0]

    def layer(x: Tensor) -> list[Tensor]:
        y = language.convolve(x, weights(32, 32, 1, 1), strides=(1, 1), dilations=(1, 1), pads=((0, 0), (0, 0)))
        return [language.reduce("maximum", y, [2, 3])]

    portions = work((1, 32, 20, 20), layer).portions  # channels lie side by side, whatever the axes' order is
    assert [portion.serial for portion in portions if portion.kind is WorkKind.REDUCE] == [400]


def test_larger_sizes_take_longer_and_one_workload_serves_them() -> None:
    result = work((N, 64), lambda x: [language.matmul(x, weights(64, 64))])
    times = [predict(result, {"n": size}, PLAIN).seconds for size in (1, 10, 100, 1000)]
    assert times == sorted(times)
    assert predict(result, {}, PLAIN).seconds > 0  # missing sizes are guessed


def test_fastest_device_depends_on_sizes() -> None:
    quick_start = replace(PLAIN, device="near")
    quick_work = replace(PLAIN, device="far", run_seconds=1e-3, products=((DType.float32, 1e12),))
    program = traced((N, 64), lambda x: [language.matmul(x, weights(64, 64))])
    both = {"near": quick_start, "far": quick_work}
    assert guess_fastest(program, {"n": 1}, both) == "near"
    assert guess_fastest(program, {"n": 10**5}, both) == "far"
