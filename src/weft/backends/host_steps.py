"""Host steps prepared to run in microseconds: closures, sizes bound by axis, guards checked by compiled code.

Closures leave rare or slow cases, and every failure, to `run_step` (backends/reference/interpret.py), which has the
error messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.reference.sizes import GuardError, check_guards
from weft.errors import InternalError, WeftError
from weft.interrupts import current_watch, is_large
from weft.ir import dims
from weft.ir.formulas import compile_guards
from weft.ir.program import Branch, Guard, Host, Loop, Map, Observe, Reshape, Step, TensorProgram
from weft.ir.tensors import DeviceTensor
from weft.ir.types import Type
from weft.records import dataclass

Sizes = dict[str, int]
RunBody = Callable[[TensorProgram, Sequence[Any], Mapping[str, int]], list[Any]]
Enter = Callable[[TensorProgram, Mapping[str, int]], Callable[[list[Any]], list[Any]]]
RunHost = Callable[[list[Any], Sizes], list[Any]]
UNCOMPUTED = {
    *"text_positions zip_map string_concat string_normalize string_split tokens tf_idf nonzero scalar".split(),
    *(f"sequence_{verb}" for verb in ("construct", "insert", "erase", "at", "length")),
}  # functions without arithmetic, where numpy raises no warnings
CHECKS_BEFORE_COMPILING = 8  # guards are compiled after this many checks
Bounds = tuple[int, str, "int | None", "int | None"]  # an axis, the symbol that is its size, and the symbol's limits


def prepare_step(step: Step, run: Callable[..., list[Any]] | None, run_body: RunBody, enter: Enter) -> RunHost:
    """Return a function of operands and sizes that runs a step; `run` overrides how every step is run.

    `enter` returns a function that runs a body repeatedly while the outer sizes stay the same.
    """
    if run is not None:
        return lambda operands, sizes: run(step, operands, sizes, run_body)
    match step.primitive:
        case Observe(symbols):
            return _prepare_observe(step, tuple(map(str, symbols)))
        case Branch():
            return _prepare_branch(step, step.primitive, run_body)
        case Loop():
            return _prepare_loop(step, step.primitive, run_body, enter)
        case Host(function, attributes):
            return _prepare_host_function(step, function, dict(attributes))
        case Map():
            return _prepare_map(step, step.primitive)
        case Reshape():
            return _prepare_reshape(step)
    return lambda operands, sizes: run_on_host(step, operands, sizes, run_body)


def run_on_host(*arguments: Any) -> list[Any]:
    """Run a host step in numpy; imports the interpreter on first use."""
    from weft.backends.reference.interpret import run_step

    return run_step(*arguments)


def _prepare_observe(step: Step, names: tuple[str, ...]) -> RunHost:
    single = names[0] if len(names) == 1 else None

    def observe(operands: list[Any], sizes: Sizes) -> list[Any]:
        content = operands[0]
        if type(content) is not np.ndarray or content.size != len(names):
            return run_on_host(step, operands, sizes)
        if single is not None:
            sizes[single] = int(content.item())
        else:
            sizes.update(zip(names, map(int, content.ravel().tolist())))
        return []

    return observe


def _prepare_branch(step: Step, primitive: Branch, run_body: RunBody) -> RunHost:
    then, otherwise, split = primitive.then, primitive.otherwise, 1 + len(primitive.then.inputs)

    def branch(operands: list[Any], sizes: Sizes) -> list[Any]:
        condition = operands[0]
        if type(condition) is not np.ndarray or condition.size != 1 or current_watch() is not None:
            return run_on_host(step, operands, sizes, run_body)
        try:
            if condition.item():
                return run_body(then, operands[1:split], sizes)
            return run_body(otherwise, operands[split:], sizes)
        except RecursionError:
            return run_on_host(step, operands, sizes, run_body)

    return branch


def _prepare_loop(step: Step, primitive: Loop, run_body: RunBody, enter: Enter) -> RunHost:
    body, count = primitive.body, primitive.carries

    def loop(operands: list[Any], sizes: Sizes) -> list[Any]:
        trips, going = operands[0], operands[1]
        arrays = type(trips) is np.ndarray and type(going) is np.ndarray
        if not arrays or trips.size != 1 or going.size != 1 or current_watch() is not None:
            return run_on_host(step, operands, sizes, run_body)
        max_trips, carries, captures = int(trips.item()), operands[2 : 2 + count], operands[2 + count :]
        rows: list[list[Any]] = []
        iteration = 0
        try:
            run_iteration = enter(body, sizes)
            while iteration < max_trips and going.item():
                going, *rest = run_iteration([np.array(iteration), going.reshape(()), *carries, *captures])
                carries = rest[:count]
                if len(rest) > count:
                    rows.append(rest[count:])
                iteration += 1
            if iteration:
                return [*carries, *[np.stack(column) for column in zip(*rows, strict=True)]]
        except WeftError as error:
            raise error.at(node=step.origin) from error.__cause__
        except (RecursionError, MemoryError, ValueError, TypeError, AttributeError):
            pass  # run_on_host raises it again, with a message
        return run_on_host(step, operands, sizes, run_body)

    return loop


def _prepare_host_function(step: Step, name: str, attributes: dict[str, Any]) -> RunHost:
    from weft.backends.reference.host import HOST_FUNCTIONS

    function = HOST_FUNCTIONS[name]
    computes = name not in UNCOMPUTED

    def call(operands: list[Any], sizes: Sizes) -> list[Any]:
        if current_watch() is None and not is_large(operands):
            try:
                if not computes:
                    return list(function(*operands, **attributes))
                with np.errstate(all="ignore"):
                    return list(function(*operands, **attributes))
            except Exception:
                pass  # run_on_host raises it again, with a message
        return run_on_host(step, operands, sizes)

    return call


def _prepare_map(step: Step, primitive: Map) -> RunHost:
    from weft.backends.reference.indexing_maps import compile_indexing_map
    from weft.backends.reference.small_maps import compile_small_map

    result = step.results[0].type
    evaluate = compile_indexing_map(primitive, result) or compile_small_map(
        primitive, [value.type for value in step.operands], result
    )
    if evaluate is None:
        return lambda operands, sizes: run_on_host(step, operands, sizes)

    def compute(operands: list[Any], sizes: Sizes) -> list[Any]:
        try:
            content = evaluate(operands, sizes)
        except Exception:
            content = None  # run_on_host raises it again, with a message
        return run_on_host(step, operands, sizes) if content is None else [content]

    return compute


def _prepare_reshape(step: Step) -> RunHost:
    shape = step.results[0].known_shape
    if shape is None or sum(not isinstance(size, int) for size in shape) > 1 or 0 in shape:
        return lambda operands, sizes: run_on_host(step, operands, sizes)
    new_shape = tuple([size if isinstance(size, int) else -1 for size in shape])

    def reshape(operands: list[Any], sizes: Sizes) -> list[Any]:
        content = operands[0]
        if type(content) is not np.ndarray or not content.size:
            return run_on_host(step, operands, sizes)
        try:
            return [content.reshape(new_shape)]
        except ValueError:
            return run_on_host(step, operands, sizes)  # raises it again, with a message

    return reshape


def is_gradual(step: Step) -> bool:
    """Whether a step passes its operands on unchanged, to bodies that convert those they read to row-major order."""
    return isinstance(step.primitive, (Observe, Branch, Loop))


@dataclass(frozen=True, slots=True)
class ShownSizes:
    """The sizes that a value's shape shows: its rank, and the axes whose size is a single symbol."""

    rank: int
    bounds: tuple[Bounds, ...]
    type: Type

    def bind(self, content: Any, sizes: Sizes, *, rebind: bool) -> None:
        """Set symbols to the sizes of an array."""
        shape = content.shape
        if len(shape) != self.rank:
            raise InternalError(f"expected a tensor of type {self.type}, got one of shape {shape}")
        for axis, name, low, high in self.bounds:
            if rebind or name not in sizes:
                size = shape[axis]
                if low is not None and size < low:
                    raise GuardError(Guard(dims.symbol(name, low, high), low, "", at_least=True), size, low)
                if high is not None and size > high:
                    raise GuardError(Guard(high, dims.symbol(name, low, high), "", at_least=True), high, size)
                sizes[name] = size


