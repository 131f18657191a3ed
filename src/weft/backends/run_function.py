"""Generate one Python function that runs all sections and host steps of a program, without table lookups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from numpy import ndarray

from weft.backends.host_steps import ShownSizes
from weft.backends.reference.sizes import check_guards, in_order

RunFunction = Callable[..., list[Any]]  # of inputs, sizes, pending guards, and optional arrays for outputs


class RunFunctionBuilder:
    """Collects the source lines of a run in order. The value in slot 3 is the variable `v3`."""

    def __init__(
        self, inputs: Sequence[int], constants: Sequence[Any], ordered: Sequence[int], *, copy_sizes: bool
    ) -> None:
        """`constants` fill the first slots; `ordered` are the inputs to convert to row-major order.

        `copy_sizes`: whether a step adds to the sizes.
        """
        self._names: dict[str, Any] = {"in_order": in_order, "check_guards": check_guards}
        self._names.update((f"v{slot}", content) for slot, content in enumerate(constants))
        self._constants = len(constants)
        self._lines = [f"{_list_slots(inputs)} = inputs" if inputs else "pass"]
        if copy_sizes:
            self._lines.append("sizes = sizes.copy()")
        self._lines += [f"v{inputs[number]} = in_order(v{inputs[number]})" for number in ordered]

    def add_section(
        self,
        run: Callable[..., list[Any]],
        operands: Sequence[int],
        results: Sequence[int],
        *,
        bound: bool,
        outputs: Sequence[int | None] = (),
    ) -> None:
        """Call a native section.

        A `bound` section takes, instead of sizes, the arrays offered for results that are outputs of the program;
        `outputs` has the output number of each result.
        """
        offered = ", ".join("None" if number is None else f"into[{number}]" for number in outputs)
        more = (f", [{offered}] if into else ()" if offered else "") if bound else ", sizes"
        self._add_call(f"{self._name(run)}([{_list_slots(operands)}]{more})", results)

    def add_host_step(
        self,
        run: Callable[..., list[Any]],
        operands: Sequence[int],
        results: Sequence[int],
        binds: Sequence[tuple[int, ShownSizes]],
        check: Callable[..., Any] | None,
    ) -> None:
        """Call a step on the host, bind the sizes that its results show and check guards."""
        self._add_call(f"{self._name(run)}([{_list_slots(operands)}], sizes)", results)
        for number, shown in binds:
            self._lines.append(f"{self._name(_make_binder(shown))}(v{results[number]}, sizes)")
        if check is not None:
            self._lines.append(f"pending += {self._name(check)}(sizes)")
        self._lines.append("if pending: pending = check_guards(pending, sizes)")

    def release(self, slots: Sequence[int]) -> None:
        self._lines += [f"v{slot} = None" for slot in slots if slot >= self._constants]

    def build(self, outputs: Sequence[int]) -> RunFunction:
        """Compile the function."""
        lines = [*self._lines, f"return [{_list_slots(outputs)}]"]
        exec(_compile_run("".join(f"    {line}\n" for line in lines)), self._names)
        run: RunFunction = self._names.pop("run")  # its globals must not refer to it: no reference cycle
        return run

    def _add_call(self, call: str, results: Sequence[int]) -> None:
        self._lines.append(f"{_list_slots(results)} = {call}" if results else call)

    def _name(self, function: Any) -> str:
        name = f"f{len(self._names)}"
        self._names[name] = function
        return name


@lru_cache(maxsize=256)
def _compile_run(body: str) -> CodeType:
    """Compile the function with this body: functions of one program differ only in the sizes that they are bound to."""
    return compile(f"def run(inputs, sizes, pending, into=()):\n{body}", "<run>", "exec")


def _list_slots(slots: Sequence[int]) -> str:
    return "".join(f"v{slot}, " for slot in slots)


def _make_binder(shown: ShownSizes) -> Callable[[Any, dict[str, int]], None]:
    def bind(content: Any, sizes: dict[str, int]) -> None:
        if isinstance(content, ndarray):
            shown.bind(content, sizes, rebind=False)

    return bind
