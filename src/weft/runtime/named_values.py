"""Outputs and specs by name, with errors that list the names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex, overload

import numpy as np

from weft.errors import UnknownNameError, short_repr
from weft.ir.specs import TensorSpec, spec_table
from weft.ir.tensors import DeviceTensor
from weft.quantities import format_shape, join_few, shorten
from weft.tables import Table

_MOST_NAMES = 20  # in an error
_MOST_NUMBERS = 6  # that are shown of an output


class Outputs(dict[str, Any]):
    """The results of a run: a dict, with an error for `run(...)[0]` that lists their names."""

    __slots__ = ()

    def __missing__(self, name: object) -> Any:
        names = join_few(map(repr, self), _MOST_NAMES) or "none"
        problem = f"this run has no output {short_repr(name)}"
        if isinstance(name, int) and -len(self) <= name < len(self):
            hint = f"outputs have names: write [{list(self)[name]!r}], or call the model, as in model(array)"
            raise UnknownNameError(problem, hint=hint)
        raise UnknownNameError(problem, hint=f"it returned {names}; request others with outputs=[...]")

    def __repr__(self) -> str:
        """Show a line for each output: type, shape and first numbers."""
        lines = [f"{shorten(name)!r}: {_value_text(content)}" for name, content in self.items()]
        return f"{{{join_few(lines, _MOST_NAMES, f',{chr(10)} ')}}}"

    def _repr_html_(self) -> str:
        rows = [(name, *_value_parts(content)) for name, content in self.items()]
        return Table(rows, ("output", "type", "shape", "values")).html()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a plain dict, which can be read without weft."""
        return dict, (dict(self),)


class Specs(tuple[TensorSpec, ...]):
    """Inputs or outputs in order, also by name: `model.inputs["x"]`."""

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
        names = join_few((repr(spec.name) for spec in self), _MOST_NAMES) or "none"
        raise UnknownNameError(f"there is no spec named {short_repr(key)}", hint=f"there is {names}")

    def __repr__(self) -> str:
        lines = [f"{spec!r}" for spec in self]
        return f"({join_few(lines, _MOST_NAMES, f',{chr(10)} ')}{',' * (len(lines) == 1)})"

    def __str__(self) -> str:
        return spec_table(self).text() if self else repr(self)

    def _repr_html_(self) -> str:
        return spec_table(self).html()

    def _ipython_key_completions_(self) -> list[str]:
        return [spec.name for spec in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return Specs, (tuple(self),)


def _value_parts(content: Any) -> tuple[str, str, str]:
    """Return the type of a result, its shape, and its first elements as text."""
    if isinstance(content, DeviceTensor):
        return content.dtype.name, format_shape(content.shape), f"on {content.device}"
    if not isinstance(content, (np.ndarray, np.generic)):
        return type(content).__name__, "" if content is None else f"[{len(content)}]", shorten(repr(content))
    flat = np.asarray(content).reshape(-1)
    first = [_number_text(element) for element in flat[:_MOST_NUMBERS].tolist()]
    dtype = "string" if content.dtype == object else content.dtype.name
    return dtype, format_shape(content.shape), ", ".join([*first, "…"] if flat.size > len(first) else first)


def _number_text(element: Any) -> str:
    return f"{element:.4g}" if isinstance(element, (float, complex)) else shorten(repr(element), 24)


def _value_text(content: Any) -> str:
    kind, extent, values = _value_parts(content)
    return f"{kind}{extent} {values}".rstrip()
