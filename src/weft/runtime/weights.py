"""`model.weights`: the weights by name, read-only; and the checks of new ones.

A weight is an initializer, or a Constant node under the name of its output. In a subgraph the name is prefixed by the
first output of the subgraph's node and the attribute: "result/then_branch/weight". Constants in functions are not
weights: they have no name that is unique in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from weft.errors import InputError, UnknownNameError, UnsupportedModelError, short_repr
from weft.ir.arrays import Array
from weft.ir.dtypes import from_numpy
from weft.ir.graph import OnnxModel, weight_arrays
from weft.ir.tensors import DeviceTensor
from weft.quantities import format_plural, format_shape, shorten
from weft.runtime.array_likes import as_array
from weft.runtime.model_files import ModelFiles
from weft.tables import Table


class Weights(Mapping[str, Array]):
    """The current weights by name; `model.set_weight` replaces one.

    Arrays are read-only, and those of large models are views of the file's content. Setting a weight does not change
    arrays that were returned before.
    """

    def __init__(self, files: Callable[[], ModelFiles]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> Array:
        model = self._files().model()
        if name not in model.weights:
            raise UnknownNameError(
                f"the model has no weight {short_repr(name)}", file=model.file, hint=_name_hint(name, model)
            )
        return weight_arrays(model.graph)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files().model().weights)

    def __len__(self) -> int:
        return len(self._files().model().weights)

    def __contains__(self, name: object) -> bool:
        return name in self._files().model().weights

    def __repr__(self) -> str:
        return f"<{format_plural(len(self), 'weight')} of {shorten(self._files().file)}>"

    def _repr_html_(self) -> str:
        model = self._files().model()
        arrays = weight_arrays(model.graph)
        rows = [(name, from_numpy(arrays[name].dtype), format_shape(arrays[name].shape)) for name in model.weights]
        return Table(rows, ("weight", "type", "shape"), title=repr(self)[1:-1]).html()

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a plain dict of the current weights."""
        return dict, (dict(self),)


def check_weights(weights: Any, files: ModelFiles) -> dict[str, Array]:
    """Copy new weights into arrays; InputError if a name, dtype or shape is not the model's."""
    if not isinstance(weights, Mapping):
        hint = 'for instance {"conv1.weight": array}'
        raise InputError(
            f"weights must be a dict of arrays by name, not {short_repr(weights)}", file=files.file, hint=hint
        )
    model = files.model()
    current = weight_arrays(model.graph)
    for name in weights:
        if not isinstance(name, str) or name not in model.weights:
            raise InputError(
                f"the model has no weight {short_repr(name)}", file=files.file, hint=_name_hint(name, model)
            )
    return {name: _check_weight(content, current[name], name, files.file) for name, content in weights.items()}


def _check_weight(content: Any, current: Array, name: str, file: str) -> Array:
    dtype = from_numpy(current.dtype)
    content = content.numpy() if isinstance(content, DeviceTensor) else content
    array = as_array(content, dtype, f"weight {name!r}", file)
    try:
        actual = str(from_numpy(array.dtype))
    except UnsupportedModelError:
        actual = f"numpy's {array.dtype}"
    if actual != dtype:
        hint = "convert it with array.astype; the types of weights cannot change"
        raise InputError(f"weight {name!r} is {dtype}, not {actual}", file=file, hint=hint)
    if array.shape != current.shape:
        raise InputError(f"weight {name!r} has the shape {current.shape}, not {array.shape}", file=file)
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


def _name_hint(name: object, model: OnnxModel) -> str:
    if not model.weights:
        return "the model has no weights"
    nested = [weight for weight in model.weights if isinstance(name, str) and weight.endswith(f"/{name}")]
    close = nested[:3] or (get_close_matches(name, model.weights) if isinstance(name, str) else [])
    return f"did you mean {' or '.join(map(repr, close))}?" if close else "model.weights lists all"
