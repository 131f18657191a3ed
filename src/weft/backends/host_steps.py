"""Steps for the host, ready to run in microseconds: closures, sizes bound by axis, guards checked by compiled code.

What closures leave to `run_step` (backends/reference/interpret.py) is rare or takes longer anyway; so is every failure,
which is told there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.reference.sizes import GuardError, check_guards
from weft.errors import InternalError, WeftError
from weft.interrupts import is_large, present
from weft.ir import dims
from weft.ir.program import Branch, Guard, Host, Loop, Map, Observe, Reshape, Step, TensorProgram
from weft.ir.types import TensorType, Type
from weft.records import dataclass

Sizes = dict[str, int]
RunBody = Callable[[TensorProgram, Sequence[Any], Mapping[str, int]], list[Any]]
Enter = Callable[[TensorProgram, Mapping[str, int]], Callable[[list[Any]], list[Any]]]
RunHost = Callable[[list[Any], Sizes], list[Any]]
UNCOMPUTED = {
    *"text_positions zip_map string_concat string_normalize string_split tokens tf_idf nonzero scalar".split(),
    *(f"sequence_{verb}" for verb in ("construct", "insert", "erase", "at", "length")),
}  # functions without arithmetic, of which numpy has nothing to say
FIRST_COMPILED = 8  # checks of the same guards, after which they are compiled
Bounds = tuple[int, str, "int | None", "int | None"]  # an axis, the symbol that it shows, and its limits


def ready_step(step: Step, run: Callable[..., list[Any]] | None, run_body: RunBody, enter: Enter) -> RunHost:
    """A function of operands and sizes; `run` runs every step, where someone has a way of his own.

    `enter` gives what runs a body again and again within the same sizes.
    """
    if run is not None:
        return lambda operands, sizes: run(step, operands, sizes, run_body)
    match step.primitive:
        case Observe(symbols):
            return _observation(step, tuple(map(str, symbols)))
        case Branch():
            return _branch(step, step.primitive, run_body)
        case Loop():
            return _loop(step, step.primitive, run_body, enter)
        case Host(function, attributes):
            return _host_function(step, function, dict(attributes))
        case Map():
            return _map(step, step.primitive)
        case Reshape():
            return _reshape(step)
    return lambda operands, sizes: run_on_host(step, operands, sizes, run_body)


def run_on_host(*arguments: Any) -> list[Any]:
    """A step of the host's, in numpy; what does that is imported by those alone who have such steps."""
    from weft.backends.reference.interpret import run_step

    return run_step(*arguments)


def _observation(step: Step, names: tuple[str, ...]) -> RunHost:
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


def _branch(step: Step, primitive: Branch, run_body: RunBody) -> RunHost:
    then, otherwise, split = primitive.then, primitive.otherwise, 1 + len(primitive.then.inputs)

    def branch(operands: list[Any], sizes: Sizes) -> list[Any]:
        condition = operands[0]
        if type(condition) is not np.ndarray or condition.size != 1 or present() is not None:
            return run_on_host(step, operands, sizes, run_body)
        try:
            if condition.item():
                return run_body(then, operands[1:split], sizes)
            return run_body(otherwise, operands[split:], sizes)
        except RecursionError:
            return run_on_host(step, operands, sizes, run_body)

    return branch


def _loop(step: Step, primitive: Loop, run_body: RunBody, enter: Enter) -> RunHost:
    body, count = primitive.body, primitive.carries

    def loop(operands: list[Any], sizes: Sizes) -> list[Any]:
        trips, going = operands[0], operands[1]
        arrays = type(trips) is np.ndarray and type(going) is np.ndarray
        if not arrays or trips.size != 1 or going.size != 1 or present() is not None:
            return run_on_host(step, operands, sizes, run_body)
        most, carries, captures = int(trips.item()), operands[2 : 2 + count], operands[2 + count :]
        rows: list[list[Any]] = []
        iteration = 0
        try:
            turn = enter(body, sizes)
            while iteration < most and going.item():
                going, *rest = turn([np.array(iteration), going.reshape(()), *carries, *captures])
                carries = rest[:count]
                if len(rest) > count:
                    rows.append(rest[count:])
                iteration += 1
            if iteration:
                return [*carries, *[np.stack(column) for column in zip(*rows, strict=True)]]
        except WeftError as error:
            raise error.at(node=step.origin) from error.__cause__
        except (RecursionError, MemoryError, ValueError, TypeError, AttributeError):
            pass  # it is raised again, with what there is to say about it
        return run_on_host(step, operands, sizes, run_body)

    return loop


