"""The CPU's elementary functions against numpy in a wider type, over the whole range of their arguments."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from accuracy import errors, needs_longdouble, samples, true_values
from llvmlite import binding

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.builder import IRBuilder
from weft.backends.llvm.elementary import apply_elementary
from weft.backends.numerics.elementary import ELEMENTARY

UNARY = sorted(ELEMENTARY - {"power"})
LANES = {"float32": 16, "float64": 8}
LIMIT = {"float32": 2.0, "float64": 4.0}  # ulp
SAMPLES = {"float32": 1 << 22, "float64": 1 << 18}


# -- native code -----------------------------------------------------------------------------------------------------


@functools.cache
def target_machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=3)


@functools.cache
def compiled(name: str, dtype: str, lanes: int, exponent: float | None = None) -> tuple[Any, Callable[..., None]]:
    """Compile a function; return the engine that owns the code, and `f(count, out, in...)`. 0 lanes mean a scalar."""
    module = ir.Module(name)
    element = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    kind = ir.VectorType(element, lanes) if lanes else element
    arguments = 2 if name == "power" and exponent is None else 1
    integer, pointer = ir.IntType(64), ir.PointerType()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [integer, *[pointer] * (1 + arguments)]), "run")
    entry, body, end = (function.append_basic_block(label) for label in ("entry", "body", "end"))
    builder = IRBuilder(entry)
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(integer)
    index.add_incoming(integer(0), entry)
    places = [builder.gep(place, [index], source_etype=element) for place in function.args[1:]]
    align = np.dtype(dtype).itemsize
    values = [builder.load(place, typ=kind, align=align) for place in places[1:]]
    if exponent is not None:
        values.append(ir.Constant(kind, [exponent] * lanes if lanes else exponent))
    builder.store(apply_elementary(builder, name, *values), places[0], align=align)
    following = builder.add(index, integer(max(lanes, 1)))
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, function.args[0]), body, end)
    builder.position_at_end(end)
    builder.ret_void()
    engine = engine_of(module)
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (1 + arguments))
    return engine, prototype(engine.get_function_address("run"))


def engine_of(module: ir.Module) -> Any:
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    passes = binding.create_pass_builder(target_machine(), binding.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(parsed, passes)
    engine = binding.create_mcjit_compiler(parsed, target_machine())
    engine.finalize_object()
    return engine


def run(name: str, *arguments: np.ndarray, lanes: int | None = None, exponent: float | None = None) -> np.ndarray:
    dtype = arguments[0].dtype
    lanes = LANES[dtype.name] if lanes is None else lanes
    count = len(arguments[0])
    padded = [np.append(argument, np.ones(-count % max(lanes, 1), dtype)) for argument in arguments]
    out = np.empty_like(padded[0])
    _, function = compiled(name, dtype.name, lanes, exponent)
    function(len(out), out.ctypes.data, *(argument.ctypes.data for argument in padded))
    return out[:count]


def check(name: str, *arguments: np.ndarray) -> float:
    got, true = run(name, *arguments), true_values(name, *arguments)
    distance = errors(got, true)
    worst = int(distance.argmax())
    place = ", ".join(repr(argument[worst]) for argument in arguments)
    message = f"{name}({place}) = {got[worst]!r}, {distance[worst]:.3f} ulp from {true[worst]!r}"
    assert distance[worst] <= LIMIT[got.dtype.name], message
    return float(distance[worst])


# -- tests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNARY)
def test_float32_functions_are_within_2_ulp(name: str) -> None:
    print(f"{name} float32: {check(name, samples('float32', SAMPLES['float32'])):.3f} ulp")


@needs_longdouble
@pytest.mark.parametrize("name", UNARY)
def test_float64_functions_are_within_4_ulp(name: str) -> None:
    print(f"{name} float64: {check(name, samples('float64', SAMPLES['float64'])):.3f} ulp")


@pytest.mark.slow(reason="2^28 values a function")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", UNARY)
def test_float32_functions_over_a_sixteenth_of_all_numbers(name: str) -> None:
    chunk = 1 << 22
    worst = 0.0
    for start in range(0, 1 << 32, chunk << 4):
        numbers = np.arange(start, start + (chunk << 4), 16, np.int64) + (start >> 26) % 16
        worst = max(worst, check(name, numbers.astype(np.uint32).view(np.float32)))
    print(f"{name} float32: {worst:.3f} ulp")


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=needs_longdouble)])
def test_power_is_within_its_limit(dtype: str) -> None:
    bases, exponents = samples(dtype, SAMPLES[dtype], 1), samples(dtype, SAMPLES[dtype], 2)
    count = len(bases)
    worst = check("power", bases, np.random.default_rng(3).permutation(exponents))
    positive = np.exp(np.random.default_rng(4).normal(size=count) * 4).astype(dtype)
    span = 100 if dtype == "float32" else 745
    limit = span / np.maximum(np.abs(np.log(positive.astype(np.float64))), 1e-6)
    fitting = (np.random.default_rng(5).uniform(-1, 1, count) * limit).astype(dtype)  # results of every size
    worst = max(worst, check("power", positive, fitting))
    worst = max(worst, check("power", -positive, np.round(np.clip(fitting, -1e6, 1e6))))
    print(f"power {dtype}: {worst:.3f} ulp")


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=needs_longdouble)])
def test_power_of_special_values_is_as_in_c(dtype: str) -> None:
    kind = np.dtype(dtype)
    facts = np.finfo(kind)
    numbers = [0, 0.5, 1, 2, 3, 4, 2.5, 1e7 + 1, facts.max, facts.tiny, facts.smallest_subnormal, np.inf]
    values = np.array([*numbers, *(-number for number in numbers), np.nan], kind)
    check("power", *(grid.ravel() for grid in np.meshgrid(values, values)))


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, -1.0, 0.5, -0.5, 0.25])
def test_power_with_a_constant_exponent(exponent: float) -> None:
    bases = samples("float32", 1 << 16)
    got = run("power", bases, exponent=exponent)
    assert errors(got, true_values("power", bases, np.full_like(bases, exponent))).max() <= 2.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(ELEMENTARY))
def test_scalars_and_vectors_of_any_length_agree(name: str, dtype: str) -> None:
    arguments = [samples(dtype, 1 << 10, seed) for seed in range(2 if name == "power" else 1)]
    expected = run(name, *arguments)
    for lanes in (0, 3, 4, 32):
        np.testing.assert_array_equal(run(name, *arguments, lanes=lanes), expected)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_infinite_angles_give_nan(name: str, dtype: str) -> None:
    assert np.isnan(run(name, np.array([np.inf, -np.inf, np.nan], dtype))).all()


def test_values_stay_within_their_bounds() -> None:
    numbers = samples("float32", 1 << 18)
    for name in ("sin", "cos", "tanh", "erf"):
        assert np.nanmax(np.abs(run(name, numbers))) == 1.0
