"""The run of a program with steps on the host, written out as one Python function: no tables to look into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy import ndarray

from weft.backends.host_steps import ShownSizes
from weft.backends.reference.sizes import check_guards, in_order

WrittenRun = Callable[..., list[Any]]  # of inputs, sizes, guards that are to be checked, and arrays for outputs


class RunWriter:
    """Collects what is done, in order; values are known by the numbers of their places."""

    def __init__(self, inputs: Sequence[int], filled: Sequence[Any], ordered: Sequence[int], *, adds: bool) -> None:
        """`filled` are constants in the first places, `ordered` the inputs to put into the usual order of memory.

        `adds`: whether a step adds to the sizes, which are then copied.
        """
        self._names: dict[str, Any] = {"in_order": in_order, "check_guards": check_guards}
        self._names.update((f"v{slot}", content) for slot, content in enumerate(filled))
        self._constants = len(filled)
        self._lines = [f"{_places(inputs)} = inputs" if inputs else "pass"]
        if adds:
            self._lines.append("sizes = sizes.copy()")
        self._lines += [f"v{inputs[number]} = in_order(v{inputs[number]})" for number in ordered]

    def native(
        self,
        run: Callable[..., list[Any]],
        taken: Sequence[int],
        made: Sequence[int],
        *,
        bound: bool,
        outputs: Sequence[int | None] = (),
    ) -> None:
        """A native section; one that is `bound` to its sizes takes none, but arrays for results that are outputs.

        `outputs` are the numbers of those.
        """
        name = self._named(run)
        offered = ", ".join("None" if number is None else f"into[{number}]" for number in outputs)
        more = (f", [{offered}] if into else ()" if offered else "") if bound else ", sizes"
        call = f"{name}([{_places(taken)}]{more})"
        self._lines.append(f"{_places(made)} = {call}" if made else call)

    def host(
        self,
        run: Callable[..., list[Any]],
        taken: Sequence[int],
        made: Sequence[int],
        binds: Sequence[tuple[int, ShownSizes]],
        check: Callable[..., Any] | None,
    ) -> None:
        """A step on the host, and what is known after it."""
        call = f"{self._named(run)}([{_places(taken)}], sizes)"
        self._lines.append(f"{_places(made)} = {call}" if made else call)
        for number, shown in binds:
            self._lines.append(f"{self._named(_binder(shown))}(v{made[number]}, sizes)")
        if check is not None:
            self._lines.append(f"pending += {self._named(check)}(sizes)")
        self._lines.append("if pending: pending = check_guards(pending, sizes)")

    def release(self, places: Sequence[int]) -> None:
        self._lines += [f"v{place} = None" for place in places if place >= self._constants]

    def finish(self, outputs: Sequence[int]) -> WrittenRun:
        """The function: of inputs, sizes, guards that are still to be checked, and arrays for outputs, or none."""
        lines = [*self._lines, f"return [{_places(outputs)}]"]
        exec("def run(inputs, sizes, pending, into=()):\n" + "".join(f"    {line}\n" for line in lines), self._names)
        run: WrittenRun = self._names.pop("run")  # which its own names must not refer to, or only a collector frees it
        return run

    def _named(self, function: Any) -> str:
        name = f"f{len(self._names)}"
        self._names[name] = function
        return name


def _places(places: Sequence[int]) -> str:
    return "".join(f"v{place}, " for place in places)


def _binder(shown: ShownSizes) -> Callable[[Any, dict[str, int]], None]:
    def bind(content: Any, sizes: dict[str, int]) -> None:
        if isinstance(content, ndarray):
            shown.bind(content, sizes, rebind=False)

    return bind
