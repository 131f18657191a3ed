"""Sizes as kernel parameters: so that one compiled kernel serves many shapes."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.kernel import variable


class Parameters:
    """Collects the sizes that a kernel is launched with; a size is named once however often it occurs."""

    def __init__(self) -> None:
        self.values: dict[str, Dim] = {}
        self._names: dict[Dim, str] = {}

    def size(self, value: Dim) -> Dim:
        """A size as the kernel sees it: 0 and 1 as they are, others as parameters."""
        if value in (0, 1):
            return value
        if value not in self._names:
            name = f"p{len(self._names)}"
            self._names[value] = name
            self.values[name] = value
        return _variable(self._names[value], value)

    def named(self, name: str, value: Dim) -> Dim:
        """A size under a name of its own, whatever it is: so that shapes that happen to agree need no other kernel."""
        self.values[name] = value
        return _variable(name, value)

    def symbols(self, value: Dim) -> Dim:
        """Index arithmetic with the program's symbols replaced by parameters; integers stay."""
        return dims.substitute(value, self._atom)

    def _atom(self, atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return dims.axis(atom.position, atom.size)
        return self.size(dims.symbol(atom.name, atom.low, atom.high))


def _variable(name: str, value: Dim) -> Dim:
    low = dims.bounds(value)[0]
    return variable(name, None if low is None or low < 0 else min(low, 1))
