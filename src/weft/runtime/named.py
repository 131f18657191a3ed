"""What a model gives by name: results and specs, which say what there is where a name is none of theirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex, overload

from weft.errors import UnknownNameError, shown
from weft.ir.specs import TensorSpec


class Outputs(dict[str, Any]):
    """The results of a run: a dict, with an error for `run(...)[0]` that says how they are called."""

    __slots__ = ()

    def __missing__(self, name: object) -> Any:
        names = ", ".join(map(repr, self)) or "none"
        problem = f"this run gave no output {shown(name)}"
        if isinstance(name, int) and -len(self) <= name < len(self):
            hint = f"outputs have names: write [{list(self)[name]!r}], or call the model, as in model(array)"
            raise UnknownNameError(problem, hint=hint)
        raise UnknownNameError(problem, hint=f"it gave {names}; outputs=[...] asks for others")

    def __reduce__(self) -> tuple[Any, ...]:
        """A plain dict where it is taken apart, so that whoever reads it needs no weft."""
        return dict, (dict(self),)


class Specs(tuple[TensorSpec, ...]):
    """Inputs or outputs in order, which can be had by name too: `model.inputs["x"]`."""

    __slots__ = ()

    def __new__(cls, specs: Iterable[TensorSpec]) -> Specs:
        return super().__new__(cls, specs)

    @overload
    def __getitem__(self, key: SupportsIndex | str, /) -> TensorSpec: ...
    @overload
    def __getitem__(self, key: slice, /) -> tuple[TensorSpec, ...]: ...
    def __getitem__(self, key: Any, /) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for spec in self:
            if spec.name == key:
                return spec
        names = ", ".join(repr(spec.name) for spec in self) or "none"
        raise UnknownNameError(f"there is no {shown(key)} among them", hint=f"there is {names}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Specs, (tuple(self),)