def shown_sizes(type: Type) -> ShownSizes | None:
    """Return the sizes that values of a type show, or None."""
    if type.shape is None:
        return None
    symbols = [(axis, dims.as_symbol(dim)) for axis, dim in enumerate(type.shape)]
    bounds = tuple((axis, symbol.name, symbol.low, symbol.high) for axis, symbol in symbols if symbol is not None)
    return ShownSizes(len(type.shape), bounds, type) if bounds else None


class SizeBinding:
    """Sets symbols to the sizes that inputs show, by their numbers. Several threads may use it at once."""

    __slots__ = ("_compiled", "_count", "shown")

    def __init__(self, shown: Sequence[tuple[int, ShownSizes]]) -> None:
        self.shown = shown
        self._count = 0
        self._compiled: Callable[[Sequence[Any], Sizes], bool] | None = None

    def __call__(self, inputs: Sequence[Any], sizes: Sizes) -> None:
        """Add the sizes that inputs show; inputs that are no tensors show none."""
        if self._compiled is not None:
            try:
                if self._compiled(inputs, sizes):
                    return
            except (AttributeError, ValueError, TypeError):
                pass  # not a tensor, or one of another rank: what follows handles it
        else:
            self._count += 1
            if self._count >= CHECKS_BEFORE_COMPILING:
                self._compiled = compile_sizes(self.shown)
        for number, shown in self.shown:
            if isinstance(inputs[number], (np.ndarray, DeviceTensor)):
                shown.bind(inputs[number], sizes, rebind=True)


