"""Functions of any bit patterns: results are those of numpy in float64, up to the last bits and the range's ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from attack.verdict import Payload, Verdict, right, wrong
from onnx import helper
from opset.test_extremes import DTYPES, EXPONENTS, FUNCTIONS, check, compile_model, edges

SECONDS = 60.0
SHARE = 6
COUNT = 2000

Array = np.ndarray[Any, Any]


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    """Without end."""
    assert device
    while True:
        op = str(random.choice([*FUNCTIONS, *["Pow"] * (len(FUNCTIONS) // 2)]))
        dtype, seed = np.dtype(DTYPES[random.integers(len(DTYPES))]).name, int(random.integers(2**32))
        yield {"name": f"{op} of {dtype}, seed {seed}", "op": op, "dtype": dtype, "seed": seed}


def attack(payload: Payload, device: str) -> Verdict:
    op, dtype = payload["op"], np.dtype(getattr(ml_dtypes, payload["dtype"], payload["dtype"]))
    random = np.random.default_rng(payload["seed"])
    x = _numbers(random, dtype)
    inputs = {"x": x}
    if op == "Pow":
        inputs["e"] = _exponents(random, x)
    model = compile_model([helper.make_node(op, list(inputs), ["y"])], list(inputs), {}, dtype, device)
    actual = model.run(inputs)["y"]
    with np.errstate(all="ignore"):
        wide = [array.astype(np.float64) for array in inputs.values()]
        expected = np.power(*wide) if op == "Pow" else FUNCTIONS[op](*wide)
    try:
        check(actual, expected, tuple(inputs.values()), op)
    except AssertionError as error:
        return wrong(str(error).partition("\n")[0])
    return right()


def _numbers(random: np.random.Generator, dtype: np.dtype[Any]) -> Array:
    """Return any bit patterns, numbers of a usual size, and those around the limits."""
    bits = random.integers(0, 256, COUNT * dtype.itemsize, np.uint8).view(dtype)
    bits[np.isnan(bits)] = np.nan  # signalling NaN have a meaning of their own: 1 is no longer their power of 0
    return np.concatenate([bits, (random.standard_normal(COUNT) * 4).astype(dtype), edges(dtype)])


def _exponents(random: np.random.Generator, x: Array) -> Array:
    """Return exponents that leave many results finite: whole ones, halves, and what leads to the type's limits."""
    few = random.choice(np.array(EXPONENTS, np.float64), x.size)
    with np.errstate(all="ignore"):
        limits = np.log(float(ml_dtypes.finfo(x.dtype).max)) / np.log(np.abs(x.astype(np.float64)))
        near = limits * random.uniform(-1.001, 1.001, x.size)
        whole = random.integers(-9, 10, x.size).astype(np.float64)
        return np.choose(random.integers(0, 3, x.size), [few, near, whole]).astype(x.dtype)
