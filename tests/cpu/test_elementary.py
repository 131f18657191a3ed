"""The CPU's elementary functions against libm in a wider type, over the whole range of their arguments."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from llvmlite import binding, ir

from weft.backends.cpu.elementary import ELEMENTARY, elementary

UNARY = sorted(ELEMENTARY - {"power"})
LANES = {"float32": 16, "float64": 8}
LIMIT = {"float32": 2.0, "float64": 4.0}  # ulp
SAMPLES = 1 << 22
SPECIAL = (0.0, 0.5, 1.0, 2.0, 3.0, math.pi / 2, math.pi, math.e, math.inf, math.nan, 1e-40, 1e-300, 88.72, 709.78)
wide_only = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="longdouble is no wider than float64 here")


# -- native code -----------------------------------------------------------------------------------------------------


@functools.cache
def target_machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    features = binding.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=3)


@functools.cache
def compiled(name: str, dtype: str, lanes: int) -> tuple[Any, Callable[..., None]]:
    """The engine that owns the code, and `f(count, out, in...)` for counts that are multiples of the lanes."""
    module = ir.Module(name)
    element = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    kind = ir.VectorType(element, lanes) if lanes else element
    arguments = 2 if name == "power" else 1
    integer, pointer = ir.IntType(64), ir.PointerType()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [integer, *[pointer] * (1 + arguments)]), "run")
    entry, body, end = (function.append_basic_block(label) for label in ("entry", "body", "end"))
    builder = ir.IRBuilder(entry)
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(integer)
    index.add_incoming(integer(0), entry)
    places = [builder.gep(place, [index], source_etype=element) for place in function.args[1:]]
    align = 4 if dtype == "float32" else 8
    values = [builder.load(place, typ=kind, align=align) for place in places[1:]]
    builder.store(elementary(builder, name, *values), places[0], align=align)
    following = builder.add(index, integer(max(lanes, 1)))
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, function.args[0]), body, end)
    builder.position_at_end(end)
    builder.ret_void()
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    passes = binding.create_pass_builder(target_machine(), options)
    passes.getModulePassManager().run(parsed, passes)
    engine = binding.create_mcjit_compiler(parsed, target_machine())
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (1 + arguments))
    return engine, prototype(engine.get_function_address("run"))


def run(name: str, *arguments: np.ndarray, lanes: int | None = None) -> np.ndarray:
    dtype = arguments[0].dtype
    lanes = LANES[dtype.name] if lanes is None else lanes
    count, step = len(arguments[0]), max(lanes, 1)
    padded = [np.append(a, np.ones(-count % step, dtype)) for a in arguments]
    out = np.empty_like(padded[0])
    _, function = compiled(name, dtype.name, lanes)
    function(len(out), out.ctypes.data, *(a.ctypes.data for a in padded))
    return out[:count]


# -- the true values -------------------------------------------------------------------------------------------------


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(ctypes.util.find_library("m"))


def true_erf(x: np.ndarray) -> np.ndarray:
    if x.dtype == np.float64:
        return np.fromiter(map(math.erf, x.tolist()), np.float64, len(x))
    function = library().erfl
    function.argtypes, function.restype = [np.ctypeslib.as_ctypes_type(np.longdouble)], ctypes.c_longdouble
    raise AssertionError("use erf_longdouble")


def truth(name: str, *arguments: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        if name == "erf":
            return true_erf(*arguments)
        return getattr(np, {"power": "power"}.get(name, name.replace("a", "arc", 1) if name[0] == "a" else name))(*arguments)