def compile_sizes(shown: Sequence[tuple[int, ShownSizes]]) -> Callable[[Sequence[Any], Sizes], bool]:
    """Compile a function that adds the sizes that inputs show; it returns False where one is out of bounds."""
    lines: list[str] = []
    for number, sizes in shown:
        names = ["_"] * sizes.rank
        tests, assignments = [], []
        for axis, name, low, high in sizes.bounds:
            variable = names[axis] = f"d{axis}"
            tests += [f"{variable} < {low}"] if low is not None else []
            tests += [f"{variable} > {high}"] if high is not None else []
            assignments.append(f"sizes[{name!r}] = {variable}")
        lines.append(f"[{', '.join(names)}] = inputs[{number}].shape")
        lines += [f"if {' or '.join(tests)}: return False"] if tests else []
        lines += assignments
    scope: dict[str, Any] = {}
    exec("def bind(inputs, sizes):\n" + "".join(f"    {line}\n" for line in (*lines, "return True")), {}, scope)
    bind: Callable[[Sequence[Any], Sizes], bool] = scope["bind"]
    return bind


class GuardCheck:
    """Guards to check at one point of a program. Several threads may check them at once."""

    __slots__ = ("_compiled", "_count", "guards")

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = tuple(guards)
        self._count = 0
        self._compiled: Callable[[Mapping[str, int]], int] | None = None

    def __call__(self, sizes: Mapping[str, int]) -> tuple[Guard, ...]:
        """Raise GuardError for a broken guard; return those whose sizes are not known yet."""
        if self._compiled is not None:
            try:
                broken = self._compiled(sizes)
            except (KeyError, ArithmeticError):
                return check_guards(self.guards, sizes)
            return () if broken < 0 else check_guards(self.guards, sizes)
        self._count += 1
        if self._count >= CHECKS_BEFORE_COMPILING and self.guards:
            self._compiled = compile_guards(self.guards)
        return check_guards(self.guards, sizes)
