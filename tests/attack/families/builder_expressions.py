"""Random expressions on tensors of `weft.Graph`: values, shapes and dtypes are numpy's, step by step.

A case is a list of Python expressions; each computes the next `a` from the previous one and the inputs. The same text
is evaluated on tensors of a graph and on numpy arrays, which start each step from the graph's previous result.
Deliberate differences: the mean of integers is a float32 (numpy: float64), and functions that ONNX lacks are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from attack.verdict import Payload, Verdict, refused, right, wrong

import weft
from weft.errors import GraphError, InvalidModelError

SECONDS = 60.0
SHARE = 15
DTYPES = ("float32", "float32", "int64", "int64", "int32", "int8", "uint8", "uint64", "float64", "bool")
LARGEST_SIZE = 4
MOST_STEPS = 5

Random = np.random.Generator
Array = np.ndarray[Any, Any]


def cases(random: Random, device: str) -> Iterator[Payload]:
    """Yield random cases, endlessly."""
    assert device
    while True:
        shape = [
            int(size)
            for size in random.integers(0 if random.random() < 0.2 else 1, LARGEST_SIZE + 1, random.integers(0, 4))
        ]
        payload: Payload = {
            "dtype": str(random.choice(DTYPES)),
            "shape": shape,
            "open": bool(random.random() < 0.5),
            "seed": int(random.integers(2**32)),
            "steps": [],
        }
        a = _inputs(payload)[0]
        for _ in range(random.integers(1, MOST_STEPS + 1)):
            step = _step(random, a)
            try:
                a = _evaluate(step, a, _inputs(payload))
            except Exception:  # of numpy, which refuses the step: the case ends here
                payload["steps"].append(step)
                break
            payload["steps"].append(step)
        payload["name"] = f"{payload['dtype']}{shape}{' open' * payload['open']}: {'; '.join(payload['steps'])}"
        yield payload


def smaller(payload: Payload) -> Iterator[Payload]:
    """Yield cases with one step less, and the case with fixed sizes."""
    for number in range(len(payload["steps"])):
        yield {**payload, "steps": payload["steps"][:number] + payload["steps"][number + 1 :]}
    if payload["open"]:
        yield {**payload, "open": False}


def attack(payload: Payload, device: str) -> Verdict:
    arrays = _inputs(payload)
    graph = weft.Graph()
    dims = [f"d{axis}" for axis in range(len(payload["shape"]))] if payload["open"] else payload["shape"]
    inputs = [graph.input(f"x{number}", dims, payload["dtype"]) for number in range(2)]
    a, reason = inputs[0], ""
    step_count = 0
    try:
        for number, step in enumerate(payload["steps"]):
            a = eval(step, {"np": np}, {"a": a, "x": inputs[1]})
            graph.output(a[...] if a is inputs[0] else a, f"y{number}")
            step_count += 1
    except (GraphError, InvalidModelError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    if not step_count:
        return refused(reason)
    try:
        results = graph.compile(device=device, cache=False).run({"x0": arrays[0], "x1": arrays[1]})
    except (weft.ExecutionError, weft.InputError) as error:
        return refused(str(error)) if _numpy_refuses(payload, arrays) else wrong(f"refused: {error}")
    before = arrays[0]
    for number in range(step_count):
        actual, step = results[f"y{number}"], payload["steps"][number]
        try:
            expected = _evaluate(step, before, arrays)
        except Exception as error:  # numpy raises many kinds
            return wrong(f"{step} of {before.dtype}{before.shape} is {actual}, and numpy raises {error!r}")
        problem = _difference(actual, expected, _cancellation(step, before))
        if problem:
            return wrong(f"{step} of {before.dtype} {before.tolist()}: {problem}")
        before = actual
    return refused(reason) if reason else right()


def _numpy_refuses(payload: Payload, arrays: list[Array]) -> bool:
    a = arrays[0]
    try:
        for step in payload["steps"]:
            a = _evaluate(step, a, arrays)
    except Exception:  # numpy raises many kinds
        return True
    return False


def _evaluate(step: str, a: Array, arrays: list[Array]) -> Array:
    with np.errstate(all="ignore"):
        result = np.asarray(eval(step, {"np": np}, {"a": a, "x": arrays[1]}))
    is_mean = ".mean(" in step and a.dtype.kind in "biu"
    return result.astype(np.float32) if is_mean else result


def _cancellation(step: str, a: Array) -> float:
    """Return what the sums of a mean may lose: integers beyond 2**53 are rounded to float64, and then cancel."""
    is_mean = ".mean(" in step and a.dtype.kind in "iu" and a.size
    return 1e-15 * float(np.abs(a.astype(np.float64)).max()) if is_mean else 0.0


def _difference(actual: Array, expected: Array, cancellation: float) -> str:
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, not {expected.shape}"
    if actual.dtype != expected.dtype:
        return f"{actual.dtype}, not {expected.dtype}"
    if expected.dtype.kind != "f":
        same = bool(np.array_equal(actual, expected))
    else:
        tolerance = 1e-5 if expected.dtype == np.float32 else 1e-12
        same = bool(np.allclose(actual, expected, rtol=tolerance, atol=tolerance + cancellation, equal_nan=True))
    return "" if same else f"{actual.tolist()}, not {expected.tolist()}"


def _inputs(payload: Payload) -> list[Array]:
    """Return two arrays of one shape: any numbers, and numbers other than 0."""
    random = np.random.default_rng(payload["seed"])
    shape, dtype = payload["shape"], np.dtype(payload["dtype"])
    if dtype.kind == "b":
        return [random.random(shape) < 0.5 for _ in range(2)]
    low = 0 if dtype.kind == "u" else -9
    numbers = random.integers(low, 10, shape)
    divisors = np.where(random.integers(low, 10, shape) == 0, 3, random.integers(1, 10, shape))
    divisors = np.where(random.random(shape) < (0.5 if low else 0), -divisors, divisors)
    if dtype.kind == "f":
        return [(numbers / 4).astype(dtype), (divisors / 4).astype(dtype)]
    edges = random.random(shape) < 0.1
    limits = np.iinfo(dtype)
    numbers = np.where(edges, random.choice(np.array([limits.min, limits.max], dtype), shape), numbers.astype(dtype))
    return [numbers.astype(dtype), divisors.astype(dtype)]


def _step(random: Random, a: Array) -> str:
    kind = {"f": "float", "i": "int", "u": "uint", "b": "bool"}[a.dtype.kind]
    makers = [_indexing, _indexing, _indexing, _movement, _reduction, _comparison, _conversion]
    makers += [_logic] if kind != "float" else []
    makers += [_arithmetic] * 4 if kind != "bool" else []
    return str(makers[random.integers(len(makers))](random, a))


def _choose(random: Random, *choices: str) -> str:
    return choices[random.integers(len(choices))]


def _indexing(random: Random, a: Array) -> str:
    items: list[str] = []
    for size in a.shape[: random.integers(0, a.ndim + 1)]:
        items += ["None"] * (random.random() < 0.1)
        match random.integers(8):
            case 0 if size:
                items.append(str(random.integers(-size, size)))
            case 1 if size and not any("[" in item for item in items):
                items.append(str(random.integers(-size, size, random.integers(1, 4)).tolist()))
            case 2:
                items.append(":")
            case _:
                start, stop, step = (_bound(random, size) for _ in range(3))
                items.append(
                    f"{start}:{stop}:{_choose(random, '', '', '-1', '-1', '2', '-2', '3', '-3') if step else ''}"
                )
    if random.random() < 0.3:
        items.insert(random.integers(len(items) + 1) if random.random() < 0.2 else len(items), "...")
    items += ["None"] * (random.random() < 0.1)
    return f"a[{', '.join(items)}]" if items else "a[...]"


def _bound(random: Random, size: int) -> str:
    if random.random() < 0.3:
        return ""
    far = random.random() < 0.05
    return (
        _choose(random, str(2**31 - 1), str(2**63 - 1), str(-(2**63)), "10**30")
        if far
        else str(random.integers(-size - 3, size + 4))
    )


def _movement(random: Random, a: Array) -> str:
    axes = [f"a.squeeze({axis})" for axis, size in enumerate(a.shape) if size == 1]
    order = random.permutation(a.ndim).tolist()
    shape = [*a.shape[:1], -1] if a.size else [-1]
    return _choose(random, "a.T", "a.reshape(-1)", f"a.reshape({shape})", f"a.transpose({order})", *axes)


def _reduction(random: Random, a: Array) -> str:
    names = ["sum", "mean", "prod", *(["max", "min"] if a.size else [])]
    axis: Any = None
    if a.ndim and random.random() < 0.8:
        axes = random.permutation(a.ndim)[: random.integers(1, a.ndim + 1)].tolist()
        axis = axes[0] - (a.ndim if random.random() < 0.5 else 0) if len(axes) == 1 else tuple(axes)
    return f"a.{_choose(random, *names)}(axis={axis}, keepdims={bool(random.integers(2))})"


def _comparison(random: Random, a: Array) -> str:
    other = _other(random, a)
    return f"a {_choose(random, '==', '!=', '<', '<=', '>', '>=')} {other}"


def _arithmetic(random: Random, a: Array) -> str:
    other = _other(random, a)
    operator = _choose(random, "+", "-", "*", "//", "//", "%", "%", *(["/"] if a.dtype.kind == "f" else []))
    divides = operator in ("/", "//", "%")
    unary = _choose(random, "-a", "abs(a)", "+a", "a * a", "a ** 2", "a ** 3")
    if random.random() < 0.2:
        return unary
    if operator == "-" and other == "a":  # shader compilers take x - x for 0, also where x is infinite
        other = "1"
    if divides and a.dtype.kind != "f" and other in ("0", "a"):
        other = "3"
    if random.random() < 0.2 and not (divides and a.dtype.kind != "f"):
        return f"{_number(random, a)} {operator} a"
    return f"a {operator} {other}"


def _other(random: Random, a: Array) -> str:
    """Return a number, the other input in a shape that broadcasts if there is one, or the tensor itself."""
    return _choose(random, _number(random, a), _number(random, a), "x", "a", "a[..., :1]" if a.ndim else "a")


def _number(random: Random, a: Array) -> str:
    match a.dtype.kind:
        case "b":
            return _choose(random, "True", "False")
        case "f":
            return _choose(random, "0.1", "-0.75", "2", "-3", "0.0", "np.float32(0.5)", "1e-3", "np.inf")
        case "u":
            return _choose(random, "1", "2", "3", "7", "100")
        case _:
            return _choose(random, "1", "2", "-3", "7", "-1", "100")


def _conversion(random: Random, a: Array) -> str:
    small = a.dtype.kind != "f" or (bool(np.isfinite(a).all()) and float(np.abs(a).max(initial=0)) < 100)
    dtypes = ["float32", "float64", "bool", *(["int64", "int32", "int8"] if small else [])]
    return f"a.astype('{_choose(random, *dtypes)}')"


def _logic(random: Random, a: Array) -> str:
    other = _choose(random, "a", "x", "True" if a.dtype.kind == "b" else "5")
    return _choose(random, "~a", f"a & {other}", f"a | {other}", f"a ^ {other}")