def _host_function(step: Step, name: str, attributes: dict[str, Any]) -> RunHost:
    from weft.backends.reference.host import HOST_FUNCTIONS

    function = HOST_FUNCTIONS[name]
    computes = name not in UNCOMPUTED

    def call(operands: list[Any], sizes: Sizes) -> list[Any]:
        if present() is None and not is_large(operands):
            try:
                if not computes:
                    return list(function(*operands, **attributes))
                with np.errstate(all="ignore"):
                    return list(function(*operands, **attributes))
            except Exception:
                pass  # it is raised again, with what there is to say about it
        return run_on_host(step, operands, sizes)

    return call


def _map(step: Step, primitive: Map) -> RunHost:
    from weft.backends.reference.picked_maps import picked_map
    from weft.backends.reference.small_maps import small_map

    result = step.results[0].type
    small = picked_map(primitive, result) or small_map(primitive, [value.type for value in step.operands], result)
    if small is None:
        return lambda operands, sizes: run_on_host(step, operands, sizes)

    def compute(operands: list[Any], sizes: Sizes) -> list[Any]:
        try:
            made = small(operands, sizes)
        except Exception:
            made = None  # it is raised again, with what there is to say about it
        return run_on_host(step, operands, sizes) if made is None else [made]

    return compute


def _reshape(step: Step) -> RunHost:
    result = step.results[0].type
    shape = result.shape if isinstance(result, TensorType) else None
    if shape is None or sum(not isinstance(size, int) for size in shape) > 1 or 0 in shape:
        return lambda operands, sizes: run_on_host(step, operands, sizes)
    wanted = tuple([size if isinstance(size, int) else -1 for size in shape])

    def reshape(operands: list[Any], sizes: Sizes) -> list[Any]:
        content = operands[0]
        if type(content) is not np.ndarray or not content.size:
            return run_on_host(step, operands, sizes)
        try:
            return [content.reshape(wanted)]
        except ValueError:
            return run_on_host(step, operands, sizes)  # it is raised again, with what there is to say about it

    return reshape


def is_gradual(step: Step) -> bool:
    """Whether a step hands its operands on as they are, to programs that put what they need into order."""
    return isinstance(step.primitive, (Observe, Branch, Loop))


@dataclass(frozen=True, slots=True)
class ShownSizes:
    """What a value shows of sizes: its rank, and the axes that are a symbol alone."""

    rank: int
    bounds: tuple[Bounds, ...]
    type: Type

    def bind(self, content: Any, sizes: Sizes, *, rebind: bool) -> None:
        """Give symbols the sizes that an array has."""
        shape = content.shape
        if len(shape) != self.rank:
            raise InternalError(f"a tensor of shape {shape} where {self.type} was planned")
        for axis, name, low, high in self.bounds:
            if rebind or name not in sizes:
                size = shape[axis]
                if low is not None and size < low:
                    raise GuardError(Guard(dims.symbol(name, low, high), low, "", at_least=True), size, low)
                if high is not None and size > high:
                    raise GuardError(Guard(high, dims.symbol(name, low, high), "", at_least=True), high, size)
                sizes[name] = size


def shown_sizes(type: Type) -> ShownSizes | None:
    """What values of a type show; None: nothing."""
    if not isinstance(type, TensorType) or type.shape is None:
        return None
    found = [(axis, dims.as_symbol(dim)) for axis, dim in enumerate(type.shape)]
    bounds = tuple((axis, symbol.name, symbol.low, symbol.high) for axis, symbol in found if symbol is not None)
    return ShownSizes(len(type.shape), bounds, type) if bounds else None


class GuardCheck:
    """Guards that are checked at one point of a program, again and again. Several threads may do so at once."""

    __slots__ = ("_compiled", "_count", "guards")

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = tuple(guards)
        self._count = 0
        self._compiled: Callable[[Mapping[str, int]], int] | None = None

    def __call__(self, sizes: Mapping[str, int]) -> tuple[Guard, ...]:
        """Raise GuardError where one is broken; gives those whose sizes are not known."""
        if self._compiled is not None:
            try:
                broken = self._compiled(sizes)
            except (KeyError, ArithmeticError):
                return check_guards(self.guards, sizes)
            return () if broken < 0 else check_guards(self.guards, sizes)
        self._count += 1
        if self._count >= FIRST_COMPILED and self.guards:
            from weft.ir.formulas import compile_guards

            self._compiled = compile_guards(self.guards)
        return check_guards(self.guards, sizes)
